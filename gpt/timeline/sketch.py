"""Draw traces of any length: for each track, find how long each kind of activity took in each slice of time.

Calls and GPU times are read twice, in chunks: first to find the tracks, and when everything begins and ends, and then
to add up times. So memory doesn't grow with the trace, whereas a Timeline has every span in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt.timeline.counters import Copies, Counter
from gpt.timeline.nodes import is_timed, iter_nodes
from gpt.timeline.saved import SavedFinder, SavedSpans
from gpt.timeline.tracks import (
    FIELDS,
    LAST,
    RECORDING,
    STREAM,
    THREAD,
    FindWarps,
    Lanes,
    Mark,
    Track,
    Whole,
    find_range_tracks,
    iter_marks,
    iter_warps,
)
from gpt.trace.calls_store import GPU

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

Cells = npt.NDArray[np.float64]
Rows = npt.NDArray[np.void]
# The kind of an activity (an index), by process, id of the function, and whether it's GPU work, a kernel (then the id
# doesn't matter), or a kernel with probes.
TellKind = Callable[[int, int, "Work"], int]
SPAN = [("begin", "<i8"), ("end", "<i8"), ("kind", "u1"), ("open", "?")]
NODE = [("begin", "<i8"), ("end", "<i8"), ("type", "<u8")]


@dataclass(frozen=True)
class Work:
    """The properties of an activity, besides its function."""

    on_gpu: bool
    kernel: bool = False
    probed: bool = False
    copies: bool = False  # a node of a graph that copies or sets memory; in which direction isn't known


@dataclass(frozen=True)
class NamedRange:
    """A range of a track."""

    begin: int
    end: int
    name: str
    open: bool


class Scene:
    """The results of the first pass: the tracks, without lanes, and when everything begins and ends."""

    def __init__(self, model: TraceModel, saved: SavedSpans | None = None, find_warps: FindWarps | None = None) -> None:
        """Read the model. Finding the facts about `saved` data takes a pass over all calls, so they can be passed if
        they're already known. `find_warps` returns the ranges of warps.
        """
        self.model = model
        self.tracks: set[Track] = set()
        self.bounds = LAST, -LAST
        self.ends: dict[int, int] = {}  # the end of each process's last span
        self.open = self.marked = False
        finder, copies = SavedFinder(model), Copies(model)
        for calls in model.iter_calls(*FIELDS):
            finder.add_calls(calls)
            copies.add_calls(calls)
            self.open |= bool((calls["duration"] == 0).any())
            self._add(calls, "start", THREAD)
        timed = [np.zeros(0, GPU)]
        for work in model.iter_gpu_times(model.gpus()):
            finder.add_work(work)
            copies.add_work(work)
            self._add(work, "begin", STREAM)
            timed.append(work[is_timed(model, work)])
        self.nodes = _read_nodes(model, np.concatenate(timed))
        copies.join()
        self.rates: list[Counter] = list(copies.count_rates())
        self.saved = saved or finder.find()
        self.warps = find_warps(self.saved) if find_warps else None
        for track, rows in iter_warps(self.warps) if self.warps else ():
            self.tracks.add(track)
            self._extend(track.process, int(rows["begin"].min()), int(rows["end"].max()))
        for number, process in enumerate(model.processes):
            self._add_ranges(number)
            off = model.unrecorded(process)
            if len(off):
                self.tracks.add(Track(number, RECORDING, 0, 0))
                self.open |= off.ongoing
                ends = off.ends[:-1] if off.ongoing else off.ends
                self._extend(number, int(off.begins.min()), int(max([off.begins.max(), *ends])))
        self.bounds = (0, 0) if self.bounds[0] == LAST else self.bounds

    @property
    def empty(self) -> bool:
        """True if nothing has a time."""
        return not self.tracks

    def _add(self, rows: Rows, begin: str, kind: int) -> None:
        ends = rows[begin] + rows["duration"].astype(np.int64)
        for process in np.unique(rows["process"]).tolist():
            own = rows["process"] == process
            self._extend(process, int(rows[begin][own].min()), int(max(ends[own].max(), rows[begin][own].max())))
        self.tracks.update(track for track, _ in iter_tracks(rows, kind))

    def _extend(self, process: int, begin: int, end: int) -> None:
        self.bounds = min(self.bounds[0], begin), max(self.bounds[1], end)
        self.ends[process] = max(self.ends.get(process, -LAST), end)

    def _add_ranges(self, number: int) -> None:
        texts = self.model.ranges(number).texts
        for rows in self.model.iter_ranges(number, 0):
            self.tracks.update(find_range_tracks(number, rows, texts))
            self.open |= bool(rows["open"].any())
            ends = np.where(rows["open"], rows["begin"], rows["end"])
            self._extend(number, int(rows["begin"].min()), int(ends.max()))
        for mark in iter_marks(self.model, number):
            self.tracks.add(mark.track)
            self.bounds = min(self.bounds[0], mark.time), max(self.bounds[1], mark.time)
            self.marked = True

    def iter_ranges(self, number: int) -> Iterator[tuple[Track, NamedRange]]:
        """Yield the ranges of a process in order, outer ones first, each with its track, without lanes."""
        process, texts = self.model.processes[number], self.model.ranges(number).texts
        off, last = self.model.unrecorded(process), self.ends.get(number, 0)
        for begin, end in zip(off.begins.tolist(), off.ends.tolist(), strict=True):
            ongoing = off.ongoing and begin == off.begins[-1]
            yield Track(number, RECORDING, 0, 0), NamedRange(begin, last if ongoing else end, "not recorded", ongoing)
        for rows in self.model.iter_ranges(number, 0):
            begins, ends, open_ = rows["begin"], rows["end"], rows["open"]
            until = np.maximum(last, begins)
            ends = np.where(open_, until, ends)
            columns = begins.tolist(), ends.tolist(), rows["name"].tolist(), open_.tolist()
            for track, begin, end, name, open_ in zip(find_range_tracks(number, rows, texts), *columns, strict=True):
                yield track, NamedRange(begin, end, texts[name][1], open_)


def _read_nodes(model: TraceModel, replays: Rows) -> tuple[Rows, Rows]:
    """Return the replay that each timed node belongs to, and the nodes, as rows of NODE in order."""
    parts = [(replays[:0], np.zeros(0, NODE))]
    for nodes in iter_nodes(model, replays):
        part = np.zeros(len(nodes.types), NODE)
        part["begin"], part["end"], part["type"] = nodes.begins, np.maximum(nodes.begins, nodes.ends), nodes.types
        parts.append((replays[np.full(len(part), nodes.row)], part))
    rows, found = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((-found["end"], found["begin"]))
    return rows[order], found[order]


def iter_tracks(rows: Rows, kind: int) -> Iterator[tuple[Track, Whole]]:
    """Yield the tracks of calls or GPU times, without lanes, each with the indexes of its rows."""
    devices = rows["device"] if kind == STREAM else np.zeros(len(rows), np.uint32)
    places = rows["process"].astype(np.uint64) << np.uint64(32) | devices
    for place in np.unique(places).tolist():
        own = np.flatnonzero(places == place)
        numbers, which = np.unique(rows["stream" if kind == STREAM else "thread"][own], return_inverse=True)
        for at, number in enumerate(numbers.tolist()):
            yield Track(place >> 32, kind, place & 0xFFFFFFFF, number), own[which == at]


@dataclass
class Row:
    """A row in the drawing: for each slice of time, the ns that each kind of activity took. Also has the ends of open
    spans.

    Time that's covered by several spans of a kind counts once.
    """

    took: Cells
    ends: set[int] = field(default_factory=set)
    ranges: list[NamedRange] = field(default_factory=list)  # ranges that are wide enough for a name
    has_ranges: bool = False
    marks: dict[int, Mark] = field(default_factory=dict)  # the first one in each slice

    def __post_init__(self) -> None:
        self._reach = np.full(len(self.took), -LAST)  # by kind: when the last span ended

    @property
    def used(self) -> bool:
        """True if it contains anything besides ranges."""
        return bool((self._reach > -LAST).any())

    def add(self, spans: Rows, edges: Cells) -> None:
        """Add spans, which must come in order."""
        for kind in np.unique(spans["kind"]).tolist():
            own = spans[spans["kind"] == kind]
            reach = np.maximum.accumulate(np.concatenate(([self._reach[kind]], own["end"])))
            begin = np.maximum(own["begin"], reach[:-1])
            end = np.maximum(own["end"], begin)
            self.took[kind] += np.diff(_since(begin, edges) - _since(end, edges))
            self._reach[kind] = reach[-1]
        open_ends = spans["end"][spans["open"]]
        self.ends.update(np.unique(open_ends).tolist())


class Sketch:
    """The rows of a scene's tracks, with lanes, for slices of time between `edges`.

    `noted` has the names of activities for which there are facts. For each, it has the number of them, and the facts
    about the first.
    """

    def __init__(self, scene: Scene, edges: Cells, kinds: int, tell_kind: TellKind, ranges: list[int]) -> None:
        """Draw a scene with this many `kinds` of activities. `ranges` has the kind of each name of warps' ranges."""
        self.rows: dict[Track, Row] = {}
        self.noted: dict[str, tuple[int, int]] = {}
        self._scene, self._edges, self._kinds, self._tell_kind = scene, edges, kinds, tell_kind
        self._lanes: dict[Track, Lanes] = {}
        self._known: dict[tuple[int, int, Work], int] = {}
        facts = scene.saved.facts
        self._probed = np.array([bool(one) and "unprobed" not in one for one in facts])
        model, first = scene.model, 0
        for track in scene.tracks:
            self._row(track)
        for calls in model.iter_calls(*FIELDS):
            self._add(calls, "start", THREAD, scene.saved.of_calls(calls, first))
            first += len(calls)
        first = 0
        for work in model.iter_gpu_times(model.gpus()):
            self._add(work, "begin", STREAM, scene.saved.of_work(work, first))
            first += len(work)
        self._add_warps(ranges)
        self._add_nodes()
        self._lanes.clear()  # ranges are drawn above the other spans of their track
        for number in range(len(model.processes)):
            self._add_ranges(number)

    def _row(self, track: Track) -> Row:
        if track not in self.rows:
            self.rows[track] = Row(np.zeros((self._kinds, len(self._edges) - 1)))
        return self.rows[track]

    def _find_lanes(self, track: Track, begin: Whole, end: Whole) -> npt.NDArray[np.uint32]:
        if track not in self._lanes:
            self._lanes[track] = Lanes(nested=track.kind != STREAM)
        return self._lanes[track].find(begin, end)

    def _add(self, rows: Rows, begin: str, kind: int, facts: npt.NDArray[np.uint32]) -> None:
        spans = np.zeros(len(rows), SPAN)
        spans["begin"] = rows[begin]
        spans["end"] = rows[begin] + rows["duration"].astype(np.int64)
        spans["open"] = rows["duration"] == 0 if kind == THREAD else False
        open_, of, begins, ends = spans["open"], rows["process"], spans["begin"], spans["end"]
        open_of = of[open_]
        for process in np.unique(open_of).tolist():
            ends[open_ & (of == process)] = self._scene.ends[process]
        spans["end"] = np.maximum(begins, ends)
        spans["kind"] = self._find_kinds(rows, kind == STREAM, facts)
        self._note(rows, kind == STREAM, facts)
        for track, mine in iter_tracks(rows, kind):
            own = spans[mine]
            own = own[np.lexsort((-own["end"], own["begin"]))]
            lanes = self._find_lanes(track, own["begin"], own["end"])
            for lane in np.unique(lanes).tolist():
                self._row(replace(track, lane=lane)).add(own[lanes == lane], self._edges)

    def _add_nodes(self) -> None:
        """Add the nodes of replays, in a lane below the other work of their stream."""
        rows, nodes = self._scene.nodes
        spans = np.zeros(len(nodes), SPAN)
        spans["begin"], spans["end"] = nodes["begin"], nodes["end"]
        for kernel in (True, False):
            own = (nodes["type"] == 0) == kernel
            spans["kind"][own] = self._tell_kind(0, 0, Work(True, kernel, copies=not kernel)) if own.any() else 0
        for track, mine in list(iter_tracks(rows, STREAM)):
            free = 1 + max((one.lane for one in self.rows if replace(one, lane=0) == track), default=0)
            own, lanes = spans[mine], Lanes(nested=False).find(spans["begin"][mine], spans["end"][mine])
            for lane in np.unique(lanes).tolist():
                self._row(replace(track, lane=free + lane)).add(own[lanes == lane], self._edges)

    def _find_kinds(self, rows: Rows, on_gpu: bool, facts: npt.NDArray[np.uint32]) -> Whole:
        kernels = rows["function"] != 0 if on_gpu else np.zeros(len(rows), bool)
        keys = rows["process"].astype(np.uint64) << np.uint64(34) | rows["api"].astype(np.uint64) << np.uint64(2)
        keys |= kernels.astype(np.uint64) << np.uint64(1) | self._probed[facts]
        known, which = np.unique(keys, return_inverse=True)
        kinds = []
        for key in known.tolist():
            what = key >> 34, key >> 2 & 0xFFFFFFFF, Work(on_gpu, bool(key & 2), bool(key & 1))
            if what not in self._known:
                self._known[what] = self._tell_kind(*what)
            kinds.append(self._known[what])
        return np.array(kinds, np.int64)[which]

    def _note(self, rows: Rows, on_gpu: bool, facts: npt.NDArray[np.uint32]) -> None:
        some = np.flatnonzero(facts)
        for at in some.tolist():
            process, row = self._scene.model.processes[int(rows["process"][at])], rows[at]
            name = process.api(int(row["api"])).title
            if on_gpu and row["function"]:
                name = process.kernels().get(int(row["function"]), f"#{row['function']}")
            count, fact = self.noted.get(name, (0, int(facts[at])))
            self.noted[name] = count + 1, fact

    def _add_warps(self, kinds: list[int]) -> None:
        for track, rows in iter_warps(self._scene.warps) if self._scene.warps else ():
            spans = np.zeros(len(rows), SPAN)
            spans["begin"], spans["end"] = rows["begin"], rows["end"]
            names = rows["name"]
            spans["kind"] = np.array(kinds)[names]
            lanes = self._find_lanes(track, spans["begin"].astype(np.int64), spans["end"].astype(np.int64))
            for lane in np.unique(lanes).tolist():
                self._row(replace(track, lane=lane)).add(spans[lanes == lane], self._edges)

    def _add_ranges(self, number: int) -> None:
        edges = self._edges
        least = edges[1] - edges[0]  # shorter ranges aren't wide enough for a name
        for track, one in self._scene.iter_ranges(number):
            lane = int(self._find_lanes(track, np.array([one.begin]), np.array([one.end]))[0])
            row = self._row(replace(track, lane=lane))
            row.has_ranges = True
            if one.end - one.begin > least:
                row.ranges.append(one)
        for mark in iter_marks(self._scene.model, number):
            cell = int(np.clip(np.searchsorted(edges, mark.time) - 1, 0, len(edges) - 2))
            self._row(mark.track).marks.setdefault(cell, mark)


def _since(times: Whole, moments: Cells) -> Cells:
    """For each moment, add up the time that has passed since each of the earlier `times`, which must be sorted."""
    sums = np.append(0.0, np.cumsum(times - times[0], dtype=np.float64))
    count = np.searchsorted(times, moments)
    found: Cells = count * (moments - times[0]) - sums[count]
    return found
