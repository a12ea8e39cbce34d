"""Say what keeps a GPU busy: which kernels, whether one of them gets slower, copies, and whether processes share the
GPU. Also say whether the host keeps asking if the GPU is done, and whether kernels may wait for managed memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.host_calls import ASKING, MANAGED, PREFETCH
from gpt.base.printable import shorten
from gpt.screen.brief import brief_name
from gpt.screen.units import amount, human, human_share, human_time

if TYPE_CHECKING:
    from collections import Counter

    from gpt.analyze.lib.host_calls import Copied
    from gpt.analyze.lib.idle_times import Use
    from gpt.trace.model import TraceModel

Row = tuple[str, int, str]  # cause, ns, and a sentence
ONE, SEVERAL, SLOWER, TURNS, POLLING = "one kernel", "kernels", "slower kernel", "shared GPU", "polling"
PAGES = "managed memory"
MOST, BUSY = 0.5, 0.9  # minimum share of the kernels' time, and of the whole time
NAMED = 3  # kernels named if none takes MOST of the time
PART, GROWN, LAUNCHES = 0.2, 2, 20  # minimum share of a kernel that gets slower, factor, and number of launches
OFTEN, SHARED = 10, 0.1  # minimum number of turns, and minimum share of a process in the work
WIDEST = 60  # width of a name
MANY, TINY = 100, 16 << 10  # number of copies, and size up to which a copy takes hardly longer than an empty one
ASKED, POLLED = 1000, 0.05  # minimum number of calls that ask for a state, and minimum share of their time
PINNED = "pin that memory (pin_memory=True, non_blocking=True), and the host can launch kernels meanwhile"


class Trend(NamedTuple):
    """The number of launches of a kernel, their total ns, and the mean ns of the first and of the last quarter."""

    name: str
    launches: int
    total: float
    first: float
    last: float


def find_most_used(trace: TraceModel, number: int, times: Counter[int]) -> Trend | None:
    """Return the trend of the kernel that takes most of a process's time, or None if that's less than PART of it.
    `times` has the ns of all work by function.
    """
    most = max((function for function in times if function), key=lambda function: times[function], default=None)
    if most is None or times[most] < PART * times.total():
        return None
    places = [place for place in trace.gpus() if place[0] == number]

    def iter_durations() -> Iterator[Any]:
        for rows in trace.iter_gpu_times(places):
            yield rows["duration"][rows["function"] == most]

    count = sum(map(len, iter_durations()))
    quarter = count // 4
    if count < LAUNCHES:
        return None
    at, first, last = 0, 0.0, 0.0
    for took in iter_durations():
        first += float(took[: max(0, quarter - at)].sum())
        last += float(took[max(0, count - quarter - at) :].sum())
        at += len(took)
    name = trace.processes[number].kernels().get(most, f"#{most}")
    return Trend(name, count, times[most], first / quarter, last / quarter)


def sum_unused(times: Counter[int], blocks: dict[int, tuple[int, float]]) -> tuple[float, float]:
    """Return the ns of all kernels, and these ns weighted by the share of SMs that had no block."""
    known = [(time, *blocks[function]) for function, time in times.items() if function in blocks]
    return sum(one[0] for one in known), sum(time * (1 - used / launches) for time, launches, used in known)


def find_kernels(names: Counter[str], used: int, whole: int) -> Iterator[Row]:
    """If kernels run for nearly all of the time, yield a row about the kernels that take most of it. `used` is how many
    ns all kernels run.
    """
    if not names or used < BUSY * whole:
        return
    most = sorted(names, key=lambda name: (-names[name], name))
    one = names[most[0]] >= MOST * used
    most = most[: 1 if one else NAMED]
    shares = [human_share(100 * min(1, names[name] / (used or 1))) for name in most]
    takes = [f"{_shorten(name)} takes {share}" for name, share in zip(most, shares, strict=True)]
    fill, move = ("it fills", "it moves") if one else ("they fill", "they move")
    told = (
        f"{', '.join(takes)} of the kernels' time, and the GPU is busy: 'gpt-hook run -p block_sched' shows how well "
        f"{fill} the GPU, '-p gmem_bytes' how much {move}"
    )
    yield ONE if one else SEVERAL, min(round(sum(names[name] for name in most)), used), told


def find_slower(trends: list[Trend], whole: int) -> Iterator[Row]:
    """Yield a row for each kernel whose launches take longer and longer, with the time that they take beyond the first
    ones.
    """
    for trend in trends:
        if trend.last >= GROWN * trend.first:
            told = (
                f"{_shorten(trend.name)} takes {human_time(trend.last)} in the last quarter of its launches, but "
                f"{human_time(trend.first)} in the first: something grows with each step, such as a cache or a "
                "sequence"
            )
            yield SLOWER, min(max(0, round(trend.total - trend.launches * trend.first)), whole), told


def find_shared(gpus: list[list[Use]]) -> Iterator[Row]:
    """Yield a row for each GPU on which processes take turns, with the time of all processes except the largest
    user.
    """
    for number, uses in enumerate(gpus):
        for use in uses:
            total = sum(use.work.values()) or 1
            shares = sorted((time / total for time in use.work.values() if time >= SHARED * total), reverse=True)
            if len(shares) > 1 and use.turns >= OFTEN:
                parts = ", ".join(human_share(100 * share) for share in shares)
                told = (
                    f"{len(shares)} processes take turns on GPU {number}, {use.turns:,} times, with {parts} of its "
                    "work: they wait for each other, so run them one after the other, or on GPUs of their own"
                )
                yield TURNS, round((1 - shares[0]) * (use.kernels + use.copies)), told


def find_polling(noted: Mapping[str, tuple[int, int]], whole: int) -> Iterator[Row]:
    """Yield a row for each function that the host calls again and again to ask whether the GPU is done."""
    for name in ASKING:
        count, time = noted.get(name, (0, 0))
        if count >= ASKED and time >= POLLED * whole:
            told = (
                f"the host asks {count:,} times in {name} whether the GPU is done, {human_time(time)} together, which "
                f"keeps a core busy: wait in {name.replace('Query', 'Synchronize')} instead, or ask less often"
            )
            yield POLLING, min(time, whole), told


def find_managed(noted: Mapping[str, tuple[int, int]], kernels: int) -> Iterator[Row]:
    """Yield a row if kernels may wait for pages of managed memory. `kernels` is how many ns all kernels run."""
    made, fetched = (noted.get(name, (0, 0))[0] for name in (MANAGED, PREFETCH))
    if made and not fetched:
        told = (
            f"the program allocates managed memory ({amount(made, 'call')} of {MANAGED}), and never calls {PREFETCH}: "
            "kernels may wait for its pages, which counts as their time"
        )
        yield PAGES, kernels, told


def describe_copies(copied: Mapping[str, Copied], uses: list[Use], share: str) -> str:
    """Return a sentence about how much data is copied or set while no kernel runs, and from where. `share` is the share
    of the time in which that happens.
    """
    copying = [use for use in uses if use.copies]
    if sum(use.memsets * use.copies for use in copying) >= MOST * sum(use.copies for use in copying):
        return f"for {share} of the time the GPU only sets memory: set less, or in a separate stream while kernels run"
    found = []
    calls, size = _sum_copies(copied)
    mostly = all(2 * use.host_copies >= 1 for use in copying)
    if are_tiny(copied) and mostly:
        each = human(size / calls)
        return f"for {share} of the time the GPU only copies: {calls:,} times, {each} each: copy more at once"
    for op, way in (("HtoD", "to"), ("DtoH", "from")):
        if (sums := copied.get(op)) and sums.pageable:
            found.append(
                f"{sums.pageable:,} of {amount(sums.calls, 'copy')} {way} the device ({human(sums.pageable_bytes)}"
                f" of {human(sums.bytes)}) use pageable memory"
            )
    told = f": {'; '.join(found)}: {PINNED}" if found else ": copy in a separate stream while kernels run"
    return f"for {share} of the time the GPU only copies{told}"


def are_tiny(copied: Mapping[str, Copied]) -> bool:
    """Return whether there are many copies between host and device, and they're tiny on average."""
    calls, size = _sum_copies(copied)
    return calls >= MANY and size < calls * TINY


def _sum_copies(copied: Mapping[str, Copied]) -> tuple[int, float]:
    both = [copied[op] for op in ("HtoD", "DtoH") if op in copied]
    return sum(one.calls for one in both), sum(one.bytes for one in both)


def _shorten(name: str) -> str:
    return shorten(brief_name(name), WIDEST, middle=False)
