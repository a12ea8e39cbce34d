"""Analyses that read calls in batches give the same answer for any batch size."""

from itertools import pairwise

import numpy as np
import pytest

from gpt.analyze.lib import numbers, periods
from gpt.analyze.lib.numbers import Numbers
from gpt.analyze.lib.sequence import NextLaunches
from gpt.trace import calls_store, ranges, spill
from tests import tiers
from tests.analyze.asked import answers
from tests.analyze.segments import make_segments


@pytest.fixture()
def little(monkeypatch):
    """Reduce the number of rows that are kept in memory to a few."""
    few = {spill: {"IN_MEMORY": 100, "BATCH": 16, "ROOM": 16, "LEAST": 2}, calls_store: {"BLOCK": 3},
           ranges: {"MANY": 4}, numbers: {"PENDING": 8, "SMALL": 2, "FEW": 4},
           periods: {"BLOCKS": 4, "BLOCK": 5}}  # fmt: skip

    def change(on):
        for module, values in few.items():
            for name, value in values.items():
                if on:
                    monkeypatch.setattr(module, name, value)
        if not on:
            monkeypatch.undo()

    return change


@pytest.mark.parametrize("seed", tiers.every(30, range(60)))
def test_answers_do_not_depend_on_the_chunk_size(seed, little):
    segments = make_segments(seed)
    for name in ("gaps", "stages", "nvtx", "idle", "startup", "launches"):
        whole = answers(name, *segments)
        little(True)
        parts = answers(name, *segments)
        little(False)
        assert (parts.rows, parts.verdicts) == (whole.rows, whole.verdicts), name
        assert whole.rows or name != "gaps"  # a random trace may have no ranges


def test_rows_are_merged_in_order(little):
    random_ = np.random.default_rng(1)
    little(True)
    for size in (0, 1, 15, 16, 17, 500):
        for most in (1, 3, 1000):
            rows = np.zeros(size, [("key", "<i8"), ("place", "<i8")])
            rows["key"], rows["place"] = random_.integers(-most, most, size), np.arange(size)
            found = spill.Sorted(spill.Aside(), rows.dtype, "key")
            for at in range(0, size, 7):
                found.add(rows[at : at + 7])
            chunks = list(found)
            assert np.array_equal(np.concatenate([rows[:0], *chunks]), rows[np.argsort(rows["key"], kind="stable")])
            lasts = [(int(chunk["key"][0]), int(chunk["key"][-1])) for chunk in chunks]
            assert all(before[1] < after[0] for before, after in pairwise(lasts))


def test_a_tape_is_an_array(little):
    little(True)
    tape, rows = spill.Tape(spill.Aside(), np.int64), np.arange(83)
    for at in range(0, 83, 9):
        tape.append(rows[at : at + 9])
    assert len(tape) == 83 and np.array_equal(np.concatenate(list(tape)), rows)
    for low, high in ((0, 83), (3, 4), (15, 17), (79, 90), (83, 99), (40, 20)):
        assert np.array_equal(tape[low:high], rows[low:high])
    places = np.array([0, 1, 15, 16, 47, 48, 80, 82])
    assert np.array_equal(tape.take(places), places) and not len(tape.take(places[:0]))


@pytest.mark.parametrize("size", [1, 2, 99, 100, 101, 1000])
def test_percentiles_are_exact(size, little):
    little(True)
    random_ = np.random.default_rng(size)
    for values in (random_.lognormal(9, 3, size).astype(np.int64), random_.integers(0, 3, size), np.full(size, 7)):
        found = Numbers()
        for part in np.array_split(values, 5):
            found.add("one", part)
            found.add("other", part[:3])
        for percent in (1, 50, 99, 100):
            assert found.percentile("one", percent) == np.percentile(values, percent, method="inverted_cdf")
        assert (found.total("one"), found.most("one"), found.count("one")) == (values.sum(), values.max(), size)
        assert found.median("one") == np.median(values)


def test_sums_of_numbers_are_exact():
    found = Numbers()
    found.add(1, np.full(100, (1 << 62) - 1))
    assert found.total(1) == 100 * ((1 << 62) - 1)


def after_waits(calls):
    """Return the ns from each wait to the next launch. Calls are (start, end, True for a launch)."""
    found, waited = [], []
    for start, end, launch in calls:
        if launch:
            if waited and min(waited) < start:
                found.append(start - min(waited))
            waited = []
        elif not any(begin < start < until for begin, until, other in calls if other):
            waited.append(end)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_waits_before_a_launch_that_comes_much_later(seed):
    """Some waits end after further calls have begun."""
    random_ = np.random.default_rng(seed)
    starts = np.cumsum(random_.integers(1, 5, 300))
    launch = random_.random(300) < random_.choice([0.02, 0.5])
    ends = starts + random_.choice([1, 2, 100, 500], 300, p=random_.dirichlet([1, 1, 1, 1]))
    found, next_ = [], NextLaunches()
    edges = [0, *np.sort(random_.choice(np.arange(1, 300), 40, replace=False)).tolist(), 300]
    for low, high in pairwise(edges):
        mine, begin, end = launch[low:high], starts[low:high], ends[low:high]
        waits, launches = next_.find(begin[mine], end[mine], begin[~mine], end[~mine])
        found += (launches - waits).tolist()
    assert found == after_waits([*zip(starts.tolist(), ends.tolist(), launch.tolist(), strict=True)])
