"""Packed rows: every type is read at its field's offset, and wrong sizes are rejected."""

import io
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.stream import jsonl, packed, records
from tests.tiers import examples

FIELDS = [
    {"name": "b", "type": "u32", "offset": 12},
    {"name": "a", "type": "u64", "offset": 1},
    {"name": "c", "type": "f16", "offset": 20},
]
ROWS = struct.pack("<xQ3xI4xe2x", 7, 8, 0.5) * 2
LAUNCHES = records.make("launches", fields=FIELDS, stride=24, rows=ROWS)


def test_rows_have_the_order_of_the_fields():
    fields = packed.parse_fields(LAUNCHES)
    assert list(packed.iter_rows(fields, 24, ROWS)) == [(8, 7, 0.5)] * 2


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"stride": 21}, "'c' of type 'f16' does not fit its row"),
        ({"stride": 0}, "does not fit its row"),
        ({"stride": (64 << 20) + 1}, "too large"),
        ({"fields": []}, "rows without fields"),
        ({"fields": [FIELDS[0]] * 1025}, "1025 fields in a row; the limit is 1024"),
        ({"fields": [FIELDS[0], FIELDS[0]]}, "have the same name"),
        ({"fields": [*FIELDS, {"name": "d", "type": "u8", "offset": 15}]}, "'b' and 'd' overlap"),
        ({"fields": [*FIELDS, {"name": "d", "type": "u64", "offset": 5}]}, "'a' and 'd' overlap"),
        ({"fields": [{"name": "d", "type": "text", "offset": 5}]}, "unknown type 'text'"),
        ({"fields": [{"name": "d", "type": "u8?", "offset": 5}]}, "unknown type 'u8"),
        ({"fields": [{"name": "d", "type": "u8", "offset": (1 << 64) - 1}]}, "does not fit its row"),
    ],
)
def test_fields_that_lie_are_refused(change, fault):
    with pytest.raises(MalformedError, match=fault.replace("?", r"\?")):
        packed.parse_fields(LAUNCHES | change)


def test_each_kind_of_rows_becomes_lines_with_the_other_keys_of_its_record():
    for kind, one in records.ROWS.items():
        record = LAUNCHES | {"kind": kind, "x-mine": [1]} | ({"thread": 3} if kind == "calls" else {})
        more = '"thread": 3, ' if kind == "calls" else ""
        lines = sorted(jsonl.lines(record | {"rows": ROWS + bytes(24)}))
        assert len(lines) == 2 and one in lines[0]
        assert all(part in lines[0] for part in (more, '"x-mine": [1]', '"b": 8, "a": 7, "c": 0.5'))


# Answers

TYPES = st.sampled_from(["text", "text?", "number", "number?", *packed.TYPES, *(f"{type_}?" for type_ in packed.TYPES)])


def values(type_):
    """Return any value of a type."""
    base = type_.rstrip("?")
    if base == "text":
        some = st.text(max_size=5)
    elif base == "number":
        some = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    elif base[0] == "f":
        some = st.floats(width=int(base[1:]), allow_nan=False)
    else:
        bits = int(base[1:])
        most = (1 << bits - (base[0] == "i")) - 1
        some = st.integers(-(most + 1) if base[0] == "i" else 0, most - ("?" in type_))
    return some | st.none() if "?" in type_ else some


@st.composite
def answers(draw):
    types = draw(st.lists(TYPES, min_size=1, max_size=6))
    rows = draw(st.lists(st.tuples(*map(values, types)), max_size=5))
    columns = [{"name": f"c{n}", "type": type_, "offset": 0, "unit": "ns"} for n, type_ in enumerate(types)]
    packer = packed.Packer(columns)
    for row in rows:
        packer.add(row)
    return rows, records.make("answer", name="a", **packer.keys(), verdict=["so"])


@settings(max_examples=examples(200))
@given(answers())
def test_answers_come_back_also_through_json(found):
    rows, answer = found
    assert records.check(answer) is None
    assert [tuple(row) for row in packed.unpack_rows(answer)[1]] == rows
    lines = [*jsonl.lines(HEADER), *jsonl.lines(answer), *jsonl.lines({"kind": "sync", "id": 1})]
    assert len(lines) == 3 + len(rows)
    _, back, sync = read(lines)
    assert (back, sync["kind"]) == (answer, "sync") and back.raw


@pytest.mark.parametrize("text", ["", "x", "1e", "٣", "9" * 65, "--1", "1_0"])
def test_malformed_numbers_are_refused(text):
    packer = packed.Packer([{"name": "n", "type": "number", "offset": 0}])
    packer.add([7])
    answer = records.make("answer", name="a", **{**packer.keys(), "texts": [text]}, verdict=[])
    with pytest.raises(MalformedError, match="column 'n' isn't a number everywhere"):
        list(packed.unpack_rows(answer)[1])


HEADER = records.make(
    "header", version="1.0", tool="t", argv=[], host="h", pid=1, realtime=1, monotonic=1, via=[]
)  # fmt: skip
COLUMNS = [{"name": "n", "type": "text", "offset": 0}, {"name": "x", "type": "u8?", "offset": 4}]


def read(lines):
    return list(jsonl.read_lines(io.BytesIO("".join(f"{line}\n" for line in lines).encode()), "in"))


def answer_of(*rows, columns=COLUMNS):
    packer = packed.Packer(columns)
    for row in rows:
        packer.add(row)
    return records.make("answer", name="a", **packer.keys(), verdict=[])


def test_missing_value_has_no_key_in_json():
    answer = answer_of(("one", None), ("two", 254))
    assert list(packed.unpack_rows(answer)[1]) == [["one", None], ["two", 254]]
    assert list(jsonl.lines(answer))[1:] == [
        '{"kind": "row", "answer": "a", "n": "one"}',
        '{"kind": "row", "answer": "a", "n": "two", "x": 254}',
    ]
    assert math.isnan(packed.parse_fields(answer_of(columns=[{"name": "f", "type": "f16?", "offset": 0}]))[0].none)


def test_rows_outside_the_answers_are_unchanged():
    head, row = jsonl.lines(answer_of(("one", 1)))
    kinds = [record["kind"] for record in read([*jsonl.lines(HEADER), row, head, row, row.replace('"a"', '"b"'), row])]
    assert kinds == ["header", "row", "answer", "row", "row"]


@pytest.mark.parametrize("value", [("n", 255), ("n", 256), ("n", -1), (None, 1), (7, 1), ("n", "1"), ("n", True)])
def test_values_of_wrong_type_are_refused(value):
    with pytest.raises(MalformedError, match="row"):
        answer_of(value)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"kind": "answer", "name": "a", "columns": 5, "verdict": []}', "in:2: answer.columns is not an array"),
        (
            '{"kind": "answer", "name": "a", "columns": [{"name": "n", "type": "u9", "offset": 0}], "verdict": []}',
            "in:2: field 'n': unknown type 'u9'",
        ),
    ],
)
def test_lines_of_answers_that_make_no_sense_are_refused(line, fault):
    with pytest.raises(MalformedError, match=fault):
        read([*jsonl.lines(HEADER), line])


def test_mismatched_row_in_lines_is_refused_with_its_line():
    head, row = jsonl.lines(answer_of(("one", 1)))
    for wrong in ('"x": 300', '"x": "1"', '"x": -1'):
        with pytest.raises(MalformedError, match=r"^in:4: "):
            read([*jsonl.lines(HEADER), head, row, row.replace('"x": 1', wrong)])


def test_missing_string_is_refused():
    with pytest.raises(MalformedError, match="column 'n' has text 0 of 0"):
        list(packed.unpack_rows(answer_of(("one", 1)) | {"texts": []})[1])
    for name in ("kind", "answer"):
        with pytest.raises(MalformedError, match=f"a field is named {name}"):
            list(jsonl.lines(answer_of(("one", 1), columns=[{**COLUMNS[0], "name": name}, COLUMNS[1]])))
