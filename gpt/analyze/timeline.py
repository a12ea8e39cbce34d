"""gpt-analyze timeline: draw what ran when, as text or as a file for a timeline viewer."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpt.analyze.lib import base
from gpt.analyze.lib.answer import Answers
from gpt.analyze.lib.command import Analysis
from gpt.base.errors import UsageError
from gpt.base.options import Option
from gpt.base.outputs import replacing
from gpt.stream.stage import DASH, Stage

if TYPE_CHECKING:
    from gpt.timeline.counters import Counter as Line
    from gpt.timeline.saved import SavedSpans
    from gpt.timeline.tracks import Timeline, WarpRanges
    from gpt.trace.process import Process

EACH = 260  # bytes of memory per call or GPU time; AS_MUCH lists formats whose files are as large as that
MUCH = 1e9  # bytes of memory from which on there's a warning
MANY = 200_000  # limit for calls that allocate and free; with text, their pieces are in memory, about 60 MB
NAMED = 3  # number of processes, and of reasons, named in a line
LEVEL = 1  # level for gzip: higher levels take two to five times as long, and save only a fifth to a quarter


class TimelineFormat(StrEnum):
    """Formats of a timeline."""

    ascii = "ascii"
    chrome = "chrome"
    perfetto = "perfetto"
    html = "html"
    all = "all"


ENDINGS = {
    TimelineFormat.ascii: ".txt",
    TimelineFormat.chrome: ".json.gz",
    TimelineFormat.perfetto: ".pftrace",
    TimelineFormat.html: ".html",
}  # all formats
FORMS = {
    ".txt": TimelineFormat.ascii,
    ".json": TimelineFormat.chrome,
    ".pftrace": TimelineFormat.perfetto,
    ".html": TimelineFormat.html,
    ".htm": TimelineFormat.html,
}


AS_MUCH = {TimelineFormat.chrome: ", and as much in the file", TimelineFormat.all: ", and more in the files"}


def _find_form(output: Path | None) -> TimelineFormat:
    """Return the format that belongs to a file name; without a name, it's text."""
    suffixes = [suffix.lower() for suffix in output.suffixes if suffix.lower() != ".gz"] if output else []
    return FORMS.get(suffixes[-1], TimelineFormat.ascii) if suffixes else TimelineFormat.ascii


class Drawing:
    """Stores everything that was read until it's drawn. Large amounts of data are stored in a file."""

    streams, drains = False, True

    def __init__(self, stage: Stage, json: bool, shape: TimelineFormat | None, output: Path | None) -> None:
        from gpt.trace.kinds import COSTS, LOADS, NODE_TIMES, NODES, RANGES, RUNS, SAVES
        from gpt.trace.model import TraceModel

        if json:
            raise UsageError("a timeline has no --json; --format chrome is JSON")
        if output == DASH:
            output = None
        if shape is TimelineFormat.all and not output:
            raise UsageError("--format all writes files: -o says how their names begin")
        self.kinds = RUNS | LOADS | SAVES | COSTS | NODES | NODE_TIMES | RANGES
        self._stage, self._form, self._output = stage, shape or _find_form(output), output
        self._model = TraceModel(drains=True)
        self._warps: WarpRanges | None = None

    def take(self, process: Process) -> None:
        """Keep the rows that a process has collected."""
        self._model.take(process)

    def end(self, process: Process) -> None:
        """Note that a process has ended."""
        self._model.end(process)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return the message for a trace without calls."""
        return base.find_lack(kinds, self.kinds)

    def answer(self, incomplete: list[str]) -> Answers:
        """Draw the timeline, which isn't a record."""
        forms = [self._form]
        if self._form is TimelineFormat.all:
            forms = [form for form in ENDINGS if form is not TimelineFormat.ascii] + [TimelineFormat.ascii]
        if self._form is not TimelineFormat.ascii and (rows := self._model.count()) * EACH > MUCH:
            told = f"{rows:,} calls and GPU times take about {rows * EACH / 1e9:.1f} GB of memory"
            self._stage.warn("timeline", f"{told}{AS_MUCH.get(self._form, '')}: --time FROM,TO draws a part")
        for form, texts in self._iter_drawn(forms, incomplete):
            if not self._output:
                for data in texts:
                    self._stage.write_bytes(data)
            elif self._form is TimelineFormat.all:
                write(self._output.with_name(self._output.name + ENDINGS[form]), texts)
            else:
                write(self._output, texts)
        yield from ()

    def _iter_drawn(
        self, forms: list[TimelineFormat], incomplete: list[str]
    ) -> Iterator[tuple[TimelineFormat, Iterator[bytes]]]:
        """Yield each format with its contents. Text is made with little memory; the other formats share a Timeline."""
        from gpt.analyze.lib.allocations import read_memory_calls
        from gpt.analyze.lib.over_time import count_memory, count_warps

        saved: SavedSpans | None = None
        counters: list[Line] = []
        rest = [form for form in forms if form is not TimelineFormat.ascii]
        if (calls := read_memory_calls(self._model, None if rest else MANY)) is None:
            told = f"memory is not drawn: over {MANY:,} calls allocate and free it, which 'gpt-analyze memory' shows"
            incomplete = [*incomplete, told]
        else:
            counters += count_memory(self._model, calls)
        if rest:
            from gpt.timeline.tracks import make_timeline

            timeline = make_timeline(self._model, self._find_warps)
            saved = timeline.saved
            timeline.counters[:0] = [*counters, *count_warps(saved.ran)]
            self._model.incomplete = [*incomplete, *self._find_missing(saved)]
            for form in rest:
                yield form, _iter_bytes(form, timeline)
            del timeline
        if TimelineFormat.ascii in forms:
            from gpt.analyze.lib.warp_ranges import choose_blocks
            from gpt.screen.grid import screen_width
            from gpt.timeline import ascii
            from gpt.timeline.sketch import Scene

            scene = Scene(self._model, saved, lambda saved: choose_blocks(self._find_warps(saved)))
            self._model.incomplete = [*incomplete, *self._find_missing(scene.saved)]
            counters += [*count_warps(scene.saved.ran), *scene.rates]
            texts = ascii.iter_lines(scene, counters, screen_width())
            yield TimelineFormat.ascii, (text.encode(errors="replace") for text in texts)

    def _find_warps(self, saved: SavedSpans) -> WarpRanges:
        """Find the ranges of warps, once for all formats."""
        from gpt.analyze.lib.warp_ranges import find_warp_ranges

        if self._warps is None:
            self._warps = find_warp_ranges([*saved.ran, *saved.called])
        return self._warps

    def _find_missing(self, saved: SavedSpans) -> Iterator[str]:
        """Yield messages about periods that processes didn't record, and about data that probes didn't save."""
        from gpt.analyze.lib.coverage import Coverage, make_coverage

        if off := [process.pid for process in self._model.processes if process.changes]:
            told = ", ".join(map(str, off[:NAMED])) + (" and more" if len(off) > NAMED else "")
            yield f"recording was off at times in process {told}"
        coverage = Coverage()
        for process in self._model.processes:
            coverage.merge(make_coverage(process))
        if coverage.unprobed:
            yield from coverage.verdict()
        lost = Counter[str]()
        for facts in saved.facts:
            lost.update({value for value in facts.values() if isinstance(value, str) and value.startswith("lost: ")})
        for reason, count in lost.most_common(NAMED):
            yield f"{'1 launch' if count == 1 else f'{count:,} launches'} with probes {reason}"
        yield from self._find_warps(saved).missing
        if saved.lost:
            yield f"{saved.lost:,} launches have no call in the trace: what their probes saved is not shown"


def write(path: Path, parts: Iterator[bytes]) -> None:
    """Write a file, compressed if its name ends in .gz. Raises OSError."""
    with replacing(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed:
                packed.writelines(parts)
        else:
            file.writelines(parts)


def _iter_bytes(form: TimelineFormat, timeline: Timeline) -> Iterator[bytes]:
    match form:
        case TimelineFormat.chrome:
            from gpt.timeline import chrome

            texts = chrome.iter_text(timeline)
        case TimelineFormat.html:
            from gpt.timeline import html

            texts = html.iter_text(timeline)
        case TimelineFormat.perfetto:
            from gpt.timeline import perfetto

            yield from perfetto.iter_bytes(timeline)
            return
        case _:
            raise AssertionError(form)
    yield from (text.encode(errors="replace") for text in texts)


OPTIONS: dict[str, Any] = {
    "shape": Annotated[TimelineFormat | None, Option("--format", help="ascii, or for viewers; else by FILE's name.")],
    "output": Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write it there (- prints it); .gz packs it.")
    ],
}
ANALYSIS = Analysis("Draw what ran when.", Drawing, OPTIONS, lines=True)
