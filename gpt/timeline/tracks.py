"""Traces as tracks: for each thread and each stream of a process a row of spans.

Spans of a thread, its calls and the ranges that it pushed, lie within each other or apart; those of a stream lie apart.
What overlaps otherwise has a row of its own, a further lane of its track, because no viewer can draw it in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt.screen.demangle import readable
from gpt.trace.model import NO_DEVICE

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Api, Process

Whole = npt.NDArray[np.int64]
Spans = npt.NDArray[np.void]

LAST = (1 << 63) - 1
TOGETHER = 4  # calls of different threads that may begin in the same nanosecond

# `source` is the place in the calls, GPU times or ranges. A span that is `open` has no end in the trace, and is drawn
# until the last one of its process.
SPAN = np.dtype(
    [
        ("begin", "<i8"),
        ("end", "<i8"),
        ("track", "<u4"),
        ("name", "<u4"),
        ("source", "<u4"),
        ("category", "u1"),
        ("open", "?"),
    ]
)
CATEGORIES = ("call", "ioctl", "kernel", "memcpy", "memset", "range")
CALL, IOCTL, KERNEL, MEMCPY, MEMSET, RANGE = range(len(CATEGORIES))
KINDS = ("range", "thread", "stream")  # of tracks, in the order in which they are drawn
STREAM = KINDS.index("stream")
SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


@dataclass(frozen=True, order=True)
class Track:
    """A row of a process, which is a place in the model. `lane` counts the rows that a track needs, from 0."""

    process: int
    kind: int  # of KINDS
    device: int  # of a stream, an ordinal; NO_DEVICE if that is not known; of all others 0
    number: int  # a thread id, or the handle of a stream; of ranges that no thread pushed 0
    title: str = ""  # their domain
    lane: int = 0


@dataclass(frozen=True)
class Counter:
    """A figure over time: from `times` on, in ns, it is `values`."""

    process: int
    name: str
    times: Whole
    values: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mark:
    """A moment that the program marked with NVTX, or the first that the trace does not have."""

    track: Track
    time: int
    name: str


@dataclass(frozen=True)
class Timeline:
    """All that traces say when: `spans` by track and begin, the longest of those that begin together first.

    `calls` and `gpu_times` are what spans have their `source` in; `callers` are the places of the calls that the
    latter are of, -1 where that is not known.
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

    @cached_property
    def edges(self) -> Whole:
        """Where the spans of each track begin, and those of the last one end."""
        return np.searchsorted(self.spans["track"], np.arange(len(self.tracks) + 1)).astype(np.int64)

    def of(self, track: int) -> Spans:
        """The spans of a track."""
        return self.spans[self.edges[track] : self.edges[track + 1]]

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """When the first span begins, and the last one ends."""
        return int(self.spans["begin"].min(initial=LAST)), int(self.spans["end"].max(initial=0))


def make_timeline(model: TraceModel, counters: Iterable[Counter] = ()) -> Timeline:
    """What the model says when, as tracks, with counters that others have made of it."""
    calls, gpu = model.calls("function", "bytes", "stream", "shared", *SHAPE), model.gpu_times()
    maker = _Maker(model)
    maker.add_calls(calls)
    maker.add_gpu_times(gpu)
    marks = maker.add_ranges()
    spans, tracks = maker.lay_out()
    return Timeline(
        model,
        tracks,
        maker.names,
        spans,
        calls,
        gpu,
        find_callers(gpu, calls),
        [*counters, *count(model, calls)],
        marks,
    )


def find_callers(gpu: npt.NDArray[np.void], calls: npt.NDArray[np.void]) -> Whole:
    """The place of the call that each of the GPU times is of, -1 where there is none. Calls are oldest first."""
    found = np.full(len(gpu), -1, np.int64)
    at = np.searchsorted(calls["start"], gpu["call"])
    for _ in range(TOGETHER):
        left = np.flatnonzero((found < 0) & (at < len(calls)))
        call = calls[at[left]]
        same = call["start"] == gpu["call"][left]
        for name in ("process", "thread"):
            same &= call[name] == gpu[name][left]
        found[left[same]] = at[left[same]]
        at[left] += 1
    return found


def count(model: TraceModel, calls: npt.NDArray[np.void]) -> list[Counter]:
    """The bytes that each process has copied by then, by direction."""
    found = []
    good = (calls["result"] == 0) & model.chosen(calls, type="memcpy") & (calls["bytes"] > 0)
    for op in sorted({api.op for process in model.processes for api in process.apis.values() if api.type == "memcpy"}):
        chosen = good & model.chosen(calls, op=op)
        for process in np.unique(calls["process"][chosen]).tolist():
            own = calls[chosen & (calls["process"] == process)]
            total = np.cumsum(own["bytes"].astype(np.int64))
            found.append(Counter(process, f"bytes copied {op}", own["start"].copy(), total))
    return found


def title(track: Track) -> str:
    """What a row is called."""
    match KINDS[track.kind]:
        case "stream":
            text = f"stream {track.number:#x}" if track.number else "default stream"
            text = f"{gpu(track.device)} {text}" if track.device else text
        case "thread":
            text = f"thread {track.number}"
        case _:
            text = f"ranges {track.title}".rstrip()
    return f"{text} ({track.lane + 1})" if track.lane else text


def gpu(device: int) -> str:
    """What a device is called."""
    return "a GPU" if device == NO_DEVICE else f"GPU {device}"


def number_processes(timeline: Timeline) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """The `pid` of each process, and of each GPU of it: its own, and the ordinal; the next one if that is taken."""
    taken: set[int] = set()
    hosts = {place: _free(process.pid, taken) for place, process in enumerate(timeline.model.processes)}
    working = sorted({(track.process, track.device) for track in timeline.tracks if track.kind == STREAM})
    return hosts, {gpu: _free(gpu[1] if gpu[1] != NO_DEVICE else 0, taken) for gpu in working}


def _free(number: int, taken: set[int]) -> int:
    while number in taken:
        number += 1
    taken.add(number)
    return number


class _Maker:
    """What was made of the model so far."""

    def __init__(self, model: TraceModel) -> None:
        self.names: list[str] = []
        self._model = model
        self._numbers: dict[str, int] = {}
        self._tracks: dict[Track, int] = {}
        self._spans: list[Spans] = []
        mangled = sorted({name for process in model.processes for name in process.kernels().values()})
        self._kernels = dict(zip(mangled, readable(mangled), strict=True))

    def add_calls(self, calls: npt.NDArray[np.void]) -> None:
        """Every call, and every ioctl."""
        spans = self._add(calls, "start", KINDS.index("thread"), "thread")
        spans["open"] = calls["duration"] == 0
        spans["name"] = self._name(calls, "api", lambda process, id_: process.api(id_).name)
        ioctls = self._model.chosen(calls, type="ioctl")
        spans["category"] = np.where(ioctls, IOCTL, CALL)

    def add_gpu_times(self, gpu: npt.NDArray[np.void]) -> None:
        """What ran on the GPU."""
        spans = self._add(gpu, "begin", STREAM, "stream")
        kernels = gpu["function"] != 0
        spans["name"] = self._name(gpu, "api", lambda process, id_: _work(process.api(id_))[1])
        spans["category"] = self._each(gpu, "api", lambda process, id_: _work(process.api(id_))[0])
        names = self._name(
            gpu[kernels], "function", lambda process, id_: self._kernel(process.kernels().get(id_, f"#{id_}"))
        )
        spans["name"][kernels], spans["category"][kernels] = names, KERNEL

    def add_ranges(self) -> list[Mark]:
        """Ranges of NVTX: those that a thread pushed lie on its track. Returns the marks."""
        marks: list[Mark] = []
        for number, process in enumerate(self._model.processes):
            ends = {one["id"]: one["end"] for one in process.ranges if one["kind"] == "range_end"}
            begun = [one for one in process.ranges if one["kind"] == "range"]
            starts = self._model.times(process, np.array([one["start"] for one in begun], np.uint64))
            stops = self._model.times(
                process, np.array([ends.get(one.get("id"), one["start"]) for one in begun], np.uint64)
            )
            spans = np.zeros(len(begun), SPAN)
            spans["begin"], spans["end"], spans["category"] = starts, stops, RANGE
            used = np.ones(len(begun), bool)
            for at, one in enumerate(begun):
                track = Track(number, KINDS.index("thread"), 0, one["thread"])
                if one["type"] == "mark":
                    marks.append(Mark(track, int(starts[at]), one.get("name", "")))
                    used[at] = False
                elif one["type"] == "start":
                    track = Track(number, KINDS.index("range"), 0, 0, one.get("domain", ""))
                spans["track"][at] = self._track(track)
                spans["name"][at] = self._number(one.get("name", ""))
                spans["open"][at] = one.get("id") not in ends
                spans["source"][at] = at
            self._spans.append(spans[used])
        return marks

    def lay_out(self) -> tuple[Spans, list[Track]]:
        """All spans in order, and their tracks."""
        spans = np.concatenate([np.zeros(0, SPAN), *self._spans])
        spans["end"] = np.maximum(spans["begin"], spans["end"])
        tracks = [*self._tracks]
        processes = np.array([track.process for track in tracks], np.int64)
        of = processes[spans["track"]] if len(tracks) else np.zeros(0, np.int64)
        for number in np.unique(of[spans["open"]]):
            spans["end"][spans["open"] & (of == number)] = spans["end"][of == number].max()
        for number, track in enumerate(tracks):
            mine = np.flatnonzero(spans["track"] == number)
            mine = mine[np.lexsort((-spans["end"][mine], spans["begin"][mine]))]
            lanes = find_lanes(spans["begin"][mine], spans["end"][mine], nested=track.kind != STREAM)
            for lane in range(1, int(lanes.max(initial=0)) + 1):
                spans["track"][mine[lanes == lane]] = self._track(replace(track, lane=lane))
        ordered = sorted(self._tracks)
        places = np.zeros(len(ordered), np.uint32)
        for place, track in enumerate(ordered):
            places[self._tracks[track]] = place
        if ordered:
            spans["track"] = places[spans["track"]]
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
        """What is told of each row's process and the id in a column, asked once for each."""
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


def _work(api: Api) -> tuple[int, str]:
    """The category and the name of what a call made the GPU do, if not a kernel."""
    match api.type:
        case "memcpy":
            return MEMCPY, f"Memcpy {api.op}"
        case "memset":
            return MEMSET, "Memset"
    return KERNEL, api.name


def find_lanes(begin: Whole, end: Whole, nested: bool) -> npt.NDArray[np.uint32]:
    """The row of each span: in a row they lie apart or, if they may be `nested`, within each other."""
    lanes = np.zeros(len(begin), np.uint32)
    if (begin[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return lanes
    stacks: list[list[int]] = []  # by lane, the ends of spans that are not over, the next one last
    for at, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        for lane, stack in enumerate(stacks):  # noqa: B007
            while stack and stack[-1] <= first:
                stack.pop()
            if not stack or (nested and stack[-1] >= last):
                break
        else:
            lane, stack = len(stacks), []
            stacks.append(stack)
        stack.append(last)
        lanes[at] = lane
    return lanes
