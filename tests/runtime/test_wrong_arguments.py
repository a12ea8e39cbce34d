"""Calls with one, two and three wrong arguments: the program gets the same status with the hook, in every mode."""

import os
import subprocess
from functools import cache

import pytest

from tests.runtime import hooked, probing, simulated
from tests.tiers import full

SOURCE = (hooked.ROOT / "tests" / "runtime" / "wrong_arguments.c").read_text()
CALLS = 400  # of a seed
MODES = {
    "plain": (),
    "gpu time": ("--gpu-time",),
    "probe": ("-p", "gmem_bytes"),
    "stacks": ("--stacks", "all"),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return simulated.build(
        tmp_path_factory.mktemp("wrong") / "client", SOURCE, f"-DCALLS={CALLS}", "-no-pie", "-fno-pie"
    )


@cache
def left_out(program, seed):
    """The calls that crash the bare program, as its argument, and what the others return."""
    found, env = ",", os.environ | {"GPT_SIM_RUN": "all", "LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    for _ in range(CALLS):
        done = subprocess.run([program, seed, found], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done
        last = done.stdout.splitlines()[-1].split()
        if last[-1] != "-1":
            return found, done.stdout
        found += f"{last[0]},"
    raise AssertionError("nothing is left")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", ["1", *map(full, map(str, range(2, 8)))])
def test_statuses_are_those_of_the_bare_program(tmp_path, program, seed, mode):
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    crashes, bare = left_out(program, seed)
    done = hooked.run(tmp_path / "t.mp", program, seed, crashes, options=("-f", *MODES[mode]), env=env)
    assert (done.returncode, done.stdout.splitlines()) == (0, bare.splitlines())
