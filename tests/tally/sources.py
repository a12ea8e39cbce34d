"""Fetch or compile the tally's PTX: four kinds of corpora, each cached as PTX files.

    XDG_CACHE_HOME/gpt-tests/tally/CORPUS/NAME.ptx      the modules
    XDG_CACHE_HOME/gpt-tests/tally/CORPUS/index.json    their contents, once the corpus is complete

Wheels are pinned. The wheels of Triton, tinygrad and the ptxas for the newest PTX are installed into folders of their
own next to the corpora, not into the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpt.ptx.scan import scan_module
from gpt.stream import wire
from tests import cuda

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpt-tests" / "tally"
PLATFORMS = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_17", "2014", "_2_24", "_2_27", "_2_28")]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]
ARCHS = ("75", "80", "90", "90a", "100a")
RELOCATABLE = ("cdp", "rdcext")  # sources that need -rdc=true
SINCE = {"cluster": 90, "setmaxnreg": 90, "tma": 90}  # minimum compute capability of a source
NEWEST = "nvidia-cuda-nvcc==13.5.37"  # used if the ptxas of the extra `cuda` is too old
WHEELS = {
    "nccl": "nvidia-nccl-cu12==2.27.5",
    "xgboost": "xgboost==3.4.1",
    "bitsandbytes": "bitsandbytes==0.50.2",
    "xformers": "xformers==0.0.30",
    "cupy": "cupy-cuda12x==14.2.0",
    "ctranslate2": "ctranslate2==4.8.5",
}
GENERATORS = {"triton": "triton==3.5.0", "tinygrad": "tinygrad==0.14.0"}
GENERATED = {  # targets; Triton turns its last two into sm_90a and sm_100a
    "triton": ("75", "80", "90", "100"),
    "tinygrad": ("75", "80", "90", "120"),  # for sm_100, it writes a PTX version without that target
}
FIELDS = re.compile(rb"\.version\s+(\S+)\s+\.target\s+(\w+)")


class Module(NamedTuple):
    """A module of a corpus: its file, its name in messages, and its contents."""

    corpus: str
    path: str
    name: str
    digest: str
    version: str
    target: str
    size: int
    kernels: list[str]
    sizes: list[int]  # bytes of each kernel's own text

    def data(self) -> bytes:
        return (CACHE / self.path).read_bytes()


def iter_sources(folder: Path, jobs: int) -> Iterator[tuple[str, bytes]]:
    """Compile tests/tally/corpus for each target with nvcc."""

    def build(source: Path, arch: str) -> tuple[str, bytes]:
        return f"{source.stem}.sm_{arch}", compile_source(source, arch, folder / f"{source.stem}.sm_{arch}.nvcc")

    sources = sorted((HERE / "corpus").glob("*.cu"))
    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(build, source, arch) for arch in ARCHS for source in sources if fits(source, arch)]:
            yield future.result()


def fits(source: Path, arch: str) -> bool:
    """Return whether a source can be compiled for a target."""
    return int(arch.rstrip("a")) >= SINCE.get(source.stem, 0)


def compile_source(source: Path, arch: str, out: Path) -> bytes:
    """Return the PTX of one source. Raises RuntimeError with nvcc's output."""
    options = ["-rdc=true"] if source.stem in RELOCATABLE else []
    options += ["-std=c++17", "--extended-lambda", f"-arch=compute_{arch}"]

    def compile_it() -> bytes:
        cuda.nvcc("-ptx", *options, source, "-o", out)
        try:
            return out.read_bytes()
        finally:
            out.unlink()

    return cuda.keep((source.read_bytes(), source.name, options), compile_it)


def iter_wheel(wheel: str, folder: Path, jobs: int) -> Iterator[tuple[str, bytes]]:
    """Yield the PTX in the libraries of a wheel, from gpt-extract."""
    options = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", *PLATFORMS, "-d", str(folder)]
    subprocess.run([*PIP, "download", *options, wheel], check=True)
    (path,) = folder.glob("*.whl")
    command = [ROOT / "bin" / "gpt-extract", "--ptx", "-r", "-j", str(jobs), path.name]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, env=_environment()) as process:
        assert process.stdout
        for record in wire.read_records(process.stdout, path.name):
            if record["kind"] == "ptx":
                yield record["module"].partition("!")[2] or record["module"], record["data"]
    if process.returncode:
        raise RuntimeError(f"gpt-extract {path.name}: exit {process.returncode}")


def iter_generated(name: str, folder: Path, jobs: int) -> Iterator[tuple[str, bytes]]:
    """Generate PTX for each target, using NAME_kernels.py and the package of that name."""
    library = install(GENERATORS[name])
    for arch in GENERATED[name]:
        out = folder / arch
        out.mkdir()
        command = [sys.executable, HERE / f"{name}_kernels.py", arch, out]
        home = {"TRITON_CACHE_DIR": str(folder / "cache"), "XDG_CACHE_HOME": str(folder / "cache")}
        subprocess.run(command, check=True, env=_environment(library) | home)
        for path in sorted(out.glob("*.ptx")):
            yield f"{path.stem}.sm_{arch}", path.read_bytes()


def _environment(*more: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*more, ROOT]))}


def install(wheel: str) -> Path:
    """Return a folder in which a package is installed; it's installed on first use."""
    folder = CACHE / wheel
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as part:
            subprocess.run([*PIP, "install", "--no-deps", "--target", f"{part}/done", wheel], check=True)
            Path(part, "done").rename(folder)
    return folder


CORPORA: dict[str, Callable[[Path, int], Iterator[tuple[str, bytes]]]] = {
    "cuda": iter_sources,
    **{name: partial(iter_generated, name) for name in GENERATORS},
    **{name: partial(iter_wheel, wheel) for name, wheel in WHEELS.items()},
}


def load(corpus: str, jobs: int = 1) -> list[Module]:
    """Return the modules of a corpus, without duplicate texts. The corpus is made if it isn't there.

    Raises RuntimeError, CalledProcessError, OSError.
    """
    index = CACHE / corpus / "index.json"
    if not index.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as part:
            made, scratch = Path(part, "made"), Path(part, "scratch")
            made.mkdir()
            scratch.mkdir()
            found = {m.digest: m._asdict() for m in _lay_out(corpus, CORPORA[corpus](scratch, jobs), made)}
            (made / "index.json").write_text(json.dumps(list(found.values())))
            shutil.rmtree(CACHE / corpus, ignore_errors=True)
            made.rename(CACHE / corpus)
    return [Module(**entry) for entry in json.loads(index.read_text())]


def _lay_out(corpus: str, texts: Iterator[tuple[str, bytes]], folder: Path) -> Iterator[Module]:
    for name, data in texts:
        digest = hashlib.sha256(data).hexdigest()[:16]
        (folder / f"{digest}.ptx").write_bytes(data)
        yield describe(corpus, f"{corpus}/{digest}.ptx", name, digest, data)


def describe(corpus: str, path: str, name: str, digest: str, data: bytes) -> Module:
    """Return a module's entry in the index. If it can't be scanned, it has no kernels; the tally reports the reason."""
    found = FIELDS.search(data)
    version, target = (found[1].decode(), found[2].decode()) if found else ("", "")
    try:
        kernels = [(item.name, item.end - item.start) for item in scan_module(data, name).entries]
    except Exception:  # any exception; the check reports it
        kernels = []
    names, sizes = [kernel for kernel, _ in kernels], [size for _, size in kernels]
    return Module(corpus, path, name, digest, version, target, len(data), names, sizes)


def newest_cuda() -> Path:
    """Return a folder with `bin/ptxas`, for PTX that's too new for the extra `cuda`."""
    (home,) = install(NEWEST).glob("nvidia/cu[0-9]*")
    (home / "bin" / "ptxas").chmod(0o755)
    return home


def provenance() -> dict[str, Any]:
    """Return the names and versions of the tools that made the corpora."""
    found = re.search(r"V[\d.]+", cuda.run("ptxas", "--version"))
    versions = {"ptxas": found[0] if found else "", "newest": NEWEST}
    return versions | {"wheels": [*WHEELS.values(), *GENERATORS.values()]}
