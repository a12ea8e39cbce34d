"""A killed program: calls and probe data up to 200 ms before the kill are in the trace."""

import random

import pytest

from gpt.trace.probes import Probes
from tests.runtime import hooked
from tests.runtime.killing import ENDLESS, KINDS, LATE, complete, kill_one
from tests.runtime.probing import build, in_both_forms
from tests.tiers import every


def count_pending(trace):
    """Return how many launches of a process lack buffers, as analyses count them."""
    found = Probes(None)
    for record in trace.records:
        if record["kind"] in ("map", "kernel", "probed", "buffer"):
            found.add(record)
        elif record["kind"] == "launches":
            found.counted.add(record)
    for _ in found.take():
        pass
    return found.pending


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    return build(tmp_path_factory.mktemp("endless"), ENDLESS)


@in_both_forms
@pytest.mark.parametrize("kind", every(2, KINDS))
def test_launches_that_ended_before_a_kill_are_in_the_trace(tmp_path, endless, kind):
    """A busy machine may stop the writer for some time, so one of three kills may lose more."""
    late = []
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        killed, times, trace = kill_one(folder, endless, kind, random.uniform(0.3, 1.2))
        there, had_ended = len(complete(trace)), int((times < killed - LATE).sum())
        assert had_ended > 20 and "end" not in {r["kind"] for r in trace.records}
        if kind != "graph":
            calls = [c for c in trace.calls if c["name"] == "cuLaunchKernel" and c["duration"]]
            counted = sum(row["probed"] for record in trace.of("launches") for row in hooked.rows(record))
            assert counted >= int((times < killed).sum()) and len(calls) - counted in (0, 1)
            assert count_pending(trace) == counted - there
        late.append(had_ended - there)
    assert sorted(late)[1] <= 0, late
