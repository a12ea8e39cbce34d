"""Signals as a stage meets them; what a whole stage does of them is in tests/test_cli.py and tests/stages."""

import subprocess
import sys

HELD = """
import os, signal
from gpt import signals

signals.catch()
try:
    with signals.held():
        os.kill(os.getpid(), signal.SIGTERM)
        print("whole")
    print("not reached")
except signals.Terminated as ended:
    signals.die(ended.number)
"""


def test_a_signal_waits_for_what_it_may_not_interrupt():
    done = subprocess.run([sys.executable, "-u", "-c", HELD], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-15, "whole\n", "")


UNWINDING = """
import os, signal
from gpt import signals

signals.catch()
try:
    try:
        os.kill(os.getpid(), signal.SIGHUP)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        with signals.held():
            os.kill(os.getpid(), signal.SIGINT)
        print("whole")
except signals.Terminated as ended:
    signals.die(ended.number)
"""


def test_a_second_signal_does_not_interrupt_what_the_first_began():
    done = subprocess.run([sys.executable, "-u", "-c", UNWINDING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-1, "whole\n", "")
