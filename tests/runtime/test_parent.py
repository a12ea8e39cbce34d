"""-o '|command': gpt-hook is the parent of the program and of the command, and otherwise behaves like the program."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

import pytest

from tests.runtime import hooked
from tests.runtime.clients import DAEMON, LOOP
from tests.runtime.following import launches, live, private_folder, read, segments  # noqa: F401

# Prints the signals that it gets.
SAYS = r"""
#include <signal.h>
static void say(int signal) { dprintf(1, "%d\n", signal); }
int main(void) {
    signal(SIGTERM, say), signal(SIGHUP, say), signal(SIGWINCH, say), signal(SIGUSR1, say), signal(SIGCONT, say);
    dprintf(1, "%d\n", getpid());
    for (;;)
        pause();
}
"""


@pytest.fixture
def says(tmp_path):
    return hooked.compile_c(tmp_path / "says", SAYS)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][0]


@pytest.mark.parametrize(
    ("program", "command", "status"),
    [
        ("exit 3", "cat >/dev/null; exit 5", 3),
        ("exit 0", "cat >/dev/null; exit 5", 5),
        ("kill -9 $$", "cat >/dev/null; exit 5", -9),
        ("exit 0", "cat >/dev/null; kill -9 $$", 137),
        ("exit 0", "exec 0<&-", 0),
    ],
)
def test_the_status(program, command, status):
    assert live(f"|{command}", "sh", "-c", program).wait() == status


def test_missing_command_fails_before_the_program_starts(tmp_path):
    process = live("| nosuch --x", "touch", tmp_path / "ran", stderr=subprocess.PIPE)
    assert process.communicate()[1] == b"gpt-hook: error: nosuch: command not found\n"
    assert process.returncode == 127 and not (tmp_path / "ran").exists()
    # More than a name, so the shell runs it.
    line = live("|A=1 nosuch; (nosuch) || exit 9", "true", stderr=subprocess.PIPE)
    assert b"nosuch" in line.communicate()[1] and line.returncode == 9


def test_standard_streams_that_are_closed_stay_closed(tmp_path):
    for closed in ([0], [0, 1, 2]):
        close = "".join(f"os.close({n});" for n in closed)
        program = [sys.executable, "-c", f"import os, sys; {close} os.execv(sys.argv[1], sys.argv[1:])"]
        seen = (
            "import ctypes, os; x = ctypes.CDLL('libcuda.so.1').cuInit(0); os._exit(os.path.exists('/proc/self/fd/0'))"
        )
        line = hooked.command(
            "run", "-o", f"|cat >{tmp_path}/out.mp", "--device", "sim", "--", sys.executable, "-c", seen
        )
        assert subprocess.run([*program, *line], check=False).returncode == 0
        assert hooked.Trace(tmp_path / "out.mp").names == {"cuInit": 1}


def test_the_program_has_standard_input_and_no_more_than_that_is_held(tmp_path):
    process = live("|cat >/dev/null; cat", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(b"said")
    assert (process.returncode, out, err) == (0, b"said", b"")
    # The program's output ends when the program does, although gpt-hook waits for the command, which ends once the file
    # exists.
    go = tmp_path / "go"
    wait = f"|cat >/dev/null; exec >&- 2>&-; while ! [ -e {go} ]; do sleep 0.01; done"
    process = live(wait, "echo", "said", stdout=subprocess.PIPE)
    assert process.stdout.read() == b"said\n" and process.poll() is None
    go.touch()
    assert process.wait() == 0


def test_signals_are_passed_on(says):
    # Start gpt-hook in its own process group with a parent in the session, because SIGTSTP doesn't stop orphaned
    # groups.
    process = live("|cat >/dev/null", says, stdout=subprocess.PIPE, process_group=0)
    program = int(process.stdout.readline())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGUSR1):
        process.send_signal(number)
        assert int(process.stdout.readline()) == number
    process.send_signal(signal.SIGTSTP)
    assert os.waitpid(process.pid, os.WUNTRACED)[1] == signal.SIGSTOP << 8 | 0x7F and state(program) == "T"
    process.send_signal(signal.SIGCONT)
    assert int(process.stdout.readline()) == signal.SIGCONT
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT


def test_program_stopping_itself_stops_the_tool(says):
    process = live("|cat >/dev/null", says, stdout=subprocess.PIPE)
    program = int(process.stdout.readline())
    os.kill(program, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGCONT)
    assert int(process.stdout.readline()) == signal.SIGCONT
    os.kill(program, signal.SIGQUIT)
    assert process.wait() == -signal.SIGQUIT


def test_sigkill_kills_the_program(says):
    process = live("|cat >/dev/null", says, stdout=subprocess.PIPE)
    program = int(process.stdout.readline())
    process.kill()
    assert process.stdout.read() == b""  # no process has it open any more
    hooked.wait_until(lambda: not os.path.exists(f"/proc/{program}") or state(program) == "Z")


def test_the_terminal(tmp_path, says):
    ours, theirs = pty.openpty()
    line = hooked.command("run", "-o", f"|cat >/dev/null; echo end >{tmp_path}/end", "--device", "sim", "--", says)

    def lead():
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(line, stdin=theirs, stdout=subprocess.PIPE, preexec_fn=lead)
    program = int(process.stdout.readline())
    assert os.getpgid(program) == process.pid == os.tcgetpgrp(ours)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 90, 0, 0))
    assert int(process.stdout.readline()) == signal.SIGWINCH
    os.write(ours, b"\x03")
    assert process.wait() == -signal.SIGINT
    assert (tmp_path / "end").read_text() == "end\n"  # the command is not interrupted
    os.close(ours), os.close(theirs)


def test_job_control(tmp_path, says):
    """In a shell with job control, Ctrl-Z stops everything, `fg` continues it, and Ctrl-C ends only the program."""
    ours, theirs = pty.openpty()
    hook = " ".join(
        hooked.command("run", "-o", f"'|cat >/dev/null; echo end >{tmp_path}/end'", "--device", "sim", "--")
    )
    script = f"set -m; {hook} {says} >{tmp_path}/said; echo stopped $? >&3; fg"

    def lead():
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    out, into = os.pipe()
    shell = subprocess.Popen(
        ["bash", "-c", f"exec 3>&{into}; {script}"],
        stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=lead, pass_fds=[into],
    )  # fmt: skip
    os.close(into)
    said = tmp_path / "said"
    with open(out) as lines:
        hooked.wait_until(lambda: said.exists() and said.read_text())
        os.write(ours, b"\x1a")
        assert lines.readline() == f"stopped {128 + signal.SIGSTOP}\n"
        hooked.wait_until(lambda: said.read_text().endswith(f"\n{signal.SIGCONT}\n"))
        os.write(ours, b"\x03")
    assert shell.wait() == 128 + signal.SIGINT  # like the job's status
    assert (tmp_path / "end").read_text() == "end\n"
    os.close(ours), os.close(theirs)


def test_second_interrupt_ends_the_command(tmp_path):
    up = tmp_path / "up"
    process = live(f"|cat >/dev/null; touch {up}; exec sleep 1000", "true")
    hooked.wait_until(up.exists)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 128 + signal.SIGTERM


def test_daemons_are_left_out(tmp_path):
    go = tmp_path / "go"
    program = hooked.compile_c(tmp_path / "client", DAEMON.replace("GO", str(go)))
    process = live(f"|cat >{tmp_path}/live.mp", program)
    try:
        assert process.wait() == 0  # the daemon is still waiting for us
        (segment,) = segments(read((tmp_path / "live.mp").read_bytes()))
        assert launches(segment) == {} and segment[-1]["kind"] == "end" and segment[0]["pid"] != process.pid
    finally:
        go.touch()


# A daemon that launches faster than its reader reads, for at most a minute or half a GiB.
TIRELESS = r"""
int main(void) {
    begin_trace();
    if (fork()) {
        usleep(50000);
        return 0;
    }
    alarm(60);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){512 << 20, 512 << 20});
    begin();
    for (void *f = kernel("foo"); access("STOP", F_OK);)
        for (int i = 0; i < 1000; i++)
            launch(f);
}
"""


@pytest.mark.full
def test_running_daemon_is_not_awaited(tmp_path):
    stop = tmp_path / "stop"
    source = TIRELESS.replace("STOP", str(stop))
    program = hooked.compile_c(tmp_path / "client", source, "-includesys/resource.h")
    slow = "import sys, time\nwhile sys.stdin.buffer.read(512 << 10):\n    time.sleep(0.05)"
    try:
        assert live(f"|{sys.executable} -c '{slow}'", program).wait(40) == 0
    finally:
        stop.touch()


def test_the_program_is_streamed_as_by_itself(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP)
    assert live(f"|cat >{tmp_path}/live.mp", program, "1000").wait() == 0
    (segment,) = segments(read((tmp_path / "live.mp").read_bytes()))
    assert launches(segment) == {"foo": 1000}
