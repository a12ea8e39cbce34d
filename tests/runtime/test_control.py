"""gpt-hook ctl: recording is turned on and off while a program runs. On the simulated device."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.runtime import hooked, simulated
from tests.runtime.controlling import SERVER, Server, ctl, order, periods, status
from tests.tiers import first

PTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry foo(){ret;}\n"
QUICK = {"GPT_SIM_RUN": "none"}
GRAPH = """
    void *stream, *graph, *exec;
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuStreamBeginCapture_v2)(stream, 0));
    for (int i = 0; i < 2; i++)
        OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
"""
LAUNCH = "OK(D(cuGraphLaunch)(exec, stream))"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return hooked.compile_c(tmp_path_factory.mktemp("control") / "server", SERVER)


def test_periods_of_a_run(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    server.launch(100)
    before = status(server.pid)
    assert not any(before[key] for key in ("recording", "periods", "launches", "since"))
    for number, count in enumerate((50, 7), 1):
        order(server.pid, "enable")
        order(server.pid, "enable")  # nothing changes
        server.launch(count)
        now = status(server.pid)
        assert (now["recording"], now["periods"], now["output"]) == (True, number, str(server.out))
        assert now["bytes"] == server.out.stat().st_size
        order(server.pid, "disable")
        server.launch(1000)
    assert status(server.pid)["launches"] == 57
    trace = server.end()
    assert trace.launches == {"foo": 57}
    assert trace.names["cuLaunchKernel"] == 57
    starts = [call["start"] for call in trace.calls]
    assert [sum(begin <= start <= end for start in starts) for begin, end in periods(trace)] == [50, 7]
    assert trace.functions == ["foo"]  # earlier look-ups are known
    assert {"module", "library", "device", "api"} <= trace.kinds.keys()


@pytest.mark.full
def test_a_trace_of_periods_is_read_as_such(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    order(server.pid, "enable")
    server.launch(3)
    order(server.pid, "disable")
    server.end()

    def read(*line, data=b""):
        done = subprocess.run(line, input=data, capture_output=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    (processes,) = (r for r in read("gpt-analyze", "summary", "--json", server.out) if r.get("name") == "processes")
    assert "recording was off at times" in processes["verdict"][0]
    names = [event["name"] for event in read("gpt-analyze", "events", "--json", server.out)]
    assert names == ["recording off", "recording on", *["cuLaunchKernel"] * 3, "recording off"]
    (tmp_path / "k.ptx").write_text(PTX)
    found = subprocess.run(["gpt-extract", tmp_path / "k.ptx"], capture_output=True, check=True).stdout
    assert read("gpt-locate", "--used", server.out, "--json", data=found)[-1]["kind"] == "end"


def test_a_graph_of_before(tmp_path):
    """The graph was made while nothing was recorded, but its kernels are known."""
    source = SERVER.replace("    while (puts", GRAPH + "    while (puts").replace("launch(function)", LAUNCH)
    server = Server(tmp_path / "t.mp", simulated.build(tmp_path / "client", source), "--disabled", **QUICK)
    server.launch(5)
    order(server.pid, "enable")
    server.launch(3)
    order(server.pid, "disable")
    server.launch(2)
    trace = server.end()
    (graph,) = trace.of("graph")
    (foo,) = trace.of("function")
    assert (graph["nodes"], graph["functions"], graph["launches"]) == (2, [foo["id"]], [2])
    replays = [call for call in trace.calls if call["op"] == "launch"]
    assert [call["object"] for call in replays] == [graph["exec"]] * 3


def test_run_with_control_starts_recording(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--control", **QUICK)
    server.launch(5)
    order(server.pid, "disable")
    server.launch(6)
    state = status(server.pid)
    assert (state["recording"], state["periods"], state["launches"]) == (False, 1, 5)
    order(server.pid, "enable")
    server.launch(7)
    trace = server.end()
    assert trace.launches == {"foo": 12}
    assert [r["on"] for r in trace.of("recording")] == [False, True]
    assert trace.names["cuInit"] == 1


@pytest.mark.full
def test_queries_are_counted_while_it_is_on(tmp_path):
    source = SERVER.replace("launch(function);", "{ int version; cuDriverGetVersion(&version); }")
    server = Server(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source), "--disabled", **QUICK)
    for word in ("enable", "disable", "enable"):
        server.launch(9)
        order(server.pid, word)
    server.launch(4)
    trace = server.end()
    counted = {trace.apis[row["api"]]["name"]: row["count"] for r in trace.of("counts") for row in hooked.rows(r)}
    assert counted == {"cuDriverGetVersion": 9 + 4}


@pytest.mark.parametrize("calls", first("none", "cuLaunch*"))
def test_calls_filters_while_recording_is_enabled(tmp_path, program, calls):
    server = Server(tmp_path / "t.mp", program, "--disabled", "--calls", calls, **QUICK)
    server.launch(9)
    order(server.pid, "enable")
    server.launch(5)
    order(server.pid, "disable")
    server.launch(9)
    trace = server.end()
    assert trace.launches == {"foo": 5}
    assert trace.names == ({} if calls == "none" else {"cuLaunchKernel": 5})


def test_the_program_sees_no_descriptor_and_keeps_its_own(tmp_path):
    source = r"""
    #include <dirent.h>
    #include <fcntl.h>
    int main(void) {
        int pipes[2], zero = 0;
        assert(!pipe(pipes));
        begin();
        void *function = kernel("foo");
        assert(dup(0) == 5 && !close(5));
        char line[64];
        puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin);
        close(pipes[1]);
        assert(read(pipes[0], &zero, 1) == 0); // nobody else has its other end
        closefrom(3);
        assert(open("/dev/null", O_RDONLY) == 3);
        DIR *files = opendir("/proc/self/fd");
        for (struct dirent *entry; (entry = readdir(files));)
            assert(atoi(entry->d_name) < 5);
        while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin))
            for (int i = atoi(line); i > 0; i--)
                launch(function);
    }
    """
    server = Server(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source), "--disabled", **QUICK)
    assert not status(server.pid)["recording"]
    server.launch(0)
    order(server.pid, "enable")
    server.launch(3)
    order(server.pid, "disable")
    server.launch(3)
    assert status(server.pid)["launches"] == 3
    assert server.end().launches == {"foo": 3}


def test_children_and_all_processes_of_a_run(tmp_path):
    """The parent doesn't use the driver, its two children do."""
    source = r"""
    #include <sys/wait.h>
    int main(void) {
        int pipes[2][2];
        pid_t pids[2];
        char count, line[64];
        for (int i = 0; i < 2; i++) {
            assert(!pipe(pipes[i]));
            if ((pids[i] = fork()))
                continue;
            close(pipes[0][1]);
            if (i)
                close(pipes[1][1]);
            begin();
            void *function = kernel(i ? "bar" : "foo");
            while (read(pipes[i][0], &count, 1) == 1)
                for (int j = 0; j < count; j++)
                    launch(function);
            exit(0);
        }
        fprintf(stderr, "%d %d\n", pids[0], pids[1]);
        while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
            count = (char)atoi(line);
            for (int i = 0; i < 2; i++)
                assert(write(pipes[i][1], &count, 1) == 1);
        }
        close(pipes[0][1]), close(pipes[1][1]);
        while (wait(NULL) > 0)
            continue;
    }
    """
    server = Server(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source), "--disabled", **QUICK)
    children = [int(word) for word in server.process.stderr.readline().split()]
    for child in children:
        hooked.wait_until(lambda child=child: ctl(child, "status").returncode == 0)

    def launch(count, total):
        server.launch(count)
        hooked.wait_until(lambda: [status(child)["launches"] for child in children] == total)

    done = ctl(server.pid, "enable")
    fault = f"gpt-hook: error: {server.pid}: it has not used the driver; --all asks the other processes of its run\n"
    assert (done.returncode, done.stderr) == (1, fault)
    order("--all", server.pid, "enable")
    launch(3, [3, 3])
    order(children[0], "disable")
    launch(4, [3, 7])
    order("--all", children[1], "disable")
    shown = ctl("--all", "--json", server.pid, "status").stdout.splitlines()
    assert sorted(json.loads(line)["pid"] for line in shown) == sorted(children)
    server.process.communicate(timeout=60)
    found = {path.name: hooked.Trace(path) for path in tmp_path.glob("t.mp*")}
    launches = [trace.launches for trace in found.values() if trace.records[0]["pid"] in children]
    assert sorted(launches, key=str) == [{"bar": 7}, {"foo": 3}], {
        name: trace.records[0] for name, trace in found.items()
    }


@pytest.mark.full
def test_forked_child_keeps_the_state_of_its_parent(tmp_path):
    source = r"""
    #include <sys/wait.h>
    int main(void) {
        char line[64];
        begin();
        void *function = kernel("foo");
        while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin)) {
            pid_t child = fork();
            if (!child) {
                for (int i = atoi(line); i > 0; i--) // the driver refuses it
                    assert(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == 3);
                _exit(0);
            }
            int status;
            assert(waitpid(child, &status, 0) == child && !status);
        }
    }
    """
    program = hooked.compile_c(tmp_path / "client", source)
    server = Server(tmp_path / "t.mp", program, "--disabled", "--calls", "all", **QUICK)
    server.launch(3)
    order(server.pid, "enable")
    server.launch(4)
    order(server.pid, "disable")
    trace = server.end()
    children = [hooked.Trace(tmp_path / r["path"]) for r in trace.of("child")]
    assert not any(child.launches for child in children)
    results = [[(call["name"], call["result"]) for call in child.calls] for child in children]
    assert results == [[("cuLaunchKernel", 3)] * 4]  # the first child had nothing to record
    assert not children[0].of("recording")  # the second child was forked while its parent recorded


def test_unreadable_processes(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, **QUICK)
    for pid, fault in (
        (server.pid, "not started by 'gpt-hook run --disabled' or 'gpt-hook run --control'"),
        (os.getpid(), "not started by 'gpt-hook run --disabled' or 'gpt-hook run --control'"),
        (2**22 + 1, "no such process"),
    ):
        done = ctl(pid, "enable")
        assert (done.returncode, done.stderr) == (1, f"gpt-hook: error: {pid}: {fault}\n")
    server.end()


def test_gpt_hook_that_stays_the_parent_means_its_program(tmp_path, program):
    server = Server(f"|cat >{tmp_path}/t.mp", program, "--disabled", **QUICK)
    server.launch(9)
    order(server.pid, "enable")
    server.launch(5)
    order("--all", server.pid, "disable")
    server.launch(9)
    state = status(server.pid)
    server.out = tmp_path / "t.mp"
    trace = server.end()
    assert trace.launches == {"foo": 5}
    (header,) = trace.of("header")
    assert header["pid"] == state["pid"] != server.pid


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "ctl: needs a process id and one of enable, disable, probe and status"),
        ((1,), "ctl: needs a process id and one of enable, disable, probe and status"),
        (("1x", "enable"), "1x: not a process id"),
        ((1, "on"), "on: not a command: enable, disable, probe or status"),
        (("--now", 1, "enable"), "--now: no such option; see gpt-hook --help"),
    ],
)
def test_wrong_words(words, fault):
    done = ctl(*words)
    assert (done.returncode, done.stderr) == (2, f"gpt-hook: error: {fault}\n")


def test_a_full_disk(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    with open("/dev/full", "w") as full:
        line = hooked.command("ctl", "--json", str(server.pid), "status")
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "gpt-hook: error: standard output: No space left on device\n")
    server.end()


@pytest.mark.full
def test_program_overwrites_its_environment(tmp_path):
    source = SERVER.replace(
        "    while (puts",
        """    char *first = environ[0], *last = first;
    for (char **at = environ; *at; at++)
        last = *at + strlen(*at);
    memset(first, 0, (size_t)(last - first));
    while (puts""",
    )
    server = Server(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source), "--disabled", **QUICK)
    order("--all", server.pid, "enable")
    server.launch(3)
    assert server.end().launches == {"foo": 3}


ANSWER = """
import os, socket, struct, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind("\\0gpt-control.%d.0123456789abcdef" % os.getpid())
server.listen()
print("ready", flush=True)
client, _ = server.accept()
client.recv(1 << 17)
client.send(struct.pack("2I9Q", 2, 1, *range(9)) + int(sys.argv[1]) * b"A" + int(sys.argv[2]) * b"\\0")
client.recv(1)
"""


@pytest.mark.full
def test_process_answers_unterminated_strings():
    texts, fault = 1024 + 512 + 512 + 512 + 4096 + 4096, 256
    for letters, shown in ((texts, 0), (texts + fault, 1)):
        line = [sys.executable, "-c", ANSWER, str(letters), str(texts + fault - letters)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            done = ctl("--json", process.pid, "status")
            process.kill()
        assert done.returncode == shown
        if not shown:
            state = json.loads(done.stdout)
            assert [len(state[key]) for key in ("probes", "kernels", "filter", "output")] == [1023, 511, 511, 4095]
        else:
            assert done.stderr == f"gpt-hook: error: {process.pid}: {'A' * 255}\n"


def find_name(pid):
    """Return the name of its socket, without the leading zero."""
    with open("/proc/net/unix") as file:
        (name,) = (line.split()[-1] for line in file if " 00010000 " in line and f"@gpt-control.{pid}." in line)
    return name[1:]


@pytest.mark.full
def test_a_planted_control_socket_is_ignored(tmp_path, program):
    """If another process made the socket with this name, it's ignored."""
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind("\0" + find_name(server.pid)[:-16] + "0123456789abcdef")
        other.listen()
        order(server.pid, "enable")
        assert status(server.pid)["recording"]
    server.end()


@pytest.mark.full
def test_clients_that_say_nothing_or_nonsense(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    for message in (b"", b"x", b"\xff" * 8, b"\0" * 4096):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect("\0" + find_name(server.pid))
            if message:
                client.send(message)
    order(server.pid, "enable")
    server.launch(2)
    assert server.end().launches == {"foo": 2}


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_requests_of_other_users_are_refused(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    code = """
import os, socket, struct, sys
os.setuid(65534)
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect("\\0" + sys.argv[1])
try:
    client.send(struct.pack("II", 1, 1))
    print(len(client.recv(10000)))
except OSError:
    print(0)
"""
    done = subprocess.run([sys.executable, "-c", code, find_name(server.pid)], capture_output=True, check=True)
    assert done.stdout == b"0\n"
    assert not status(server.pid)["recording"]
    server.end()


@pytest.mark.parametrize("other", first("0", "1"))
def test_silent_peers_delay_no_one(tmp_path, program, other):
    """Any process can connect to an abstract name. Each such connection once blocked the socket for the 5 s in which a
    command may arrive.
    """
    if other == "1" and os.geteuid():
        pytest.skip("needs root")
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    code = """
import os, socket, sys
if int(sys.argv[2]):
    os.setuid(65534)
clients = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
for client in clients:
    client.connect("\\0" + sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""
    line = [sys.executable, "-c", code, find_name(server.pid), other]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as silent:
        assert silent.stdout.readline() == b"connected\n"
        assert not status(server.pid)["recording"]
        silent.stdin.close()
    server.end()


@pytest.mark.full
def test_unanswered_order_is_not_carried_out_later(tmp_path, program):
    """A stopped process doesn't answer. When it continues, it doesn't carry out commands that
    gpt-hook ctl gave up on.
    """
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    server.process.send_signal(signal.SIGSTOP)
    done = ctl(server.pid, "enable")
    assert (done.returncode, done.stderr) == (
        1,
        f"gpt-hook: error: {server.pid}: does not answer: it may be stopped\n",
    )
    server.process.send_signal(signal.SIGCONT)
    assert not status(server.pid)["recording"]
    server.launch(2)
    order(server.pid, "enable")
    server.launch(3)
    assert server.end().launches == {"foo": 3}


@pytest.mark.full
def test_two_at_once_and_a_process_that_ends_meanwhile(tmp_path, program):
    for _ in range(4):
        server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
        words = ("enable", "disable", "status")
        line = [hooked.command("ctl", str(server.pid), words[i % 3]) for i in range(24)]
        asking = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for one in line]
        server.end()
        for one in asking:
            said, fault = one.communicate(timeout=60)
            told = fault.removeprefix(f"gpt-hook: error: {server.pid}: ")
            assert (one.returncode, told) in [
                (0, ""),
                *((1, f"{why}\n") for why in (
                    "it ended or replaced itself meanwhile", "its trace has ended", "no such process", "it has ended",
                )),
            ]  # fmt: skip
            assert said == "" or one.args[-1] == "status"


@pytest.mark.full
def test_process_killed_while_recording(tmp_path, program):
    server = Server(tmp_path / "t.mp", program, "--disabled", **QUICK)
    order(server.pid, "enable")
    server.launch(20)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    trace = hooked.Trace(server.out)
    assert trace.launches == {"foo": 20}
    ((_, end),) = periods(trace)
    assert end is None
