"""The time for which a process was recorded, if gpt-hook ctl turned recording on and off meanwhile."""

import pytest

from gpt.stream import records
from gpt.trace.kinds import CALLS
from gpt.trace.process import iter_processes
from tests.trace import forge

ON, OFF = True, False


def recorded(*changes, last, **header):
    said = [records.make("recording", on=on, at=at) for at, on in changes]
    (process,) = iter_processes(iter(forge.trace(forge.api(1, "cuMemAlloc"), *said, **header)), CALLS)
    return process.recorded(last)


@pytest.mark.parametrize(
    ("changes", "last", "ns"),
    [
        ([], 900, None),
        ([(0, OFF)], 900, 0),
        ([(0, OFF), (100, ON), (250, OFF)], 240, 150),
        ([(0, OFF), (100, ON), (250, OFF), (400, ON)], 900, 150 + 500),  # recorded until the last call
        ([(300, OFF), (400, ON), (500, OFF)], 450, 300 + 100),  # it began recorded
        # Changes in any order; there's nothing after the last one.
        ([(500, OFF), (100, ON), (0, OFF), (700, ON)], 600, 400),
    ],
)
def test_periods_are_added_up(changes, last, ns):
    assert recorded(*changes, last=last) == ns


def test_ticks_become_nanoseconds():
    assert recorded((50, OFF), (70, ON), (170, OFF), last=0, tsc=50, tsc_hz=2 * 10**9) == 50
