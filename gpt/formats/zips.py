"""Read zip files, such as wheels, that can't be trusted: limits are checked before anything is unpacked.

zipfile knows the format, but trusts the tables, and a small file can claim to be huge. So the directory must fit in
MAX_DIRECTORY, no two members may share bytes or a name, and all members together may unpack to at most MAX_RATIO times
the size of the file, or to FREE bytes if that's more. A member is unpacked to its end only if its first bytes have
shown that it may contain GPU code. Only members that are stored or deflated are read: PyPI accepts no others, and with
bzip2 and LZMA, a few bytes can unpack to any size.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from operator import attrgetter
from typing import IO
from zipfile import ZipInfo

from gpt.base.errors import MalformedError
from gpt.formats.image import HEAD, may_be_image
from gpt.formats.source import Source

MAGIC = b"PK\3\4"
MAX_DIRECTORY = 16 << 20  # bytes
MAX_MEMBER = 8 << 30  # bytes of a member, unpacked
MAX_RATIO, FREE = 100, 1 << 30
LOCAL = struct.Struct("<4s22xHH")  # magic, ..., sizes of name and of extra fields
ENCRYPTED = 1  # a flag
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
BLOCK = 1 << 20

_FAULTS = (
    zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, ValueError, IndexError,
    OverflowError,
)  # fmt: skip


def is_zip(source: Source) -> bool:
    """Return whether a file is a wheel or another zip file."""
    return source.size >= len(MAGIC) and source.pread(0, len(MAGIC)) == MAGIC


class Zip:
    """The members of a zip file, without folders, in the order of the directory.

    Raises MalformedError, here and in each method.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        with self.faults():
            self._file = zipfile.ZipFile(_Bounded(source.open().detach()))
        self.all = self._file.infolist()
        self.members = [info for info in self.all if not info.filename.endswith("/")]
        self.comment = self._file.comment
        self.directory = self._file.start_dir
        self.by_name = {info.filename: info for info in self.members}
        self._ends = dict(self._iter_ends())
        if "" in self.by_name:
            raise self._fault("a member without a name")
        if len(self.by_name) < len(self.members):
            raise self._fault("two members with one name")
        size, limit = sum(info.file_size for info in self.all), max(FREE, MAX_RATIO * source.size)
        if size > limit:
            raise self._fault(f"{source.size} bytes that unpack to {size}; the limit is {limit}")

    def end_of(self, info: ZipInfo) -> int:
        """Return the offset of the next member, or after the last one, of the directory."""
        return self._ends[info.header_offset]

    def open(self, info: ZipInfo) -> IO[bytes]:
        """Return a member as a file, which is unpacked as it's read. Reading may also raise errors, so do that within
        `faults`.
        """
        if info.compress_type not in METHODS:
            raise self._fault("members that are neither stored nor deflated are not read", info)
        if info.flag_bits & ENCRYPTED:
            raise self._fault("is encrypted", info)
        if info.file_size > MAX_MEMBER:
            raise self._fault(f"unpacks to {info.file_size} bytes; the limit is {MAX_MEMBER}", info)
        self.local_extra(info)
        with self.faults(info):
            return self._file.open(info)

    def local_extra(self, info: ZipInfo) -> bytes:
        """Return the extra fields before the bytes of a member. They end before the next member begins."""
        start = info.header_offset
        magic, name, extra = LOCAL.unpack(self.source.pread(start, LOCAL.size))
        if magic != MAGIC or start + LOCAL.size + name + extra + info.compress_size > self.end_of(info):
            raise self._fault("shares bytes with another member", info)
        return self.source.pread(start + LOCAL.size + name, extra)

    def read(self, info: ZipInfo, limit: int) -> bytes:
        """Return the bytes of a small member."""
        if info.file_size > limit:
            raise self._fault(f"has {info.file_size} bytes; the limit is {limit}", info)
        with self.faults(info), self.open(info) as packed:
            return packed.read()

    def unpack(self, info: ZipInfo, file: IO[bytes]) -> None:
        """Write a member to a file. Raises OSError if that fails."""
        with self.open(info) as packed:
            self._pour(info, packed, file)

    def verify(self, info: ZipInfo) -> None:
        """Compare a member with its checksum. Do nothing if `open` can't read such members.

        Installers may read members that we can't read, but they check the checksums themselves.
        """
        if info.compress_type not in METHODS or info.flag_bits & ENCRYPTED:
            return
        with self.open(info) as packed, self.faults(info):
            while packed.read(BLOCK):
                pass

    @contextmanager
    def spooled(self, info: ZipInfo) -> Iterator[tuple[bytes, Source | None]]:
        """Yield the first bytes of a member, and a temporary file with all of it, or None if it can't contain GPU
        code.
        """
        with self.open(info) as packed:
            with self.faults(info):
                head = packed.read(HEAD)
            if not may_be_image(head):
                yield head, None
                return
            import tempfile

            with tempfile.TemporaryFile() as file:
                try:
                    file.write(head)
                    self._pour(info, packed, file)
                except OSError as error:
                    # The folder may be full; TMPDIR can name another one.
                    error.filename = error.filename or tempfile.gettempdir()
                    raise
                yield head, Source(f"{self.source.name}/{info.filename}", file.fileno())

    def _pour(self, info: ZipInfo, packed: IO[bytes], file: IO[bytes]) -> None:
        block = b"."
        while block:
            with self.faults(info):
                block = packed.read(BLOCK)
            file.write(block)
        file.flush()

    @contextmanager
    def faults(self, info: ZipInfo | None = None) -> Iterator[None]:
        """Convert exceptions of zipfile to MalformedError."""
        try:
            yield
        except _FAULTS as error:
            raise self._fault(str(error) or type(error).__name__, info) from None

    def _fault(self, fact: str, info: ZipInfo | None = None) -> MalformedError:
        return MalformedError(f"zip: {fact}", f"{self.source.name}/{info.filename}" if info else self.source.name)

    def _iter_ends(self) -> Iterator[tuple[int, int]]:
        """Yield the offset of each member with the offset of the next one, or of the directory."""
        ends = self.directory
        for info in sorted(self.all, key=attrgetter("header_offset"), reverse=True):
            start = info.header_offset
            if start < 0 or start + LOCAL.size + len(info.orig_filename) + info.compress_size > ends:
                raise self._fault("shares bytes with another member", info)
            yield start, ends
            ends = start


class _Bounded(BufferedReader):
    """A reader with limits: zipfile reads the whole directory, in the place and with the size that the file claims."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except MalformedError as error:
            raise zipfile.BadZipFile(error.fact) from None

    def read(self, size: int | None = -1) -> bytes:
        if size and size > MAX_DIRECTORY:
            raise MalformedError(f"zip: a directory of {size} bytes; the limit is {MAX_DIRECTORY}")
        return super().read(size)
