"""CUDA programs, compiled to PTX by NVIDIA's compiler, give the right results on the simulated device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpt.asm.backend import Options
from gpt.asm.host.backend import Host, HostTarget
from tests import cuda
from tests.asm.host import programs
from tests.runtime import hooked
from tests.tiers import full


@pytest.mark.parametrize("options", [pytest.param((), id="optimized"), full(("-G",), id="debug")])
def test_results_are_right(tmp_path, options):
    text = cuda.nvrtc_compile(programs.SOURCE, "compute_80", ("--device-int128", *options))
    image = tmp_path / "programs.so"
    image.write_bytes(Host(Options()).make(text, "programs", HostTarget()).image)
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    line = [sys.executable, "-m", "tests.asm.host.programs", image]
    done = subprocess.run(line, cwd=hooked.ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
