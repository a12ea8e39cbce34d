"""If one allocation fails, nothing crashes, no result is wrong, and every loss is reported."""

import os
import re
import subprocess
from contextlib import suppress

import pytest

from gpt.base.errors import MalformedError
from gpt.stream import wire
from tests.runtime import hooked, probing

PROGRAM = (
    probing.CLIENT
    + r"""
int main(int argc, char **argv) {
    void *stream, *graph, *exec, *params[] = {&items, &added, &count};
    setup(argv[1]);
    run(), run();
    OK(D(cuStreamCreate)(&stream, 0));
    OK(D(cuStreamBeginCapture_v2)(stream, 0));
    OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    OK(D(cuGraphLaunch)(exec, stream));
    expect(3);
    OK(D(cuStreamSynchronize)(stream));
    check();
    puts("right");
}
"""
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("starved"), PROGRAM)


@pytest.fixture(scope="module")
def starving(tmp_path_factory):
    source = hooked.ROOT / "tests" / "runtime" / "starve.c"
    return hooked.compile_c(tmp_path_factory.mktemp("starve") / "starve.so", source, "-shared", "-fPIC", "-w")


def environment(starving, library, number, **more):
    env = os.environ | {"LD_PRELOAD": str(starving), "STARVE_LIBRARY": library, "STARVE_NUMBER": str(number)}
    return env | {"XDG_CACHE_HOME": probing.kept(), "GPT_SIM_RUN": "all"} | more


def play(program, env):
    env = env | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    line = [str(program), str(probing.PTX)]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.full
def test_the_simulated_device_refuses_or_is_right(program, starving):
    play(program, environment(starving, "libcuda.so", 10**6))  # after this, the code is in the cache
    full = play(program, environment(starving, "libcuda.so", 10**6, STARVE_SAY="1"))
    count = int(re.search(r"allocations: (\d+)", full.stderr)[1])
    assert full.stdout == "right\n" and count > 50
    for number in range(count):
        done = play(program, environment(starving, "libcuda.so", number))
        refused = re.search(r"^(cu|D\(cu).*: \d+$", done.stderr, re.M)  # a call whose status wasn't 0
        assert done.stdout == "right\n" or refused, (number, done)


def shape(path):
    """Count the records of a trace, except kinds that depend on time."""
    found = {}
    with open(path, "rb") as file, suppress(MalformedError):  # the trace may end early, even before its header
        for record in wire.read_records(file, "trace"):
            count = len(record["rows"]) // record["stride"] if "rows" in record else 1
            found[record["kind"]] = found.get(record["kind"], 0) + count
    return {kind: found.get(kind, 0) for kind in ("function", "kernel", "probed", "unprobed", "buffer", "graph", "end")}


@pytest.mark.full
def test_the_hook_says_what_it_loses(program, starving, tmp_path):
    def run(number, **more):
        env = environment(starving, "libgpthook.so", number, **more)
        return hooked.run(tmp_path / "t.mp", program, probing.PTX, options=("-fp", "gmem_bytes"), env=env)

    run(10**6)
    full = run(10**6, STARVE_SAY="1")
    count = max(map(int, re.findall(r"allocations: (\d+)", full.stderr)))  # gpt-hook prints this, too
    whole = shape(tmp_path / "t.mp")
    assert full.stdout == "right\n" and count > 50 and whole["probed"] == 3
    for number in range(count):
        (tmp_path / "t.mp").unlink(missing_ok=True)
        done = run(number)
        assert (done.returncode, done.stdout) == (0, "right\n"), (number, done)
        found = shape(tmp_path / "t.mp") if (tmp_path / "t.mp").exists() else {}
        assert found == whole or found.get("unprobed") or "memory" in done.stderr, (number, found, done)
