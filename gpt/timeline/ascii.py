"""A timeline as text: a line a track, in each of its cells the letter of what took most of that piece of time.

A letter is large where that took at least half of the piece, small where less; a point stands for nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from gpt.base.printable import printable, shorten
from gpt.screen.grid import fold
from gpt.screen.units import human, human_time
from gpt.timeline.counters import Counter
from gpt.timeline.tracks import CALL, KERNEL, MEMCPY, MEMSET, RANGE, Mark, Spans, Timeline, Track, by_rank, owner, title

LETTERS = {
    "K": "kernel", "P": "kernel with probes", "H": "copy to the device", "D": "copy to the host",
    "T": "other copy or memset", "L": "launch", "C": "call of a copy", "A": "allocation", "O": "loading of code",
    "W": "wait", "X": "other call",
}  # fmt: skip
CALLS = {"kernel": "L", "graph": "L", "memcpy": "C", "memset": "C", "memory": "A", "module": "O", "sync": "W"}
COPIES = {"HtoD": "H", "DtoH": "D"}
LABEL, LEAST = 24, 20  # columns of a name at most, and of a line of cells at least
TICK = 16  # columns from one time of the axis to the next
OPEN, MARK = ">", "!"
PROBED, FACTS = 5, 400  # kernels of which it is said what probes saved, and characters of that
SUM = "bytes copied "  # counters that only grow

Cells = npt.NDArray[np.float64]


def iter_lines(timeline: Timeline, width: int) -> Iterator[str]:
    """Its lines, at most `width` columns wide, with their ends."""
    if len(timeline.spans) or timeline.marks:
        yield from _iter_tracks(timeline, width)
        for line in _iter_probes(timeline):
            yield from (f"{part.plain}\n" for part in fold(line, width))
    else:
        yield "nothing that took time in the trace\n"
    for line in timeline.model.incomplete:
        yield from (f"{part.plain}\n" for part in fold(f"incomplete: {line}", width))


def _iter_tracks(timeline: Timeline, width: int) -> Iterator[str]:
    """The rows of each process, the axis, and what letters and digits mean."""
    counters = [counter for counter in timeline.counters if not counter.name.startswith(SUM)]
    names = [title(track) for track in timeline.tracks] + [counter.name for counter in counters]
    label = min(LABEL, max(map(cell_len, map(printable, names))) + 3, max(LEAST // 2, width - LEAST))
    cells = max(LEAST, width - label)
    begin, end = timeline.bounds
    edges = np.linspace(begin, max(end, begin + cells), cells + 1)
    marks: dict[Track, list[Mark]] = {}
    for mark in timeline.marks:
        marks.setdefault(mark.track, []).append(mark)
    used: set[str] = set()
    tops: dict[tuple[str, str], int] = {}  # of counters of one name
    for one in counters:
        key = one.name, one.unit
        tops[key] = max(tops.get(key, 0), int(one.values.max(initial=0)))
    for place, process in by_rank(timeline.model):
        own = [counter for counter in counters if counter.process == place]
        tracks = [number for number, track in enumerate(timeline.tracks) if track.process == place]
        if tracks:
            told = f"{owner(process)}: {' '.join(process.header['argv'])}"
            yield shorten(printable(told), width) + "\n"
        for counter in own:
            drawn = _draw_counter(counter, tops[counter.name, counter.unit], edges)
            yield f"  {_pad(counter.name, label - 2)}{drawn}\n"
        for number in tracks:
            track = timeline.tracks[number]
            spans, name = timeline.of(number), _pad(title(track), label - 2)
            ranges, others = (spans[(spans["category"] == RANGE) == wanted] for wanted in (True, False))
            if len(ranges) or track in marks:
                drawn = _draw_ranges(timeline, ranges, marks.get(track, []), edges)
                if drawn or not len(others):  # none has room for its name
                    yield f"  {' ' * (label - 2) if len(others) else name}{drawn}\n"
            if len(others):
                drawn = _draw(timeline, others, edges)
                used |= set(drawn.upper())
                yield f"  {name}{drawn}\n"
    yield f"{'':{label}}{_draw_axis(cells, edges)}\n"
    yield from (f"{line.plain}\n" for line in fold(f"0ns: {begin / 1e9:.6f} s in the time of --time", width))
    legend = [f"{letter} {about}" for letter, about in LETTERS.items() if letter in used]
    legend += [f"{OPEN} not over"] if timeline.spans["open"].any() else []
    legend += [f"{MARK} mark"] if timeline.marks else []
    yield from _fold(["small letters: less than half of the time", *legend], width)
    if tops:
        told = ", ".join(f"{name} {_human(most, unit)}" for (name, unit), most in tops.items())
        yield from (f"{line.plain}\n" for line in fold(f"digits: ninths of the most: {told}", width))


def _pad(text: str, width: int) -> str:
    """A name in so many columns, the last of them free."""
    short = shorten(printable(text), width - 1)
    return short + " " * (width - cell_len(short))


def _human(most: int, unit: str) -> str:
    return human(most) + unit.removeprefix("bytes") if unit.startswith("bytes") else f"{most:,}"


def _draw_counter(counter: Counter, top: int, edges: Cells) -> str:
    """The most of each piece of time, in ninths of the most of all."""
    times, values = counter.times, counter.values.astype(np.float64)
    first = np.searchsorted(times, edges[:-1], side="right") - 1  # what it is as the piece begins
    last = np.searchsorted(times, edges[1:])
    padded = np.append(values, 0.0)  # the place -1: before the first of them
    most = padded[first]
    inner = np.flatnonzero(last > first + 1)
    for cell in inner.tolist():
        most[cell] = max(most[cell], values[first[cell] + 1 : last[cell]].max())
    ninths = np.ceil(9 * most / (top or 1)).astype(int)
    return "".join(str(ninth) if ninth > 0 else "." for ninth in ninths.tolist())


def _iter_probes(timeline: Timeline) -> Iterator[str]:
    """What probes saved in the first launches of each kernel, or why there were none."""
    noted = timeline.spans[timeline.spans["fact"] > 0]
    names, first, counts = np.unique(noted["name"], return_index=True, return_counts=True)
    for row in np.argsort(-counts, kind="stable").tolist()[:PROBED]:
        facts = timeline.saved.facts[noted["fact"][first[row]]]
        told = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in facts.items())
        which = f", first of {counts[row]:,}" if counts[row] > 1 else ""
        yield shorten(f"{timeline.names[names[row]]}{which}: {told}", FACTS, middle=False)
    if (more := len(names) - PROBED) > 0:
        yield f"and {more:,} more kernels with probes"


def _draw(timeline: Timeline, spans: Spans, edges: Cells) -> str:
    """The letters of a track."""
    letters = [*LETTERS]
    kinds = _find_letters(timeline, spans)
    took = np.zeros((len(letters), len(edges) - 1))
    for kind in np.unique(kinds).tolist():
        took[kind] = _time_in(spans[kinds == kind], edges)
    most = took.argmax(axis=0)
    share = took.max(axis=0) / np.diff(edges)
    drawn = [
        "." if part == 0 else letters[kind] if part >= 0.5 else letters[kind].lower()
        for kind, part in zip(most.tolist(), share.tolist(), strict=True)
    ]
    for end in np.unique(spans["end"][spans["open"]]).tolist():
        drawn[_cell(end, edges)] = OPEN
    return "".join(drawn)


def _cell(time: float, edges: Cells) -> int:
    """The piece of time that something which ends, or is marked, then is in."""
    return min(max(int(np.searchsorted(edges, time)) - 1, 0), len(edges) - 2)


def _find_letters(timeline: Timeline, spans: Spans) -> npt.NDArray[np.int64]:
    """The place in LETTERS of what stands for each span."""
    rows = timeline.calls if spans["category"][0] < KERNEL else timeline.gpu_times
    source = rows[spans["source"]]
    probed = np.array([bool(facts) and "unprobed" not in facts for facts in timeline.saved.facts])
    kinds = spans["category"] * 2 + probed[spans["fact"]]
    keys = (source["process"].astype(np.int64) << 36) | (source["api"].astype(np.int64) << 4) | kinds
    known, which = np.unique(keys, return_inverse=True)
    letters = "".join(LETTERS)
    return np.array([letters.index(_letter(timeline, key)) for key in known.tolist()])[which]


def _letter(timeline: Timeline, key: int) -> str:
    category, probed = divmod(key & 15, 2)
    api = timeline.model.processes[key >> 36].api(key >> 4 & 0xFFFFFFFF)
    work = {KERNEL: "P" if probed else "K", MEMCPY: COPIES.get(api.op, "T"), MEMSET: "T"}
    return work.get(category, CALLS.get(api.type, "X") if category == CALL else "X")


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


def _draw_ranges(timeline: Timeline, spans: Spans, marks: list[Mark], edges: Cells) -> str:
    """The outermost ranges, as far as their names have room: `[forward  ][backward ]`, and marks between them."""
    cells = [" "] * (len(edges) - 1)
    free = 0
    for span in spans[spans["end"] - spans["begin"] > edges[1] - edges[0]]:  # the others have no room for a name
        first = max(free, int(np.searchsorted(edges, span["begin"], side="right")) - 1)  # where another one may end
        last = min(len(cells), int(np.searchsorted(edges, span["end"])))
        if last - first < 3:
            continue
        name = shorten(printable(timeline.names[span["name"]]), last - first - 2)
        end = OPEN if span["open"] else "]"
        _write(cells, first, f"[{name}{'-' * (last - first - 2 - cell_len(name))}{end}")
        free = last
    times = np.array([mark.time for mark in marks], np.float64)
    places, firsts = np.unique(np.clip(np.searchsorted(edges, times) - 1, 0, len(cells) - 1), return_index=True)
    for place, mark in zip(places.tolist(), (marks[at] for at in firsts.tolist()), strict=True):
        if cells[place] == " ":
            taken = next((at for at in range(place, len(cells)) if cells[at] != " "), len(cells))
            name = printable(mark.name)
            _write(cells, place, MARK + (shorten(name, taken - place - 1) if taken - place > 3 else ""))
    return "".join(cells).rstrip()


def _write(cells: list[str], place: int, text: str) -> None:
    """The text from a place on; a character that takes two columns has two places."""
    for character in text:
        width = cell_len(character)
        if not width and place:
            cells[place - 1] += character
        cells[place : place + width] = [character, *[""] * (width - 1)] if width else []
        place += width


def _draw_axis(cells: int, edges: Cells) -> str:
    """Times since the first span."""
    texts = [f"|{human_time(edges[at] - edges[0])}" for at in range(0, cells - TICK // 2, TICK)]
    return "".join(f"{text:{TICK}}" for text in texts).rstrip()


def _fold(parts: list[str], width: int) -> Iterator[str]:
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 2 > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{part}"
    yield from (f"{line.plain}\n" for one in lines for line in fold(one, width))
