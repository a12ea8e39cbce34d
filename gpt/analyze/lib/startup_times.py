"""Find out how the launching thread of a process spends the time until the process is steady.

Each moment counts once: for the call in which the thread is, or else for host code. A launch counts as loading code if
it's the first launch of its kernel and takes FAR times as long as the other launches of that kernel or, if there are
none, longer than SLOW: with lazy loading, the driver loads a kernel in that call.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt.analyze.lib.compiled import find_compiled
from gpt.analyze.lib.host_calls import PINNING, Addresses
from gpt.analyze.lib.overlay import LAYER, NOTHING, PIECE, cut_out, iter_alone, overlay
from gpt.analyze.lib.sequence import LAUNCH, iter_calls
from gpt.trace.loading import FAR
from gpt.trace.process import CAPTURED
from gpt.trace.spill import Array

if TYPE_CHECKING:
    from gpt.analyze.lib.steady import Steady
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Api, Process

(IMPORTS, HOST, WARM_HOST, DRIVER, CONTEXT, LOAD, LAZY, LINK, MEMORY, PINNED, INPUT, COPIES, CAPTURE, GRAPH, LAUNCHES,
 WAITS, OTHER) = KINDS = (
    "before CUDA", "host code", "host code, warm-up", "driver start", "contexts", "loading GPU code", "lazy loading",
    "linking, compiling", "allocations", "pinned memory", "copies to device", "other copies", "graph capture",
    "graph creation", "launches", "waits", "other calls",
)  # fmt: skip
SLOW = 1_000_000  # ns
LISTED = 100
BY_TYPE = {
    "context": CONTEXT, "module": LOAD, "memory": MEMORY, "memcpy": COPIES, "memset": COPIES, "kernel": LAUNCHES,
    "sync": WAITS, "device": DRIVER, CAPTURED: CAPTURE,
}  # fmt: skip
BY_OP = {
    ("memcpy", "HtoD"): INPUT, ("graph", "launch"): LAUNCHES, ("graph", "instantiate"): GRAPH,
    ("stream", "capture"): CAPTURE, ("stream", "captured"): CAPTURE, ("other", "init"): DRIVER,
    ("other", "lookup"): DRIVER,
}  # fmt: skip
UNKNOWN = "(not known)"


@dataclass
class Kind:
    """The calls of one kind before the first steady unit: their time in ns, their number, and the bytes copied to the
    device.
    """

    time: int = 0
    calls: int = 0
    bytes: float = 0.0
    pageable: float = 0.0
    begin: int | None = None  # counted from the start of the process


@dataclass
class Library:
    """The kernels of a library that were launched: how many, how many of them were loaded by their first launch, and
    the ns that this took.
    """

    kernels: int = 0
    loaded: int = 0
    time: float = 0.0


class Call(NamedTuple):
    """A long call: its function and kernel, when it began, counted from the start of the process, and how long it
    took.
    """

    name: str
    kernel: str | None
    at: int
    took: int


@dataclass
class Startup:
    """The start-up of a process, in ns from its beginning. If `steady` is False, the process never became steady, and
    the start-up lasts until the last call.
    """

    header: dict[str, Any]
    time: int
    off: int
    steady: bool
    after: int = 0  # from then until the last call
    launches: int = 0  # during start-up
    length: int = 0
    times: int = 0
    skipped: int = 0
    usual: float = 0.0
    first: int = 0
    kinds: dict[str, Kind] = field(default_factory=dict)
    libraries: dict[str, Library] = field(default_factory=dict)
    longest: list[Call] = field(default_factory=list)
    compiled: tuple[str, int] | None = None  # the kernel that was compiled most often, and how often
    images: tuple[int, int] = (0, 0)  # number of images that were loaded, and how many of them were PTX


def find_startup(trace: TraceModel, number: int, steady: Steady | None) -> Startup:
    """Return the start-up of a process. It ends with the first steady unit, or with the last call if there's no steady
    unit.
    """
    process = trace.processes[number]
    began, unrecorded = trace.began(process), trace.unrecorded(process)
    end = max(began, steady.begin if steady else trace.last(number))
    off = unrecorded.within_one(began, end)
    found = Startup(process.header, end - began - off, off, steady is not None)
    found.images = len(process.modules), sum(module.type == "ptx" for _, module in process.modules)
    if steady:
        last = trace.last(number)
        found.after = max(0, last - end - unrecorded.within_one(end, max(end, last)))
        found.length, found.times, found.skipped = steady.period.length, steady.period.times, steady.skipped
        found.usual, found.first = steady.usual, steady.first
    calls = _Calls(trace, number, steady.begin if steady else None, end, found)
    found.compiled = find_compiled(process, calls.find_launched())
    whole = np.zeros(1, PIECE)
    whole["begin"], whole["end"], whole["thread"], whole["what"] = began, end, calls.thread, NOTHING
    for pieces in overlay(iter([cut_out(whole[whole["end"] > began], unrecorded)]), calls.iter_layer(), "what"):
        kinds = calls.find_kinds(pieces)
        sums = np.bincount(kinds, (pieces["end"] - pieces["begin"]).astype(np.float64), len(KINDS))
        for at in np.flatnonzero(sums).tolist():
            kind = found.kinds.setdefault(KINDS[at], Kind())
            kind.time += round(sums[at])
            begin = int(pieces["begin"][kinds == at].min()) - began
            kind.begin = begin if kind.begin is None else min(kind.begin, begin)
    return found


class _Calls:
    """The calls of the launching thread. That's the thread that launches the repeated unit or, if nothing repeats, the
    one with the most launches.
    """

    def __init__(self, trace: TraceModel, number: int, steady: int | None, end: int, found: Startup) -> None:
        self._trace, self._number, self._process = trace, number, trace.processes[number]
        self._end, self._found = end, found
        self._began = trace.began(self._process)
        self._firsts: dict[int, tuple[int, float]] = {}  # by kernel: start and ns of its first launch
        counts, totals, threads = Counter[int](), Counter[int](), Counter[int]()
        first_calls: dict[int, int] = {}
        self.thread = -1
        for calls in iter_calls(trace, number, "function"):
            launch = calls.of(LAUNCH)
            for thread, start in _iter_firsts(calls.rows["thread"], calls.start):
                first_calls.setdefault(thread, start)
            rows = calls.rows[launch]
            threads.update(_count(rows["thread"]))
            found.launches += int((rows["start"] < end).sum())
            if self.thread < 0 and steady is not None and len(own := rows[rows["start"] == steady]):
                self.thread = int(own["thread"][0])
            self._add(rows[rows["function"] != 0], counts, totals)
        if self.thread < 0:
            self.thread = max(threads, key=lambda one: (threads[one], -one), default=min(first_calls, default=0))
        self._first_call = first_calls.get(self.thread, end)
        self._launched: int | None = None
        # When the first call of a capture began and the last one ended, in this thread.
        self._captures: list[tuple[int, int]] = []
        self._capturing: int | None = None
        self._pinned = Addresses()
        self._loaded = {function: _find_load(took, counts[function], totals[function])
                        for function, (_, took) in self._firsts.items()}  # fmt: skip
        self._lazy = np.array(sorted(
            start for function, (start, _) in self._firsts.items() if self._loaded[function]
        ), np.int64)  # fmt: skip
        self._add_libraries()

    def _add(self, rows: Array, counts: Counter[int], totals: Counter[int]) -> None:
        functions, places, which = np.unique(rows["function"], return_index=True, return_inverse=True)
        number, total = (
            np.bincount(which, minlength=len(functions)),
            np.bincount(which, rows["duration"], len(functions)),
        )
        for at, function in enumerate(functions.tolist()):
            row = rows[places[at]]
            self._firsts.setdefault(function, (int(row["start"]), float(row["duration"])))
            counts[function] += int(number[at])
            totals[function] += float(total[at])  # type: ignore[assignment] # ns

    def _add_libraries(self) -> None:
        modules = dict(self._process.modules)
        of = {function.id: function.module for function in self._process.functions}
        for function, (start, _) in self._firsts.items():
            if start < self._end:
                module = modules.get(of.get(function) or -1)
                name = (module.path or module.loader) if module else None
                library = self._found.libraries.setdefault(os.path.basename(name) if name else UNKNOWN, Library())
                library.kernels += 1
                library.loaded += self._loaded[function] > 0
                library.time += self._loaded[function]

    def find_launched(self) -> set[int]:
        """Return the functions that were launched during start-up."""
        return {function for function, (start, _) in self._firsts.items() if start < self._end}

    def iter_layer(self) -> Iterator[Array]:
        """Yield the thread's calls during start-up as LAYER, with the index of a kind in `what`."""
        yield from iter_alone(self._iter_rows())

    def _iter_rows(self) -> Iterator[Array]:
        process = self._process
        ids = np.array(sorted(process.apis) or [0], np.uint32)
        kinds = np.array([KINDS.index(_find_kind(process.apis[id_])) for id_ in sorted(process.apis)] or [0])
        pins = [id_ for id_, api in process.apis.items() if api.name in PINNING]
        for calls in iter_calls(self._trace, self._number, "function", "bytes", "to", "from"):
            if calls.start[0] >= self._end:
                return
            rows = calls.rows[(calls.rows["thread"] == self.thread) & (calls.start < self._end)]
            rows = rows[~_are_ioctls(process, rows["api"])]
            if not len(rows):
                continue
            at = np.minimum(np.searchsorted(ids, rows["api"]), len(ids) - 1)
            kind = np.where(ids[at] == rows["api"], kinds[at], KINDS.index(OTHER))
            launches = kind == KINDS.index(LAUNCHES)
            if launches.any() and self._launched is None:
                self._launched = int(rows["start"][launches][0])
            kind[launches & np.isin(rows["start"], self._lazy)] = KINDS.index(LAZY)
            pinned = rows[np.isin(rows["api"], pins) & (rows["result"] == 0)]
            self._pinned.add(pinned["to"], pinned["bytes"])
            self._count(rows, kind)
            self._find_captures(rows)
            found = np.zeros(len(rows), LAYER)
            found["begin"], found["what"], found["thread"] = rows["start"], kind, self.thread
            found["end"] = rows["start"] + rows["duration"].astype(np.int64)
            yield found

    def _count(self, rows: Array, kinds: Array) -> None:
        counts = np.bincount(kinds, minlength=len(KINDS))
        for at in np.flatnonzero(counts).tolist():
            self._found.kinds.setdefault(KINDS[at], Kind()).calls += int(counts[at])
        copies = rows[(kinds == KINDS.index(INPUT)) & (rows["result"] == 0)]
        if len(copies):
            kind, sizes = self._found.kinds[INPUT], copies["bytes"].astype(np.float64)
            kind.bytes += float(sizes.sum())
            kind.pageable += float(sizes[~self._pinned.have(copies["from"])].sum())
        kept, names = self._found.longest, self._process.kernels()
        least = kept[-1].took if len(kept) == LISTED else 0
        longer = np.flatnonzero(rows["duration"] > least)
        for row in rows[longer[np.argsort(-rows["duration"][longer], kind="stable")[:LISTED]]]:
            name = self._process.api(int(row["api"])).name
            kernel = names.get(int(row["function"])) if row["function"] else None
            kept.append(Call(name, kernel, int(row["start"]) - self._began, int(row["duration"])))
        kept.sort(key=lambda call: -call.took)
        del kept[LISTED:]

    def _find_captures(self, rows: Array) -> None:
        apis = self._process.apis
        wanted = {id_: api.op for id_, api in apis.items() if (api.type, api.op) in BY_OP and BY_OP[api[:2]] == CAPTURE}
        for row in rows[np.isin(rows["api"], [*wanted])] if wanted else ():
            if wanted[int(row["api"])] == "capture":
                self._capturing = int(row["start"])
            elif self._capturing is not None:
                self._captures.append((self._capturing, int(row["start"] + int(row["duration"]))))
                self._capturing = None

    def find_kinds(self, pieces: Array) -> Array:
        """Return the index of the kind of each piece, which depends on the call that the thread was in."""
        begin, kinds = pieces["begin"], pieces["what"].copy()
        host = kinds == NOTHING
        kinds[host] = KINDS.index(HOST)
        kinds[host & (begin < self._first_call)] = KINDS.index(IMPORTS)
        if self._launched is not None:
            kinds[host & (begin >= self._launched)] = KINDS.index(WARM_HOST)
        captures = [*self._captures, *([(self._capturing, self._end)] if self._capturing is not None else [])]
        if captures:
            begins, ends = np.array(captures, np.int64).T
            at = np.searchsorted(begins, begin, "right") - 1
            kinds[host & (at >= 0) & (begin < ends[at])] = KINDS.index(CAPTURE)
        return kinds


def _iter_firsts(threads: Array, starts: Array) -> Iterator[tuple[int, int]]:
    values, places = np.unique(threads, return_index=True)
    yield from zip(values.tolist(), starts[places].tolist(), strict=True)


def _count(values: Array) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _find_load(took: float, count: int, total: float) -> float:
    """Estimate, from the kernel's other launches, how many ns its first launch spent loading code."""
    if count == 1:
        return took if took > SLOW else 0.0
    usual = (total - took) / (count - 1)
    return took - usual if took > FAR * usual else 0.0


def _find_kind(api: Api) -> str:
    if api.name in PINNING:
        return PINNED
    if api.name.startswith("cuLink"):
        return LINK
    return BY_OP.get(api[:2], BY_TYPE.get(api.type, OTHER))


def _are_ioctls(process: Process, apis: Array) -> Array:
    return apis > process.last_api
