"""Track time in a trampoline: results that haven't arrived, and operands that are still being read.

Results of fixed latency are *pending* for some cycles (stalls.py). Others are in flight until a scoreboard says that
they have arrived (flow.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.sass.check_known import GENERAL, KERNEL, State, Surroundings
from gpt.sass.code import Code
from gpt.sass.flow import NOTHING, QUEUE, wait_for
from gpt.sass.masks import STARTS
from gpt.sass.stalls import LATE_GUARD, iter_late, iter_safe

Pending = tuple[int, int, int]  # registers, cycles left, part


def iter_pending(around: Surroundings, first: int) -> Iterator[Pending]:
    """Yield the results that are still pending where a trampoline begins, in place of instruction `first`."""
    original = around.original
    for written, cycles in iter_late(original.code, original.graph, first):
        yield written, cycles, KERNEL


def pass_time(code: Code, index: int, state: State, number: int) -> frozenset[Pending]:
    """Return what's pending after an instruction of a part."""
    stall = code.controls.stalls[index]
    written = code.masks[index].writes
    found = [
        (mask & ~written, left - stall, part) for mask, left, part in state.pending if left > stall and mask & ~written
    ]
    found += [
        (mask, cycles - stall, number) for mask, cycles in iter_safe(code[index].entry, written) if cycles > stall
    ]
    return frozenset(found)


def iter_hazards(code: Code, index: int, state: State) -> Iterator[tuple[str, int, str]]:
    """Yield rules, registers and faults where a snippet, which a weaver may have written, doesn't wait for itself."""
    read, written, *_ = code.masks[index]
    if state.ours != NOTHING:
        rest = wait_for(state.ours, code.controls.waits[index])
        arriving = rest.arriving
        being_read = 0 if code[index].name in QUEUE else (union(rest.reads) | rest.queued) & GENERAL
        yield "scoreboard", (read | written) & arriving, "is used by a snippet before it arrives"
        yield "scoreboard", written & being_read & ~arriving, "is still being read by the snippet"
    guard = read & 1 << STARTS.P + (code.words[index] >> 12 & 7)
    for mask, left, part in state.pending:
        if part == state.part and left > LATE_GUARD:
            yield "stall", mask & guard, "is the guard, and isn't there yet"


def union(masks: tuple[int, ...]) -> int:
    """Return the union of sets of registers."""
    found = 0
    for mask in masks:
        found |= mask
    return found
