"""Compare our liveness with nvdisasm's, and explain each difference by a rule.

    python -m tests.sass.liveness --minutes 10 FOLDER

This takes random kernels from the cubins in a folder and prints a table. `nvdisasm -plr` needs about a second for 2,000
instructions, so only as many kernels are compared as the time allows. Where the two differ, our liveness is computed
again in the way that nvdisasm seems to compute it:

    guard      a write under a guard ends a live range (not in ours: the other lanes keep the old value)
    operands   P2R and R2P read and write what the listing says. It leaves out the predicates that P2R reads and R2P
               writes.
    calls      a CALL doesn't lead into the function. It writes every register that the function does, up to R15, and
               reads the stack pointer. A RET leads nowhere, and reads what the caller expects to find again.

Each differing register is attributed to the smallest set of rules that removes the difference. If there's none, the
difference is unexplained. In kernels without calls, no register may be live for nvdisasm alone.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from gpt.formats.closed import find_closed_kernel, is_closed_name
from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.code import Code, Instruction
from gpt.sass.graph import Graph
from gpt.sass.kernels import Kernel, read_kernel
from gpt.sass.live import live_before
from gpt.sass.masks import Masks, pack, unpack
from gpt.sass.tables import table_of
from tests import cuda
from tests.sass.listing import Row, iter_rows

RULES = ("guard", "operands", "calls")
RULE_OF = {"CALL": "calls", "RET": "calls", "P2R": "operands", "R2P": "operands"}  # instructions seen as listed
COMPARED = (1 << 528) - 1 & ~2  # without barriers, which nvdisasm doesn't list, and R1, which it considers live at EXIT
BATCH = 12_000  # instructions for a run of nvdisasm
LONGEST = 40_000  # instructions of a kernel


@dataclass
class Differences:
    """Counts of instructions and of registers that differ, by (`more` or `less`, rule, whether the
    kernel has calls).
    """

    kernels: Counter[bool] = field(default_factory=Counter)  # by whether they have calls
    instructions: Counter[bool] = field(default_factory=Counter)
    equal: Counter[bool] = field(default_factory=Counter)
    by_rule: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def add(self, kernel: Kernel, rows: Sequence[Row]) -> None:
        """Compare one kernel. The listing may lack the padding after the code."""
        calls = any(one.name == "CALL" for one in kernel.code)
        graph, code = kernel.graph, kernel.code
        reachable = graph.reachable()
        ours = live_before(code, graph)
        others: dict[tuple[str, ...], list[int]] = {}
        self.kernels[calls] += 1
        for index, row in enumerate(rows):
            if graph.block_at(index) not in reachable:
                continue
            self.instructions[calls] += 1
            mine, theirs = ours[index] & COMPARED, pack(row.live) & COMPARED
            self.equal[calls] += mine == theirs
            for way, left in (("more", mine & ~theirs), ("less", theirs & ~mine)):
                for rules in _iter_rules(calls) if left and (calls or way == "more") else ():
                    if rules not in others:
                        others[rules] = live_before(*_seen(code, graph, rows, rules))
                    found = left & ~(others[rules][index] ^ theirs)
                    if found:
                        self.by_rule[way, " and ".join(rules), calls] += found.bit_count()
                    left &= ~found
                    if not left:
                        break
                if left:
                    self.by_rule[way, "unexplained", calls] += left.bit_count()
                    self.unexplained.append(f"{kernel.name} {16 * index:#x} {row.text}: {way} {unpack(left)}")


def _iter_rules(calls: bool) -> Iterator[tuple[str, ...]]:
    rules = [rule for rule in RULES if calls or rule != "calls"]
    for number in range(1, len(rules) + 1):
        yield from combinations(rules, number)


def _seen(code: Code, graph: Graph, rows: Sequence[Row], rules: tuple[str, ...]) -> tuple[Code, Graph]:
    made = [_see(one, rows[one.index] if one.index < len(rows) else None, rules) for one in code]
    followers = []
    for block, successors in zip(graph.blocks, graph.successors, strict=True):
        name = code[block.end - 1].name
        after = (graph.block_at(block.end),) if block.end < len(code) else ()
        if "calls" in rules and name in ("CALL", "RET"):
            successors = after if name == "CALL" else ()
        followers.append(successors)
    unknown = frozenset() if "calls" in rules else graph.calls_out
    return cast(Code, SimpleNamespace(masks=made)), Graph(graph.blocks, tuple(followers), unknown)


def _see(one: Instruction, row: Row | None, rules: tuple[str, ...]) -> Masks:
    reads, writes = one.reads, one.writes
    if row and RULE_OF.get(one.name) in rules:
        reads = (row.live if one.name == "RET" else row.reads)._replace(B=reads.B)
        writes = row.writes._replace(B=writes.B)
    kills = 0
    if one.exact and ("guard" in rules or one.guard.always):
        kills = pack(writes._replace(P=0) if one.name == "R2P" else writes)
    return Masks(pack(reads), pack(writes), ~kills, one.exact)


def list_kernels(nvdisasm: str, cubin: CubinEditor, path: Path, names: Sequence[str]) -> dict[str, list[Row]]:
    """Return nvdisasm's listing of some kernels of a cubin, which is stored at `path`."""
    found = {}
    indices = {str(cubin.kernels[name.encode()]): name for name in names}
    command = [nvdisasm, "-plr", "-lrm", "narrow", "-c", "-hex", "-fun", ",".join(indices), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for part in done.stdout.split("//--------------------- ")[1:]:
        name = part.split(maxsplit=1)[0].removeprefix(".text.")
        found[name] = list(iter_rows(part.splitlines()))
    return found


def compare_cubin(nvdisasm: str, path: Path, found: Differences, until: float, rng: random.Random) -> None:
    """Compare kernels of a cubin in random order, until the given time."""
    cubin = CubinEditor(path.read_bytes())
    table = table_of("sm_90")
    names = sorted(name.decode() for name in cubin.kernels)
    if find_closed_kernel(names) or is_closed_name([path], None):
        print(f"{path}: left out, it's from a closed library", file=sys.stderr)
        return
    rng.shuffle(names)
    batch: dict[str, Kernel] = {}
    for number, name in enumerate(names, 1):
        kernel = read_kernel(cubin, name, table)
        if len(kernel.code) <= LONGEST:
            batch[name] = kernel
        if batch and (number == len(names) or sum(len(one.code) for one in batch.values()) > BATCH):
            try:
                listing = list_kernels(nvdisasm, cubin, path, list(batch))
            except subprocess.CalledProcessError as error:  # it can't analyze some cubins that older ptxas made
                print(f"{path}: left out: {error.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                return
            for each, kernel in batch.items():
                found.add(kernel, listing[each])
            batch = {}
            if time.monotonic() > until:
                return


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sass.liveness")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    paths = sorted(options.folder.glob("*.cubin"))
    rng.shuffle(paths)
    nvdisasm, found = str(cuda.tool("nvdisasm")), Differences()
    end = time.monotonic() + 60 * options.minutes
    for index, path in enumerate(paths):
        now = time.monotonic()
        if now > end:
            break
        compare_cubin(nvdisasm, path, found, now + (end - now) / (len(paths) - index), rng)
        if index % 20 == 19:
            print(f"{index + 1} of {len(paths)} cubins", report(found), *found.unexplained[:5], sep="\n", flush=True)
    print(report(found))
    print("\n".join(found.unexplained[:40]))
    return bool(found.unexplained)


def report(found: Differences) -> str:
    """Return the counts as lines."""
    lines = [
        f"{'with' if calls else 'without'} calls: {found.kernels[calls]:,} kernels, {found.instructions[calls]:,}"
        f" instructions, {found.equal[calls]:,} equal"
        for calls in (False, True)
    ]
    lines += [f"  {way} {rule}{' (calls)' if calls else ''}: {n:,}" for (way, rule, calls), n in found.by_rule.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
