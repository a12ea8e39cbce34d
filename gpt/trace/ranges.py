"""The NVTX ranges of a process as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

NO_NAME = "(no name)"


def name_range(record: Mapping[str, Any]) -> str:
    """What tables and timelines call a range or a mark: its name, or that it has none that could be read."""
    name: str = record.get("name", "")
    return name if name.strip() else NO_NAME


@dataclass(frozen=True)
class Ranges:
    """Ranges in the order in which they began, those around others first; times in ns since the first process began.

    `names` are places in `texts`, pairs of a domain, None for the default one, and a name. `pushed` ranges lie within
    each other on their thread, the others anywhere. One that is `open` had not ended when the last record came, and
    has that for an end. `marks` are (name, time, thread).
    """

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    threads: npt.NDArray[np.uint64]
    names: npt.NDArray[np.int64]
    pushed: npt.NDArray[np.bool_]
    open: npt.NDArray[np.bool_]
    texts: list[tuple[str | None, str]]
    marks: list[tuple[int, int, int]]


def read_ranges(trace: TraceModel, process: Process, last: int) -> Ranges:
    """Those of a process whose last call ended at `last`."""
    numbers: dict[tuple[str | None, str], int] = {}
    ends = {record["id"]: record["end"] for record in process.ranges if record["kind"] == "range_end"}
    begun = [record for record in process.ranges if record["kind"] == "range"]

    def name(record: dict[str, Any]) -> int:
        return numbers.setdefault((record.get("domain"), name_range(record)), len(numbers))

    table = [
        (r["start"], ends.get(r.get("id"), 0), r["thread"], name(r), r["type"] == "push", r["type"] == "mark")
        for r in begun
    ]
    columns = np.array(table, np.uint64).reshape(-1, 6)
    starts, stops = (trace.times(process, columns[:, at].copy()) for at in (0, 1))
    mark, open_ = columns[:, 5] > 0, columns[:, 1] == 0
    bound = max([last, *starts.tolist(), *stops[~open_].tolist()])
    stops = np.maximum(np.where(open_, bound, stops), starts)
    order = np.lexsort((-stops, starts))
    marks = order[mark[order]]
    order = order[~mark[order]]
    threads, names = columns[:, 2], columns[:, 3].astype(np.int64)
    told = zip(names[marks].tolist(), starts[marks].tolist(), threads[marks].tolist(), strict=True)
    return Ranges(
        starts[order],
        stops[order],
        threads[order],
        names[order],
        columns[order, 4] > 0,
        open_[order],
        list(numbers),
        list(told),
    )
