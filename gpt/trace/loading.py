"""Estimate how much of a kernel's GPU time was spent loading its code.

With lazy loading, which is the default since CUDA 12.2, the driver loads a kernel within the call that first launches
it: after the event that `gpt-hook --gpu-time` records before the kernel, but before the kernel begins. GPU times only
contain the two events. But calls have times, too, and launching is the last thing that such a call does. So if a first
launch took more than FAR times as long on the host as the other launches of the kernel, we assume that the kernel began
one such usual launch time before the end of the call, at the earliest.

Threads that launch a kernel while another thread is loading it have to wait, too. So the first launch in each thread is
considered if its call began before the end of the kernel's very first launch call.

If a kernel was launched once, there's nothing to compare it with, and calls that were only counted have no times; then
the loading time isn't known. With CUDA_LAUNCH_BLOCKING, a call contains its kernel. If the kernel runs FAR times as
long the first time because it has more to do, that's mistaken for loading.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt.trace.rows import iter_groups, take

FAR = 10
TIMED = [("function", "<u4"), ("device", "<u4"), ("thread", "<u8"), ("call", "<i8"), ("begin", "<i8"),
         ("duration", "<u8"), ("api", "<u4"), ("probed", "<u4"), ("batch", "<u4"), ("row", "<u4")]  # fmt: skip
LAUNCH = [("function", "<u4"), ("start", "<i8"), ("duration", "<f4")]
SPARSE, MAX_BITS = 16, 20  # slots of the hash table for each known launch, and bits of the hash
FACTORS = [np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)]  # odd
Array = npt.NDArray[Any]
Times = npt.NDArray[np.float64]


def find_firsts(rows: Array) -> npt.NDArray[np.intp]:
    """Return which rows of GPU times are the first launch of a kernel on a device in a thread.

    Rows that don't say which call launched them are ignored.
    """
    calls, found = rows["call"], []
    devices, threads = _find_places(rows)
    for function, order in iter_groups(rows["function"]):
        order = order[calls[order] != 0] if function else order[:0]
        for device in np.unique(devices[order]):
            mine = order[devices[order] == device]
            for thread in np.unique(threads[mine]):
                own = mine[threads[mine] == thread]
                found.append(own[calls[own].argmin()])
    return np.array(found, np.intp)


def _find_places(rows: Array) -> tuple[Array, Array]:
    """Return the device and the thread of each row, or zeros if the rows don't have them."""
    names, zeros = rows.dtype.names or (), np.zeros(len(rows), np.uint64)
    return rows["device"] if "device" in names else zeros, rows["thread"] if "thread" in names else zeros


class FirstLaunches:
    """The first launches of a process's kernels in each thread, collected from batches of GPU times. Times are time
    stamps.

    Each row remembers its batch and its index there. Nearly all rows of a batch are later launches of kernels that are
    known already. A hash table finds them, because sorting them all takes longer than everything else here.
    """

    def __init__(self) -> None:
        self.rows: Array = np.zeros(0, TIMED)
        self._batches = 0
        self._known: dict[str, Array] = {}  # columns of `rows`, which are faster to read
        self._bits = 0  # the length of a hash
        self._slots = np.zeros(1, np.int64)  # by hash: the index of a row in `rows` that has it

    def add(self, rows: Array) -> None:
        """Add a batch of GPU times."""
        names = set(rows.dtype.names or ())
        if "call" in names:
            places = self._find_candidates(rows)
            candidates = take(rows, places)
            firsts = find_firsts(candidates)
            if len(firsts):
                part = np.zeros(len(firsts), TIMED)
                for name in names & set(part.dtype.names or ()):
                    part[name] = candidates[name][firsts]
                part["batch"], part["row"] = self._batches, places[firsts]
                found = np.concatenate([self.rows, part])
                found = found[np.argsort(found["begin"], kind="stable")]  # the earliest counts if a call has several
                self.rows = found[find_firsts(found)]
                self._known = {name: self.rows[name].copy() for name in ("call", "function", "device", "thread")}
                self._bits = min((SPARSE * len(self.rows)).bit_length(), MAX_BITS)
                self._slots = np.zeros(1 << self._bits, np.int64)
                self._slots[_hash(self.rows, self._bits)] = np.arange(len(self.rows))
        self._batches += 1

    def _find_candidates(self, rows: Array) -> npt.NDArray[np.intp]:
        """Return which rows may be first launches, because no earlier launch is known."""
        if not len(self.rows):
            return np.arange(len(rows))
        devices, threads = _find_places(rows)
        at = self._slots[_hash(rows, self._bits)]
        later = self._known["call"][at] < rows["call"]
        for name, values in (("function", rows["function"]), ("device", devices), ("thread", threads)):
            later &= self._known[name][at] == values
        return np.flatnonzero(~later)


def _hash(rows: Array, bits: int) -> npt.NDArray[np.uint64]:
    """Return a hash of the function, device and thread of each row."""
    devices, threads = _find_places(rows)
    mixed = np.zeros(len(rows), np.uint64)
    for column, factor in zip((rows["function"], devices, threads), FACTORS, strict=True):
        mixed += column.astype(np.uint64) * factor
    found: npt.NDArray[np.uint64] = mixed >> np.uint64(64 - bits)
    return found


def find_loading(firsts: Array, launches: Iterable[Array]) -> tuple[Times, Times]:
    """Return how much of each first launch's time was spent loading. `launches` are the launch calls of the process
    (LAUNCH), in any number of parts.

    For kernels that were launched only once, the loading time isn't known; the second array has an upper limit for
    these. All times have the same unit.
    """
    known, at = np.unique(firsts["function"], return_inverse=True)
    count, total = np.zeros(len(known), np.int64), np.zeros(len(known))
    took: dict[tuple[int, int], float] = {}
    for part in launches:
        own = part[(part["duration"] > 0) & np.isin(part["function"], known)]
        which = np.searchsorted(known, own["function"])
        count += np.bincount(which, minlength=len(known))
        total += np.bincount(which, own["duration"], len(known))
        made = own[np.isin(own["start"], firsts["call"])]
        took |= zip(made[["function", "start"]].tolist(), made["duration"].tolist(), strict=True)
    if not took:
        return np.zeros(len(firsts)), np.zeros(len(firsts))
    call = np.array([took.get(key, 0.0) for key in firsts[["function", "call"]].tolist()])
    apart = np.bincount(at, call, len(known))  # counts the first launches of each kernel
    others = count - np.bincount(at, call > 0, len(known))
    usual = np.divide(total - apart, others, out=np.zeros(len(known)), where=others > 0)[at]
    cut = np.clip(call - usual - (firsts["begin"] - firsts["call"]), 0, firsts["duration"].astype(np.float64))
    far = (usual > 0) & (call > FAR * usual) & _are_during_the_first(firsts, call)
    return np.where(far, cut, 0.0), np.where((usual > 0) | (call == 0), 0.0, cut)


def _are_during_the_first(firsts: Array, took: Times) -> npt.NDArray[np.bool_]:
    """Return which calls began before the first launch call of the same kernel on the same device had ended."""
    ends: dict[tuple[int, int], tuple[int, float]] = {}  # by function and device: begin and end of the first call
    for function, device, call, duration in zip(
        *(firsts[name].tolist() for name in ("function", "device", "call")), took.tolist(), strict=True
    ):
        ends[function, device] = min(ends.get((function, device), (call, call + duration)), (call, call + duration))
    last = [ends[key][1] for key in zip(firsts["function"].tolist(), firsts["device"].tolist(), strict=True)]
    found: npt.NDArray[np.bool_] = firsts["call"] <= np.array(last)
    return found
