"""Analyses of users' own: a file with a function `analyze`, from the trace model to answers.

from gpt.analyze.answer import Column, make_answer

def analyze(trace):
    calls = trace.calls()
    yield make_answer("calls", [Column("number", "u64")], [(len(calls),)])
"""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.analyze.command import Analysis, of_model
from gpt.errors import GptError, UsageError

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

NAME = "analyze"


def load_script(path: Path) -> Analysis:
    """The analysis of a file, which is run when that is asked for."""

    def analyze(trace: TraceModel) -> Iterator[dict[str, Any]]:
        try:
            function = runpy.run_path(str(path)).get(NAME)
            if not callable(function):
                raise UsageError(f"no function '{NAME}'", str(path))
            yield from function(trace)
        except (GptError, OSError):
            raise
        except Exception as error:  # whatever it does
            line = next(
                (at.lineno for at in traceback.extract_tb(error.__traceback__)[::-1] if at.filename == str(path)), 0
            )
            raise GptError(f"{type(error).__name__}: {error}", f"{path}:{line}") from error

    return of_model(analyze, "Ask a function of your own.", None)
