"""Reading rows in batches finds the same first launches as reading all rows at once."""

import numpy as np
import pytest

from gpt.trace import loading

ROW = [("begin", "<u8"), ("duration", "<u8"), ("call", "<u8"), ("function", "<u4"), ("thread", "<u4"),
       ("device", "<u4")]  # fmt: skip


@pytest.mark.parametrize("bits", [0, 3, 20])  # with few bits, most launches collide
@pytest.mark.parametrize("seed", range(4))
def test_batches_find_the_same_launches_as_all_rows(bits, seed, monkeypatch):
    monkeypatch.setattr(loading, "MAX_BITS", bits)
    random = np.random.default_rng(seed)
    rows = np.zeros(600, ROW)
    for name, most in (("function", 6), ("thread", 4), ("device", 2)):
        rows[name] = random.integers(0, most, len(rows))
    rows["call"] = random.permutation(len(rows))  # one row has no call
    rows["begin"] = random.permutation(len(rows)) + 1000
    found = loading.FirstLaunches()
    for batch in np.split(rows, [1, 1, 50, 200, 450]):
        found.add(batch)
    wanted = {}
    for row in rows[(rows["function"] != 0) & (rows["call"] != 0)].tolist():
        key = row[3:]
        wanted[key] = min(wanted.get(key, row), row, key=lambda one: one[2])
    names = [name for name, _ in ROW]
    assert sorted(found.rows[names].tolist()) == sorted(wanted.values())
    places = found.rows["row"] + np.array([0, 1, 1, 50, 200, 450])[found.rows["batch"]]
    assert rows[places].tolist() == found.rows[names].tolist()


def test_rows_without_thread_and_device():
    rows = np.array([(9, 1, 5, 1), (8, 1, 4, 1), (7, 1, 3, 2)], [(name, "<u8") for name in ("begin", "duration")]
                    + [("call", "<u8"), ("function", "<u4")])  # fmt: skip
    found = loading.FirstLaunches()
    found.add(rows[:1])
    found.add(rows[1:])
    assert sorted(found.rows[["call", "function"]].tolist()) == [(3, 2), (4, 1)]
