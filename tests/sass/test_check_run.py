"""Test that passing a run of words as a whole finds what following its words one by one finds."""

import random

import pytest

from gpt.sass.check_state import TrampolineCheck
from tests.sass.corpus import make_pool
from tests.sass.mutations import KINDS, mutate


@pytest.fixture
def results(monkeypatch):
    """The list to which each trampoline's check adds what it finds, and the states at its ends."""
    found = []
    run = TrampolineCheck.run

    def keep(self):
        faults = run(self)
        found.append((sorted(faults), self.ends, self.reads, self.saved))
        return faults

    monkeypatch.setattr(TrampolineCheck, "run", keep)
    return found


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.full)])
def test_a_run_does_what_its_words_do(results, monkeypatch, count):
    rnd = random.Random(count)
    pool = make_pool()
    passed = TrampolineCheck._pass
    whole = []  # runs that were passed as a whole

    def count_runs(self, run, *others):
        state = passed(self, run, *others)
        whole.extend([run.length] * (state is not None))
        return state

    for _, one in zip(range(count), mutate(rnd, pool, list(KINDS)), strict=False):
        found = []
        for how in (count_runs, lambda *_: None):
            results.clear()
            monkeypatch.setattr(TrampolineCheck, "_pass", how)
            found.append((one.find(), *results))
        assert found[0] == found[1]
    assert sum(whole) > 10 * count
