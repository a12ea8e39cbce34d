"""gpt-hook -p: a process can end in any way; its buffers are then in the trace or reported as lost, and it ends at
once.
"""

import os
import signal
import time

import pytest

from tests import loaded
from tests.runtime import hooked
from tests.runtime.graphing import GRAPHS
from tests.runtime.probing import CLIENT, PTX, build, check_bytes, good, kept, probed, unprobed

pytestmark = pytest.mark.full

SOURCE = (
    "#include <signal.h>\n#include <sys/wait.h>\n"
    + CLIENT
    + r"""
static void caught(int number) { exit(number); }
static void *leave(void *unused) { exit(0); }

int main(int argc, char **argv) {
    pthread_t thread;
    const char *how = argv[2];
    setup(argv[1]);
    for (int i = 0; i < 5; i++)
        run();
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "quick_exit"))
        quick_exit(0);
    if (!strcmp(how, "thread")) {
        pthread_create(&thread, NULL, leave, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(how, "exec"))
        execl("/bin/true", "true", NULL);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "handler")) {
        signal(SIGINT, caught);
        raise(SIGINT);
    }
    if (!strcmp(how, "interrupt"))
        raise(SIGINT);
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    return 0;
}
"""
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("ends"), SOURCE)


def end(folder, program, how, **env):
    out = folder / "t.mp"
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()} | env
    start = time.monotonic()
    done = hooked.run(out, program, PTX, how, options=("-f", "-p", "gmem_bytes"), env=env)
    return done, hooked.Trace(out), time.monotonic() - start


@pytest.mark.parametrize(
    ("how", "status"), [("return", 0), ("_exit", 0), ("quick_exit", 0), ("thread", 0), ("handler", 2)]
)
def test_exits_write_all_buffers(tmp_path, program, how, status):
    """Running kernels are awaited."""
    done, trace, seconds = end(tmp_path, program, how, GPT_SIM_DELAY="100000")
    assert (done.returncode, seconds < 20) == (status, True)
    check_bytes(trace, 5)


@pytest.mark.parametrize(
    ("how", "number"), [("abort", signal.SIGABRT), ("interrupt", signal.SIGINT), ("kill", signal.SIGKILL), ("exec", 0)]
)
def test_killed_programs_lose_buffers(tmp_path, program, how, number):
    """The trace counts all launches, and the analysis says how many buffers were never written."""
    done, trace, seconds = end(tmp_path, program, how, GPT_SIM_DELAY="100000")
    assert done.returncode == -number
    assert seconds < 20
    counts = [row for record in trace.of("launches") for row in hooked.rows(record)]
    assert sum(row["probed"] for row in counts) == 5
    written = len(trace.of("probed"))
    assert written == len(trace.of("buffer"))
    assert how == "exec" or trace.records[-1]["kind"] != "end"
    told = loaded.run(["gpt-analyze", "gmem_bytes", tmp_path / "t.mp"], text=True).stderr
    assert "5 launches ran with probes" in told
    assert f"{5 - written} launch{'es' * (written < 4)} lost what" in told


@pytest.mark.parametrize("calls", ["all", "none"])
def test_signal_handler_jumps_out_of_the_driver(tmp_path, calls):
    """The driver may be locked at that time, so it isn't called any more, and the process ends at once."""
    source = (
        "#include <signal.h>\n#include <sys/wait.h>\n"
        + CLIENT
        + r"""
    int main(int argc, char **argv) {
        int status, bad = 0;
        for (int i = 0; i < 16; i++)
            if (!fork()) {
                setup(argv[1]);
                signal(SIGALRM, _exit);
                ualarm(2000 + 500 * i, 0);
                for (;;)
                    run();
            }
        while (wait(&status) > 0)
            bad += status != SIGALRM << 8;
        return bad;
    }
    """
    )
    start = time.monotonic()
    done, _ = probed(tmp_path, build(tmp_path, source), "-p", "gmem_bytes", "--calls", calls)
    assert (done.returncode, time.monotonic() - start < 50) == (0, True)


@pytest.mark.parametrize("what", ["kernels", "graphs"])
def test_threads_that_launch_while_another_one_ends_the_process(tmp_path, what):
    """Probed launches have buffers or are reported as lost; later launches have no probes, but a reason."""
    source = (
        GRAPHS
        + r"""
    static void *context, *execs[8];
    static void *work(void *number) {
        long self = (long)number;
        void *stream;
        OK(cuCtxSetCurrent(context));
        OK(D(cuStreamCreate)(&stream, 1));
        void *params[] = {&items, &added, &count};
        for (int status = 0; !status;) // the driver may have ended
            status = execs[self] ? D(cuGraphLaunch)(execs[self], stream)
                                 : cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL);
        return NULL;
    }
    int main(int argc, char **argv) {
        pthread_t thread;
        setup(argv[1]);
        OK(D(cuCtxGetCurrent)(&context));
        OK(D(cuStreamCreate)(&streams[0], 1));
        for (int i = 0; i < 8 && !strcmp(argv[2], "graphs"); i++)
            execs[i] = instantiated(captured(3));
        for (long i = 0; i < 8; i++)
            pthread_create(&thread, NULL, work, (void *)i);
        usleep(20000);
        exit(0);
    }
    """
    )
    program = build(tmp_path, source)
    for _ in range(5):
        trace = good(tmp_path, program, "-p", "gmem_bytes", arguments=(PTX, what))
        assert {r["launch"] for r in trace.of("buffer")} == {r["id"] for r in trace.of("probed")} != set()
        assert {r.get("lost") for r in trace.of("buffer")} <= {None, "not_read"}
        assert unprobed(trace).keys() <= {"the process was about to end", "no buffer was free within --max-memory"}
