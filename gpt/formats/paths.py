"""Handle paths from records, which can't be trusted: they may name anything, or be invalid."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from gpt.base.errors import MissingError
from gpt.formats.source import BLOCK

MOST_LINKS = 40  # limit for the links on the way to a file


def open_regular(path: str | Path, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. Raises MissingError for anything else, and OSError if it can't be opened.

    Opening a pipe would wait for a writer that may never come, and a device has no end. Without `follow`, links aren't
    accepted.
    """
    try:
        if not follow and os.path.islink(path):
            raise MissingError("a symbolic link", str(path))
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        number = os.open(path, flags | (0 if follow else os.O_NOFOLLOW))
    except ValueError:  # the path contains a NUL, or half of a surrogate pair
        raise MissingError("not a valid file name", str(path)) from None
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise MissingError("a directory" if stat.S_ISDIR(mode) else "not a regular file", str(path))
    return open(number, "rb")


def is_regular(path: str | Path, follow: bool = True) -> bool:
    """Return whether a path is a regular file or, with `follow`, a link to one. If there's an error, it isn't; pathlib
    would raise one for long names.
    """
    try:
        return stat.S_ISREG(os.stat(path, follow_symlinks=follow).st_mode)
    except (OSError, ValueError):
        return False


def read_at_most(file: IO[bytes], size: int) -> bytes:
    """Read at most `size` bytes of a file, without allocating more than the file has."""
    blocks: list[bytes] = []
    while size and (block := file.read(min(size, BLOCK))):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def real_path(path: str | Path) -> str:
    """Return the canonical form of a path. If no file can have that path, return it as it is. Path.resolve raises
    errors for circular links.
    """
    try:
        return os.path.realpath(path)
    except ValueError:
        return str(path)


def iter_links(path: str | Path) -> Iterator[Path]:
    """Yield the symbolic links on the way to a file, in the order in which the kernel follows them, and like the kernel
    at most 40.
    """
    words, at, links = os.path.abspath(path).split("/")[::-1], Path("/"), 0
    while words and links < MOST_LINKS:
        at = at.parent if words[-1] == ".." else at / words[-1]
        words.pop()
        try:
            target = os.readlink(at)
        except (OSError, ValueError):
            continue
        yield at
        links += 1
        words += target.split("/")[::-1]
        at = Path("/") if target.startswith("/") else at.parent
