"""The supervisor rejects sandboxed processes and unknown commands, and clients ask no other process."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.runtime import controlling, hooked, peering, probing, simulated
from tests.runtime.controlling import Server, order, status
from tests.runtime.peering import REFUSED

pytestmark = pytest.mark.full
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
DIGEST = "0123456789abcdef" * 4


def can_unshare() -> bool:
    line = [sys.executable, "-c", "from tests.runtime.peering import *; unshare(USER | MOUNT)"]
    return not subprocess.run(line, cwd=hooked.ROOT, capture_output=True, check=False).returncode


needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="the system gives users no namespaces")


def say(folder: Path, script: str, *options: str, **environment: str) -> list[str]:
    """Run a script under gpt-hook and return the lines that it prints."""
    begin = "from tests.runtime.peering import *\nimport os, sys\n"
    line = hooked.command("run", "-f", "-o", folder / "t.mp", "--device", "sim", *options, "--")
    line += [sys.executable, "-c", begin + dedent(script)]
    env = os.environ | {"TMPDIR": str(folder)} | environment | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(line, cwd=hooked.ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def folders(parent: Path) -> list[str]:
    return sorted(entry.name for entry in parent.glob("gpt-broker.*"))


UNKNOWN = "supervisor_refuses: a pipeline that it was not given"


def refusal(who: str) -> str:
    return str((REFUSED, f"supervisor_refuses: {who}"))


# Text that would be run


def test_no_text_is_run_without_control(tmp_path):
    mark = tmp_path / "escaped"
    found = say(tmp_path, f"""
        print(ask(REGISTER, "{DIGEST}", "touch {mark}"))
        print(ask(PROBE, "{DIGEST}"))
        print(ask(PROBE, "{DIGEST}", "touch {mark}", files=[file(MODULE)]))
        print(ask(PROBE, "", "touch {mark}", files=[file(MODULE)]))
    """)  # fmt: skip
    unknown = str((4, UNKNOWN))
    assert found == [refusal("pipelines: the run was started without --control"), unknown, "(-1, '')", "(-1, '')"]
    assert not mark.exists()


def test_a_pipeline_is_passed_once_and_asked_by_its_digest(tmp_path):
    mark = tmp_path / "run"
    found = say(tmp_path, f"""
        print(ask(REGISTER, "{DIGEST}", "touch {mark}; cat"))
        print(ask(REGISTER, "{DIGEST}", "touch {mark}; cat"), ask(REGISTER, "{DIGEST}", "cat"))
        print(ask(PROBE, "{DIGEST[::-1]}"), os.path.exists("{mark}"))
        print(ask(PROBE, "{DIGEST}"), os.path.exists("{mark}"))
    """, "--control")  # fmt: skip
    assert found == [
        "(0, '')",
        "(0, '') (4, 'another pipeline has this digest')",
        f"{(4, UNKNOWN)} False",
        "(0, '') True",
    ]


@pytest.mark.parametrize("arch", ["x;id", "a -o x", "$(id)", "-h", "*"])
def test_an_architecture_is_one_word(tmp_path, arch):
    found = say(tmp_path, f'print(ask(HOST, arch="{arch}"))')
    assert found == ["(4, 'pipeline_failed: not an architecture')"]


def test_files_closed_to_a_client_are_not_opened_for_it(tmp_path):
    """The image is opened neither by a path in a request, nor from a descriptor that the client can't read."""
    secret = tmp_path / "secret.ptx"
    secret.write_text(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry foo() { ret; }\n")
    os.mkfifo(tmp_path / "fifo")
    path = str(secret)
    found = say(tmp_path, f"""
        text = {path!r}.encode()
        for key in b"path", b"saved":
            keys = b"kind", b"module", b"id", b"type", b"ptx", key, text
            kind, module, number, of, ptx, key, text = (b"\\xd9" + bytes([len(k)]) + k for k in keys)
            print(ask(HOST, files=[file(b"\\x84" + kind + module + number + b"\\x01" + of + ptx + key + text)]))
        for flags in os.O_PATH, os.O_WRONLY:
            print(ask(HOST, files=[file(MODULE), os.open({path!r}, flags)]))
        print(ask(HOST, files=[file(MODULE), os.open("{tmp_path}/fifo", os.O_RDWR)]))
    """)  # fmt: skip
    assert found == ["(4, 'pipeline_failed: not a request, or too large')"] * 5


# Sandboxes


@needs_namespaces
@pytest.mark.parametrize("options", [(), ("--control",)])
def test_a_child_in_a_jail_reaches_nothing(tmp_path, options):
    """In an empty root directory and its own user namespace, a process can reach nothing by name or through
    descriptors.
    """
    found = say(tmp_path, f"""
        def by_name():
            jail(USER | MOUNT)
            return ask(REGISTER, "{DIGEST}", "true")
        def by_abstract_name():
            jail(USER | MOUNT)
            return ask(REGISTER, "{DIGEST}", "true", path="\\0" + folder)
        def by_folder():
            place = os.open(folder, os.O_PATH)
            jail(USER | MOUNT)
            os.fchdir(place)
            return ask(REGISTER, "{DIGEST}", "true", path="./socket"), ask(HOST, path="./socket")
        def by_connection():
            client, other = connect(), connect()
            jail(USER | MOUNT)
            send(client, REGISTER, "{DIGEST}", "true")
            send(other, HOST)
            return receive(client), receive(other)
        def by_anothers_connection():
            client = connect()
            if not os.fork():
                jail(USER | MOUNT)
                send(client, REGISTER, "{DIGEST}", "true")
                os._exit(0)
            pid = os.wait()[0]
            os.rmdir(f"/tmp/gpt-jail.{{pid}}")
            return receive(client)
        for attack in by_name, by_abstract_name, by_folder, by_connection, by_anothers_connection:
            child(attack)
        print(ask(PROBE, "{DIGEST}")[0])
    """, *options)  # fmt: skip
    user = refusal("a process in another user namespace")
    other = refusal("a process that uses another one's connection")
    registered = user if options else refusal("pipelines: the run was started without --control")
    assert found == [
        "FileNotFoundError",
        "ConnectionRefusedError",
        f"({registered}, {user})",
        f"({registered}, {user})",
        other if options else registered,
        "4",
    ]


@as_root
@pytest.mark.parametrize(
    ("enters", "who"),
    [
        ("unshare(MOUNT)", "a process in another mount namespace"),
        ("unshare(NETWORK)", "a process in another network namespace"),
        ("os.chroot('/tmp')", "a process with another root directory"),
        ("os.seteuid(65534)", "a process of another user"),
    ],
)
def test_child_in_other_namespace_is_refused(tmp_path, enters, who):
    found = say(tmp_path, f"""
        def attack():
            place = os.open(folder, os.O_PATH)
            os.fchdir(place)
            os.chmod("socket", 0o777), os.chmod(".", 0o777)
            {enters}
            os.fchdir(place) if "chroot" in {enters!r} else None
            return ask(HOST, path="./socket")
        child(attack)
    """)  # fmt: skip
    assert found == [refusal(who)]


@pytest.mark.parametrize("confined", ["prctl(38, 1, 0, 0, 0)"])  # PR_SET_NO_NEW_PRIVS, which Landlock requires
def test_a_confined_child_passes_no_pipeline(tmp_path, confined):
    """A confined process may ask for code, because a program may confine itself."""
    found = say(tmp_path, f"""
        def attack():
            libc.{confined}
            return ask(REGISTER, "{DIGEST}", "true"), ask(HOST)[0]
        child(attack)
    """, "--control")  # fmt: skip
    confined = refusal("a process that is confined (no_new_privs, seccomp)")
    assert found == [f"({confined}, 0)"]


@needs_namespaces
@pytest.mark.parametrize("enters", ["", "unshare(USER)"])
def test_a_sandboxed_child_gives_no_orders(tmp_path, enters):
    """A sandboxed process can reach the socket of gpt-hook ctl, which has an abstract name."""
    found = say(tmp_path, f"""
        driver = ctypes.CDLL("libcuda.so.1")
        assert driver.cuInit(0) == 0
        def attack():
            name = f"gpt-control.{{os.getppid()}}." + os.environ["GPT_HOOK_CONTROL"]
            {enters}
            client = connect("\\0" + name)
            client.send(struct.pack("II", 2, 1))  # enable
            try:
                return len(client.recv(1 << 16)) > 0
            except ConnectionResetError:
                return False
        child(attack)
    """, "--disabled")  # fmt: skip
    assert found == [str(not enters)]


def test_silent_connections_delay_no_one(tmp_path):
    """A sandboxed child could once occupy all places of the supervisor, which then answered no one else."""
    found = say(tmp_path, """
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        silent = [connect() for _ in range(min(hard - 100, 1100))]
        print(ask(HOST)[0], ask(HOST)[0])
    """)  # fmt: skip
    assert found == ["0 0"]


def test_slow_close_delays_no_one(tmp_path):
    """Closing a socket with SO_LINGER waits until its data is read, and this peer never reads it."""
    found = say(tmp_path, """
        import socket, time
        from contextlib import suppress
        CLOSED = 30
        def slow():
            server = socket.create_server(("127.0.0.1", 0))
            client = socket.create_connection(server.getsockname())
            held.append(server.accept())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, CLOSED))
            client.setblocking(False)
            try:
                while True:
                    client.send(bytes(1 << 16))
            except BlockingIOError:
                return client.detach()
        def tell(*files, text=b"?"):
            client = connect()
            client.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
            for one in files:
                os.close(one)
            return client
        def time_of(client):
            if client:
                receive(client)
            begun = time.monotonic()
            assert ask(HOST)[0] == 0
            return time.monotonic() - begun < CLOSED / 2
        held = []
        ask(HOST)
        print(time_of(tell(slow())))
        print(time_of(tell(file(MODULE), slow(), text=QUESTION.pack(HOST, b"host", b""))))
        print(time_of(tell(file(MODULE), file(MODULE), slow())))
        print(time_of(tell(text=b"")))
        asked = connect()
        send(asked, HOST)
        with suppress(BrokenPipeError):  # it may have been answered
            asked.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one := slow()]))])
        os.close(one)
        print(time_of(asked))
    """)  # fmt: skip
    assert found == ["True"] * 5


# Programs


ENTERS = (
    "#include <sched.h>\n#include <sys/prctl.h>\n"
    + probing.CLIENT
    + "int main(int argc, char **argv) { ENTER; setup(argv[1]); for (int i = 0; i < 3; i++) run(); check(); }"
)


@pytest.mark.parametrize(
    ("enter", "reason"),
    [
        pytest.param("OK(unshare(CLONE_NEWNET))", "is in another network namespace", marks=as_root),
        pytest.param("OK(unshare(CLONE_NEWUSER))", "another user's", marks=needs_namespaces),
        ("OK(prctl(PR_SET_DUMPABLE, 0))", "a process whose namespaces it can't see"),
    ],
)
def test_refused_program_keeps_running(tmp_path, enter, reason):
    """The program's kernels have no probes, and the last line gives the reason."""
    program = probing.build(tmp_path, ENTERS.replace("ENTER", enter))
    line = hooked.command(
        "run", "-o", tmp_path / "t.mp", "--device", "sim", "-p", "gmem_bytes", "--", program, probing.PTX, quiet=False
    )
    if "DUMPABLE" in enter and os.geteuid() == 0:
        line = ["setpriv", "--bounding-set", "-sys_ptrace", *line]  # otherwise root can see everything
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GPT_SIM_RUN": "all"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 launches with probes, 3 without: gpt-hook's supervisor " in done.stderr
    assert reason in done.stderr
    assert "gpt-hook(1), SUPERVISOR, says which processes it answers" in done.stderr


MAIN_ENDS = (
    probing.CLIENT
    + """
static void *work(void *ptx) { usleep(50000); setup(ptx); for (int i = 0; i < 3; i++) run(); check(); exit(0); }
int main(int argc, char **argv) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, argv[1]);
    pthread_exit(NULL);
}
"""
)


def test_program_outlives_its_main_thread(tmp_path):
    """Once the main thread has ended, /proc/self is empty."""
    program = probing.build(tmp_path, MAIN_ENDS)
    trace = tmp_path / "t.mp"
    words = ("run", "-o", trace, "--device", "sim", "-p", "gmem_bytes", "--", program, probing.PTX)
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GPT_SIM_RUN": "all"}
    line = hooked.command(*words, quiet=False)
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 without: gpt-hook's supervisor refuses it: a process whose namespaces it can't see" in done.stderr


ONLY_SYNCS = """
import os, msgpack
unpacker = msgpack.Unpacker()
while block := os.read(0, 65536):
    unpacker.feed(block)
    for record in unpacker:
        if record.get("kind") == "sync":
            os.write(1, msgpack.packb(record))
"""


def test_pipeline_answers_only_the_sync(tmp_path):
    """The pipeline makes no kernel, even though a supervisor runs it."""
    (tmp_path / "only.py").write_text(ONLY_SYNCS)
    program = probing.build(tmp_path, ENTERS.replace("ENTER", ""))
    line = f"{sys.executable} {tmp_path}/only.py"
    for _ in range(2):  # an empty answer isn't cached
        _, trace = probing.probed(tmp_path, program, "--jit", line)
        assert probing.unprobed(trace) == {"the pipeline returned no kernel for it": 3}
        (tmp_path / "t.mp").unlink()


# The folder


def test_folder_is_removed_with_the_supervisor(tmp_path):
    """The supervisor's folder is removed when it ends, even if TMPDIR is longer than a socket address, missing, or
    relative.
    """
    long = tmp_path / ("long" * 40)
    long.mkdir()
    script = "print(folder.startswith('/tmp/gpt-broker.'), ask(HOST)[0])"
    assert say(tmp_path, f"print(folder.startswith({str(long)!r}), ask(HOST)[0])", TMPDIR=str(long)) == ["True 0"]
    assert say(tmp_path, script, TMPDIR="/nowhere") == ["True 0"]
    assert say(tmp_path, script, TMPDIR="relative") == ["True 0"]
    hooked.wait_until(lambda: not folders(long))


def test_folders_of_a_killed_supervisor_are_removed(tmp_path):
    """The next run removes such a folder, but no folder that's in use or belongs to others."""

    def start(name: str) -> tuple[subprocess.Popen, Path]:
        line = hooked.command("run", "-f", "-o", tmp_path / name, "--device", "sim", "--", "sleep", "1000")
        process = subprocess.Popen(line, env=os.environ | {"TMPDIR": str(tmp_path)})
        hooked.wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        return process, Path(controlling.environment(process.pid, "GPT_HOOK_BROKER"))

    (killed, stale), (other, used) = start("t.mp"), start("u.mp")
    try:
        controlling.kill_supervisor(killed.pid)
        killed.kill(), killed.wait()
        prefix = stale.name[:-6]
        assert prefix.startswith("gpt-broker.") and len(prefix) == 20
        others = [f"{prefix}abcdef", f"{prefix}abcdefg", f"{prefix}abc-ef", "gpt-broker.01234567.abcdef"]
        for name in others:
            (tmp_path / name).mkdir(0o700)
        (tmp_path / others[0] / "mine").touch()
        (tmp_path / f"{prefix}abcdee").symlink_to(tmp_path / others[1])
        assert (stale / "socket").exists()
        say(tmp_path, "")
        hooked.wait_until(lambda: len(folders(tmp_path)) == 6)
        assert not stale.exists() and (used / "socket").exists()
    finally:
        killed.kill(), other.kill()
        killed.wait(), other.wait()
    hooked.wait_until(lambda: not used.exists())


# Who answers


CONNECT = r"""
#include "common/broker.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
char *gpt_make_room(struct gpt_bytes *bytes, size_t size) { return 0; }
int main(int count, char **words) {
    bool enters = !strcmp(words[1], "unmapped");
    if (enters && unshare(CLONE_NEWUSER))
        return 1;
    printf("%d ", gpt_is_user(geteuid(), geteuid()));
    errno = 0;
    bool good = gpt_connect(socket(AF_UNIX, SOCK_SEQPACKET, 0), words[2]);
    puts(good ? "connected" : strerror(errno));
}
"""


@pytest.fixture(scope="module")
def connects(tmp_path_factory):
    source = hooked.ROOT / "runtime"
    sources = [source / "common" / name for name in ("descriptors.c", "fd_passing.c", "own.c", "peers.c")]
    flags = ["-w", "-D_GNU_SOURCE", *hooked.INCLUDE, "-include", source / "portable.h", *sources]
    folder = tmp_path_factory.mktemp("connects")
    return hooked.compile_c(folder / "connects", CONNECT, *flags, prelude=False)


@pytest.fixture
def answering(tmp_path):
    """Yield a folder with a listening socket, like a supervisor's."""
    with peering.socket.socket(peering.socket.AF_UNIX, peering.socket.SOCK_SEQPACKET) as server:
        place = tmp_path / "real" / "folder"
        place.mkdir(0o700, parents=True)
        server.bind(str(place / "socket"))
        server.listen()
        yield place


def test_only_its_own_folder_is_read(connects, answering):
    def connect(name: Path, how: str = "") -> str:
        return subprocess.run([connects, how, name], capture_output=True, text=True, check=True).stdout

    link = answering.parent.parent / "link"
    link.symlink_to(answering.parent)
    assert connect(answering) == "1 connected\n"
    assert connect(link / "folder") == "1 Not a directory\n"
    assert connect(answering.parent / "other") == "1 No such file or directory\n"
    assert connect(Path("gpt-hook.1.planted.1")) == "1 Permission denied\n"
    answering.chmod(0o710)
    assert connect(answering) == "1 Permission denied\n"


@needs_namespaces
def test_no_current_user_without_user_ids(connects, answering):
    done = subprocess.run([connects, "unmapped", answering], capture_output=True, text=True, check=True)
    assert done.stdout == "0 Permission denied\n"


@as_root
def test_folder_of_another_user_is_not_read(connects, answering):
    """A name is free again once its supervisor has ended."""
    os.chown(answering, 65533, -1)
    done = subprocess.run([connects, "", answering], capture_output=True, text=True, check=True)
    assert done.stdout == "1 Permission denied\n"


SQUATS = """
from tests.runtime.peering import *
import sys, time
{}
os.unlink(sys.argv[1])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind(sys.argv[1])
server.listen()
print("ready", flush=True)
sys.stdin.read()
"""


@needs_namespaces
@pytest.mark.parametrize("enters", ["", "unshare(USER | MOUNT)", "libc.prctl(38, 1, 0, 0, 0)"])
def test_a_sandboxed_child_does_not_answer_for_the_supervisor(connects, answering, enters):
    """The child has the same user and may write to the folder, so it puts its own socket there."""
    line = [sys.executable, "-c", SQUATS.format(enters), str(answering / "socket")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(line, cwd=hooked.ROOT, text=True, **pipes) as squatter:
        assert squatter.stdout.readline() == "ready\n"
        done = subprocess.run([connects, "", answering], capture_output=True, text=True, check=True)
        squatter.communicate("")
    assert done.stdout == ("1 Permission denied\n" if enters else "1 connected\n")


def test_the_supervisor_is_the_process_that_clients_look_at(tmp_path):
    """The supervisor isn't the command, which may end before its processes or enter a sandbox of its own."""
    found = say(tmp_path, """
        with connect() as client:
            pid, *_ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        print(open(f"/proc/{pid}/comm").read().strip(), pid != os.getpid())
    """)  # fmt: skip
    assert found == ["gpt-broker True"]


@pytest.mark.parametrize("ends", ["", "_exit(0)", "OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))"])
def test_a_child_is_answered_whatever_became_of_the_command(tmp_path, ends):
    """The child was forked before either process used the driver. At the end, it kills its parent, the command."""
    body = """
        int main(int argc, char **argv) {
            int parent = getpid(), ends[2];
            char byte;
            assert(!pipe(ends));
            if (fork()) {
                close(ends[0]);
                ENDS;
                close(ends[1]);
                pause();
            }
            close(ends[1]);
            assert(!read(ends[0], &byte, 1));
            setup(argv[1]);
            for (int i = 0; i < 3; i++)
                run();
            check();
            if (getppid() == parent)
                kill(parent, SIGKILL);
        }
    """.replace("ENDS", ends)
    body = "#include <signal.h>\n#include <sys/prctl.h>\n" + probing.CLIENT + body
    program = probing.build(tmp_path, body)
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "-p", "gmem_bytes", "--", program)
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GPT_SIM_RUN": "all"}
    done = subprocess.run([*line, probing.PTX], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    trace = hooked.Trace(next(path for path in tmp_path.glob("t.mp*") if path.suffix != ".buffers"))
    assert probing.unprobed(trace) == {}
    assert len(trace.of("probed")) == 3


# gpt-hook ctl


@as_root
def test_root_names_probes_for_another_users_program(tmp_path_factory):
    """Pipelines are passed over a socket in a folder that doesn't belong to root."""
    place = Path(subprocess.check_output(["mktemp", "-d", "/tmp/gpt-other.XXXXXX"], text=True).strip())
    place.chmod(0o777)
    subprocess.run(["cp", "-r", hooked.runtime(), place / "runtime"], check=True)
    program = hooked.compile_c(place / "client", controlling.SERVER)
    line = [place / "runtime" / "gpt-hook", "run", "-q", "-o", place / "t.mp", "--device", "sim", "--disabled", "--"]
    other = ["setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups"]
    if subprocess.run([*other, "sh", "-c", "gpt-asm --version"], cwd="/", capture_output=True, check=False).returncode:
        pytest.skip("another user can't run gpt-asm here, which loads modules for the simulated device")
    line = [*other, *line, program]
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(place), "HOME": str(place), "GPT_SIM_RUN": "none"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*map(str, line)], env=env, text=True, cwd="/", **pipes) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        broker = controlling.environment(process.pid, "GPT_HOOK_BROKER")
        assert Path(broker).stat().st_uid == 65533
        order("--jit", f"touch {place}/run; cat", process.pid, "probe")
        order(process.pid, "enable")
        assert status(process.pid)["probes"].endswith("cat")
        process.communicate("3\n", timeout=60)
        assert process.returncode == 0
    subprocess.run(["rm", "-r", place], check=True)


@needs_namespaces
def test_ctl_in_a_sandbox_gets_an_explanation(tmp_path):
    program = hooked.compile_c(tmp_path / "client", controlling.SERVER)
    server = Server(tmp_path / "t.mp", program, "--disabled", GPT_SIM_RUN="none")
    words = hooked.command("ctl", str(server.pid), "probe", "--jit", "cat")
    script = f"from tests.runtime.peering import *\nlibc.prctl(38, 1, 0, 0, 0)\nos.execv({words[0]!r}, {words!r})"
    done = subprocess.run([sys.executable, "-c", script], cwd=hooked.ROOT, capture_output=True, text=True, check=False)
    refused = f"gpt-hook: error: {server.pid}: gpt-hook's supervisor refuses a process that is confined"
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(refused)
    assert status(server.pid)["probes"] == ""
    server.end()


def test_pipelines_serve_after_ctl_has_ended(tmp_path):
    """A pipeline that gpt-hook ctl named serves the run after ctl has ended. It can be named again later."""
    mark = tmp_path / "runs"
    program = simulated.build(tmp_path / "client", probing.CLIENT + """
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
    """)  # fmt: skip
    cache = {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    server = Server(tmp_path / "t.mp", program, "--disabled", arguments=(probing.PTX,), **cache)
    order(server.pid, "enable")
    for number, name in enumerate(("one", "two", "one")):
        order("--jit", f"echo {name} >>{mark}; cat", server.pid, "probe")
        server.launch(1)
        hooked.wait_until(lambda: server.launch(1) or status(server.pid)["refused"])
        server.launch(1)
        assert status(server.pid)["with_probes"] == 0, number
    reasons = probing.unprobed(server.end())
    assert reasons["the pipeline returned no kernel for it"] >= 3
    assert mark.read_text().split()[:2] == ["one", "two"]
