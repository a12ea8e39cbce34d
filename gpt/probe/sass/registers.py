"""Map a snippet's registers to the kernel's.

A snippet can write a register that's free: dead, with nothing in flight for it (gpt/sass/sites.py). The kernel's
register count is raised at first only where that costs nothing: up to 32, with which a multiprocessor can still hold
its maximum of threads, and up to the next multiple of 8, because the hardware allocates registers in eights. If too few
are free, live ones are saved below the stack pointer (trampoline.py). If that isn't enough either, the count is raised
up to 64, with which a multiprocessor can still run any block.

A snippet's registers that occur together in one operand, such as a 64-bit pair, move together and stay aligned. A
`fixed` register, which stands for a kept value or an operand of the site, should be assigned the kernel's register. If
the snippet overwrites that one, or its neighbours don't fit, another register gets a copy.

Uniform predicates and convergence barriers are used only if the kernel never names them, because other lanes of the
warp may be anywhere (docs/sass-rules.md). So are uniform registers; if there are too few, some that the kernel names
are kept in general registers while the snippet runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.sass.snippets import Compiled, Unit
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS

STEP = 8  # registers are allocated in eights
FULL = 32  # registers with which a multiprocessor still holds its maximum of threads, 2,048
FITTING = 64  # registers with which a block of 1,024 threads still fits on a multiprocessor
RESERVED = 2  # part of the count, but reserved by the hardware
HIGHEST = 253  # usable registers at most
NO_NUMBER = {"UR": 63, "P": 7, "UP": 7, "B": 16}


class NothingToSpareError(CannotProbe):
    """The kernel names too many registers of a file; neither waiting nor another place would help."""


def usable(kernel: Kernel) -> int:
    """Return how many registers a kernel may use at no cost: no additional ones if some of its warps give any back."""
    if kernel.code.find({"USETMAXREG"}):
        return kernel.kept
    return min(HIGHEST, max(FULL, -(-(kernel.registers + RESERVED) // STEP) * STEP) - RESERVED)


def usable_at_cost(kernel: Kernel) -> int:
    """Return how many registers a kernel may name at most, even if fewer of its blocks then run at once."""
    free = usable(kernel)
    return free if kernel.code.find({"USETMAXREG"}) else max(free, FITTING - RESERVED)


@dataclass
class Room:
    """The registers that a snippet may use at a place, as masks for all files: free ones and saveable ones."""

    free: int
    saveable: int


@dataclass
class Choice:
    """The registers chosen for a snippet: `names` for each file, registers to save, and copies of `fixed` registers."""

    names: dict[str, dict[int, int]]
    saves: list[int] = field(default_factory=list)
    copies: dict[int, int] = field(default_factory=dict)  # the snippet's register -> the chosen one
    predicates: int = 0  # live ones, kept in `scratch` in the meantime
    scratch: int = 0
    uniform: dict[int, int] = field(default_factory=dict)  # register -> where its value is meanwhile


def choose(compiled: Compiled, pairs: list[int], fixed: dict[int, int], kept: set[int], room: Room) -> Choice:
    """Choose registers. Each of `pairs` must stay next to the following register. `fixed` maps some of the snippet's
    registers to the kernel's; the snippet may write only those in `kept`. Raises CannotProbe.
    """
    choice = Choice({"R": {}})
    free = {number for number in range(HIGHEST) if room.free >> number & 1}
    free -= set(fixed.values())
    units = sorted(
        compiled.find_units(pairs), key=lambda unit: (not any(m in fixed for m in unit.members), -len(unit.members))
    )
    written: int = compiled.written.R
    for unit in units:
        delta = _find_delta(unit, fixed, kept, written, free)
        if delta is None:
            delta, saves = _search(unit, free, room.saveable)
            if saves and any(register in choice.saves for register in saves):
                raise CannotProbe("has too few free registers around it")
            choice.saves += saves
            choice.copies |= {member: member + delta for member in unit.members if member in fixed}
        for member in unit.members:
            choice.names["R"][member] = member + delta
            free.discard(member + delta)
            room.saveable &= ~(1 << member + delta)
    for file in ("UR", "UP", "B"):
        choice.names[file] = _take(compiled, file, room)
    for number in choice.names["UR"].values():
        if not room.free >> STARTS.UR + number & 1:
            choice.uniform[number] = _take_scratch(choice, room, free)
    _take_predicates(compiled, choice, room, free)
    return choice


def _find_delta(unit: Unit, fixed: dict[int, int], kept: set[int], written: int, free: set[int]) -> int | None:
    """Return the offset that moves all fixed registers of a unit to where they should be, or None if there's none."""
    given = [member for member in unit.members if member in fixed]
    if not given:
        return None
    delta = fixed[given[0]] - given[0]
    for member in unit.members:
        if member in fixed:
            if fixed[member] != member + delta or (written >> member & 1 and member not in kept):
                return None
        elif member + delta not in free:
            return None
    return None if delta % unit.align else delta


def _search(unit: Unit, free: set[int], saveable: int) -> tuple[int, list[int]]:
    """Return the offset to usable registers, and which of them must be saved: as few as possible."""
    best: tuple[int, list[int]] | None = None
    first, last = unit.members[0], unit.members[-1]
    for delta in range(-(first // unit.align) * unit.align, HIGHEST - last, unit.align):
        taken = [member + delta for member in unit.members if member + delta not in free]
        if not all(saveable >> register & 1 for register in taken):
            continue
        if best is None or len(taken) < len(best[1]):
            best = delta, taken
            if not taken:
                break
    if best is None:
        raise CannotProbe("has too few free registers around it")
    return best


def _take(compiled: Compiled, file: str, room: Room) -> dict[int, int]:
    """Assign registers of another file, pairs first: free ones, or else as few as possible that must be saved."""
    groups = compiled.find_groups(file)
    names: dict[int, int] = {}
    if not groups:
        return names
    start: int = getattr(STARTS, file)
    numbers = range(NO_NUMBER[file])
    spare = {number for number in numbers if (room.free | room.saveable) >> start + number & 1}
    order = sorted(spare, key=lambda number: -number if file == "B" else number)
    for group in sorted(groups, key=len, reverse=True):
        step = len(group)
        bases = [b for b in order if b % step == 0 and all(b + k in spare for k in range(step))]
        if not bases:
            raise NothingToSpareError(f"is in a kernel that has no {file} to spare")
        base = min(bases, key=lambda b: sum(not room.free >> start + b + k & 1 for k in range(step)))
        names |= {number: base + k for k, number in enumerate(group)}
        spare -= {base + k for k in range(step)}
        order = [number for number in order if number in spare]
    return names


def _take_predicates(compiled: Compiled, choice: Choice, room: Room, free: set[int]) -> None:
    """Assign free predicates; if there are too few, keep live ones in a register in the meantime."""
    mask: int = compiled.named.P
    wanted = [number for number in range(7) if mask >> number & 1]
    spare = [number for number in range(7) if room.free >> STARTS.P + number & 1]
    if len(spare) < len(wanted):
        late = [number for number in range(7) if not room.free >> STARTS.P + number & 1]
        spare += [number for number in late if room.saveable >> STARTS.P + number & 1]
        if len(spare) < len(wanted):
            raise CannotProbe("has too few free predicates around it")
        choice.predicates = sum(1 << number for number in spare[: len(wanted)] if number in late)
        choice.scratch = _take_scratch(choice, room, free)
    choice.names["P"] = dict(zip(wanted, spare, strict=False))


def _take_scratch(choice: Choice, room: Room, free: set[int]) -> int:
    """Take a register to hold something while the snippet runs."""
    if free:
        found = min(free)
        free.discard(found)
        return found
    found, saves = _search(Unit((0,), 1), free, room.saveable)
    room.saveable &= ~(1 << found)
    choice.saves += saves
    return found
