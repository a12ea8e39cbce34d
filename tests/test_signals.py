"""Signals as a stage meets them; what a whole stage does of them is in tests/test_cli.py and tests/stages."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal
from gpt import signals

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


# As one that comes between Python's last look and the system call: nothing interrupts that.
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
