"""gpt-hook ctl: probes are named, exchanged and left off while a program runs. On the simulated device."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.runtime import probing
from tests.runtime.controlling import Server, ctl, order, status

pytestmark = pytest.mark.full

SERVER = (
    probing.CLIENT
    + r"""
int main(int argc, char **argv) {
    char line[64];
    setup(argv[1]);
    while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
        for (int i = atoi(line); i > 0; i--)
            run();
        check();
        OK(D(cuCtxSynchronize)());
    }
}
"""
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("control"), SERVER)


def serve(folder, program, *options):
    cache = {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    return Server(folder / "t.mp", program, *options, arguments=(probing.PTX,), **cache)


def find_supervisor(pid):
    """The process that makes kernels for the run of a process."""
    name = next(w for w in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if w.startswith(b"GPT_HOOK_BROKER="))
    for folder in Path("/proc").glob("[0-9]*"):
        if (folder / "comm").read_text() == "gpt-broker\n" and int(folder.name) != pid:
            inodes = [os.readlink(link) for link in (folder / "fd").iterdir()]
            sockets = Path("/proc/net/unix").read_text().splitlines()
            inode = next(line.split()[-2] for line in sockets if line.endswith("@" + name.partition(b"=")[2].decode()))
            if f"socket:[{inode}]" in inodes:
                return int(folder.name)
    return None


def launch_until(server, key, count):
    """Launches, one after the other, until the state has so much under a key."""
    end = time.monotonic() + 60
    while (state := status(server.pid))[key] < count:
        assert time.monotonic() < end, state
        server.launch(1)
    return state


def test_probes_that_a_run_began_with_wait_for_enable(tmp_path, program):
    server = serve(tmp_path, program, "--disabled", "-p", "gmem_bytes")
    server.launch(5)
    state = status(server.pid)
    assert (state["probes"], state["pending"], state["probed"], state["without_probes"]) == ("gmem_bytes", 1, 0, 0)
    order(server.pid, "enable")
    server.launch(0)  # a wait, in which its kernel is asked for
    state = launch_until(server, "with_probes", 1)
    assert (state["pending"], state["probed"], state["refused"]) == (0, 1, 0)
    server.launch(6)
    order(server.pid, "disable")
    server.launch(50)
    state = status(server.pid)
    assert state["with_probes"] == 7
    trace = server.end()
    probing.check_bytes(trace, 7)
    assert sum(probing.unprobed(trace).values()) == state["without_probes"]
    assert trace.launches == {"scale": 7 + state["without_probes"]}


def test_other_probes_and_kernels(tmp_path, program):
    server = serve(tmp_path, program, "--disabled")
    server.launch(5)
    order(server.pid, "probe", "gmem_bytes", "-k", "other:scale")
    server.launch(5)
    assert status(server.pid)["with_probes"] == 0  # it is off
    order(server.pid, "enable")
    first = launch_until(server, "with_probes", 3)["with_probes"]
    order(server.pid, "probe", "block_sched", "--filter", "other")
    state = status(server.pid)
    assert (state["probes"], state["kernels"], state["filter"]) == ("block_sched", "", "other")
    launch_until(server, "with_probes", first + 4)
    order(server.pid, "probe", "gmem_bytes", "-k", "other")  # no kernel that was looked up
    server.launch(3)
    state = status(server.pid)
    assert (state["with_probes"], state["probed"], state["pending"]) == (first + 4, 0, 0)
    order(server.pid, "probe")
    server.launch(3)
    assert status(server.pid)["probes"] == ""
    trace = server.end()
    names = {record["id"]: record["name"] for record in trace.of("map")}
    found = [names[record["map"]] for record in trace.of("buffer")]
    assert sorted(set(found)) == ["block_sched", "gmem_bytes"]
    assert found.count("gmem_bytes") == first
    assert found.count("block_sched") == 4


def test_a_pipeline_of_the_users(tmp_path, program):
    server = serve(tmp_path, program, "--disabled")
    order(server.pid, "enable")
    line = "gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH"
    order("--jit", line, server.pid, "probe")
    launch_until(server, "with_probes", 2)
    assert status(server.pid)["probes"] == line
    probing.check_bytes(server.end(), 2)


def test_a_kernel_that_is_looked_up_while_it_is_on(tmp_path):
    again = '{ run(); OK(cuModuleGetFunction(&function, module, "scale")); run(); }'
    program = probing.build(tmp_path, SERVER.replace("run();", again))
    server = serve(tmp_path, program, "--disabled", "-p", "gmem_bytes")
    server.launch(2)
    order(server.pid, "enable")
    server.launch(1)
    state = launch_until(server, "with_probes", 1)
    server.launch(4)
    probing.check_bytes(server.end(), state["with_probes"] + 8)


@pytest.mark.parametrize(
    ("words", "status", "fault"),
    [
        (("probe", "nothere"), 4, "gpt-ptx-probe: error: nothere: no such probe file"),
        (("probe", "-k", "foo"), 2, "gpt-hook: error: probe: kernels, and no probes"),
        (("enable", "gmem_bytes"), 2, "gpt-hook: error: enable: takes no probes"),
        (("probe", "gmem_bytes", "--jit", "cat"), 2, "gpt-hook: error: --jit: names its probes itself"),
    ],
)
def test_wrong_words(words, status, fault):
    done = ctl(1, *words)
    assert done.returncode == status, done
    assert done.stderr.startswith(fault)


def test_a_child_that_was_forked_after_code_was_loaded(tmp_path):
    """It has its parent's code: nothing in it is probed, and ctl says so."""
    source = SERVER.replace(
        "    while (puts",
        """    if (fork()) {
        wait(NULL);
        return 0;
    }
    OK(cuInit(0));
    fprintf(stderr, "%d\\n", getpid());
    while (puts""",
    )
    server = serve(tmp_path, probing.build(tmp_path, "#include <sys/wait.h>\n" + source), "--disabled")
    child = int(server.process.stderr.readline())
    done = ctl(child, "probe", "gmem_bytes")
    fault = "it was forked from a process that had loaded code, or ends"
    assert (done.returncode, done.stderr) == (1, f"gpt-hook: error: {child}: {fault}\n")
    order(child, "enable")
    assert status(child)["recording"]
    os.kill(child, signal.SIGKILL)
    server.process.communicate(timeout=60)


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


@pytest.mark.parametrize("options", [("-p", "gmem_bytes"), ("-p", "gmem_bytes", "--calls", "none")])
def test_toggled_ten_times_a_second_under_load(tmp_path, options):
    """Results are right, and each launch of a period is counted: with probes, or without and why."""
    server = serve(tmp_path, probing.build(tmp_path, STRESS), "--disabled", *options)
    other = ("gmem_bytes", "block_sched")
    for turn in range(80):
        order(server.pid, "disable" if turn % 2 else "enable")
        if turn > 30 and turn % 9 == 0:
            order(server.pid, "probe", other[turn % 2])
        time.sleep(0.1)
    state = status(server.pid)
    assert state["periods"] == 40
    trace = server.end()
    launches = trace.launches["scale"]
    assert launches == state["launches"]
    if "none" not in options:
        assert trace.names["cuLaunchKernel"] == launches
    assert state["with_probes"] > 0
    assert len(trace.of("probed")) == state["with_probes"]
    assert sum(probing.unprobed(trace).values()) + state["with_probes"] == launches
    names = {record["id"]: record["name"] for record in trace.of("map")}
    for record in trace.of("buffer"):
        assert not record.get("lost")
        if names[record["map"]] == "gmem_bytes":
            units = np.frombuffer(record["data"], "<u8")
            assert units.any()
    assert {record["launch"] for record in trace.of("buffer")} == {record["id"] for record in trace.of("probed")}


def test_the_supervisor_is_killed(tmp_path, program):
    """Probes that are named then are not made; the reason is counted."""
    server = serve(tmp_path, program, "--disabled")
    order(server.pid, "enable")
    server.launch(1)
    os.kill(find_supervisor(server.pid), signal.SIGKILL)
    order(server.pid, "probe", "sync_wait", "gmem_bytes", "block_sched")  # which no cache has
    server.launch(0)
    launch_until(server, "refused", 1)
    server.launch(3)
    state = status(server.pid)
    assert state["with_probes"] == 0
    order(server.pid, "disable")
    trace = server.end()
    assert "helper" in " ".join(probing.unprobed(trace))
