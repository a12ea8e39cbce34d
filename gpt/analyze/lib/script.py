"""Load an analysis that a user has written: a file with a function `analyze`, which makes answers from the trace
model.

from gpt.analyze.lib.answer import Column, make_answer

def analyze(trace):
    calls = trace.calls()
    yield make_answer("calls", [Column("number", "u64")], [(len(calls),)])
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.command import Analysis, of_model
from gpt.base.errors import GptError, UsageError
from gpt.stream import records

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

NAME = "analyze"


def load_script(path: Path) -> Analysis:
    """Load the analysis in a file. The file is executed when the analysis is used."""

    def analyze(trace: TraceModel) -> Iterator[dict[str, Any]]:
        try:
            with redirect_stdout(sys.stderr):  # standard output is only for answers
                function = runpy.run_path(str(path)).get(NAME)
                if not callable(function):
                    raise UsageError(f"no function '{NAME}'", str(path))
                found = list(function(trace) or ())
        except (GptError, OSError):
            raise
        except (Exception, SystemExit) as error:  # the script can raise anything
            raise GptError(f"{type(error).__name__}: {error}", f"{path}:{_find_line(error, path)}") from error
        for answer in found:
            is_answer = isinstance(answer, dict) and answer.get("kind") == "answer"
            if fault := records.check(answer) if is_answer else repr(type(answer).__name__):
                raise GptError(f"not an answer: {fault}", str(path))
            yield answer

    return of_model(analyze, "Ask a function of your own.", None)


def _find_line(error: BaseException, path: Path) -> int:
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).name == path.name:
        return error.lineno or 0
    lines = traceback.extract_tb(error.__traceback__)[::-1]
    return next((at.lineno or 0 for at in lines if at.filename == str(path)), 0)
