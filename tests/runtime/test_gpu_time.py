"""--gpu-time: when what was launched ran, on the clock of the calls, and nothing of it after the driver is gone."""

import os
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.clients import WORK


def times(trace):
    return [row for record in trace.of("gpu_times") for row in hooked.rows(record)]


@pytest.mark.parametrize("calls", ["all", "none"])
def test_everything_that_ran_is_timed(tmp_path, calls):
    program = hooked.compile_c(tmp_path / "client", WORK, "-DROUNDS=5000")
    done = hooked.run(tmp_path / "t.mp", program, options=("--gpu-time", "--calls", calls))
    assert (done.returncode, done.stderr) == (0, "")
    trace = hooked.Trace(tmp_path / "t.mp")
    found = times(trace)
    names = [trace.apis[row["api"]]["name"] for row in found]
    for name in ("cuLaunchKernel", "cuMemcpyHtoDAsync", "cuMemsetD8Async"):
        assert names.count(name) == 4 * 5000
    functions = {r["id"]: r["name"] for r in trace.of("function")}
    assert {functions.get(row["function"]) for row in found} == {"foo", None}
    for row in found:  # the simulated device does it at once; its clock is CLOCK_MONOTONIC
        assert row["duration"] < 10**9 and abs(row["begin"] - row["call"]) < 10**9
    if calls == "all":
        made = {(call["thread"], call["start"]) for call in trace.calls if call["result"] == 0}
        assert len({(row["thread"], row["call"]) for row in found} & made) == 12 * 5000


def test_off_unless_asked_for(tmp_path):
    program = hooked.compile_c(tmp_path / "client", WORK, "-DROUNDS=2")
    done = hooked.run(tmp_path / "t.mp", program, env=os.environ | {"GPT_HOOK_GPU_TIME": "1"})
    assert done.returncode == 0
    trace = hooked.Trace(tmp_path / "t.mp")
    assert not trace.of("gpu_times") and trace.names["cuLaunchKernel"] == 16


def test_a_child_has_times_of_its_own(tmp_path):
    source = WORK.replace(
        "    work(function);\n",
        '    work(function);\n    if (!fork()) { begin(); work(kernel("bar")); exit(0); }\n    int s; wait(&s);\n',
    ).replace("#include <pthread.h>", "#include <pthread.h>\n#include <sys/wait.h>")
    program = hooked.compile_c(tmp_path / "client", source, "-DROUNDS=10")
    done = hooked.run(tmp_path / "t.mp", program, options=("--gpu-time",))
    assert (done.returncode, done.stderr) == (0, "")
    traces = sorted(tmp_path.glob("t.mp*"))
    assert [len(times(hooked.Trace(path))) for path in traces] == [120, 30]


def test_killed_in_the_middle(tmp_path):
    program = hooked.compile_c(tmp_path / "client", WORK, "-DROUNDS=100000000")
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "--gpu-time", "--", program)
    with subprocess.Popen(line) as process:
        hooked.wait_until(lambda: (tmp_path / "t.mp").exists() and (tmp_path / "t.mp").stat().st_size > 4 << 20)
        hooked.kill_once(process, lambda: len(times(hooked.Trace(tmp_path / "t.mp"))) > 1000)
    found = times(hooked.Trace(tmp_path / "t.mp"))
    assert len(found) > 1000
