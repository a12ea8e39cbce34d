"""What was assembled once is kept: a folder with a file for each result, named by the digest of what led to it.

Any number of processes use it at once, without locks. A file is written beside its place and renamed, so that
it is there whole or not at all; it begins with the digest of the rest, so that a torn or altered one is noticed and
made anew. Each process looks at the folder before it has written a sixteenth of the limit, and if there is more than
the limit deletes the least recently used files, down to 7/8; reading a file marks it as used. A cache that cannot be
read or written, or is full, only costs time: no function here raises OSError.

A result is code that will run: a folder that is another user's, or that others may write to, is not used.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH

from gpt.outputs import replacing

LIMIT = 1 << 30  # bytes of all files together
STALE = 3600  # seconds after which what somebody began to write counts as given up
_DIGEST = hashlib.sha256().digest_size


def default_folder() -> Path | None:
    """XDG_CACHE_HOME/gpt/asm; None without a home directory."""
    home = os.environ.get("XDG_CACHE_HOME")
    if home and os.path.isabs(home):
        return Path(home, "gpt", "asm")
    try:
        return Path.home() / ".cache" / "gpt" / "asm"
    except RuntimeError:
        return None


def key_of(parts: Iterable[bytes]) -> str:
    """The name of what these led to."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


class Cache:
    """A folder of results, at most `limit` bytes. Without a folder it keeps nothing."""

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self._folder = folder
        self._limit = limit
        self._room = 0  # bytes that this process may write before it looks at the folder
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """What was put under a key, None if there is none, or none that is whole."""
        if self._folder is None:
            return None
        path = self._folder / key
        try:
            data = _read(self._folder, key)
        except OSError:
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # a cache that may only be read
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            _remove(path)
            return None
        return data[_DIGEST:]

    def put(self, key: str, data: bytes) -> None:
        """Keeps something, unless it would take over an eighth of the room, or cannot be written."""
        size = _DIGEST + len(data)
        if self._folder is None or size > self._limit // 8:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self._folder / key) as file:
                file.write(hashlib.sha256(data).digest())
                file.write(data)
        except OSError:
            return
        with self._lock:
            self._room -= size
            if self._room < 0:
                self._room = min(self._shrink(), self._limit // 16)

    def _files(self) -> list[tuple[float, int, Path]]:
        """Time of last use, size and path of each file."""
        found = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    try:
                        stat = entry.stat(follow_symlinks=False)
                    except OSError:  # another process was faster
                        continue
                    found.append((stat.st_mtime, stat.st_size, Path(entry.path)))
        except OSError:
            pass
        return found

    def _shrink(self) -> int:
        """If there is too much, deletes the oldest files and unfinished ones of others. Returns the room then."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        if total <= self._limit:
            return self._limit - total
        fresh = time.time() - STALE
        for used, size, path in files:
            unfinished = path.name.startswith(".")
            if used < fresh if unfinished else total > self._limit - self._limit // 8:
                _remove(path)
                total -= size
        return self._limit - total


def _read(folder: Path, name: str) -> bytes:
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.stat(inside)
        if found.st_uid != os.geteuid() or found.st_mode & (S_IWGRP | S_IWOTH):
            raise PermissionError
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
        try:
            if not S_ISREG(os.fstat(file).st_mode):
                raise PermissionError
            with open(file, "rb", closefd=False) as stream:
                return stream.read()
        finally:
            os.close(file)
    finally:
        os.close(inside)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # it is gone, or not ours to delete
