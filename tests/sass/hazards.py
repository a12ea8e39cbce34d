"""The checker's rules of time, applied to what ptxas itself wrote.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so |
        python -m tests.sass.hazards [--every N] [--json FILE]

The checker asks of inserted code: nothing is read that's in flight, nothing is written that's in flight or still being
read, and results of fixed latency have some cycles to arrive (stalls.py). ptxas knows the hardware better, so its own
code breaks these rules. RULES names the exceptions that are allowed for here. What's left over is a mistake in our
tables, in control flow, or in what we believe scoreboards to be, or a rule that isn't known yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpt.base.errors import GptError
from gpt.sass.code import Code
from gpt.sass.graph import Graph
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS, name_registers
from gpt.sass.stalls import iter_safe
from gpt.sass.words import BARRIERS
from tests.sass.torch_check import iter_versions

RULES = {
    "queue reads": "Instructions of memory and SHFL read their operands in order: a later one was awaited "
    "(docs/sass-rules.md)",
    "read at once": "MUFU, POPC and the like read their operands when they issue (docs/sass-rules.md), and every "
    "instruction its guard and other predicates",
    "queue writes": "An instruction of that queue writes its result after those before it have read their operands",
    "uniform at once": "Uniform registers are read when an instruction issues, and not in HGMMA",
    "unit order": "Results of one unit come in order: a later one was awaited",
    "counted wait": "DEPBAR waits until no more than a number of a barrier's instructions are left",
    "other lanes": "The one in flight and this one have opposite guards, so no lane has both",
    "calls": "What a function leaves in flight isn't mixed up between its callers",
}
GENERAL = (1 << 255) - 1
PREDICATES = 127 << STARTS.P
AT_ONCE = {"MUFU", "POPC", "FLO", "MATCH", "F2F", "F2I", "I2F", "FRND", "FCHK", "BREV", "MOVM", "REDUX", "DMMA", "B2R"}
UNITS = {  # by name: the unit whose results come in order
    **dict.fromkeys(("LDS", "LDSM", "ATOMS", "SHFL", "STS"), 0),
    **dict.fromkeys(("MUFU", "FCHK", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV"), 1),
    **dict.fromkeys(("LDC", "S2UR", "S2R"), 2),
}
QUEUE = {"LDG", "STG", "LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMG", "ATOMS", "ATOM", "REDG", "LDL", "STL", "LD", "ST",
         "S2R", "LDGSTS", "LDC", "QSPC", "MATCH"}  # fmt: skip
LATE = {"STS", "LDGSTS"}  # whose results need no barrier, but whose operands do
NONE = (0,) * BARRIERS


class State(NamedTuple):
    """What's in flight: by barrier the results, and the operands. `loose` and `unread` are announced by none.

    `guarded` are results of instructions under a guard, by the guard.

    `covered`: by barrier, the operands that have been read once it's down, since the queue is in order; `arrived` is
    the same for results.
    """

    writes: tuple[int, ...] = NONE
    reads: tuple[int, ...] = NONE
    covered: tuple[int, ...] = NONE
    arrived: tuple[int, ...] = NONE
    loose: tuple[int, ...] = (0, 0, 0, 0)  # results, by unit
    unread: int = 0
    guarded: tuple[int, ...] = (0,) * 16


def _all(masks: tuple[int, ...]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _merge(one: State | None, other: State) -> State:
    if one is None or one == other:
        return other
    mine, theirs = _all(one.reads) | one.unread, _all(other.reads) | other.unread
    ours, others = _all(one.writes) | _all(one.loose), _all(other.writes) | _all(other.loose)

    def both(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([x | y for x, y in zip(a, b, strict=True)])

    covered = tuple([(a | ~mine) & (b | ~theirs) for a, b in zip(one.covered, other.covered, strict=True)])
    arrived = tuple([(a | ~ours) & (b | ~others) for a, b in zip(one.arrived, other.arrived, strict=True)])
    return State(
        both(one.writes, other.writes),
        both(one.reads, other.reads),
        tuple([mask & (mine | theirs) for mask in covered]),
        tuple([mask & (ours | others) for mask in arrived]),
        both(one.loose, other.loose),
        one.unread | other.unread,
        both(one.guarded, other.guarded),
    )


class Hazards:
    """The places of a kernel's own code where it breaks the rules."""

    def __init__(self, kernel: Kernel) -> None:
        self.code: Code = kernel.code
        self.graph: Graph = kernel.graph
        self.names = {number: decoder.entry.name for number, decoder in self.code.used.items()}
        self.variable = {number: decoder.entry.variable for number, decoder in self.code.used.items()}
        self.found: Counter[tuple[str, str]] = Counter()
        self.where: dict[tuple[str, str], int] = {}

    def run(self) -> None:
        """Go round the blocks until nothing changes, then look at each instruction."""
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
                    merged = _merge(arriving[follower], state)
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
        """Yield what follows, but a call goes to its function and to what's behind it, and a RET nowhere: what a
        function leaves in flight is not mixed up between its callers.
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
        )

    def _issue(self, state: State, index: int) -> State:
        code = self.code
        state = self._wait(state, code.controls.waits[index])
        opcode = code.opcodes[index]
        name = self.names[opcode]
        if name == "DEPBAR":  # counted: what's left after it is what ptxas knows
            return self._wait(state, 1 << (code.words[index] >> 44 & 7) if name == "DEPBAR" else 0)
        if not self.variable[opcode] and name not in LATE:
            return state
        read, written, *_ = code.masks[index]
        read &= GENERAL if name not in AT_ONCE else 0
        write, reads = code.controls.write_barriers[index], code.controls.read_barriers[index]
        writes_, reads_, covered, arrived = map(list, (state.writes, state.reads, state.covered, state.arrived))
        loose, unread = list(state.loose), state.unread
        unit = UNITS.get(name, 3)
        covered = [mask & ~read for mask in covered]
        arrived = [mask & ~written for mask in arrived]
        for barrier in {write, reads} - {7}:
            if barrier >= BARRIERS:
                continue
            if name in QUEUE:
                covered[barrier] |= _all(tuple(reads_)) | unread | read
            if barrier == write:
                writes_[barrier] |= written
                arrived[barrier] |= loose[unit] | written
        announced = reads if reads < BARRIERS else write
        if announced < BARRIERS:
            reads_[announced] |= read
        else:
            unread |= read
        if write >= BARRIERS and written:
            loose[unit] |= written
        guarded = [mask & ~written for mask in state.guarded]
        guarded[code.words[index] >> 12 & 15] |= written
        return State(
            tuple(writes_), tuple(reads_), tuple(covered), tuple(arrived), tuple(loose), unread, tuple(guarded)
        )

    def _look(self, state: State, index: int) -> None:
        code = self.code
        state = self._wait(state, code.controls.waits[index])
        read, written, *_ = code.masks[index]
        name = self.names[code.opcodes[index]]
        opposite = state.guarded[(code.words[index] >> 12 & 15) ^ 8]  # "other lanes"
        flying, loose = _all(state.writes) & ~opposite, _all(state.loose) & ~opposite
        being_read = 0 if name in QUEUE else _all(state.reads) | state.unread  # "queue writes"
        for kind, mask in (
            ("reads what hasn't arrived", read & (flying | loose)),
            ("writes what will still be written", written & (flying | loose)),
            ("writes what's still being read", written & being_read & ~(flying | loose)),
        ):
            if mask:
                self.found[kind, name] += 1
                self.where.setdefault((kind, f"{name} {name_registers(mask)[:30]}"), index)


def least_distances(kernel: Kernel, into: dict[tuple[str, str, str], tuple[int, int]]) -> None:
    """Add the shortest distances from writers of fixed latency to readers, and how often each pair occurs."""
    code, graph = kernel.code, kernel.graph
    for block in graph.blocks:
        pending: list[tuple[int, str, int]] = []
        now = 0
        for index in range(block.start, block.end):
            entry = code.used[code.opcodes[index]].entry
            read, written, *_ = code.masks[index]
            for then, name, mask in pending:
                if used := mask & read:
                    file = "R" if used & GENERAL else "P" if used & PREDICATES else "U"
                    least, times = into.get((name, file, entry.name), (99, 0))
                    into[name, file, entry.name] = (min(least, now - then), times + 1)
            pending = [(then, name, mask & ~written) for then, name, mask in pending if now - then < 40]
            if any(iter_safe(entry, written)):
                pending.append((now, entry.name, written))
            now += code.controls.stalls[index]


def main() -> int:
    """Look at the kernels of the stream."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--most", type=int, default=1 << 30, help="words of a kernel")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    found: Counter[str] = Counter()
    with_findings = 0
    distances: dict[tuple[str, str, str], tuple[int, int]] = {}
    for one in iter_versions(sys.stdin.buffer, options.every):
        if len(one.kernel.code) > options.most:
            continue
        try:
            hazards = Hazards(one.kernel)
        except GptError:
            counts["refused"] += 1
            continue
        hazards.run()
        counts["kernels"] += 1
        counts["words"] += len(one.kernel.code)
        with_findings += bool(hazards.found)
        for (kind, name), times in hazards.found.items():
            found[f"{kind}: {name}"] += times
        for (kind, name), index in list(hazards.where.items())[:2]:
            print(one.kernel.name, hex(16 * index), kind, name, file=sys.stderr)
        least_distances(one.kernel, distances)
    longest: dict[str, dict[str, int]] = defaultdict(dict)
    for (writer, file, _), (least, times) in distances.items():
        if times >= 1000:
            longest[file][writer] = max(longest[file].get(writer, 0), least)
    result = {
        "counts": {**counts, "kernels with findings": with_findings},
        "findings": dict(found.most_common()),
        "longest of the shortest distances": {file: dict(sorted(names.items())) for file, names in longest.items()},
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
