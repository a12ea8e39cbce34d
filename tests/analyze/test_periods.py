"""Find repetitions in a sequence of launches: compared with a search that tries every length."""

import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt.analyze.lib import periods, rounds
from gpt.analyze.lib.periods import REPEATS, find_periods, make_period, split_units
from gpt.analyze.lib.rounds import find_all
from tests.tiers import examples


def codes(*values):
    return np.array(values, np.uint32)


def told(sequence):
    return [(period.length, period.times, period.covered) for period in find_periods(sequence)]


def count_covered(sequence, length):
    """Return the number of launches in stretches of a period, counted place by place."""
    places, begin = set(), 0
    for at in range(len(sequence) - length + 1):
        if at + length == len(sequence) or sequence[at] != sequence[at + length]:
            if at - begin >= (REPEATS - 1) * length:
                places |= set(range(begin, at + length))
            begin = at + 1
    return len(places)


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ([], []),
        ([5], []),
        ([1, 2, 3, 4, 5], []),
        ([1, 2, 1, 2], []),  # twice is chance
        ([1, 2] * 3, [(2, 3, 6)]),
        ([7] * 9, [(1, 9, 9)]),
        ([9, 8, 7, *[1, 2, 3] * 5, 4], [(3, 5, 15)]),
        ([1, 2, 2, 1] * 5, [(4, 5, 20)]),  # each launch occurs twice in the unit
        ([*[1, 2, 3] * 4, 9, *[1, 2, 3] * 4], [(3, 8, 24)]),  # only the odd one is lost
        ([*[1, 2, 3] * 4, 1, 2, 9, *[1, 2, 3] * 4], [(3, 8, 26)]),
        ([*[1] * 4, 2] * 6, [(5, 6, 30), (1, 24, 24)]),  # layers inside of an iteration
        # There are few iterations: the odd launch costs more than the launches between the layers.
        ([*([1] * 30 + [2]) * 3, 9, 8, *[1] * 30, 7, 6, *([1] * 30 + [2]) * 19], [(31, 22, 682), (1, 690, 690)]),
        ([3, *[1] * 30, 3, 4, 5, *[*[1] * 30, 2] * 3], [(1, 120, 120), (31, 3, 93)]),
    ],
)
def test_units_of_known_sequences(sequence, expected):
    assert told(codes(*sequence)) == expected


@st.composite
def sequences(draw):
    """Return a unit with layers in it, repeated after a warm-up, with odd launches in between."""
    kernels = st.integers(0, draw(st.sampled_from((1, 2, 5, 40))))
    unit = draw(st.lists(kernels, min_size=1, max_size=12))
    unit += draw(st.lists(kernels, max_size=4)) * draw(st.integers(0, 5))
    found = draw(st.lists(kernels, max_size=20))
    for _ in range(draw(st.integers(1, 14))):
        found += unit + [99] * draw(st.sampled_from((0, 0, 0, 0, 0, 1)))
    return codes(*found, *draw(st.lists(kernels, max_size=10)))


@settings(max_examples=examples(40))
@given(sequences())
def test_the_unit_is_that_which_covers_most(sequence):
    covered = {n: count_covered(sequence.tolist(), n) for n in range(1, len(sequence) // REPEATS + 1)}
    most = max(covered.values(), default=0)
    found = find_periods(sequence)
    assert all(period.covered == covered[period.length] for period in found)
    if most >= len(sequence) / 2:  # units with less coverage needn't be found
        assert found and found[0].covered >= 0.9 * most
        best = min(length for length in covered if covered[length] == most)
        if found[0].covered == most:
            assert found[0].length == best


@given(sequences(), st.integers(1, 20))
@example(codes(0, 0, 0, 0), 5)
@settings(max_examples=examples(40))
def test_stretches_are_what_they_say(sequence, length):
    period = make_period(sequence, length)
    assert (period.begins[1:] >= period.ends[:-1]).all()
    for begin, end in zip(period.begins, period.ends, strict=True):
        assert 0 <= begin < end <= len(sequence) and end - begin >= length
        assert np.array_equal(sequence[begin + length : end], sequence[begin : end - length])


RANDOM = np.random.default_rng(1)
TOKEN = np.concatenate([[50, 51], np.tile(RANDOM.integers(1, 20, 7), 12), [52, 53, 54]]).astype(np.uint32)
REQUEST = np.concatenate([RANDOM.integers(60, 90, 300), np.tile(TOKEN, 20)]).astype(np.uint32)
LARGE = 1_000_000
HARD = {
    "random": (RANDOM.integers(0, 200, LARGE).astype(np.uint32), None),
    "one kernel": (np.zeros(LARGE, np.uint32), 1),
    "tokens": (np.tile(TOKEN, LARGE // len(TOKEN)), 89),
    "requests": (np.tile(REQUEST, LARGE // len(REQUEST)), 2080),
    "warm-up": (np.concatenate([RANDOM.integers(0, 99, LARGE // 2), np.tile(TOKEN, 9000)]).astype(np.uint32), 89),
    "odd ones": (np.insert(np.tile(TOKEN, 10_000), RANDOM.integers(0, 800_000, 300), 99), 89),
    "one of 10000": (np.tile(codes(*[1] * 9999, 2), 100), 10_000),
    "training": (np.tile(RANDOM.integers(0, 100, 40_000).astype(np.uint32), 25), 40_000),
}


@pytest.mark.parametrize("name", HARD)
def test_a_million_launches_take_a_moment(name):
    sequence, length = HARD[name]
    began = time.process_time()
    found = find_periods(sequence)
    assert time.process_time() - began < 2  # 20 to 100 ms on an idle machine
    assert (found[0].length if found else None) == length


def rotations(sequence, period):
    """Yield the unit of each stretch, as the least of its rotations."""
    for end in period.ends:
        unit = sequence[end - period.length : end].tolist()
        yield min(tuple(unit[at:] + unit[:at]) for at in range(len(unit)))


@settings(max_examples=examples(60))
@given(st.lists(st.lists(st.integers(1, 3), min_size=3, max_size=3), min_size=1, max_size=5), st.data())
def test_stretches_of_different_units_are_distinguished(units, data):
    sequence = []
    for unit in units * 2:
        sequence += unit * data.draw(st.integers(3, 6)) + unit[: data.draw(st.integers(0, 2))] + [99]
    sequence = codes(*sequence)
    period = make_period(sequence, 3)
    found = split_units(sequence, period)
    assert sum(one.covered for one in found) == period.covered
    assert [one.covered for one in found] == sorted((one.covered for one in found), reverse=True)
    of_each = [set(rotations(sequence, one)) for one in found]
    assert all(len(of) == 1 for of in of_each)
    assert len(set().union(*of_each)) == len(found)


def test_units_are_distinguished_across_blocks(monkeypatch):
    sequence = codes(*[1, 2, 3] * 7, 9, *[2, 3, 1] * 5, 9, *[1, 3, 2] * 6)
    whole = split_units(sequence, make_period(sequence, 3))
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(periods, "BLOCKS", size)
        found = split_units(sequence, make_period(sequence, 3))
        assert [one.begins.tolist() for one in found] == [one.begins.tolist() for one in whole] == [[0, 22], [38]]


def count_units(sequence, unit, first):
    """Return the places where a unit begins, counted place by place."""
    places, at = [], first
    while at + len(unit) <= len(sequence):
        same = sequence[at : at + len(unit)] == unit
        places += [at] if same else []
        at += len(unit) if same else 1
    return places


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 3), max_size=60), st.lists(st.integers(1, 3), min_size=1, max_size=5), st.data())
def test_rounds_are_all_places_where_a_unit_is(sequence, unit, data):
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(sequence)))
        sequence[at:at] = unit * data.draw(st.integers(1, 3))
    first = data.draw(st.integers(0, len(sequence)))
    wanted = count_units(sequence, unit, first)
    before = rounds.BLOCKS
    try:
        for size in (1, 2, 7, before):
            rounds.BLOCKS = size
            found = find_all(codes(*sequence), codes(*unit), first)
            starts = [at for pair in zip(found.begins, found.ends, strict=True) for at in range(*pair, len(unit))]
            assert starts == wanted and found.times == len(wanted)
            assert (found.begins[1:] > found.ends[:-1]).all()
    finally:
        rounds.BLOCKS = before
