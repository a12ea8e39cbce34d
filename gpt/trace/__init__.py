"""Read the traces that gpt-hook writes, as arrays. `open` is where to start."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel


def open(*paths: str | PathLike[str]) -> TraceModel:
    """Read traces, and the traces of the child processes that they name, into a model (gpt/trace/model.py).

    A truncated trace is read up to its last complete record, and `incomplete` says so. Raises GptError if nothing can
    be read.
    """
    from pathlib import Path

    import gpt.compat  # noqa: F401 - registers other people's traces
    from gpt.trace.model import read

    return read([Path(path) for path in paths])
