"""Arrange traces as tracks: a row of spans for each thread and each stream of a process.

The spans of a thread, which are its calls and the ranges that it has pushed, are nested or separate; the spans of a
stream are separate. Spans that overlap in any other way are moved to another lane of their track, which is a separate
row, because viewers can't draw them in the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.screen.demangle import readable
from gpt.timeline.counters import Copies, Counter, find_callers
from gpt.timeline.nodes import iter_nodes
from gpt.timeline.saved import SavedFinder, SavedSpans
from gpt.trace.calls_store import NO_DEVICE
from gpt.trace.modules import describe_path, find_paths
from gpt.trace.ranges import RANGE as RANGE_ROW

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Api, Process

Whole = npt.NDArray[np.int64]
Spans = npt.NDArray[np.void]

LAST = (1 << 63) - 1
MOST_PID = 1 << 31  # viewers use signed 32-bit numbers
# Number of the first call. HTA 0.5 with pandas 3 stores row numbers with as few bits as these numbers need.
CORRELATION = 1 << 16

# `source` is an index of a call, GPU time or range; for a node of a graph, it's the GPU time of the replay. An `open`
# span has no end in the trace, and is drawn until the end of the last span in its process. `fact` is an index of facts
# about saved data, or 0.
SPAN = np.dtype(
    [
        ("begin", "<i8"),
        ("end", "<i8"),
        ("track", "<u4"),
        ("name", "<u4"),
        ("source", "<u4"),
        ("fact", "<u4"),
        ("category", "u1"),
        ("open", "?"),
    ]
)
CATEGORIES = ("call", "ioctl", "kernel", "memcpy", "memset", "range", "node")
CALL, IOCTL, KERNEL, MEMCPY, MEMSET, RANGE, NODE = range(len(CATEGORIES))
KINDS = ("recording", "range", "thread", "stream", "warp")  # kinds of tracks, in the order in which they're drawn
RECORDING, RANGES, THREAD, STREAM, WARP = range(len(KINDS))
FIELDS = ("function", "bytes", "stream", "object", "stamp")  # fields of calls
PLACED = ("kernel", "graph", "memcpy", "memset", "memory")  # types of calls for which the module and ranges are shown
SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


# Ranges of warps, with times in ns on the trace's clock. `name` is an index, and `number` what the probe saved along
# with the begin.
WARP_RANGE = np.dtype(
    [
        ("begin", "<i8"),
        ("end", "<i8"),
        ("stream", "<u8"),
        ("block", "<u8"),
        ("process", "<u4"),
        ("device", "<u4"),
        ("warp", "<u4"),
        ("name", "<u4"),
        ("number", "<u4"),
    ]
)
NO_WARP = (1 << 32) - 1


class WarpRanges(NamedTuple):
    """The ranges of warps in all launches, and their `names`. `missing` has a line for everything that isn't among
    them, and `aligned` says how well the clocks of SMs are aligned.
    """

    rows: npt.NDArray[np.void]
    names: list[str]
    missing: list[str]
    aligned: str = ""


FindWarps = Callable[[SavedSpans], WarpRanges]


@dataclass(frozen=True, order=True)
class Track:
    """A row of a process, which is an index in the model. `lane` numbers the rows of a track, starting with 0."""

    process: int
    kind: int  # index of KINDS
    device: int  # ordinal of the device of a stream or warp, or NO_DEVICE if it isn't known; 0 for other kinds
    number: int  # a thread id, or the handle of the stream, also of a warp; 0 for ranges that no thread has pushed
    title: str = ""  # the domain of these ranges
    unit: tuple[int, int] = (0, 0)  # the block, and the number of the warp in it; NO_WARP stands for the whole block
    lane: int = 0


@dataclass(frozen=True)
class Mark:
    """A moment that the program marked with NVTX."""

    track: Track
    time: int
    name: str


@dataclass(frozen=True)
class Timeline:
    """Everything in traces that has a time. `spans` are sorted by track and start; of those with the same start, longer
    ones come first.

    `source` of a span refers to `calls` or `gpu_times`. `callers` has the index of the call for each GPU time, or -1 if
    it isn't known. `places` has, for each call, the index of the module and the ranges in which it was made.
    """

    model: TraceModel
    tracks: list[Track]
    names: list[str]
    spans: Spans
    calls: npt.NDArray[np.void]
    gpu_times: npt.NDArray[np.void]
    callers: Whole
    counters: list[Counter]
    marks: list[Mark]
    saved: SavedSpans
    places: Whole
    place_facts: list[dict[str, str]]  # the first one is empty

    @cached_property
    def edges(self) -> Whole:
        """Return the index of each track's first span, and finally the end of the last track's spans."""
        return np.searchsorted(self.spans["track"], np.arange(len(self.tracks) + 1)).astype(np.int64)

    def of(self, track: int) -> Spans:
        """Return the spans of a track."""
        return self.spans[self.edges[track] : self.edges[track + 1]]

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Return the start of the first span or mark, and the end of the last."""
        marks = [mark.time for mark in self.marks]
        begins, ends = (self.spans[name] for name in ("begin", "end"))
        if not (len(begins) or marks):
            return 0, 0
        return min([*marks, int(begins.min(initial=LAST))]), max([*marks, int(ends.max(initial=-LAST))])


def make_timeline(model: TraceModel, find_warps: FindWarps | None = None) -> Timeline:
    """Arrange everything in the model that has a time in tracks. `find_warps` returns the ranges of warps."""
    calls, gpu = model.calls(*FIELDS, "shared", *SHAPE), model.gpu_times()
    finder, copies, maker = SavedFinder(model), Copies(model), _Maker(model)
    for found in finder, copies:
        found.add_calls(calls)
        found.add_work(gpu)
    copies.join()
    saved = finder.find()
    maker.add_calls(calls, saved)
    maker.add_gpu_times(gpu, saved)
    maker.add_nodes(gpu, saved)
    if find_warps:
        maker.add_warps(find_warps(saved), saved)
    marks = maker.add_ranges()
    maker.add_gaps()
    spans, tracks = maker.lay_out()
    counters = [*copies.count_totals(), *copies.count_rates()]
    callers, (places, told) = find_callers(gpu, calls), _place_calls(model, calls)
    return Timeline(model, tracks, maker.names, spans, calls, gpu, callers, counters, marks, saved, places, told)


def _place_calls(model: TraceModel, calls: npt.NDArray[np.void]) -> tuple[Whole, list[dict[str, str]]]:
    """Find the module and the NVTX ranges for each call that starts GPU work or allocates memory."""
    found, told = np.zeros(len(calls), np.int64), [dict[str, str]()]
    wanted = np.any([model.chosen(calls, type=type_) for type_ in PLACED], axis=0)
    for number in range(len(model.processes)):
        own = np.flatnonzero(wanted & (calls["process"] == number))
        paths, which = find_paths(model, number, calls["start"][own], calls["thread"][own])
        texts = model.ranges(number).texts
        found[own] = np.where(which > 0, which + len(told) - 1, 0)
        for path in paths[1:]:
            names = zip(("layer", "range"), describe_path(path, texts), strict=True)
            told.append({key: name for key, name in names if name is not None})
    return found, told


def title(track: Track) -> str:
    """Return the name of a row."""
    match KINDS[track.kind]:
        case "stream":
            text = f"stream {track.number:#x}" if track.number else "default stream"
            text = f"{gpu(track.device)} {text}" if track.device else text
        case "thread":
            text = f"thread {track.number}"
        case "recording":
            text = "recording"
        case "warp":
            block, warp = track.unit
            text = f"block {block}" if warp == NO_WARP else f"block {block} warp {warp}"
            text = f"{text}, {title(replace(track, kind=STREAM, lane=0))}" if track.number or track.device else text
        case _:
            text = f"ranges {track.title}".rstrip()
    return f"{text} ({track.lane + 1})" if track.lane else text


def owner(process: Process) -> str:
    """Return the name of a process, without its command."""
    rank = f"rank {process.header['rank']}, " if "rank" in process.header else ""
    host = f" on {process.header['host']}" if process.header["host"] else ""  # other tracers don't record it
    return f"{rank}process {process.pid}{host}"


def by_rank(model: TraceModel) -> list[tuple[int, Process]]:
    """Return the processes in the order in which they're drawn, each with its index in the model."""
    return sorted(enumerate(model.processes), key=lambda one: one[1].header.get("rank", -1))


def gpu(device: int) -> str:
    """Return the name of a device."""
    return "a GPU" if device == NO_DEVICE else f"GPU {device}"


def number_processes(timeline: Timeline) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Choose the `pid` of each process and GPU: its own pid or ordinal, or if that's taken, the next free number."""
    taken: set[int] = set()
    hosts = {place: _free(process.pid % MOST_PID, taken) for place, process in enumerate(timeline.model.processes)}
    working = sorted({(track.process, track.device) for track in timeline.tracks if track.kind == STREAM})
    return hosts, {gpu: _free(gpu[1] % MOST_PID if gpu[1] != NO_DEVICE else 0, taken) for gpu in working}


def _free(number: int, taken: set[int]) -> int:
    while number in taken:
        number = (number + 1) % MOST_PID
    taken.add(number)
    return number


class _Maker:
    """Collects tracks, names and spans."""

    def __init__(self, model: TraceModel) -> None:
        self.names: list[str] = []
        self._model = model
        self._numbers: dict[str, int] = {}
        self._tracks: dict[Track, int] = {}
        self._spans: list[Spans] = []
        mangled = sorted({name for process in model.processes for name in process.kernels().values()})
        self._kernels = dict(zip(mangled, readable(mangled), strict=True))

    def add_calls(self, calls: npt.NDArray[np.void], saved: SavedSpans) -> None:
        """Add every call and every ioctl."""
        spans = self._add(calls, "start", THREAD, "thread")
        spans["open"] = calls["duration"] == 0
        spans["fact"] = saved.of_calls(calls)
        spans["name"] = self._name(calls, "api", lambda process, id_: process.api(id_).title)
        ioctls = self._model.chosen(calls, type="ioctl")
        spans["category"] = np.where(ioctls, IOCTL, CALL)

    def add_gpu_times(self, gpu: npt.NDArray[np.void], saved: SavedSpans) -> None:
        """Add the work on the GPU."""
        spans = self._add(gpu, "begin", STREAM, "stream")
        kernels = gpu["function"] != 0
        spans["fact"] = saved.of_work(gpu)
        spans["name"] = self._name(gpu, "api", lambda process, id_: _work(process.api(id_))[1])
        spans["category"] = self._each(gpu, "api", lambda process, id_: _work(process.api(id_))[0])
        names = self._name(
            gpu[kernels], "function", lambda process, id_: self._kernel(process.kernels().get(id_, f"#{id_}"))
        )
        spans["name"][kernels], spans["category"][kernels] = names, KERNEL

    def add_nodes(self, gpu: npt.NDArray[np.void], saved: SavedSpans) -> None:
        """Add the nodes of replays, which go to a lane below their replay."""
        known: dict[tuple[tuple[str, str], ...], int] = {}
        for nodes in iter_nodes(self._model, gpu):
            row = gpu[nodes.row]
            spans = np.zeros(len(nodes.names), SPAN)
            spans["begin"], spans["end"], spans["source"] = nodes.begins, nodes.ends, nodes.row
            track = Track(int(row["process"]), STREAM, int(row["device"]), int(row["stream"]))
            spans["track"], spans["category"] = self._track(track), NODE
            spans["name"] = [self._number(self._kernel(name)) for name in nodes.names]
            for at, facts in enumerate(nodes.facts):
                key = tuple(facts.items())
                if key not in known:
                    known[key] = len(saved.facts)
                    saved.facts.append({**facts})
                spans["fact"][at] = known[key]
            self._spans.append(spans)

    def add_warps(self, found: WarpRanges, saved: SavedSpans) -> None:
        """Add the ranges of warps, with the numbers that their probes gave them."""
        numbers = {0: 0}
        for number in np.unique(found.rows["number"]).tolist():
            if number:
                numbers[number] = len(saved.facts)
                saved.facts.append({"number": number})
        names = np.array([self._number(name) for name in found.names], np.uint32)
        for track, rows in iter_warps(found):
            spans = np.zeros(len(rows), SPAN)
            spans["begin"], spans["end"], spans["category"] = rows["begin"], rows["end"], RANGE
            spans["track"], spans["name"] = self._track(track), names[rows["name"]]
            spans["fact"] = [numbers[number] for number in rows["number"].tolist()]
            self._spans.append(spans)

    def add_ranges(self) -> list[Mark]:
        """Add NVTX ranges. Ranges that a thread pushed are added to its track. Returns the marks."""
        marks: list[Mark] = []
        for number in range(len(self._model.processes)):
            texts = self._model.ranges(number).texts
            rows = np.concatenate([np.zeros(0, RANGE_ROW), *self._model.iter_ranges(number, 0)])
            spans = np.zeros(len(rows), SPAN)
            begin, open_ = rows["begin"], rows["open"]
            spans["begin"], spans["end"] = begin, rows["end"]
            spans["category"], spans["open"] = RANGE, open_
            spans["end"][open_] = begin[open_]
            spans["source"] = np.arange(len(rows))
            spans["track"] = [self._track(track) for track in find_range_tracks(number, rows, texts)]
            spans["name"] = [self._number(texts[name][1]) for name in rows["name"].tolist()]
            self._spans.append(spans)
            marks += iter_marks(self._model, number)
        for mark in marks:
            self._track(mark.track)
        return marks

    def add_gaps(self) -> None:
        """Add the periods in which recording was off, as ranges in a separate track."""
        for number, process in enumerate(self._model.processes):
            off = self._model.unrecorded(process)
            if not len(off):
                continue
            spans = np.zeros(len(off), SPAN)
            spans["begin"], spans["end"] = off.begins, off.ends
            spans["track"] = self._track(Track(number, RECORDING, 0, 0))
            spans["name"], spans["category"] = self._number("not recorded"), RANGE
            if off.ongoing:
                spans["end"][-1], spans["open"][-1] = off.begins[-1], True
            self._spans.append(spans)

    def lay_out(self) -> tuple[Spans, list[Track]]:
        """Return all spans in order, and their tracks."""
        spans = np.concatenate([np.zeros(0, SPAN), *self._spans])
        begin, end = spans["begin"], spans["end"]
        spans["end"] = np.maximum(begin, end)
        tracks = [*self._tracks]
        processes = np.array([track.process for track in tracks], np.int64)
        of = processes[spans["track"]] if len(tracks) else np.zeros(0, np.int64)
        open_ = spans["open"]
        for number in np.unique(of[open_]):
            end[open_ & (of == number)] = end[of == number].max()
        order = np.lexsort((-spans["end"], spans["begin"], spans["track"]))
        edges = np.searchsorted(spans["track"][order], np.arange(len(tracks) + 1)).tolist()
        for track, low, high in zip(tracks, edges, edges[1:], strict=False):
            mine = order[low:high]
            lanes = find_lanes(spans["begin"][mine], spans["end"][mine], nested=track.kind != STREAM)
            for lane in range(1, int(lanes.max(initial=0)) + 1):
                spans["track"][mine[lanes == lane]] = self._track(replace(track, lane=lane))
        ordered = sorted(self._tracks)
        places = np.zeros(len(ordered), np.uint32)
        for place, track in enumerate(ordered):
            places[self._tracks[track]] = place
        if ordered:
            tracks_of = spans["track"]
            spans["track"] = places[tracks_of]
        return spans[np.lexsort((-spans["end"], spans["begin"], spans["track"]))], ordered

    def _add(self, rows: npt.NDArray[np.void], begin: str, kind: int, number: str) -> Spans:
        spans = np.zeros(len(rows), SPAN)
        spans["begin"], spans["source"] = rows[begin], np.arange(len(rows))
        spans["end"] = rows[begin] + rows["duration"].astype(np.int64)
        devices = rows["device"] if kind == STREAM else np.zeros(len(rows), np.uint32)
        places = rows["process"].astype(np.uint64) << np.uint64(32) | devices
        for place in np.unique(places).tolist():
            own = np.flatnonzero(places == place)
            numbers, which = np.unique(rows[number][own], return_inverse=True)
            tracks = [self._track(Track(place >> 32, kind, place & 0xFFFFFFFF, each)) for each in numbers.tolist()]
            spans["track"][own] = np.array(tracks, np.uint32)[which]
        self._spans.append(spans)
        return spans

    def _each(self, rows: npt.NDArray[np.void], column: str, tell: Callable[[Process, int], int]) -> Whole:
        """Call `tell` once for each distinct pair of process and id in a column, and return the results for all
        rows.
        """
        keys = rows["process"].astype(np.uint64) << np.uint64(32) | rows[column]
        known, which = np.unique(keys, return_inverse=True)
        processes = self._model.processes
        told = [tell(processes[key >> 32], key & 0xFFFFFFFF) for key in known.tolist()]
        return np.array(told, np.int64)[which]

    def _name(self, rows: npt.NDArray[np.void], column: str, tell: Callable[[Process, int], str]) -> Whole:
        return self._each(rows, column, lambda process, id_: self._number(tell(process, id_)))

    def _kernel(self, name: str) -> str:
        return self._kernels.get(name, name)

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def _track(self, track: Track) -> int:
        return self._tracks.setdefault(track, len(self._tracks))


def iter_warps(found: WarpRanges) -> Iterator[tuple[Track, npt.NDArray[np.void]]]:
    """Yield the track of each warp with its ranges, sorted by begin, outer ones first."""
    rows = found.rows[np.lexsort((-found.rows["end"], found.rows["begin"]))]
    places, which = np.unique(rows[["process", "device", "stream", "block", "warp"]], return_inverse=True)
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(which[order], np.arange(len(places) + 1)).tolist()
    for place, low, high in zip(places.tolist(), edges, edges[1:], strict=False):
        process, device, stream, *unit = place
        yield Track(process, WARP, device, stream, unit=(unit[0], unit[1])), rows[order[low:high]]


def iter_marks(model: TraceModel, process: int) -> Iterator[Mark]:
    """Yield the marks of a process, in order."""
    texts = model.ranges(process).texts
    for rows in model.ranges(process).iter_marks():
        times = model.times(model.processes[process], rows["at"])
        for time, thread, name in zip(times.tolist(), rows["thread"].tolist(), rows["name"].tolist(), strict=True):
            yield Mark(Track(process, THREAD, 0, thread), time, texts[name][1])


def find_range_tracks(process: int, rows: npt.NDArray[np.void], texts: list[tuple[str | None, str]]) -> Iterator[Track]:
    """Yield the track of each range: its thread's, or if no thread pushed it, its domain's."""
    for pushed, thread, name in rows[["pushed", "thread", "name"]].tolist():
        domain = texts[name][0] or ""
        yield Track(process, THREAD, 0, thread) if pushed else Track(process, RANGES, 0, 0, domain)


def _work(api: Api) -> tuple[int, str]:
    """Return the category and the name of the work that a call started, unless it's a kernel."""
    match api.type:
        case "memcpy":
            return MEMCPY, f"Memcpy {api.op}"
        case "memset":
            return MEMSET, "Memset"
    return KERNEL, api.name


def count_over(begins: Whole, ends: Whole) -> Whole:
    """Return, for each span, how many earlier spans have ended when it begins. Spans must be sorted, with outer ones
    first.
    """
    short = np.append(0, np.cumsum(begins == ends))  # earlier spans without duration, which end when they begin
    group = np.searchsorted(begins, begins, side="right")
    over: Whole = np.searchsorted(np.sort(ends), begins, side="right") - (short[group] - short[: len(begins)])
    return over


class Lanes:
    """Assigns lanes to the spans of a track, which come in order. Spans in the same lane are separate, or if `nested`,
    may contain each other.
    """

    def __init__(self, nested: bool) -> None:
        self._nested = nested
        self._stacks: list[list[int]] = []  # by lane: ends of spans that haven't ended, innermost last
        self._reach = -LAST  # the latest end of any span so far

    def find(self, begin: Whole, end: Whole) -> npt.NDArray[np.uint32]:
        """Return the lanes of these spans, which begin after all earlier ones."""
        lanes = np.zeros(len(begin), np.uint32)
        before = np.maximum.accumulate(np.concatenate(([self._reach], end)))
        apart = np.append(begin >= before[:-1], True)  # all earlier spans have ended
        alone = apart[:-1] & apart[1:]
        self._reach = int(before[-1])
        some = np.flatnonzero(~alone)
        for at, first, last in zip(some.tolist(), begin[some].tolist(), end[some].tolist(), strict=True):
            lanes[at] = self._place(first, last)
        if len(begin) and alone[-1]:
            self._stacks = [[int(end[-1])]]
        return lanes

    def _place(self, first: int, last: int) -> int:
        for lane, stack in enumerate(self._stacks):
            while stack and stack[-1] <= first:
                stack.pop()
            if not stack or (self._nested and stack[-1] >= last):
                stack.append(last)
                return lane
        self._stacks.append([last])
        return len(self._stacks) - 1


def find_lanes(begin: Whole, end: Whole, nested: bool) -> npt.NDArray[np.uint32]:
    """Return a lane for each span, in order."""
    return Lanes(nested).find(begin, end)
