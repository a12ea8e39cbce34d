"""Convert the calls of a process to a layer (overlay.py). Along the way, sum up its copies and count its kernels'
blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.overlay import LAYER, iter_alone
from gpt.analyze.lib.sequence import COPY, IN, IOCTL, LAUNCH, OUT, CallTable, Groups, iter_calls
from gpt.trace.spill import Array

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

Pointers = npt.NDArray[np.uint64]

NAMES = ("function", "bytes", "to", "from", "grid_x", "grid_y", "grid_z")
PINNING = ("cuMemAllocHost", "cuMemHostAlloc", "cuMemAllocManaged", "cuMemHostRegister")
WAITING = ("cuStreamWaitEvent", "cuStreamWaitValue32", "cuStreamWaitValue64")  # a stream waits for something else
RUNNING = ("cuLaunchHostFunc", "cuStreamAddCallback")  # a stream waits for a function of the host
# Memory from these isn't ready at once: the driver maps it, and clears it on the GPU.
ALLOCATING = ("cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemCreate")
MANAGED, PREFETCH = "cuMemAllocManaged", "cuMemPrefetchAsync"
ASKING = ("cuEventQuery", "cuStreamQuery")
WAYS = (("HtoD", IN, "from"), ("DtoH", OUT, "to"))  # direction, act, and the argument with the host's address


class Copied(NamedTuple):
    """Copies between host and device: their number and bytes, in total and for pageable memory."""

    calls: int = 0
    bytes: float = 0.0
    pageable: int = 0
    pageable_bytes: float = 0.0

    def plus(self, other: Copied) -> Copied:
        """Return the sums."""
        return Copied(
            self.calls + other.calls,
            self.bytes + other.bytes,
            self.pageable + other.pageable,
            self.pageable_bytes + other.pageable_bytes,
        )


class HostCalls:
    """The calls of a process. Once they've been read, `copied` has sums of the copies by op. The sums are about calls
    that begin at the time `since` or later.

    `noted` has the number of calls, and their ns, of the functions in WAITING, RUNNING, ALLOCATING and ASKING,
    and of PREFETCH. `blocks` has, for each function, how often it was launched, and the sum of the shares of SMs that
    its launches could fill.
    """

    def __init__(self, trace: TraceModel, number: int, since: int | None = None) -> None:
        self._trace, self._number, self._since = trace, number, since
        self._process = trace.processes[number]
        self.copied: dict[str, Copied] = {}
        self.blocks: dict[int, tuple[int, float]] = {}
        self.noted: dict[str, tuple[int, int]] = {}
        noted = {*WAITING, *RUNNING, *ALLOCATING, *ASKING, PREFETCH}
        self._noted = {id_: api.name for id_, api in self._process.apis.items() if api.name in noted}
        self._sms = min((card["sms"] for card in self._process.cards.values() if card.get("sms")), default=0)
        self._pinned = Addresses()
        self._pins = np.array(sorted(_find_apis(self._process)), np.uint32)
        self._groups, self._out = Groups(), dict[int, float]()

    def iter_layer(self) -> Iterator[Array]:
        """Yield the calls, without ioctls, as LAYER. `note` is the size of the latest copy from the device."""
        yield from iter_alone(self._iter_rows())

    def _iter_rows(self) -> Iterator[Array]:
        for calls in iter_calls(self._trace, self._number, *NAMES):
            self._note_pins(calls)
            later = calls
            if self._since is not None and calls.start[0] < self._since:
                good = calls.start >= self._since
                later = CallTable(calls.rows[good], calls.end[good], calls.acts[good])
            if len(later.rows):
                self._count_copies(later)
                self._count_blocks(later)
                self._note_calls(later.rows)
            found = np.zeros(len(calls.rows), LAYER)
            found["begin"], found["end"], found["what"] = calls.start, calls.end, calls.rows["api"]
            found["thread"] = calls.rows["thread"]
            self._note_copies(calls, found)
            driver = ~calls.of(IOCTL)
            if (found := found if driver.all() else found[driver]).size:
                yield found

    def _note_copies(self, calls: CallTable, found: Array) -> None:
        out = calls.of(OUT)
        found["note"] = np.nan
        if not (self._out or out.any()):
            return
        for thread, mine in self._groups.iter(calls.rows["thread"]):
            last = np.maximum.accumulate(np.where(out[mine], np.arange(len(mine)), -1))
            sizes = calls.rows["bytes"][mine].astype(np.float64)
            found["note"][mine] = np.where(last >= 0, sizes[last], self._out.get(thread, np.nan))
            if last[-1] >= 0:
                self._out[thread] = float(sizes[last[-1]])

    def _note_pins(self, calls: CallTable) -> None:
        pins = np.flatnonzero((calls.rows["result"] == 0) & np.isin(calls.rows["api"], self._pins))
        self._pinned.add(calls.rows["to"][pins], calls.rows["bytes"][pins])

    def _count_copies(self, calls: CallTable) -> None:
        good = calls.rows["result"] == 0
        if not (calls.of(COPY) & good).any():
            return
        for op, act, argument in WAYS:
            rows = calls.rows[calls.of(act) & good]
            if len(rows):
                loose = rows[~self._pinned.have(rows[argument])]
                sums = Copied(len(rows), _add(rows), len(loose), _add(loose))
                self.copied[op] = self.copied.get(op, Copied()).plus(sums)

    def _note_calls(self, rows: Array) -> None:
        for id_, name in self._noted.items():
            took = rows["duration"][rows["api"] == id_]
            if len(took):
                count, ns = self.noted.get(name, (0, 0))
                self.noted[name] = count + len(took), ns + int(took.sum())

    def _count_blocks(self, calls: CallTable) -> None:
        launched = calls.rows[calls.of(LAUNCH) & (calls.rows["function"] != 0) & (calls.rows["grid_x"] != 0)]
        if not (self._sms and len(launched)):
            return
        blocks = np.ones(len(launched))
        for name in ("grid_x", "grid_y", "grid_z"):
            blocks *= launched[name]
        functions, which, counts = np.unique(launched["function"], return_inverse=True, return_counts=True)
        parts = np.bincount(which, np.minimum(blocks / self._sms, 1), len(functions))
        for function, count, part in zip(functions.tolist(), counts.tolist(), parts.tolist(), strict=True):
            before = self.blocks.get(function, (0, 0.0))
            self.blocks[function] = before[0] + count, before[1] + part


def _add(rows: Array) -> float:
    return float(rows["bytes"].astype(np.float64).sum())


def _find_apis(process: Process) -> list[int]:
    return [id_ for id_, api in process.apis.items() if api.name in PINNING]


class Addresses:
    """A set of addresses, stored as a union of ranges."""

    def __init__(self) -> None:
        self._begins = self._ends = np.zeros(0, np.uint64)

    def add(self, begins: Pointers, sizes: Pointers) -> None:
        """Add address ranges. Those that wrap around are ignored."""
        begins, sizes = begins.astype(np.uint64), sizes.astype(np.uint64)
        ends = begins + sizes
        good = ends > begins
        if not good.any():
            return
        begins, ends = np.append(self._begins, begins[good]), np.append(self._ends, ends[good])
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        first = np.append(True, begins[1:] > ends[:-1])
        self._begins, self._ends = begins[first], ends[np.append(first[1:], True)]

    def have(self, addresses: Pointers) -> npt.NDArray[np.bool_]:
        """Return which addresses are in the set."""
        if not len(self._begins):
            return np.zeros(len(addresses), bool)
        at = np.searchsorted(self._begins, addresses.astype(np.uint64), "right").astype(np.int64) - 1
        found: npt.NDArray[np.bool_] = (at >= 0) & (addresses < self._ends[at])
        return found
