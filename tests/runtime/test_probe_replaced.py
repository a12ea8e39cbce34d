"""gpt-hook -p with --replace: kernels of a slimmed library get the same probes as the original's. On the simulated
device.
"""

import os
import subprocess

import pytest

from tests.demo.build import build
from tests.gpu import accounts
from tests.runtime import hooked
from tests.runtime.probing import kept

SLIM = "gpt-extract demo/libdemo.so | gpt-locate --used whole/t.mp | gpt-patch -o slim --mode compact >patched.mp"


@pytest.mark.full
def test_a_slimmed_library_with_probes(tmp_path):
    build(tmp_path / "demo")
    program, env = tmp_path / "demo" / "main", os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    found = []
    for name in ("whole", "slimmed"):
        (folder := tmp_path / name).mkdir()
        options = ("-p", "gmem_bytes", "-p", "block_sched")
        if name == "slimmed":
            subprocess.run(["sh", "-c", SLIM], cwd=tmp_path, check=True)
            options += ("--replace", tmp_path / "slim")
        done = hooked.run(folder / "t.mp", program, "matmul", options=options, env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "SUCCESS\n", "")
        found.append(accounts.account_all(folder))
        loaded = [r for r in hooked.Trace(folder / "t.mp").of("library") if "replaces" in r]
        assert bool(loaded) == (name == "slimmed")
    whole, slimmed = found
    assert not whole.wrong and not slimmed.wrong and whole.probed == slimmed.probed
    for name in ("read", "written"):
        assert whole.total("matrixMul", name) == slimmed.total("matrixMul", name) > 0
