"""What a program did, as arrays: the traces that gpt-hook writes. `open` is where Python begins with them."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel


def open(*paths: str | PathLike[str]) -> TraceModel:
    """Reads traces, and those of the processes that they name; gpt/trace/model.py has what that is.

    What of a torn trace is there counts, and `incomplete` says so. Raises GptError if nothing can be read.
    """
    from pathlib import Path

    import gpt.compat  # noqa: F401 - registers other people's traces
    from gpt.trace.model import read

    return read([Path(path) for path in paths])
