"""The same probe in the same kernel, woven into machine code and into PTX: buffers hold the same.

The machine code runs on the interpreter, the PTX on the simulated device. The kernels are ones in which ptxas makes one
access of each, and drops none.
"""

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
    """Return what the probe's buffer holds if it's woven into the kernel's PTX."""
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
    return running.records(case, made.maps[0], (folder / "buffer").read_bytes())


@pytest.mark.parametrize(
    ("name", "probe", "fields"),
    [
        ("widths-2x64-5", "gmem_bytes", None),
        ("votes-2x96-5", "gmem_bytes", None),
        ("reduction-2x256-5", "sync_wait", ["waits"]),
        ("products-2x64-5", "tensorop_count", None),
        ("reduction-2x256-5", "warp_sched", ["block"]),
    ],
)
def test_buffers_hold_the_same(tmp_path, name, probe, fields):
    case = CASES[NUMBERS[name]]
    try:
        made = running.woven(case, probe)
        wanted = from_ptx(tmp_path, case, probe)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = running.records(case, made.maps[0], running.run(case, made, strict=False).buffers[0])

    def chosen(units):
        return [(count, [[row[key] for key in fields or row] for row in rows]) for count, rows in units]

    assert chosen(found) == chosen(wanted)
