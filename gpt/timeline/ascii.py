"""A timeline as text: one line per track, with a letter for each slice of time. The letter stands for the activity that
took most of the slice.

A letter is upper case if the activity took at least half of the slice, and lower case if it took less. A dot means that
nothing happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import ascii_uppercase

import numpy as np
from rich.cells import cell_len

from gpt.base.printable import printable, shorten
from gpt.screen.demangle import readable
from gpt.screen.grid import fold
from gpt.screen.units import human, human_time
from gpt.timeline.counters import Counter
from gpt.timeline.sketch import Cells, Row, Scene, Sketch, Work
from gpt.timeline.tracks import Track, by_rank, owner, title

LETTERS = {
    "K": "kernel", "P": "kernel with probes", "H": "copy to the device", "D": "copy to the host",
    "T": "other copy or memset", "L": "launch", "C": "call of a copy", "A": "allocation", "O": "loading of code",
    "W": "wait", "X": "other call",
}  # fmt: skip
CALLS = {"kernel": "L", "graph": "L", "memcpy": "C", "memset": "C", "memory": "A", "module": "O", "sync": "W"}
COPIES = {"HtoD": "H", "DtoH": "D"}
LABEL, LEAST = 24, 20  # maximum width of a name, and minimum number of cells
TICK = 16  # columns from one time on the axis to the next
OPEN, MARK, OTHER = ">", "!", "?"
PROBED, FACTS = 5, 400  # kernels for which results of probes are shown, and characters for each


def iter_lines(scene: Scene, counters: list[Counter], width: int) -> Iterator[str]:
    """Yield the lines, at most `width` columns wide, with newlines."""
    if scene.empty:
        yield "nothing that took time in the trace\n"
    else:
        yield from _iter_tracks(scene, counters, width)
    for line in scene.model.incomplete:
        yield from (f"{part.plain}\n" for part in fold(f"incomplete: {line}", width))


def _find_letters(scene: Scene) -> tuple[dict[str, str], list[int]]:
    """Return LETTERS with a letter for each name of warps' ranges, and the index of the letter for each name."""
    letters, found = dict(LETTERS), []
    for name in scene.warps.names if scene.warps else ():
        free = set(ascii_uppercase) - letters.keys()
        letter = next((one for one in (*name.upper(), *reversed(ascii_uppercase)) if one in free), OTHER)
        letters.setdefault(letter, f"'{printable(name)}' in a warp" if letter != OTHER else "other range of a warp")
        found.append([*letters].index(letter))
    return letters, found


def _make_sketch(
    scene: Scene, counters: list[Counter], width: int, letters: dict[str, str], ranges: list[int]
) -> tuple[Sketch, int, Cells]:
    """Return the rows, the width of their names, and the edges of the other columns. `ranges` has the index of the
    letter for each name of warps' ranges.
    """
    begin, end = scene.bounds
    label = _find_label(scene.tracks, counters, width)
    while True:
        cells = max(LEAST, width - label)
        edges = np.linspace(begin, max(end, begin + cells), cells + 1)
        sketch = Sketch(scene, edges, len(letters), lambda *what: _find_letter(scene, *what), ranges)
        needed = _find_label(sketch.rows, counters, width)
        if needed <= label:
            return sketch, label, edges
        label = needed  # some tracks need lanes, whose names are longer


def _find_label(tracks: Iterable[Track], counters: list[Counter], width: int) -> int:
    """Return how many columns the names take."""
    names = [title(track) for track in tracks] + [counter.name for counter in counters]
    return min(LABEL, max(map(cell_len, map(printable, names))) + 3, max(LEAST // 2, width - LEAST))


def _iter_tracks(scene: Scene, counters: list[Counter], width: int) -> Iterator[str]:
    """Yield the rows of each process, the axis, the legend, and the data that probes saved."""
    letters, ranges = _find_letters(scene)
    sketch, label, edges = _make_sketch(scene, counters, width, letters, ranges)
    begin, cells = scene.bounds[0], len(edges) - 1
    used: set[str] = set()
    tops: dict[tuple[str, str], int] = {}  # maximum values of counters that have the same name and unit
    for one in counters:
        key = one.name, one.unit
        tops[key] = max(tops.get(key, 0), int(one.values.max(initial=0)))
    for place, process in by_rank(scene.model):
        tracks = sorted(track for track in sketch.rows if track.process == place)
        if tracks:
            told = f"{owner(process)}: {' '.join(process.header['argv'])}"
            yield shorten(printable(told), width) + "\n"
        for counter in (counter for counter in counters if counter.process == place):
            drawn = _draw_counter(counter, tops[counter.name, counter.unit], edges)
            yield f"  {_pad(counter.name, label - 2)}{drawn}\n"
        for track in tracks:
            row, name = sketch.rows[track], _pad(title(track), label - 2)
            if row.has_ranges or row.marks:
                drawn = _draw_ranges(row, edges)
                if drawn or not row.used:  # no range is wide enough for its name
                    yield f"  {' ' * (label - 2) if row.used else name}{drawn}\n"
            if row.used:
                drawn = _draw(row, edges, [*letters])
                used |= set(drawn.upper())
                yield f"  {name}{drawn}\n"
    yield f"{'':{label}}{_draw_axis(cells, edges)}\n"
    yield from (f"{line.plain}\n" for line in fold(f"0ns is {begin / 1e9:.6f} s for --time", width))
    legend = [f"{letter} {about}" for letter, about in letters.items() if letter in used]
    legend += [f"{OPEN} not over"] if scene.open else []
    legend += [f"{MARK} mark"] if scene.marked else []
    yield from _fold(["small letters: less than half of the time", *legend], width)
    if tops:
        told = ", ".join(f"{name} {_human(most, unit)}" for (name, unit), most in tops.items())
        yield from (f"{line.plain}\n" for line in fold(f"digits: ninths of the maximum: {told}", width))
    if scene.warps and scene.warps.aligned:
        yield from (f"{line.plain}\n" for line in fold(scene.warps.aligned, width))
    for line in _iter_probes(scene, sketch):
        yield from (f"{part.plain}\n" for part in fold(line, width))


def _pad(text: str, width: int) -> str:
    """Fit a name in this many columns, the last of which is blank."""
    short = shorten(printable(text), width - 1)
    return short + " " * (width - cell_len(short))


def _human(most: int, unit: str) -> str:
    return human(most) + unit.removeprefix("bytes") if unit.startswith("bytes") else f"{most:,}"


def _draw_counter(counter: Counter, top: int, edges: Cells) -> str:
    """Draw the maximum value in each slice of time, in ninths of the overall maximum."""
    times, values = counter.times, counter.values.astype(np.float64)
    first = np.searchsorted(times, edges[:-1], side="right") - 1  # its value when the slice begins
    last = np.searchsorted(times, edges[1:])
    padded = np.append(values, 0.0)  # for index -1, which is before the first value
    most = padded[first]
    inner = np.flatnonzero(last > first + 1)
    for cell in inner.tolist():
        most[cell] = max(most[cell], values[first[cell] + 1 : last[cell]].max())
    ninths = np.ceil(9 * most / (top or 1)).astype(int)
    return "".join(str(ninth) if ninth > 0 else "." for ninth in ninths.tolist())


def _iter_probes(scene: Scene, sketch: Sketch) -> Iterator[str]:
    """Yield the results of probes in the first launches of each kernel, or the reason why they saved nothing."""
    most = sorted(sketch.noted.items(), key=lambda one: -one[1][0])
    names = dict(zip(most_names := [name for name, _ in most], readable(most_names), strict=True))
    for name, (count, fact) in most[:PROBED]:
        facts = scene.saved.facts[fact]
        told = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in facts.items())
        which = f", first of {count:,}" if count > 1 else ""
        yield shorten(f"{names[name]}{which}: {told}", FACTS, middle=False)
    if (more := len(most) - PROBED) > 0:
        yield f"and {more:,} more kernels with probes"


def _draw(row: Row, edges: Cells, letters: list[str]) -> str:
    """Draw the letters of a row."""
    took = np.maximum(0.0, np.round(row.took, 3))
    most = took.argmax(axis=0)
    share = took.max(axis=0) / np.diff(edges)
    drawn = [
        "." if part == 0 else letters[kind] if part >= 0.5 else letters[kind].lower()
        for kind, part in zip(most.tolist(), share.tolist(), strict=True)
    ]
    for end in row.ends:
        drawn[min(max(int(np.searchsorted(edges, end)) - 1, 0), len(edges) - 2)] = OPEN
    return "".join(drawn)


def _find_letter(scene: Scene, process: int, id_: int, work: Work) -> int:
    """Return the index in LETTERS for an activity."""
    api = scene.model.processes[process].api(id_)
    if not work.on_gpu:
        letter = CALLS.get(api.type, "X")
    elif work.kernel or api.type not in ("memcpy", "memset"):
        letter = "P" if work.probed else "K"
    else:
        letter = COPIES.get(api.op, "T") if api.type == "memcpy" else "T"
    return [*LETTERS].index(letter)


def _draw_ranges(row: Row, edges: Cells) -> str:
    """Draw the outermost ranges that are wide enough for their names, `[forward  ][backward ]`, and marks between
    them.
    """
    cells = [" "] * (len(edges) - 1)
    free = 0
    for one in row.ranges:
        first = max(free, int(np.searchsorted(edges, one.begin, side="right")) - 1)  # another one may end here
        last = min(len(cells), int(np.searchsorted(edges, one.end)))
        if last - first < 3:
            continue
        name = shorten(printable(one.name), last - first - 2)
        end = OPEN if one.open else "]"
        _write(cells, first, f"[{name}{'-' * (last - first - 2 - cell_len(name))}{end}")
        free = last
    for place, mark in sorted(row.marks.items()):
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
