"""Branches, calls, and everything that makes lanes wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpt.sass.tables import Opcode
from gpt.sass.words import SIZE, bits, target_of
from tests.sass.interp.decode import Array, Unimplemented
from tests.sass.interp.lanes import packed

if TYPE_CHECKING:
    from tests.sass.interp.machine import Part, Warp

Flow = Callable[["Warp", "Part", Array, int, Opcode], None]
_MASK = (1 << 64) - 1


def refuse(word: int, entry: Opcode, why: str) -> Unimplemented:
    """Return the exception for an unknown form."""
    return Unimplemented(f"{entry.name} ({entry.number:03x}) {word:032x}: {why}")


def second(warp: Warp, word: int, lanes: Array) -> Array:
    """Return the lanes in which the second predicate is true as well."""
    return lanes & (warp.P[bits(word, 87, 3)] ^ bool(bits(word, 90, 1)))


def nop(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Do nothing: in the interpreter, memory order is execution order."""
    part.place += SIZE


def target(part: Part, word: int, entry: Opcode) -> int:
    """Return where a jump leads."""
    assert entry.target
    return target_of(word, entry.target, part.place)


def branch(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute BRA; BRA.DIV, which jumps if some lanes of a mask aren't active; and BRA.CONV, which jumps if all are."""
    to = target(part, word, entry)
    if entry.number == 0x547:  # on a uniform predicate
        raise refuse(word, entry, "not implemented")
    kind = bits(word, 84, 3)
    if entry.number == 0x947 and bits(word, 91, 1):
        if kind or bits(word, 32, 2) not in (2, 3):
            raise refuse(word, entry, "an unknown kind")
        is_whole = packed(part.lanes) == int(warp.UR[bits(word, 24, 6)][0])
        taken = taken if is_whole == (bits(word, 32, 2) == 3) else np.zeros(32, bool)
    elif kind == 1:  # BRA.U.ANY: all lanes jump if one does
        taken = part.lanes & bool(second(warp, word, taken).any())
    else:
        if kind:
            raise refuse(word, entry, "an unknown kind")
        taken = second(warp, word, taken)
    jump(warp, part, taken, to)


def jump(warp: Warp, part: Part, taken: Array, to: int) -> None:
    """Let some lanes jump while the others continue; which of them run first is random."""
    here = part.place
    if (taken == part.lanes).all():
        part.place = to
        return
    part.place = here + SIZE
    if taken.any():
        other = warp.split(part, taken, to)
        warp.current = other if warp.rng.integers(2) else part


def indirect(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Jump to an address per lane: BRX, and RET or CALL with a register."""
    register = bits(word, 24, 8)
    base = target_of(word, "split", part.place)
    if entry.name == "RET" and bits(word, 85, 1):
        base = 0  # RET.ABS
    taken = second(warp, word, taken)
    places = (warp.R[register].astype(np.uint64) | warp.R[register + 1].astype(np.uint64) << np.uint64(32)).tolist()
    todo, here = taken.copy(), part.place
    moved = []
    while todo.any():
        first = int(np.flatnonzero(todo)[0])
        same = todo & np.array([place == places[first] for place in places])
        todo &= ~same
        moved.append((same, base + places[first] & _MASK))
    part.place = here + SIZE
    for same, place in moved:
        if place not in warp.cubin.words:
            raise refuse(word, entry, f"to {place:#x}, where no code is")
        warp.split(part, same, place)


def call(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute CALL.REL, a plain jump: the caller has put the return address into registers."""
    if entry.number == 0x944:
        jump(warp, part, second(warp, word, taken), target(part, word, entry))
    elif entry.number == 0x344:
        indirect(warp, part, taken, word, entry)
    else:
        raise refuse(word, entry, "not implemented")


def end(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute EXIT."""
    taken = second(warp, word, taken)
    warp.exited = warp.exited | taken
    part.place += SIZE
    part.lanes = part.lanes & ~taken
    if not part.lanes.any():
        warp.remove(part)
    release(warp)
    warp.block.release()


def remember(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute BSSY. Its label isn't used: on an H200, lanes continue after the BSYNC, whatever the label."""
    barrier = bits(word, 16, 4)
    if taken.any():
        warp.barriers[barrier] = packed(taken)
    part.place += SIZE


def move_barrier(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute BMOV between a barrier and a register."""
    barrier = bits(word, 24, 4)
    if bits(word, 28, 1) or (entry.number == 0x356 and bits(word, 84, 1)):
        raise refuse(word, entry, "not a barrier")
    if taken.any():
        if entry.number == 0x355:
            if bits(word, 16, 8) != 255:
                np.copyto(warp.R[bits(word, 16, 8)], np.uint32(warp.barriers[barrier]), where=taken)
            if bits(word, 84, 1):  # CLEAR
                warp.barriers[barrier] = 0
        elif entry.number == 0x356:
            warp.barriers[barrier] = warp.number(word, 32, taken)
        else:
            raise refuse(word, entry, "not implemented")
    part.place += SIZE


def leave(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute BREAK: the barrier no longer waits for these lanes."""
    warp.barriers[bits(word, 16, 4)] &= ~packed(second(warp, word, taken))
    part.place += SIZE
    release(warp)


def wait(warp: Warp, part: Part, taken: Array, what: tuple[str, int]) -> None:
    """Let lanes wait; lanes that don't take part continue."""
    here = part.place
    rest = part.lanes & ~taken
    if rest.any():
        waiting = warp.split(part, taken, here)
        part.place = here + SIZE
        if not taken.any():
            return
        waiting.waits = what
        warp.waiting.append(waiting)
    else:
        part.waits = what
        warp.waiting.append(part)
    release(warp)


def meet(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute BSYNC. Lanes that aren't in the barrier continue at once."""
    number = bits(word, 16, 4)
    if not packed(taken) & warp.barriers[number]:
        part.place += SIZE
        return
    wait(warp, part, taken, ("bsync", bits(word, 16, 4)))


def synchronize(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute WARPSYNC with a mask, .ALL, .COLLECTIVE and .EXCLUSIVE."""
    everyone = entry.number == 0x948
    if not taken.any():
        part.place += SIZE
        return
    mask = 0xFFFFFFFF if everyone else warp.number(word, 24, taken)
    collective = bool(bits(word, 86, 1))
    if (everyone and collective) or entry.number not in (0x348, 0x948):
        raise refuse(word, entry, "not implemented")
    needed = mask & ~packed(warp.exited)
    if everyone or (needed & ~packed(taken) and not collective):
        forsake(warp, taken)
    wait(warp, part, taken, ("collective" if collective else "warpsync", mask))


def end_collective(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute ENDCOLLECTIVE: the lanes that were joined separate again."""
    part.place += SIZE
    pieces, part.inside = part.inside, []
    for piece in pieces[1:]:
        lanes = piece & part.lanes
        if lanes.any() and (lanes != part.lanes).any():
            warp.split(part, lanes, part.place)


def forsake(warp: Warp, lanes: Array) -> None:
    """Remove lanes from every barrier, as YIELD does."""
    for barrier in range(16):
        warp.barriers[barrier] &= ~packed(lanes)
    release(warp)


def give_way(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute YIELD and NANOSLEEP."""
    part.place += SIZE
    if taken.any():
        forsake(warp, taken)
        warp.current = None


def release(warp: Warp) -> None:
    """Release lanes that no longer wait for any other lane."""
    again = True
    while again:
        again = False
        for part in list(warp.parts):
            if part in warp.parts and part.waits and part.waits[0] != "bar" and _try(warp, part):
                again = True


def _try(warp: Warp, part: Part) -> bool:
    kind, value = part.waits or ("", 0)
    mask = warp.barriers[value] if kind == "bsync" else value
    mask &= ~packed(warp.exited)
    together = [one for one in warp.parts if one.waits == part.waits and packed(one.lanes) & mask]
    if part not in together:
        if kind == "bsync":  # a called function may use the same barrier for other lanes
            return False
        raise Unimplemented("a WARPSYNC by lanes that aren't in its mask")
    if mask & ~sum(packed(one.lanes) for one in together):
        return False
    places = sorted({one.place for one in together})
    for place in places:
        here = [one for one in together if one.place == place]
        kept = here[0]
        if kind == "collective":
            kept.inside = [one.lanes for one in here]
        for one in here[1:]:
            kept.lanes = kept.lanes | one.lanes
            warp.remove(one)
        kept.waits = None
        kept.place += SIZE
        if warp.current is None:  # the last part to arrive has been joined, and continues
            warp.current = kept
    return True


def barrier(warp: Warp, part: Part, taken: Array, word: int, entry: Opcode) -> None:
    """Execute BAR.SYNC, .ARV and .RED whose barrier number is in the word."""
    kind = bits(word, 77, 3)
    if entry.number != 0xB1D or kind > 2:
        raise refuse(word, entry, "not implemented")
    number, count = bits(word, 54, 4), bits(word, 42, 12)
    if not taken.any():
        part.place += SIZE
        return
    votes = packed(second(warp, word, taken)) if kind == 2 else 0
    if kind == 1:
        part.place += SIZE
    else:
        wait(warp, part, taken, ("bar", number))
    warp.block.arrive(warp, taken, number, count, (votes, bits(word, 74, 2)) if kind == 2 else None)


FLOW: dict[str, Flow] = {
    **dict.fromkeys(("NOP", "MEMBAR", "ERRBAR", "CGAERRBAR", "CCTL", "LDGDEPBAR", "DEPBAR", "FENCE"), nop),
    "UTMACMDFLUSH": nop,
    "BRA": branch,
    "BRX": indirect,
    "RET": indirect,
    "CALL": call,
    "EXIT": end,
    "BSSY": remember,
    "BSYNC": meet,
    "BREAK": leave,
    "BMOV": move_barrier,
    "WARPSYNC": synchronize,
    "ENDCOLLECTIVE": end_collective,
    "YIELD": give_way,
    "NANOSLEEP": give_way,
    "BAR": barrier,
}
