"""Calls that are found by thread and start."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpt.trace.find_calls import find_calls

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20)


def find(wanted, known):
    columns = (np.array(pairs, np.uint64).reshape(-1, 2) for pairs in (wanted, known))
    wanted, known = columns
    return find_calls(wanted[:, 0], wanted[:, 1], known[:, 0], known[:, 1]).tolist()


@given(PAIRS, PAIRS)
def test_each_call_is_found_by_both_numbers(wanted, known):
    places = {pair: at for at, pair in enumerate(known)}
    assert find(wanted, known) == [places.get(pair, -1) for pair in wanted]


def test_numbers_of_64_bits_are_compared_exactly():
    large = 2**63 + 1
    assert find([(large, 7), (large - 1, 7), (7, large)], [(large, 7), (7, large + 1)]) == [0, -1, -1]
    times = np.array([-5, 3])  # the clock began later
    assert find_calls(np.array([1, 1], np.uint32), times, np.array([1]), times[:1]).tolist() == [0, -1]
