"""What a command line names as traces: files of gpt-hook, `-` for standard input, JSON lines of calls, and what
Neutrino left: folders, a result, a `.dmat`. All of them are records to whoever reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpt.base.errors import GptError, MissingError, UsageError
from gpt.base.wrong_input import is_stream
from gpt.formats.paths import is_regular, open_regular

Record = dict[str, Any]
Read = Callable[[Path | None], Iterator[Record]]

STDIN = Path("-")
MOST_FOLDERS = 10_000  # in a folder of folders
PICKLE = "a pickle runs code when it is read, so it is not: take the .bin that it was made of"


def expand(paths: Sequence[Path]) -> list[Path | None]:
    """The traces that are meant: standard input is None, and a folder of trace folders is these, in order.

    Raises UsageError if standard input is named twice.
    """
    if sum(path == STDIN for path in paths) > 1:
        raise UsageError("standard input can be read once only: '-' is there twice")
    return [one for path in paths for one in ([None] if path == STDIN else _folders(path))]


def _folders(path: Path) -> list[Path]:
    return _members(path, _is_trace, "not a trace, nor a trace folder of Neutrino, nor a folder of such")


def _members(path: Path, is_one: Callable[[Path], bool], lack: str) -> list[Path]:
    """Return what a folder has of a kind, in order of name; a file, or a trace folder, is the only one of its own."""
    if not path.is_dir() or _is_trace(path):
        return [path]
    found = [one for one in sorted(path.iterdir())[:MOST_FOLDERS] if not one.is_symlink() and is_one(one)]
    if not found:
        raise MissingError(lack, str(path))
    return found


def find_runs(path: Path) -> list[Path]:
    """Return the traces of the runs in a folder, in order of their names; a file, or a trace folder, is one run.

    The trace of a process that another one started has that one's name and a number, and isn't a run. Raises
    MissingError if there are none.
    """
    return _members(path, _is_run, "no trace in this folder")


def _is_run(path: Path) -> bool:
    name, _, number = path.name.rpartition(".")
    if number.isdecimal() and path.with_name(name).exists():
        return False
    return _is_trace(path) or (is_regular(path, follow=False) and _begins_stream(path))


def _begins_stream(path: Path) -> bool:
    with open_regular(path) as file:
        return is_stream(file.peek(64))


def _is_trace(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in ("event.log", "result", "probe.toml"))


def side_folder(path: Path | None) -> Path | None:
    """The folder with the files that buffers of a trace are in; None for standard input."""
    if path is None:
        return None
    return (path / "result" if (path / "result").exists() else path) if path.is_dir() else path.parent


def read_input(path: Path | None, read: Read) -> Iterator[Record]:
    """The records of what `expand` returned; `read` reads traces of gpt-hook. Raises GptError, OSError."""
    if path is None:
        yield from read(path)
    elif path.is_dir():
        from gpt.compat.neutrino.traces.folder import read_folder

        yield from read_folder(path)
    elif path.suffix == ".pkl" or _begins(path, b"\x80\x04", b"\x80\x05"):
        raise GptError(PICKLE, str(path))
    elif path.suffix == ".bin" and is_regular(path):
        from gpt.compat.neutrino.traces.folder import read_folder

        yield from read_folder(path.parent.parent if path.parent.name == "result" else path.parent, path.name)
    elif path.suffix == ".dmat" and is_regular(path):
        from gpt.compat.neutrino.traces.dmat import read_dmat

        yield from read_dmat(path)
    elif is_regular(path) and _has_lines(path):
        from gpt.compat.tracers.lines import read_lines

        with open_regular(path) as file:
            yield from read_lines(file, str(path))
    else:
        yield from read(path)


def _has_lines(path: Path) -> bool:
    """Whether a file is JSON lines of calls."""
    with open_regular(path) as file:
        if is_stream(file.peek(64)):  # without what it takes to look closer
            return False
        from gpt.compat.tracers.lines import HEAD, is_lines

        return is_lines(file.read(HEAD))


def _begins(path: Path, *magic: bytes) -> bool:
    """Whether a file begins so, as far as that can be seen."""
    if not is_regular(path):
        return False
    with open_regular(path) as file:
        return file.read(2) in magic
