"""A timeline as JSON in Chrome's Trace Event Format, in the variant that PyTorch's profiler (Kineto) writes.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, and Kineto's conventions: for work on a
GPU, the process is the number of the device, and the thread is the number of the stream. A call and the work that it
started have the same `correlation`, and an arrow `ac2g` connects them. chrome://tracing, Perfetto and HTA can read it.
Times are in us since the first process began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count

import numpy as np
import numpy.typing as npt

from gpt.base.printable import printable_json, valid
from gpt.timeline.tracks import (
    CALL,
    CORRELATION,
    IOCTL,
    KERNEL,
    MEMCPY,
    MEMSET,
    NODE,
    RANGE,
    STREAM,
    THREAD,
    Spans,
    Timeline,
    Whole,
    by_rank,
    gpu,
    number_processes,
    owner,
    title,
)
from gpt.trace.calls_store import NO_DEVICE

NAMES = {CALL: "cuda_driver", IOCTL: "ioctl", KERNEL: "kernel", MEMCPY: "gpu_memcpy", MEMSET: "gpu_memset",
         RANGE: "user_annotation", NODE: "graph_node"}  # fmt: skip
WINDOW = 1 << 14  # spans formatted at once
OTHERS = 1 << 32


def iter_text(timeline: Timeline) -> Iterator[str]:
    """Yield the JSON in parts."""
    writer = _Writer(timeline)
    ranks = {process.header.get("rank", 0) for process in timeline.model.processes}
    rank = ranks.pop() if len(ranks) == 1 else 0
    yield f'{{"schemaVersion":1,"distributedInfo":{{"rank": {rank}}},\n'
    yield '"displayTimeUnit":"ms",'
    yield f'"incomplete":{_quote(timeline.model.incomplete)},\n"traceEvents":[\n'
    yield ",\n".join(writer.iter_names())
    for part in writer.iter_parts():
        if part:
            yield ",\n"
            yield ",\n".join(part)
    yield "\n]}\n"


def _quote(value: object) -> str:
    return printable_json(valid(json.dumps(value, ensure_ascii=False)))


class _Writer:
    """Makes events from spans. Text that's the same for all spans with the same name and row is made only once."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._names = [_quote(name) for name in timeline.names]
        self._hosts, self._gpus = number_processes(timeline)
        self._facts = [",".join(_tell_texts(facts)) for facts in timeline.saved.facts]
        self._places = ["".join(f",{text}" for text in _tell_texts(names)) for names in timeline.place_facts]
        self._rows = list(self._iter_rows())

    def _iter_rows(self) -> Iterator[tuple[int, int]]:
        """Yield `pid` and `tid` of each track. Tracks other than streams and threads get a `tid` that's larger than any
        thread's.
        """
        others = count(OTHERS)
        streams: dict[tuple[int, int], dict[int, int]] = {}  # by process and GPU: the number of each stream
        for track in self._timeline.tracks:
            if track.kind == STREAM:
                own = streams.setdefault((track.process, track.device), {})
                own.setdefault(track.number, len(own))
        for track in self._timeline.tracks:
            if track.kind == STREAM:
                own = streams[track.process, track.device]
                yield self._gpus[track.process, track.device], own[track.number] + track.lane * len(own)
            else:
                thread = track.kind == THREAD and not track.lane and track.number < OTHERS
                yield self._hosts[track.process], track.number if thread else next(others)

    def iter_names(self) -> Iterator[str]:
        """Yield the names of rows and processes."""
        form = '{{"ph":"M","name":"{}","pid":{},"tid":{},"ts":0,"args":{{"{}":{}}}}}'
        order = count()
        for place, process in by_rank(self._timeline.model):
            argv = " ".join(process.header["argv"])
            gpus = [
                (pid, f"{gpu(device)} of {process.pid}") for (own, device), pid in self._gpus.items() if own == place
            ]
            for pid, label in [(self._hosts[place], owner(process)), *gpus]:
                yield form.format("process_name", pid, 0, "name", _quote(argv))
                yield form.format("process_labels", pid, 0, "labels", _quote(label))
                yield form.format("process_sort_index", pid, 0, "sort_index", next(order))
        for track, (pid, tid) in zip(self._timeline.tracks, self._rows, strict=True):
            yield form.format("thread_name", pid, tid, "name", _quote(title(track)))
            yield form.format("thread_sort_index", pid, tid, "sort_index", next(order))

    def iter_parts(self) -> Iterator[list[str]]:
        """Yield all events except names, a few thousand at a time."""
        for number in range(len(self._timeline.tracks)):
            spans = self._timeline.of(number)
            for at in range(0, len(spans), WINDOW):
                yield self._spans(number, spans[at : at + WINDOW])
        yield from self._iter_arrows()
        for counter in self._timeline.counters:
            unit = _quote(counter.unit)
            head = f'{{"ph":"C","name":{_quote(counter.name)},"pid":{self._hosts[counter.process]},"ts":'
            points = zip((counter.times / 1000).tolist(), counter.values.tolist(), strict=True)
            yield [f'{head}{time:.3f},"args":{{{unit}:{value}}}}}' for time, value in points]
        rows = dict(zip(self._timeline.tracks, self._rows, strict=True))
        yield [
            f'{{"ph":"i","s":"t","cat":"user_annotation","name":{_quote(mark.name)},"pid":{rows[mark.track][0]},'
            f'"tid":{rows[mark.track][1]},"ts":{mark.time / 1000:.3f}}}'
            for mark in self._timeline.marks
        ]

    def _spans(self, number: int, spans: Spans) -> list[str]:
        pid, tid = self._rows[number]
        keys = spans["name"].astype(np.int64) * len(NAMES) + spans["category"]
        heads = {
            key: f'{{"ph":"X","cat":"{NAMES[key % len(NAMES)]}","name":{self._names[key // len(NAMES)]},'
            f'"pid":{pid},"tid":{tid},"ts":'
            for key in np.unique(keys).tolist()
        }
        arguments = [""] * len(spans)
        for tell, wanted in ((self._tell_calls, (CALL, IOCTL)), (self._tell_work, (KERNEL, MEMCPY, MEMSET))):
            places = np.flatnonzero(np.isin(spans["category"], wanted))
            for place, *texts in zip(
                places.tolist(), *tell(spans["source"][places].astype(np.int64), tid), strict=True
            ):
                arguments[place] = "".join(texts)[1:]
        facts = spans["fact"]
        for place in np.flatnonzero(facts).tolist():
            arguments[place] += f"{',' if arguments[place] else ''}{self._facts[facts[place]]}"
        for place in np.flatnonzero(spans["open"]).tolist():
            arguments[place] += f'{"," if arguments[place] else ""}"incomplete":true'
        columns = (spans["begin"] / 1000).tolist(), ((spans["end"] - spans["begin"]) / 1000).tolist()
        return [
            f'{heads[key]}{begin:.3f},"dur":{duration:.3f},"args":{{{more}}}}}'
            for key, begin, duration, more in zip(keys.tolist(), *columns, arguments, strict=True)
        ]

    def _tell_calls(self, places: Whole, _: int) -> list[list[str]]:
        calls = self._timeline.calls[places]
        told = [_tell("correlation", places + CORRELATION), *(_tell(name, calls[name]) for name in ("result", "bytes"))]
        return [*told, [self._places[place] for place in self._timeline.places[places].tolist()]]

    def _tell_work(self, places: Whole, stream: int) -> list[list[str]]:
        callers = self._timeline.callers[places]
        calls = np.zeros(len(places), self._timeline.calls.dtype)
        calls[callers >= 0] = self._timeline.calls[callers[callers >= 0]]
        devices = self._timeline.gpu_times["device"][places].tolist()
        known = ("" if device == NO_DEVICE else f',"device":{device}' for device in devices)
        same = [f'{device},"stream":{stream}' for device in known]
        told = [_tell(name, calls[column]) for name, column in (("bytes", "bytes"), ("shared memory", "shared"))]
        rates = calls["bytes"] / np.maximum(self._timeline.gpu_times["duration"][places], 1)  # as Kineto does
        return [
            same,
            _tell("correlation", np.where(callers >= 0, callers + CORRELATION, 0)),
            *told,
            [f',"memory bandwidth (GB/s)":{rate:.6g}' if rate else "" for rate in rates.tolist()],
            *(_tell_shape(name, calls) for name in ("grid", "block")),
            [self._places[place] for place in np.where(callers >= 0, self._timeline.places[callers], 0).tolist()],
        ]

    def _iter_arrows(self) -> Iterator[list[str]]:
        """Yield the arrows from calls to the GPU work that they started."""
        timeline = self._timeline
        spans, callers = timeline.spans, timeline.callers
        rows = np.array(self._rows, np.int64).reshape(-1, 2)
        of_call, of_work = np.zeros(len(timeline.calls), np.int64), np.zeros(len(callers), np.int64)
        host = np.isin(spans["category"], (CALL, IOCTL))
        work = np.isin(spans["category"], (KERNEL, MEMCPY, MEMSET))
        of_call[spans["source"][host]], of_work[spans["source"][work]] = spans["track"][host], spans["track"][work]
        joined = np.flatnonzero(callers >= 0)
        for at in range(0, len(joined), WINDOW):
            places = joined[at : at + WINDOW]
            calls, gpu = timeline.calls[callers[places]], timeline.gpu_times[places]
            begin, end = rows[of_call[callers[places]]].tolist(), rows[of_work[places]].tolist()
            times = (calls["start"] / 1000).tolist(), (gpu["begin"] / 1000).tolist()
            yield [
                f'{{"ph":"s","id":{id_},"pid":{pid},"tid":{tid},"ts":{left:.3f},"cat":"ac2g","name":"ac2g"}},\n'
                f'{{"ph":"f","id":{id_},"pid":{gpu_pid},"tid":{gpu_tid},"ts":{ran:.3f},"cat":"ac2g","name":"ac2g","bp":"e"}}'
                for id_, (pid, tid), (gpu_pid, gpu_tid), left, ran in zip(
                    (places + 1).tolist(), begin, end, *times, strict=True
                )
            ]


def _tell_texts(facts: Mapping[str, object]) -> Iterator[str]:
    yield from (f"{_quote(name)}:{_quote(value)}" for name, value in facts.items())


def _tell(name: str, values: npt.NDArray[np.integer]) -> list[str]:
    """Format an argument of each span as text, which is empty for 0."""
    return [f',"{name}":{value}' if value else "" for value in values.tolist()]


def _tell_shape(name: str, calls: npt.NDArray[np.void]) -> list[str]:
    sizes = zip(*(calls[f"{name}_{axis}"].tolist() for axis in "xyz"), strict=True)
    return [f',"{name}":[{x},{y},{z}]' if x else "" for x, y, z in sizes]
