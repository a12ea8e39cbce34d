"""Find the files that a command line names: files, directories with all their contents, a pipe."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from gpt.formats.paths import real_path
from gpt.formats.source import Source

BACKUP = ".gpt-orig"  # suffix of the original of a library that was replaced by a slimmed one


def iter_files(top: Path) -> Iterator[Path]:
    """Yield the regular files below a directory, sorted, without backups. A file with several names is yielded once."""
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(BACKUP):
                continue
            if path.is_symlink() and Path(real_path(path)).is_relative_to(real_path(top)):
                continue  # the file is listed under its own name
            if path.is_file():
                status = path.stat()
                key = (status.st_dev, status.st_ino)
                if key not in seen:
                    seen.add(key)
                    yield path


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Open a file as a source. A pipe or device is read to its end first."""
    with open(path, "rb") as file, ExitStack() as stack:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield Source(str(path), file.fileno())
        else:
            yield spool(stack, file, str(path))


def spool(stack: ExitStack, file: IO[bytes], name: str) -> Source:
    """Copy a pipe to a temporary file, which `stack` closes, and return that as a source."""
    import shutil
    import tempfile

    copy = stack.enter_context(tempfile.TemporaryFile())
    shutil.copyfileobj(file, copy, 1 << 20)
    copy.flush()
    return Source(name, copy.fileno())
