"""Which files a command line names: files, directories and wheels with everything in them, a pipe."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from gpt.errors import MalformedError
from gpt.formats.source import Source

ZIP = b"PK\3\4"
MAX_MEMBER = 8 << 30  # bytes of a file in a wheel


def iter_sources(paths: list[Path], recursive: bool) -> Iterator[tuple[Source, bool]]:
    """Each file as an open source, and whether it was named itself. Closed when the next one is asked for.

    With `recursive` a directory stands for the regular files below it (sorted; a file that several names or
    links lead to comes once), a wheel or zip file for its members, unpacked into a temporary file one by one.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if recursive and path.is_dir():
            for name in _walk(path, seen):
                with open(name, "rb") as file:
                    yield Source(str(name), file.fileno()), False
            continue
        with open(path, "rb") as file:
            if recursive and file.read(4) == ZIP:
                yield from _iter_wheel(path, file)
            else:
                yield Source(str(path), file.fileno()), True


def _walk(top: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_symlink() and path.resolve().is_relative_to(top.resolve()):
                continue  # comes under its own name
            if path.is_file():
                status = path.stat()
                key = (status.st_dev, status.st_ino)
                if key not in seen:
                    seen.add(key)
                    yield path


def _iter_wheel(path: Path, file: IO[bytes]) -> Iterator[tuple[Source, bool]]:
    try:
        with zipfile.ZipFile(file) as wheel:
            for member in wheel.infolist():
                if member.is_dir():
                    continue
                if member.file_size > MAX_MEMBER:
                    raise MalformedError(f"'{member.filename}' unpacks to {member.file_size} bytes", str(path))
                with tempfile.TemporaryFile() as copy:
                    with wheel.open(member) as packed:
                        shutil.copyfileobj(packed, copy, 1 << 20)
                    copy.flush()
                    yield Source(f"{path}/{member.filename}", copy.fileno()), False
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise MalformedError(f"zip: {error}", str(path)) from None


def spool(stack: ExitStack, file: IO[bytes], name: str) -> Source:
    """What a pipe holds, as a source: a temporary file that `stack` closes."""
    copy = stack.enter_context(tempfile.TemporaryFile())
    shutil.copyfileobj(file, copy, 1 << 20)
    copy.flush()
    return Source(name, copy.fileno())
