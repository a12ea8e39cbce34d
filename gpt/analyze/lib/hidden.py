"""Measure for how long collectives run while other kernels of the same GPU run, too: that time is hidden, and the rest
is exposed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpt.trace.model import TraceModel

Array = npt.NDArray[Any]
Whole = npt.NDArray[np.int64]
Spans = tuple[Whole, Whole]  # begins and ends


def find_hidden(
    trace: TraceModel, place: tuple[int, int], wanted: list[int], spans: Mapping[int, Spans]
) -> dict[int, Whole]:
    """Return how many ns of each collective are hidden. `place` is a process and a device, `wanted` are the process's
    collective functions, and `spans` has begins and ends of collectives by stream.
    """
    begins, ends = merge_spans(*(np.concatenate(parts) for parts in zip(*spans.values(), strict=True)))
    graphs = [id_ for id_, api in trace.processes[place[0]].apis.items() if api.type == "graph"]
    found: list[Spans] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for rows in trace.iter_gpu_times([place]):
        other = (rows["function"] != 0) & ~np.isin(rows["function"], wanted)
        other |= (rows["function"] == 0) & np.isin(rows["api"], graphs)
        begin = rows["begin"][other]
        end = begin + rows["duration"][other].astype(np.int64)
        at = np.minimum(np.searchsorted(ends, begin, side="right"), len(ends) - 1)
        near = (begin < ends[at]) & (end > begins[at])
        found.append((begin[near], end[near]))
    busy = merge_spans(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    return {stream: _sum_until(busy, end) - _sum_until(busy, begin) for stream, (begin, end) in spans.items()}


def merge_spans(begins: Whole, ends: Whole) -> Spans:
    """Return the union of spans, sorted."""
    order = np.argsort(begins, kind="stable")
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    new = np.ones(len(begins), bool)
    new[1:] = begins[1:] > reach[:-1]
    last = np.append(np.flatnonzero(new)[1:] - 1, len(begins) - 1) if len(begins) else np.zeros(0, np.int64)
    return begins[new], reach[last]


def _sum_until(spans: Spans, times: Whole) -> Whole:
    """Return how many ns the spans cover before each of these times."""
    begins, ends = spans
    total = np.append(0, np.cumsum(ends - begins))
    at = np.searchsorted(begins, times, side="right")
    over = np.maximum(ends[np.maximum(at - 1, 0)] - times, 0) if len(ends) else np.zeros(len(times), np.int64)
    found: Whole = total[at] - np.where(at > 0, over, 0)
    return found
