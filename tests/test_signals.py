"""Signals in a stage's code; tests/test_cli.py and tests/stages test complete stages."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
SCRIPT = """
import os, signal
from gpt.base import signals

def kill(name):
    os.kill(os.getpid(), getattr(signal, name))

signals.catch()
try:
{body}
except signals.Terminated as ended:
    signals.die(ended.number)
"""
HELD = """
    with signals.held():
        kill("SIGTERM")
        print("whole")
    print("not reached")
"""
UNWINDING = """
    try:
        kill("SIGTERM")
    finally:
        kill("SIGHUP")
        with signals.held():
            kill("SIGINT")
        print("whole")
"""


# Like a signal that arrives between Python's last check and the system call: nothing interrupts that call.
UNSEEN = """
    import threading, time
    other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    other.start()
    def send():
        time.sleep(0.1)
        print("whole")
        signal.pthread_kill(other.ident, signal.SIGTERM)
    threading.Thread(target=send).start()
    os.read(os.pipe()[0], 1)
"""


@pytest.mark.parametrize("body", [HELD, UNWINDING, UNSEEN])
def test_no_signal_interrupts_what_it_may_not(body):
    script = SCRIPT.format(body=body.strip("\n"))
    done = subprocess.run([sys.executable, "-u", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-15, "whole\n", "")


@pytest.mark.parametrize("name", tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["scripts"])
def test_an_interrupt_during_the_imports_is_silent(name, tmp_path):
    (tmp_path / "pathlib.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([name, "--version"], capture_output=True, env=env, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-2, b"", b"")


def test_ignored_interrupt_stays_ignored(tmp_path):
    (tmp_path / "pathlib.py").write_text("import os, sys\nos.kill(os.getpid(), 2)\nsys.exit(7)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    line = ["sh", "-c", "trap '' INT; exec gpt-extract"]
    assert subprocess.run(line, env=env, timeout=60, check=False).returncode == 7
