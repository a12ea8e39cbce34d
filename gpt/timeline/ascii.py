"""A timeline as text: one line per track, with cells that show as a letter what took most of that slice of time.

A letter is upper case if that activity took at least half of the slice, and lower case if it took less; a dot means
that nothing happened.
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
LABEL, LEAST = 24, 20  # most columns of a name, fewest of the cells
TICK = 16  # columns between times on the axis
OPEN, MARK = ">", "!"
PROBED, FACTS = 5, 400  # kernels whose probe results are shown, and characters for each
SUM = "bytes copied "  # totals that only grow

Cells = npt.NDArray[np.float64]


def iter_lines(timeline: Timeline, width: int) -> Iterator[str]:
    """Yield its lines, at most `width` columns wide, with newlines."""
    if len(timeline.spans) or timeline.marks:
        yield from _iter_tracks(timeline, width)
        for line in _iter_probes(timeline):
            yield from (f"{part.plain}\n" for part in fold(line, width))
    else:
        yield "nothing that took time in the trace\n"
    for line in timeline.model.incomplete:
        yield from (f"{part.plain}\n" for part in fold(f"incomplete: {line}", width))


def _iter_tracks(timeline: Timeline, width: int) -> Iterator[str]:
    """Yield the rows of each process, the axis, and the legend."""
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
    tops: dict[tuple[str, str], int] = {}  # highest values, of counters with one name and unit
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
                if drawn or not len(others):  # no range has room for its name
                    yield f"  {' ' * (label - 2) if len(others) else name}{drawn}\n"
            if len(others):
                drawn = _draw(timeline, others, edges)
                used |= set(drawn.upper())
                yield f"  {name}{drawn}\n"
    yield f"{'':{label}}{_draw_axis(cells, edges)}\n"
    yield from (f"{line.plain}\n" for line in fold(f"0ns is {begin / 1e9:.6f} s for --time", width))
    legend = [f"{letter} {about}" for letter, about in LETTERS.items() if letter in used]
    legend += [f"{OPEN} not over"] if timeline.spans["open"].any() else []
    legend += [f"{MARK} mark"] if timeline.marks else []
    yield from _fold(["small letters: less than half of the time", *legend], width)
    if tops:
        told = ", ".join(f"{name} {_human(most, unit)}" for (name, unit), most in tops.items())
        yield from (f"{line.plain}\n" for line in fold(f"digits: ninths of the maximum: {told}", width))


def _pad(text: str, width: int) -> str:
    """Fit a name into this many columns, with the last one left blank."""
    short = shorten(printable(text), width - 1)
    return short + " " * (width - cell_len(short))


def _human(most: int, unit: str) -> str:
    return human(most) + unit.removeprefix("bytes") if unit.startswith("bytes") else f"{most:,}"


def _draw_counter(counter: Counter, top: int, edges: Cells) -> str:
    """Draw the highest value in each slice of time, in ninths of the highest of all."""
    times, values = counter.times, counter.values.astype(np.float64)
    first = np.searchsorted(times, edges[:-1], side="right") - 1  # its value as the slice begins
    last = np.searchsorted(times, edges[1:])
    padded = np.append(values, 0.0)  # for index -1: before the first value
    most = padded[first]
    inner = np.flatnonzero(last > first + 1)
    for cell in inner.tolist():
        most[cell] = max(most[cell], values[first[cell] + 1 : last[cell]].max())
    ninths = np.ceil(9 * most / (top or 1)).astype(int)
    return "".join(str(ninth) if ninth > 0 else "." for ninth in ninths.tolist())


def _iter_probes(timeline: Timeline) -> Iterator[str]:
    """Yield the results of probes in the first launches of each kernel, or why they saved nothing."""
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
    """Draw the letters of a track."""
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
    ends = spans["end"][spans["open"]]
    for end in np.unique(ends).tolist():
        drawn[_cell(end, edges)] = OPEN
    return "".join(drawn)


def _cell(time: float, edges: Cells) -> int:
    """Return the slice for the time of an end or a mark."""
    return min(max(int(np.searchsorted(edges, time)) - 1, 0), len(edges) - 2)


def _find_letters(timeline: Timeline, spans: Spans) -> npt.NDArray[np.int64]:
    """Return the index in LETTERS for each span."""
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
    """Return the total time of spans in each slice; time that several spans cover counts once."""
    begin, end = np.sort(spans["begin"]), np.sort(spans["end"])
    inner = begin[1:] >= end[:-1]
    if not inner.all():  # spans are nested or overlap: merge them
        order = np.argsort(spans["begin"], kind="stable")
        begin, reach = spans["begin"][order], np.maximum.accumulate(spans["end"][order])
        first = np.append(True, begin[1:] > reach[:-1])
        begin, end = begin[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(reach) - 1)]

    return np.maximum(0.0, np.round(np.diff(_since(begin, edges) - _since(end, edges)), 3))


def _since(times: npt.NDArray[np.int64], moments: Cells) -> Cells:
    """Return for each moment the sum of the time since each of the earlier `times`."""
    sums = np.append(0.0, np.cumsum(times - times[0], dtype=np.float64))
    count = np.searchsorted(times, moments)
    found: Cells = count * (moments - times[0]) - sums[count]
    return found


def _draw_ranges(timeline: Timeline, spans: Spans, marks: list[Mark], edges: Cells) -> str:
    """Draw the outermost ranges whose names have room, `[forward  ][backward ]`, and marks between them."""
    cells = [" "] * (len(edges) - 1)
    free = 0
    for span in spans[spans["end"] - spans["begin"] > edges[1] - edges[0]]:  # shorter ones have no room for a name
        first = max(free, int(np.searchsorted(edges, span["begin"], side="right")) - 1)  # another may end here
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
    """Write text into cells; a character that is two columns wide fills two cells."""
    for character in text:
        width = cell_len(character)
        if not width and place:
            cells[place - 1] += character
        cells[place : place + width] = [character, *[""] * (width - 1)] if width else []
        place += width


def _draw_axis(cells: int, edges: Cells) -> str:
    """Draw times since the first span."""
    texts = [f"|{human_time(edges[at] - edges[0])}" for at in range(0, cells - TICK // 2, TICK)]
    return "".join(f"{text:{TICK}}" for text in texts).rstrip()


def _fold(parts: list[str], width: int) -> Iterator[str]:
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 2 > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{part}"
    yield from (f"{line.plain}\n" for one in lines for line in fold(one, width))
