"""Keep results for later processes, in a folder of the user's cache. Each result is a file, named after a digest of its
inputs.

The runtime has the same cache (runtime/common/cache.c; private.c decides which folders can be trusted), and this module
calls it through ctypes (libgptcache.so). On a machine without a runtime, nothing is kept. A cache that's full, or can't
be read or written, only costs time, so no function here raises OSError except make_private. A result is code that will
be run, so a folder that another user could have filled isn't used, which is reported once on standard error.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from gpt.base import messages

LIMIT = 1 << 30  # bytes of all files together
LIBRARY = Path(__file__).parents[1] / "_runtime" / "libgptcache.so"
PATH_MAX = 4096
ADVICE = "no code is cached: set XDG_CACHE_HOME to a folder of your own"
_said = threading.Event()


class _Distrust(ctypes.Structure):
    _fields_ = [("where", ctypes.c_char * PATH_MAX), ("reason", ctypes.c_char * 128)]


@cache
def load_runtime() -> Any:
    """Load the runtime's functions; return None if there's no runtime for this machine."""
    try:
        found = ctypes.CDLL(str(LIBRARY), use_errno=True)
    except OSError:
        return None
    key = [ctypes.c_char_p, ctypes.c_char_p]
    why, size, long = ctypes.POINTER(_Distrust), ctypes.c_size_t, ctypes.c_long
    found.gpt_cache_get.argtypes = [*key, long, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(size), why]
    found.gpt_cache_get.restype = ctypes.c_bool
    found.gpt_cache_put.argtypes = [*key, ctypes.c_char_p, size, long, ctypes.POINTER(long), why]
    found.gpt_cache_put.restype = None
    found.gpt_cache_open.argtypes = [ctypes.c_char_p, ctypes.c_bool, why]
    found.gpt_cache_open.restype = ctypes.c_int
    found.gpt_cache_temporary.argtypes = [*key, ctypes.c_char_p]
    found.gpt_cache_temporary.restype = ctypes.c_int
    found.gpt_cache_free.argtypes = [ctypes.c_void_p]
    found.gpt_cache_free.restype = None
    return found


def _home() -> Path | None:
    """Return XDG_CACHE_HOME/gpt, or its default, or None if there's no home directory."""
    home = os.environ.get("XDG_CACHE_HOME")
    if home and os.path.isabs(home):
        return Path(home, "gpt")
    try:
        return Path.home() / ".cache" / "gpt"
    except RuntimeError:
        return None


def default_folder(name: str = "asm") -> Path | None:
    """Return a folder in the user's cache, or None if there's no home directory."""
    home = _home()
    return home / name if home else None


def make_private(path: Path) -> None:
    """Make a folder and its parents, and check that no other user has had or will have access to it.

    Raises OSError if that's impossible; its `filename` is the place that can't be trusted.
    """
    library, why = load_runtime(), _Distrust()
    if library is None:  # no runtime for this machine
        path.mkdir(0o700, parents=True, exist_ok=True)
        return
    folder = library.gpt_cache_open(os.fsencode(os.path.abspath(path)), True, why)
    if folder >= 0:
        os.close(folder)
    elif why.reason:
        raise PermissionError(errno.EACCES, why.reason.decode(), os.fsdecode(why.where))
    else:
        path.mkdir(0o700, exist_ok=True)  # raises the reason
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def key_of(parts: Iterable[bytes]) -> str:
    """Return a key for a result, made from all of its inputs."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


class Cache:
    """A folder of results with a size limit. If there's no folder, nothing is kept."""

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self._folder = os.fsencode(folder.absolute()) if folder and b"\0" not in os.fsencode(folder) else None
        self._limit = limit
        self._room = ctypes.c_long(0)  # bytes that this process may still write before it checks the size of the folder

    def get(self, key: str) -> bytes | None:
        """Return the result for a key; None if there isn't one, or if it's damaged."""
        library = load_runtime()
        if self._folder is None or library is None:
            return None
        data, size, why = ctypes.c_void_p(), ctypes.c_size_t(), _Distrust()
        if not library.gpt_cache_get(self._folder, key.encode(), self._limit, data, size, why):
            _say(why)
            return None
        try:
            return ctypes.string_at(data, size.value)
        finally:
            library.gpt_cache_free(data)

    def put(self, key: str, data: bytes) -> None:
        """Keep a result, unless it's larger than an eighth of the limit, or can't be written."""
        library = load_runtime()
        if self._folder is None or library is None:
            return
        why = _Distrust()
        library.gpt_cache_put(self._folder, key.encode(), data, len(data), self._limit, self._room, why)
        _say(why)


def _say(why: _Distrust) -> None:
    if why.reason and not _said.is_set() and "GPT_CACHE_SAID" not in os.environ:  # gpt-hook has already reported it
        _said.set()
        where = os.fsdecode(why.where)
        messages.say("gpt", "warning", where, f"{why.reason.decode()}; {ADVICE}")
