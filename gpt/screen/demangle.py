"""Demangle kernel names: `_Z6matmulIfEvPT_i` is `matmul<float>(float*, int)`.

The C++ runtime does the work. A name can be crafted to expand to any amount of memory, so this happens in a child
process with limited memory and time. Names that it doesn't get to stay mangled.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence

MEMORY = 256 << 20  # bytes on top of current usage
SECONDS = 2  # CPU time
MAX_TEXT = 1 << 16  # bytes of a name that's worth the effort


def demangle(names: Sequence[str]) -> list[str]:
    """Demangle the names; others are returned unchanged."""
    if not any(name.startswith("_Z") for name in names):
        return list(names)
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
    return [text.decode(errors="replace") or name for text, name in zip(found, names, strict=False)] + [
        *names[len(found) :]
    ]


def _answer(names: Sequence[str], pipe: int) -> None:
    """Write each demangled name and a NUL; just a NUL if it can't be demangled."""
    runtime = ctypes.CDLL("libstdc++.so.6")
    function = runtime.__cxa_demangle
    function.restype = ctypes.c_char_p  # never freed, since the process exits soon
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in names:
        text = None
        if name.startswith("_Z") and len(name) < MAX_TEXT and name.isascii():
            text = function(name.encode(), None, None, None)
        os.write(pipe, (text if text and len(text) < MAX_TEXT else b"") + b"\0")


def readable(kernels: list[str]) -> list[str]:
    """Demangle names of kernels, and drop the return type, which is always void."""
    return [name.removeprefix("void ") for name in demangle(kernels)]
