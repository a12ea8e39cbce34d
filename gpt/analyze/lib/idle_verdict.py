"""Say why GPUs are idle, or what keeps them busy, and what would help: a sentence for each cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib import idle_advice as advice
from gpt.analyze.lib.answer import Column
from gpt.screen.units import amount, human_share, human_time

if TYPE_CHECKING:
    from gpt.analyze.lib.idle_causes import Times
    from gpt.analyze.lib.idle_parts import IdleSums

VERDICT = (
    Column("cause", "text", title="why"),
    Column("function", "text?", "function", shown="any"),
    Column("time", "u64", "ns"),
    Column("share", "f64", "%"),
    Column("told", "text", shown="line"),
)
LEAST = 1  # minimum % of the time for a cause to be stated
LIGHT = 0.1  # how much time matters that may cost nothing
UNUSED = 50  # % of the SMs, averaged over the time of the kernels
COPIES, SMALL = "only copies", "few blocks"


def iter_verdicts(found: IdleSums) -> Iterator[tuple[Any, ...]]:
    """Yield how much a row of VERDICT matters, and the row: one for each cause, then advice for a GPU that's always
    busy.
    """
    from gpt.analyze.lib.busy_causes import (
        describe_copies,
        find_kernels,
        find_managed,
        find_polling,
        find_shared,
        find_slower,
    )
    from gpt.analyze.lib.idle_causes import weigh
    from gpt.analyze.lib.turns import describe_turns

    for cause, names, times in _iter_groups(found):
        share = 100 * times.total / (found.whole or 1)
        yield weigh(times), cause, names[0], times.total, share, _advise(found, cause, names, times)
    copies = sum(use.copies for use in found.iter_uses())
    if copies:
        share = 100 * copies / (found.whole or 1)
        yield (
            copies,
            COPIES,
            None,
            copies,
            share,
            describe_copies(found.copied, [*found.iter_uses()], human_share(share)),
        )
    if found.unused and 100 * found.unused >= UNUSED * found.kernels:
        told = (
            "launches have fewer blocks than the GPU has SMs: while kernels run, "
            f"{human_share(100 * found.unused / found.kernels)} of the SMs have none; a larger batch would take "
            "little longer"
        )
        unused = min(round(found.unused), sum(use.kernels for use in found.iter_uses()))
        rows = iter([(SMALL, unused, told)])
    else:
        rows = find_kernels(found.names, sum(use.kernels for use in found.iter_uses()), found.whole)
    waited = describe_turns(found.turns, found.whole)
    others = *find_slower(found.trends, found.whole), *find_shared(found.uses), *([waited] if waited else ())
    for cause, time, told in (*rows, *others):
        yield time, cause, None, time, 100 * time / (found.whole or 1), told
    kernels = sum(use.kernels for use in found.iter_uses())
    for cause, time, told in (*find_polling(found.noted, found.whole), *find_managed(found.noted, kernels)):
        yield LIGHT * time, cause, None, time, 100 * time / (found.whole or 1), told


def _iter_groups(found: IdleSums) -> Iterator[tuple[str, list[str | None], Times]]:
    """Yield causes with their functions, most time first. Functions of one type are merged if the advice for them
    is the same.
    """
    from gpt.analyze.lib.idle_causes import CALL, Times

    types, groups = found.sums.types, dict[Any, Any]()
    for (cause, name), times in sorted(found.sums.causes.items(), key=lambda one: -one[1].total):
        group = cause, types.get(name or "") if cause == CALL else name
        names, sums = groups.setdefault(group, ([], Times()))
        names.append(name)
        sums.add(times)
    yield from ((cause, *group) for (cause, _), group in groups.items())


def _advise(found: IdleSums, cause: str, names: list[str | None], times: Times) -> str:
    """Return a sentence that says what happens and what would help."""
    from gpt.analyze.lib import idle_causes as causes
    from gpt.analyze.lib.busy_causes import are_tiny
    from gpt.analyze.lib.compiled import describe_compiled
    from gpt.analyze.lib.host_samples import describe_places, find_locked, is_expecting, is_listening, is_sleeping

    name = names[0]
    count, mean = amount(times.count, "time"), human_time(times.total / times.count)
    each = "" if times.count == 1 else " each"
    often = causes.describe_times(times) + _describe_early(found, times)
    where = _find_range(found, cause, names)
    share = human_share(100 * times.total / (found.whole or 1))
    waited = human_time(times.waited / times.count)
    match cause:
        case causes.WAIT if 2 * times.items >= times.count:
            then = f"the GPU is then idle for {mean}{each}{_find_doing(found, name)}"
            return (
                f"the host waits for a value {count}, {waited}{each}, as '.item()' does{where}; {then}: read "
                "values less often, or later, when they are there"
            )
        case causes.WAIT:
            does = found.sums.types.get(_find_most(found, name) or "", "")
            action = f"{advice.ACTIONS[does]}, or " if does in advice.ONCE else ""
            return (
                f"the host waits for the GPU {count} in {name}, {waited}{each}{where}; the GPU is then idle for "
                f"{mean}{each}{_find_doing(found, name)}: {action}launch the next work before "
                "waiting, or wait less often"
            )
        case causes.PACE:
            took, period = (human_time(ns / times.count) for ns in (times.took, times.took + times.total))
            return (
                f"launch-bound: kernels take {took}, but are launched every {period}{where}; a CUDA graph would "
                f"save at most {share}; 'gpt-analyze launches' lists them"
            )
        case causes.CALL:
            others = f" and {names[1]}" if len(names) == 2 else ""
            others = f", {names[1]} and {len(names) - 2} more" if len(names) > 2 else others
            type_ = found.sums.types.get(name or "", "")
            if type_ == "module" and found.compiled:
                others += f", {describe_compiled(found.compiled)}"
                return f"the GPU waits {often}, while the host is mostly in {name}{others}{where}: {advice.COMPILE}"
            action = (
                advice.AT_ONCE
                if type_ == "memcpy" and are_tiny(found.copied)
                else advice.ACTIONS.get(type_, advice.ELSE)
            )
            return f"the GPU waits {often}, while the host is mostly in {name}{others}{where}: {action}"
        case causes.HOST_CODE:
            loads = found.sums.loading
            if 2 * loads.total >= times.total:
                return (
                    f"the GPU waits {often}, while the host mostly runs its own code between calls{where}"
                    f"{describe_places(found.sums.places)}; it loads new GPU code in {loads.count:,} of these, "
                    f"{describe_compiled(found.compiled)}: {advice.COMPILE}"
                )
            places = found.sums.places
            if find_locked(places):
                action = advice.UNLOCK
            elif is_listening(places):
                action = advice.LISTEN
            elif is_sleeping(places):
                action = advice.SLEEP
            else:
                action = advice.AHEAD if is_expecting(places) else advice.ASIDE + ("" if places else advice.UNLESS)
            hint = "" if set(found.sums.ranges) - {None} or found.sums.places else advice.HINT
            return (
                f"the GPU waits {often}, while the host mostly runs its own code between calls"
                f"{_find_waited(found)}{where}{describe_places(found.sums.places)}{hint}: {action}"
            )
        case causes.BETWEEN:
            return (
                f"work that was launched in time begins {mean} after other work, {count}, part of which is the cost"
                " of --gpu-time: fewer and larger kernels would help"
            )
        case causes.LATE:
            several = any(len(use.work) > 1 for use in found.iter_uses())
            why = causes.describe_late(found.noted, times.count, several)
            return (
                f"work begins late, {count}, although it was launched before{where}: {why}; 'gpt-analyze timeline'"
                " shows the streams"
            )
        case causes.OFF:
            return (
                f"recording was off for a part of {amount(times.count, 'idle period')}, so the cause is unknown: "
                "record without a pause to see it"
            )
    return f"{count}: the trace doesn't say which call launched what ran next"


def _describe_early(found: IdleSums, times: Times) -> str:
    """Say if none of these times was in the second half of the time from the GPU's first work to its last. That's only
    known of a single process.
    """
    uses = [*found.iter_uses()]
    if times.count < 2 or len(uses) != 1 or len(uses[0].processes) != 1:
        return ""
    first, last = uses[0].first, uses[0].last
    took = found.began[uses[0].processes[0]] + times.until - first
    return f", all in the first {human_time(took)}" if 2 * took <= last - first else ""


def _find_most(found: IdleSums, waited: str | None) -> str | None:
    """Return what the host did in at least half of the idle time after waits in this function, or None."""
    from gpt.analyze.lib.idle_causes import QUEUED, UNKNOWN

    spent = {what: times.total for (what, after), times in found.sums.doing.items() if after == waited}
    most = max(spent, key=lambda what: spent[what], default=None)
    if most is None or most in (waited, QUEUED, UNKNOWN) or 2 * spent[most] < sum(spent.values()):
        return None
    return most


def _find_waited(found: IdleSums) -> str:
    """Say after which wait the host ran its own code, if that's one function for at least half of the time, apart
    from the longest.
    """
    from gpt.analyze.lib.idle_causes import HOST_CODE, WAIT, Times

    causes = found.sums.causes
    own = causes[HOST_CODE, None]
    for (what, after), times in found.sums.doing.items():
        if what == HOST_CODE and after:
            elsewhere = causes.get((WAIT, after), Times()).total
            if 2 * (times.total - elsewhere) >= own.total - own.longest * (own.count > 1):
                return f", after it waited in {after}"
    return ""


def _find_doing(found: IdleSums, waited: str | None) -> str:
    """Describe what _find_most returns in a sentence, or return "" if it returns None."""
    from gpt.analyze.lib.host_samples import describe_places
    from gpt.analyze.lib.idle_causes import HOST_CODE

    most = _find_most(found, waited)
    own = f"mostly runs its own code{describe_places(found.sums.places)}"
    return f", while the host {own if most == HOST_CODE else f'is mostly in {most}'}" if most else ""


def _find_range(found: IdleSums, cause: str, names: list[str | None]) -> str:
    """Name the NVTX range with at least half of the idle time of a cause."""
    spent = {
        where: sum(causes[cause, name].total for name in names if (cause, name) in causes)
        for where, causes in found.sums.ranges.items()
    }
    where = max(spent, key=lambda one: spent[one], default=None)
    if where is None or not spent[where] or 2 * spent[where] < sum(spent.values()):
        return ""
    return f", mostly in the range '{where}'"
