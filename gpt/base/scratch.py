"""Temporary folders, for tools that make files by name.

In a TMPDIR where others may rename files, such as a group's folder without the sticky bit, somebody can replace our
folder with another at any time. What a compiler writes there is code that will run. So the runtime makes the folder
(gpt_make_temporary in runtime/common/own.c, which gpt-hook uses too), checks its owner and mode, and returns an open
descriptor. Use the descriptor to run a compiler there, to read what it wrote, and to make files. By then the name may
lead anywhere, so it's only for messages and for removal.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpt.base import signals
from gpt.base.cache import PATH_MAX, load_runtime
from gpt.base.errors import OutputError

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Scratch:
    """A temporary folder that only this user can reach."""

    path: Path
    folder: int  # open

    @property
    def working(self) -> str:
        """The folder as the `cwd` of a new process. It stays valid even if the name leads elsewhere by then."""
        return f"/proc/self/fd/{self.folder}"

    def write(self, name: str, data: bytes) -> None:
        """Make a file."""
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=self.folder), "wb") as file:
            file.write(data)

    def read(self, name: str) -> bytes:
        """Return the contents of a regular file, or nothing if there isn't one."""
        try:
            if not stat.S_ISREG(os.stat(name, dir_fd=self.folder, follow_symlinks=False).st_mode):
                return b""
        except FileNotFoundError:
            return b""
        with open(os.open(name, os.O_RDONLY | _OPEN, dir_fd=self.folder), "rb") as file:
            return file.read()


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Scratch]:
    """Make a folder whose name begins with `prefix`, in TMPDIR unless a parent is given, and remove it at the end.

    Raises OutputError.
    """
    made = None
    try:
        with signals.held():  # otherwise, a signal just after the folder was made would leave it
            made = make_scratch(prefix, parent)
        yield made
    finally:
        if made:
            _remove(made)


def enter_scratch(stack: ExitStack, prefix: str, parent: Path | None = None) -> Scratch:
    """Make a folder that the end of `stack` removes, even if a signal arrives before the stack knows of it."""
    with signals.held():
        return stack.enter_context(scratch_folder(prefix, parent))


def _remove(made: Scratch) -> None:
    for name in os.listdir(made.folder):
        try:
            os.unlink(name, dir_fd=made.folder)
        except IsADirectoryError:
            shutil.rmtree(name, ignore_errors=True, dir_fd=made.folder)
    with suppress(OSError):  # if the name is another folder's by now, that one isn't empty, or nobody misses it
        os.rmdir(made.path)
    os.close(made.folder)


def make_scratch(prefix: str, where: Path | None = None) -> Scratch:
    """Make a folder that the caller removes. Raises OutputError."""
    parent = str(where or tempfile.gettempdir())
    library = load_runtime()
    try:
        if library is None:  # no runtime for this machine
            path = tempfile.mkdtemp(prefix=prefix, dir=parent)
            return Scratch(Path(path), os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN))
        name = ctypes.create_string_buffer(PATH_MAX)
        folder = library.gpt_cache_temporary(os.fsencode(parent), prefix.encode(), name)
        if folder < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return Scratch(Path(os.fsdecode(name.value)), folder)
    except OSError as error:
        raise OutputError.of(error, parent) from None
