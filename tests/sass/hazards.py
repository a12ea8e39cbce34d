"""The checker's timing rules, applied to ptxas's own code.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so | python -m tests.sass.hazards [--every N]
    [--jobs N] [--most WORDS] [--json FILE]

Findings and progress are printed to standard error as they come, the totals at the end.

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
from heapq import heappop, heappush
from pathlib import Path

from gpt.base.errors import GptError
from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.code import Code
from gpt.sass.graph import Block, Graph
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS, name_registers
from gpt.sass.stalls import find_unscheduled
from gpt.sass.words import BARRIERS, PT
from tests.sass.distances import Distances, least_distances, longest_of_shortest
from tests.sass.hazard_state import OTHER, UNGUARDED, State, add_reads, clear, forget_guards, merge, read_by_others
from tests.sass.torch_check import map_cubins, read_version

RULES = {
    "queue reads": "Instructions of memory and SHFL read their operands in order: a later one was awaited "
    "(docs/sass-rules.md)",
    "SYNCS reads": "SYNCS.ARRIVE reads its operands in order: a later one was awaited (test_hazards.py)",
    "read at once": "MUFU, POPC and the like read their operands when they issue (docs/sass-rules.md), and every "
    "instruction its guard and other predicates",
    "queue writes": "An instruction of that queue writes its result after those before it have read their operands",
    "uniform at once": "Uniform registers are read when an instruction issues, and not in HGMMA",
    "unit order": "Results of one unit come in order: a later one was awaited, or overwrites them",
    "not written": "LDGSTS leaves the predicate alone that nvdisasm lists as written",
    "barrier at once": "What BMOV writes to a convergence barrier is there for the next instruction",
    "predicate of ATOM": "A generic atomic announces its predicate by its read barrier",
    "counted wait": "DEPBAR waits until no more than a number of a barrier's instructions are left",
    "other lanes": "The one in flight and this one have opposite guards, so no lane has both",
    "calls": "What a function leaves in flight isn't mixed up between its callers",
}
PROGRESS = 16  # cubins per line
WALKS = 100  # per block, at most
GENERAL = (1 << 255) - 1
PREDICATES = 127 << STARTS.P
AT_ONCE = {"MUFU", "POPC", "FLO", "MATCH", "F2F", "F2I", "I2F", "FRND", "FCHK", "BREV", "MOVM", "REDUX", "DMMA", "B2R"}
UNITS = {  # by name: a unit whose results arrive in order
    **dict.fromkeys(("LDS", "LDSM", "ATOMS", "SHFL", "STS"), 0),
    **dict.fromkeys(("MUFU", "FCHK", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV"), 1),
    "S2UR": 3,
}
QUEUE = {"LDG", "STG", "LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMG", "ATOMS", "ATOM", "REDG", "LDL", "STL", "LD", "ST",
         "S2R", "LDGSTS", "LDC", "QSPC", "MATCH"}  # fmt: skip
ARRIVE = 0x9A7  # SYNCS.ARRIVE; PHASECHK has another number
WHOLE = PREDICATES | (1 << 16) - 1 << STARTS.B
LATE = {"STS", "LDGSTS", "BAR"}  # they have no results to wait for, but operands that are read late


class Hazards:
    """The instructions of a kernel's own code that break the rules."""

    def __init__(self, kernel: Kernel) -> None:
        self.code: Code = kernel.code
        self.graph: Graph = kernel.graph
        self.names = {number: decoder.entry.name for number, decoder in self.code.used.items()}
        self.variable = {number: decoder.entry.variable for number, decoder in self.code.used.items()}
        self.found: Counter[tuple[str, str]] = Counter()
        self.where: dict[tuple[str, str], int] = {}
        self.settled = True
        controls = self.code.controls
        changes = {
            number: self.variable[number] or name in LATE or name == "DEPBAR" for number, name in self.names.items()
        }
        self.changes = [  # by instruction: does it change the state?
            bool(wait or changes[opcode] or masks.writes & PREDICATES)
            for wait, opcode, masks in zip(controls.waits, self.code.opcodes, self.code.masks, strict=True)
        ]
        self.changing = [  # by block
            [index for index in range(block.start, block.end) if self.changes[index]] for block in self.graph.blocks
        ]

    def run(self) -> None:
        """Propagate states through the blocks until nothing changes, then check each instruction."""
        blocks = self.graph.blocks
        arriving: list[State | None] = [None] * len(blocks)
        arriving[0] = State()
        left, waiting = [0], {0}  # a heap
        for _ in range(WALKS * len(blocks)):
            if not left:
                break
            number = heappop(left)
            waiting.remove(number)
            state = arriving[number]
            assert state is not None
            for index in self.changing[number]:
                state = self._issue(self._wait(state, index), index)
            for follower in self._followers(number):
                merged = merge(arriving[follower], state)
                if merged != arriving[follower]:
                    arriving[follower] = merged
                    if follower not in waiting:
                        waiting.add(follower)
                        heappush(left, follower)
        self.settled = not left
        for block, arrived in zip(blocks, arriving, strict=True):
            if arrived is not None:
                self._look_at(block, arrived)

    def _look_at(self, block: Block, state: State) -> None:
        flying, being_read = state.flying, state.being_read
        for index in range(block.start, block.end):
            if self.changes[index]:
                state = self._wait(state, index)
                flying, being_read = state.flying, state.being_read
            read, written, *_ = self.code.masks[index]
            if (read | written) & flying or written & being_read:
                self._look(state, index)
            if self.changes[index]:
                state = self._issue(state, index)
                flying, being_read = state.flying, state.being_read

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

    def _wait(self, state: State, index: int) -> State:
        mask = self.code.controls.waits[index]
        return clear(state, mask) if mask else state

    def _issue(self, state: State, index: int) -> State:
        code = self.code
        opcode = code.opcodes[index]
        name = self.names[opcode]
        if name == "DEPBAR":  # it waits for a number of operations, and only ptxas knows which are left
            return clear(state, 1 << (code.words[index] >> 44 & 7))
        read, written, *_ = code.masks[index]
        if written & PREDICATES:
            state = forget_guards(state, written)
        if not self.variable[opcode] and name not in LATE:
            return state
        read &= GENERAL if name not in AT_ONCE else 0
        written &= ~WHOLE if name in ("LDGSTS", "BMOV") else -1  # "not written", "barrier at once"
        write, reads, guard = code.controls.write_barriers[index], code.controls.read_barriers[index], code.words[index]
        return self._add_results(
            add_reads(state, read, guard >> 12 & 15, self._order(opcode), write, reads),
            name, written, guard >> 12 & 15, write, reads,
        )  # fmt: skip

    def _order(self, opcode: int) -> int:
        """Return the instructions that read their operands in order with this one, or OTHER."""
        return 0 if self.names[opcode] in QUEUE else 1 if opcode == ARRIVE else OTHER

    def _add_results(self, state: State, name: str, written: int, guard: int, write: int, reads: int) -> State:
        """Return the state after an instruction with these results, barriers and guard."""
        if not written and write >= BARRIERS:
            return state
        writes, unit = list(state.writes), UNITS.get(name, 2)
        arrived, loose = [mask & ~written for mask in state.arrived], list(state.loose)
        early = written & PREDICATES if name == "ATOM" and reads < BARRIERS else 0  # "predicate of ATOM"
        if early:
            writes[reads] |= early
        if write < BARRIERS:
            writes[write] |= written & ~early
            arrived[write] |= loose[unit] | written & ~early
        else:
            loose[unit] |= written & ~early
        guarded = state.guarded
        if guard & 7 != PT or guarded != UNGUARDED:
            guarded = tuple([mask & ~written | written * (each == guard) for each, mask in enumerate(guarded)])
        units = [mask & ~written for mask in state.units]
        units[unit] |= written
        return state._replace(
            writes=tuple(writes), arrived=tuple(arrived), loose=tuple(loose), guarded=guarded, units=tuple(units)
        )

    def _look(self, state: State, index: int) -> None:
        code = self.code
        read, written, *_ = code.masks[index]
        name = self.names[code.opcodes[index]]
        guard = (code.words[index] >> 12 & 15) ^ 8
        opposite = state.guarded[guard]  # "other lanes"
        flying = state.flying & ~opposite
        being_read = read_by_others(state, guard)  # "other lanes"
        if name in QUEUE:  # "queue writes"
            being_read &= state.out_of_order(self._order(code.opcodes[index]))
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
        if find_unscheduled(kernel.code) is not None:
            result.counts["unscheduled"] += 1
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
        result.counts["unsettled"] += not hazards.settled
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
    for number, one in enumerate(map_cubins(sys.stdin.buffer, options.jobs, examine, options.every, options.most), 1):
        every.add(one)
        for line in one.lines:
            print(line, file=sys.stderr)
        if number % PROGRESS == 0:
            print(f"{number:,} cubins: {dict(every.counts)}", file=sys.stderr, flush=True)
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
