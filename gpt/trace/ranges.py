"""Store the NVTX ranges of a process as they arrive, and read them as arrays, sorted by start.

The end of a range is a separate record, which may be anywhere in the trace. So starts and ends are spilled separately,
sorted by id, and matched when they're read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt.trace.calls_store import times_of
from gpt.trace.spill import Array, Aside, Sorted, iter_windows

if TYPE_CHECKING:
    from gpt.trace.process import Process

NO_NAME = "(no name)"
MANY = 1 << 13  # records that are kept as Python objects before they're spilled
BEGUN = [("id", "<u8"), ("begin", "<u8"), ("thread", "<u8"), ("place", "<u8"), ("name", "<u4"), ("pushed", "?"),
         ("ends", "?"), ("chosen", "?")]  # fmt: skip
END = [("id", "<u8"), ("end", "<u8"), ("place", "<u8")]
MARK = [("at", "<u8"), ("thread", "<u8"), ("name", "<u4")]
RANGE = [("begin", "<i8"), ("end", "<i8"), ("thread", "<u8"), ("place", "<u8"), ("name", "<u4"), ("pushed", "?"),
         ("open", "?"), ("chosen", "?")]  # fmt: skip


def name_range(record: Mapping[str, Any]) -> str:
    """Return the label of a range or a mark for tables and timelines: its name, or NO_NAME if it has none or a blank
    one.
    """
    name: str = record.get("name", "")
    return name if name.strip() else NO_NAME


class KeptRanges:
    """The ranges of a process, from `range` and `range_end` records.

    `texts` are pairs of a domain (None for the default domain) and a name, and `chosen_texts` is what the user's
    filters leave of them. For each of `texts`, `marks` has the number of marks, and the time stamps of the first and
    the last one.
    """

    def __init__(self) -> None:
        self.texts: list[tuple[str | None, str]] = []
        self.chosen_texts: set[tuple[str | None, str]] = set()
        self.marks: dict[int, tuple[int, int, int]] = {}
        self._numbers: dict[tuple[str | None, str], int] = {}
        aside = Aside()
        self._ranges, self._ends = Sorted(aside, BEGUN, "id"), Sorted(aside, END, "id")
        self._moments = Sorted(aside, MARK, "at")
        self._begun: list[tuple[Any, ...]] = []
        self._ended: list[tuple[Any, ...]] = []
        self._marked: list[tuple[Any, ...]] = []
        self._place = 0  # counts records as they arrive

    def add(self, found: Iterable[Mapping[str, Any]], chosen: bool = True) -> None:
        """Add these records. Of ranges that aren't `chosen`, marks are left out. Raises OutputError."""
        for record in found:
            self._place += 1
            if record["kind"] == "range_end":
                self._ended.append((record["id"], record["end"], self._place))
                continue
            if not chosen and record["type"] == "mark":
                continue
            text = record.get("domain"), name_range(record)
            if chosen:
                self.chosen_texts.add(text)
            name = self._numbers.setdefault(text, len(self.texts))
            if name == len(self.texts):
                self.texts.append(text)
            start = record["start"]
            if record["type"] == "mark":
                count, first, last = self.marks.get(name, (0, start, start))
                self.marks[name] = count + 1, min(first, start), max(last, start)
                self._marked.append((start, record["thread"], name))
            else:
                pushed = record["type"] == "push"
                where = record.get("id", 0), start, record["thread"], self._place
                self._begun.append((*where, name, pushed, "id" in record, chosen))
        if len(self._begun) + len(self._ended) + len(self._marked) >= MANY:
            self._put_aside()

    def _put_aside(self) -> None:
        self._ranges.add(np.array(self._begun, BEGUN))
        self._ends.add(np.array(self._ended, END))
        self._moments.add(np.array(self._marked, MARK))
        self._begun, self._ended, self._marked = [], [], []

    def iter_marks(self) -> Iterator[Array]:
        """Yield the marks as rows of MARK, sorted by time stamp. `name` is an index into `texts`."""
        self._put_aside()
        return iter(self._moments)

    def iter_ranges(self, process: Process, last: int, every: bool = False) -> Iterator[Array]:
        """Yield the ranges as rows of RANGE, sorted by start, with outer ranges before inner ones. Times are in ns.

        `name` is an index into `texts`, and `place` is the position in the trace. Ranges that were `pushed` are nested
        within their thread; others may overlap in any way. An `open` range never ended; its end is the time of the last
        record or call. Ranges that begin in the same nanosecond are in the same chunk. With `every`, ranges that the
        user's filters leave out are included.
        """
        self._put_aside()
        joined = Sorted(Aside(), RANGE, "begin")
        marks = np.array([mark[2] for mark in self.marks.values()], np.uint64)
        bound = int(times_of(process, marks).max(initial=last))
        for begun, ended in iter_windows((iter(self._ranges), BEGUN, "id"), (iter(self._ends), END, "id")):
            rows = _join_ends(process, begun, ended)
            bound = max(bound, int(rows["begin"].max(initial=last)), int(rows["end"][~rows["open"]].max(initial=last)))
            joined.add(rows)
        for chunk in joined:
            rows = chunk[chunk["chosen"] | every]
            open_, begin, end = rows["open"], rows["begin"], rows["end"]
            rows["end"] = np.maximum(np.where(open_, bound, end), begin)
            yield rows[np.lexsort((rows["place"], -rows["end"], rows["begin"]))]

    def has_open(self) -> bool:
        """Return whether any range has no end."""
        self._put_aside()
        windows = iter_windows((iter(self._ranges), BEGUN, "id"), (iter(self._ends), END, "id"))
        return any((_find_ends(begun, ended) == 0).any() for begun, ended in windows)


def _find_ends(begun: Array, ended: Array) -> Array:
    """Return the time stamp at which each range ended, or 0 if it didn't. If a range has several ends, the last one
    counts.
    """
    if not len(ended):
        return np.zeros(len(begun), np.uint64)
    ended = ended[np.lexsort((ended["place"], ended["id"]))]
    at = np.searchsorted(ended["id"], begun["id"], side="right") - 1
    same = (ended["id"][at] == begun["id"]) & begun["ends"]
    found: Array = np.where(same, ended["end"][at], 0)
    return found


def _join_ends(process: Process, begun: Array, ended: Array) -> Array:
    rows, stamps = np.zeros(len(begun), RANGE), _find_ends(begun, ended)
    rows["begin"], rows["end"] = times_of(process, begun["begin"]), times_of(process, stamps)
    rows["open"] = stamps == 0
    for name in ("thread", "place", "name", "pushed", "chosen"):
        rows[name] = begun[name]
    return rows
