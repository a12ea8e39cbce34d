"""Ask NVIDIA's cuobjdump and binutils' readelf about a file, as the tests' second opinion."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests import cuda

_LISTED = re.compile(r"^(?:ELF|PTX) file\s+\d+: (\S+)", re.MULTILINE)
_FUNCTION = re.compile(r"^\s*\d+: [0-9a-f]+ +(\w+) FUNC +\w+ +\w+ (\[.*?\])? +(\w+) (\S+)$", re.MULTILINE)
_OTHER = re.compile(r"<other>: ([0-9a-f]+)")


def _cuobjdump(*args: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([cuda.tool("cuobjdump"), "-all", *args], cwd=cwd, capture_output=True, text=True, check=False)
    nothing = re.search("does not contain device code|No (PTX|ELF) file found", done.stdout + done.stderr)
    assert done.returncode == 0 or nothing, done.stdout + done.stderr
    return done.stdout


def listed(path: Path) -> list[str]:
    """Return the names of all cubins and PTX files, as `cuobjdump -lelf -lptx` lists them."""
    return _LISTED.findall(_cuobjdump("-lelf", "-lptx", path.resolve()))


def extracted(path: Path, folder: Path, part: str = "all") -> dict[str, bytes]:
    """Return cubins and PTX files by name, as cuobjdump extracts them into the empty `folder`.

    By default it extracts all of them; with `part`, only files whose names contain it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _cuobjdump("-xelf", part, "-xptx", part, path.resolve(), cwd=folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def functions(cubin: Path) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return a cubin's kernels and device functions with their sizes, from readelf. Kernels have bit 0x10 of st_other
    set.
    """
    done = subprocess.run(["readelf", "-sW", cubin], capture_output=True, text=True, check=True)
    kernels, others = [], []
    for size, other, section, name in _FUNCTION.findall(done.stdout):
        if section != "UND":
            found = _OTHER.search(other)
            entry = found is not None and int(found[1], 16) & 0x10
            (kernels if entry else others).append((name, int(size, 0)))
    return kernels, others


def warnings(path: Path) -> set[str]:
    """Return the complaints of `readelf -a`, without addresses and numbers."""
    done = subprocess.run(["readelf", "-aW", path], capture_output=True, text=True, errors="replace", check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return {
        re.sub(r"0x[0-9a-f]+|\d+", "N", line) for line in lines if re.search(r"readelf: |[Ww]arning|<corrupt", line)
    }
