"""Distributions compared with numpy's, which keeps all numbers."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.analyze.lib.values import Distribution, make_histogram
from tests.tiers import examples

NUMBERS = {
    "<u1": st.integers(0, 255),
    "<u4": st.integers(0, (1 << 32) - 1),
    "<u8": st.integers(0, (1 << 64) - 1) | st.integers(10**18, 10**18 + 5000),
    "<i8": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-9, 9),
    "<f4": st.floats(width=32),
    "<f8": st.floats(),
}
ARRAYS = st.sampled_from(sorted(NUMBERS)).flatmap(
    lambda code: st.lists(st.lists(NUMBERS[code], max_size=30).map(lambda found: np.array(found, code)), max_size=4)
)


@settings(max_examples=examples(100))
@given(ARRAYS)
def test_numbers_are_those_that_numpy_has(arrays):
    values = Distribution()
    for array in arrays:
        values.add(array)
    every = np.concatenate([*arrays]) if arrays else np.zeros(0)
    known = np.sort(every[~np.isnan(every)])
    assert (values.count, values.nans) == (len(known), len(every) - len(known))
    if not len(known):
        assert values.percentile(0.5) is values.mean is values.least is None
        return
    assert (values.least, values.greatest) == (known[0].item(), known[-1].item())
    if values.whole:
        assert values.total == sum(known.tolist()) and isinstance(values.percentile(0.5), int)
    finite = [one for one in known.tolist() if abs(one) != float("inf")]
    if finite:
        size = sum(map(abs, finite))
        assert values.total == pytest.approx(sum(finite), abs=max(1e-9 * size, 1e-300)) or size == float("inf")
    base = float(arrays[[len(a) > 0 for a in arrays].index(True)].min()) if known.dtype.kind == "u" else 0.0
    for part in (0.01, 0.5, 0.95, 1.0):
        exact = known[max(1, int(np.ceil(part * len(known)))) - 1].item()
        found = values.percentile(part)
        close = min(abs(exact - base), abs(exact)) / 512 + abs(exact) / 2**52
        assert found == exact or abs(found - exact) <= max(close, 2.3e-308)  # subnormal numbers count as 0
    edges, (counts,) = make_histogram([values], 20)
    assert counts.sum() == len(finite)
    if finite:
        assert len(counts) <= 22 and (np.diff(edges) > 0).all() and len(edges) == len(counts) + 1


def test_small_whole_numbers_have_a_column_each():
    values, other = Distribution(), Distribution()
    values.add(np.array([3, 3, 5], np.uint32))
    other.add(np.array([4], np.uint8))
    edges, counts = make_histogram([values, other], 20)
    assert edges.tolist() == [3, 4, 5, 6] and [c.tolist() for c in counts] == [[2, 0, 1], [0, 1, 0]]


def test_columns_double_where_numbers_differ_widely():
    values = Distribution()
    values.add(np.array([0, 1, 1, 1, 1, 2, 900_000], np.uint64))
    edges, (counts,) = make_histogram([values], 40)
    assert edges[:4].tolist() == [0, 1, 2, 4] and counts[:3].tolist() == [1, 4, 1] and counts[-1] == 1


def test_numbers_far_below_the_first_are_as_exact():
    """The first launch reads gigabytes, and the others a few bytes, so the median is a few bytes."""
    values = Distribution()
    values.add(np.array([10**9, 3 * 10**9], np.uint64))
    values.add(np.array([15, 41, 500, 630_103, 10**9 - 5], np.uint64))
    assert [values.percentile(part) for part in (0.01, 0.28, 0.4, 0.71)] == [15, 41, 500, 10**9 - 5]
    assert values.percentile(0.57) == pytest.approx(630_103, rel=1 / 512)
    _, (counts,) = make_histogram([values], 20)
    assert counts.sum() == 7


@settings(max_examples=200)
@given(st.lists(st.floats(allow_nan=False), min_size=1), st.integers(5, 50))
def test_bins_of_numbers_far_apart(numbers, most):
    """The numbers range from the lowest to the highest float. There's no warning."""
    values = Distribution()
    values.add(np.array(numbers))
    finite = [number for number in numbers if math.isfinite(number)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy's, but not ResourceWarnings about other tests' files
        edges, (counts,) = make_histogram([values], most)
    assert counts.sum() == len(finite)
    assert not finite or (len(counts) <= most + 2 and (np.diff(edges) > 0).all())


def test_bins_of_the_least_and_the_greatest_float():
    values, far = Distribution(), float(np.finfo(np.float64).max)
    values.add(np.array([-far, 0.0, far]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy's, but not ResourceWarnings about other tests' files
        edges, (counts,) = make_histogram([values], 4)
    assert counts.tolist() == [1, 0, 1, 1] and edges[2] == 0 and np.isfinite(edges).all()
