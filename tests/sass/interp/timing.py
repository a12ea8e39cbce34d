"""Check that code waits for each value, by stall counts or scoreboards.

A fixed-latency result arrives a number of cycles after its instruction, any other result once the code has waited for
its scoreboard. A read before that returns garbage, and adds a message to `Launch.early`. A message is also added for
two errors that only do harm later: overwriting a register that a load has yet to write, or that a memory instruction
has yet to read.

docs/sass-rules.md has the numbers of cycles, and the instructions that read in order, as measured on an H200. A pair
that wasn't measured gets the shortest measured time, so that a correct read is never reported. A warp's clock only
counts its own stalls: unlike on a GPU, a value never arrives in time just because another warp ran or a cache missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpt.sass.code import MEMORY
from gpt.sass.masks import Registers
from gpt.sass.tables import Table
from gpt.sass.words import BARRIERS, Control, control_of
from tests.sass.interp.decode import Array

if TYPE_CHECKING:
    from tests.sass.interp.machine import Warp

# Two groups of units; a result takes one cycle longer to reach the other group.
MULTIPLIERS, ADDERS = {"IMAD", "FADD", "FMUL", "FFMA"}, {"IADD3", "MOV", "LOP3", "SEL", "ISETP", "R2UR"}
LATE = 2  # the operand at bit 64 is read at most this many cycles after the others(inferred from ptxas's code)
BRANCHES = {"BRA", "BRX", "CALL", "RET", "EXIT", "BSYNC", "BSSY", "WARPSYNC", "BAR"}
BRANCH_CYCLES = 5  # cycles that a branch takes in addition to its stall
GUARDS = {"VOTE", "VOTEU", *BRANCHES}
IN_ORDER = {name for name, space in MEMORY.items() if space in ("global", "shared", "local", "generic")} | {
    "SHFL",
    "S2R",
}
SPECIAL = {"MUFU", "POPC", "FLO", "BREV", "I2F", "F2I", "F2F", "FRND", "FCHK"}  # all in one unit
UNORDERED = {"LDC", "S2R", "S2UR"}
IN_ORDER |= {"MOVM"}
IN_ORDER -= {"LDGSTS", "SYNCS", "LDSM", "STSM", "CCTL"}  # not measured: they need a scoreboard of their own
NEVER = 1 << 60


class Register(NamedTuple):
    """A register of a file."""

    file: str
    number: int


class Issue(NamedTuple):
    """The reads, writes and waits of an instruction, which depend on its word alone."""

    name: str
    variable: bool  # a scoreboard says when the results arrive
    control: Control
    reads: list[Register]
    writes: list[Register]
    guard: Register | None
    last: frozenset[Register]  # operands that are read late


@dataclass
class Arriving:
    """A value in flight, for some lanes."""

    lanes: int  # a mask
    writer: str
    ready: int  # the cycle, or NEVER if it depends on a scoreboard
    barrier: int
    order: int  # position in the unit's order
    unit: str


@dataclass
class Reading:
    """Operands that an instruction hasn't read yet."""

    lanes: int  # a mask
    registers: frozenset[Register]
    reader: str
    order: int  # position in the queue of memory instructions
    barriers: int  # a mask; waiting for one of them is enough


def registers_of(sets: Registers) -> list[Register]:
    """Return the registers in the masks, except convergence barriers."""
    found = []
    for file in ("R", "UR", "P", "UP"):
        mask = getattr(sets, file)
        while mask:
            found.append(Register(file, (mask & -mask).bit_length() - 1))
            mask &= mask - 1
    return found


def issue_of(table: Table, word: int) -> Issue:
    """Return what a word does."""
    entry, effect = table.opcode(word), table.effect(word)
    guard = Register("P", word >> 12 & 7) if word >> 12 & 7 != 7 else None
    last: set[Register] = set()
    if any(operand.name == "R64" and operand.reads.of(word) for operand in entry.operands):
        last = {Register("R", number) for number in range(word >> 64 & 255, (word >> 64 & 255) + 2)}
    reads, writes = registers_of(effect.reads), registers_of(effect.writes)
    # ptxas overwrites LDGSTS's registers without a barrier, except for a cache hint. So here they're read at once.
    variable = entry.variable and entry.name != "LDGSTS"
    return Issue(entry.name, variable, control_of(word), reads, writes, guard, frozenset(last))


def _unit(name: str) -> str:
    """Return the in-order unit that executes an instruction, or an empty string. ptxas waits only for the last of
    several results from such a unit.
    """
    return "" if name in UNORDERED else "special" if name in SPECIAL else name


def latency(writer: str, reader: str, register: Register, guards: bool, late: bool) -> int:
    """Return the cycles from a fixed-latency writer to a reader."""
    if register.file == "P":
        return 13 if guards or reader in GUARDS else 4
    if register.file == "UP":
        return 4
    if register.file == "UR":
        return 1 if writer != "R2UR" else 8 if reader.startswith("U") else 10
    crosses = (writer in MULTIPLIERS and reader in ADDERS) or (writer in ADDERS and reader in MULTIPLIERS)
    return 4 + crosses - LATE * late


class Timing:
    """The results and reads in flight in a warp."""

    def __init__(self, warp: Warp, early: list[str]) -> None:
        self.warp, self.early = warp, early
        self.now = 0
        self.arriving: dict[Register, list[Arriving]] = {}
        self.readings: list[Reading] = []
        self.order = 0
        self.kept: list[tuple[Array, Array]] = []  # registers with garbage, and their real values
        self.after: list[tuple[Register, Arriving]] = []

    def issue(self, place: int, issue: Issue, taken: Array) -> None:
        """Check what an instruction reads and writes, before it's executed."""
        name, control = issue.name, issue.control
        self._await(control.wait)
        lanes = int.from_bytes(taken.tobytes(), "little")  # a byte for each
        self.kept = []
        if lanes:
            for register in issue.reads:
                self._read(register, name, place, lanes, register == issue.guard, register in issue.last)
            for register in issue.writes:
                self._write(register, name, place, lanes)
        self.after = []
        barrier = control.write_barrier
        self.order += 1
        for register in issue.writes if lanes else ():
            ready = NEVER if issue.variable else self.now
            self.after.append((register, Arriving(lanes, name, ready, barrier, self.order, _unit(name))))
        if issue.variable and lanes:
            self._queue(name, frozenset(issue.reads), lanes, control.read_barrier, barrier)
        self.now += max(1, control.stall) + (BRANCH_CYCLES if name in BRANCHES else 0)

    def finish(self) -> None:
        """Restore the registers that held garbage during early reads, and record what's in flight now."""
        for row, values in self.kept:
            row[...] = values
        for register, one in self.after:
            kept = [old for old in self.arriving.get(register, ()) if old.lanes & ~one.lanes]
            self.arriving[register] = [*kept, one]

    def _await(self, mask: int) -> None:
        if not mask:
            return
        awaited = [one for values in self.arriving.values() for one in values if mask >> one.barrier & 1]
        done = {one.unit: one.order for one in sorted(awaited, key=lambda one: one.order) if one.unit}
        for register, values in list(self.arriving.items()):
            left = [
                one
                for one in values
                if one.ready != NEVER or not (mask >> one.barrier & 1 or one.order <= done.get(one.unit, -1))
            ]
            if left:
                self.arriving[register] = left
            else:
                del self.arriving[register]
        read = [one for one in self.readings if mask & one.barriers]
        last = max((one.order for one in read), default=-1)
        self.readings = [one for one in self.readings if not mask & one.barriers and not 0 <= one.order <= last]

    def _queue(self, name: str, registers: frozenset[Register], lanes: int, read: int, write: int) -> None:
        order = -1
        if name in IN_ORDER:
            order = self.order
        elif name not in MEMORY:
            return  # its operands are read at once
        # An instruction whose result has come has also read its operands.
        barriers = sum(1 << one for one in (read, write) if one < BARRIERS)
        registers = frozenset(one for one in registers if one.file not in ("P", "UP"))  # predicates are read at issue
        self.readings.append(Reading(lanes, registers, name, order, barriers))

    def _read(self, register: Register, reader: str, place: int, lanes: int, guards: bool, late: bool) -> None:
        for one in self.arriving.get(register, ()):
            early = one.ready == NEVER or self.now < one.ready + latency(one.writer, reader, register, guards, late)
            if early and one.lanes & lanes:
                self._say(place, f"{reader} reads {register.file}{register.number} too early after {one.writer}")
                row = getattr(self.warp, register.file)[register.number]
                self.kept.append((row, row.copy()))
                garbage = self.warp.rng.integers(0, 1 << 32, row.shape, np.uint32)
                row[...] = garbage if row.dtype == np.uint32 else garbage & np.uint32(1) != 0
                return

    def _write(self, register: Register, writer: str, place: int, lanes: int) -> None:
        for one in self.arriving.get(register, ()):
            if one.ready == NEVER and one.lanes & lanes:
                self._say(place, f"{writer} writes {register.file}{register.number}, which {one.writer} still writes")
        for reading in self.readings:
            if writer in IN_ORDER and reading.order >= 0:
                continue  # it reads later, and writes later still
            if register in reading.registers and reading.lanes & lanes:
                self._say(
                    place, f"{writer} writes {register.file}{register.number}, which {reading.reader} still reads"
                )

    def _say(self, place: int, text: str) -> None:
        line = f"{place:#x}: {text}"
        if line not in self.early:
            self.early.append(line)
