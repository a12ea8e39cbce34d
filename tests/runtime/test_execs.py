"""A process that calls exec again and again: each program has a complete trace."""

import subprocess

import pytest

from gpt.trace.used import read_used
from tests.runtime import hooked
from tests.runtime.following import launches, private_folder, read, segments  # noqa: F401 (a fixture)
from tests.runtime.hooked import Trace
from tests.tiers import soak

# Counts down; runs `n` programs in all, and the last one launches `bar`.
EXECS = r"""
int main(int argc, char **argv) {
    char left[20];
    int number = atoi(argv[1]);
    begin();
    launch(kernel(number > 1 ? "foo" : "bar"));
    sprintf(left, "%d", number - 1);
    if (number > 1)
        execl(argv[0], argv[0], left, (char *)0);
}
"""
COUNTS = pytest.mark.parametrize("count", [9, soak(1100)])


@pytest.fixture
def program(tmp_path):
    return hooked.compile_c(tmp_path / "client", EXECS)


@COUNTS
def test_into_files(tmp_path, program, count):
    done = hooked.run(tmp_path / "t.mp", program, str(count))
    assert (done.returncode, done.stderr) == (0, "")
    traces = {path.name: Trace(path) for path in tmp_path.glob("t.mp*")}
    assert len(traces) == count and all(trace.kinds["end"] for trace in traces.values())
    told = traces["t.mp"].of("child")
    assert {child["path"] for child in told} == traces.keys() - {"t.mp"} and {child["how"] for child in told} == {
        "exec"
    }
    used = read_used([tmp_path / "t.mp"], allow_incomplete=False)
    assert set(used.names) == {"foo", "bar"} and not used.warnings


@COUNTS
@pytest.mark.parametrize("output", ["-", "|cat"])
def test_into_a_live_stream(program, output, count):
    line = hooked.command("run", "-o", output, "--device", "sim", "--", program, str(count))
    done = subprocess.run(line, capture_output=True, timeout=300, check=False)  # the stream and its helper have ended
    assert (done.returncode, done.stderr) == (0, b"")
    found = segments(read(done.stdout))
    assert [segment[0]["argv"][1] for segment in found] == [str(number) for number in range(count, 0, -1)]
    assert all(segment[-1]["kind"] == "end" for segment in found)
    assert all(launches(segment) == {"foo": 1} for segment in found[:-1]) and launches(found[-1]) == {"bar": 1}
