"""Run tests/gpu/probe_*.py on the simulated device: programs with and without probes, the probes'
counts, and stress.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import cuda
from tests.gpu import accounts, corpus, probe_corpus, probe_stress

ROOT = accounts.ROOT
needs_cxx = pytest.mark.skipif(not cuda.have_cxx(), reason="nvcc needs g++")


def script(name, *words, folder):
    """Run a script as a user does; it must find nothing wrong."""
    line = [sys.executable, ROOT / "tests" / "gpu" / name, "--device", "sim", *words]
    env = os.environ | {"GPT_GPU_OUT": str(folder / "out")}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any((folder / "out").glob("*.json"))
    return done.stdout


@needs_cxx
@pytest.mark.full
def test_counts_are_their_closed_forms(tmp_path):
    assert " DIFFERS" not in script("probe_ncu.py", folder=tmp_path)


@pytest.fixture
def launches(shared):
    """Return the launches that the simulated device supports, and a folder whose cache all runs share."""
    folder = shared / "launches"
    with open(shared / "launches.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            corpus.compile_all(folder / "ptx")
    return [one for one in corpus.kernels(folder / "ptx") if one[0].simulated], folder


LEAST = {"gmem_bytes": 20, "dmat": 35}  # number of closed forms that are compared


@needs_cxx
@pytest.mark.full
@pytest.mark.parametrize("probes", probe_corpus.probe_sets(), ids="-".join)
def test_the_corpus_in_a_program_with_probes(launches, probes):
    """Results are bit-identical, and records match the sources."""
    named, folder = launches
    (row,) = probe_corpus.run_all(named, "sim", folder, [probes])
    assert not row["wrong"]
    assert row["launched"] == row["probed"] + sum(row["unprobed"].values()) == len(named)
    assert row["checked"] >= max(LEAST.get(probe, 0) for probe in probes)


@pytest.mark.full
@pytest.mark.parametrize("mode", [mode for mode in probe_stress.MODES if mode != "memory"])
def test_stress(tmp_path, shared, mode):
    rows = probe_stress.run_modes([mode], "sim", 3, tmp_path, lambda _: None, 600, shared / "stress")
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert [row["wrong"] for row in rows] == [[]], rows


@pytest.mark.full
def test_probe_costs_are_measured(tmp_path):
    found = script("toggle.py", "--pairs", "1", "--short", "3", folder=tmp_path)
    assert re.search("launches +host, median", found)
    assert re.search("launches +short host, quartile", found)


@pytest.mark.full
def test_attacks_on_buffers(tmp_path):
    found = script("pool_attack.py", "--seconds", "20", folder=tmp_path)
    assert "toggled, complete" in found


@pytest.mark.full
def test_cost_of_an_event(tmp_path):
    """The device's clock counts instructions. Counting an event in a register takes one more instruction."""
    rows = [line.rsplit(maxsplit=5) for line in script("events.py", folder=tmp_path).splitlines()[1:]]
    cycles = {(name, events): float(count) for name, events, _, count, *_ in rows}
    assert [cycles["counter", events] for events in ("1", "10")] == [1, 1]
    assert all(cycles[name, "10"] > 1 for name in ("histogram, shared", "histogram, global", "record"))
