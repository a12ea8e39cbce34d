"""tests/gpu/probe_*.py on the simulated device: programs with and without probes, what these count, and stress."""

import os
import shutil
import subprocess
import sys

import pytest

from tests import cuda
from tests.gpu import accounts, corpus, probe_corpus, probe_stress

ROOT = accounts.ROOT
needs_cxx = pytest.mark.skipif(not cuda.have_cxx(), reason="nvcc needs g++")


def script(name, *words, folder):
    """A script, as one runs it: it must find nothing wrong."""
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


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """The launches that the simulated device can make, and a folder whose cache all runs of them share."""
    folder = tmp_path_factory.mktemp("corpus")
    corpus.compile_all(folder / "ptx")
    return [one for one in corpus.kernels(folder / "ptx") if one[0].simulated], folder


@needs_cxx
@pytest.mark.full
def test_the_corpus_in_a_program_with_probes(launches):
    """Results stay bit for bit, and what is recorded is what the sources do."""
    named, folder = launches
    rows = list(probe_corpus.run_all(named, "sim", folder, probe_corpus.probe_sets()))
    assert [(row["probes"], row["wrong"]) for row in rows if row["wrong"]] == []
    assert all(row["launched"] == row["probed"] + sum(row["unprobed"].values()) for row in rows)
    checked = {row["probes"]: row["checked"] for row in rows}
    assert checked["gmem_bytes"] >= 20 and checked["dmat"] >= 35, checked


@pytest.mark.full
@pytest.mark.parametrize("mode", [mode for mode in probe_stress.MODES if mode != "memory"])
def test_stress(tmp_path, mode):
    rows = probe_stress.run_modes([mode], "sim", 3, tmp_path, lambda _: None, 600)
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert [row["wrong"] for row in rows] == [[]], rows
