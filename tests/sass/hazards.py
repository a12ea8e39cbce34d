"""The checker's timing rules, applied to ptxas's own code.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so | python -m tests.sass.hazards [--every N]
    [--jobs N] [--most WORDS] [--json FILE]

Inserted code must not read a value that's in flight, must not write a register whose value is in flight or still to be
read, and must allow some cycles for fixed-latency results (stalls.py). ptxas knows the hardware better, so its own code
breaks these rules. RULES has the allowed exceptions. Any other finding is an error in our tables, in control flow, or
in our model of scoreboards, or a rule that we don't know yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpt.base.errors import GptError
from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.code import Code
from gpt.sass.graph import Graph
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS, name_registers
from gpt.sass.words import BARRIERS
from tests.sass.distances import Distances, least_distances, longest_of_shortest
from tests.sass.hazard_state import UNREAD, State, add_reader, forget_guards, merge, read_by_others, union
from tests.sass.torch_check import map_cubins, read_version

RULES = {
    "queue reads": "Instructions of memory and SHFL read their operands in order: a later one was awaited "
    "(docs/sass-rules.md)",
    "read at once": "MUFU, POPC and the like read their operands when they issue (docs/sass-rules.md), and every "
    "instruction its guard and other predicates",
    "queue writes": "An instruction of that queue writes its result after those before it have read their operands",
    "uniform at once": "Uniform registers are read when an instruction issues, and not in HGMMA",
    "unit order": "Results of one unit come in order: a later one was awaited, or overwrites them",
    "not written": "LDGSTS leaves the predicate alone that nvdisasm lists as written",
    "barrier at once": "What BMOV writes to a convergence barrier is there for the next instruction",
    "predicate of ATOM": "A generic atomic without a result announces its predicate by its read barrier",
    "counted wait": "DEPBAR waits until no more than a number of a barrier's instructions are left",
    "other lanes": "The one in flight and this one have opposite guards, so no lane has both",
    "calls": "What a function leaves in flight isn't mixed up between its callers",
}
GENERAL = (1 << 255) - 1
PREDICATES = 127 << STARTS.P
AT_ONCE = {"MUFU", "POPC", "FLO", "MATCH", "F2F", "F2I", "I2F", "FRND", "FCHK", "BREV", "MOVM", "REDUX", "DMMA", "B2R"}
UNITS = {  # by name: a unit whose results arrive in order
    **dict.fromkeys(("LDS", "LDSM", "ATOMS", "SHFL", "STS"), 0),
    **dict.fromkeys(("MUFU", "FCHK", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV"), 1),
}
QUEUE = {"LDG", "STG", "LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMG", "ATOMS", "ATOM", "REDG", "LDL", "STL", "LD", "ST",
         "S2R", "LDGSTS", "LDC", "QSPC", "MATCH"}  # fmt: skip
WHOLE = PREDICATES | (1 << 16) - 1 << STARTS.B
LATE = {"STS", "LDGSTS"}  # they have no results to wait for, but operands that are read late


class Hazards:
    """The instructions of a kernel's own code that break the rules."""

    def __init__(self, kernel: Kernel) -> None:
        self.code: Code = kernel.code
        self.graph: Graph = kernel.graph
        self.names = {number: decoder.entry.name for number, decoder in self.code.used.items()}
        self.variable = {number: decoder.entry.variable for number, decoder in self.code.used.items()}
        self.found: Counter[tuple[str, str]] = Counter()
        self.where: dict[tuple[str, str], int] = {}

    def run(self) -> None:
        """Propagate states through the blocks until nothing changes, then check each instruction."""
        arriving: list[State | None] = [None] * len(self.graph.blocks)
        arriving[0] = State()
        changed = [True, *[False] * (len(arriving) - 1)]
        rounds = 0
        while any(changed) and rounds < 60:
            rounds += 1
            for number in [number for number, is_changed in enumerate(changed) if is_changed]:
                changed[number] = False
                state = arriving[number]
                assert state is not None
                for index in range(self.graph.blocks[number].start, self.graph.blocks[number].end):
                    state = self._issue(state, index)
                for follower in self._followers(number):
                    merged = merge(arriving[follower], state)
                    if merged != arriving[follower]:
                        arriving[follower] = merged
                        changed[follower] = True
        for number, arrived in enumerate(arriving):
            if arrived is not None:
                state = arrived
                for index in range(self.graph.blocks[number].start, self.graph.blocks[number].end):
                    self._look(state, index)
                    state = self._issue(state, index)

    def _followers(self, number: int) -> Iterator[int]:
        """Yield a block's successors. A call has two, its function and the instruction after it; a RET has none, so
        what a function leaves in flight for one caller isn't attributed to another.
        """
        block = self.graph.blocks[number]
        name = self.names[self.code.opcodes[block.end - 1]]
        if name == "RET":
            return
        yield from self.graph.successors[number]
        if name == "CALL" and number + 1 < len(self.graph.blocks) and number + 1 not in self.graph.successors[number]:
            yield number + 1

    def _wait(self, state: State, mask: int) -> State:
        if not mask:
            return state
        covered = arrived = 0
        for barrier in range(BARRIERS):
            if mask >> barrier & 1:
                covered |= state.covered[barrier]
                arrived |= state.arrived[barrier]
        kept = [not mask >> barrier & 1 for barrier in range(BARRIERS)]
        return State(
            tuple([w & ~arrived if keep else 0 for w, keep in zip(state.writes, kept, strict=True)]),
            tuple([r & ~covered if keep else 0 for r, keep in zip(state.reads, kept, strict=True)]),
            tuple([c if keep else 0 for c, keep in zip(state.covered, kept, strict=True)]),
            tuple([a if keep else 0 for a, keep in zip(state.arrived, kept, strict=True)]),
            tuple([loose & ~arrived for loose in state.loose]),
            state.unread & ~covered,
            state.guarded,
            state.guarded_reads,
            state.units,
        )

    def _issue(self, state: State, index: int) -> State:
        code = self.code
        state = self._wait(state, code.controls.waits[index])
        opcode = code.opcodes[index]
        name = self.names[opcode]
        if name == "DEPBAR":  # it waits for a number of operations, and only ptxas knows which are left
            return self._wait(state, 1 << (code.words[index] >> 44 & 7))
        read, written, *_ = code.masks[index]
        state = forget_guards(state, written)
        if not self.variable[opcode] and name not in LATE:
            return state
        read &= GENERAL if name not in AT_ONCE else 0
        written &= ~WHOLE if name in ("LDGSTS", "BMOV") else -1  # "not written", "barrier at once"
        write, reads = code.controls.write_barriers[index], code.controls.read_barriers[index]
        writes_, reads_, covered, arrived = map(list, (state.writes, state.reads, state.covered, state.arrived))
        loose, unread = list(state.loose), state.unread
        unit = UNITS.get(name, 2)
        covered = [mask & ~read for mask in covered]
        arrived = [mask & ~written for mask in arrived]
        for barrier in {write, reads} - {7}:
            if barrier >= BARRIERS:
                continue
            if name in QUEUE:
                covered[barrier] |= union(tuple(reads_)) | unread | read
            if barrier == write:
                writes_[barrier] |= written
                arrived[barrier] |= loose[unit] | written
        announced = reads if reads < BARRIERS else write
        if announced < BARRIERS:
            reads_[announced] |= read
            if name in QUEUE:
                reads_[announced] |= unread
                unread = 0
        else:
            unread |= read
        if name == "ATOM" and write >= BARRIERS and reads < BARRIERS:  # "predicate of ATOM"
            writes_[reads] |= written & PREDICATES
            written &= ~PREDICATES
        if write >= BARRIERS and written:
            loose[unit] |= written
        guarded = [mask & ~written for mask in state.guarded]
        guarded[code.words[index] >> 12 & 15] |= written
        barrier = announced if announced < BARRIERS else UNREAD
        readers = add_reader(state, code.words[index] >> 12 & 15, read, barrier, name in QUEUE and barrier != UNREAD)
        units = [mask & ~written for mask in state.units]
        units[unit] |= written
        return State(
            tuple(writes_), tuple(reads_), tuple(covered), tuple(arrived), tuple(loose), unread, tuple(guarded),
            readers, tuple(units),
        )  # fmt: skip

    def _look(self, state: State, index: int) -> None:
        code = self.code
        state = self._wait(state, code.controls.waits[index])
        read, written, *_ = code.masks[index]
        name = self.names[code.opcodes[index]]
        guard = (code.words[index] >> 12 & 15) ^ 8
        opposite = state.guarded[guard]  # "other lanes"
        flying = (union(state.writes) | union(state.loose)) & ~opposite
        being_read = 0 if name in QUEUE else read_by_others(state, guard)  # "queue writes", "other lanes"
        in_order = state.units[UNITS.get(name, 2)] if name in UNITS and self.variable[code.opcodes[index]] else 0
        if name in ("LDGSTS", "BMOV"):
            written &= ~WHOLE
        for kind, mask in (
            ("reads what hasn't arrived", read & flying),
            ("writes what will still be written", written & flying & ~in_order),
            ("writes what's still being read", written & being_read & ~flying),
        ):
            if mask:
                self.found[kind, name] += 1
                self.where.setdefault((kind, f"{name} {name_registers(mask)[:30]}"), index)


@dataclass
class Result:
    """Counts of kernels and findings, lines to print, and the distances."""

    counts: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    distances: Distances = field(default_factory=dict)

    def add(self, other: Result) -> None:
        """Add what another process found."""
        self.counts += other.counts
        self.found += other.found
        self.lines += other.lines
        for pair, (least, times) in other.distances.items():
            mine, before = self.distances.get(pair, (99, 0))
            self.distances[pair] = (min(least, mine), times + before)


def examine(data: bytes, every: int, most: int) -> Result:
    """Check one in `every` kernels of a cubin, chosen by a hash of their names."""
    result = Result()
    cubin = CubinEditor(data)
    for raw in cubin.kernels:
        if zlib.crc32(raw) % every:
            continue
        kernel = read_version(cubin, raw.decode()).kernel
        if len(kernel.code) > most:
            result.counts["longer"] += 1
            continue
        try:
            hazards = Hazards(kernel)
        except GptError:
            result.counts["refused"] += 1
            continue
        hazards.run()
        result.counts["kernels"] += 1
        result.counts["words"] += len(kernel.code)
        result.counts["kernels with findings"] += bool(hazards.found)
        for (kind, name), times in hazards.found.items():
            result.found[f"{kind}: {name}"] += times
        for (kind, name), index in list(hazards.where.items())[:2]:
            result.lines.append(f"{kernel.name} {16 * index:#x} {kind} {name}")
        least_distances(kernel, result.distances)
    return result


def main() -> int:
    """Check the kernels in the stream."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--most", type=int, default=1 << 30, help="words of a kernel")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    every = Result()
    for one in map_cubins(sys.stdin.buffer, options.jobs, examine, options.every, options.most):
        every.add(one)
    print(*every.lines, sep="\n", file=sys.stderr)
    result = {
        "counts": every.counts,
        "findings": dict(every.found.most_common()),
        "longest of the shortest distances": longest_of_shortest(every.distances),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
