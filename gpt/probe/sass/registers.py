"""Choose registers of the kernel for the registers of a snippet.

A snippet can write to registers that are free: dead, with nothing in flight for them (gpt/sass/sites.py). At first, the
kernel's number of registers is raised only where that costs nothing: up to 32, with which a multiprocessor still holds
its maximum of threads, and up to the next multiple of 8, because the hardware allocates registers in units of 8. If too
few registers are free, live ones are saved below the stack pointer (trampoline.py). If that isn't enough either, the
number is raised up to 64, with which any block still fits on a multiprocessor.

Registers of a snippet that occur together in an operand, such as a 64-bit pair, are moved together and stay aligned. A
`fixed` register stands for a kept value or an operand of the site, and if possible, it becomes the register that holds
that value in the kernel. If the snippet overwrites that register, or if its neighbours don't fit there, the value is
copied to another register.

Uniform predicates and convergence barriers are used only if they don't occur in the kernel, because other lanes of the
warp may be anywhere (docs/sass-rules.md). The same applies to uniform registers; if there are too few, some that occur
in the kernel are copied to general registers while the snippet runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.sass.compiled import Compiled, Unit
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS

STEP = 8  # registers are allocated in units of 8
FULL = 32  # registers with which a multiprocessor still holds its maximum of threads, 2,048
FITTING = 64  # registers with which a block of 1,024 threads still fits on a multiprocessor
RESERVED = 2  # included in the number, but reserved by the hardware
HIGHEST = 253  # maximum number of usable registers
_USABLE = (1 << HIGHEST) - 1
_ALIGNED = {align: sum(1 << number for number in range(0, 256, align)) for align in (1, 2, 4, 8, 16)}
NO_NUMBER = {"UR": 63, "P": 7, "UP": 7, "B": 16}


class NothingToSpareError(CannotProbe):
    """Raised if the kernel uses too many registers of a file, so that neither waiting nor another place would help."""


def usable(kernel: Kernel) -> int:
    """Return how many registers a kernel may use at no cost. If some of its warps give registers back, these are the
    registers that it has already.
    """
    if kernel.code.find({"USETMAXREG"}):
        return kernel.kept
    return min(HIGHEST, max(FULL, -(-(kernel.registers + RESERVED) // STEP) * STEP) - RESERVED)


def usable_at_cost(kernel: Kernel) -> int:
    """Return how many registers a kernel may use at most, even if fewer of its blocks then run at once."""
    free = usable(kernel)
    return free if kernel.code.find({"USETMAXREG"}) else max(free, FITTING - RESERVED)


@dataclass
class Room:
    """The registers that a snippet may use at a place, as masks of all register files: free ones, and others that can
    be saved.
    """

    free: int
    saveable: int


@dataclass
class Choice:
    """The choice for a snippet: `names` for the registers of each file, the registers to save, and copies of `fixed`
    registers.
    """

    names: dict[str, dict[int, int]]
    saves: list[int] = field(default_factory=list)
    copies: dict[int, int] = field(default_factory=dict)  # register of the snippet -> the chosen one
    predicates: int = 0  # live predicates, kept in `scratch` meanwhile
    scratch: int = 0
    uniform: dict[int, int] = field(default_factory=dict)  # register -> where its value is kept meanwhile


def choose(compiled: Compiled, pairs: list[int], fixed: dict[int, int], kept: set[int], room: Room) -> Choice:
    """Choose the registers for a snippet.

    Each register in `pairs` must be followed by its neighbour. `fixed` maps registers of the snippet to registers of
    the kernel, of which the snippet may write only those in `kept`. Raises CannotProbe.
    """
    choice = Choice({"R": {}})
    room.free &= _USABLE | -1 << STARTS.UR
    for register in fixed.values():
        room.free &= ~(1 << register & _USABLE)
    units = sorted(
        compiled.find_units(pairs), key=lambda unit: (not any(m in fixed for m in unit.members), -len(unit.members))
    )
    written: int = compiled.written.R
    for unit in units:
        delta = _find_delta(unit, fixed, kept, written, room.free)
        if delta is None:
            delta, saves = _search(unit, room)
            if saves and any(register in choice.saves for register in saves):
                raise CannotProbe("has too few free registers around it")
            choice.saves += saves
            choice.copies |= {member: member + delta for member in unit.members if member in fixed}
        for member in unit.members:
            choice.names["R"][member] = member + delta
            taken = 1 << member + delta & _USABLE
            room.free &= ~taken
            room.saveable &= ~taken
    for file in ("UR", "UP", "B"):
        choice.names[file] = _take(compiled, file, room)
    for number in choice.names["UR"].values():
        if not room.free >> STARTS.UR + number & 1:
            choice.uniform[number] = _take_scratch(choice, room)
    _take_predicates(compiled, choice, room)
    return choice


def _find_delta(unit: Unit, fixed: dict[int, int], kept: set[int], written: int, free: int) -> int | None:
    """Return the offset by which a unit has to be moved so that all of its fixed registers are in place, or None."""
    given = [member for member in unit.members if member in fixed]
    if not given:
        return None
    delta = fixed[given[0]] - given[0]
    for member in unit.members:
        if member in fixed:
            if fixed[member] != member + delta or (written >> member & 1 and member not in kept):
                return None
        elif not 0 <= member + delta < HIGHEST or not free >> member + delta & 1:
            return None
    return None if delta % unit.align else delta


def _search(unit: Unit, room: Room) -> tuple[int, list[int]]:
    """Return the offset that moves a unit to usable registers, and which of them must be saved. It's the offset for
    which the fewest must be saved.
    """
    free = room.free
    useless = ~(free | room.saveable)
    fewest, best = HIGHEST, 0
    first, last = unit.members[0], unit.members[-1]
    lowest = first % unit.align  # where the first one can go
    fitting = ~(-1 << HIGHEST - last + first) & (-1 << lowest) & _ALIGNED[unit.align] << lowest
    for member in unit.members:
        fitting &= free >> member - first
    if fitting:
        best = (fitting & -fitting).bit_length() - 1 - first
        return best, []
    mask = sum(1 << member - first for member in unit.members) << lowest
    for delta in range(lowest - first, HIGHEST - last, unit.align):
        if not mask & useless and (count := (mask & ~free).bit_count()) < fewest:
            fewest, best = count, delta
            if not count:
                break
        mask <<= unit.align
    if fewest == HIGHEST:
        raise CannotProbe("has too few free registers around it")
    return best, [member + best for member in unit.members if not free >> member + best & 1]


def _take(compiled: Compiled, file: str, room: Room) -> dict[int, int]:
    """Choose registers of another file, pairs first. If there aren't enough free ones, use as few as possible that must
    be saved.
    """
    groups = compiled.find_groups(file)
    names: dict[int, int] = {}
    if not groups:
        return names
    start: int = getattr(STARTS, file)
    count = NO_NUMBER[file]
    free = room.free >> start & (1 << count) - 1
    spare = free | room.saveable >> start & (1 << count) - 1
    for group in sorted(groups, key=len, reverse=True):
        step = len(group)
        mask, fewest, base = (1 << step) - 1, step + 1, 0
        bases = range(0, count, step)
        for one in reversed(bases) if file == "B" else bases:
            if not ~spare >> one & mask and (taken := (~free >> one & mask).bit_count()) < fewest:
                fewest, base = taken, one
                if not taken:
                    break
        if fewest > step:
            raise NothingToSpareError(f"is in a kernel that has no {file} to spare")
        names |= {number: base + k for k, number in enumerate(group)}
        spare &= ~(mask << base)
    return names


def _take_predicates(compiled: Compiled, choice: Choice, room: Room) -> None:
    """Choose free predicates. If a mask names some, they keep their numbers. If too few are free, keep live ones in a
    register while the snippet runs.
    """
    free, saveable = (mask >> STARTS.P & 127 for mask in (room.free, room.saveable))
    mask: int = compiled.named.P
    names = {number: number for number in range(7) if (mask & compiled.masked) >> number & 1}
    wanted = [number for number in range(7) if mask >> number & 1 and number not in names]
    spare = [number for some in (free, saveable & ~free) for number in range(7) if some >> number & 1]
    spare = [number for number in spare if number not in names]
    if len(spare) < len(wanted) or any(not (free | saveable) >> number & 1 for number in names):
        raise CannotProbe("has too few free predicates around it")
    names |= zip(wanted, spare, strict=False)
    choice.names["P"] = names
    choice.predicates = sum(1 << number for number in names.values() if not free >> number & 1)
    if choice.predicates:
        choice.scratch = _take_scratch(choice, room)


def _take_scratch(choice: Choice, room: Room) -> int:
    """Choose a register that holds something else while the snippet runs."""
    if free := room.free & _USABLE:
        room.free &= ~(free & -free)
        return (free & -free).bit_length() - 1
    found, saves = _search(Unit((0,), 1), room)
    room.saveable &= ~(1 << found)
    choice.saves += saves
    return found
