"""A timeline as Perfetto's protobuf: calls and ranges are track events, and work on the GPU is in typed GPU records.

https://perfetto.dev/docs/reference/trace-packet-proto. Python's package `perfetto` has the schema, and encodes
everything that occurs once or is repeated; data that's different for each span is encoded by columns (wire.py). A
record of work (GpuRenderStageEvent) names its stream, the work, and for a kernel, the grid and the block; the call that
started it has its `event_id`, which produces an arrow. Times are in ns since the first process began.

Perfetto has shown the names of records, their launches and these arrows since 2026. Earlier versions show a record
under the name of its stage, so each name has a stage of its own, and the description of the stage is the category: a
kernel, a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gpt.base.install import missing_package
from gpt.base.printable import valid
from gpt.timeline import wire
from gpt.timeline.counters import Counter
from gpt.timeline.tracks import (
    CATEGORIES,
    CORRELATION,
    KERNEL,
    NODE,
    RANGE,
    SHAPE,
    STREAM,
    Spans,
    Timeline,
    Whole,
    count_over,
    number_processes,
    owner,
    title,
)
from gpt.timeline.wire import Columns

WINDOW = 1 << 13  # packets that are encoded at once
SEQUENCE = 1  # id of our sequence of packets, in which interned names stay valid
NOTES = ("correlation", "bytes", "result", "shared memory", "incomplete")
LINKS, EVENT_IDS = 3000, 1  # GpuTrackEvent.gpu_correlation extends TrackEvent, but isn't in the package's schema
ARROWS = 1000  # limit for the arrows of a call
NO_CALL = 1 << 62  # for ranges
LIMIT = 1 << 63  # larger numbers don't fit in int64


def iter_bytes(timeline: Timeline) -> Iterator[bytes]:
    """Yield the trace in parts. Raises MissingError without the package."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
    except ImportError:
        raise missing_package("perfetto") from None
    yield from _Writer(timeline, schema).iter_parts()


class _Writer:
    """Makes packets from spans. `iid`s are indexes of names in lists, starting with 1; 0 stands for no name."""

    def __init__(self, timeline: Timeline, schema: Any) -> None:
        self._timeline = timeline
        self._schema = schema
        self._hosts, self._gpus = number_processes(timeline)
        self._zero = min(0, timeline.bounds[0])  # spans may begin before the first process, but packets may not
        are_streams = np.array([track.kind == STREAM for track in timeline.tracks], bool)
        self._work = np.flatnonzero(are_streams[timeline.spans["track"]]) if len(are_streams) else are_streams
        streams = sorted({title(track) for track in timeline.tracks if track.kind == STREAM})
        self._queues = {name: iid for iid, name in enumerate(streams, 1)}
        kinds = self._timeline.spans["name"].astype(np.int64) * len(CATEGORIES) + self._timeline.spans["category"]
        self._stages = {kind: iid for iid, kind in enumerate(np.unique(kinds[self._work]).tolist(), len(streams) + 1)}
        none = np.zeros(1, timeline.calls.dtype)
        self._called = np.concatenate([timeline.calls, none])  # the last row is call -1
        self._places = np.append(timeline.places, 0)
        self._made = np.argsort(timeline.callers, kind="stable")  # work, sorted by its call
        self._callers = timeline.callers[self._made]

    def iter_parts(self) -> Iterator[bytes]:
        """Yield all packets."""
        yield self._begin()
        yield from self._iter_calls()
        for at in range(0, len(self._work), WINDOW):
            yield self._records(self._timeline.spans[self._work[at : at + WINDOW]])
        for place, counter in enumerate(self._timeline.counters):
            yield from self._iter_counter(self._process(len(self._timeline.model.processes) + place), counter)
        yield self._marks()

    def _begin(self) -> bytes:
        """Make the names, processes and tracks."""
        trace = self._schema.Trace()
        packet = self._add(trace)
        packet.sequence_flags = self._schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        said = packet.interned_data
        for known, names in ((said.event_names, self._timeline.names), (said.event_categories, CATEGORIES),
                             (said.debug_annotation_names, NOTES)):  # fmt: skip
            for iid, name in enumerate(names, 1):
                known.add(iid=iid, name=_text(name))
        for name, iid in self._queues.items():
            said.gpu_specifications.add(iid=iid, name=name, category="COMPUTE")
        for kind, iid in self._stages.items():
            name, category = divmod(kind, len(CATEGORIES))
            told = {"name": _text(self._timeline.names[name]), "description": CATEGORIES[category]}
            said.gpu_specifications.add(iid=iid, **told, category="COMPUTE")
        for place, process in enumerate(self._timeline.model.processes):
            said.graphics_contexts.add(iid=place + 1, pid=self._hosts[place], api="CUDA")
            words = [_text(word) for word in process.header["argv"]]
            told = self._add(trace).track_descriptor
            told.uuid, told.process.pid = self._process(place), self._hosts[place]
            told.process.process_name = _text(f"{' '.join(words)}, {owner(process)}")
            told.process.cmdline.extend(words)
        for number, track in enumerate(self._timeline.tracks):
            if track.kind != STREAM:
                told = self._add(trace).track_descriptor
                told.uuid, told.parent_uuid, told.name = number + 1, self._process(track.process), _text(title(track))
        for line in self._timeline.model.incomplete:
            event = self._event(trace, self._timeline.bounds[0], "TYPE_INSTANT", self._process(0))
            event.name = _text(f"incomplete: {line}")
        return _pack(trace)

    def _process(self, place: int) -> int:
        """Return the number of the track of a process. Tracks of threads have lower numbers, and counters higher
        ones.
        """
        return len(self._timeline.tracks) + 1 + place

    def _add(self, trace: Any, time: int = 0) -> Any:
        return trace.packet.add(
            trusted_packet_sequence_id=SEQUENCE,
            timestamp=time - self._zero,
            sequence_flags=self._schema.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
        )

    def _event(self, trace: Any, time: int, type_: str, track: int) -> Any:
        event = self._add(trace, time).track_event
        event.type, event.track_uuid = getattr(self._schema.TrackEvent, type_), track
        return event

    def _packets(self, times: Whole, name: str, *fields: Columns) -> bytes:
        """Make a packet for each time, which contains a message with these fields."""
        schema = self._schema.TracePacket
        same = schema(trusted_packet_sequence_id=SEQUENCE, sequence_flags=schema.SEQ_NEEDS_INCREMENTAL_STATE)
        parts = (
            wire.number(_field(schema, "timestamp"), times - self._zero),
            wire.constant(_pack(same), len(times)),
            wire.message(_field(schema, name), *fields),
        )
        return wire.message(_field(self._schema.Trace, "packet"), *parts).pack()

    def _iter_calls(self) -> Iterator[bytes]:
        """Yield the starts and ends of calls, ioctls and ranges, track by track, in order."""
        event, names, kinds = self._schema.TrackEvent, len(self._timeline.names), len(CATEGORIES)
        parts = [(np.zeros(0, bool), np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for number, track in enumerate(self._timeline.tracks):
            if track.kind != STREAM:
                spans = self._timeline.of(number)
                opens, places = order_ends(spans["begin"], spans["end"])
                times = np.where(opens, spans["begin"][places], np.sort(spans["end"])[places])
                parts.append((opens, places + self._timeline.edges[number], times))
        opens, places, times = (np.concatenate(column) for column in zip(*parts, strict=True))

        def make(key: int) -> Any:
            number, what = divmod(key, names * kinds + 1)
            name, category = divmod(what - 1, kinds)
            if not what:
                return event(type=event.TYPE_SLICE_END, track_uuid=number + 1)
            return event(
                type=event.TYPE_SLICE_BEGIN, track_uuid=number + 1, name_iid=name + 1, category_iids=[category + 1]
            )

        for at in range(0, len(times), WINDOW):
            here = opens[at : at + WINDOW]
            rows = self._timeline.spans[places[at : at + WINDOW]]
            what = np.where(here, rows["name"].astype(np.int64) * kinds + rows["category"] + 1, 0)
            told = wire.join(*self._annotations(rows), self._arrows(rows))
            same = _repeated(rows["track"].astype(np.int64) * (names * kinds + 1) + what, make)
            yield self._packets(times[at : at + WINDOW], "track_event", same, wire.where(here, told))

    def _annotations(self, spans: Spans) -> Iterator[Columns]:
        """Yield the NOTES that each call has, the facts from its probes, and whether its end is missing."""
        schema = self._schema.DebugAnnotation
        field = _field(self._schema.TrackEvent, "debug_annotations")
        source = np.where(spans["category"] != RANGE, spans["source"].astype(np.int64), -1)
        calls, number = self._called[source], np.where(source >= 0, source + CORRELATION, 0)
        for iid, values in enumerate((number, calls["bytes"], calls["result"]), 1):
            name = wire.constant(_pack(schema(name_iid=iid)), len(spans))
            note = wire.message(field, name, wire.number(_field(schema, "int_value"), values))
            yield wire.where(values != 0, note)
        saved, places = self._timeline.saved.facts, self._timeline.place_facts
        yield _repeated(spans["fact"], lambda fact: self._annotate(saved[fact]))
        yield _repeated(self._places[source], lambda place: self._annotate(places[place]))
        open_ = schema(name_iid=len(NOTES), bool_value=True)
        marked = _pack(self._schema.TrackEvent(debug_annotations=[open_]))
        yield wire.where(spans["open"], wire.constant(marked, len(spans)))

    def _annotate(self, facts: Mapping[str, int | str]) -> Any:
        note = self._schema.DebugAnnotation
        told = [
            note(name=_text(name), int_value=value)
            if isinstance(value, int) and value < LIMIT
            else note(name=_text(name), string_value=_text(str(value)))
            for name, value in facts.items()
        ]
        return self._schema.TrackEvent(debug_annotations=told)

    def _arrows(self, spans: Spans) -> Columns:
        """Return the ids of the GPU work that each call started."""
        source = np.where(spans["category"] != RANGE, spans["source"].astype(np.int64), NO_CALL)
        first = np.searchsorted(self._callers, source)
        counts = np.minimum(np.searchsorted(self._callers, source, side="right") - first, ARROWS)
        parts = []
        for turn in range(int(counts.max(initial=0))):
            has = counts > turn
            ids = np.zeros(len(spans), np.int64)
            ids[has] = self._made[first[has] + turn] + 1
            parts.append(wire.where(has, wire.number(EVENT_IDS, ids)))
        told = wire.message(LINKS, *parts) if parts else wire.constant(b"", len(spans))
        return wire.where(counts > 0, told)

    def _records(self, spans: Spans) -> bytes:
        """Make records of kernels, copies and other work, in the form that the schema has for GPUs."""
        event, names, kinds = self._schema.GpuRenderStageEvent, len(self._timeline.names), len(CATEGORIES)

        def same(key: int) -> Any:
            number, what = divmod(key, names * kinds)
            track = self._timeline.tracks[number]
            queue, gpu = self._queues[title(track)], self._gpus[track.process, track.device]
            return event(hw_queue_iid=queue, stage_iid=self._stages[what], gpu_id=gpu, context=track.process + 1,
                         name_iid=what // kinds + 1)  # fmt: skip

        keys = (spans["track"].astype(np.int64) * names + spans["name"]) * kinds + spans["category"]
        source = spans["source"].astype(np.int64)
        callers = self._timeline.callers[source]
        calls = self._called[callers]
        kernels = (spans["category"] == KERNEL) & (calls["grid_x"] > 0)
        size = _field(event, "extra_data"), self._size(calls["bytes"])
        fields = (
            wire.where(spans["category"] != NODE, wire.number(_field(event, "event_id"), source + 1)),
            wire.number(_field(event, "duration"), spans["end"] - spans["begin"]),
            _repeated(keys, same),
            wire.where(callers >= 0, wire.number(_field(event, "submission_id"), callers + CORRELATION)),
            wire.where(kernels, self._launches(calls)),
            wire.where(~kernels & (calls["bytes"] > 0), wire.message(size[0], *size[1])),
            _repeated(spans["fact"], lambda fact: self._extra(self._timeline.saved.facts[fact])),
            _repeated(self._places[callers], lambda place: self._extra(self._timeline.place_facts[place])),
        )
        return self._packets(spans["begin"], "gpu_render_stage_event", *fields)

    def _size(self, sizes: wire.Numbers) -> tuple[Columns, Columns]:
        extra = self._schema.GpuRenderStageEvent.ExtraData
        name = wire.constant(_pack(extra(name=NOTES[1])), len(sizes))
        return name, wire.message(_field(extra, "value"), wire.digits(sizes))

    def _launches(self, calls: Any) -> Columns:
        """Return the field with the grid, block and shared memory of each call, for records of kernels."""
        rows = np.stack([calls[name].astype(np.int64) for name in (*SHAPE, "shared")], axis=1)
        _, first, which = np.unique(rows.view(f"V{rows.itemsize * rows.shape[1]}"), return_index=True,
                                    return_inverse=True)  # fmt: skip
        return wire.choose([_pack(self._launch(*row)) for row in rows[first].tolist()], which.reshape(-1))

    def _launch(self, *numbers: int) -> Any:
        made = self._schema.GpuRenderStageEvent()
        grid, block = made.launch.grid_size, made.launch.workgroup_size
        grid.x, grid.y, grid.z, block.x, block.y, block.z, shared = numbers
        if shared:
            made.launch.args.add(name=NOTES[3], uint_value=shared)
        return made

    def _extra(self, facts: Mapping[str, int | str]) -> Any:
        event = self._schema.GpuRenderStageEvent
        return event(extra_data=[event.ExtraData(name=_text(k), value=_text(str(v))) for k, v in facts.items()])

    def _iter_counter(self, number: int, counter: Counter) -> Iterator[bytes]:
        trace, event = self._schema.Trace(), self._schema.TrackEvent
        told = self._add(trace).track_descriptor
        told.uuid, told.parent_uuid, told.name = number, self._process(counter.process), _text(counter.name)
        if counter.unit == "bytes":
            told.counter.unit = self._schema.CounterDescriptor.UNIT_SIZE_BYTES
        else:
            told.counter.unit_name = counter.unit
        yield _pack(trace)
        same = _pack(event(type=event.TYPE_COUNTER, track_uuid=number))
        for at in range(0, len(counter.times), WINDOW):
            times, values = counter.times[at : at + WINDOW], counter.values[at : at + WINDOW]
            value = wire.number(_field(event, "counter_value"), values)
            yield self._packets(times, "track_event", wire.constant(same, len(times)), value)

    def _marks(self) -> bytes:
        trace = self._schema.Trace()
        numbers = {track: number for number, track in enumerate(self._timeline.tracks, 1)}
        for mark in self._timeline.marks:
            self._event(trace, mark.time, "TYPE_INSTANT", numbers[mark.track]).name = _text(mark.name)
        return _pack(trace)


def order_ends(begins: Whole, ends: Whole) -> tuple[wire.Mask, Whole]:
    """Merge the starts and ends of spans, which are nested or separate, in the order of time. Return whether each is a
    start, and its index.

    Starts must be sorted, with outer spans first. The index of an end counts ends in the order of time.
    """
    count = np.arange(len(begins))
    opens = np.zeros(2 * len(begins), bool)
    opens[count + count_over(begins, ends)] = True
    places = np.empty(len(opens), np.int64)
    places[opens] = places[~opens] = count
    return opens, places


def _text(text: str) -> str:
    """Return text without NUL, because Perfetto drops everything after it."""
    return valid(text).replace("\0", "\ufffd")


def _repeated(keys: Whole, make: Callable[[int], Any]) -> Columns:
    """Return a message for each row. `make` makes it from the row's key, once for all rows with the same key."""
    known, which = np.unique(keys, return_inverse=True)
    return wire.choose([_pack(make(key)) for key in known.tolist()], which)


def _field(message: Any, name: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[name].number
    return number


def _pack(message: Any) -> bytes:
    done: bytes = message.SerializeToString()
    return done
