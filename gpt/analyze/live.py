"""Traces that are still being written: looked at again and again until their programs have ended.

Every look reads the traces anew, as they are then, and the pause after one that took longer is longer. On a terminal
each shows what there is; anywhere else only the last one writes, for nobody wants a file with many answers. A signal
ends the looking, and what is there by then is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt import signals
from gpt.analyze.answer import Answers
from gpt.errors import MissingError, UsageError
from gpt.stage import Stage

if TYPE_CHECKING:
    from gpt.trace.process import Process

PAUSE, SHARE = 1.0, 4.0  # seconds between looks, at least; and times what one took
CLEAR = "\x1b[H\x1b[J"  # of a terminal


class Nothing:
    """An analysis that has nothing to say; what is read tells whether it is over."""

    kinds = frozenset[str]()
    streams = True

    def take(self, process: Process) -> None:
        """Nothing."""

    def end(self, process: Process) -> None:
        """Nothing."""

    def find_lack(self, kinds: set[str]) -> str | None:
        """Nothing."""

    def answer(self, incomplete: list[str]) -> Answers:
        """Nothing."""
        yield from ()


def check(traces: Sequence[Path]) -> None:
    """Raises UsageError without files, MissingError if one is absent."""
    if not traces or Path("-") in traces:
        raise UsageError("--follow takes files; a stream is read to its end anyway")
    for path in traces:
        if not path.exists():
            raise MissingError("No such file or directory", str(path))


def wait(tool: str, look: Callable[[Stage], bool], traces: Sequence[Path], shown: bool) -> signals.Terminated | None:
    """Looks until `look` says that all has ended, or a signal comes, which is returned. A look may be `shown`.

    Raises MissingError if one of the traces is there no more.
    """
    from gpt.screen.answers import AnswerTables

    try:
        while True:
            began, stage = time.monotonic(), Stage(tool, stream=True, quiet=True)
            stage.table = AnswerTables()
            ended = look(stage)
            if shown:
                stage.write_text(CLEAR)
                stage.close()
            if ended:
                return None
            time.sleep(max(PAUSE, SHARE * (time.monotonic() - began)))
            check(traces)
    except signals.Terminated as signal:
        return signal
