"""gpt-analyze events: every call, a line each, oldest first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli

if TYPE_CHECKING:
    from gpt.analyze.base import Answer


def events(
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="[TRACE]...", help="Standard input without any.")
    ] = None,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """List every call, oldest first."""
    from gpt.analyze.base import run

    stage = cli.Stage("gpt-analyze", from_json=from_json, stream=True)  # of lines of its own
    return run(stage, Listing(stage, json), traces or ())


class Listing:
    """The calls of what was read so far."""

    kinds = None

    def __init__(self, stage: cli.Stage, json: bool) -> None:
        from gpt.trace.events import Events, Segment

        self._stage = stage
        self._json = json
        self._events = Events()
        self._new_segment = Segment
        self._segment: Segment | None = None

    def begin(self, header: dict[str, Any]) -> None:
        """A segment begins."""
        self._segment = self._new_segment(header)

    def add(self, record: dict[str, Any]) -> None:
        """Takes a record in."""
        assert self._segment
        self._segment.add(record)
        if self._segment.collector.full:
            self._events.put_aside(self._segment)

    def end_segment(self, status: int | None) -> Answer:
        """Nothing yet: another segment may have earlier calls."""
        if self._segment:
            self._events.put_aside(self._segment)
        yield from ()

    def answer(self) -> Answer:
        """Writes the lines; they are no records."""
        if self._json:
            for lines in self._events.iter_lines():
                self._stage.write_text(lines)
        else:
            from gpt.screen.events import HEADER, EventText

            text = EventText()
            self._stage.write_text(HEADER)
            for lines in self._events.iter_lines():
                for line in text.iter_lines(lines):
                    self._stage.write_text(line)
        yield from ()
