"""JSON lines: any record is read back unchanged, and errors name the line."""

import io
import json
import math
import shutil
import struct
import subprocess

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError
from gpt.stream import jsonl, packed, records, wire
from tests.tiers import examples

HEADER = wire.header("test", ["test"])

# Text as the reader returns it: bytes that aren't UTF-8 are lone surrogates.
texts = st.one_of(st.text(), st.binary(max_size=20).map(lambda b: b.decode(errors="surrogateescape")))
escapes = st.sampled_from(sorted(jsonl.ESCAPES))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(-3, 3).map(lambda n: (1 << 53) + n),
    st.floats(allow_nan=False),
    texts,
    escapes,
    st.binary(max_size=40),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    st.builds(msgpack.Timestamp, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 999999999)),
)
keys = st.one_of(texts, escapes, st.integers(-5, 1 << 60), st.binary(max_size=5), st.just(""))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(escapes, inner, min_size=1, max_size=1),
    ),
    max_leaves=20,
)


def same(a, b):
    """Return whether two values are equal in value, type and order: 1, 1.0 and True differ."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list) or (isinstance(a, tuple) and not isinstance(a, msgpack.ExtType)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b


def through_json(record):
    (line,) = jsonl.lines(record)
    assert "\n" not in line
    _, back = read(json.dumps(HEADER) + "\n" + line)
    return back


def read(text):
    return list(jsonl.read_lines(io.BytesIO(text if isinstance(text, bytes) else text.encode()), "in"))


# There and back


@settings(max_examples=examples(500))
@given(values)
@example({"$map": {"$map": {"$int": "1"}}})
@example({"$pairs": [["a", 1]]})
@example({1: {"$b64": ""}, b"": None})
@example([{"$int": 1, "b": 2}, {}, []])
@example(-0.0)
@example(math.inf)
@example(-math.inf)
def test_any_value_round_trips(value):
    record = {"kind": "x", "value": value}
    back = through_json(record)
    assert same(dict(back), record)
    assert back.raw == wire.pack(record)


def test_nan_round_trips():
    assert math.isnan(through_json({"kind": "x", "value": math.nan})["value"])


@given(st.lists(st.dictionaries(keys, values, max_size=5), max_size=4))
def test_stream_round_trips_byte_for_byte(found):
    packed = wire.pack(HEADER) + b"".join(wire.pack({"kind": "x", **f, "kind": "x"}) for f in found)  # noqa: F601
    read_in = list(wire.read_records(io.BytesIO(packed), "in"))
    text = "".join(line + "\n" for record in read_in for line in jsonl.lines(record))
    assert b"".join(r.raw for r in read(text)) == packed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 << 53, 1 << 53),
        (-(1 << 53), -(1 << 53)),
        ((1 << 53) + 1, {"$int": "9007199254740993"}),
        (-(1 << 53) - 1, {"$int": "-9007199254740993"}),
        ((1 << 64) - 1, {"$int": "18446744073709551615"}),
        (b"", {"$b64": ""}),
        (b"\x00\xff", {"$b64": "AP8="}),
        ("\u00e9\U0001f600", "\u00e9\U0001f600"),
        ("caf\udce9", {"$raw": "Y2Fm6Q=="}),
        (math.nan, {"$float": "nan"}),
        (-math.inf, {"$float": "-inf"}),
        ({"a": 1}, {"a": 1}),
        ({2: "b"}, {"$pairs": [[2, "b"]]}),
        ({"$int": "5"}, {"$map": {"$int": "5"}}),
        ({"$int": "5", "a": 1}, {"$int": "5", "a": 1}),
        ({"$other": 1}, {"$other": 1}),
        (msgpack.ExtType(5, b"abc"), {"$ext": [5, "YWJj"]}),
        (True, True),
    ],
)
def test_values_are_written_as_the_page_says(value, expected):
    (line,) = jsonl.lines({"kind": "x", "value": value})
    assert same(json.loads(line), {"kind": "x", "value": expected})


def test_lines_are_json_to_others():
    jq = shutil.which("jq")
    if not jq:
        pytest.skip("no jq")
    record = {"kind": "x", "n": [1 << 60, math.inf, math.nan, b"\0", "\udcff", {3: 4}], "t": "\u2028\x00\x7f"}
    (line,) = jsonl.lines(record)
    done = subprocess.run([jq, "-c", "."], input=line.encode(), stdout=subprocess.PIPE, check=True)
    assert read(json.dumps(HEADER).encode() + b"\n" + done.stdout)[1].raw == wire.pack(record)


# calls

FIELDS = [
    {"name": "start", "type": "u64", "offset": 0},
    {"name": "delta", "type": "i32", "offset": 8},
    {"name": "load", "type": "f32", "offset": 12},
]
ROWS = struct.pack("<Qif", (1 << 63) + 1, -7, 0.5) + struct.pack("<Qif", 2, 7, math.inf)
CALLS = records.make("calls", thread=42, fields=FIELDS, stride=16, rows=ROWS)


def test_calls_become_a_line_for_each_row():
    lines = [json.loads(line) for line in jsonl.lines(CALLS)]
    assert lines == [
        {"kind": "call", "thread": 42, "start": {"$int": "9223372036854775809"}, "delta": -7, "load": 0.5},
        {"kind": "call", "thread": 42, "start": 2, "delta": 7, "load": {"$float": "inf"}},
    ]
    assert list(jsonl.lines(CALLS | {"rows": b""})) == []


@pytest.mark.parametrize("type_", sorted(packed.TYPES))
def test_every_type_of_a_field_is_read(type_):
    code = packed.TYPES[type_]
    size = int(type_[1:]) // 8
    assert struct.calcsize("<" + code) == size
    fields = [{"name": "v", "type": type_, "offset": 3}]
    rows = b"\xff" * 3 + struct.pack("<" + code, 100) + b"\xff"
    (line,) = jsonl.lines(CALLS | {"fields": fields, "stride": 4 + size, "rows": rows})
    assert json.loads(line) == {"kind": "call", "thread": 42, "v": 100}


@pytest.mark.parametrize(
    "changes",
    [
        {"stride": 0},
        {"stride": 15},
        {"stride": 1 << 63},
        {"fields": []},
        {"fields": [], "stride": 0},
        {"fields": [FIELDS[0] | {"type": "u128"}]},
        {"fields": [FIELDS[0] | {"offset": 9}]},
        {"fields": [FIELDS[0] | {"offset": (1 << 64) - 1}]},
        {"fields": 3},
        {"fields": [FIELDS[0], FIELDS[0]]},
        {"fields": [FIELDS[0] | {"name": "kind"}]},
        {"thread": "main"},
        {"rows": ROWS[:-1]},
        {"rows": "text"},
    ],
)
def test_calls_that_lie_are_refused(changes):
    with pytest.raises(MalformedError):
        list(jsonl.lines(CALLS | changes))


# Malformed input

SYNC = '{"kind": "sync", "id": 1}'


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "{",
        '{"kind": "sync", "id": 1',
        SYNC + SYNC,
        "[]",
        "1",
        "null",
        "{}",
        '{"kind": 1}',
        '{"kind": {"$b64": "AA=="}}',
        '{"kind": "x", "v": {"$int": "x"}}',
        '{"kind": "x", "v": {"$int": "18446744073709551616"}}',
        '{"kind": "x", "v": {"$int": null}}',
        '{"kind": "x", "v": 18446744073709551616}',
        '{"kind": "x", "v": ' + "1" * 5000 + "}",
        '{"kind": "x", "v": "\\ud800"}',
        '{"kind": "x", "v": {"$b64": "*"}}',
        '{"kind": "x", "v": {"$b64": 1}}',
        '{"kind": "x", "v": {"$raw": []}}',
        '{"kind": "x", "v": {"$float": "x"}}',
        '{"kind": "x", "v": {"$ext": 1}}',
        '{"kind": "x", "v": {"$ext": [128, ""]}}',
        '{"kind": "x", "v": {"$ext": [-1, ""]}}',
        '{"kind": "x", "v": {"$ext": [1, 2, 3]}}',
        '{"kind": "x", "v": {"$pairs": [1]}}',
        '{"kind": "x", "v": {"$pairs": [[[], 1]]}}',
        '{"kind": "x", "v": {"$map": 1}}',
        '{"kind": "x", "v": ' + "[" * 100000,
        '{"kind": "x", "v": ' + "[" * 700 + "]" * 700 + "}",
        "\x00",
        '{"kind": "chunk", "used": 0, "data": {"$b64": ""}}',
    ],
)
def test_malformed_lines_are_refused_with_their_number(line):
    text = json.dumps(HEADER) + "\n" + SYNC + "\n" + line + "\n"
    with pytest.raises(MalformedError) as caught:
        read(text)
    assert caught.value.where == "in:3"
    assert len(str(caught.value)) < 300


def test_bytes_that_are_not_utf8_are_refused():
    for line in (b"\xff\xfe\n", b'{"kind": "\xff"}\n', b'{"kind": "x\xed\xa0\x80"}\n'):
        with pytest.raises(MalformedError, match=r"^in:1: "):
            read(line)


def test_lines_form_segments():
    header = json.dumps(HEADER)
    end = '{"kind": "end", "records": 0, "status": 0}'
    assert [r["kind"] for r in read(f"{header}\n{SYNC}\n{end}\n{header}\n{SYNC}")] == [
        *("header", "sync", "end"),
        *("header", "sync"),
    ]
    for text, message in (
        ("", r"^in: empty"),
        (f"{SYNC}\n", r"^in:1: sync record outside"),
        (f"{header}\n{end}\n{SYNC}\n", r"^in:3: sync record outside"),
        (json.dumps(HEADER | {"version": "2.0"}), r"^in:1: version 2\.0"),
    ):
        with pytest.raises(MalformedError, match=message):
            read(text)


def test_values_nested_too_deep_for_json_are_refused():
    def nested(depth):
        value = 1
        for _ in range(depth):
            value = [value]
        return {"kind": "x", "value": value}

    deepest = nested(jsonl.MAX_NESTING - 1)
    (line,) = jsonl.lines(deepest)
    assert jsonl.decode(json.loads(line)) == deepest
    too_deep = nested(jsonl.MAX_NESTING)
    with pytest.raises(MalformedError, match="x record nested more than 100 deep"):
        list(jsonl.lines(too_deep))
    with pytest.raises(MalformedError, match="nested more than 100 deep"):
        read(json.dumps(HEADER) + "\n" + SYNC + "\n" + json.dumps(too_deep) + "\n")


@settings(max_examples=examples(300))
@given(st.one_of(st.binary(max_size=100), st.text(max_size=100).map(lambda t: t.encode())))
def test_any_line_is_read_or_refused(line):
    for text in (line, json.dumps(HEADER).encode() + b"\n" + line):
        try:
            read(text)
        except GptError as error:
            assert error.status == 3


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), escapes),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(escapes | st.just("a"), inner, max_size=2)),
    max_leaves=10,
)


@settings(max_examples=examples(500))
@given(json_values)
def test_any_escape_is_read_or_refused(value):
    text = json.dumps(HEADER) + "\n" + json.dumps({"kind": "x", "value": value}) + "\n"
    try:
        _, back = read(text)
    except GptError as error:
        assert error.where == "in:2"
    else:
        assert back.raw == wire.pack(dict(back))
