"""Which files a command line names: files, directories and wheels with everything in them, a pipe."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from gpt.errors import MalformedError
from gpt.formats.source import Source

ZIP = b"PK\3\4"
BACKUP = ".gpt-orig"  # after the name of a library: its original, while a slimmed one has its place
MAX_MEMBER = 8 << 30  # bytes of a file in a wheel


def iter_files(top: Path) -> Iterator[Path]:
    """The regular files below a directory, sorted. One that several names or links lead to comes once, no backup."""
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(BACKUP):
                continue
            if path.is_symlink() and path.resolve().is_relative_to(top.resolve()):
                continue  # comes under its own name
            if path.is_file():
                status = path.stat()
                key = (status.st_dev, status.st_ino)
                if key not in seen:
                    seen.add(key)
                    yield path


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """A file as a source; a pipe or device is read to its end first."""
    with open(path, "rb") as file, ExitStack() as stack:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield Source(str(path), file.fileno())
        else:
            yield spool(stack, file, str(path))


def is_wheel(source: Source) -> bool:
    """Whether it is a wheel, or any zip file."""
    return source.size >= len(ZIP) and source.pread(0, len(ZIP)) == ZIP


def iter_wheel(wheel: Source) -> Iterator[Source]:
    """The members of a wheel, unpacked into a temporary file one by one. Raises MalformedError."""
    try:
        with wheel.open() as file, zipfile.ZipFile(file) as members:
            for member in members.infolist():
                if member.is_dir():
                    continue
                if member.file_size > MAX_MEMBER:
                    raise MalformedError(f"'{member.filename}' unpacks to {member.file_size} bytes", wheel.name)
                with members.open(member) as packed, ExitStack() as stack:
                    yield spool(stack, packed, f"{wheel.name}/{member.filename}")
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise MalformedError(f"zip: {error}", wheel.name) from None


def spool(stack: ExitStack, file: IO[bytes], name: str) -> Source:
    """What a pipe holds, as a source: a temporary file that `stack` closes."""
    copy = stack.enter_context(tempfile.TemporaryFile())
    shutil.copyfileobj(file, copy, 1 << 20)
    copy.flush()
    return Source(name, copy.fileno())
