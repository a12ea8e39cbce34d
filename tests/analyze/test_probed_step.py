"""The analyses of Neutrino's probes, for a kernel with known counts on the simulated device.

The kernel is the example of gpt-analyze(1): 16 blocks of 64 threads. Every fourth lane jumps once. All lanes run a loop
four times, wait at one barrier, load once, and store to shared memory 128 bytes apart.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.analyze.asked import Answers, run

PAGE = Path(__file__).parents[2] / "man/man1/gpt-analyze.1"
PROBES = ("branch_divergence", "sync_wait", "inst_latency", "bank_conflict", "value_range", "program_progress")
BLOCKS, WARPS, LANES = 16, 2, 32
SAMPLED = BLOCKS // 8


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("step")
    text = PAGE.read_text().split("$ cat step.py\n")[1].split("\n.Ed\n")[0]
    (folder / "step.py").write_text(text.replace("\\&", "").replace("\\e", "\\"))
    probes = [word for name in PROBES for word in ("-p", name)]
    command = ["gpt-hook", "run", "-q", *probes, "-o", "s.mp", "--device", "sim", "--", "python3", "step.py"]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"GPT_SIM_RUN": "all"}, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"0\n", b"")
    return folder / "s.mp"


def asked(name, trace):
    done = run(name, "--json", trace)
    assert (done.returncode, done.stderr) == (0, b"")
    return Answers(done.stdout)


@pytest.mark.full
def test_counts_are_those_of_the_kernel(trace):
    warps, lanes = BLOCKS * WARPS, BLOCKS * WARPS * LANES
    (row,) = asked("branch_divergence", trace).rows["kernels"]
    assert (row["reached"], row["taken"], row["split"]) == (lanes * 5, lanes // 4 + lanes * 3, lanes // 4)
    (row,) = asked("sync_wait", trace).rows["kernels"]
    assert (row["waits"], row["warps"]) == (warps, warps) and row["clocks"] > 0
    (row,) = asked("inst_latency", trace).rows["kernels"]
    assert row["loads"] == lanes and row["latency"] > 0
    (row,) = asked("bank_conflict", trace).rows["kernels"]
    requests = SAMPLED * WARPS
    assert (row["requests"], row["passes"], row["conflicts"]) == (requests, 32 * requests, 31 * requests)
    (row,) = asked("program_progress", trace).rows["kernels"]
    assert (row["warps"], row["steps"], row["records"]) == (SAMPLED * WARPS, 5 * SAMPLED * WARPS, 5 * SAMPLED * WARPS)
    (row,) = asked("value_range", trace).rows["kernels"]
    assert (row["computed"], row["with_nan"], row["idle"], row["least"]) == (lanes, 0, 0, 0)
    assert row["greatest"] > 4  # several blocks add to the same words
    found = asked("maps", trace)
    assert {name: rows[0]["records"] for name, rows in found.rows.items() if name != "bins"} == {
        **dict.fromkeys(PROBES[:3], warps), "bank_conflict": requests * LANES, "value_range": lanes,
        "program_progress": 5 * requests,
    }  # fmt: skip
