"""Kill programs with probes while they launch, on the simulated device or a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import numpy as np

from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, kept

KINDS = "paced", "bursts", "streams", "graph"
LATE = 200_000_000  # ns

# The launching threads don't wait for the GPU. After its launches, each stream writes their number to host memory, and
# a second thread records when the number arrives.
ENDLESS = (
    "#include <fcntl.h>\n#include <pthread.h>\n#include <sys/mman.h>\n"
    + CLIENT
    + r"""
static volatile unsigned *ended;
static volatile unsigned long *notes;

static void *watch(void *unused) {
    for (unsigned seen = 0; seen < 1 << 17; usleep(200)) {
        struct timespec now;
        unsigned found = ended[0] + ended[1] + ended[2] + ended[3];
        clock_gettime(CLOCK_MONOTONIC, &now);
        for (; seen < found; seen++)
            notes[seen] = (unsigned long)now.tv_sec * 1000000000 + (unsigned long)now.tv_nsec;
    }
    return unused;
}

int main(int argc, char **argv) {
    void *streams[4], *graph, *replay;
    setup(argv[1]);
    int file = open(argv[2], O_RDWR);
    notes = mmap(NULL, 8 << 17, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert(notes != MAP_FAILED);
    OK(D(cuMemHostAlloc)((void **)&ended, (size_t)64, 0u));
    memset((void *)ended, 0, 64);
    pthread_t thread;
    pthread_create(&thread, NULL, watch, NULL);
    void *params[] = {&items, &added, &count};
    int kinds = strcmp(argv[3], "streams") ? 1 : 4, burst = strcmp(argv[3], "bursts") ? 1 : 60;
    for (int i = 0; i < 4; i++)
        OK(D(cuStreamCreate)(&streams[i], 1));
    int replays = !strcmp(argv[3], "graph");
    if (replays) {
        OK(D(cuStreamBeginCapture_v2)(streams[0], 0));
        for (int i = 0; i < 3; i++)
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, streams[0], params, NULL));
        OK(D(cuStreamEndCapture)(streams[0], &graph));
        OK(D(cuGraphInstantiateWithFlags)(&replay, graph, 0ul));
    }
    for (int i = 0;; i++) {
        if (replays)
            OK(D(cuGraphLaunch)(replay, streams[0]));
        else
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, streams[i % kinds], params, NULL));
        unsigned launches = replays ? 3 * (i + 1) : i / kinds + 1;
        OK(D(cuStreamWriteValue32_v2)(streams[i % kinds], (CUdeviceptr)&ended[i % kinds], launches, 0u));
        if (i % burst == burst - 1)
            usleep(burst > 1 ? 350000 : 2000);
    }
}
"""
)


def kill_one(folder, program, kind, seconds, device="sim", probe="gmem_bytes"):
    """Kill a run after some seconds. Return the time of the kill, the times at which launches had ended, and the
    trace.
    """
    out, notes = folder / "t.mp", folder / "notes"
    notes.write_bytes(bytes(8 << 17))
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    line = hooked.command("run", "-f", "-o", out, "--device", device, "-p", probe, "--", program, PTX, notes, kind)
    with subprocess.Popen(line, env=env) as run:
        hooked.wait_until(lambda: notes.read_bytes()[:8] != bytes(8))
        time.sleep(seconds)
        killed = time.monotonic_ns()
        run.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
    times = np.fromfile(notes, np.uint64)
    return killed, times[times > 0], hooked.Trace(out)


def complete(trace):
    """Return the launches whose buffers are complete."""
    held = {}
    for record in trace.of("buffer"):
        assert "lost" not in record
        held[record["launch"]] = held.get(record["launch"], 0) + record.get("length", record["size"])
    return [launch for launch, size in held.items() if size]
