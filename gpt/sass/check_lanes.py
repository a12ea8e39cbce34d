"""Follow a snippet's branches, and check that lanes which split meet again.

A branch that only some lanes take splits the warp. Split lanes stay apart until the kernel's next BSYNC, unless a BSSY
of ours says where they meet. So a snippet may branch conditionally only between its BSSY and its BSYNC, on a barrier
that the kernel doesn't name, and all lanes must have met at its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.sass.check_known import State
from gpt.sass.code import Instruction
from gpt.sass.graph import is_conditional
from gpt.sass.masks import STARTS
from gpt.sass.words import PT, SIZE, bits, guard_of
from gpt.sass.woven import Inserted

Fault = tuple[int, str, str]  # instruction, rule, detail


def follow(one: Instruction, part: Inserted, state: State, faults: list[Fault]) -> Iterator[tuple[int, State]]:
    """Yield the words that may run after a snippet's word, each with its state. Add faults to `faults`."""
    index = one.index
    barrier = bits(one.word, 16, 4)
    if one.name == "BSSY":
        if barrier in state.meetings or not one.guard.always:
            faults.append((index, "lanes", "a BSSY on a barrier in use, or under a guard"))
        yield index + 1, state._replace(meetings=(*state.meetings, barrier))
    elif one.name == "BSYNC":
        if state.meetings[-1:] != (barrier,) or not one.guard.always:
            faults.append((index, "lanes", "a BSYNC without its BSSY"))
        else:
            yield index + 1, state._replace(meetings=state.meetings[:-1])
    elif state.meetings and any(one.masks.writes >> STARTS.B + meeting & 1 for meeting in state.meetings):
        faults.append((index, "lanes", "a barrier is overwritten between BSSY and BSYNC"))
    elif one.name == "BRA":
        assert one.target is not None
        if is_conditional(one):
            if not state.meetings and _can_split(one.word):
                faults.append((index, "lanes", "a branch splits lanes without a BSSY of its own"))
            yield index + 1, state
        yield one.target // SIZE, state
    else:
        if one.name == "WARPSYNC" and one.target is not None and one.target // SIZE > part.start + part.length:
            faults.append((index, "lanes", "a collective leaves its snippet"))
        yield index + 1, state


def _can_split(word: int) -> bool:
    """Return whether lanes may differ in taking a branch. They never do with BRA.DIV: all active lanes take it."""
    return not guard_of(word).always or bits(word, 87, 4) != PT
