"""Run programs under gpt-hook and read their traces."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt.stream import wire
from tests import cuda, loaded
from tests.runtime import twins

ROOT = Path(__file__).parents[2]
SHARED = ("-shared", "-fPIC")  # for compile_c, to make a library

ARCH = ROOT / "runtime" / "arch" / "x86_64"
INCLUDE = (f"-I{ROOT}/runtime", f"-I{ARCH}")  # folders of the runtime's own files
PROGRAMS = ROOT / "tests" / "programs"
DEVICE = os.environ.get("GPT_TEST_DEVICE", "sim")  # `real` in tests/gpu/live.py
PRELUDE = '#include "client.h"\n'  # what most C clients begin with
BASE = ("-std=gnu11", "-O0", "-g0", "-Wno-unused", f"-I{PROGRAMS}")  # what compiles fastest: they are short


def runtime() -> Path:
    """Return the folder of the built runtime: GPT_RUNTIME, or the one linked for pytest, or the checkout's."""
    folder = Path(os.environ.get("GPT_RUNTIME") or loaded.runtime or ROOT / "gpt" / "_runtime")
    assert (folder / "gpt-hook").exists(), "not built: run 'make runtime'"
    return folder


def compile_c(out: Path, source: str | Path, *flags: str | Path, prelude: bool = True) -> Path:
    """Build a program from C text, or from a file in tests/programs, which includes what it needs."""
    file = source if isinstance(source, Path) else out.with_name(out.name + ".c")
    if isinstance(source, str):
        file.write_text((PRELUDE if prelude else "") + source)
    words = [*BASE, file, "-o", out, *flags, "-ldl", "-lpthread"]
    # The flag names a file that may change.
    if any(out.anchor in str(flag) and str(ROOT) not in str(flag) for flag in flags):
        cuda.c_compiler(*words)
        return out

    def build() -> bytes:
        cuda.c_compiler(*words)
        return out.read_bytes()

    made = cuda.keep((file.read_bytes(), out.name, flags, os.environ.get("CC")), build)
    out.unlink(missing_ok=True)  # a process may be running the old file
    out.write_bytes(made)
    out.chmod(0o755)
    return out


def compile_object(out: Path, file: Path, *flags: str, compiler: str = "cc") -> Path:
    """Compile a file of the runtime or of a test with the flags of libgpthook.so."""
    base = ["-std=gnu11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-fPIC", *flags, *INCLUDE]

    def build() -> bytes:
        subprocess.run([compiler, *base, "-c", file, "-o", out], check=True)
        return out.read_bytes()

    out.write_bytes(cuda.keep((compiler, base, file, file.read_bytes()), build))
    return out


@cache
def hook_objects() -> list[Path]:
    """Return the objects of libgpthook.so, which `make` keeps."""
    line = ["make", "-s", "--no-print-directory", "-C", ROOT, "hook-objects"]
    made = subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()[-1].split()
    return [ROOT / path for path in made]


def build_hook(out: Path, *more: str | Path, flags: tuple[str, ...] = (), compiler: str = "cc") -> Path:
    """Build libgpthook.so from its sources, with additional sources, linker options, or compiler flags.

    Without flags, it links the objects that `make` keeps.
    """
    files, made = [file for file in more if isinstance(file, Path)], list[Path]()
    if flags:
        files += [*(ROOT / "runtime").glob("hook/**/*.c"), *ARCH.glob("hook/*.[cS]")]
    else:
        made = hook_objects()
    with tempfile.TemporaryDirectory() as folder:
        objects = [
            compile_object(Path(folder, f"{number}.o"), file, *flags, compiler=compiler)
            for number, file in enumerate(sorted(files))
        ]
        links = ["-shared", "-Wl,-Bsymbolic-functions", f"-Wl,--version-script={ARCH}/hook/versions.map"]
        links += [str(option) for option in more if not isinstance(option, Path)]
        subprocess.run([compiler, *flags, *links, *made, *objects, "-o", out], cwd=ROOT, check=True)
    return out


def build_launcher(folder: Path, *flags: str) -> Path:
    """Build gpt-hook from its sources with additional flags, such as those for sanitizers, which must be installed."""
    source = ROOT / "runtime"
    files = [file for part in ("launcher", "follow", "common") for file in source.glob(f"{part}/*.c")]
    base = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-w", *INCLUDE, '-DGPT_PACKAGE_VERSION="0"', '-DGPT_WEAVER="0"']
    built = subprocess.run(["gcc", *base, *flags, *files, "-o", folder / "gpt-hook"], capture_output=True, text=True)
    if built.returncode:
        assert "cannot find" in built.stderr, built.stderr
        pytest.skip("no sanitizer")
    return folder / "gpt-hook"


machine_code: twins.Folder | None = None  # set by the fixture `code` if kernels run as machine code


def command(*args: str | Path, quiet: bool = True) -> list[str]:
    """Return the command line of gpt-hook; in a `quiet` run, standard error belongs to the program."""
    more = ["--quiet"] if quiet and args[:1] == ("run",) else []
    if machine_code:
        args = tuple(map(machine_code.replace, args))
    launcher = machine_code.launcher if machine_code else runtime() / "gpt-hook"
    return [str(launcher), *map(str, args[:1]), *more, *map(str, args[1:])]


def run(
    out: Path, *args: str | Path, options: tuple[str | Path, ...] = ("--calls", "all"), device: str = DEVICE, **more
) -> subprocess.CompletedProcess[str]:
    """Run a command under gpt-hook, with its trace in `out`."""
    line = command("run", "-o", out, "--device", device, *options, "--", *args)
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, **more)


def wait_until(holds: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for at most a minute for something that another process does, because the machine may be busy."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def kill_once(process: subprocess.Popen, holds: Callable[[], Any]) -> None:
    """Kill a process once a condition holds. The process is stopped during the check, because it writes faster than we
    read.
    """

    def holds_now() -> bool:
        process.send_signal(signal.SIGSTOP)
        found = holds()
        process.send_signal(signal.SIGKILL if found else signal.SIGCONT)
        return bool(found)

    try:
        wait_until(holds_now)
    finally:
        process.kill()


def rows(record: dict) -> list[dict]:
    """Return the rows of a record without padding."""
    fields = record["fields"]
    layout = np.dtype(
        {
            "names": [f["name"] for f in fields],
            "formats": [f"<{f['type'][0]}{int(f['type'][1:]) // 8}" for f in fields],
            "offsets": [f["offset"] for f in fields],
            "itemsize": record["stride"],
        }
    )
    found = np.frombuffer(record["rows"], layout)
    used = next(name for name in ("start", "begin", "count") if name in layout.names)
    found = found[found[used] != 0]
    return [dict(zip(layout.names, row, strict=True)) for row in found.tolist()]


class Trace:
    """The records of a trace unchanged, and its calls as dictionaries with the function's name."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self.records = list(wire.read_records(file, str(path)))
        self.apis = {r["id"]: r for r in self.of("api")}
        self.calls = []
        for record in self.of("calls"):
            for row in rows(record):
                api = self.apis[row["api"]]
                told = {k: api[k] for k in ("symbol", "name", "type", "op")}
                self.calls.append(row | told | {"thread": record["thread"]})
        self.calls.sort(key=lambda call: call["start"])

    def of(self, kind: str) -> list[dict]:
        return [r for r in self.records if r["kind"] == kind]

    @property
    def kinds(self) -> Counter:
        return Counter(r["kind"] for r in self.records)

    @property
    def names(self) -> Counter:
        return Counter(call["name"] for call in self.calls)

    @property
    def functions(self) -> list[str]:
        return [r["name"] for r in self.of("function")]

    @property
    def launches(self) -> dict[str, int]:
        """Return how often each function was launched."""
        names = {r["id"]: r["name"] for r in self.of("function")}
        found = Counter()
        for record in self.of("launches"):
            for row in rows(record):
                found[names[row["function"]]] += row["count"]
        return dict(found)


def traced(tmp_path: Path, source: str, *flags: str | Path, options=("--calls", "all"), args=(), **more) -> Trace:
    """Build a C client, run it under gpt-hook on the simulated device, and read the trace. It must exit with 0."""
    program = compile_c(tmp_path / "client", source, *flags)
    done = run(tmp_path / "t.mp", program, *args, options=options, **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Trace(tmp_path / "t.mp")
