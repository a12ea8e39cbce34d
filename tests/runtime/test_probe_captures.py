"""Launches with probes beside captures that begin while other threads wait. On the simulated device."""

import shutil
from collections import Counter

import pytest

from tests.runtime import graphing, hooked, probing
from tests.tiers import first, soak

# One thread launches, and captures a moment later; another waits all the while for a stream in which nothing is, after
# which what was launched is collected.
PROGRAM = (
    graphing.GRAPHS
    + r"""
static volatile int over;
static void *context;
static void *wait_on(void *stream) {
    OK(cuCtxSetCurrent(context));
    while (!over)
        OK(D(cuStreamSynchronize)(stream));
    return NULL;
}
int main(int argc, char **argv) {
    void *graph, *event, *idle, *launched_into, *joined = NULL;
    pthread_t thread;
    unsigned moment = (unsigned)atoi(argv[4]), blocking = strcmp(argv[2], "legacy") ? 1 : 0;
    setup(argv[1]);
    OK(D(cuCtxSynchronize)());
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuEventCreate)(&event, 2));
    OK(D(cuStreamCreate)(&streams[0], blocking));
    OK(D(cuStreamCreate)(&streams[1], 1));
    OK(D(cuStreamCreate)(&idle, 1));
    if (!strcmp(argv[2], "joined"))
        joined = streams[1];
    launched_into = blocking ? joined ? joined : streams[0] : NULL;
    pthread_create(&thread, NULL, wait_on, idle);
    for (int i = 0; i < atoi(argv[3]); i++) {
        put(launched_into), launched(1);
        usleep((unsigned)rand() % moment);
        OK(D(cuStreamBeginCapture_v2)(streams[0], 1 + i % 2)); // of the thread, relaxed
        if (joined) {
            OK(D(cuEventRecord)(event, streams[0]));
            OK(D(cuStreamWaitEvent)(joined, event, 0));
            put(joined);
            OK(D(cuEventRecord)(event, joined));
            OK(D(cuStreamWaitEvent)(streams[0], event, 0));
        }
        put(streams[0]);
        usleep(3 * moment);
        OK(D(cuStreamEndCapture)(streams[0], &graph));
        OK(D(cuGraphDestroy)(graph));
    }
    over = 1;
    pthread_join(thread, NULL);
    OK(D(cuStreamSynchronize)(launched_into));
    check();
    return 0;
}
"""
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("captures"), PROGRAM)


STREAMS = ("captured", "joined", "legacy")


def check(folder, program, stream, turns, moment):
    """Events of ours get into no capture, where they never come, and spoil none: all is collected."""
    options = ("-p", "gmem_bytes", "--calls", "none", "--complete")
    trace = probing.good(folder, program, *options, arguments=(probing.PTX, stream, turns, moment))
    assert Counter(record.get("lost") for record in trace.of("buffer")) == {None: turns}
    assert probing.unprobed(trace) == {}


@pytest.mark.parametrize("turns", [300, soak(100000)])
@pytest.mark.parametrize("stream", first(*STREAMS))
def test_a_capture_begins_while_another_thread_collects(tmp_path, program, stream, turns):
    check(tmp_path, program, stream, turns, 10)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow") / "runtime"
    shutil.copytree(hooked.runtime(), folder)
    more = (hooked.ROOT / "tests/runtime/slow_answers.c", "-Wl,--wrap=hook_find_probe_calls")
    hooked.build_hook(folder / "libgpthook.so", *more)
    return folder


@pytest.mark.full
@pytest.mark.parametrize("stream", STREAMS)
def test_a_capture_begins_right_after_the_look_whether_there_is_one(tmp_path, program, slow, stream, monkeypatch):
    monkeypatch.setenv("GPT_RUNTIME", str(slow))
    check(tmp_path, program, stream, 20, 10000)
