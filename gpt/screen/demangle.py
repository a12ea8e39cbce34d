"""Demangle names of kernels: `_Z6matmulIfEvPT_i` is `matmul<float>(float*, int)`.

The C++ runtime does the work. A malicious name can expand to any amount of memory, so it's done in a child process with
limited memory and time. If that can't demangle a name, the name stays as it is. Several tables contain the same names,
and forking a process that has read a trace takes milliseconds, so each name is only demangled once.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence

MEMORY = 256 << 20  # bytes, in addition to the current usage
SECONDS = 2  # CPU time
MAX_TEXT = 1 << 16  # bytes of a name; longer names aren't demangled
MAX_KNOWN = 16 << 20  # characters of names and results; with more, all are forgotten

_known: dict[str, str] = {}
_size = 0


def demangle(names: Sequence[str]) -> list[str]:
    """Demangle the names; others are returned unchanged."""
    global _size
    if _size > MAX_KNOWN:
        _known.clear()
        _size = 0
    if new := [name for name in dict.fromkeys(names) if name.startswith("_Z") and name not in _known]:
        found = _ask(new)
        found += new[len(found) :][:1]  # skip the name at which the child died
        _known.update(zip(new, found, strict=False))
        _size += sum(map(len, new + found))
    return [_known.get(name, name) for name in names]


def _ask(names: Sequence[str]) -> list[str]:
    """Demangle names in a child process. If a name exceeds the limits of the child, the result is shorter than the
    input.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            _answer(names, theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answers:
        found = answers.read().split(b"\0")[:-1]
    os.waitpid(pid, 0)
    return [text.decode(errors="replace") or name for text, name in zip(found, names, strict=False)]


def _answer(names: Sequence[str], pipe: int) -> None:
    """Write each demangled name, followed by a NUL. If a name can't be demangled, write only the NUL."""
    runtime = ctypes.CDLL("libstdc++.so.6")
    function = runtime.__cxa_demangle
    function.restype = ctypes.c_char_p  # never freed, because the process exits soon
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in names:
        text = None
        if len(name) < MAX_TEXT and name.isascii():
            text = function(name.encode(), None, None, None)
        os.write(pipe, (text if text and len(text) < MAX_TEXT else b"") + b"\0")


def readable(kernels: list[str]) -> list[str]:
    """Demangle names of kernels, and leave out the return type, which is always void."""
    return [name.removeprefix("void ") for name in demangle(kernels)]
