"""The clocks of SMs are aligned by pairs. Whatever the clocks are, times are right within the printed bound."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpt.trace
from gpt.analyze.lib.over_time import count_warps
from gpt.analyze.lib.sm_clocks import SmClocks
from gpt.timeline.saved import Ran
from gpt.trace.rooms import ClockPairs
from tests.analyze.blocks import trace
from tests.tiers import examples
from tests.trace import forge

SMS = 16  # numbers of SMs, of which a launch uses some
WHOLE = 3  # ns: clocks are whole numbers
EPOCH = 1_700_000_000_000_000_000


class Sm:
    """An SM: its clock at its first pair is `skew`, and its rate is `rates` clocks per ns from one pair to the next."""

    def __init__(self, number, skew, rates, times):
        self.number, self.times = number, np.array(times)
        self.clocks = skew + np.concatenate([[0], np.cumsum(np.diff(times) * rates[: len(times) - 1])])
        self.rate = rates[-1]

    def time_at(self, clock):
        """Return the true time at a clock."""
        inside = np.interp(clock, self.clocks, self.times)
        before, after = np.minimum(clock - self.clocks[0], 0), np.maximum(clock - self.clocks[-1], 0)
        return inside + (before + after) / self.rate


def align(sms, step, phase, beyond=0, highest=1e9):
    """Return the aligned clocks, and for each SM some clocks and the true times at them."""
    first, last = np.full(SMS, np.iinfo(np.uint64).max, np.uint64), np.zeros(SMS, np.uint64)
    rows, asked = [], []
    for sm in sms:
        ends = max(0, int(sm.clocks[0]) - beyond), int(sm.clocks[-1]) + beyond
        first[sm.number], last[sm.number] = ends
        rows += [(sm.number, int(clock), EPOCH + int((time + phase) // step * step))
                 for clock, time in zip(sm.clocks, sm.times, strict=True)]  # fmt: skip
        clocks = np.linspace(*ends, 50).astype(np.uint64)
        asked.append((sm.number, clocks, sm.time_at(clocks.astype(float))))
    found = np.array(rows, np.uint64)
    pairs = ClockPairs(found[:, 0].astype(np.uint32), found[:, 1], found[:, 2])
    return SmClocks(pairs, first, last, highest), asked


def find_error(clocks, asked):
    """Return the largest error in the difference between two SMs' times."""
    wrong = [clocks.times(np.full(len(at), sm), at) - true for sm, at, true in asked]
    return max(one.max() - other.min() for one in wrong for other in wrong)


@st.composite
def launches(draw, swing, equal=False):
    """Draw the SMs of a launch: skews of any size, and rates that differ by up to `swing`, as a share of the rate."""
    base = draw(st.floats(0.5, 2.5))
    rate = st.floats(base * (1 - swing), base * (1 + swing))
    long, sms = draw(st.floats(20_000, 10_000_000)), []
    for number in draw(st.lists(st.integers(0, SMS - 1), min_size=2, max_size=8, unique=True)):
        inner = draw(st.lists(st.floats(0.02, 0.98), max_size=6))
        times = [long * share for share in sorted([0, *inner, 1])]
        one = draw(rate)
        rates = [one if equal else draw(rate) for _ in times[1:]]
        sms.append(Sm(number, draw(st.integers(1 << 20, 1 << 45)), rates, times))
    return sms


STEP, PHASE = st.sampled_from([1, 8, 32, 1000, 1024]), st.floats(0, 1024)


@settings(max_examples=examples(300), deadline=None)
@given(launches(swing=0.05), STEP, PHASE)
def test_between_pairs_times_are_right_within_the_bound_even_if_rates_change(sms, step, phase):
    clocks, asked = align(sms, step, phase)
    assert clocks.rate and clocks.fit.step >= step
    assert find_error(clocks, asked) <= clocks.fit.bound + WHOLE


@settings(max_examples=examples(300), deadline=None)
@given(launches(swing=0.01, equal=True), STEP, PHASE, st.integers(0, 1_000_000))
def test_beyond_the_pairs_the_bound_includes_the_error_of_the_rate(sms, step, phase, beyond):
    clocks, asked = align(sms, step, phase, beyond)
    assert find_error(clocks, asked) <= clocks.fit.bound + WHOLE


@pytest.mark.parametrize("step", [32, 1000])
def test_clocks_without_drift_are_aligned_to_about_a_step(step):
    random = np.random.default_rng(1)
    sms = [Sm(at, int(random.integers(1 << 40)), [1.755] * 99, np.sort(random.uniform(0, 1e6, 100))) for at in range(9)]
    clocks, asked = align(sms, step, 5)
    assert clocks.rate == pytest.approx(1 / 1.755, rel=1e-4)
    assert step <= clocks.fit.bound <= 2.6 * step
    assert find_error(clocks, asked) <= step


def test_drift_makes_the_bound_larger():
    """One clock runs 1 % faster than the others for half of a millisecond."""
    even = [Sm(at, 1 << 30, [1.5, 1.5], [32 * at, 500_000, 1_000_000]) for at in range(3)]
    odd = Sm(3, 1 << 30, [1.515, 1.5], [0, 500_000, 1_000_000])
    without, _ = align(even, 32, 0)
    clocks, asked = align([*even, odd], 32, 0)
    assert without.fit.bound < 100 and 2500 < find_error(clocks, asked) <= clocks.fit.bound + WHOLE < 15_000


def test_one_pair_per_sm_uses_the_highest_rate():
    """One pair per SM gives no rate, so the device's highest rate is used. The error is then only known at the
    pairs.
    """
    once = [Sm(at, 1000 * at, [2.0], [40 * at]) for at in range(4)]
    assert align(once, 32, 0)[0].rate is None
    clocks, asked = align(once, 32, 0, highest=0.5)
    assert clocks.rate == 0.5 and find_error(clocks, asked) <= clocks.fit.bound
    assert align(once, 32, 0, beyond=9, highest=0.5)[0].fit.bound is None
    assert align(once, 1 << 30, 0, highest=0.5)[0].fit.bound is None  # all in one step
    first, last = np.zeros(SMS, np.uint64), np.full(SMS, 9, np.uint64)  # SMs without a pair
    pairs = ClockPairs(np.zeros(2, np.uint32), np.array([5, 900], np.uint64), np.array([7, 900], np.uint64))
    assert SmClocks(pairs, first, last, math.inf).rate is None
    none = ClockPairs(np.full(2, 1 << 31, np.uint32), *2 * [np.array([5, (1 << 64) - 1], np.uint64)])
    assert SmClocks(none, first, last, 0.5).rate is None


def test_a_timeline_says_how_far_off_resident_warps_are(tmp_path):
    """The two SMs' clocks differ by 2^40, and their blocks take turns."""
    blocks = [(1000 * at + (1 << 40) * (at % 2), 900, at % 2) for at in range(40)]
    (tmp_path / "t.mp").write_bytes(forge.pack(trace(blocks)))
    (launch,) = gpt.trace.open(tmp_path / "t.mp").launches
    (counter,) = count_warps([Ran(launch, 0, 5)])
    assert re.fullmatch(r"GPU 0 resident warps \(SMs within \S+\)", counter.name)
    alone = [(start % (1 << 40), took, 0) for start, took, _ in blocks]
    (tmp_path / "t.mp").write_bytes(forge.pack(trace(alone)))
    (launch,) = gpt.trace.open(tmp_path / "t.mp").launches
    (counter,) = count_warps([Ran(launch, 0, 5)])
    assert counter.name == "GPU 0 resident warps"
