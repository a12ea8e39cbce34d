"""Find kernels of several streams that could run side by side, but take turns, because the legacy default stream lets
no other stream run.

Work in that stream waits for all earlier work of other streams, and their later work waits for it. The trace doesn't
say which streams are exempt (cudaStreamNonBlocking). So only kernels count that seem to have waited for the kernel
ahead: they were launched before it began, and began right after its end, although both together have fewer blocks than
the GPU has SMs. One of the two must be in the default stream.

The same goes for two other streams if the program makes streams wait, as with cuStreamWaitEvent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpt.screen.units import amount, human_time
from gpt.trace.spill import Array

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

CAUSE, EVENTS, DEFAULT = "default stream", "waits of streams", 0
FAST = 20_000  # maximum ns from the end of a kernel to the begin of the next, if that waited for it
OFTEN, PART = 10, 0.1  # minimum number of kernels that waited, and minimum share of the time
FEW = 0.1  # maximum number of calls that make streams wait, per kernel that waited


class Turns(NamedTuple):
    """The number of kernels that waited for one in another stream, their ns, the number of streams other than the
    default one, and whether that one was involved.
    """

    kernels: int
    time: int
    streams: int
    default: bool = True


def find_turns(trace: TraceModel, number: int, blocks: Mapping[int, tuple[int, float]], waits: int) -> Turns | None:
    """Return the kernels of a process that waited because of the default stream, or None if there are few. `blocks` is
    from HostCalls; `waits` is the number of calls that make a stream wait.
    """
    for default in (True, False):
        found = _sum_turns(trace, number, blocks, default)
        if found.kernels >= OFTEN and (waits <= FEW * found.kernels) == default:
            return found
    return None


def _sum_turns(trace: TraceModel, number: int, blocks: Mapping[int, tuple[int, float]], default: bool) -> Turns:
    count, time, others = 0, 0, set[int]()
    for place in trace.gpus():
        if place[0] == number:
            before: Array | None = None
            for rows in trace.iter_gpu_times([place]):
                rows = rows if before is None else np.concatenate((before, rows))
                before = rows[-1:]
                waited = _find_waited(rows, blocks, default)
                count += int(np.count_nonzero(waited))
                time += int(rows["duration"][1:][waited].sum())
                pairs = np.append(rows["stream"][1:][waited], rows["stream"][:-1][waited])
                others |= {*np.unique(pairs).tolist()} - {DEFAULT}
    return Turns(count, time, len(others), default)


def _find_waited(rows: Array, blocks: Mapping[int, tuple[int, float]], default: bool) -> Array:
    """Return which rows after the first waited for the row before them, if one of both or neither is in the default
    stream.
    """
    one, next_ = rows[:-1], rows[1:]
    pause = next_["begin"] - one["begin"] - one["duration"].astype(np.int64)
    either = (one["stream"] == DEFAULT) | (next_["stream"] == DEFAULT)
    mixed = (one["stream"] != next_["stream"]) & (either == default)
    found: Array = mixed & (pause >= 0) & (pause <= FAST) & (next_["call"] < one["begin"])
    if found.any():
        shares = {function: filled / launches for function, (launches, filled) in blocks.items()}
        used = np.array([shares.get(function, 1) for function in rows["function"].tolist()])
        found &= (used[:-1] + used[1:] <= 1) & (one["function"] != 0) & (next_["function"] != 0)
    return found


def describe_turns(found: Collection[Turns], whole: int) -> tuple[str, int, str] | None:
    """Return the cause, the ns and a sentence, or None if that's a small part of the time."""
    count, time = sum(one.kernels for one in found), sum(one.time for one in found)
    if not found or time < PART * whole:
        return None
    if not all(one.default for one in found):
        told = (
            f"{amount(count, 'kernel')} waited for the one before, in another stream, though both would fit on the "
            f"GPU: events make the streams wait for each other; at most {human_time(time)} could overlap: leave out "
            "the waits that no result depends on"
        )
        return EVENTS, min(time, whole), told
    streams = amount(max(one.streams for one in found), "other stream")
    told = (
        f"{amount(count, 'kernel')} waited for the one before, though both would fit on the GPU: one was in the "
        f"default stream, which lets none of {streams} run meanwhile; at most {human_time(time)} could overlap: use "
        "a stream of its own (cudaStreamNonBlocking, or nvcc --default-stream per-thread)"
    )
    return CAUSE, min(time, whole), told
