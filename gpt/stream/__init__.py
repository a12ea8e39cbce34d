"""The record stream: reading and writing it (wire), kinds of records, packed rows, JSON, and the base of every stage.

`from gpt import stream` gives the functions that read and write it, see gpt(7).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.stream.wire import *  # noqa: F403


MODULES = {"jsonl", "packed", "reasons", "record_code", "record_runs", "records", "stage", "wire"}


def __getattr__(name: str) -> Any:
    """Look up a name in gpt.stream.wire, which is imported only when it's needed."""
    if name in MODULES:  # not imported yet
        raise AttributeError(name)
    from gpt.stream import wire

    return getattr(wire, name)
