"""The trace on disk: its contents, whatever happens to the program, its threads and the file."""

import os
import resource
import signal
import subprocess
import time
from itertools import pairwise

import pytest

from tests.runtime import hooked
from tests.runtime.clients import LOOP, THREADS
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
    """Times are compared with the program's own readings of CLOCK_MONOTONIC, however long it waited
    between two calls.
    """
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
    assert (tmp_path / "t.mp").stat().st_size / 200000 < 75  # all rows are launches, which are the largest


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
static _Atomic long *done; // calls done by each thread, in a file that survives us
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
        trace = Trace(out)  # raises an exception if a record is truncated
        launches = [call for call in trace.calls if call["name"] == "cuLaunchKernel" and call["duration"]]
        by_thread = {}
        for call in launches:
            by_thread[call["thread"]] = by_thread.get(call["thread"], 0) + 1
        # A thread was killed after its call was recorded, either before or after it had counted the call.
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


def test_removed_folder(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    source = f'int main(void) {{ assert(!rmdir("{folder}")); begin(); launch(kernel("foo")); }}'
    done = hooked.run(folder / "t.mp", hooked.compile_c(tmp_path / "client", source))
    assert done.returncode == 0
    assert done.stderr == f"gpt-hook: error: {folder}/t.mp: No such file or directory; nothing more is recorded\n"


def test_replaced_file_is_unchanged(tmp_path):
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
    assert done.returncode == 0 and "was deleted, or another file has its name" in done.stderr
    assert (tmp_path / "t.mp").stat().st_size == 0


@pytest.mark.parametrize("options", [(), ("--jit", "cat")])
def test_a_program_without_driver_leaves_no_trace(tmp_path, options):
    """The processes that it starts don't leave any files, either."""
    assert hooked.run(tmp_path / "t.mp", "sh", "-c", "/bin/true; /bin/true", options=options).returncode == 0
    assert not os.listdir(tmp_path)
