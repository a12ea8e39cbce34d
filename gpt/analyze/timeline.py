"""gpt-analyze timeline: what ran when, as text, or as a file that a viewer of timelines reads."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt.analyze import base
from gpt.analyze.answer import Answers
from gpt.analyze.command import Analysis
from gpt.errors import UsageError
from gpt.outputs import replacing
from gpt.stage import Stage

if TYPE_CHECKING:
    from gpt.timeline.tracks import Timeline
    from gpt.trace.process import Process

LEVEL = 1  # of gzip: half the size of the next one's gain takes a third of the time


class Form(StrEnum):
    """What a timeline is written as."""

    ascii = "ascii"
    chrome = "chrome"


ENDINGS = {Form.ascii: ".txt", Form.chrome: ".json.gz"}


class Drawing:
    """All that was read, until it is drawn."""

    streams = False

    def __init__(self, stage: Stage, json: bool, shape: Form | None, output: Path | None) -> None:
        from gpt.trace.model import EVERYTHING, TraceModel

        if json:
            raise UsageError("a timeline has no --json; --format chrome is JSON")
        self.kinds = EVERYTHING
        self._stage, self._form, self._output = stage, shape or Form.ascii, output
        self._model = TraceModel()

    def take(self, process: Process) -> None:
        """Keeps what a process has collected."""
        self._model.take(process)

    def end(self, process: Process) -> None:
        """A process is over."""
        self._model.end(process)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Whether there are calls."""
        return base.find_lack(kinds, self.kinds)

    def answer(self, incomplete: list[str]) -> Answers:
        """Draws it; what it writes are no records."""
        from gpt.timeline.tracks import make_timeline

        self._model.incomplete = incomplete
        timeline = make_timeline(self._model)
        if self._output:
            write(self._output, _iter_text(self._form, timeline))
        else:
            for text in _iter_text(self._form, timeline):
                self._stage.write_text(text)
        yield from ()


def write(path: Path, texts: Iterator[str]) -> None:
    """The file, compressed if its name ends in .gz. Raises OSError."""
    with replacing(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed:
                for text in texts:
                    packed.write(text.encode(errors="replace"))
        else:
            for text in texts:
                file.write(text.encode(errors="replace"))


def _iter_text(form: Form, timeline: Timeline) -> Iterator[str]:
    match form:
        case Form.ascii:
            from gpt.screen.grid import screen_width
            from gpt.timeline import ascii

            yield from ascii.iter_lines(timeline, screen_width())
        case Form.chrome:
            from gpt.timeline import chrome

            yield from chrome.iter_text(timeline)


OPTIONS: dict[str, Any] = {
    "shape": Annotated[Form | None, typer.Option("--format", help="Text (ascii), or JSON for a viewer (chrome).")],
    "output": Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there; .gz compresses it.")
    ],
}
ANALYSIS = Analysis("Draw what ran when.", Drawing, OPTIONS, lines=True)
