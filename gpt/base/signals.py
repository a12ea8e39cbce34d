"""Signals that ask a stage to end: an exception in the main thread, whose unwinding removes what is half written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LOOK_SECONDS = 0.25
AGAIN_SECONDS = 1.0  # for which nothing interrupts the unwinding: signals come in twos, from a shell and a terminal

_are_held = False
_held: int | None = None  # the signal that came meanwhile
_raised = float("-inf")  # when the last one was raised


class Terminated(BaseException):
    """A signal asks the process to end, or would have."""

    def __init__(self, number: int) -> None:
        self.number = number


def catch() -> None:
    """From now on, until `release`, a signal raises Terminated in the main thread, between any two operations.

    One that comes just before an operation that waits, or to another thread, would wait as long; a timer ends the wait.
    """
    for number in CAUGHT:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a job in the background
            signal.signal(number, _terminate)
    signal.signal(signal.SIGALRM, _look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)


def release() -> None:
    """Ends the timer, which has to be before the process ends. A signal ends the process from now on."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in CAUGHT:
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def held() -> Iterator[None]:
    """A signal waits for the end of the block, which should be soon.

    For locks of Python's own, as in threads, futures and pools: one that is taken at the wrong moment stays taken.
    """
    global _are_held, _held
    _are_held = True
    try:
        yield
    finally:
        _are_held = False
        number, _held = _held, None
        if number is not None:
            _raise(number)


def die(number: int) -> int:
    """Ends the process by the signal itself, so that the shell sees what happened."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _terminate(number: int, frame: FrameType | None) -> None:
    global _held
    if _are_held:
        _held = number
    else:
        _raise(number)


def _raise(number: int) -> None:
    global _raised
    now = time.monotonic()
    if now - _raised > AGAIN_SECONDS:
        _raised = now
        raise Terminated(number)


def _look(number: int, frame: FrameType | None) -> None:
    pass  # Python has looked by now
