"""Match calls that allocate memory with calls that free it.

The result describes each piece of memory: its lifetime, its address, and the stack that allocated it. Two tables list
the functions that allocate and free; gpt/analyze/memory.py turns the pieces into an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.intervals import unite
from gpt.trace.calls_store import call_fields

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

Whole = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Line = tuple[Whole, npt.NDArray[np.float64]]  # points in time, and the value from each of them to the next

PAGE = 2 << 20
NEVER = (1 << 62) - 1


class Kind(NamedTuple):
    """A kind of memory: its name, whether it's on a GPU, whether several allocations can share a page, and whether it's
    freed when its context is destroyed.

    `space` says what its addresses mean: MEMORY is allocated at that address; HANDLES are handles, not addresses;
    REGISTERED memory was allocated elsewhere, and the program registered it with CUDA.
    """

    name: str
    on_gpu: bool
    shares: bool
    space: int
    ends: bool = True


MEMORY, HANDLES, REGISTERED = range(3)
KINDS = (
    Kind("device", True, True, MEMORY),
    Kind("pool", True, True, MEMORY),
    Kind("managed", True, True, MEMORY),
    Kind("graph", True, True, MEMORY),
    Kind("physical", True, False, HANDLES, False),
    Kind("pinned", False, False, MEMORY),
    Kind("registered", False, False, REGISTERED),
)
_NUMBERS = {kind.name: number for number, kind in enumerate(KINDS)}
ALLOCATE = {
    "cuMemAlloc": "device",
    "cuMemAllocPitch": "device",
    "cuMemAllocAsync": "pool",
    "cuMemAllocFromPoolAsync": "pool",
    "cuMemAllocManaged": "managed",
    "cuMemCreate": "physical",
    "cuMemAllocHost": "pinned",
    "cuMemHostAlloc": "pinned",
    "cuMemHostRegister": "registered",
    "graph allocates": "graph",
}
FREE = {
    "cuMemFree": MEMORY,
    "cuMemFreeAsync": MEMORY,
    "cuMemFreeHost": MEMORY,
    "cuMemRelease": HANDLES,
    "cuMemHostUnregister": REGISTERED,
    "graph frees": MEMORY,
}
IN_GRAPHS = {("memory", "alloc"): 0xFFFF_FFFE, ("memory", "free"): 0xFFFF_FFFF}  # ids for nodes that allocate and free
_NAMES = {IN_GRAPHS["memory", "alloc"]: "graph allocates", IN_GRAPHS["memory", "free"]: "graph frees"}
MAPS = ("cuMemMap", "cuMemUnmap")
FIELDS = ("bytes", "to", "from", "object", "stack", "python", "stamp")
MADE, GONE, RESET = ("retain", "create"), ("release", "destroy"), ("reset",)  # operations on contexts


@dataclass(frozen=True)
class Pieces:
    """The pieces of memory that a process allocated, in order of allocation. Times are ns since the first process
    began.

    `kinds` are indexes into KINDS. `left` marks pieces that were never freed; they end when their context does, or at
    NEVER. `failed` counts failed allocations by kind, host first, then GPU. `lost` counts pieces that must have been
    freed by a call that wasn't recorded; `strange` counts frees without a matching allocation.
    """

    process: Process
    begins: Whole
    ends: Whole
    addresses: Sizes
    sizes: Sizes
    kinds: Whole
    threads: Sizes
    stacks: Sizes
    pythons: Sizes  # ids of Python stacks
    left: Mask
    failed: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))
    lost: int = 0
    strange: int = 0

    @staticmethod
    def name(kind: int) -> str:
        """Return a kind's name."""
        return KINDS[kind].name

    @cached_property
    def on_gpu(self) -> Mask:
        """Return which pieces are on a GPU."""
        return np.array([kind.on_gpu for kind in KINDS])[self.kinds]

    @cached_property
    def _sharing(self) -> Mask:
        return np.array([kind.shares for kind in KINDS])[self.kinds] & (self.sizes > 0)

    def line(self, mask: Mask) -> Line:
        """Return the size in bytes of these pieces over time."""
        sizes = self.sizes[mask].astype(float)
        return _sum_up(self.begins[mask], self.ends[mask], sizes)

    def peak(self, mask: Mask) -> float:
        """Return the peak size in bytes of these pieces."""
        return float(self.line(mask)[1].max(initial=0))

    @cached_property
    def peak_time(self) -> int:
        """Return when the most GPU memory was allocated, or the most host memory if no piece is on a GPU."""
        moments, values = self.line(self.on_gpu if self.on_gpu.any() else ~self.on_gpu)
        return int(moments[values.argmax()]) if len(values) else 0

    def live_at(self, time: int) -> Mask:
        """Return which pieces exist at a time."""
        return (self.begins <= time) & (time < self.ends)

    def pages(self) -> tuple[Whole, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """For pieces that share pages, return the times when they changed, and after each change, the bytes in such
        pieces and the bytes in their pages.
        """
        own = self._sharing
        begins, ends = self.begins[own], self.ends[own]
        first = self.addresses[own] // PAGE
        last = (self.addresses[own] + (self.sizes[own] - np.uint64(1))) // PAGE
        inside = np.maximum(last.astype(float) - first.astype(float) - 1, 0)
        edge = last != first
        pages = np.concatenate([first, last[edge]])
        _, from_, to = unite(pages, np.concatenate([begins, begins[edge]]), np.concatenate([ends, ends[edge]]))
        times = np.concatenate([begins, from_]), np.concatenate([ends, to])
        moments, held = _sum_up(*times, np.concatenate([inside, np.ones(len(from_))]) * PAGE)
        known, live = self.line(own)
        return moments, np.concatenate(([0.0], live))[np.searchsorted(known, moments, side="right")], held

    def holes(self, time: int) -> tuple[int, npt.NDArray[np.float64]]:
        """Return how many pieces share pages at the given time, and the sizes of the unused holes in these pages."""
        now = self._sharing & self.live_at(time)
        order = np.argsort(self.addresses[now], kind="stable")
        begins = self.addresses[now][order].astype(float)
        ends = np.maximum.accumulate(begins + self.sizes[now][order].astype(float)) if len(begins) else begins
        up, down = np.ceil(ends / PAGE) * PAGE, np.floor(begins / PAGE) * PAGE
        joined = up[:-1] >= down[1:]
        between = np.where(joined, begins[1:] - ends[:-1], 0)
        after, before = np.where(joined, 0, up[:-1] - ends[:-1]), np.where(joined, 0, begins[1:] - down[1:])
        found = np.concatenate([between, after, before, begins[:1] - down[:1], up[-1:] - ends[-1:]])
        return int(now.sum()), found[found > 0]


def _sum_up(begins: Whole, ends: Whole, sizes: npt.NDArray[np.float64]) -> Line:
    """Return the sum of the sizes over time."""
    over = ends < NEVER
    times = np.concatenate([begins, ends[over]])
    moments, which = np.unique(times, return_inverse=True)
    changes = np.bincount(which, np.concatenate([sizes, -sizes[over]]), len(moments))
    return moments, np.maximum(np.cumsum(changes), 0)


def make_pieces(trace: TraceModel, calls: npt.NDArray[np.void] | None = None) -> list[Pieces]:
    """Return the pieces of each process that allocated memory or tried to. `calls` is the result of
    read_memory_calls.
    """
    if calls is None:
        calls = read_memory_calls(trace)
        assert calls is not None
    made = (_make(process, calls[calls["process"] == n]) for n, process in enumerate(trace.processes))
    return [pieces for pieces in made if len(pieces.begins) or any(pieces.failed)]


def read_memory_calls(trace: TraceModel, most: int | None = None) -> npt.NDArray[np.void] | None:
    """Return the calls that allocate and free memory, or None if there are more than `most`."""
    parts, launches, count = [np.zeros(0, call_fields(FIELDS))], [np.zeros(0, call_fields(FIELDS))], 0
    replays = any((one.type, one.op) in IN_GRAPHS for process in trace.processes
                  for _, graph in process.graphs.iter_all() for one in graph.operations or ())  # fmt: skip
    for rows in trace.iter_calls(*FIELDS):
        done = rows["duration"] > 0
        if replays:
            launches.append(rows[done & trace.chosen(rows, type="graph", op="launch") & (rows["result"] == 0)])
        parts.append(rows[done & (trace.chosen(rows, type="memory") | trace.chosen(rows, type="context"))])
        count += len(parts[-1])
        if most is not None and count > most:
            return None
    calls = np.concatenate([*parts, *_iter_inside(trace, np.concatenate(launches))])
    return calls[np.argsort(calls["start"], kind="stable")]


def _iter_inside(trace: TraceModel, launches: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
    """Yield the allocations and frees that are nodes of graphs, as if they were calls at the start and end of each
    launch.
    """
    for number, process in enumerate(trace.processes):
        mine = launches[launches["process"] == number]
        for _, graph, places in process.graphs.iter_launched(mine["object"], mine["stamp"]):
            for one in graph.operations or ():
                if (one.type, one.op) not in IN_GRAPHS or one.address is None:
                    continue
                rows = mine[places]
                rows["api"], rows["to"], rows["bytes"] = IN_GRAPHS[one.type, one.op], one.address, one.bytes
                rows["from"] = rows["object"] = rows["stack"] = rows["python"] = 0
                if one.op == "free":
                    rows["start"] += np.maximum(rows["duration"].astype(np.int64), 2)
                rows["duration"] = 1
                yield rows


def _make(process: Process, calls: npt.NDArray[np.void]) -> Pieces:
    numbers, which = np.unique(calls["api"], return_inverse=True)
    names = [_NAMES.get(number) or process.api(number).name for number in numbers.tolist()]
    kinds = np.array([_NUMBERS[ALLOCATE[name]] if name in ALLOCATE else -1 for name in names], np.int64)[which]
    frees = np.array([FREE.get(name, -1) for name in names], np.int64)[which]
    maps = np.array([name in MAPS for name in names], bool)[which]
    good = calls["result"] == 0
    failed = Counter[int](), Counter[int]()
    for kind in kinds[(kinds >= 0) & ~good].tolist():
        failed[KINDS[kind].on_gpu][kind] += 1
    calls, kinds, frees, maps = (one[good] for one in (calls, kinds, frees, maps))
    returned = calls["start"] + calls["duration"].astype(np.int64)
    times = np.where(kinds >= 0, returned, calls["start"])
    spaces = np.where(kinds >= 0, np.array([kind.space for kind in KINDS])[kinds], frees)
    over = _contexts_over(process, calls)
    allocated = np.flatnonzero(kinds >= 0)
    ends, left, lost, strange = _pair(calls, times, spaces, kinds, over)
    lost += _end_overlapped(calls, times, kinds, ends, left)
    _hold(calls, times, spaces, kinds, maps, names, which[good], ends, left)
    order = allocated[np.argsort(times[allocated], kind="stable")]
    addresses = calls["to"][order]
    return Pieces(
        process,
        times[order],
        np.maximum(ends[order], times[order]),
        addresses,
        np.minimum(calls["bytes"][order], ~addresses),
        kinds[order],
        calls["thread"][order],
        calls["stack"][order],
        calls["python"][order],
        left[order],
        failed,
        lost,
        strange,
    )


def _contexts_over(process: Process, calls: npt.NDArray[np.void]) -> Whole:
    """Return the times at which all of a process's memory was freed because its context was destroyed or reset.

    If the process has several contexts, return nothing, because calls don't say which context they use.
    """
    found, held, objects = [], 0, set()
    ops = {number: process.api(number).op for number in np.unique(calls["api"]).tolist()
           if process.api(number).type == "context"}  # fmt: skip
    wanted = calls[np.isin(calls["api"], [number for number, op in ops.items() if op in MADE + GONE + RESET])]
    for number, start, thing in wanted[["api", "start", "object"]].tolist():
        op = ops[number]
        if op in MADE:
            held += 1
            objects.add(thing)
            continue
        held = max(0, held - 1) if op in GONE else held
        if op in RESET or not held:
            found.append(start)
    return np.array(found if len(objects) == 1 else [], np.int64)


def _pair(
    calls: npt.NDArray[np.void], times: Whole, spaces: Whole, kinds: Whole, over: Whole
) -> tuple[Whole, Mask, int, int]:
    """Match each allocation with the next call that uses the same address. Return the end of each piece, whether it was
    never freed, and the counts `lost` and `strange` (see Pieces).
    """
    ends, left = np.full(len(calls), NEVER, np.int64), kinds >= 0
    here = np.flatnonzero((spaces >= 0) & (calls["to"] != 0))
    ending = np.array([kind.ends for kind in KINDS])
    bound = np.isin(spaces[here], [kind.space for kind in KINDS if kind.ends])
    epochs = np.where(bound, np.searchsorted(over, times[here], side="right"), 0)
    order = np.lexsort((times[here], epochs, calls["to"][here], spaces[here]))
    row = here[order]
    same = calls["to"][row][1:] == calls["to"][row][:-1]
    same &= (spaces[row][1:] == spaces[row][:-1]) & (epochs[order][1:] == epochs[order][:-1])
    allocates = kinds[row] >= 0
    closed = np.flatnonzero(same & allocates[:-1])
    ends[row[closed]] = times[row[closed + 1]]
    left[row[closed]] = False
    lost = int(allocates[closed + 1].sum())
    known = np.zeros(len(row), bool)
    known[closed + 1] = True
    strange = int((~allocates & ~known).sum())
    if len(over):
        rest = row[left[row] & ending[kinds[row]]]
        epoch = np.searchsorted(over, times[rest], side="right")
        ends[rest] = np.append(over, NEVER)[epoch]
    return ends, left, lost, strange


def _end_overlapped(calls: npt.NDArray[np.void], times: Whole, kinds: Whole, ends: Whole, left: Mask) -> int:
    """End each piece when a later piece overlaps it, and return how many were ended. They must have been freed by calls
    that weren't recorded; without this, their bytes and pages would count twice.
    """
    own = np.flatnonzero(np.isin(kinds, [n for n, kind in enumerate(KINDS) if kind.space == MEMORY]))
    own = own[calls["bytes"][own] > 0]
    own = own[np.argsort(times[own], kind="stable")]
    begins = calls["to"][own]
    lasts = begins + np.minimum(calls["bytes"][own] - np.uint64(1), ~begins)
    by_address = np.lexsort((lasts, begins))
    reach = np.maximum.accumulate(lasts[by_address])
    later = begins[by_address][1:]
    if not ((later <= reach[:-1]) & (later != begins[by_address][:-1])).any():
        return 0  # end of a piece that's over before any call
    lost = 0
    starts: list[int] = []  # starts of live pieces, which never overlap
    live: dict[int, tuple[int, int]] = {}
    for at, begin, last in zip(own.tolist(), begins.tolist(), lasts.tolist(), strict=True):
        place = bisect_right(starts, last)
        while place and live[starts[place - 1]][0] >= begin:
            place -= 1
            piece = live.pop(starts.pop(place))[1]
            if ends[piece] > times[at]:
                ends[piece], left[piece] = times[at], False
                lost += 1
        starts.insert(place, begin)
        live[begin] = last, at
    return lost


def _hold(
    calls: npt.NDArray[np.void], times: Whole, spaces: Whole, kinds: Whole, maps: Mask, names: list[str],
    which: Whole, ends: Whole, left: Mask,
) -> None:  # fmt: skip
    """Extend the lifetime of memory from cuMemCreate until its last mapping is gone: memory that's still mapped stays
    allocated after its handle is released.
    """
    if not maps.any():
        return
    events = np.flatnonzero((spaces == HANDLES) | maps)
    events = events[np.argsort(times[events], kind="stable")]
    pieces: dict[int, int] = {}  # by handle
    mapped: dict[int, tuple[int, int]] = {}  # start address -> (end, piece)
    uses: Counter[int] = Counter()
    for at in events.tolist():
        to, size, handle = int(calls["to"][at]), int(calls["bytes"][at]), int(calls["from"][at])
        name = names[which[at]]
        if kinds[at] >= 0:
            pieces[to] = at
        elif name == "cuMemMap" and handle in pieces:
            mapped[to] = to + size, pieces[handle]
            uses[pieces[handle]] += 1
        elif name == "cuMemUnmap":
            exact = mapped.get(to)
            inside = [to] if exact and exact[0] == to + size else [one for one in mapped if to <= one < to + size]
            for one in inside:
                piece = mapped.pop(one)[1]
                uses[piece] -= 1
                if not uses[piece] and ends[piece] < times[at]:
                    ends[piece] = times[at]
    for piece, count in uses.items():
        if count:
            ends[piece], left[piece] = NEVER, True
