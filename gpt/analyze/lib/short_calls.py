"""Store the calls of a process compactly, for analyses that read them several times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.numbers import Numbers
from gpt.analyze.lib.periods import Period, iter_units
from gpt.analyze.lib.rounds import MOST, count_in_threads
from gpt.analyze.lib.sequence import COPY, IN, LAUNCH, LOAD, OUT, WAIT, Acts, CallTable, IdleWaits, Whole, iter_calls
from gpt.trace.replays import count_copied
from gpt.trace.spill import BATCH, Array, Aside, Sorted, Tape, iter_windows

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.unrecorded import Unrecorded

CALL = [("start", "<i8"), ("end", "<i8"), ("bytes", "<f8"), ("acts", "<u2"), ("api", "<u4"), ("thread", "<u8")]
# A copy, and the time at which earlier work on the GPU had ended.
COPIED = [("call", "<i8"), ("thread", "<u8"), ("until", "<i8")]
WAITED = 1 << 15  # an act: the part of a copy that waited for earlier work
LAUNCHED = [("start", "<i8"), ("waits", "<u8"), ("thread", "<u8")]  # waits: the number of earlier calls with WAIT | OUT
LAST = 0xFFFF  # the largest number of a thread
STEPS = "steps"
BROKEN = "broken"  # marks units in which recording was off


class Codes:
    """The launches from one launch up to another as codes, one per kernel or graph, in the form that find_rounds
    needs.
    """

    def __init__(self, tape: Tape, first: int, end: int | None = None) -> None:
        self._tape, self._first, self._end = tape, first, len(tape) if end is None else min(end, len(tape))

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, places: slice) -> Array:
        start, stop, _ = places.indices(len(self))
        return self._tape[self._first + start : self._first + stop]


class Starts:
    """When launches began, from one launch on, in ns of recorded time."""

    def __init__(self, launches: Tape, first: int, unrecorded: Unrecorded) -> None:
        self._launches, self._first, self._unrecorded = launches, first, unrecorded

    def __getitem__(self, places: slice) -> Whole:
        start, stop, _ = places.indices(len(self._launches) - self._first)
        found: Whole = self._launches[self._first + start : self._first + stop]["start"]
        return found - self._unrecorded.before(found)


class Tapes:
    """The calls of a process that returned, oldest first, and its launches.

    All times are in ns: when the `first` call began, when the `last` one ended, when code was first loaded (`load`),
    and when the last launch ended (`launched`). `again` is about the kernel that was the last to appear of all those
    launched more than once (or of all kernels, if none was launched twice): when its first launch began, when that call
    returned, and how many launches preceded it. `copies_timed` says whether it's known how long copies waited for
    earlier work.
    """

    def __init__(self, trace: TraceModel, number: int) -> None:
        aside = Aside()
        self.unrecorded = trace.unrecorded(trace.processes[number])
        self.calls = Tape(aside, CALL)
        self.launches, self._codes = Tape(aside, LAUNCHED), Tape(aside, np.uint32)
        self.first, self.last, self.launched = 0, 0, 0
        self.load: int | None = None
        self.waited: int | None = None  # when the first wait for everything after the last launch ended
        self._copied: int | None = None  # when the first copy from the device after the last launch ended
        self._idle = IdleWaits()
        self._numbers: dict[int, int] = {}  # codes of kernels and graphs
        self._graph_numbers: set[int] = set()
        self._firsts: list[tuple[int, int, int]] = []  # for each kernel: launches before the first, its begin, its end
        self._counts: list[int] = []
        self._waits = 0
        self._graphs = trace.processes[number].graphs
        for calls in iter_calls(trace, number, "function", "bytes", "object", "stamp", "stream"):
            self._add(calls)
        copied = _find_copies(trace, number)
        self.copies_timed = copied is not None
        if copied is not None:
            self.calls = _split_copies(self.calls, copied)

    def _add(self, calls: CallTable) -> None:
        start, end = calls.start, calls.end
        self.last = int(end.max()) if not len(self.calls) else max(self.last, int(end.max()))
        self.first = self.first if len(self.calls) else int(start[0])
        loads = np.flatnonzero(calls.of(LOAD))
        if self.load is None and len(loads):
            self.load = int(start[loads[0]])
        rows = np.zeros(len(start), CALL)
        rows["start"], rows["end"], rows["bytes"], rows["acts"] = start, end, calls.rows["bytes"], calls.acts
        rows["thread"], rows["api"] = calls.rows["thread"], calls.rows["api"]
        launch = calls.of(LAUNCH)
        graphs = np.flatnonzero(launch & (calls.rows["function"] == 0))
        rows["bytes"][graphs] = count_copied(self._graphs, calls.rows[graphs], ("HtoD", "DtoH"))
        self.calls.append(rows)
        if launch.any():
            latest = int(end[launch].max())
            self.launched = max(self.launched, latest) if len(self.launches) else latest
            self.waited = self._copied = None
        idle, out = self._idle.find(calls), calls.of(OUT)
        for found in (idle, out):
            found[: np.flatnonzero(launch)[-1] if launch.any() else 0] = False
        if len(self.launches) + launch.any():
            self.waited = int(end[idle].min()) if self.waited is None and idle.any() else self.waited
            self._copied = int(end[out].min()) if self._copied is None and out.any() else self._copied
        self._add_launches(calls, launch)

    def _add_launches(self, calls: CallTable, launch: npt.NDArray[np.bool_]) -> None:
        start, end, waits = calls.start, calls.end, calls.start[calls.of(WAIT | OUT)]
        rows = np.zeros(int(launch.sum()), LAUNCHED)
        rows["start"] = start[launch]
        rows["waits"] = self._waits + np.searchsorted(waits, rows["start"])
        rows["thread"] = calls.rows["thread"][launch]
        self._waits += len(waits)
        own, ends = calls.rows[launch], end[launch]
        graphs = own["function"] == 0
        kernels = np.where(graphs, own["object"], own["function"]).astype(np.uint64) << np.uint64(1) | graphs
        known, places, which, counts = np.unique(kernels, True, True, True)
        codes = np.zeros(len(known), np.uint32)
        for at in np.argsort(places).tolist():
            code = codes[at] = self._numbers.setdefault(int(known[at]), len(self._counts))
            if code == len(self._counts):
                self._counts.append(0)
                place = int(places[at])
                self._firsts.append((len(self.launches) + place, int(rows["start"][place]), int(ends[place])))
            self._counts[code] += int(counts[at])
            if graphs[places[at]]:
                self._graph_numbers.add(code)
        self._codes.append(codes[which])
        self.launches.append(rows)

    @property
    def done(self) -> int | None:
        """Return when the program had finished waiting for its last launch, or None if it didn't wait."""
        return self._copied if self.waited is None else self.waited

    @property
    def begin(self) -> int:
        """Return when the first launch began."""
        return self._firsts[0][1]

    @property
    def latest(self) -> int:
        """Return when the last launch began."""
        return self.start(len(self.launches) - 1)

    @property
    def again(self) -> tuple[int, int, int]:
        """Find the kernel that appeared last among those launched more than once. Return when its first launch began,
        when that call returned, and the number of launches before it.
        """
        again = [first for first, count in zip(self._firsts, self._counts, strict=True) if count > 1]
        before, start, end = max(again or self._firsts)
        return start, end, before

    def start(self, launch: int) -> int:
        """Return when this launch began."""
        return int(self.launches[launch : launch + 1]["start"][0])

    def find_launch(self, time: int) -> int:
        """Return the number of launches that began before a time."""
        low, high = 0, len(self.launches)
        while low < high:
            middle = (low + high) // 2
            if self.start(middle) < time:
                low = middle + 1
            else:
                high = middle
        return low

    def codes(self, first: int, end: int | None = None) -> Codes:
        """Return the codes of the launches from `first` up to `end`."""
        return Codes(self._codes, first, end)

    def count_graphs(self, first: int, end: int) -> int:
        """Return the number of graphs among the launches from `first` up to `end`."""
        return int(np.isin(self._codes[first:end], [*self._graph_numbers]).sum())

    def count_in_threads(self, period: Period, first: int) -> int:
        """Return how often a period's unit occurs, from launch `first` on, if the launches of each thread are examined
        separately.

        At most MOST launches are examined. Threads after the first LAST share a number, which saves memory.
        """
        begin, codes = int(period.begins[0]), self._codes[first : first + MOST]
        threads, known = np.zeros(len(codes), np.uint16), dict[int, int]()
        for at in range(0, len(codes), BATCH):
            rows = self.launches[first + at : first + min(at + BATCH, MOST)]
            found, which = np.unique(rows["thread"], return_inverse=True)
            numbers = [min(known.setdefault(thread, len(known)), LAST) for thread in found.tolist()]
            threads[at : at + BATCH] = np.array(numbers, np.uint16)[which]
        return count_in_threads(codes, threads, self._codes[begin : begin + period.length])

    def starts(self, first: int) -> Starts:
        """Return when launches began, from launch `first` on."""
        return Starts(self.launches, first, self.unrecorded)

    def measure(self, period: Period) -> tuple[float, float]:
        """Return the median duration of the repeated units in ns, and the share of units that the program waited for
        before it began the next one.

        A unit lasts until the next launch begins. If there's no next launch, it lasts until the program has waited for
        it. Units in which recording was off may lack launches, so they only count if there are no others.
        """
        took, waited, count = Numbers(), 0, 0
        counts = (period.ends - period.begins) // period.length
        for _, places in iter_units(period.begins, counts, period.length):
            ends = places + period.length
            last = ends == len(self.launches)
            rows, next_ = self.launches.take(places), self.launches.take(np.minimum(ends, len(self.launches) - 1))
            until: Whole = np.where(last, self.done or 0, next_["start"])
            off = self.unrecorded.within(rows["start"], until)
            steps: Whole = np.maximum(until - rows["start"] - off, 0)
            known = ~last | (self.done is not None)
            took.add(STEPS, steps[known & (off == 0)])
            took.add(BROKEN, steps[known & (off > 0)])
            before, after = rows["waits"], next_["waits"]
            waited += int((after > before)[~last].sum())
            count += int((~last).sum())
        return took.median(STEPS if took.count(STEPS) else BROKEN), waited / (count or 1)


def iter_scan(tapes: Tapes) -> Iterator[tuple[Whole, Whole, Array, Array]]:
    """Yield begins, ends, bytes and acts of all calls, in batches."""
    for rows in tapes.calls:
        yield rows["start"], rows["end"], rows["bytes"], rows["acts"]


def _find_copies(trace: TraceModel, number: int) -> Sorted | None:
    """Return the copies of a process that have GPU times, and for each copy, the time until which the GPU was busy with
    earlier work. Return None if there are no such copies.
    """
    places = [place for place in trace.gpus() if place[0] == number]
    found, reach, known = Sorted(Aside(), COPIED, "call"), np.iinfo(np.int64).min, False
    acts = Acts(trace.processes[number])
    for rows in trace.iter_gpu_times(places) if places else ():
        ends = rows["begin"] + rows["duration"].astype(np.int64)
        busy = np.maximum.accumulate(np.concatenate(([reach], ends)))
        reach = int(busy[-1])
        copies = np.flatnonzero((acts.of_ids(rows["api"]) & COPY) != 0)
        part = np.zeros(len(copies), COPIED)
        call, thread, begin, before = rows["call"], rows["thread"], rows["begin"], busy[:-1]
        part["call"], part["thread"] = call[copies], thread[copies]
        part["until"] = np.minimum(before[copies], begin[copies])
        found.add(part)
        known = known or len(copies) > 0
    return found if known else None


def _split_copies(calls: Tape, copied: Sorted) -> Tape:
    """Return the calls. Each copy that waited is split into two: the wait, marked as WAITED, and the copy itself."""
    made = Tape(Aside(), CALL)
    streams = (iter(calls), calls.dtype, "start"), (iter(copied), copied.dtype, "call")
    for rows, copies in iter_windows(*streams):
        at = np.searchsorted(rows["start"], copies["call"])
        while True:  # calls of other threads may begin in the same nanosecond
            here = np.minimum(at, len(rows) - 1)
            other = (at < len(rows)) & (rows["start"][here] == copies["call"]) if len(rows) else np.zeros(len(at), bool)
            if len(rows):
                thread, own = rows["thread"][here], copies["thread"]
                other &= thread != own
            if not other.any():
                break
            at = at + other
        good = at < len(rows)
        good[good] = rows["start"][at[good]] == copies["call"][good]
        at, until = at[good], copies["until"][good]
        until = np.minimum(until, rows["end"][at])
        waited = until > rows["start"][at]
        at, until = at[waited], until[waited]
        waits = rows[at]
        waits["end"], waits["bytes"], waits["acts"] = until, 0, WAIT | WAITED
        left = rows.copy()
        left["start"][at] = until
        both = np.concatenate((left, waits))
        made.append(both[np.argsort(both["start"], kind="stable")])
    return made


def find_loaded(tapes: Tapes, begin: int, little: float, least: int) -> tuple[int, int] | None:
    """Return when the program's data was copied to the device: from the begin of the first copy before the time `begin`
    to the end of the last one. The final copies don't count if, together, they have at most the share `little` of all
    bytes.

    Return None if fewer than `least` bytes were copied.
    """
    first, total = None, 0.0
    for start, _, sizes, _ in _iter_early(tapes, begin):
        first = int(start[0]) if first is None and len(start) else first
        total += float(sizes.sum())
    before, last = 0.0, None
    for _, end, sizes, _ in _iter_early(tapes, begin):
        left = total - before - np.concatenate(([0.0], np.cumsum(sizes)))[:-1]  # bytes in each copy and all later ones
        large = np.flatnonzero(left > little * total)
        last = int(end[large[-1]]) if len(large) else last
        before += float(sizes.sum())
    return None if first is None or last is None or total < least else (first, last)


def _iter_early(tapes: Tapes, begin: int) -> Iterator[tuple[Whole, Whole, Array, Array]]:
    for start, end, sizes, acts in iter_scan(tapes):
        early = ((acts & IN) != 0) & (end <= begin)
        yield start[early], end[early], sizes[early], acts[early]
        if start[-1] > begin:
            return
