"""Turn signals that ask a stage to end into an exception in the main thread, which cleans up half-written files."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LOOK_SECONDS = 0.25
AGAIN_SECONDS = 1.0  # ignore another signal for this long: a shell and a terminal may each send one

_are_held = False
_held: int | None = None  # a signal that arrived while signals were being held
_raised = float("-inf")  # when the last exception was raised


class Terminated(BaseException):
    """Raised if a signal asks the process to end, or for a broken pipe, which has the same effect."""

    def __init__(self, number: int) -> None:
        self.number = number


def catch() -> None:
    """From now until `release`, raise Terminated in the main thread when a signal arrives, between any two operations.

    If a signal arrives just before an operation that blocks, or in another thread, it would only be noticed after the
    operation; a timer interrupts the operation.
    """
    for number in CAUGHT:
        if signal.getsignal(number) != signal.SIG_IGN:  # unless nohup or a background job ignores it
            signal.signal(number, _terminate)
    signal.signal(signal.SIGALRM, _look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)


def release() -> None:
    """Stop the timer, which must be done before the process ends. From now on, a signal ends the process
    immediately.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in CAUGHT:
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def held() -> Iterator[None]:
    """Delay signals until the end of the block, which should be short, or of the outermost such block.

    This protects Python's own locks in threads, futures and pools: an exception at the wrong moment leaves them locked.
    """
    global _are_held, _held
    if _are_held:
        yield
        return
    _are_held = True
    try:
        yield
    finally:
        _are_held = False
        number, _held = _held, None
        if number is not None:
            _raise(number)


def die(number: int) -> int:
    """End the process with the signal itself, so that the shell sees the cause."""
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
    pass  # just waking Python up makes it notice the signal
