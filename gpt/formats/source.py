"""Read bytes at an offset: from a file, part of a file, or memory."""

from __future__ import annotations

import io
import os

from gpt.base.errors import MalformedError, TruncatedError, at

BLOCK = 4 << 20
DIGEST_BLOCK = 1 << 20  # fits a cache


class Source:
    """`size` bytes with the name `name`. They're read with `pread`, so that several sources can share a descriptor.

    A part (`sub`) keeps the name and base of the whole, so that messages have offsets in the file.
    """

    def __init__(self, name: str, data: bytes | int, base: int = 0, size: int | None = None) -> None:
        """Wrap bytes, or an open file descriptor, which the caller still has to close."""
        self.name = name
        self.base = base
        self._data = data
        if size is None:
            size = os.fstat(data).st_size if isinstance(data, int) else len(data)
        self.size = size

    def pread(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`. Raises TruncatedError if the source is shorter."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes expected, but the file ends", self.at(offset))
        start = self.base + offset
        if not isinstance(self._data, int):
            return self._data[start : start + size]
        data = os.pread(self._data, size, start)
        while len(data) < size:  # after a signal, or when reading more than 2 GiB
            more = os.pread(self._data, size - len(data), start + len(data))
            if not more:
                raise TruncatedError("shrinks while it is read", self.at(offset))
            data += more
        return data

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on. Raises TruncatedError if the source is too short."""
        if not isinstance(self._data, int):
            buffer[:] = self.pread(offset, len(buffer))
            return
        if offset < 0 or offset + len(buffer) > self.size:
            raise TruncatedError(f"{len(buffer)} bytes expected, but the file ends", self.at(offset))
        done = 0
        while done < len(buffer):
            count = os.preadv(self._data, [buffer[done:]], self.base + offset + done)
            if not count:
                raise TruncatedError("shrinks while it is read", self.at(offset))
            done += count

    def sub(self, offset: int, size: int) -> Source:
        """Return a part of the source as another source."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes expected, but the file ends", self.at(offset))
        return Source(self.name, self._data, self.base + offset, size)

    def at(self, offset: int) -> str:
        """Return a location for messages: the name, and the offset in the file."""
        return at(self.name, self.base + offset)

    def sha256(self) -> str:
        """Return the hexadecimal digest of the whole source."""
        import hashlib  # importing it takes long, and parts of files have no digest

        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(DIGEST_BLOCK, self.size)))
        for offset in range(0, self.size, DIGEST_BLOCK):
            block = buffer[: self.size - offset]
            self.pread_into(offset, block)
            digest.update(block)
        return digest.hexdigest()

    def open(self) -> io.BufferedReader:
        """Return the source as a binary file, for libraries that need one."""
        return io.BufferedReader(_Raw(self))


class _Raw(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        if start + offset < 0:
            raise MalformedError("offset before the start", self._source.name)
        self._position = start + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size = max(0, min(len(buffer), self._source.size - self._position))
        buffer[:size] = self._source.pread(self._position, size) if size else b""
        self._position += size
        return size
