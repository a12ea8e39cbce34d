"""Runs programs on the simulated device, without the hook."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.runtime import hooked

# What clients of the simulated device begin with, beside hooked.PRELUDE: any function by its symbol.
PRELUDE = r"""
#include <pthread.h>
#include "cuda_abi.h"
#define D(name) ((int (*)())dlsym(driver, #name))
#define IS(status, call) do { int s_ = (call); if (s_ != (status)) \
    { fprintf(stderr, "%d: %s: %d, not %d\n", __LINE__, #call, s_, status); abort(); } } while (0)
#define NAMED(name) ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry " name "(){ret;}\n"
"""


def build(out: Path, source: str, *flags: str | Path) -> Path:
    return hooked.compile_c(out, PRELUDE + source, f"-I{hooked.ROOT}/runtime", *flags)


def run(program: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim")} | env
    return subprocess.run([program, *args], env=env, capture_output=True, text=True, timeout=120, check=False)


def play(tmp_path: Path, source: str, *args: str, **env: str) -> str:
    """Builds a C client and runs it: it must exit with 0 and say nothing. Gives what it printed."""
    done = run(build(tmp_path / "client", source), *args, **env)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
