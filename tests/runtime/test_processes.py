"""Traces of several processes: children, exec, names with %p, and records added to each other's traces."""

import os
import subprocess
import sys
import time

import pytest

from gpt.base.errors import GptError
from gpt.trace.used import read_used
from tests.runtime import hooked
from tests.runtime.clients import FORK, VFORK
from tests.runtime.hooked import Trace


def test_fork_gives_each_child_its_own_trace(tmp_path):
    trace = hooked.traced(tmp_path, FORK, args=["x"])
    children = trace.of("child")
    assert len(children) == 3 and trace.functions == ["foo", "foo"]
    for child in children:
        assert child["how"] == "fork" and child["path"] == f"t.mp.{child['pid']}"
        other = Trace(tmp_path / child["path"])
        assert other.functions == ["bar"] and other.launches == {"bar": 1}
        assert other.records[0]["pid"] == child["pid"] and other.records[-1]["kind"] == "end"
        assert {call["thread"] for call in other.calls} == {child["pid"]}
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["client", "client.c", "t.mp", *(child["path"] for child in children)]
    )
    used = read_used([tmp_path / "t.mp"], allow_incomplete=False)
    assert set(used.names) == {"foo", "bar"} and not used.warnings


def test_fork_of_a_child_that_does_nothing_leaves_nothing(tmp_path):
    trace = hooked.traced(tmp_path, FORK)
    assert not trace.of("child") and sorted(os.listdir(tmp_path)) == ["client", "client.c", "t.mp"]
    assert trace.records[-1]["kind"] == "end"


def test_killed_children_are_a_warning_and_a_killed_root_is_an_error(tmp_path):
    hooked.traced(tmp_path, FORK, args=["x", "y"])
    used = read_used([tmp_path / "t.mp"], allow_incomplete=False)
    assert set(used.names) == {"foo", "bar"} and len(used.warnings) == 3
    with pytest.raises(GptError, match="interrupted"):
        read_used([next(tmp_path.glob("t.mp.*"))], allow_incomplete=False)


RAW_FORK = r"""
#include <sys/syscall.h>
#include <sys/wait.h>
int main(void) {
    begin_trace();
    pid_t child = syscall(SYS_fork); // unknown to libc
    begin();
    void *f = kernel("foo");
    for (int i = 0; i < 1000; i++)
        launch(f);
    if (!child)
        exit(0);
    waitpid(child, 0, 0);
}
"""


def test_fork_without_libc(tmp_path):
    trace = hooked.traced(tmp_path, RAW_FORK)
    assert trace.names["cuLaunchKernel"] == 1000
    (child,) = trace.of("child")
    assert Trace(tmp_path / child["path"]).names["cuLaunchKernel"] == 1000


REFUSED = r"""
#include <sys/syscall.h>
#include <sys/wait.h>
int main(void) {
    begin();
    void *f = kernel("foo"), *module;
    launch(f);
    for (int i = 0; i < 2; i++) {
        pid_t child = i ? syscall(SYS_fork) : fork();
        if (!child) {
            assert(cuInit(0) == 3 && cuModuleLoadData(&module, PTX) == 3);
            for (int j = 0; j < 1000; j++)
                assert(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == 3);
            exit(0);
        }
        int status;
        assert(waitpid(child, &status, 0) == child && !status);
    }
    launch(f);
}
"""


def test_calls_refused_in_a_forked_child_are_recorded(tmp_path):
    """A forked child can't use a driver that its parent has initialized. Its trace contains the attempts."""
    trace = hooked.traced(tmp_path, REFUSED)
    assert trace.launches == {"foo": 2} and len(trace.of("child")) == 2
    for child in trace.of("child"):
        assert child["how"] == "fork"
        other = Trace(tmp_path / child["path"])
        assert other.names == {"cuInit": 1, "cuModuleLoadData": 1, "cuLaunchKernel": 1000}
        assert {call["result"] for call in other.calls} == {3} and other.records[-1]["kind"] == "end"
        assert not any(other.of(kind) for kind in ("module", "function", "launches"))
    used = read_used([tmp_path / "t.mp"], allow_incomplete=False)
    assert set(used.names) == {"foo"} and not used.warnings


def test_vfork_child_writes_nothing(tmp_path):
    trace = hooked.traced(tmp_path, VFORK)
    assert trace.names["cuLaunchKernel"] == 2 and trace.records[-1]["kind"] == "end"
    assert not trace.names["cuDriverGetVersion"] and not trace.of("child")


SHARED_MEMORY = r"""
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
static int child(void *data) { _exit(3); }
int main(void) {
    static char stack[65536];
    begin();
    void *f = kernel("foo");
    int status, pid = clone(child, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    assert(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
    launch(f);
}
"""


def test_child_in_our_memory_does_not_end_the_trace(tmp_path):
    assert hooked.traced(tmp_path, SHARED_MEMORY).names["cuLaunchKernel"] == 1


def test_other_processes_are_children_of_the_first(tmp_path):
    program = hooked.compile_c(tmp_path / "client", "int main(int c, char **v) { begin(); launch(kernel(v[1])); }")
    done = hooked.run(
        tmp_path / "t.mp", "sh", "-c", f"{program} foo; {program} bar & {program} bar & wait; {program} foo"
    )
    assert done.returncode == 0, done.stderr
    trace = Trace(tmp_path / "t.mp")
    children = trace.of("child")
    assert trace.functions == ["foo"] and len(children) == 3
    assert {child["how"] for child in children} == {"spawn"}
    # The first process had already ended when each of these wrote its own segment.
    assert trace.kinds["header"] == trace.kinds["end"] == 4
    assert set(read_used([tmp_path / "t.mp"], allow_incomplete=False).names) == {"foo", "bar"}
    next(tmp_path.glob("t.mp.*")).unlink()
    with pytest.raises(GptError, match="absent"):
        read_used([tmp_path / "t.mp"], allow_incomplete=False)


def test_exec_in_the_same_process(tmp_path):
    source = r"""
    int main(int argc, char **argv) {
        begin();
        launch(kernel(argv[1]));
        if (argc > 2)
            execl(argv[0], argv[0], argv[2], (char *)0);
    }
    """
    trace = hooked.traced(tmp_path, source, args=["foo", "bar"])
    (child,) = trace.of("child")
    assert child["how"] == "exec" and Trace(tmp_path / child["path"]).functions == ["bar"]
    first, second = (i for i, record in enumerate(trace.records) if record["kind"] == "end")
    assert trace.records[first] == {"kind": "end", "records": first - 1, "status": 0}
    assert trace.records[second] == {"kind": "end", "records": 1, "status": 0}
    used = read_used([tmp_path / "t.mp"], allow_incomplete=False)
    assert set(used.names) == {"foo", "bar"} and not used.warnings


@pytest.mark.parametrize("name", ["t.mp", "%p.mp"])
def test_exec_of_program_without_driver(tmp_path, name):
    source = """
    #include <sys/wait.h>
    int main(int argc, char **argv) {
        begin_trace();
        if (!fork()) {
            begin();
            launch(kernel("bar"));
            execl("/bin/true", "true", (char *)0);
        }
        wait(0);
        begin();
        launch(kernel("foo"));
        execl("/bin/false", "false", (char *)0);
    }
    """
    done = hooked.run(tmp_path / name, hooked.compile_c(tmp_path / "client", source))
    assert done.returncode == 1
    traces = {path: Trace(path) for path in tmp_path.glob("*.mp*")}
    assert len(traces) == 2 and all(t.records[-1]["kind"] == "end" for t in traces.values())
    (root,) = (path for path, trace in traces.items() if trace.functions == ["foo"])
    assert set(read_used([root], allow_incomplete=False).names) == {"foo", "bar"}


def test_failed_exec_leaves_the_trace_unchanged(tmp_path):
    source = 'int main(void) { begin(); execl("/no", "no", (char *)0); launch(kernel("foo")); }'
    trace = hooked.traced(tmp_path, source)
    assert trace.functions == ["foo"] and trace.records[-1]["kind"] == "end" and trace.kinds["end"] == 1


def test_a_reused_pid_does_not_end_a_killed_process_trace(tmp_path):
    """A killed process's trace has no end, even when another process gets its pid."""
    source = 'int main(void) { begin(); launch(kernel("foo")); kill(getpid(), 9); }'
    program = hooked.compile_c(tmp_path / "client", source, "-includesignal.h")
    hooked.run(tmp_path / "t.mp", program)
    data = bytearray((tmp_path / "t.mp").read_bytes())
    script = "os.execv('/bin/true', ['true'])"
    tail = 36 + int.from_bytes(data[32:36], "big") - 48  # the tail of the first chunk
    time.sleep(0.05)  # start times have units of clock ticks
    code = f"""
import os, struct
with open({str(tmp_path / "t.mp")!r}, "r+b") as file:
    file.seek({tail} + 8)
    file.write(struct.pack("<Q", os.getpid()))
{script}
"""
    env = os.environ | {"GPT_HOOK_OUTPUT": str(tmp_path / "t.mp"), "LD_PRELOAD": f"{hooked.runtime()}/libgpthook.so"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    after = (tmp_path / "t.mp").read_bytes()
    data[tail + 8 : tail + 16] = after[tail + 8 : tail + 16]
    assert after == data


def test_names_with_percent(tmp_path):
    program = hooked.compile_c(tmp_path / "client", FORK)
    env = os.environ | {"RANK": "3"}
    done = hooked.run(tmp_path / "%r-%p-%%.mp", program, "x", env=env)
    assert done.returncode == 0, done.stderr
    traces = sorted(tmp_path.glob("3-*-%.mp"))
    assert len(traces) == 4
    assert all(path.name == f"3-{Trace(path).records[0]['pid']}-%.mp" for path in traces)
    (root,) = (path for path in traces if Trace(path).functions == ["foo", "foo"])
    told = {child["path"] for child in Trace(root).of("child")}
    assert told == {path.name for path in traces} - {root.name}
    assert {Trace(path).records[0]["rank"] for path in traces} == {3}


def test_later_processes_are_children_in_the_first_trace(tmp_path):
    program = hooked.compile_c(
        tmp_path / "client", "int main(int c, char **v) { begin(); launch(kernel(v[1])); if (c > 2) system(v[2]); }"
    )
    done = hooked.run(tmp_path / "%p", program, "foo", f"{program} bar '{program} foo'")
    assert done.returncode == 0, done.stderr
    traces = {path.name: Trace(path) for path in tmp_path.glob("[0-9]*")}
    (root,) = (name for name, trace in traces.items() if trace.of("child"))
    assert {(c["path"], c["how"]) for c in traces[root].of("child")} == {(n, "spawn") for n in traces if n != root}
    assert len(traces) == 3
