"""Track time in a trampoline: results that haven't arrived, and operands that are still being read.

Results of fixed latency are *pending* for some cycles (stalls.py). Others are in flight until a scoreboard says that
they have arrived (flow.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpt.sass.check_known import GENERAL
from gpt.sass.check_word import Fresh, WordFacts
from gpt.sass.flow import QUEUE, InFlight
from gpt.sass.masks import union
from gpt.sass.stalls import LATE_GUARD

Pending = tuple[int, int, int]  # registers, cycles left, part
Hazard = tuple[str, int, str]  # rule, registers, fault


def pass_time(
    pending: frozenset[Pending], part: int, writes: int, stall: int, fresh: tuple[Fresh, ...]
) -> frozenset[Pending]:
    """Return what's pending after an instruction of a part. `fresh` are its own results (check_word.py)."""
    if not pending and not fresh:
        return pending
    kept = ~writes
    found = [(mask & kept, left - stall, other) for mask, left, other in pending if left > stall and mask & kept]
    found += [(mask, left, part) for mask, left in fresh]
    return frozenset(found)


def iter_hazards(word: WordFacts, rest: InFlight) -> Iterator[Hazard]:
    """Yield rules, registers and faults where a snippet, which a weaver may have written, doesn't wait for itself.

    `rest` is what's in flight from the snippet once the word has waited.
    """
    arriving = rest.arriving
    being_read = 0 if word.name in QUEUE else (union(rest.reads) | rest.queued) & GENERAL
    if word.named & arriving:
        yield "scoreboard", word.named & arriving, "is used by a snippet before it arrives"
    if word.writes & being_read & ~arriving:
        yield "scoreboard", word.writes & being_read & ~arriving, "is still being read by the snippet"


def iter_late_hazards(word: WordFacts, late: Iterable[Pending], part: int, clock: int) -> Iterator[Hazard]:
    """Yield rules, registers and faults where a word of a part uses a result of fixed latency too early. The results in
    `late` arrive in the given cycles, which are later than `clock`. Within a part, only guards are checked.
    """
    for mask, due, other in late:
        if other != part:
            yield "stall", mask & word.named, "isn't there yet"
        elif due - clock > LATE_GUARD:
            yield "stall", mask & word.guard, "is the guard, and isn't there yet"
