"""`python -m tests.nvrtc LIBRARY OPTION...`: CUDA C++ from standard input to a cubin, PTX or LTO-IR on standard output.

Exit 1 with the compiler's log.
"""

import ctypes
import sys
from pathlib import Path


def read(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    status = getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    if status or (status := getattr(lib, f"nvrtcGet{what}")(program, buffer)):
        sys.exit(f"nvrtcGet{what}: status {status}")
    return buffer.raw


def main(path: str, *options: str) -> None:
    for part in Path(path).parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(part))  # NVRTC loads this library by its bare name
    lib, program = ctypes.CDLL(path), ctypes.c_void_p()
    status = lib.nvrtcCreateProgram(ctypes.byref(program), sys.stdin.buffer.read(), b"source.cu", 0, None, None)
    if status:
        sys.exit(f"nvrtcCreateProgram: status {status}")
    array = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    if lib.nvrtcCompileProgram(program, len(options), array):
        sys.exit(read(lib, program, "ProgramLog").rstrip(b"\0").decode())
    what = "LTOIR" if "-dlto" in options else "CUBIN" if any("-arch=sm_" in one for one in options) else "PTX"
    code = read(lib, program, what)
    sys.stdout.buffer.write(code.rstrip(b"\0") if what == "PTX" else code)


if __name__ == "__main__":
    main(*sys.argv[1:])
