"""Sum up what the calls of a process did during its NVTX ranges, however many calls and ranges there are.

The sum for a range is a running sum at its end minus the running sum at its begin. So the begins and ends of all ranges
(their *edges*) are sorted by time, and read side by side with the calls, which are added up. Then each range gets the
sums at its two edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.sequence import COPY, IOCTL, LAUNCH, Acts, Groups
from gpt.trace.ranges import RANGE
from gpt.trace.replays import count_copied
from gpt.trace.spill import Array, Aside, Sorted, Tape, iter_windows

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

EDGE = [("time", "<i8"), ("thread", "<u8"), ("range", "<u8"), ("end", "?"), ("pushed", "?")]
FOUND = [("range", "<u8"), ("end", "?"), ("sums", "<f8", 4)]
WORK = [("time", "<i8"), ("thread", "<u8"), ("values", "<f8", 3)]
TIME = [("time", "<i8"), ("thread", "<u8"), ("values", "<f8", 1)]
ALL = None  # threads


class Within(NamedTuple):
    """Some ranges, with the running sums at the begin and the end of each.

    The four sums are the launches, the ns on the GPU, the bytes copied, and the calls. For ranges that a thread pushed,
    they count only that thread; for other ranges, all threads.
    """

    ranges: Array
    begins: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]


class Inside:
    """The ranges of a process. After reading them, `launches` is the number of its launches."""

    def __init__(self, trace: TraceModel, number: int) -> None:
        self.launches = 0
        self._trace, self._number = trace, number
        self._process = trace.processes[number]

    def iter_within(self) -> Iterator[Within]:
        """Yield all ranges, sorted by start, with their running sums."""
        kept, aside = self._trace.ranges(self._number), Aside()
        ranges, edges = Tape(aside, RANGE), Sorted(aside, EDGE, "time")
        for rows in self._trace.iter_ranges(self._number, self._find_last() if kept.has_open() else 0):
            for end in (False, True):
                edges.add(_make_edges(rows, len(ranges), end))
            ranges.append(rows)
        found = Sorted(aside, FOUND, "range")
        for rows in self._add_up(edges):
            found.add(rows)
        at = 0
        for rows in found:
            pairs = rows[np.lexsort((rows["end"], rows["range"]))]["sums"]
            count = len(pairs) // 2
            yield Within(ranges[at : at + count], pairs[::2].T, pairs[1::2].T)
            at += count

    def _find_last(self) -> int:
        """Return when the last call ended."""
        chunks = self._trace.iter_calls(process=self._number)
        return max((int((rows["start"] + rows["duration"].astype(np.int64)).max()) for rows in chunks), default=0)

    def _add_up(self, edges: Sorted) -> Iterator[Array]:
        """Yield the running sums at each edge, as rows of FOUND."""
        times = Sorted(Aside(), TIME, "time")
        for rows in self._trace.iter_gpu_times([place for place in self._trace.gpus() if place[0] == self._number]):
            part = np.zeros(len(rows), TIME)
            part["time"], part["thread"] = rows["call"], rows["thread"]
            part["values"][:, 0] = rows["duration"]
            times.add(part)
        calls, gpu = _Sums(3), _Sums(1)
        streams = (iter(edges), EDGE, "time"), (self._iter_work(), WORK, "time"), (iter(times), TIME, "time")
        for own, work, time in iter_windows(*streams):
            found = np.zeros(len(own), FOUND)
            found["range"], found["end"] = own["range"], own["end"]
            found["sums"][:, (0, 2, 3)] = calls.find(own, work)
            found["sums"][:, 1:2] = gpu.find(own, time)
            yield found

    def _iter_work(self) -> Iterator[Array]:
        """Yield the values of each driver call: its launches, the bytes that it copied, and 1 for the call itself."""
        acts = Acts(self._process)
        for calls in self._trace.iter_calls("bytes", "object", "stamp", process=self._number):
            does = acts.of(calls)
            if (does & IOCTL).any():
                driver = (does & IOCTL) == 0
                calls, does = calls[driver], does[driver]
            if not len(calls):
                continue
            rows = np.ones(len(calls), WORK)
            rows["time"], rows["thread"] = calls["start"], calls["thread"]
            launch = (does & LAUNCH) != 0
            copied = ((does & COPY) != 0) & (calls["result"] == 0)
            rows["values"][:, 0], rows["values"][:, 1] = launch, np.where(copied, calls["bytes"].astype(float), 0)
            graphs = np.flatnonzero(launch & (calls["object"] != 0))
            rows["values"][graphs, 1] = count_copied(self._process.graphs, calls[graphs])
            self.launches += int(launch.sum())
            yield rows


def _make_edges(ranges: Array, first: int, end: bool) -> Array:
    edges = np.zeros(len(ranges), EDGE)
    edges["time"], edges["end"] = ranges["end" if end else "begin"], end
    edges["thread"], edges["pushed"] = ranges["thread"], ranges["pushed"]
    edges["range"] = np.arange(first, first + len(ranges))
    return edges


class _Sums:
    """Running sums, for each thread and for all threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._before: dict[int | None, Any] = {ALL: np.zeros(count)}
        self._rows, self._edges = Groups(), Groups()

    def find(self, edges: Array, rows: Array) -> npt.NDArray[np.float64]:
        """Return the sum of all rows before each edge, and add the rows to the sums.

        Each call of this method gets the edges and the rows of one window of time. Windows are passed in order.
        """
        found = np.zeros((len(edges), self._count))
        threads = dict(self._rows.iter(rows["thread"]))
        pushed = np.flatnonzero(edges["pushed"])
        scopes: list[tuple[int | None, Any]] = [(ALL, np.flatnonzero(~edges["pushed"]))]
        scopes += [(thread, pushed[at]) for thread, at in self._edges.iter(edges["thread"][pushed])]
        for scope, mine in scopes:
            if len(mine):
                before = self._before.get(scope, 0.0)
                own = rows if scope is ALL else rows[threads[scope]] if scope in threads else rows[:0]
                sums = np.concatenate((np.zeros((1, self._count)), np.cumsum(own["values"], axis=0)))
                times, until = own["time"], edges["time"][mine]
                found[mine] = before + sums[np.searchsorted(times, until)]
        for scope, values in [(ALL, rows["values"]), *((one, rows["values"][at]) for one, at in threads.items())]:
            self._before[scope] = self._before.get(scope, 0.0) + values.sum(axis=0)
        return found
