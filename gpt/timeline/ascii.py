"""A timeline as text: a line a track, in each of its cells the letter of what took most of that piece of time.

A letter is large where that took at least half of the piece, small where less; a point stands for nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gpt.printable import printable, shorten
from gpt.screen.units import human_time
from gpt.timeline.tracks import CALL, KERNEL, MEMCPY, MEMSET, RANGE, Spans, Timeline, title

LETTERS = {
    "K": "kernel", "H": "copy to the device", "D": "copy to the host", "T": "other copy or memset", "L": "launch",
    "C": "call of a copy", "A": "allocation", "O": "loading of code", "W": "wait", "X": "other call",
}  # fmt: skip
CALLS = {"kernel": "L", "graph": "L", "memcpy": "C", "memset": "C", "memory": "A", "module": "O", "sync": "W"}
COPIES = {"HtoD": "H", "DtoH": "D"}
LABEL, LEAST = 24, 20  # columns of a name at most, and of a line of cells at least
TICK = 16  # columns from one time of the axis to the next

Cells = npt.NDArray[np.float64]


def iter_lines(timeline: Timeline, width: int) -> Iterator[str]:
    """Its lines, at most `width` columns wide, with their ends."""
    if not len(timeline.spans):
        yield "nothing that took time in the trace\n"
        return
    label = min(LABEL, max(len(title(track)) for track in timeline.tracks) + 3)
    cells = max(LEAST, width - label)
    begin, end = timeline.bounds
    edges = np.linspace(begin, max(end, begin + cells), cells + 1)
    used: set[str] = set()
    for place, process in enumerate(timeline.model.processes):
        tracks = [number for number, track in enumerate(timeline.tracks) if track.process == place]
        if tracks:
            told = f"process {process.pid} on {process.header['host']}: {' '.join(process.header['argv'])}"
            yield shorten(printable(told), width) + "\n"
        for number in tracks:
            spans, name = timeline.of(number), shorten(title(timeline.tracks[number]), label - 3)
            ranges, others = (spans[(spans["category"] == RANGE) == wanted] for wanted in (True, False))
            if len(ranges):
                yield f"  {'' if len(others) else name:{label - 2}}{_draw_ranges(timeline, ranges, edges)}\n"
            if len(others):
                drawn = _draw(timeline, others, edges)
                used |= set(drawn.upper())
                yield f"  {name:{label - 2}}{drawn}\n"
    yield f"{'':{label}}{_draw_axis(cells, edges)}\n"
    legend = [f"{letter} {about}" for letter, about in LETTERS.items() if letter in used]
    yield from _fold(["small letters: less than half of the time", *legend], width)
    for line in timeline.model.incomplete:
        yield from (f"{part}\n" for part in [shorten(printable(f"incomplete: {line}"), width)])


def _draw(timeline: Timeline, spans: Spans, edges: Cells) -> str:
    """The letters of a track."""
    letters = [*LETTERS]
    kinds = np.array([letters.index(letter) for letter in _letters(timeline, spans)])
    took = np.zeros((len(letters), len(edges) - 1))
    for kind in np.unique(kinds).tolist():
        took[kind] = _time_in(spans[kinds == kind], edges)
    most = took.argmax(axis=0)
    share = took.max(axis=0) / np.diff(edges)
    return "".join(
        "." if part == 0 else letters[kind] if part >= 0.5 else letters[kind].lower()
        for kind, part in zip(most.tolist(), share.tolist(), strict=True)
    )


def _letters(timeline: Timeline, spans: Spans) -> list[str]:
    """What stands for each span."""
    processes = timeline.model.processes
    rows = {True: timeline.calls, False: timeline.gpu_times}
    host = bool(spans["category"][0] < KERNEL)
    source = rows[host][spans["source"]]
    keys = list(zip(spans["category"].tolist(), source["process"].tolist(), source["api"].tolist(), strict=True))
    known = {}
    for key in set(keys):
        category, process, id_ = key
        api = processes[process].api(id_)
        known[key] = {CALL: CALLS.get(api.type, "X"), KERNEL: "K", MEMCPY: COPIES.get(api.op, "T"), MEMSET: "T"}.get(
            category, "X"
        )
    return [known[key] for key in keys]


def _time_in(spans: Spans, edges: Cells) -> Cells:
    """How long spans were, together, in each piece of time; those in others do not count."""
    begin, end = np.sort(spans["begin"]), np.sort(spans["end"])
    inner = begin[1:] >= end[:-1]
    if not inner.all():  # one lies in another, or they overlap: what is covered counts once
        order = np.argsort(spans["begin"], kind="stable")
        begin, reach = spans["begin"][order], np.maximum.accumulate(spans["end"][order])
        first = np.append(True, begin[1:] > reach[:-1])
        begin, end = begin[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(reach) - 1)]

    return np.maximum(0.0, np.round(np.diff(_since(begin, edges) - _since(end, edges)), 3))


def _since(times: npt.NDArray[np.int64], moments: Cells) -> Cells:
    """For each moment, how long ago the `times` before it were, together."""
    sums = np.append(0.0, np.cumsum(times - times[0], dtype=np.float64))
    count = np.searchsorted(times, moments)
    found: Cells = count * (moments - times[0]) - sums[count]
    return found


def _draw_ranges(timeline: Timeline, spans: Spans, edges: Cells) -> str:
    """The outermost ranges, as far as their names have room: `[forward  ][backward ]`."""
    cells = [" "] * (len(edges) - 1)
    free = 0
    for span in spans[spans["end"] - spans["begin"] > edges[1] - edges[0]]:  # the others have no room for a name
        first = int(np.searchsorted(edges, span["begin"], side="right")) - 1
        last = min(len(cells), int(np.searchsorted(edges, span["end"])))
        if first < free or last - first < 3:
            continue
        name = shorten(printable(timeline.names[span["name"]]), last - first - 2)
        cells[first:last] = list(f"[{name:-<{last - first - 2}}]")[: last - first]
        free = last
    return "".join(cells).rstrip()


def _draw_axis(cells: int, edges: Cells) -> str:
    """Times since the first span."""
    texts = [f"|{human_time(edges[at] - edges[0])}" for at in range(0, cells - TICK // 2, TICK)]
    return "".join(f"{text:{TICK}}" for text in texts).rstrip()


def _fold(parts: list[str], width: int) -> Iterator[str]:
    line = ""
    for part in parts:
        if line and len(line) + len(part) + 2 > width:
            yield line + "\n"
            line = ""
        line += f"{', ' if line else ''}{part}"
    yield line + "\n"
