"""Calls with one, two and three wrong arguments: the program gets the same status with the hook, in every mode."""

import os
import subprocess
from functools import cache
from itertools import product

import pytest

from tests.runtime import hooked, probing, simulated
from tests.tiers import every

SOURCE = (hooked.ROOT / "tests" / "runtime" / "wrong_arguments.c").read_text()
CALLS = 400  # calls per seed
MODES = {
    "plain": (),
    "gpu time": ("--gpu-time",),
    "probe": ("-p", "gmem_bytes"),
    "stacks": ("--stacks", "all"),
}


def build(folder, *flags, calls=CALLS):
    return simulated.build(folder / "client", SOURCE, f"-DCALLS={calls}", "-no-pie", "-fno-pie", *flags)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wrong"))


@pytest.fixture(scope="module")
def graph_program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wrong"), "-DGRAPHS", calls=100)


@cache
def left_out(program, seed):
    """Return the calls that crash the plain program, in the form of its argument, and the results of the others."""
    found, env = ",", os.environ | {"GPT_SIM_RUN": "all", "LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    for _ in range(CALLS):
        done = subprocess.run([program, seed, found], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done
        last = done.stdout.splitlines()[-1].split()
        if last[-1] != "-1":
            return found, done.stdout
        found += f"{last[0]},"
    raise AssertionError("nothing is left")


@pytest.mark.parametrize(("seed", "mode"), every(5, [*product("1234567", MODES)]))
def test_statuses_are_those_of_the_bare_program(tmp_path, program, seed, mode):
    check(tmp_path, program, seed, mode)


@pytest.mark.parametrize(("seed", "mode"), every(5, [*product("1234", MODES)]))
def test_graph_calls_with_wrong_arguments_return_the_same_status(tmp_path, graph_program, seed, mode):
    """With -p the hook reads a graph before the driver has seen the other arguments."""
    check(tmp_path, graph_program, seed, mode)


def check(tmp_path, program, seed, mode):
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    crashes, bare = left_out(program, seed)
    done = hooked.run(tmp_path / "t.mp", program, seed, crashes, options=("-f", *MODES[mode]), env=env)
    assert (done.returncode, done.stdout.splitlines()) == (0, bare.splitlines())
