"""Export the module and the NVTX ranges in which each call was made.

The records of a range may come after the calls in it, so calls wait in a temporary file until their process is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpt.export import schema
from gpt.trace.calls_store import times_of
from gpt.trace.modules import describe_path
from gpt.trace.open_ranges import NO_PATH, OpenRanges
from gpt.trace.ranges import KeptRanges
from gpt.trace.spill import Aside, Sorted, Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from gpt.export.correlate import Keys
    from gpt.export.files import TableFile
    from gpt.export.strings import Strings
    from gpt.trace.process import Process
    from gpt.trace.spill import Array

CALLED = [("key", "<i8"), ("stamp", "<u8"), ("thread", "<u8"), ("api", "<u4")]
MOMENT = [("time", "<i8"), ("key", "<i8"), ("thread", "<u8")]
TYPES = ("kernel", "memcpy", "memset", "graph", "memory")  # types of calls that get a row


class CallRanges:
    """The calls and ranges of a process."""

    def __init__(self, process: Process, global_tids: Callable[[Array], Array]) -> None:
        self._process, self._global_tids = process, global_tids
        self._kept = KeptRanges()
        self._calls = Tape(Aside(), CALLED)
        self._last = 0  # time stamp of the end of the last call

    def add_ranges(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Add `range` and `range_end` records."""
        self._kept.add(found)

    def add_calls(self, keys: Keys, threads: Array, rows: Array) -> None:
        """Add calls, with their numbers."""
        found = np.zeros(len(rows), CALLED)
        found["key"], found["thread"], found["stamp"], found["api"] = keys, threads, rows["start"], rows["api"]
        self._calls.append(found[np.isin(rows["api"], self._list_others(), invert=True)])
        room = np.iinfo(np.uint64).max - rows["start"]
        self._last = max(self._last, int((rows["start"] + np.minimum(rows["duration"], room)).max(initial=0)))

    def _list_others(self) -> list[int]:
        """Return the functions that are known to be of other types."""
        return [id_ for id_, api in self._process.apis.items() if api.type not in TYPES]

    def write(self, tables: TableFile, strings: Strings) -> None:
        """Write a row for each call of one of the TYPES that was made inside a range."""
        texts = self._kept.texts
        if not texts:
            return
        moments, others = Sorted(Aside(), MOMENT, "time"), self._list_others()
        for rows in self._calls:
            rows = rows[np.isin(rows["api"], others, invert=True)]
            found = np.zeros(len(rows), MOMENT)
            found["time"] = times_of(self._process, rows["stamp"])
            found["key"], found["thread"] = rows["key"], rows["thread"]
            moments.add(found)
        ranges = self._make_ranges()
        for [(part, paths)] in ranges.iter((iter(moments), MOMENT)):
            inside = paths != NO_PATH
            columns: dict[str, Any] = {"correlationId": part["key"][inside]}
            columns["globalTid"] = self._global_tids(part["thread"][inside])
            columns |= self._name(ranges, paths[inside], strings)
            tables.write(schema.CALL_RANGES, int(inside.sum()), columns)

    def find(self, threads: Array, stamps: Array, strings: Strings) -> dict[str, Any]:
        """Return the columns with the module and the ranges in which these calls were made."""
        rows = np.zeros(len(threads), MOMENT)
        rows["time"], rows["thread"], rows["key"] = times_of(self._process, stamps), threads, np.arange(len(rows))
        found, ranges = np.zeros(len(rows), np.int64), self._make_ranges()
        for [(part, paths)] in ranges.iter((iter([rows[np.argsort(rows["time"], kind="stable")]]), MOMENT)):
            found[part["key"]] = paths
        return self._name(ranges, found, strings)

    def _make_ranges(self) -> OpenRanges:
        last = int(times_of(self._process, np.array([self._last], np.uint64))[0])
        return OpenRanges(self._kept, self._process, last, range(len(self._kept.texts)))

    def _name(self, ranges: OpenRanges, paths: Array, strings: Strings) -> dict[str, Any]:
        known, which = np.unique(paths, return_inverse=True)
        told = [describe_path(ranges.paths[path], self._kept.texts) for path in known.tolist()]
        columns = {}
        for at, name in enumerate(("layer", "range")):
            numbers = np.array([strings.number(one[at] or "") for one in told], np.int64)
            columns[name] = np.ma.MaskedArray(numbers, numbers == 0)[which]
        return columns
