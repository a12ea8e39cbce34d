"""Read the traces on a command line: gpt-hook's files, `-` for standard input, and files of other people's tools.

Readers get the same records from all of them. Other formats are looked up in FORMATS. Importing gpt/compat/ fills that
table; the stages do that, but nothing else does. This file is quick to import, because a format imports its reader only
when it's needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from gpt.base.errors import MissingError, UsageError
from gpt.base.wrong_input import is_stream
from gpt.formats.paths import is_regular, open_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Record = dict[str, Any]
Read = Callable[[Path | None], Iterator[Record]]
ReadText = Callable[[IO[bytes], str], Iterator[Record]]  # gets an open file and its name

STDIN = Path("-")
MOST_FOLDERS = 10_000  # limit for the folders in a folder
HEAD = 1 << 20  # bytes that are read to recognize a text format


class StoredBuffer(NamedTuple):
    """A buffer in a file of another format: `units` units, `size` bytes in all, from `offset` on.

    The other fields describe the buffer of the launch: its records have `stride` bytes, each unit has `capacity` of
    them (None in a log), and the units are threads, warps or blocks, depending on `level`, in `blocks` blocks of
    `threads` threads.
    """

    offset: int
    size: int
    units: int
    level: str
    stride: int
    capacity: int | None
    blocks: int
    threads: int


class Format(NamedTuple):
    """A format of another tool. Each field is a function, which returns None for files that aren't in this format.

    - `find_trace` returns the records of a file or folder, and `side_folder` the folder with its buffers.
    - `find_text` gets the first HEAD bytes of a file or pipe, and returns the function that reads it.
    - `unpack` decodes the buffer of a `buffer` record, if the record's `codec` is the `name` of the format.
    - `list_used` returns the kernels and libraries that a text file lists as used, and `find_library` the library that
      a file describes, for `gpt-extract --loaded`.
    """

    name: str
    find_trace: Callable[[Path], Iterator[Record] | None] | None = None
    side_folder: Callable[[Path], Path | None] | None = None
    find_text: Callable[[bytes], ReadText | None] | None = None
    unpack: Callable[[IO[bytes], StoredBuffer], npt.NDArray[np.uint8]] | None = None
    list_used: Callable[[bytes, Path], tuple[list[str], list[str]] | None] | None = None
    find_library: Callable[[Path], str | None] | None = None


FORMATS: dict[str, Format] = {}  # by name; tried in this order


def register(*formats: Format) -> None:
    """Add formats to the table. A format replaces an earlier one with the same name."""
    FORMATS.update((one.name, one) for one in formats)


def expand(paths: Sequence[Path]) -> list[Path | None]:
    """Return the traces to read. None stands for standard input, and a folder of trace folders is replaced by these, in
    order.

    Raises UsageError if standard input is named twice.
    """
    if sum(path == STDIN for path in paths) > 1:
        raise UsageError("standard input can be read only once: '-' is given twice")
    return [one for path in paths for one in ([None] if path == STDIN else _folders(path))]


def _folders(path: Path) -> list[Path]:
    return _members(path, _is_trace, "neither a Neutrino trace folder nor a folder of them; pass traces as files")


def _members(path: Path, is_one: Callable[[Path], bool], lack: str) -> list[Path]:
    """Return the members of a folder that `is_one` accepts, sorted by name. A file or a trace folder is returned as it
    is.
    """
    if not path.is_dir() or _is_trace(path):
        return [path]
    found = [one for one in sorted(path.iterdir())[:MOST_FOLDERS] if not one.is_symlink() and is_one(one)]
    if not found:
        raise MissingError(lack, str(path))
    return found


def find_runs(path: Path) -> list[Path]:
    """Return the traces of the runs in a folder, sorted by name. A file or a trace folder counts as one run.

    The trace of a child process has the name of its parent's trace and a number; it isn't a run. Raises MissingError
    for a folder without runs.
    """
    return _members(path, _is_run, "no trace in this folder")


def find_empty(path: Path) -> list[Path]:
    """Return the empty files in a folder of runs, sorted by name: traces of runs that ended before they wrote any."""
    found = sorted(path.iterdir())[:MOST_FOLDERS] if path.is_dir() and not _is_trace(path) else []
    return [one for one in found if is_regular(one, follow=False) and not one.stat().st_size]


def _is_run(path: Path) -> bool:
    name, _, number = path.name.rpartition(".")
    if number.isascii() and number.isdecimal() and path.with_name(name).exists():
        return False
    return _is_trace(path) or (is_regular(path, follow=False) and _begins_stream(path))


def _begins_stream(path: Path) -> bool:
    with open_regular(path) as file:
        return is_stream(file.peek(64))


def _is_trace(path: Path) -> bool:
    """Return whether a path is a folder that is itself a trace."""
    return path.is_dir() and _find_trace(path) is not None


def side_folder(path: Path | None) -> Path | None:
    """Return the folder with the files that contain a trace's buffers, or None for standard input."""
    if path is None:
        return None
    folders = (one.side_folder(path) for one in FORMATS.values() if one.side_folder)
    return next(filter(None, folders), path.parent)


def read_input(path: Path | None, read: Read) -> Iterator[Record]:
    """Yield the records of a path that `expand` returned. `read` reads gpt-hook's traces. Raises GptError, OSError."""
    if path is None:
        yield from read(path)
    elif (trace := _find_trace(path)) is not None:
        yield from trace
    elif is_regular(path) and (read_text := _find_text_of(path)):
        with open_regular(path) as file:
            yield from read_text(file, str(path))
    else:
        yield from read(path)


def _find_trace(path: Path) -> Iterator[Record] | None:
    traces = (one.find_trace(path) for one in FORMATS.values() if one.find_trace)
    return next((trace for trace in traces if trace is not None), None)


def _find_text_of(path: Path) -> ReadText | None:
    with open_regular(path) as file:
        return None if is_stream(file.peek(64)) else find_text(file.read(HEAD))


def find_text(head: bytes) -> ReadText | None:
    """Return the function that reads text beginning with these bytes, or None for a stream or an unknown format."""
    if is_stream(head):
        return None
    return next(filter(None, (one.find_text(head) for one in FORMATS.values() if one.find_text)), None)


def find_library(path: Path) -> str | None:
    """Return the library that a file describes, or None if it's a trace or a list."""
    return next(filter(None, (one.find_library(path) for one in FORMATS.values() if one.find_library)), None)


def list_used(data: bytes, path: Path) -> tuple[list[str], list[str]] | None:
    """Return the kernels and libraries that a text lists as used, or None if no format recognizes the text.

    Raises MalformedError.
    """
    lists = (one.list_used(data, path) for one in FORMATS.values() if one.list_used)
    return next((found for found in lists if found is not None), None)
