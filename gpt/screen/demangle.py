"""Names of kernels as they stand in the source: `matmul<float>(float*, int)` for `_Z6matmulIfEvPT_i`.

The C++ runtime knows how. A name can be made to stand for a text that fills any memory, so the work is done in a
process whose memory and time are bounded; names that it does not come to stay as they are.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Sequence

MEMORY = 256 << 20  # bytes, beyond what the process has
SECONDS = 2  # of CPU time
MAX_TEXT = 1 << 16  # bytes of a name that is worth it


def demangle(names: Sequence[str]) -> list[str]:
    """The names, those that are mangled in their readable form."""
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
    """Writes the readable form of each name and a NUL; nothing but that for one that has none."""
    runtime = ctypes.CDLL("libstdc++.so.6")
    function = runtime.__cxa_demangle
    function.restype = ctypes.c_char_p  # never freed: the process ends soon
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
    """Names of kernels as their source has them, without the type that they return, which is always the same."""
    return [name.removeprefix("void ") for name in demangle(kernels)]
