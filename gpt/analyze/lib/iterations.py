"""Find the iterations of a process: how many launches make up one, how many there are, where they begin, and how long
they take.

The first MOST launches of a process are kept, 20 bytes each: the time, the kernel or graph, the thread, the stream, and
the duration of the call. The launches of all threads form one sequence in time order. If no unit covers SHARE of it,
for instance because threads interleave randomly, each thread and each stream is searched on its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
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
from gpt.trace.rows import find_values, iter_groups

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
        self._graphs: dict[int, int] = {}  # index of each graph, by handle
        self._threads: dict[int, int] = {}  # index of each thread, by id

    def first(self) -> int | None:
        """Return the time stamp of the first launch, or None."""
        starts = [int(columns[0].min()) for _, columns in self._named() if len(columns[0])]
        return min(starts, default=None)

    def starts(self) -> Stamps:
        """Return the time stamps of all launches, in order."""
        return np.sort(np.concatenate([np.zeros(0, np.uint64), *(starts for _, (starts, *_) in self._named())]))

    def count(self, begin: int, end: int) -> int:
        """Return the number of launches that began in an interval."""
        return sum(int(((starts >= begin) & (starts < end)).sum()) for _, (starts, *_) in self._named())

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

    def add_kernels(self, threads: Threads, rows: Rows) -> None:
        """Add calls that have a function."""
        good = (rows["function"] != 0) & (rows["result"] == 0)
        known = self._process.apis
        for api in find_values(rows["api"]):
            if api not in known or known[api].type == CAPTURED:
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

    def find_units(self) -> list[Unit]:
        """Return the units that repeat. The scope with the most launches comes first, and in each scope the iteration
        comes first.
        """
        parts = [columns for _, columns in self._named()]
        if not parts:
            return []

        def column(at: int) -> npt.NDArray[Any]:
            return np.concatenate([columns[at] for columns in parts])

        starts, order = column(0), None
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            starts = starts[order]
        codes = column(1) if order is None else column(1)[order]
        unrecorded = self._process.unrecorded_stamps
        times = self._process.clock.since(starts)
        off = unrecorded.before(times)
        times = times - off
        units = list(_iter_units("all", starts, times, off, codes))
        if units and units[0].role == WHOLE:
            if len(self._threads) > 1:
                who = column(2) if order is None else column(2)[order]
                units[0] = units[0]._replace(in_threads=count_in_threads(codes, who, units[0].codes))
            return units
        found: list[Unit] = []
        threads = [*self._threads]
        for name, at in (("thread", 2), ("stream", 3)):
            values = column(at) if order is None else column(at)[order]
            groups = sorted(iter_groups(values), key=lambda group: -len(group[1]))
            for value, mine in groups[:SCOPES] if len(groups) > 1 else ():
                scope = f"thread {threads[value]}" if name == "thread" else f"stream of {amount(len(mine), 'launch')}"
                found += _iter_units(scope, starts[mine], times[mine], off[mine], codes[mine])
        found = [unit for unit in found if unit.role != OTHER]
        return sorted(found, key=lambda unit: -unit.launches) if found else units


def _iter_units(scope: str, starts: Stamps, times: Places, off: Places, codes: Codes) -> Iterator[Unit]:
    """Yield the iteration and the units that repeat inside it, then other units of the same length.

    `times` exclude unrecorded time; `off` says how much unrecorded time precedes each launch. An iteration is a single
    unit that covers SHARE of the sequence. If it takes several units of one length to cover that much, there's no
    iteration, and they're yielded as others.
    """
    found = find_after(codes, lambda: _count_warm(codes))
    if found.unit:
        yield _make_unit(WHOLE, scope, starts, times, off, codes, found.unit)
    for period in found.inside[: NESTED - 1]:
        yield _make_unit(INSIDE, scope, starts, times, off, codes, split_units(codes, period)[0])
    for period in found.others[:OTHERS]:
        if period.covered >= LITTLE * len(codes):
            yield _make_unit(OTHER, scope, starts, times, off, codes, period)


def _count_warm(codes: Codes) -> int:
    """Return how many launches it takes until each kernel that's launched repeatedly has been launched once."""
    _, firsts, counts = np.unique(codes, True, return_counts=True)
    return int(firsts[counts > 1].max(initial=-1)) + 1


def _make_unit(role: str, scope: str, starts: Stamps, times: Places, off: Places, codes: Codes, period: Period) -> Unit:
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

    def add(self, rows: Rows) -> None:
        """Add calls."""
        some = rows[:: self.step]
        self._parts.append((np.array(some["start"]), np.array(some["api"])))
        self._kept += len(some)
        while self._kept > self.KEPT:
            starts, apis = self._columns()
            self._parts = [(starts[::2].copy(), apis[::2].copy())]
            self._kept, self.step = len(self._parts[0][0]), 2 * self.step

    def _columns(self) -> tuple[Stamps, Codes]:
        starts, apis = zip(*self._parts, strict=True) if self._parts else ([np.zeros(0, np.uint64)],) * 2
        return np.concatenate(starts), np.concatenate(apis).astype(np.uint32)

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
