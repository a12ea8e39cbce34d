"""A timeline as Perfetto's protobuf: calls and ranges as track events, work on the GPU as its typed GPU records.

https://perfetto.dev/docs/reference/trace-packet-proto. Python's package `perfetto` has the schema. A record of work
(GpuRenderStageEvent) names its stream, its stage, what ran, and grid and block of a kernel; `submission_id` is the
`correlation` of the call that it is of, as the records have no arrows. Times are ns since the first process began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpt.errors import MissingError
from gpt.timeline.tracks import (
    CATEGORIES,
    KERNEL,
    RANGE,
    SHAPE,
    STREAM,
    Counter,
    Spans,
    Timeline,
    Track,
    number_processes,
    title,
)

WINDOW = 1 << 13  # spans that are encoded at once
SEQUENCE = 1  # of the packets: names that were said once hold for all of it
NOTES = ("correlation", "bytes", "result", "shared memory", "incomplete")


def iter_bytes(timeline: Timeline) -> Iterator[bytes]:
    """The whole trace, a part at a time. Raises MissingError without the package."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
    except ImportError:
        raise MissingError("perfetto: pip install 'gpu-probe-toolchain[perfetto]'") from None
    yield from _Writer(timeline, schema).iter_parts()


class _Writer:
    """Makes packets of spans. `iid`s are places in lists of names, from 1 on; 0 stands for none."""

    def __init__(self, timeline: Timeline, schema: Any) -> None:
        self._timeline = timeline
        self._schema = schema
        self._hosts, self._gpus = number_processes(timeline)
        self._zero = min(0, timeline.bounds[0])  # spans may begin before the first process is known to, packets not
        streams = sorted({title(track) for track in timeline.tracks if track.kind == STREAM})
        self._specifications = {name: iid for iid, name in enumerate([*CATEGORIES, *streams], 1)}

    def iter_parts(self) -> Iterator[bytes]:
        """All packets."""
        yield self._begin()
        for number, track in enumerate(self._timeline.tracks):
            spans = self._timeline.of(number)
            open_: list[int] = []
            for at in range(0, len(spans), WINDOW):
                part, last = spans[at : at + WINDOW], at + WINDOW >= len(spans)
                yield self._work(track, part) if track.kind == STREAM else self._calls(number, part, open_, last)
        for place, counter in enumerate(self._timeline.counters):
            yield self._counter(self._process(len(self._timeline.model.processes) + place), counter)
        yield self._marks()

    def _begin(self) -> bytes:
        """Names, processes and tracks."""
        trace = self._schema.Trace()
        packet = self._add(trace)
        packet.sequence_flags = self._schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        said = packet.interned_data
        for known, names in ((said.event_names, self._timeline.names), (said.event_categories, CATEGORIES),
                             (said.debug_annotation_names, NOTES)):  # fmt: skip
            for iid, name in enumerate(names, 1):
                known.add(iid=iid, name=_text(name))
        for name, iid in self._specifications.items():
            said.gpu_specifications.add(iid=iid, name=name, category="COMPUTE")
        for place, process in enumerate(self._timeline.model.processes):
            said.graphics_contexts.add(iid=place + 1, pid=self._hosts[place], api="CUDA")
            words = [_text(word) for word in process.header["argv"]]
            told = self._add(trace).track_descriptor
            told.uuid, told.process.pid = self._process(place), self._hosts[place]
            told.process.process_name = f"{' '.join(words)} on {_text(process.header['host'])}"
            told.process.cmdline.extend(words)
        for number, track in enumerate(self._timeline.tracks):
            if track.kind != STREAM:
                told = self._add(trace).track_descriptor
                told.uuid, told.parent_uuid, told.name = number + 1, self._process(track.process), _text(title(track))
        for line in self._timeline.model.incomplete:
            event = self._event(trace, 0, "TYPE_INSTANT", self._process(0))
            event.name = _text(f"incomplete: {line}")
        return _pack(trace)

    def _process(self, place: int) -> int:
        """The number of its track; those of threads come first, and those of counters last."""
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

    def _calls(self, number: int, spans: Spans, open_: list[int], last: bool) -> bytes:
        """Begins and ends of calls, ioctls and ranges, in their order; `open_` are ends that are not written yet."""
        trace, names = self._schema.Trace(), ("begin", "end", "name", "category", "open")
        columns = [spans[name].tolist() for name in names]
        for begin, end, name, category, unfinished, notes in zip(*columns, self._notes(spans), strict=True):
            while open_ and open_[-1] <= begin:
                self._event(trace, open_.pop(), "TYPE_SLICE_END", number + 1)
            event = self._event(trace, begin, "TYPE_SLICE_BEGIN", number + 1)
            event.name_iid = name + 1
            event.category_iids.append(category + 1)
            for iid, value in enumerate(notes, 1):
                if value:
                    event.debug_annotations.add(name_iid=iid, int_value=value)
            if unfinished:
                event.debug_annotations.add(name_iid=len(NOTES), bool_value=True)
            open_.append(end)
        while last and open_:
            self._event(trace, open_.pop(), "TYPE_SLICE_END", number + 1)
        return _pack(trace)

    def _notes(self, spans: Spans) -> list[tuple[int, ...]]:
        """What NOTES there are of each call, none of ranges."""
        found: list[tuple[int, ...]] = [()] * len(spans)
        places = np.flatnonzero(spans["category"] != RANGE)
        source = spans["source"][places]
        calls = self._timeline.calls[source]
        told = zip((source + 1).tolist(), calls["bytes"].tolist(), calls["result"].tolist(), strict=True)
        for place, notes in zip(places.tolist(), told, strict=True):
            found[place] = notes
        return found

    def _work(self, track: Track, spans: Spans) -> bytes:
        """Kernels, copies and the like, as the schema has them for GPUs."""
        trace = self._schema.Trace()
        queue, gpu = self._specifications[title(track)], self._gpus[track.process, track.device]
        callers = self._timeline.callers[spans["source"]]
        calls = np.zeros(len(spans), self._timeline.calls.dtype)
        calls[callers >= 0] = self._timeline.calls[callers[callers >= 0]]
        columns = [spans[name].tolist() for name in ("begin", "end", "name", "category", "source")]
        shapes = [calls[name].tolist() for name in (*SHAPE, "bytes", "shared")]
        for begin, end, name, category, source, call, *shape, size, shared in zip(
            *columns, callers.tolist(), *shapes, strict=True
        ):
            work = self._add(trace, begin).gpu_render_stage_event
            work.event_id, work.duration, work.name_iid = source + 1, end - begin, name + 1
            work.hw_queue_iid, work.stage_iid, work.gpu_id, work.context = queue, category + 1, gpu, track.process + 1
            if call >= 0:
                work.submission_id = call + 1
            if category == KERNEL and shape[0]:
                grid, block = work.launch.grid_size, work.launch.workgroup_size
                grid.x, grid.y, grid.z, block.x, block.y, block.z = shape
                if shared:
                    work.launch.args.add(name=NOTES[3], uint_value=shared)
            elif size:
                work.extra_data.add(name=NOTES[1], value=str(size))
        return _pack(trace)

    def _counter(self, number: int, counter: Counter) -> bytes:
        trace = self._schema.Trace()
        told = self._add(trace).track_descriptor
        told.uuid, told.parent_uuid, told.name = number, self._process(counter.process), counter.name
        told.counter.unit = self._schema.CounterDescriptor.UNIT_SIZE_BYTES
        for time, value in zip(counter.times.tolist(), counter.values.tolist(), strict=True):
            self._event(trace, time, "TYPE_COUNTER", number).counter_value = value
        return _pack(trace)

    def _marks(self) -> bytes:
        trace = self._schema.Trace()
        for mark in self._timeline.marks:
            number = self._timeline.tracks.index(mark.track) + 1
            self._event(trace, mark.time, "TYPE_INSTANT", number).name = _text(mark.name)
        return _pack(trace)


def _pack(trace: Any) -> bytes:
    done: bytes = trace.SerializeToString()
    return done


def _text(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
