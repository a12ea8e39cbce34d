"""Run the scripts in this folder: each tests one behaviour, as a user types it.

A script gets an empty folder to work in, the executables and this checkout's Python on PATH, and `python3 -m
tests.demo.build DIR` to make a library. Status 77 skips the test; the last line of output gives the reason. The scripts
in LONG only run in `make test-full`.
"""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOP = HERE.parents[1]
LONG = (
    "011-filter-in-perl",
    "100-makefile",
    "101-restore",
    "103-negativa-spans",
    "104-reproducible",
    "105-live",
    "105-negativa",
    "106-debloat",
    "107-by-device",
    "110-install",
    "111-install-anywhere",
    "112-make-install",
    "113-extras",
    "120-assemble",
)
SCRIPTS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.full] if path.stem in LONG else [])
    for path in sorted(HERE.glob("[0-9][0-9][0-9]-*.sh"))
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_script(script, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(TOP), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["sh", script],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip().rpartition("\n")[2])
    assert done.returncode == 0, f"{script.name}: exit {done.returncode}\n{done.stdout}"
