"""Run programs on the simulated device, without the hook."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import cuda
from tests.runtime import hooked

FUNCTIONS = hooked.ROOT / "runtime" / "abi" / "driver.h"
DRIVER = hooked.runtime() / "sim" / "libcuda.so.1"
needs_cxx = pytest.mark.skipif(not cuda.have_cxx(), reason="nvcc needs g++")

PRELUDE = '#include "sim.h"\n'  # what clients of the simulated device begin with, beside hooked.PRELUDE

GATES = '#include "gates.h"\n'


def build(out: Path, source: str | Path, *flags: str | Path) -> Path:
    text = PRELUDE + source if isinstance(source, str) else source
    return hooked.compile_c(out, text, f"-I{hooked.ROOT}/runtime", *flags)


def compile_cuda(folder: Path, *words: str | Path) -> Path:
    """Build a program from sources, linked with our library as others are with NVIDIA's."""
    program = folder / "program"
    command = ["-cudart", "shared", "-arch=sm_80", f"-L{hooked.runtime() / 'sim'}", *words]

    def build() -> bytes:
        cuda.nvcc(*command, "-o", program)
        return program.read_bytes()

    texts = [(word.name, word.read_bytes()) if isinstance(word, Path) else word for word in command]
    made = cuda.keep(("nvcc", texts), build)
    program.unlink(missing_ok=True)
    program.write_bytes(made)
    program.chmod(0o755)
    return program


def compile_kernels(out: Path, source: str) -> Path:
    """Compile kernels in C to an object of host code."""
    file = out.with_suffix(".c")
    file.write_text(f'#include "kernels.h"\n{source}')
    flags = ("-std=gnu11", "-O1", "-w", *hooked.SHARED, f"-I{hooked.ROOT}/runtime", f"-I{hooked.ROOT}/tests/runtime")

    def build() -> bytes:
        cuda.c_compiler(*flags, file, "-o", out)
        return out.read_bytes()

    made = cuda.keep(("kernels", source, flags, os.environ.get("CC")), build)
    out.unlink(missing_ok=True)
    out.write_bytes(made)
    out.chmod(0o755)
    return out


def sanitized(sanitizers: str, shared: Path) -> Path:
    """Return the folder of a simulated device built with these sanitizers."""
    # Kernels run on stacks of their own, which sanitizers needn't know about.
    name, param = {
        "thread": ("tsan", "tsan-instrument-func-entry-exit=0"),
        "address,undefined": ("asan", "asan-stack=0"),
    }[sanitizers]
    found = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=False)
    if not found.stdout.startswith("/"):
        pytest.skip(f"no lib{name}")
    folder = shared / f"sim-{name}"
    with open(shared / f"sim-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            quiet = folder / "quiet.c"  # asan's own function would warn about unknown stacks
            quiet.write_text("void __asan_handle_no_return(void) {}\n")
            flags = [
                "-std=gnu11",
                "-D_GNU_SOURCE",
                "-O1",
                "-g1",
                "-fvisibility=hidden",
                "-fPIC",
                "-shared",
                "-Wl,-Bsymbolic",
            ]
            flags += [
                '-DGPT_GENERATOR="sanitized"',
                f"-fsanitize={sanitizers}",
                f"--param={param}",
                *hooked.INCLUDE,
                "-Wl,-soname,libcuda.so.1",
            ]
            files = [*hooked.ROOT.glob("runtime/sim/*.c"), *hooked.ARCH.glob("sim/*.c")]
            cuda.c_compiler(*flags, quiet, *files, "-o", folder / "libcuda.so.1")
    return folder


def ask(code: str, **env: str) -> tuple[list, str]:
    """Run Python with `cu` (the simulated driver, initialized) and `c` (ctypes); return its answer and messages."""
    begin = "import ctypes as c, json, re, sys; cu = c.CDLL(sys.argv[1]); cu.cuInit(0); answers = []"
    script = f"{begin}; answer = answers.append\n{textwrap.dedent(code)}\nprint(json.dumps(answers))"
    line = [sys.executable, "-", DRIVER, FUNCTIONS]
    done = subprocess.run(line, input=script, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def run(program: Path, *args: str, folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the simulated device in `folder`, or the built one."""
    env = os.environ | {"LD_LIBRARY_PATH": str(folder or hooked.runtime() / "sim")} | env
    env |= {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "die_after_fork=0"}
    done = subprocess.run([program, *args], env=env, capture_output=True, text=True, timeout=300, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the kernel's address space randomization is too much for the sanitizer")
    return done
