"""Wheels with some members replaced: the other members as they were, RECORD with the new digests and sizes.

RECORD is CSV, a line a member, `PATH,sha256=DIGEST,SIZE` with the digest in URL-safe base 64 without padding
(the packaging specifications, "Recording installed projects"). A RECORD that is signed (`.jws`, `.p7s`) is refused.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gpt.errors import GptError, MalformedError
from gpt.formats.files import MAX_MEMBER, ZIP

RECORD = ".dist-info/RECORD"
SIGNED = (f"{RECORD}.jws", f"{RECORD}.p7s")
BLOCK = 1 << 20


def split(path: Path) -> tuple[Path, str] | None:
    """The wheel and the member that a path of gpt-extract means, `X.whl/MEMBER`; None where no wheel is in it."""
    for wheel in path.parents:
        if wheel.is_file():
            with open(wheel, "rb") as file:
                return (wheel, str(path.relative_to(wheel))) if file.read(4) == ZIP else None
        if wheel.is_dir():
            return None
    return None


class Wheels:
    """Members that were patched, until all of their wheels are; in a temporary folder, which `close` removes."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._count = 0
        self._replaced: dict[Path, dict[str, Path]] = {}

    def add(self, wheel: Path, member: str, near: Path) -> tuple[Path, Path]:
        """Unpacks a member; gives where it is and where the patched one goes. `near` is on a large disk."""
        if self._folder is None:
            near.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=".wheel.", dir=near))
        self._count += 1
        source, target = (self._folder / f"{self._count}.{part}" for part in ("before", "after"))
        unpack(wheel, member, source)
        self._replaced.setdefault(wheel, {})[member] = target
        return source, target

    def iter_complete(self) -> Iterator[tuple[Path, dict[str, Path]]]:
        """The wheels with what is to be replaced in them, each once."""
        for wheel, replaced in self._replaced.items():
            yield wheel, {member: path for member, path in replaced.items() if path.exists()}
        self._replaced = {}

    def close(self) -> None:
        """Removes the folder."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as members:
            yield members
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError) as error:
        raise MalformedError(f"zip: {error}", str(wheel)) from None


def unpack(wheel: Path, member: str, out: Path) -> None:
    """Writes a member to a file. Raises MalformedError."""
    with _opened(wheel) as members, open(out, "wb") as file:
        info = members.getinfo(member)
        if info.file_size > MAX_MEMBER:
            raise MalformedError(f"'{member}' unpacks to {info.file_size} bytes", str(wheel))
        with members.open(info) as packed:
            shutil.copyfileobj(packed, file, BLOCK)


def repack(wheel: Path, replaced: Mapping[str, Path], out: Path) -> None:
    """Writes the wheel with these members replaced by files, whole or not at all. Raises GptError."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _opened(wheel) as members:
            infos = [info for info in members.infolist() if not info.is_dir()]
            if signature := next((info.filename for info in infos if info.filename.endswith(SIGNED)), None):
                raise GptError(f"is signed ('{signature}'), and would not be any more: unpack it first", str(wheel))
            lines: dict[str, list[str]] = {}
            with zipfile.ZipFile(part, "w", allowZip64=True) as made:
                for info in sorted(infos, key=lambda info: info.filename.endswith(RECORD)):  # in order, RECORD last
                    if info.filename.endswith(RECORD):
                        data = _record(members.read(info), lines)
                        _add(made, info, io.BytesIO(data), len(data))
                    elif path := replaced.get(info.filename):
                        with open(path, "rb") as file:
                            lines[info.filename] = _add(made, info, file, path.stat().st_size)
                    else:
                        with members.open(info) as packed:
                            _add(made, info, packed, info.file_size)
        part.replace(out)
    except OSError as error:
        raise GptError(error.strerror or str(error), str(error.filename or out)) from None
    finally:
        part.unlink(missing_ok=True)


def _add(made: zipfile.ZipFile, info: zipfile.ZipInfo, file: IO[bytes], size: int) -> list[str]:
    """Adds a member with the name, date, mode and compression of another. Gives its digest and size for RECORD."""
    new = zipfile.ZipInfo(info.filename, info.date_time)
    new.compress_type, new.external_attr, new.create_system = info.compress_type, info.external_attr, info.create_system
    digest, done = hashlib.sha256(), 0
    with made.open(new, "w", force_zip64=size >= 1 << 31) as out:
        while block := file.read(BLOCK):
            done += len(block)
            if done > MAX_MEMBER:
                raise MalformedError(f"'{info.filename}' unpacks to over {MAX_MEMBER} bytes")
            digest.update(block)
            out.write(block)
    return [f"sha256={base64.urlsafe_b64encode(digest.digest()).decode().rstrip('=')}", str(done)]


def _record(data: bytes, lines: Mapping[str, list[str]]) -> bytes:
    try:
        rows = list(csv.reader(io.StringIO(data.decode())))
    except (UnicodeDecodeError, csv.Error) as error:
        raise MalformedError(f"RECORD: {error}") from None
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([row[0], *lines[row[0]]] if row and row[0] in lines else row for row in rows)
    return out.getvalue().encode()
