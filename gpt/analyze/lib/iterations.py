"""Find the iterations of a process: how many launches make up one, how many there are, where they begin, and how long
they take.

The first MOST launches of a process are kept, 20 bytes each: the time, the kernel or graph, the thread, the stream, and
the duration of the call. The launches of all threads form one sequence in time order. If no unit covers SHARE of it,
for instance because threads interleave randomly, each thread and each stream is searched on its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.periods import Codes, Period, Places, find_steps, split_units
from gpt.analyze.lib.rounds import begin_at_break, count_in_threads, find_after
from gpt.screen.units import amount
from gpt.trace.graphs import GRAPH_LAUNCH
from gpt.trace.loading import LAUNCH
from gpt.trace.machines import LIMIT
from gpt.trace.process import CAPTURED
from gpt.trace.rows import find_first_places, iter_groups

if TYPE_CHECKING:
    from gpt.trace.clock import Clock
    from gpt.trace.process import Process
    from gpt.trace.rows import Rows, Threads
    from gpt.trace.unrecorded import Unrecorded

MOST = 1 << 21  # launches examined per process
WHOLE, INSIDE, OTHER = (
    "iteration",
    "part of it",
    "repetition",
)  # roles of units: largest coverage, repetitions inside it, others of the same length
NESTED = 3  # units found in a sequence: the iteration, and repetitions inside it
OTHERS, LITTLE = 7, 0.05  # number of other units of the same length to list, and minimum coverage of each
SCOPES = 8  # threads, and streams, to examine: the ones with the most launches
GRAPH = np.uint32(1 << 31)  # set in codes of graphs: the rest is a handle's index, or else a function's id
HASH = np.uint64(0x9E3779B97F4A7C15)  # hashes a stream: the upper 16 bits are kept
Stamps = npt.NDArray[np.uint64]


class Unit(NamedTuple):
    """A unit of launches that repeats.

    `scope` says in which launches: all, a thread's or a stream's. `codes` are the launches of one unit. It occurs
    `times` times, for the first time at launch number `first`; `covered` launches are part of a complete unit. `start`,
    `end` and `took` are in the unit of time stamps. `role` is WHOLE, INSIDE or OTHER. `in_threads` is how often the
    unit occurs if the launches of each thread are counted separately.
    """

    role: str
    scope: str
    launches: int
    covered: int
    codes: Codes
    times: int
    first: int
    start: int
    end: int
    took: float
    in_threads: int = 0


class LaunchSequence:
    """The successful launches of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._kept = 0
        self._totals = Counter[int]()  # calls by api, with the keys of the parts
        self._parts: list[tuple[int, tuple[npt.NDArray[Any], ...]]] = []  # api, -api for kernels, and the columns
        self._sorted: tuple[list[int], Launches] | None = None  # the parts that were sorted, and their launches
        self._graphs: dict[int, int] = {}  # index of each graph, by handle
        self._threads: dict[int, int] = {}  # index of each thread, by id

    def first(self) -> int | None:
        """Return the time stamp of the first launch, or None."""
        starts = self.starts()
        return int(starts[0]) if len(starts) else None

    def starts(self) -> Stamps:
        """Return the time stamps of all launches, in order."""
        return self._sort().starts

    def count(self, begin: int, end: int) -> int:
        """Return the number of launches that began in an interval."""
        starts = self.starts()
        return max(0, _count_before(starts, end) - _count_before(starts, begin))

    @property
    def total(self) -> int:
        """Return the number of launches."""
        return sum(count for key, count in self._totals.items() if self._launches(key))

    def _launches(self, key: int) -> bool:
        """Return True if calls with this key launch something. A function may get its name after its calls were
        added.
        """
        api = self._process.apis.get(abs(key))
        return key == 0 or (api is not None and api[:2] == GRAPH_LAUNCH if key > 0 else not api or api.type != CAPTURED)

    def _named(self) -> list[tuple[int, tuple[npt.NDArray[Any], ...]]]:
        """Return the parts, without functions that turned out to launch no graphs or to be captured calls."""
        return [part for part in self._parts if self._launches(part[0])]

    def calls_of_kernels(self) -> npt.NDArray[np.void]:
        """Return the calls in the form that find_loading expects."""
        parts = [columns for api, columns in self._named() if api <= 0]
        found = np.zeros(sum(len(columns[0]) for columns in parts), LAUNCH)
        for name, place in (("start", 0), ("function", 1), ("duration", 4)):
            found[name] = np.concatenate([columns[place] for columns in parts]) if parts else 0
        return found

    @property
    def graphs(self) -> list[int]:
        """Return the handles of graphs, by index."""
        return [*self._graphs]

    def add_kernels(self, threads: Threads, rows: Rows, unsure: Collection[int]) -> None:
        """Add calls that have a function. Calls of the apis `unsure` were captured, or may have been."""
        good = (rows["function"] != 0) & (rows["result"] == 0)
        for api in unsure:
            own = good & (rows["api"] == api)
            good &= ~own
            self._add(-api, threads[own], rows[own], rows["function"][own] & ~GRAPH)
        if not good.all():
            threads, rows = threads[good], rows[good]
        self._add(0, threads, rows, rows["function"] & ~GRAPH)

    def add_graphs(self, api: int, threads: Threads, rows: Rows) -> None:
        """Add calls of a function that may launch graphs."""
        good = (rows["result"] == 0) & (rows["duration"] != 0)
        threads, rows = threads[good], rows[good]
        handles, which = np.unique(rows["object"], return_inverse=True)
        places = [self._graphs.setdefault(handle, len(self._graphs)) for handle in handles.tolist()]
        self._add(api, threads, rows, np.array(places, np.uint32)[which] | GRAPH)

    def _add(self, api: int, threads: Threads, rows: Rows, codes: Codes) -> None:
        self._totals[api] += len(codes)
        room = min(MOST - self._kept, len(codes))
        if room <= 0:
            return
        self._kept += room
        has = "stream" in (rows.dtype.names or ())
        streams = (
            ((rows["stream"] * HASH) >> np.uint64(48)).astype(np.uint16) if has else np.zeros(len(rows), np.uint16)
        )
        columns = rows["start"], codes, self._number(threads), streams, rows["duration"].astype(np.float32)
        self._parts.append((api, tuple(np.array(column[:room]) for column in columns)))  # no views: they keep all rows

    def _number(self, threads: Threads) -> npt.NDArray[np.uint16]:
        """Return the index of each thread. This is fast if consecutive rows have the same thread. Threads after the
        first 65535 share one index.
        """
        edges = np.flatnonzero(threads[1:] != threads[:-1]) + 1
        begins = np.concatenate(([0], edges))[: len(threads)]
        places = [self._threads.setdefault(id_, len(self._threads)) for id_ in threads[begins].tolist()]
        return np.repeat(np.minimum(places, 0xFFFF).astype(np.uint16), np.diff(begins, append=len(threads)))

    def _sort(self) -> Launches:
        """Return the launches in the order in which they began."""
        places = [place for place, (key, _) in enumerate(self._parts) if self._launches(key)]
        if self._sorted is None or self._sorted[0] != places:
            columns = [
                np.concatenate([self._parts[place][1][at] for place in places]) if places else np.zeros(0, type_)
                for at, type_ in enumerate((np.uint64, np.uint32, np.uint16, np.uint16))
            ]
            if (columns[0][1:] < columns[0][:-1]).any():
                order = np.argsort(columns[0], kind="stable")
                columns = [column[order] for column in columns]
            self._sorted = places, Launches(self._process, *columns)
        return self._sorted[1]

    def find_units(self) -> list[Unit]:
        """Return the units that repeat. The scope with the most launches comes first, and in each scope the iteration
        comes first.
        """
        whole = self._sort()
        if not len(whole.starts):
            return []
        units = list(_iter_units("all", whole.codes, lambda: whole))
        if units and units[0].role == WHOLE:
            if len(self._threads) > 1:
                units[0] = units[0]._replace(in_threads=count_in_threads(whole.codes, whole.threads, units[0].codes))
            return units
        found: list[Unit] = []
        threads = [*self._threads]
        for name, values in (("thread", whole.threads), ("stream", whole.streams)):
            groups = iter_groups(values) if (values != values[0]).any() else ()
            for value, mine in sorted(groups, key=lambda group: -len(group[1]))[:SCOPES]:
                scope = f"thread {threads[value]}" if name == "thread" else f"stream of {amount(len(mine), 'launch')}"
                found += _iter_units(scope, whole.codes[mine], partial(whole.take, mine))
        found = [unit for unit in found if unit.role != OTHER]
        return sorted(found, key=lambda unit: -unit.launches) if found else units


class Launches:
    """Columns of launches of a process, in the order in which they began."""

    def __init__(self, process: Process, *columns: npt.NDArray[Any]) -> None:
        self.process = process
        self.starts, self.codes, self.threads, self.streams = columns

    def take(self, places: npt.NDArray[np.intp]) -> Launches:
        """Return some of them."""
        return Launches(self.process, *(one[places] for one in (self.starts, self.codes, self.threads, self.streams)))

    @cached_property
    def off(self) -> Places:
        """Return how much unrecorded time precedes each launch, in the unit of time stamps."""
        return self.process.unrecorded_stamps.before(self.process.clock.since(self.starts))

    @cached_property
    def times(self) -> Places:
        """When each launch began, not counting unrecorded time, in the unit of time stamps."""
        found: Places = self.process.clock.since(self.starts) - self.off
        return found


def _iter_units(scope: str, codes: Codes, find: Callable[[], Launches]) -> Iterator[Unit]:
    """Yield the iteration and the units that repeat inside it, then other units of the same length. `find` returns the
    launches with these codes, if anything repeats.

    An iteration is a single unit that covers SHARE of the sequence. If it takes several units of one length to cover
    that much, there's no iteration, and they're yielded as others.
    """
    found = find_after(codes, lambda: _count_warm(codes))
    if not (found.unit or found.others):
        return
    launches = find()
    if found.unit:
        yield _make_unit(WHOLE, scope, launches, found.unit)
    for period in found.inside[: NESTED - 1]:
        yield _make_unit(INSIDE, scope, launches, split_units(codes, period)[0])
    for period in found.others[:OTHERS]:
        if period.covered >= LITTLE * len(codes):
            yield _make_unit(OTHER, scope, launches, period)


def _count_warm(codes: Codes) -> int:
    """Return how many launches it takes until each kernel that's launched repeatedly has been launched once."""
    firsts, counts = find_first_places(codes)
    return int(firsts[counts > 1].max(initial=-1)) + 1


def _count_before(starts: Stamps, stamp: int) -> int:
    """Return how many launches began before a time stamp, which may be larger than any."""
    return len(starts) if stamp >= 1 << 64 else int(np.searchsorted(starts, np.uint64(stamp)))


def _make_unit(role: str, scope: str, launches: Launches, period: Period) -> Unit:
    starts, codes, times, off = launches.starts, launches.codes, launches.times, launches.off
    period, length = begin_at_break(codes, times, period), period.length
    first, ends, count = int(period.begins[0]), int(period.ends[-1]), period.times
    took, whole = find_steps(times, period), find_steps(off, period) == 0
    took = took[whole] if whole.any() else took  # exclude units in which recording was off: launches may be missing
    time = float(np.median(took)) if len(took) else 0.0
    last = max(int(starts[ends - length]) + round(time), int(starts[-1]) + 1)  # includes the wait after the last unit
    end = int(starts[ends]) if ends < len(starts) else last
    unit = codes[first : first + length]
    return Unit(role, scope, len(codes), count * length, unit, count, first, int(starts[first]), end, time)


class CallTimes:
    """The times of calls, by function. If there are over a million calls, only one in `step` is kept."""

    KEPT = 1 << 20

    def __init__(self) -> None:
        self.step = 1
        self._parts: list[tuple[Stamps, Codes]] = []
        self._kept = 0

    def add(self, starts: Stamps, apis: Codes) -> None:
        """Add calls."""
        self._parts.append((starts[:: self.step].copy(), apis[:: self.step].copy()))
        self._kept += len(self._parts[-1][0])
        while self._kept > self.KEPT:
            starts, apis = self._columns()
            self._parts = [(starts[::2].copy(), apis[::2].copy())]
            self._kept, self.step = len(self._parts[0][0]), 2 * self.step

    def _columns(self) -> tuple[Stamps, Codes]:
        if len(self._parts) != 1:
            starts, apis = zip(*self._parts, strict=True) if self._parts else ([np.zeros(0, np.uint64)],) * 2
            self._parts = [(np.concatenate(starts), np.concatenate(apis).astype(np.uint32))]
        return self._parts[0]

    def starts(self, wanted: Collection[int]) -> Stamps:
        """Return when the kept calls of some functions began."""
        starts, apis = self._columns()
        return starts[np.isin(apis, [*wanted])]

    def count(self, begin: int, end: int) -> dict[int, int]:
        """Return the number of calls that began in an interval, by function."""
        starts, apis = self._columns()
        values, counts = np.unique(apis[(starts >= begin) & (starts < end)], return_counts=True)
        return dict(zip(values.tolist(), (counts * self.step).tolist(), strict=True))


class BusyTimes:
    """The times when the GPU was busy, if they were recorded. At most the first KEPT kernels and copies are stored."""

    KEPT = 1 << 20

    def __init__(self) -> None:
        self.total = 0
        self._parts: list[Any] = []
        self._kept = 0

    def add(self, rows: Rows) -> None:
        """Add `gpu_times`."""
        self.total += len(rows)
        rows = rows[: max(0, self.KEPT - self._kept)]
        self._kept += len(rows)
        columns = rows["begin"], rows["duration"], rows["function"], rows["api"]
        self._parts.append([np.array(column) for column in columns])  # no views: they would keep all rows

    def find_idle(self, clock: Clock, loaded: Rows, unrecorded: Unrecorded) -> IdleShare | None:
        """Return the idle time between the first and the last work, not counting `unrecorded` time. None if there are
        no GPU times.

        `loaded` has a row for each launch in which a kernel was loaded: `begin`, `function`, and `cut`, the ns spent
        loading.
        """
        if not self._kept:
            return None
        stamps, ticks, function, api = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        begin, took = clock.times(stamps), np.minimum(clock.durations(ticks), LIMIT).astype(np.int64)
        order = np.argsort(begin, kind="stable")
        if len(loaded):
            places = order[np.minimum(np.searchsorted(stamps, loaded["begin"], sorter=order), len(order) - 1)]
            good = (stamps[places] == loaded["begin"]) & (function[places] == loaded["function"])
            begin[places[good]] += loaded["cut"][good]
            took[places[good]] -= loaded["cut"][good]
            order = np.argsort(begin, kind="stable")
        begin, function, api = begin[order], function[order], api[order]
        ends = begin + took[order]
        end = np.maximum.accumulate(ends)
        gaps = np.maximum(begin[1:] - end[:-1], 0)
        unknown = unrecorded.within(end[:-1], begin[1:])
        gaps -= unknown
        total = int(end[-1]) - int(begin[0]) - int(unknown.sum())
        if not gaps.any():
            return IdleShare(total, 0, 0, 0, 0, (0, 0), (0, 0))
        whole = np.where(unknown > 0, 0, gaps)  # if recording was off in an idle time, its length isn't known
        at = int(whole.argmax())
        number = int((whole > 0).sum())
        last = int(ends[: at + 1].argmax())  # the last work to end may have begun before other work
        around = [(int(function[work]), int(api[work])) for work in (last, at + 1)]
        return IdleShare(total, int(gaps.sum()), number, int(whole[at]), int(end[at]), *around)


class IdleShare(NamedTuple):
    """The idle time of a GPU: `idle` ns of `total`. The `longest` of its `number` idle periods began at `at`, in ns of
    CLOCK_MONOTONIC.

    If recording was off during an idle period, only its recorded part counts in `idle` and `total`.
    """

    total: int
    idle: int
    number: int
    longest: int
    at: int
    after: tuple[int, int]  # the work that ended it: the function of its kernel, or 0, and the call that started it
    before: tuple[int, int]
