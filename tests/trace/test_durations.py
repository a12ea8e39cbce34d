"""Percentiles from a histogram, compared with the sorted durations."""

import math

import numpy as np
import pytest

from gpt.trace.durations import Durations


def exact(values, part):
    """Return the percentile by nearest rank."""
    return sorted(values)[max(1, math.ceil(part * len(values))) - 1]


RANDOM = np.random.default_rng(7)
SAMPLES = {
    "one": [1234.5],
    "two": [1.0, 1e9],
    "equal": [777.0] * 50,
    "small": np.arange(1.0, 300.0),
    "lognormal": RANDOM.lognormal(9, 3, 20000) + 1,
    "uniform": RANDOM.uniform(1, 1e12, 20000),
    "two peaks": np.concatenate([RANDOM.normal(1000, 10, 5000), RANDOM.normal(1e8, 1e6, 5000)]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_percentiles_are_within_what_is_promised(name):
    values = np.array(SAMPLES[name])
    found = Durations()
    for part in np.array_split(values, 7):
        found.add(part)
    assert found.count == len(values)
    assert found.total == pytest.approx(values.sum())
    assert found.largest == values.max()
    for part in (0.01, 0.5, 0.9, 0.99, 1.0):
        assert found.percentile(part) == pytest.approx(exact(values, part), rel=0.004)


def test_merging_equals_adding():
    first, second, both = Durations(), Durations(), Durations()
    first.add(np.array([1.0, 5.0, 9.0]))
    second.add(np.array([100.0, 2.0]))
    both.add(np.array([1.0, 5.0, 9.0, 100.0, 2.0]))
    first.merge(second)
    for part in (0.1, 0.5, 0.99):
        assert first.percentile(part) == both.percentile(part)
    assert (first.count, first.total, first.largest) == (5, 117.0, 100.0)


def test_nothing_and_the_extremes():
    found = Durations()
    assert found.percentile(0.5) == 0.0
    found.add(np.array([0.0, 0.1]))
    assert found.percentile(0.5) <= 1.01
    found.add(np.array([1e28] * 10))
    assert found.largest == 1e28 and 1 <= found.percentile(0.5) <= 1e28
