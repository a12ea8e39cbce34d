"""Write wheels in which some members are replaced. Others don't change, and RECORD gets the new digests and sizes.

Members that aren't replaced are copied byte for byte, compressed, together with the bytes before and between them, and
are compared with their checksums, so that a damaged wheel is refused. Only the directory is rewritten, with the new
offsets.

RECORD is CSV with a line per member, `PATH,sha256=DIGEST,SIZE`, with the digest in URL-safe base64 without padding
(packaging specifications, "Recording installed projects"). Lines about other members aren't changed. Only the wheel's
own RECORD, `NAME.dist-info/RECORD`, is treated in this way; RECORD files of packages inside of packages are ordinary
members. A signed wheel (`.jws`, `.p7s`) is refused. With a label (versions.py), members that contain the version in
their name are rewritten, too.
"""

from __future__ import annotations

import base64
import copy
import csv
import fcntl
import hashlib
import io
import os
import posixpath
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO
from zipfile import ZipInfo

from gpt.base.errors import GptError, MalformedError
from gpt.base.outputs import replacing
from gpt.base.scratch import Scratch, make_scratch
from gpt.formats.paths import open_regular
from gpt.formats.source import Source
from gpt.formats.zips import MAGIC, Zip
from gpt.patch.attributes import copy_attributes
from gpt.patch.versions import METADATA, SAME_NAMES, Renaming

RECORD = ".dist-info/RECORD"
SIGNED = (f"{RECORD}.jws", f"{RECORD}.p7s")
MAX_RECORD_FILE = 16 << 20  # bytes; a line has about 100
BLOCK = 1 << 20
FOLDER = ".gpt-wheel."  # prefix of folders with unpacked members
_OURS = re.compile(r"\d+\.(before|after)|\.gpt-[0-9a-f]{32}\.part")  # the names that we give to files in such a folder
ZIP64 = 1  # extra field with 64-bit sizes, which zipfile writes itself


def split(path: str) -> tuple[Path, str] | None:
    """Split a path from gpt-extract, `X.whl/MEMBER`, into the wheel and the member. Return None if there's no wheel in
    it.

    The name of the member is taken from the wheel as it is, so it may be `/x` or `./x`.
    """
    at = path.find("/", 1)
    while at > 0:
        if os.path.isfile(path[:at]):
            with open_regular(path[:at]) as file:
                return (Path(path[:at]), path[at + 1 :]) if file.read(len(MAGIC)) == MAGIC else None
        at = path.find("/", at + 1)
    return None


class Wheels:
    """Patched members that wait until their wheel can be written, in a temporary folder, which `close` removes."""

    def __init__(self) -> None:
        self._folder: Scratch | None = None  # locked while this process lives
        self._count = 0
        self._replaced: dict[Path, dict[str, Path]] = {}
        self._status: dict[Path, tuple[int, ...]] = {}  # each wheel's, when its first member was unpacked

    def add(self, wheel: Path, member: str, near: Path) -> tuple[Path, Path]:
        """Unpack a member. Return its path, and the path at which the patched one is expected. `near` is a folder on a
        disk that's large enough.

        Raises GptError if the wheel has changed in the meantime, or if a member occurs twice.
        """
        members = self._replaced.setdefault(wheel, {})
        if member in members:
            raise GptError("is in this stream twice", f"{wheel}/{member}")
        if self._folder is None:
            near.mkdir(parents=True, exist_ok=True)
            self._folder = _make_folder(near)
        self._count += 1
        source, target = (Path(self._folder.working, f"{self._count}.{part}") for part in ("before", "after"))
        with open_regular(wheel) as file:
            if self._status.setdefault(wheel, _status(file)) != _status(file):
                raise GptError("another process changed it meanwhile: extract it again", str(wheel))
            unpack(Source(str(wheel), file.fileno()), member, source)
        members[member] = target
        return source, target

    def take_complete(self) -> dict[Path, dict[str, Path]]:
        """Return the patched members of each wheel that has any, and forget them."""
        found, self._replaced = self._replaced, {}
        there = {
            wheel: {name: path for name, path in members.items() if path.exists()} for wheel, members in found.items()
        }
        return {wheel: members for wheel, members in there.items() if members}

    def write(self, wheel: Path, replaced: Mapping[str, Path], out: Path, renaming: Renaming = SAME_NAMES) -> list[str]:
        """Write a wheel with some members replaced. Return the replaced members that RECORD doesn't list. Raises
        GptError.
        """
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with open_regular(wheel) as file:
                if self._status[wheel] != _status(file):
                    raise GptError("another process changed it meanwhile: extract it again", str(wheel))
                with replacing(out, 0o600) as new:
                    unlisted = repack(Zip(Source(str(wheel), file.fileno())), replaced, new, renaming)
                    new.flush()
                    copy_attributes(file.fileno(), new.fileno(), every=False)
                    return unlisted
        except OSError as error:
            raise GptError.of(error, error.filename or out) from None

    def close(self) -> None:
        """Remove the folder."""
        if self._folder:
            _remove_folder(self._folder.path, self._folder.folder)
            os.close(self._folder.folder)


def _remove_folder(path: Path, folder: int) -> None:
    """Remove our files from an open folder, and then the folder, if nothing else is in it.

    If others can rename files, the name of the folder may belong to a different one now, which may contain anything.
    """
    for name in os.listdir(folder):
        if _OURS.fullmatch(name):
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
    with suppress(OSError):
        os.rmdir(path)


def _make_folder(near: Path) -> Scratch:
    """Make a folder for members and lock it. Removes old folders without a lock, left behind by killed processes."""
    for old in near.glob(f"{FOLDER}*"):
        with suppress(OSError):
            lock = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o700):
                    _remove_folder(old, lock)
            finally:
                os.close(lock)
    while True:
        made = make_scratch(FOLDER, near)
        with suppress(OSError):  # without locks in the file system, nobody can take it for abandoned either
            fcntl.flock(made.folder, fcntl.LOCK_EX)
        if os.fstat(made.folder).st_nlink:
            return made
        os.close(made.folder)  # removed before it was locked


def unpack(wheel: Source, member: str, out: Path) -> None:
    """Unpack a member to a file. Raises MalformedError, and GptError if the file can't be written."""
    found = Zip(wheel)
    if member not in found.by_name:
        raise MalformedError(f"zip: no member '{member}'", wheel.name)
    try:
        with open(out, "wb") as file:
            found.unpack(found.by_name[member], file)
    except OSError as error:
        raise GptError.of(error, f"{wheel.name}/{member}") from None


def repack(wheel: Zip, replaced: Mapping[str, Path], out: IO[bytes], renaming: Renaming = SAME_NAMES) -> list[str]:
    """Write a wheel in which these members are replaced by files.

    Return the replaced members that RECORD doesn't list, so that installers can't check them. Raises GptError.
    """
    names = wheel.by_name
    if signature := next((name for name in names if _is_own(name, SIGNED)), None):
        fact = f"is signed ('{signature}'), and would not be any more: unpack it first"
        raise GptError(fact, wheel.source.name)
    if len(set(map(_plain, names))) < len(names):
        raise MalformedError("zip: two members with one name", wheel.source.name)
    if renaming.label and not any(_is_own(name, (RECORD,)) for name in names):
        raise MalformedError("a wheel without RECORD, which pip refuses", wheel.source.name)
    infos = {_plain(name).partition("/")[0] for name in names if ".dist-info/" in _plain(name)}
    infos = {folder for folder in infos if folder.endswith(".dist-info")}
    if renaming.label and len(infos) > 1:
        raise MalformedError(f"a wheel with {', '.join(sorted(infos))}, which pip refuses", wheel.source.name)
    replaced = {name: path for name, path in replaced.items() if not _is_same(path, names[name])}
    lines = {_plain(name): _line_of(path) for name, path in replaced.items()}
    metadata = next((info for info in wheel.all if renaming.label and _is_own(info.filename, (METADATA,))), None)
    described = b""
    if metadata:
        described = renaming.metadata(wheel.read(metadata, MAX_RECORD_FILE), wheel.source.name)
        lines[_plain(metadata.filename)] = _line(hashlib.sha256(described).digest(), len(described))
    elif renaming.label:
        raise MalformedError("a wheel without METADATA", wheel.source.name)
    unlisted = {_plain(name): name for name in replaced}
    order = {info.header_offset: number for number, info in enumerate(wheel.all)}
    members = sorted(wheel.all, key=lambda info: info.header_offset)
    _copy(wheel.source, 0, members[0].header_offset, out)
    with wheel.faults(), zipfile.ZipFile(out, "w") as made:
        made.comment = wheel.comment
        for info in members:
            name = renaming.member(info.filename)
            if info.filename in replaced:
                with open(replaced[info.filename], "rb") as file:
                    _add(made, wheel, info, file, name)
            elif info is metadata:
                with io.BytesIO(described) as file:
                    _add(made, wheel, info, file, name)
            elif lines and _is_own(info.filename, (RECORD,)):
                data = wheel.read(info, MAX_RECORD_FILE)
                with io.BytesIO() as file:
                    for line, name_in_it in _iter_record(data, lines, wheel.source.name, renaming):
                        file.write(line)
                        unlisted.pop(name_in_it, None)
                    _add(made, wheel, info, file, name)
            elif name != info.filename:
                with tempfile.TemporaryFile() as file:
                    wheel.unpack(info, file)
                    _add(made, wheel, info, file, name)
            else:
                wheel.verify(info)
                kept = copy.copy(info)
                kept.header_offset, kept.extra = out.tell(), _without_zip64(info.extra)
                _copy(wheel.source, info.header_offset, wheel.end_of(info), out)
                made.start_dir = out.tell()
                made.filelist.append(kept)
        ordered = sorted(zip(members, made.filelist, strict=True), key=lambda pair: order[pair[0].header_offset])
        made.filelist[:] = [info for _, info in ordered]
    return list(unlisted.values())


def _status(file: IO[bytes]) -> tuple[int, ...]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_own(name: str, ends: tuple[str, ...]) -> bool:
    """Return whether a member is part of the wheel's own metadata."""
    return _plain(name).count("/") == 1 and name.endswith(ends)


def _plain(name: str) -> str:
    """Normalize a name: relative, and without `./`."""
    return posixpath.normpath(f"./{name.lstrip('/')}")


def _copy(source: Source, start: int, end: int, out: IO[bytes]) -> None:
    for offset in range(start, end, BLOCK):
        out.write(source.pread(offset, min(BLOCK, end - offset)))


def _add(made: zipfile.ZipFile, wheel: Zip, info: ZipInfo, file: IO[bytes], name: str) -> None:
    """Add a member with new bytes and a new name, but with all other attributes of an existing one."""
    new = copy.copy(info)
    new.filename = name
    new.extra = _without_zip64(wheel.local_extra(info))
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    with made.open(new, "w", force_zip64=size >= 1 << 31) as out:
        shutil.copyfileobj(file, out, BLOCK)
    new.extra, new.external_attr = _without_zip64(info.extra), info.external_attr


def _without_zip64(extra: bytes) -> bytes:
    """Remove the zip64 field from extra fields, each a kind, a size and that many bytes. Keeps anything else."""
    kept, at = b"", 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        kept += extra[at : at + 4 + size] if kind != ZIP64 else b""
        at += 4 + size
    return kept + extra[at:]


def _is_same(path: Path, info: ZipInfo) -> bool:
    """Return whether a file has the same bytes as a member, for example a library from which nothing was removed."""
    if path.stat().st_size != info.file_size:
        return False
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            crc = zlib.crc32(block, crc)
    return crc == info.CRC


def _line_of(path: Path) -> list[str]:
    """Return the digest and size of a file, for RECORD."""
    with open(path, "rb") as file:
        return _line(hashlib.file_digest(file, "sha256").digest(), file.tell())


def _line(digest: bytes, size: int) -> list[str]:
    return [f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}", str(size)]


def _iter_record(
    data: bytes, lines: Mapping[str, list[str]], name: str, renaming: Renaming = SAME_NAMES
) -> Iterator[tuple[bytes, str]]:
    """Yield each line of RECORD with the member that it describes. Some members have new digests or new names."""
    raw: list[str] = []

    def read() -> Iterator[str]:
        for line in io.StringIO(data.decode(), newline=""):
            raw.append(line)
            yield line

    try:
        for row in csv.reader(read()):
            renamed = renaming.member(row[0]) if row else ""
            if row and (_plain(row[0]) in lines or renamed != row[0]):
                new = io.StringIO()
                csv.writer(new, lineterminator="\r\n" if raw[-1].endswith("\r\n") else "\n").writerow(
                    [renamed, *lines.get(_plain(row[0]), row[1:])]
                )
                raw[:] = [new.getvalue()]
            yield "".join(raw).encode(), _plain(row[0]) if row else ""
            raw.clear()
    except (UnicodeDecodeError, csv.Error) as error:
        raise MalformedError(f"RECORD: {error}", name) from None
