"""Time stamps as nanoseconds."""

import numpy as np
import pytest

from gpt.base.errors import MalformedError
from gpt.stream import records
from gpt.trace.clock import Clock
from tests.trace import forge


def clock(**header):
    return Clock(forge.trace(**header)[0])


def stamps(*values):
    return np.array(values, np.uint64)


def test_nanoseconds_stay_as_they_are():
    found = clock(monotonic=1000)
    assert found.times(stamps(1000, 5000, 1)).tolist() == [1000, 5000, 1]
    assert found.durations(stamps(7)).tolist() == [7.0]
    assert found.realtime(1500) == 10**18 + 500


def test_ticks_are_counted_from_the_header():
    found = clock(monotonic=1000, tsc=50, tsc_hz=2 * 10**9)
    assert found.times(stamps(50, 52, 48, 2050)).tolist() == [1000, 1001, 999, 2000]
    assert found.durations(stamps(4)).tolist() == [2.0]


def test_later_clock_pair_improves_the_rate():
    found = clock(monotonic=0, tsc=0, tsc_hz=10**9)  # measured in a hurry: the rate is really 2 GHz
    found.add(records.make("clock", monotonic=1000, tsc=9000))  # too close to the header
    assert found.ns_per_tick == 1.0
    found.add(records.make("clock", monotonic=10**9, tsc=2 * 10**9))
    assert found.ns_per_tick == 0.5
    found.add(records.make("clock", monotonic=5 * 10**8, tsc=1))  # not farther away than the last one
    found.add(records.make("clock", monotonic=10**10, tsc=0))  # back in time
    assert found.ns_per_tick == 0.5


def test_the_wildest_stamps_are_numbers():
    for found in (clock(), clock(tsc=1 << 63, tsc_hz=1), clock(tsc=0, tsc_hz=(1 << 64) - 1)):
        times = found.times(stamps(0, 1, 1 << 63, (1 << 64) - 1))
        assert times.dtype == np.int64
        assert (np.abs(times) <= 1 << 62).all()
        assert np.isfinite(found.durations(stamps((1 << 64) - 1))).all()
        assert found.realtime(-(1 << 62)) == 0


@pytest.mark.parametrize("header", [{"tsc_hz": 0, "tsc": 1}, {"tsc_hz": 5}, {"monotonic": 1 << 63}])
def test_an_impossible_clock_is_refused(header):
    with pytest.raises(MalformedError, match="header: "):
        clock(**header)
