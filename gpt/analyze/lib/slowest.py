"""Find the slowest calls: when and where each was made, what it launched or copied, and the NVTX ranges around it.

For each process, as many calls are stored as the user asks for. NVTX ranges are spilled to disk, and the ones around
these calls are looked up at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.answer import Column, Record, make_answer
from gpt.analyze.lib.locations import SINCE, WHO, tell_apart
from gpt.trace.calls_store import times_of
from gpt.trace.ranges import KeptRanges

if TYPE_CHECKING:
    from gpt.trace.machines import Header
    from gpt.trace.process import Process
    from gpt.trace.rows import Rows, Threads

KEPT = [("took", "<u8"), ("start", "<u8"), ("thread", "<u8"), ("api", "<u4"), ("function", "<u4"), ("bytes", "<u8"),
        ("result", "<i4")]  # fmt: skip
MOST = 1000  # maximum number of calls
COLUMNS = (
    Column("name", "text", title="slowest call"),
    Column("took", "u64", "ns"),
    Column("start", "u64", "ns", "at"),
    Column("kernel", "text?", "kernel", shown="any"),
    Column("bytes", "u64?", "bytes", shown="any"),
    *WHO,
    Column("thread", "u64", "id"),
    Column("ranges", "text?", title="in range", shown="any"),
    Column("result", "u64", "id", shown="any"),
)


class SlowCall(NamedTuple):
    """A slow call, which began `start` ns after the epoch. `ranges` are the names of the pushed NVTX ranges around it,
    outermost first.
    """

    took: float
    start: int
    header: Header
    thread: int
    name: str
    kernel: str | None
    bytes: int
    ranges: tuple[str, ...]
    result: int


class SlowestCalls:
    """The slowest calls of a process, at most `number` of them. Ioctls aren't listed, because they're part of calls."""

    def __init__(self, process: Process, number: int) -> None:
        self._process, self._number = process, number
        self._kept = np.zeros(0, KEPT)
        self._ranges = KeptRanges()

    def add(self, threads: Threads, rows: Rows) -> None:
        """Add calls."""
        took = np.where(rows["api"] <= self._process.last_api, rows["duration"], 0)
        full = len(self._kept) == self._number
        places = np.flatnonzero(took > (self._kept["took"][-1] if full else 0))
        if not len(places):
            return
        if len(places) > self._number:
            least = np.partition(took[places], len(places) - self._number)[-self._number]
            places = places[took[places] >= least]
        found = np.zeros(len(places), KEPT)
        for name in found.dtype.names or ():
            if name in (rows.dtype.names or ()):
                found[name] = rows[name][places]
        found["took"], found["thread"] = took[places], threads[places]
        both = np.concatenate((self._kept, found))
        self._kept = both[np.lexsort((both["start"], np.iinfo(np.uint64).max - both["took"]))[: self._number]]

    def take_ranges(self) -> None:
        """Take the NVTX ranges that the process has collected. Raises OutputError."""
        self._ranges.add(self._process.take_ranges())
        self._ranges.add(self._process.take_other_ranges(), chosen=False)

    def close(self, last: int) -> list[SlowCall]:
        """Return the calls. `last` is the end of the process's last call, in ns of CLOCK_MONOTONIC."""
        process, kept = self._process, self._kept
        kernels, clock = process.kernels(), process.clock
        around = self._find_ranges(times_of(process, kept["start"]), last)
        took, starts = clock.durations(kept["took"]).tolist(), clock.times(kept["start"]).tolist()
        columns = [kept[name].tolist() for name in ("thread", "api", "function", "bytes", "result")]
        return [
            SlowCall(ns, clock.realtime(start), process.header, thread, process.api(api).title,
                     kernels.get(function), size, ranges, result)
            for ns, start, thread, api, function, size, result, ranges in zip(
                took, starts, *columns, around, strict=True
            )
        ]  # fmt: skip

    def _find_ranges(self, starts: npt.NDArray[np.int64], last: int) -> list[tuple[str, ...]]:
        """Return, for each call, the names of the pushed ranges that were open in its thread when it began."""
        process, found = self._process, [list[str]() for _ in starts]
        threads, texts = self._kept["thread"], self._ranges.texts
        for rows in self._ranges.iter_ranges(process, last + process.machines.offset(process.header), every=True):
            pushed = rows[rows["pushed"]]
            for at, (start, thread) in enumerate(zip(starts.tolist(), threads.tolist(), strict=True)):
                inside = (pushed["thread"] == thread) & (pushed["begin"] <= start) & (pushed["end"] > start)
                for domain, text in (texts[name] for name in pushed["name"][inside].tolist()):
                    found[at].append(f"{domain}: {text}" if domain else text)
        return [tuple(names) for names in found]


def keep_slowest(calls: Iterable[SlowCall], number: int) -> list[SlowCall]:
    """Return the slowest of these calls, the slowest first."""
    return sorted(calls, key=lambda call: (-call.took, call.start))[:number]


def answer_slowest(calls: list[SlowCall], headers: list[Header]) -> Record:
    """Return the table of calls; `headers` are the headers of all processes."""
    first = min(header["realtime"] for header in headers)
    who = {id(header): one for header, one in zip(headers, tell_apart(headers), strict=True)}
    rows: list[tuple[Any, ...]] = [
        (call.name, call.took, max(0, call.start - first), call.kernel, call.bytes or None, *who[id(call.header)],
         call.thread, "/".join(call.ranges) or None, call.result & 0xFFFFFFFF)
        for call in calls
    ]  # fmt: skip
    return make_answer("slowest", COLUMNS, rows, [f"'at' {SINCE}"])
