"""gpt-hook ctl: probes are chosen, exchanged and removed while a program runs. On the simulated device."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.runtime import graphing, hooked, probing
from tests.runtime.controlling import (
    STRESS,
    Server,
    check,
    check_graphs,
    ctl,
    kill_supervisor,
    order,
    order_alone,
    status,
    toggle,
)
from tests.tiers import soak

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


def launch_until(server, key, count):
    """Keep launching until the state has this number under a key."""
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
    server.launch(0)  # a wait, during which its kernel is requested
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


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("option", ["--benchmark", "--memusage"])
def test_probe_costs_are_measured_while_enabled(tmp_path, option, live):
    program = probing.build(tmp_path, SERVER.replace("check();", ""))  # --benchmark runs each kernel twice
    options = ["-p", "gmem_bytes", *(["-o", f"|cat >{tmp_path}/t.mp"] if live else [])]
    server = serve(tmp_path, program, "--disabled", option, *options)
    server.launch(5)
    order(server.pid, "enable")
    hooked.wait_until(lambda: server.launch(1) or status(server.pid)["probed"])
    before = status(server.pid)["without_probes"]
    server.launch(6)
    order(server.pid, "disable")
    server.launch(50)
    order(server.pid, "enable")
    server.launch(2)
    done = ctl(server.pid, "probe", "block_sched")
    assert done.returncode == 1 and done.stderr.endswith("--benchmark or --memusage, which take no other probes\n")
    state = status(server.pid)
    measured = state["launches"] - before
    assert measured >= 8 and state["without_probes"] == before
    assert state["with_probes"] == (measured if option == "--benchmark" else 0)
    trace = server.end()
    assert trace.launches == {"scale": state["launches"]}
    if option == "--benchmark":
        assert sum("original" in record for record in trace.of("times")) == measured
    else:
        assert sum(record["launches"] for record in trace.of("memusage")) == measured


def test_other_probes_and_kernels(tmp_path, program):
    server = serve(tmp_path, program, "--disabled")
    server.launch(5)
    order(server.pid, "probe", "gmem_bytes", "-k", "other:scale")
    server.launch(5)
    assert status(server.pid)["with_probes"] == 0  # recording is off
    order(server.pid, "enable")
    first = launch_until(server, "with_probes", 3)["with_probes"]
    order(server.pid, "probe", "block_sched", "--filter", "other")
    state = status(server.pid)
    assert (state["probes"], state["kernels"], state["filter"]) == ("block_sched", "", "other")
    launch_until(server, "with_probes", first + 4)
    # No kernel of this name was looked up.
    done = ctl(server.pid, "probe", "gmem_bytes", "-k", "other", "--filter", "x")
    fact = "no kernel is chosen so far by -k other --filter x; it looked up: scale"
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"gpt-hook: warning: {server.pid}: {fact}\n"
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


def loaded(pid):
    """Return the kernel objects that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "memfd:" in line and " r-xp " in line})


def test_replaced_code_is_unloaded(tmp_path, program):
    """A process whose probes change again and again doesn't grow."""
    server = serve(tmp_path, program, "--disabled")
    server.launch(1)
    counts = []
    for turn in range(8):
        order(server.pid, "probe", ("gmem_bytes", "block_sched")[turn % 2])
        order(server.pid, "enable")
        launch_until(server, "with_probes", 3 * turn + 3)
        order(server.pid, "disable")
        server.launch(2)
        counts.append(loaded(server.pid))
    assert counts[0] > 0
    assert max(counts[2:]) <= max(counts[:2]), counts
    trace = server.end()
    assert len(trace.of("probed")) == len(trace.of("buffer")) == 24


def test_code_in_a_graph_stays_loaded(tmp_path):
    """A graph made before other probes were named runs unchanged until it's destroyed."""
    body = (
        graphing.GRAPHS
        + r"""
int main(int argc, char **argv) {
    char line[64];
    setup(argv[1]);
    OK(D(cuCtxSynchronize)());
    OK(D(cuStreamCreate)(&streams[0], 1));
    void *exec = NULL;
    while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
        int count = atoi(line);
        if (!exec && !count)
            exec = instantiated(captured(2));
        if (count < 0) {
            OK(D(cuGraphExecDestroy)(exec));
            exec = NULL;
        }
        for (int i = count; i > 0; i--) {
            run();
            OK(D(cuCtxSynchronize)());
            if (exec)
                replay(exec, 1), launched(2);
        }
        check();
        OK(D(cuCtxSynchronize)());
    }
}
"""
    )
    server = serve(tmp_path, probing.build(tmp_path, body), "--control", "-p", "gmem_bytes")
    launch_until(server, "with_probes", 1)
    server.launch(0)  # makes the graph
    server.launch(2)
    before = loaded(server.pid)
    order(server.pid, "probe", "block_sched")
    launch_until(server, "with_probes", 8)
    server.launch(3)
    assert loaded(server.pid) > before
    server.launch(-1)
    hooked.wait_until(lambda: server.launch(3) or loaded(server.pid) == before)  # once its data is written
    server.end()


GRAPH_SERVER = (
    graphing.GRAPHS
    + r"""
int main(int argc, char **argv) {
    char line[64];
    void *execs[9];
    int made = 0;
    setup(argv[1]);
    OK(D(cuCtxSynchronize)());
    OK(D(cuStreamCreate)(&streams[0], 1));
    while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
        int count = atoi(line);
        if (!count)
            execs[made++] = instantiated(captured(2)), count = 1;
        for (int i = 0; i < made; i++)
            replay(execs[i], count), launched(2 * count);
        check();
        OK(D(cuCtxSynchronize)());
    }
}
"""
)


def test_graphs_that_were_made_before_probes_were_named(tmp_path):
    """While recording is on, each replay is counted: with probes or, if probes apply to its kernels, as unprobed with a
    reason.
    """
    server = serve(tmp_path, probing.build(tmp_path, GRAPH_SERVER), "--disabled")

    def counts(written=0):
        """Wait until all data has been written, and return the number of launches with and without probes."""
        hooked.wait_until(lambda: status(server.pid)["with_probes"] >= written)
        state = status(server.pid)
        return state["with_probes"], state["without_probes"]

    server.launch(0)
    server.launch(5)
    order(server.pid, "enable")
    server.launch(2)  # no probes are named
    assert counts() == (0, 0)
    order(server.pid, "probe", "gmem_bytes")
    server.launch(3)
    assert counts() == (0, 6)
    hooked.wait_until(lambda: server.launch(1) or status(server.pid)["probed"])
    before = counts()[1]
    server.launch(0)
    assert counts(2) == (2, before + 2)
    server.launch(4)
    assert counts(10) == (10, before + 10)
    done = ctl(server.pid, "probe", "block_sched", "-k", "other")
    assert done.returncode == 0 and "no kernel is chosen so far by -k other; it looked up: scale" in done.stderr
    server.launch(4)
    assert counts() == (10, before + 10)
    order(server.pid, "probe", "block_sched", "-k", "scale")
    server.launch(4)
    assert counts() == (10, before + 26)
    order(server.pid, "disable")
    server.launch(4)
    trace = server.end()
    probing.check_bytes(trace, 10)
    assert probing.unprobed(trace) == {"its graph was made before these probes were chosen": before + 26}


def test_launches_that_are_captured_before_there_is_any_probe(tmp_path):
    server = serve(tmp_path, probing.build(tmp_path, GRAPH_SERVER), "--disabled", "-p", "gmem_bytes")
    order(server.pid, "enable")
    server.launch(0)
    assert status(server.pid)["without_probes"] == 2  # both are in the graph's launch
    assert probing.unprobed(server.end()) == {"it was not looked up by name, or is still being compiled": 2}


def test_a_pipeline_of_the_users(tmp_path, program):
    server = serve(tmp_path, program, "--disabled")
    order(server.pid, "enable")
    line = "gpt-extract --ptx | gpt-ptx-probe -p gmem_bytes | gpt-asm --arch $GPT_ARCH"
    order("--jit", line, server.pid, "probe")
    launch_until(server, "with_probes", 2)
    assert status(server.pid)["probes"] == line
    probing.check_bytes(server.end(), 2)


def test_kernel_looked_up_while_recording(tmp_path):
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
        (("probe", "-k", "foo"), 2, "gpt-hook: error: probe: -k or --filter without probes"),
        (("enable", "gmem_bytes"), 2, "gpt-hook: error: enable: takes no probes"),
        (("probe", "gmem_bytes", "--jit", "cat"), 2, "gpt-hook: error: --jit: names its own probes"),
    ],
)
def test_wrong_words(words, status, fault):
    done = ctl(1, *words)
    assert done.returncode == status, done
    assert done.stderr.startswith(fault)


def test_child_forked_after_loading_code(tmp_path):
    """The child can't use the driver, as on a GPU, so nothing in it can be probed, and ctl says so."""
    source = SERVER.replace(
        "    while (puts",
        """    if (fork()) {
        wait(NULL);
        return 0;
    }
    assert(cuInit(0) == 3); // it can't use the driver
    fprintf(stderr, "%d\\n", getpid());
    while (puts""",
    )
    server = serve(tmp_path, probing.build(tmp_path, "#include <sys/wait.h>\n" + source), "--disabled")
    child = int(server.process.stderr.readline())
    done = ctl(child, "probe", "gmem_bytes")
    fault = "it has not used the driver; --all asks the other processes of its run"
    assert (done.returncode, done.stderr) == (1, f"gpt-hook: error: {child}: {fault}\n")
    os.kill(child, signal.SIGKILL)
    server.process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("options", "kills"), [(("-p", "gmem_bytes"), False), (("-p", "gmem_bytes", "--calls", "none"), True)]
)
def test_toggled_ten_times_a_second_under_load(tmp_path, options, kills):
    server = serve(tmp_path, probing.build(tmp_path, STRESS), "--disabled", *options)
    order(server.pid, "enable")
    launch_until(server, "with_probes", 1)
    order(server.pid, "disable")
    state = toggle(server, 80, kills)
    assert check(server.end(), state) == []


@pytest.mark.parametrize(("turns", "kills"), [(20, False), (30, True), soak(600, True)])
def test_graphs_that_come_and_go_while_it_is_toggled(tmp_path, turns, kills):
    """Each recorded replay counts once for each of its three kernels: as probed, or as unprobed with a reason."""
    server = serve(tmp_path, probing.build(tmp_path, graphing.STRESS), "--disabled", "-p", "gmem_bytes")
    order(server.pid, "enable")
    hooked.wait_until(lambda: status(server.pid)["with_probes"])
    state = toggle(server, turns, kills)
    assert check_graphs(server.end(), state) == []


def test_the_supervisor_is_killed(tmp_path, program):
    """Probes that are named later aren't built, and launches are counted with the reason."""
    server = serve(tmp_path, program, "--disabled")
    order(server.pid, "enable")
    server.launch(1)
    kill_supervisor(server.pid)
    order_alone(server.pid, "probe", "sync_wait", "gmem_bytes", "block_sched")  # this combination isn't cached
    server.launch(0)
    launch_until(server, "refused", 1)
    server.launch(3)
    state = status(server.pid)
    assert state["with_probes"] == 0
    order(server.pid, "disable")
    trace = server.end()
    reason = "gpt-hook's supervisor is gone, or out of reach"
    assert reason in probing.unprobed(trace)
