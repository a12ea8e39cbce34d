"""Packed rows as arrays: their contents, and rejected ones."""

import io

import numpy as np
import pytest

from gpt.base.errors import MalformedError
from gpt.stream import jsonl
from gpt.trace import rows
from tests.trace import forge

VALUES = [(100, 5, 1, 0), (200, 0, 2, -3), (300, 7, 1, 600)]


def collected(*found, **options):
    collector = rows.Collector(**options)
    for record in found:
        collector.add(record)
    return [(threads.tolist(), array) for threads, array in collector.take()]


def test_rows_are_those_that_were_packed():
    ((threads, found),) = collected(forge.calls(VALUES, thread=9))
    assert threads == [9] * 3
    assert [tuple(row) for row in found[["start", "duration", "api", "result"]].tolist()] == VALUES


def test_batches_of_one_layout_become_one_array_and_keep_their_threads():
    memory = [(400, 1, 3, 0, 0x10, 0x20, 4096, 0)]
    found = collected(
        forge.calls(VALUES, thread=1), forge.calls(memory, forge.MEMORY, thread=1), forge.calls(VALUES[:1], thread=2)
    )
    assert [threads for threads, _ in found] == [[1, 1, 1, 2], [1]]
    assert found[1][1]["bytes"].tolist() == [4096]


def test_rows_that_were_not_used_are_left_out():
    torn = (0, 0, 7, 0)  # a thread was killed while it wrote the row
    ((_, found),) = collected(forge.calls([(0, 0, 0, 0), VALUES[0], torn, (0, 0, 0, 0)]))
    assert found["start"].tolist() == [100]
    assert not collected(forge.calls([(0, 0, 0, 0)] * 4))


def test_a_line_of_json_at_time_0_counts():
    line = {"kind": "call", "thread": 1, "start": 0, "duration": 2000, "api": 1, "result": 0}
    ((_, found),) = collected(line, line | {"start": 5})
    assert found["start"].tolist() == [0, 5]


def test_lines_of_json_give_the_rows_that_they_were():
    for layout, values in ((forge.CALL, VALUES), (forge.LAUNCH, [forge.launch(1 << 60, 2, 3, 4)])):
        record = forge.calls(values, layout, thread=3)
        ((_, direct),) = collected(record)
        lines = "".join(f"{line}\n" for part in forge.trace(record) for line in jsonl.lines(part))
        read = list(jsonl.read_lines(io.BytesIO(lines.encode()), "x"))
        ((threads, found),) = collected(*(r for r in read if r["kind"] == "call"))
        assert threads == [3] * len(values)
        assert found.dtype.names == tuple(n for n in rows.CALL | rows.ARGUMENTS if n in direct.dtype.names)
        for name in found.dtype.names:
            assert found[name].tolist() == direct[name].tolist()


def test_fields_in_any_order_with_others_ignored():
    layout = {"result": "i32", "api": "u32", "mine": "u16", "pad": "u16", "duration": "u64", "start": "u64"}
    ((_, found),) = collected(forge.calls([(-5, 7, 65535, 0, 20, 10)], layout))
    assert [found[name].tolist() for name in ("start", "duration", "api", "result")] == [[10], [20], [7], [-5]]


GOOD = forge.calls(VALUES)
FIELDS = GOOD["fields"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"rows": GOOD["rows"][:-1]}, "not whole rows of 24"),
        ({"rows": "text"}, "calls.rows is not of type bin"),
        ({"stride": 0, "rows": b""}, "does not fit its row"),
        ({"stride": 23}, "does not fit its row"),
        ({"stride": True}, "calls.stride is not of type u64"),
        ({"stride": 1 << 63}, "too"),
        ({"thread": -1}, "calls.thread is not of type u64"),
        ({"thread": "1"}, "calls.thread is not of type u64"),
        ({"fields": FIELDS[1:]}, "no field 'start'"),
        ({"fields": [*FIELDS, FIELDS[0]]}, "have the same name"),
        ({"fields": [{**FIELDS[0], "type": "f64"}, *FIELDS[1:]]}, "is not of type u64"),
        ({"fields": [{**FIELDS[0], "type": "u128"}, *FIELDS[1:]]}, "unknown type 'u128'"),
        ({"fields": [{**FIELDS[0], "offset": 7}, *FIELDS[1:]]}, "'start' and 'duration' overlap"),
        ({"fields": [{"name": f"f{n}", "type": "u8", "offset": n} for n in range(2000)]}, "2000 fields"),
        ({"fields": [{**FIELDS[0], "offset": 1 << 63}, *FIELDS[1:]]}, "does not fit"),
        ({"fields": [{"name": "start"}]}, "without type"),
        ({"fields": None}, "calls.fields is not an array"),
        ({"fields": {}}, "calls.fields is not an array"),
    ],
)
def test_nonsense_is_named(change, fault):
    for before in ([], [GOOD]):  # also if a similar layout is already known
        with pytest.raises(MalformedError, match=fault):
            collected(*before, GOOD | change)


@pytest.mark.parametrize("line", [{}, {"start": -1}, {"start": "1"}, {"api": 1 << 32}, {"result": True}])
def test_nonsense_in_lines_is_named(line):
    call = {"kind": "call", "thread": 1, "start": 1, "duration": 1, "api": 1, "result": 0}
    with pytest.raises(MalformedError, match=r"call\b"):
        collected({"kind": "call", "thread": 1} if not line else call | line)


def test_layouts_that_are_remembered_are_bounded():
    collector = rows.Collector()
    packed = b"".join(GOOD["rows"][at : at + 24] + b"x" for at in (0, 24, 48))
    for number in range(3 * rows.MAX_LAYOUTS):
        layout = {"fields": [*FIELDS, {"name": f"x{number}", "type": "u8", "offset": 24}], "stride": 25}
        collector.add(GOOD | layout | {"rows": packed})
        assert len(collector._layouts) <= rows.MAX_LAYOUTS
    assert sum(len(found) for _, found in collector.take()) == 3 * 3 * rows.MAX_LAYOUTS


def test_counts_add_nothing_where_they_are_zero():
    ((_, found),) = collected(forge.launches({3: 5, 4: 0}), kind="launches", known=rows.LAUNCHES, needed=rows.LAUNCHES)
    assert found["function"].tolist() == [3] and found["count"].tolist() == [5]
    with pytest.raises(MalformedError, match="no field 'api'"):
        collected(forge.launches({3: 5}) | {"kind": "counts"}, kind="counts", known=rows.COUNTS, needed=rows.COUNTS)


@pytest.mark.parametrize("values", [[], [7], [3, 1, 3, 3, 2], [1 << 31, 5, 1 << 31]])
def test_groups_have_each_index_once_in_order(values):
    array = np.array(values, np.uint32)
    groups = {value: order.tolist() for value, order in rows.iter_groups(array)}
    assert groups == {value: [i for i, v in enumerate(values) if v == value] for value in set(values)}


def test_take_is_indexing():
    ((_, found),) = collected(forge.calls(VALUES))
    order = np.array([2, 0])
    assert (rows.take(found, order) == found[order]).all()


@pytest.mark.parametrize("largest", [40, 1 << 16, (1 << 32) - 1])
def test_groups_and_first_places_are_those_of_unique(largest):
    values = np.random.default_rng(1).integers(0, 9, 1000).astype(np.uint32)
    values[[5, 700]] = largest
    known, firsts, counts = np.unique(values, return_index=True, return_counts=True)
    groups = dict(rows.iter_groups(values))
    assert [*groups] == known.tolist()
    assert all(np.array_equal(order, np.flatnonzero(values == value)) for value, order in groups.items())
    found, occurs = rows.find_first_places(values)
    assert found[occurs > 0].tolist() == firsts.tolist()
    assert occurs[occurs > 0].tolist() == counts.tolist()
