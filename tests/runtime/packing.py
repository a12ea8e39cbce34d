"""The hook's packing of buffers, as a library."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime"
MOST = 4 << 20  # bytes at once
CODECS = "zstd", "columns", "columns+zstd"
_OUT = np.empty(MOST, np.uint8)
_HOW = ctypes.c_int()


@cache
def library(*flags: str) -> ctypes.CDLL:
    """Build the library, or a variant of it."""
    folder = Path(tempfile.mkdtemp(prefix="gpt-packing-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / "packing.so"
    sources = [RUNTIME / "hook/probe/pack.c", RUNTIME / "common/descriptors.c", Path(__file__).with_suffix(".c")]
    includes = [f"-I{RUNTIME}", f"-I{RUNTIME}/arch/x86_64", "-include", RUNTIME / "portable.h"]
    line = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Werror", *flags, *includes]
    subprocess.run([*line, "-fPIC", "-shared", *sources, "-o", made], check=True)
    found = ctypes.CDLL(str(made))
    found.pack.restype = ctypes.c_uint64
    found.pack.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool, ctypes.c_void_p,
                           ctypes.POINTER(ctypes.c_int)]  # fmt: skip
    found.setup()
    return found


def pack(data: np.ndarray, row: int, *, quick: bool) -> int:
    """Pack contiguous bytes, and return the size, or 0 if they aren't worth packing."""
    size: int = library().pack(data.ctypes.data, data.nbytes, row, quick, _OUT.ctypes.data, _HOW)
    return size


def packed(data: bytes, row: int, *, quick: bool) -> tuple[str, bytes] | None:
    """Return the codec and the packed bytes, or None if they aren't worth packing."""
    size = pack(np.frombuffer(data, np.uint8), row, quick=quick)
    return (CODECS[_HOW.value], _OUT[:size].tobytes()) if size else None
