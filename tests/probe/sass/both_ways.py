"""Run a probe in a kernel's PTX on the simulated device, and compare its records with those from machine code."""

import os
import subprocess
import sys

import pytest

from gpt.probe.ptx.weave import weave
from gpt.ptx.prune import pruned
from gpt.ptx.scan import scan_module
from tests import cuda
from tests.probe.sass import running
from tests.runtime import hooked
from tests.sass.interp.cases import CASES, KERNELS

NUMBERS = {case.name: number for number, case in enumerate(CASES)}


def from_ptx(folder, case, probe):
    """Return the final contents of the probe's buffer if it's woven into the kernel's PTX."""
    source = (KERNELS / f"{case.file}.cu").read_text()
    module = scan_module(cuda.nvrtc_compile(source, "compute_90"), case.file)
    made = weave(pruned(module, [case.kernel]), case.kernel, [running.probe(probe)])
    (folder / "woven.ptx").write_bytes(made.data)
    size = running.buffer_size(case, made.maps[0])
    command = [sys.executable, "-m", "tests.probe.sass.simulate", folder / "woven.ptx", NUMBERS[case.name], size]
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    command = [*map(str, command), str(folder / "buffer")]
    done = subprocess.run(command, env=env, cwd=hooked.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made.maps[0], (folder / "buffer").read_bytes()


def agreed(tmp_path, case, probe):
    """Return what the probe saves to its map, after checking that machine code and PTX agree and no result changes."""
    try:
        made = running.woven(case, str(probe))
        wanted = running.records(case, *from_ptx(tmp_path, case, str(probe)))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    plain, probed = running.run(case), running.run(case, made)
    assert (plain.out == probed.out).all()
    assert not probed.early
    assert running.records(case, made.maps[0], probed.buffers[0]) == wanted
    return wanted
