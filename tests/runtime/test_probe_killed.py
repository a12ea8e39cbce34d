"""A killed program: calls and probe data up to 200 ms before the kill are in the trace."""

import random

import pytest

from tests.runtime.killing import ENDLESS, KINDS, LATE, complete, kill_one
from tests.runtime.probing import build, in_both_forms


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    return build(tmp_path_factory.mktemp("endless"), ENDLESS)


@in_both_forms
@pytest.mark.parametrize("kind", KINDS)
def test_what_had_ended_before_is_in_the_trace(tmp_path, endless, kind):
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
            assert len(calls) >= int((times < killed).sum()) and there <= len(trace.of("probed"))
        late.append(had_ended - there)
    assert sorted(late)[1] <= 0, late
