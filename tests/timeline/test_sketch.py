"""A picture of a long trace is added up from chunks."""

import numpy as np
import pytest

from gpt.timeline.sketch import SPAN, Row
from gpt.timeline.tracks import Lanes, find_lanes
from gpt.trace import spill
from tests.timeline.made import call, draw, draw_data, launch, pushed, ran, segment
from tests.trace.long import write_long


@pytest.mark.parametrize("nested", [True, False])
def test_lanes_do_not_depend_on_chunks(nested):
    random = np.random.default_rng(3)
    begin = np.sort(random.integers(0, 3000, 900))
    end = begin + random.integers(0, 12, 900)
    order = np.lexsort((-end, begin))
    begin, end = begin[order], end[order]
    whole = find_lanes(begin, end, nested)
    assert whole.max() > 1
    for parts in (7, 900):
        lanes = Lanes(nested)
        split = zip(np.array_split(begin, parts), np.array_split(end, parts), strict=True)
        found = [lanes.find(*part) for part in split]
        assert np.array_equal(np.concatenate(found), whole)


def test_time_that_several_spans_cover_counts_once():
    spans = np.array([(0, 30, 0, 0), (10, 20, 0, 0), (15, 50, 1, 0), (25, 45, 0, 0), (60, 60, 0, 0)], SPAN)
    edges = np.linspace(0, 100, 11)
    for size in (1, 2, 5):
        row = Row(np.zeros((2, 10)))
        for at in range(0, 5, size):
            row.add(spans[at : at + size], edges)
        assert row.took[0].tolist() == [10, 10, 10, 10, 5, 0, 0, 0, 0, 0]
        assert row.took[1].tolist() == [0, 5, 10, 10, 10, 0, 0, 0, 0, 0]


@pytest.mark.full
def test_the_text_does_not_depend_on_chunks(tmp_path, monkeypatch):
    path = tmp_path / "long.mp"
    write_long(path, 20_000, ranges=40, ioctls=True, probed=3)
    expected = draw_data("ascii", path.read_bytes())
    assert expected.count(b"\n") > 10
    monkeypatch.setattr(spill, "BATCH", 700)
    monkeypatch.setattr(spill, "ROOM", 300)
    monkeypatch.setattr(spill, "LEAST", 16)
    assert draw_data("ascii", path.read_bytes()) == expected


def test_memory_that_many_calls_allocate_is_not_drawn(monkeypatch):
    monkeypatch.setattr("gpt.analyze.timeline.MANY", 1)
    inner = launch(10, 5, 1), ran(16, 20, 1, 10), *pushed(1, "step", 0, 50)
    trace = segment(call("cuMemAlloc", 0, 2, size=4096), *inner)
    assert b"GPU 0 memory" in draw("ascii", trace)
    text = draw("ascii", trace, segment(call("cuMemAlloc", 0, 2, size=4096), pid=11))
    assert b"GPU 0 memory" not in text
    assert b"incomplete: memory is not drawn: over 1 calls allocate and free it" in text
    assert b"GPU 0 memory" in draw("chrome", trace, segment(call("cuMemAlloc", 0, 2, size=4096), pid=11))
