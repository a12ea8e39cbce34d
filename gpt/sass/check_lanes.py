"""Follow jumps in a snippet, and the lanes that part and meet there (check_state.py)."""

from __future__ import annotations

from gpt.sass.check_known import State
from gpt.sass.check_words import can_split
from gpt.sass.code import Instruction
from gpt.sass.graph import is_conditional
from gpt.sass.masks import STARTS
from gpt.sass.words import SIZE, bits

Following = tuple[tuple[int, State], ...]  # instructions that may be next, and the states before them


def follow(one: Instruction, end: int, state: State) -> tuple[str, Following]:
    """Return what's wrong with how an instruction of a snippet moves lanes, and what follows it. The snippet ends
    before `end`, and `state` is the one after the instruction.
    """
    meetings, following = state.meetings, ((one.index + 1, state),)
    barrier = bits(one.word, 16, 4)
    if one.name == "BSSY":
        text = "a BSSY on a barrier in use, or under a guard" if barrier in meetings or not one.guard.always else ""
        return text, ((one.index + 1, state._replace(meetings=(*meetings, barrier))),)
    if one.name == "BSYNC":
        if meetings[-1:] != (barrier,) or not one.guard.always:
            return "a BSYNC without its BSSY", ()
        return "", ((one.index + 1, state._replace(meetings=meetings[:-1])),)
    if any(one.masks.writes >> STARTS.B + meeting & 1 for meeting in meetings):
        return "a barrier is overwritten between BSSY and BSYNC", ()
    if one.name == "BRA":
        assert one.target is not None
        there = ((one.target // SIZE, state),)
        if not is_conditional(one):
            return "", there
        splits = not meetings and can_split(one.word)
        return "a branch splits lanes without a BSSY of its own" if splits else "", following + there
    if one.name == "WARPSYNC" and one.target is not None and one.target // SIZE > end:
        return "a collective leaves its snippet", following
    return "", following
