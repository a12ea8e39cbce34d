"""--gpu-time records when kernels ran, on the clock of the calls, and nothing after the driver has shut down."""

import os
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.clients import WORK
from tests.tiers import first, full


def times(trace):
    return [row for record in trace.of("gpu_times") for row in hooked.rows(record)]


@pytest.mark.parametrize("calls", first("all", "none"))
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
    for row in found:  # the simulated device runs work at once; its clock is CLOCK_MONOTONIC
        assert row["duration"] < 10**9 and row["device"] == 0 and abs(row["begin"] - row["call"]) < 10**9
    if calls == "all":
        made = {(call["thread"], call["start"]) for call in trace.calls if call["result"] == 0}
        assert len({(row["thread"], row["call"]) for row in found} & made) == 12 * 5000


def test_work_that_takes_a_while_is_timed(tmp_path):
    program = hooked.compile_c(tmp_path / "client", WORK, "-DROUNDS=5")
    done = hooked.run(tmp_path / "t.mp", program, options=("--gpu-time",), env={**os.environ, "GPT_SIM_DELAY": "2000"})
    assert (done.returncode, done.stderr) == (0, "")
    trace = hooked.Trace(tmp_path / "t.mp")
    found = [row for row in times(trace) if trace.apis[row["api"]]["name"] == "cuLaunchKernel"]
    assert len(found) == 20
    (header,) = trace.of("header")
    longest = max(row["duration"] for row in found) * 1e9 / header.get("tsc_hz", 1e9)
    assert longest >= 1_500_000  # a launch is delayed from its call on


def test_gpu_times_are_off_by_default(tmp_path):
    program = hooked.compile_c(tmp_path / "client", WORK, "-DROUNDS=2")
    done = hooked.run(tmp_path / "t.mp", program, env=os.environ | {"GPT_HOOK_GPU_TIME": "1"})
    assert done.returncode == 0
    trace = hooked.Trace(tmp_path / "t.mp")
    assert not trace.of("gpu_times") and trace.names["cuLaunchKernel"] == 16


def test_a_child_has_times_of_its_own(tmp_path):
    # The child is forked before the driver is initialized, because it couldn't use the driver after that.
    source = WORK.replace("int main(void) {\n", "int main(void) {\n    int child = fork();\n")
    source = source.replace("#include <pthread.h>", "#include <pthread.h>\n#include <sys/wait.h>")
    source = source.replace("    work(function);\n", "    if (child)\n        work(function), wait(0);\n")
    program = hooked.compile_c(tmp_path / "client", source, "-DROUNDS=10")
    done = hooked.run(tmp_path / "t.mp", program, options=("--gpu-time",))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(len(times(hooked.Trace(path))) for path in tmp_path.glob("t.mp*")) == [90, 120]


RELEASED = r"""
int main(void) {
    begin();
    int (*release)(int) = dlsym(driver, "cuDevicePrimaryCtxRelease_v2");
    void *context, *function = kernel("foo");
    for (int i = 0; i < 4000; i++) {
        OK(cuDevicePrimaryCtxRetain(&context, 0)); // as many libraries do
        launch(function);
        OK(release(0));
    }
}
"""


def test_retained_context_keeps_its_times(tmp_path):
    program = hooked.compile_c(tmp_path / "client", RELEASED)
    done = hooked.run(tmp_path / "t.mp", program, options=("--gpu-time", "--calls", "none"))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(times(hooked.Trace(tmp_path / "t.mp"))) == 4000


# A driver without locks, because the program may leave a call midway, which would break a real driver.
DRIVER = r"""
#include <signal.h>
#define API __attribute__((visibility("default"))) int
API cuInit(unsigned flags) { return 0; }
API cuDriverGetVersion(int *version) { return *version = 13000, 0; }
API cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)16, 0; }
API cuCtxSetCurrent(void *context) { return 0; }
API cuCtxGetCurrent(void **context) { return *context = (void *)16, 0; }
API cuCtxPushCurrent_v2(void *context) { return 0; }
API cuCtxPopCurrent_v2(void **context) { return 0; }
API cuStreamCreate(void **stream, unsigned flags) { return *stream = (void *)32, 0; }
API cuStreamIsCapturing(void *stream, int *capturing) { return *capturing = 0, 0; }
API cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
API cuEventCreate(void **event, unsigned flags) { return *event = (void *)48, 0; }
API cuEventRecord(void *event, void *stream) { return 0; }
API cuEventQuery(void *event) { return 0; }
API cuEventElapsedTime(float *ms, void *start, void *end) { return *ms = 0.001f, 0; }
API cuModuleLoadData(void **module, const void *image) { return *module = (void *)64, 0; }
API cuModuleGetFunction(void **function, void *module, const char *name) {
    return *function = (void *)(80 + 16 * (name[0] == 'b')), 0;
}
API cuLaunchKernel(void *function, unsigned x) { return x == 7 ? raise(SIGALRM) : 0; }
"""

# A timer's handler leaves whatever it interrupts with siglongjmp: calls, and the hook's work around them.
LEFT = r"""
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
static sigjmp_buf back;
static volatile sig_atomic_t may_leave;
static void leave(int number) {
    if (may_leave)
        may_leave = 0, siglongjmp(back, 1);
}
static volatile int done, left;
int main(int argc, char **argv) {
    begin();
    void *function = kernel("foo");
    int (*plain)(int *) = dlsym(driver, "cuDriverGetVersion"), version;
    signal(SIGALRM, leave);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 150}, {0, 150}}, NULL);
    left -= sigsetjmp(back, 1) == 0;
    left++;
    while (left < 700) {
        may_leave = 1;
        for (int i = 0; i < 100; i++)
            cuLaunchKernel(function, i == 99 ? 7 : 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), plain(&version);
        may_leave = 0;
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    int state;
    assert(!pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) && state == PTHREAD_CANCEL_ENABLE);
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    assert(!sigismember(&blocked, SIGALRM) && !sigismember(&blocked, SIGTERM));
    function = kernel("bar");
    for (int i = 0; i < 5000; i++)
        launch(function);
}
"""


@pytest.mark.full
@pytest.mark.parametrize("options", [full((), id="plain"), pytest.param(("--gpu-time",), id="gpu-time")])
def test_calls_that_are_left_by_siglongjmp(tmp_path, monkeypatch, options):
    (tmp_path / "driver").mkdir()
    flags = ("-shared", "-fPIC", "-w", "-Wl,-Bsymbolic,-soname,libcuda.so.1")
    hooked.compile_c(tmp_path / "driver/libcuda.so.1", DRIVER, *flags, prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "driver"))
    program = hooked.compile_c(tmp_path / "client", "#include <pthread.h>\n" + LEFT)
    done = hooked.run(tmp_path / "t.mp", program, options=("--calls", "all", *options), device="real")
    assert (done.returncode, done.stderr) == (0, "")
    trace = hooked.Trace(tmp_path / "t.mp")
    functions = {r["id"]: r["name"] for r in trace.of("function")}
    launched = [functions[c["function"]] for c in trace.calls if c["type"] == "kernel" and c["duration"]]
    assert launched.count("bar") == trace.launches["bar"] == 5000
    assert trace.launches["foo"] >= launched.count("foo") > 300
    if options:
        assert [functions.get(row["function"]) for row in times(trace)].count("bar") >= 5000 - 1024


def test_killed_in_the_middle(tmp_path):
    program = hooked.compile_c(tmp_path / "client", WORK, "-DROUNDS=100000000")
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "--gpu-time", "--", program)
    with subprocess.Popen(line) as process:
        hooked.wait_until(lambda: (tmp_path / "t.mp").exists() and (tmp_path / "t.mp").stat().st_size > 4 << 20)
        hooked.kill_once(process, lambda: len(times(hooked.Trace(tmp_path / "t.mp"))) > 1000)
    found = times(hooked.Trace(tmp_path / "t.mp"))
    assert len(found) > 1000
