"""Executables that a server forks, as tests start them: they act as new processes do."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest

from tests import loaded, tiers
from tests.runtime import hooked

pytestmark = pytest.mark.skipif(tiers.FULL, reason="slow tests use real executables")

COMMANDS = [
    ["gpt-extract", "--version"],
    ["gpt-extract", "nothing"],
    ["gpt-dump"],
    ["gpt-asm", "--arch", "sm_1"],
    ["gpt-ptx-probe", "-p", "nothing"],
    ["sh", "-c", "gpt-extract nothing | gpt-dump --json"],
    ["sh", "-c", "trap '' INT; kill -INT $$; gpt-extract - <&-"],
    ["sh", "-c", "umask 077; gpt-patch -o out <&- 3>&1 >&2 2>&3"],
]


def run(command, folder, **variables):
    done = subprocess.run(command, env=os.environ | variables, cwd=folder, input=b"x", capture_output=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_it_does_what_a_new_process_does(command, tmp_path):
    assert run(command, tmp_path) == run(command, tmp_path, **{loaded.VARIABLE: "/nowhere"})


def test_the_server_runs_it(tmp_path):
    """Here is no executable that could be run instead."""
    shutil.copy(loaded.install() / "bin" / "forked", tmp_path / "gpt-extract")
    command = [tmp_path / "gpt-extract", "--version"]
    assert run(command, tmp_path) == (0, b"")
    assert run(command, tmp_path, **{loaded.VARIABLE: "/nowhere"})[0] == 127


@pytest.mark.skipif("GPT_RUNTIME" in os.environ, reason="GPT_RUNTIME names another runtime")
def test_pipelines_of_the_hook_ask_the_server():
    assert hooked.runtime().is_relative_to(loaded.install())


def test_variables_that_python_reads_need_a_new_process(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; print('new', file=sys.stderr)")
    command = ["gpt-extract", "--version"]
    assert (run(command, tmp_path), run(command, tmp_path, PYTHONPATH=str(tmp_path))) == ((0, b""), (0, b"new\n"))


def test_limits_hold(tmp_path):
    """Python doesn't start in 9 MB of address space."""
    assert run(["sh", "-c", "ulimit -v 9000; exec gpt-extract --version"], tmp_path)[0] != 0


def test_rights_hold(tmp_path):
    """Without rights, root can't read what belongs to somebody else."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "gpt-extract", "secret"]
    os.chown(tmp_path / "secret", 12345, 12345)
    assert run(command, tmp_path) == (4, b"gpt-extract: error: secret: Permission denied\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_both_processes(number):
    theirs, ours = os.pipe()
    with subprocess.Popen(["gpt-dump"], stdin=theirs, stderr=subprocess.PIPE) as process:
        os.write(ours, b"\x8a")
        while unread(theirs):
            time.sleep(0.01)
        os.close(theirs)
        process.send_signal(number)
        assert (process.wait(60), process.stderr.read()) == (-number, b"")
    with pytest.raises(BrokenPipeError):  # nobody has the other end
        while True:
            os.write(ours, b"x")
            time.sleep(0.01)
    os.close(ours)


def unread(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
