"""gpt-analyze finds out why programs are slow. Each of these programs has one known problem, and was recorded on an
H200 by tests/gpu/causes.py.
"""

import os
from pathlib import Path

import pytest

from tests import loaded, tiers
from tests.gpu import causes

TRACES = Path(__file__).parent / "causes"
RECORDED = sorted({path.name.split(".")[0].rstrip("0123456789") for path in TRACES.glob("*.mp.xz")})


def analyze(command, traces):
    done = loaded.run(["gpt-analyze", command, *traces], env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize("name", tiers.every(3, RECORDED))
def test_the_planted_cause_is_stated(name, tmp_path):
    command, said, good = causes.ask(name, causes.unpack(name, TRACES, tmp_path), analyze)
    assert good, (command, said)


def test_there_is_a_trace_of_each_program():
    assert set(RECORDED) == set(causes.PROGRAMS)
    assert all(path.stat().st_size <= causes.LIMIT for path in TRACES.iterdir())
