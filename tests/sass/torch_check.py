"""Check PyTorch's kernels, both unchanged and woven at random places.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so |
        python -m tests.sass.torch_check [--every N] [--jobs N] [--json FILE]

Every Nth kernel (by default all) is decoded and encoded again, word by word, and checked against itself. Then the
snippet `leader` is woven in at up to five places, and the result is checked. Prints the findings, and the time for
control flow, liveness and the check. Exits with 1 if there are findings.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import msgpack

from gpt.base.errors import GptError
from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.plan.closed import ClosedCode
from gpt.probe.sass.stack import announce_stack_pointer
from gpt.sass.check import Version, check
from gpt.sass.code import Code
from gpt.sass.kernels import RESERVED, Kernel, read_facts, read_kernel
from gpt.sass.masks import Registers
from gpt.sass.tables import table_of
from gpt.sass.words import (
    SIZE,
    bits,
    control_of,
    dump_words,
    guard_of,
    target_of,
    with_bits,
    with_control,
    with_guard,
    with_target,
)
from gpt.sass.woven import Declaration, Moved
from tests.sass.corpus import find_places
from tests.sass.weaver import ARCH, Place, Use, Weaver, compiled_snippets

R = TypeVar("R")
PARAMETER = 0x210  # offset in the constant bank of the snippet's address; nothing is run


def iter_cubins(stream: object) -> Iterator[bytes]:
    """Yield the cubins in a stream of elements, except those from NVIDIA's closed libraries, which are only counted."""
    closed, left_out = ClosedCode(), 0
    for record in msgpack.Unpacker(stream, max_buffer_size=1 << 30):
        closed.note(record)
        if "data" not in record:
            continue
        names = [raw.decode(errors="backslashreplace") for raw in CubinEditor(record["data"]).kernels]
        if closed.covers(record["library"], names):
            left_out += 1
        else:
            yield record["data"]
    if left_out:
        print(f"{left_out} cubins left out: they're from closed libraries", file=sys.stderr)


def map_cubins(stream: object, jobs: int, function: Callable[..., R], *arguments: object) -> Iterator[R]:
    """Apply a function to each cubin of a stream, in worker processes, and yield the results."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        cubins = iter_cubins(stream)
        while batch := list(islice(cubins, 32 * jobs)):  # in batches, not the whole library at once
            yield from pool.map(function, batch, *map(repeat, arguments))


def read_version(cubin: CubinEditor, name: str) -> Version:
    """Read a kernel and its facts from the cubin."""
    return Version(read_kernel(cubin, name, table_of(ARCH)), read_facts(cubin, name))


@dataclass
class Result:
    """Counts of kernels and findings, and the seconds that each step took."""

    counts: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    times: dict[str, list[float]] = field(default_factory=lambda: {"flow": [], "check": []})
    lines: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Add what another process counted."""
        self.counts += other.counts
        self.found += other.found
        self.lines += other.lines
        for name, times in other.times.items():
            self.times[name] += times


def rebuild(code: Code, index: int) -> int:
    """Encode an instruction from its parts: opcode, guard, operands, target, control, and the remaining bits."""
    one, bits_of = code[index], code.table.arch.register_bits
    word = one.word
    made = with_control(with_guard(word & 0xFFF, guard_of(word)), control_of(word))
    known = made | 15 << 12 | (1 << 126) - (1 << 105) | 0xFFF
    parts = [(operand.low, bits_of[operand.file]) for operand in one.entry.operands if operand.file in bits_of]
    for low, width in parts:
        if low is not None and low != 12:
            made |= with_bits(0, low, width, bits(word, low, width))
            known |= (1 << width) - 1 << low
    made |= word & ~known
    if one.target is not None and one.entry.target:
        made = with_target(made, one.entry.target, one.offset, target_of(word, one.entry.target, one.offset))
    return made


def examine(data: bytes, every: int) -> Result:
    """Check one in `every` kernels of a cubin, chosen by a hash of their names."""
    result, rnd = Result(), random.Random(len(data))
    cubin = CubinEditor(data)
    for raw in cubin.kernels:
        if zlib.crc32(raw) % every == 0:
            _examine_kernel(read_version(cubin, raw.decode()), rnd, result)
    return result


def _examine_kernel(one: Version, rnd: random.Random, result: Result) -> None:
    counts, found, kernel = result.counts, result.found, one.kernel
    counts["kernels"] += 1
    counts["words"] += len(kernel.code)
    for index, (word, masks) in enumerate(zip(kernel.code.words, kernel.code.masks, strict=True)):
        if rebuild(kernel.code, index) != word:
            found[f"not the same when put together: {kernel.code[index].name}"] += 1
        if not masks.exact:
            found[f"unknown modifiers: {kernel.code[index].name}"] += 1
    for finding in check(one, one, Declaration(registers=one.facts.registers)):
        found[f"unwoven: {finding.rule}"] += 1
    start = time.process_time()
    try:
        _ = kernel.live, kernel.flight
    except GptError as error:
        counts[f"refused: {error.fact.split(' at ')[0]}"] += 1
        return
    result.times["flow"].append(time.process_time() - start)
    woven = weave_words(one, rnd, 5)
    if woven is None:
        counts["without a place"] += 1
        return
    counts["woven"] += 1
    counts["places"] += len(woven[1].trampolines)
    start = time.process_time()
    findings = check(one, *woven)
    result.times["check"].append(time.process_time() - start)
    counts["proven"] += not findings
    for finding in findings:
        found[f"woven: {finding.rule}"] += 1
        result.lines.append(f"{kernel.name} {finding}")


def weave_words(one: Version, rnd: random.Random, count: int) -> tuple[Version, Declaration] | None:
    """Weave at random places, changing words only; return None if there's no suitable place."""
    kernel = announce_stack_pointer(one.kernel)
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
    places, amended = tuple(weaver.trampolines), frozenset({0} if kernel is not one.kernel else ())
    return Version(made, facts), Declaration(places, amended, Registers(), registers, weaver.stack)


def main() -> int:
    """Check all kernels of the stream."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    compiled_snippets()
    every = Result()
    for one in map_cubins(sys.stdin.buffer, options.jobs, examine, options.every):
        every.add(one)
    print(*every.lines, sep="\n", file=sys.stderr)
    milliseconds = {
        name: {"median": 1e3 * sorted(all_)[len(all_) // 2], "p99": 1e3 * sorted(all_)[len(all_) * 99 // 100],
               "most": 1e3 * max(all_), "mean": 1e3 * sum(all_) / len(all_)}
        for name, all_ in every.times.items() if all_
    }  # fmt: skip
    result = {"counts": dict(every.counts), "findings": dict(every.found), "milliseconds": milliseconds}
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if every.found else 0


if __name__ == "__main__":
    sys.exit(main())
