"""The trace on disk: what is in it, whatever becomes of the program, its threads and its children."""

import os
import resource
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from gpt.errors import GptError
from gpt.trace.used import read_used
from tests.runtime import hooked
from tests.runtime.clients import FORK, LOOP, THREADS, VFORK
from tests.runtime.hooked import Trace
from tests.tiers import soak


def test_a_whole_trace(tmp_path):
    trace = hooked.traced(tmp_path, LOOP, args=["1000"])
    header, end = trace.records[0], trace.records[-1]
    assert header["kind"] == "header" and header["argv"] == [str(tmp_path / "client"), "1000"]
    assert header["tool"] == "gpt-hook" and header["via"] == []
    assert abs(header["realtime"] - time.time_ns()) < 60e9
    assert end["kind"] == "end" and end["status"] == 0 and end["records"] == len(trace.records) - 2
    launches = [call for call in trace.calls if call["name"] == "cuLaunchKernel"]
    assert len(launches) == 1000
    first = launches[0]
    assert (first["type"], first["op"], first["result"], first["thread"]) == ("kernel", "launch", 0, header["pid"])
    assert [first[f"grid_{c}"] for c in "xyz"] + [first[f"block_{c}"] for c in "xyz"] == [1, 2, 3, 32, 4, 1]
    assert first["shared"] == 128 and first["function"] == trace.of("function")[0]["id"]
    assert all(call["duration"] for call in trace.calls)
    assert trace.launches == {"foo": 1000}


def test_time_stamps_are_those_of_the_clock(tmp_path):
    """Against the program's own reading of CLOCK_MONOTONIC, however long it was kept waiting between two calls."""
    source = r"""
    #include <time.h>
    static double now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec + t.tv_nsec / 1e9;
    }
    int main(void) {
        begin();
        double before = now();
        OK(cuInit(0));
        double between = now();
        usleep(50000);
        double after = now();
        OK(cuInit(0));
        FILE *file = fopen("SECONDS", "w");
        fprintf(file, "%.9f %.9f", after - between, now() - before);
        fclose(file);
    }
    """.replace("SECONDS", str(tmp_path / "seconds"))
    trace = hooked.traced(tmp_path, source)
    least, most = map(float, (tmp_path / "seconds").read_text().split())
    header = trace.records[0]
    hz = header.get("tsc_hz", 10**9)
    inits = [call["start"] for call in trace.calls if call["name"] == "cuInit"]
    assert 0.99 * least < (inits[2] - inits[1]) / hz < 1.01 * most
    if "tsc_hz" in header:
        clock = trace.of("clock")[-1]
        seconds = (clock["monotonic"] - header["monotonic"]) / 1e9
        assert (clock["tsc"] - header["tsc"]) / hz == pytest.approx(seconds, rel=0.01)


def test_file_is_small_enough_a_call(tmp_path):
    hooked.traced(tmp_path, LOOP, args=["200000"])
    assert (tmp_path / "t.mp").stat().st_size / 200000 < 75  # all are launches, the largest rows


def test_exit_status_is_passed_on_and_recorded(tmp_path):
    for number, ending in enumerate(("return 7;", "exit(7);", "_exit(7);", "_Exit(7);", "quick_exit(7);")):
        program = hooked.compile_c(tmp_path / f"client{number}", f"int main(void) {{ begin(); {ending} }}")
        out = tmp_path / f"{number}.mp"
        assert hooked.run(out, program).returncode == 7
        assert Trace(out).records[-1]["status"] == 7, ending


DESTRUCTOR = """
__attribute__((destructor)) static void late(void) { if (driver) launch(kernel("bar")); }
int main(void) { begin(); launch(kernel("foo")); }
"""


def test_destructors_are_recorded(tmp_path):
    assert hooked.traced(tmp_path, DESTRUCTOR).launches == {"foo": 1, "bar": 1}


def test_threads(tmp_path):
    trace = hooked.traced(tmp_path, THREADS, "-DROUNDS=2", "-DAT_ONCE=8")
    assert trace.names["cuDriverGetVersion"] == 16 * 5000
    assert trace.functions.count("bar") == 16
    by_thread = {}
    for call in trace.calls:
        by_thread.setdefault(call["thread"], []).append(call)
    assert len(by_thread) >= 9
    for calls in by_thread.values():
        assert all(a["start"] + a["duration"] <= b["start"] for a, b in pairwise(calls))


def test_threads_that_end_leave_their_chunk_to_others(tmp_path):
    hooked.traced(tmp_path, THREADS.replace("5000", "10"), "-DROUNDS=100", "-DAT_ONCE=1")
    assert (tmp_path / "t.mp").stat().st_size < 10 << 20


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
    begin();
    void *f = kernel("foo");
    pid_t child = syscall(SYS_fork); // unknown to libc
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


def test_vfork_child_writes_nothing(tmp_path):
    trace = hooked.traced(tmp_path, VFORK)
    assert trace.names["cuLaunchKernel"] == 2 and trace.records[-1]["kind"] == "end"
    assert not trace.of("child")


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
    # The first had ended: each of them wrote a segment after its own.
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
def test_exec_of_what_never_meets_the_driver(tmp_path, name):
    source = """
    #include <sys/wait.h>
    int main(int argc, char **argv) {
        begin();
        launch(kernel("foo"));
        if (!fork()) {
            launch(kernel("bar"));
            execl("/bin/true", "true", (char *)0);
        }
        wait(0);
        execl("/bin/false", "false", (char *)0);
    }
    """
    done = hooked.run(tmp_path / name, hooked.compile_c(tmp_path / "client", source))
    assert done.returncode == 1
    traces = {path: Trace(path) for path in tmp_path.glob("*.mp*")}
    assert len(traces) == 2 and all(t.records[-1]["kind"] == "end" for t in traces.values())
    (root,) = (path for path, trace in traces.items() if trace.functions == ["foo"])
    assert set(read_used([root], allow_incomplete=False).names) == {"foo", "bar"}


def test_exec_that_fails_leaves_the_trace_as_it_is(tmp_path):
    source = 'int main(void) { begin(); execl("/no", "no", (char *)0); launch(kernel("foo")); }'
    trace = hooked.traced(tmp_path, source)
    assert trace.functions == ["foo"] and trace.records[-1]["kind"] == "end" and trace.kinds["end"] == 1


def test_a_pid_that_comes_again_ends_nothing(tmp_path):
    """A killed process's trace stays without end, also when another process has its pid."""
    source = 'int main(void) { begin(); launch(kernel("foo")); kill(getpid(), 9); }'
    program = hooked.compile_c(tmp_path / "client", source, "-includesignal.h")
    hooked.run(tmp_path / "t.mp", program)
    data = bytearray((tmp_path / "t.mp").read_bytes())
    script = "os.execv('/bin/true', ['true'])"
    tail = 36 + int.from_bytes(data[32:36], "big") - 48  # of the first chunk
    time.sleep(0.05)  # times of birth are told in clock ticks
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


def test_others_tell_the_trace_of_the_command(tmp_path):
    program = hooked.compile_c(
        tmp_path / "client", "int main(int c, char **v) { begin(); launch(kernel(v[1])); if (c > 2) system(v[2]); }"
    )
    done = hooked.run(tmp_path / "%p", program, "foo", f"{program} bar '{program} foo'")
    assert done.returncode == 0, done.stderr
    traces = {path.name: Trace(path) for path in tmp_path.glob("[0-9]*")}
    (root,) = (name for name, trace in traces.items() if trace.of("child"))
    assert {(c["path"], c["how"]) for c in traces[root].of("child")} == {(n, "spawn") for n in traces if n != root}
    assert len(traces) == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_nothing_that_was_recorded_is_lost_to_a_signal(tmp_path, how):
    source = rf"""
    #include <signal.h>
    int main(void) {{ begin(); void *f = kernel("foo"); for (int i = 0; i < 12345; i++) launch(f); raise({how}); }}
    """
    program = hooked.compile_c(tmp_path / "client", source)
    assert hooked.run(tmp_path / "t.mp", program).returncode == -how
    trace = Trace(tmp_path / "t.mp")
    assert trace.names["cuLaunchKernel"] == 12345 and trace.launches == {"foo": 12345}
    assert trace.kinds["end"] == 0


SHARED_COUNT = r"""
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
static _Atomic long *done; // of each thread, in a file: it survives us
static void *context;
static void *work(void *arg) {
    long i = (long)arg;
    OK(cuCtxSetCurrent(context));
    void *f = kernel("foo");
    for (;;) {
        launch(f);
        done[i]++;
        for (volatile int k = 0; k < 3000; k++)
            ;
    }
}
int main(int c, char **v) {
    begin();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    int file = open(v[1], O_RDWR | O_CREAT, 0666);
    assert(!ftruncate(file, 4096));
    done = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (long i = 0; i < AT_ONCE; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, work, (void *)i);
    }
    pause();
}
"""


@pytest.mark.parametrize(("rounds", "threads"), [(4, 4), soak(50, 16)])
def test_kill_under_load_loses_nothing(tmp_path, rounds, threads):
    program = hooked.compile_c(tmp_path / "client", SHARED_COUNT, f"-DAT_ONCE={threads}")
    for round_ in range(rounds):
        out, counts = tmp_path / f"{round_}.mp", tmp_path / f"{round_}.counts"
        line = hooked.command("run", "-o", out, "--device", "sim", "--", program, counts)

        def made(counts=counts):
            size = counts.stat().st_size if counts.exists() else 0
            return memoryview(counts.read_bytes()).cast("q")[:threads] if size else [0]

        with subprocess.Popen(line) as process:
            try:
                hooked.wait_until(lambda: min(made()) > 500 * (round_ % 4 + 1))  # noqa: B023 (used in this round)
            finally:
                process.kill()
        done = made()
        trace = Trace(out)  # raises where a record is torn
        launches = [call for call in trace.calls if call["name"] == "cuLaunchKernel" and call["duration"]]
        by_thread = {}
        for call in launches:
            by_thread[call["thread"]] = by_thread.get(call["thread"], 0) + 1
        # A thread was killed after its call was recorded and before it counted, or it counted what is recorded.
        assert sum(done) <= len(launches) <= sum(done) + threads
        assert sorted(by_thread.values()) == [pytest.approx(n, abs=1) for n in sorted(done)]
        out.unlink()


def test_full_disk_turns_the_hook_off_and_the_program_runs_on(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP.replace("launch(f); }", 'launch(f); puts("done"); }'))
    limit = 5 << 20

    def few():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = hooked.run(tmp_path / "t.mp", program, "300000", preexec_fn=few)
    assert done.returncode == 0 and done.stdout == "done\n"
    assert done.stderr == f"gpt-hook: error: {tmp_path}/t.mp: File too large; nothing more is recorded\n"
    trace = Trace(tmp_path / "t.mp")
    assert trace.kinds["end"] == 0 and 10000 < trace.names["cuLaunchKernel"] < 300000


def test_full_file_system(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", folder], capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        program = hooked.compile_c(tmp_path / "client", LOOP)
        done = hooked.run(folder / "t.mp", program, "300000")
        assert done.returncode == 0
        assert done.stderr == f"gpt-hook: error: {folder}/t.mp: No space left on device; nothing more is recorded\n"
        assert Trace(folder / "t.mp").names["cuLaunchKernel"] > 10000
    finally:
        subprocess.run(["umount", folder], check=True)


def test_folder_that_goes_away(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    source = f'int main(void) {{ assert(!rmdir("{folder}")); begin(); launch(kernel("foo")); }}'
    done = hooked.run(folder / "t.mp", hooked.compile_c(tmp_path / "client", source))
    assert done.returncode == 0
    assert done.stderr == f"gpt-hook: error: {folder}/t.mp: No such file or directory; nothing more is recorded\n"


def test_file_that_is_exchanged_is_left_alone(tmp_path):
    source = f"""
    int main(void) {{
        begin();
        void *f = kernel("foo");
        assert(!unlink("{tmp_path}/t.mp"));
        fclose(fopen("{tmp_path}/t.mp", "w"));
        for (int i = 0; i < 100000; i++) launch(f);
    }}
    """
    done = hooked.run(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source))
    assert done.returncode == 0 and "Stale file handle" in done.stderr
    assert (tmp_path / "t.mp").stat().st_size == 0


def test_a_program_without_driver_leaves_no_trace(tmp_path):
    assert hooked.run(tmp_path / "t.mp", "true").returncode == 0
    assert not os.listdir(tmp_path)
