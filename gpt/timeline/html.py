"""A timeline as a self-contained HTML page. page.html has the code; the data to draw is inserted into it.

A row of the page shows the spans of a track at one depth of nesting, so spans in a row don't overlap. Columns of all
spans are arrays in native layout, compressed one after another, in base 64. The rest is JSON.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gpt.base.printable import printable
from gpt.timeline.saved import Facts
from gpt.timeline.tracks import KINDS, RANGE, SHAPE, STREAM, Spans, Timeline, Whole, by_rank, count_over, owner, title

LEVEL = 6  # zlib's
MARK = "<!--data-->"  # the place for the data in the page
OPEN = 128  # a bit of the category: the trace has no end for the span
TOLD = ("bytes", "result", "shared", *SHAPE)  # about calls, and the GPU work that they started


def iter_text(timeline: Timeline) -> Iterator[str]:
    """Yield the page in parts."""
    before, after = (files("gpt.timeline") / "page.html").read_text().split(MARK)
    depths = _find_depths(timeline)
    order = np.lexsort((timeline.spans["begin"], depths, timeline.spans["track"]))
    spans = timeline.spans[order]
    notes, texts = _make_notes(timeline, spans)
    numbers = {track: number for number, track in enumerate(timeline.tracks)}
    told = {
        "names": [printable(name) for name in timeline.names],
        "notes": texts,
        "processes": [
            [place, printable(f"{owner(process)}: {' '.join(process.header['argv'])}")]
            for place, process in by_rank(timeline.model)
        ],
        "rows": list(_iter_rows(timeline, spans, depths[order])),
        "counters": [[one.process, printable(one.name), len(one.times), one.unit] for one in timeline.counters],
        "marks": [[numbers[mark.track], mark.time, printable(mark.name)] for mark in timeline.marks],
        "incomplete": [printable(line) for line in timeline.model.incomplete],
        "spans": len(spans),
    }
    columns: list[npt.NDArray[np.generic]] = []  # the widest come first, so that each array is aligned to its width
    for counter in timeline.counters:
        columns += [counter.times.astype("<f8"), counter.values.astype("<f8")]
    columns += [spans["begin"].astype("<f8"), (spans["end"] - spans["begin"]).astype("<f8")]
    columns += [_find_links(timeline, spans).astype("<i4"), spans["name"].astype("<u4"), notes.astype("<u4")]
    columns += [spans["category"] | np.where(spans["open"], OPEN, 0).astype(np.uint8)]
    yield before
    yield f'<script type="application/json" id="texts">{_quote(told)}</script>\n<script type="text/plain" id="data">'
    yield from _pack(columns)
    yield "</script>\n"
    yield after


def _quote(value: object) -> str:
    """Format a value as JSON that can't end an HTML element, and that consists of ASCII."""
    return json.dumps(value).replace("<", "\\u003c")


def _pack(columns: list[npt.NDArray[np.generic]]) -> Iterator[str]:
    packer, data = zlib.compressobj(LEVEL), b""
    for column in columns:
        data += packer.compress(np.ascontiguousarray(column).tobytes())
        whole = len(data) // 3 * 3
        yield b64encode(data[:whole]).decode()
        data = data[whole:]
    yield b64encode(data + packer.flush()).decode()


def _find_depths(timeline: Timeline) -> Whole:
    """Return the nesting depth of each span, which is the number of earlier spans of its track that haven't ended when
    it begins.
    """
    depths = np.zeros(len(timeline.spans), np.int64)
    for number in range(len(timeline.tracks)):
        low, high = timeline.edges[number : number + 2]
        spans = timeline.spans[low:high]
        depths[low:high] = np.arange(len(spans)) - count_over(spans["begin"], spans["end"])
    return depths


def _iter_rows(timeline: Timeline, spans: Spans, depths: Whole) -> Iterator[list[object]]:
    """Yield each row: process, kind of track, title, track, depth, first span, and number of spans."""
    marked = {mark.track for mark in timeline.marks}
    empty = [number for number, track in enumerate(timeline.tracks) if track in marked and not len(timeline.of(number))]
    new = (np.diff(spans["track"].astype(np.int64)) != 0) | (np.diff(depths) != 0)
    edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(spans)] if len(spans) else []
    rows = [(int(spans["track"][low]), int(depths[low]), low, high - low) for low, high in pairwise(edges)]
    rows += [(number, 0, int(np.searchsorted(spans["track"], number)), 0) for number in empty]
    for number, depth, low, count in sorted(rows):
        track = timeline.tracks[number]
        yield [track.process, KINDS[track.kind], printable(title(track)), number, depth, low, count]


def _find_links(timeline: Timeline, spans: Spans) -> Whole:
    """Return an index for each span: for GPU work, the index of its call's span; for all other spans, -1."""
    streams = np.array([track.kind == STREAM for track in timeline.tracks], bool)
    work = streams[spans["track"]] if len(streams) else np.zeros(0, bool)
    places = np.full(len(timeline.calls) + 1, -1, np.int64)  # an element for each call, and one for call -1
    host = ~work & (spans["category"] != RANGE)
    places[spans["source"][host]] = np.flatnonzero(host)
    links = np.full(len(spans), -1, np.int64)
    calls = timeline.callers[spans[work]["source"]]
    links[work] = places[calls]
    return links


def _make_notes(timeline: Timeline, spans: Spans) -> tuple[Whole, list[str]]:
    """Return, for each span, a number that stands for its details, and the text for each number."""
    streams = np.array([track.kind == STREAM for track in timeline.tracks], bool)
    work = streams[spans["track"]] if len(streams) else np.zeros(0, bool)
    call = np.where(spans["category"] != RANGE, spans["source"].astype(np.int64), -1)
    source = spans[work]["source"]
    call[work] = timeline.callers[source]
    calls = np.concatenate([timeline.calls, np.zeros(1, timeline.calls.dtype)])  # the last one is call -1
    columns = [calls[name][call] for name in TOLD]
    columns[1][work] = 0
    columns += [spans["open"], spans["fact"], np.append(timeline.places, 0)[call]]
    numbers = np.zeros(len(spans), np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        numbers = np.unique(numbers * len(values) + which, return_inverse=True)[1]
    _, first = np.unique(numbers, return_index=True)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    saved, places = timeline.saved.facts, timeline.place_facts
    return numbers, [_make_note({**places[place], **saved[fact]}, *row) for *row, fact, place in rows]


def _make_note(facts: Facts, size: int, result: int, shared: int, *rest: int) -> str:
    (*shape, unfinished) = rest
    parts = [f"{size:,} bytes"] if size else []
    if shape[0]:
        x, y, z, *block = shape
        parts.append(f"grid {x} x {y} x {z}, block {' x '.join(map(str, block))}")
    parts += [f"{shared:,} bytes of shared memory"] if shared else []
    parts += [f"result {result}"] if result else []
    parts += ["its end is not in the trace"] if unfinished else []
    told = [f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}" for name, value in facts.items()]
    return "\n".join(filter(None, [", ".join(parts), *map(printable, told)]))
