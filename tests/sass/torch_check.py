"""Prove PyTorch's kernels unwoven, and woven at random places.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so |
        python -m tests.sass.torch_check [--every N] [--json FILE]

Every Nth kernel (each unless said otherwise) is checked against itself. Then up to five places of it get the snippet
`leader`, and the result is proven. Prints what was found, and how long control flow, liveness and the check took.
Exits with 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack

from gpt.base.errors import GptError
from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.check import Version, check
from gpt.sass.code import Code
from gpt.sass.kernels import RESERVED, Kernel, read_facts, read_kernel
from gpt.sass.masks import Registers
from gpt.sass.tables import table_of
from gpt.sass.words import SIZE, dump_words
from gpt.sass.woven import Declaration, Moved
from tests.sass.corpus import find_places
from tests.sass.weaver import ARCH, Place, Use, Weaver, compiled_snippets

PARAMETER = 0x210  # where in the constant bank the snippet finds its address: nothing is run


def iter_versions(stream: object, every: int = 1) -> Iterator[Version]:
    """Yield every so many kernels of a stream of elements."""
    number = 0
    for record in msgpack.Unpacker(stream, max_buffer_size=1 << 30):
        if "data" in record:
            cubin = CubinEditor(record["data"])
            for raw in cubin.kernels:
                number += 1
                if number % every:
                    continue
                name = raw.decode()
                yield Version(read_kernel(cubin, name, table_of(ARCH)), read_facts(cubin, name))


def weave_words(one: Version, rnd: random.Random, count: int) -> tuple[Version, Declaration] | None:
    """Weave at random places, in words alone; return None if there's no such place."""
    kernel = one.kernel
    weaver = Weaver(kernel, PARAMETER, compiled_snippets(), None)
    found = find_places(kernel)
    for source in sorted(rnd.sample(found, min(count, len(found)))):
        try:
            weaver.add(Place(source, (Use("leader"),)))
        except LookupError:
            continue
    if not weaver.trampolines:
        return None
    moved = {
        SIZE * part.source: SIZE * part.start
        for trampoline in weaver.trampolines
        for part in trampoline.parts
        if isinstance(part, Moved)
    }
    exits = tuple(moved.get(offset, offset) for offset in one.facts.exits)
    registers = max(kernel.registers + RESERVED, one.facts.registers)
    facts = replace(one.facts, registers=registers, exits=exits, stack=one.facts.stack + weaver.stack)
    code = Code(dump_words(weaver.words), kernel.code.table)
    made = Kernel(kernel.name, code, kernel.registers, kernel.jump_tables)
    places = tuple(weaver.trampolines)
    return Version(made, facts), Declaration(places, frozenset(), Registers(), registers, weaver.stack)


def main() -> int:
    """Check all kernels of the stream."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rnd = random.Random(1)
    counts: Counter[str] = Counter()
    found: Counter[str] = Counter()
    times: dict[str, list[float]] = {"flow": [], "check": []}
    for one in iter_versions(sys.stdin.buffer, options.every):
        counts["kernels"] += 1
        counts["words"] += len(one.kernel.code)
        for finding in check(one, one, Declaration(registers=one.facts.registers)):
            found[f"unwoven: {finding.rule}"] += 1
        start = time.process_time()
        try:
            _ = one.kernel.live, one.kernel.flight
        except GptError as error:
            counts[f"refused: {error.fact.split(' at ')[0]}"] += 1
            continue
        times["flow"].append(time.process_time() - start)
        woven = weave_words(one, rnd, 5)
        if woven is None:
            counts["without a place"] += 1
            continue
        counts["woven"] += 1
        counts["places"] += len(woven[1].trampolines)
        start = time.process_time()
        findings = check(one, *woven)
        times["check"].append(time.process_time() - start)
        counts["proven"] += not findings
        for finding in findings:
            found[f"woven: {finding.rule}"] += 1
            print(one.kernel.name, finding, file=sys.stderr)
    milliseconds = {
        name: {"median": 1e3 * sorted(all_)[len(all_) // 2], "p99": 1e3 * sorted(all_)[len(all_) * 99 // 100],
               "mean": 1e3 * sum(all_) / len(all_)}
        for name, all_ in times.items() if all_
    }  # fmt: skip
    result = {"counts": dict(counts), "findings": dict(found), "milliseconds": milliseconds}
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
