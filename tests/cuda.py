"""Run NVIDIA's compiler tools for the tests and the demo: from CUDA source to cubin, fatbin and library.

They come from the wheels of the extra `cuda`. GPT_CUDA_HOME, a folder with `bin` and `lib`, has precedence; PATH is
used last. NVRTC compiles without a host compiler, and `shared_library` lays a library out as nvcc does, using only the
C compiler; `nvcc` itself also needs g++ (see `have_cxx`).

`python -m tests.cuda TOOL` prints the path of a tool.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
Codec = Literal["none", "lz4", "zstd", "balance"]  # balance, nvcc's default: PTX zstd, cubins raw
MODES = {  # fatbinary's options for them
    "none": ["--compress-mode=none"],
    "lz4": ["--compress-mode=speed", "--compress-all"],
    "zstd": ["--compress-mode=size"],
    "balance": ["--compress-mode=balance"],
}
KINDS = {"cubin": "elf", "ptx": "ptx", "ltoir": "nvvm"}

# nvcc writes this for each source file: the region, and in .nvFatBinSegment the wrapper that points to it.
REGION = """
    .section {section}, "a"
    .balign 8
{label}:
    .incbin "{path}"
"""
WRAPPER = """
    .section .nvFatBinSegment, "aw"
    .balign 8
    .4byte 0x466243b1, {version}
    .8byte {label}, {more}
"""
# nvlink adds this for relocatable code: cudart fills the array at start.
PRELINKED = """
    .local prelinked
    .comm prelinked, {size}, 8
"""
HEAD = """
    .file "regions.s"
    .section .nvFatBinSegment, "aw"
    .balign 8
    .globl fatbin_wrappers
    .hidden fatbin_wrappers
fatbin_wrappers:
"""

compiled: Path | None = None  # a folder with cached output of compilers, for all sessions of this checkout
KEPT = 3 * 86400  # seconds that it's kept after its last use


def _homes() -> Iterable[Path]:
    if home := os.environ.get("GPT_CUDA_HOME"):
        yield Path(home)
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(folder).glob("cu[0-9]*"))


def tool(name: str) -> Path:
    """Return the path of `ptxas`, `fatbinary`, `cuobjdump`, `nvdisasm` or `nvcc`. Raises FileNotFoundError."""
    for home in _homes():
        if os.access(path := home / "bin" / name, os.X_OK):
            return path
    if found := shutil.which(name):
        return Path(found)
    raise FileNotFoundError(f"no '{name}': run 'make setup'")


def headers() -> Path:
    """Return the folder with cuda.h."""
    return tool("nvcc").resolve().parent.parent / "include"


def run(name: str, *args: str | Path, cwd: Path | None = None) -> str:
    """Run a tool and return its output. Raises RuntimeError with all of its output if it fails."""
    return _run([tool(name), *args], cwd)


def _run(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def nvrtc_compile(source: str, arch: str, options: Iterable[str] = ()) -> bytes:
    """Compile CUDA C++ to a cubin (`sm_90`), to PTX text (`compute_90`), or with the option `-dlto` to LTO-IR.

    It runs in a new process, because NVRTC's output depends on the options of earlier compilations. Raises RuntimeError
    with the compiler's log.
    """
    given = [*options]
    return keep((source, arch, given, [*_homes()]), lambda: _nvrtc_compile(source, arch, given))


def keep(key: object, make: Callable[[], bytes]) -> bytes:
    """Return what a compiler made, or compile.

    The key holds the sources and options. Every key includes the compilers, the headers of this checkout,
    runtime/common (which others include), and the code that calls the compilers. Don't cache the compilation of sources
    that include other files.
    """
    if not compiled:
        return make()
    name = hashlib.sha256(repr((key, _surroundings())).encode()).hexdigest()
    with open(compiled / f"{name}.lock", "w") as lock:  # so that no two workers compile it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = compiled / name
        if not path.exists():
            made = make()
            path.with_suffix(".part").write_bytes(made)
            path.with_suffix(".part").rename(path)
        os.utime(path)
        return path.read_bytes()


@cache
def _surroundings() -> str:
    """Return a digest of everything that all compilations depend on."""
    digest = hashlib.sha256(repr(os.confstr("CS_GNU_LIBC_VERSION")).encode())
    for compiler in (os.environ.get("CC", "cc").split()[0], "gcc"):
        if path := shutil.which(compiler):
            digest.update(f"{path}\n{_run([path, '--version'])}".encode())
    for home in _homes():
        for file in sorted([*home.glob("bin/*"), *home.glob("lib*/*"), *home.glob("nvvm/bin/*")]):
            state = file.stat()
            digest.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    own = [*(ROOT / "runtime").rglob("*.h"), *(ROOT / "runtime/common").glob("*.c"), *(ROOT / "tests").rglob("*.h")]
    for file in sorted([*own, Path(__file__), ROOT / "tests/nvrtc.py", ROOT / "tests/runtime/hooked.py"]):
        digest.update(f"{file}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def forget() -> None:
    """Remove everything that hasn't been used for some days."""
    assert compiled
    for path in compiled.iterdir():
        with suppress(FileNotFoundError):  # another session removed it
            if path.stat().st_mtime < time.time() - KEPT:
                path.unlink()


def _nvrtc_compile(source: str, arch: str, options: list[str]) -> bytes:
    for home in _homes():
        for path in sorted(home.glob("lib*/libnvrtc.so.*")):
            args = [f"-arch={arch}", f"-I{home}/include", f"-I{home}/include/cccl", *options]
            command = [sys.executable, "-m", "tests.nvrtc", str(path), *args]
            done = subprocess.run(command, cwd=ROOT, input=source.encode(), capture_output=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr.decode())
            return done.stdout
    raise FileNotFoundError("no 'libnvrtc.so': run 'make setup'")


def fatbin(elements: Iterable[tuple[str, str, bytes]], codec: Codec = "balance", options: Iterable[str] = ()) -> bytes:
    """Return a fatbin region of elements `(arch, type, bytes)`: arch is like `sm_90`; type is `cubin`, `ptx` or
    `ltoir`.

    `options` are passed to fatbinary: `-c` for relocatable code, `-link` for linked code.
    """
    given, flags = [*elements], [*options]
    return keep((given, codec, flags, [*_homes()]), lambda: _fatbin(given, codec, flags))


def _fatbin(elements: list[tuple[str, str, bytes]], codec: Codec, options: list[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        images = []
        for number, (arch, type_, data) in enumerate(elements):
            path = Path(folder, str(number))
            path.write_bytes(data)
            sm = arch.removeprefix("sm_").removeprefix("compute_")
            images.append(f"--image3=kind={KINDS[type_]},sm={sm},file={path}")
        out = Path(folder, "fatbin")
        run("fatbinary", "-64", *MODES[codec], *options, *images, f"--create={out}")
        return out.read_bytes()


def disassemble(cubin: bytes, *options: str) -> str:
    """Return nvdisasm's output for a cubin; without options, it's run with `-c`.

    nvdisasm takes 0.4 s of CPU for the smallest cubin, ptxas 0.02 s: put kernels into one cubin where possible.
    """
    given = options or ("-c",)

    def make() -> bytes:
        with tempfile.NamedTemporaryFile() as file:
            file.write(cubin)
            file.flush()
            return run("nvdisasm", *given, file.name).encode()

    return keep(("nvdisasm", cubin, given, [*_homes()]), make).decode()


def assemble(ptx: str | bytes, arch: str = "sm_90", *options: str) -> bytes:
    """Return the cubin that ptxas compiles PTX to. Raises RuntimeError with its messages."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "in.ptx"), Path(folder, "out.cubin")
        source.write_bytes(ptx if isinstance(ptx, bytes) else ptx.encode())
        run("ptxas", f"-arch={arch}", *options, source, "-o", out)
        return out.read_bytes()


def shared_library(
    out: Path,
    regions: Sequence[bytes],
    relocatable: Sequence[bytes] = (),
    *,
    sources: Iterable[Path] = (),
    flags: Iterable[str] = (),
) -> Path:
    """Build `out` with the regions in `.nv_fatbin` and a wrapper for each in `.nvFatBinSegment`.

    `relocatable` regions go to `__nv_relfatbin`. The others are then nvlink's output, and their wrappers say so:
    version 2, and a pointer to an array. `sources` are C files to link in; they get the wrappers, in order, as the
    hidden array `fatbin_wrappers`. `flags` are the last arguments for the compiler.
    """
    linked, given = [*sources], [*flags]

    def build() -> bytes:
        _shared_library(out, regions, relocatable, linked, given)
        return out.read_bytes()

    if linked or any("/" in flag for flag in given):  # flags with paths: these files may change
        build()
    else:
        made = keep((regions, relocatable, given, os.environ.get("CC")), build)
        out.unlink(missing_ok=True)
        out.write_bytes(made)
        out.chmod(0o755)
    return out


def _shared_library(
    out: Path, regions: Sequence[bytes], relocatable: Sequence[bytes], sources: list[Path], flags: list[str]
) -> None:
    version, more = (2, "prelinked") if relocatable else (1, "0")
    placed = [(".nv_fatbin", version, more, region) for region in regions]
    placed += [("__nv_relfatbin", 1, "0", region) for region in relocatable]
    with tempfile.TemporaryDirectory() as folder:
        text = HEAD
        for number, (section, version, more, region) in enumerate(placed):
            path = Path(folder, f"{number}.fatbin")
            path.write_bytes(region)
            label = f"region{number}"
            text += REGION.format(section=section, label=label, path=path)
            text += WRAPPER.format(version=version, label=label, more=more)
        if relocatable:
            text += PRELINKED.format(size=8 * (len(relocatable) + 1))
        assembly = Path(folder, "regions.s")
        assembly.write_text(text)
        c_compiler("-shared", "-fPIC", *sources, assembly, "-Wl,-z,noexecstack", "-o", out, *flags)


def c_compiler(*args: str | Path) -> str:
    """Run the C compiler (`CC`, else `cc`) with every warning an error, and return what it printed."""
    cc = os.environ.get("CC", "cc").split()
    return _run([*cc, "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", *args])


def have_cxx() -> bool:
    """Return whether nvcc would find the host compiler it needs."""
    return shutil.which("g++") is not None


def nvcc(*args: str | Path, cwd: Path | None = None) -> str:
    """Run nvcc, which links with the cudart of the same wheels. Needs `have_cxx()`."""
    return run("nvcc", *args, "-L", tool("nvcc").parent.parent / "lib", cwd=cwd)


if __name__ == "__main__":
    print(tool(sys.argv[1]))
