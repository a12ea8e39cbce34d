"""Programs controlled by gpt-hook ctl, and the commands sent to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.runtime import hooked, probing

# A program that reads numbers, launches that many times for each, and answers.
SERVER = r"""
int main(void) {
    char line[64];
    void *function;
    begin();
    function = kernel("foo");
    while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin))
        for (int i = atoi(line); i > 0; i--)
            launch(function);
}
"""

# A program that launches from 8 threads and checks the results, until its input ends.
STRESS = (
    probing.CLIENT
    + r"""
enum { THREADS = 8, ROUNDS = 12 };
static _Atomic int stop;
static _Atomic unsigned launched;
static void *work(void *number) {
    void *context, *stream, *own, *foo;
    CUdeviceptr array;
    unsigned mine[400], back[400], n = 400;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuMemAlloc_v2)(&array, sizeof(mine)));
    for (unsigned i = 0; i < 400; i++)
        mine[i] = i + (unsigned)(uintptr_t)number;
    OK(D(cuMemcpyHtoD_v2)(array, mine, sizeof(mine)));
    OK(D(cuStreamSynchronize)(NULL)); // the copy may go on when it is back, and the other stream waits for nothing
    while (!stop) {
        void *params[] = {&array, &added, &n};
        for (int round = 0; round < ROUNDS; round++) {
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
            launched++;
            for (unsigned i = 0; i < 400; i++)
                mine[i] = 3 * mine[i] + added;
        }
        OK(D(cuStreamSynchronize)(stream));
        OK(D(cuMemcpyDtoH_v2)(back, array, sizeof(back)));
        assert(!memcmp(mine, back, sizeof(mine)));
    }
    return NULL;
}
int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    char line[64];
    setup(argv[1]);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    puts("ready"), fflush(stdout);
    while (fgets(line, sizeof(line), stdin))
        puts("ready"), fflush(stdout);
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    unsigned sum;
    size_t size;
    OK(D(cuCtxSynchronize)());
    OK(D(cuModuleGetGlobal_v2)(&total, &size, module, "total"));
    OK(D(cuMemcpyDtoH_v2)(&sum, total, (size_t)4));
    assert(sum == launched * 400);
    printf("%u\n", launched);
}
"""
)


class Server:
    """A program that serves commands, under gpt-hook."""

    def __init__(
        self,
        out: Path,
        program: Path,
        *options: str,
        arguments: tuple[object, ...] = (),
        device: str = "sim",
        **environment: str,
    ) -> None:
        line = hooked.command("run", "-f", "-o", out, "--device", device, *options, "--", program, *map(str, arguments))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(line, text=True, env=os.environ | environment, **pipes)
        self.pid = self.process.pid
        self.out = out
        assert self.process.stdout.readline() == "ready\n"

    def launch(self, count: int) -> None:
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> hooked.Trace:
        _, errors = self.process.communicate(timeout=60)
        assert (self.process.returncode, errors) == (0, "")
        return hooked.Trace(self.out)


def ctl(*words: object, **more) -> subprocess.CompletedProcess[str]:
    line = hooked.command("ctl", *map(str, words))
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, **more)


def order(*words: object) -> None:
    done = ctl(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


def status(pid: int) -> dict:
    done = ctl("--json", pid, "status")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def periods(trace: hooked.Trace) -> list[tuple[int, int | None]]:
    """Return the periods in which a process was recorded, given a trace that began with recording off."""
    found = [(r["on"], r["at"]) for r in trace.of("recording")]
    found.sort(key=lambda change: change[1])
    assert [on for on, _ in found] == [bool(i % 2) for i in range(len(found))]
    times = [at for _, at in found[1:]]
    return list(zip(times[::2], [*times[1::2], *[None] * (len(times) % 2)], strict=True))


def environment(pid: int, name: str) -> str:
    """Return the value of an environment variable with which a process was started."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))


def supervisor(folder: str) -> int:
    """Return the process whose socket is in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            links = (process / "fd").iterdir() if (process / "comm").read_text() == "gpt-broker\n" else ()
            if folder in [os.readlink(link) for link in links]:
                return int(process.name)
    raise AssertionError("no supervisor")


def kill_supervisor(pid: int) -> None:
    """Kill the process that builds kernels for a process's run."""
    found = supervisor(environment(pid, "GPT_HOOK_BROKER"))
    os.kill(found, signal.SIGKILL)
    while Path(f"/proc/{found}/fd").exists() and list(Path(f"/proc/{found}/fd").iterdir()):
        time.sleep(0.01)


ALONE = "its run has no supervisor within reach: only kernels that were woven before get these probes"


def order_alone(pid: int, *words: object) -> None:
    """Request probes in a process whose supervisor has been killed."""
    done = ctl(pid, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"gpt-hook: warning: {pid}: {ALONE}\n")


def toggle(server: Server, turns: int, kills: bool = False) -> dict:
    """Toggle recording ten times a second, and exchange the probes now and then; return the state at the end.

    `kills` ends the supervisor in between.
    """
    for turn in range(turns):
        if kills and turn == turns // 2:
            kill_supervisor(server.pid)
        killed = kills and turn >= turns // 2
        order(server.pid, "disable" if turn % 2 else "enable")
        if turn % 9 == 8 and turn > 30:
            (order_alone if killed else order)(server.pid, "probe", ("gmem_bytes", "block_sched")[turn % 2])
        time.sleep(0.1)
    order(server.pid, "disable")
    return status(server.pid)


def check_graphs(trace: hooked.Trace, state: dict) -> list[str]:
    """Return the faults in a trace of graphing.STRESS: each recorded replay must count three kernels, either with
    probes, or without probes and with a reason.
    """
    probed, replays = trace.of("probed"), trace.names["cuGraphLaunch"]
    found = {
        "launches with and without probes": (len(probed) + sum(probing.unprobed(trace).values()), 3 * replays),
        "their buffers": ({r["launch"] for r in trace.of("buffer")}, {r["id"] for r in probed}),
        "lost buffers": (sum("lost" in record for record in trace.of("buffer")), 0),
        "periods": (len(periods(trace)), state["periods"]),
    }
    wrong = [f"{name}: {one}, not {other}" for name, (one, other) in found.items() if one != other]
    return wrong + ["no launch had probes"] * (not probed)


def check(trace: hooked.Trace, state: dict) -> list[str]:
    """Return the faults in a trace of STRESS: each launch in a period must be counted, either with probes, or without
    probes and with a reason.
    """
    launches, probed = trace.launches.get("scale", 0), trace.of("probed")
    found = {
        "launches that were counted": (launches, state["launches"]),
        "launches that were recorded": (trace.names["cuLaunchKernel"] or launches, launches),
        "launches with and without probes": (len(probed) + sum(probing.unprobed(trace).values()), launches),
        "launches with probes": (len(probed), state["with_probes"]),
        "their buffers": ({r["launch"] for r in trace.of("buffer")}, {r["id"] for r in probed}),
        "lost buffers": (sum("lost" in record for record in trace.of("buffer")), 0),
        "periods": (len(periods(trace)), state["periods"]),
    }
    wrong = [f"{name}: {one}, not {other}" for name, (one, other) in found.items() if one != other]
    return wrong + ["no launch had probes"] * (not probed)
