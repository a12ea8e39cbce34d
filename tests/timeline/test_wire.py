"""Protobuf encoded by columns equals the output of Protobuf's own encoder."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from gpt.timeline import wire
from gpt.timeline.perfetto import order_ends

NUMBERS = st.one_of(st.integers(0, 200), st.integers(0, (1 << 64) - 1))
ROW = st.tuples(NUMBERS, st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=200), st.booleans())


@given(st.lists(ROW, min_size=1, max_size=20))
def test_messages(rows):
    times, values, texts, here = (list(column) for column in zip(*rows, strict=True))
    name = wire.message(23, wire.choose([text.encode() for text in texts], np.arange(len(rows))))
    event = wire.message(11, name, wire.number(30, np.array(values, np.int64)))
    data = wire.message(1, wire.number(8, np.array(times, np.uint64)), wire.where(np.array(here), event)).pack()
    trace = schema.Trace.FromString(data)
    assert trace.SerializeToString() == data
    assert [packet.timestamp for packet in trace.packet] == times
    told = [
        (p.track_event.name, p.track_event.counter_value) if p.HasField("track_event") else None for p in trace.packet
    ]
    assert told == [row[2:0:-1] if row[3] else None for row in rows]


@given(st.lists(NUMBERS, min_size=1))
def test_digits(numbers):
    lines = wire.join(wire.digits(np.array(numbers, np.uint64)), wire.constant(b"\n", len(numbers)))
    assert [int(line) for line in lines.pack().split()] == numbers


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6)), max_size=12))
def test_ends_are_in_order(spans):
    """Return begins and ends of spans, including empty ones, in the order of a stack."""
    nested = []
    for begin, end in sorted(((begin, begin + took) for begin, took in spans), key=lambda span: (span[0], -span[1])):
        if all(other[1] <= begin or end <= other[1] for other in nested):
            nested.append((begin, end))
    want, stack = [], []
    for begin, end in nested:
        while stack and stack[-1] <= begin:
            want.append((False, stack.pop()))
        want.append((True, begin))
        stack.append(end)
    want += [(False, stack.pop()) for _ in range(len(stack))]
    begins, ends = (np.array([span[at] for span in nested], np.int64) for at in (0, 1))
    opens, places = order_ends(begins, ends)
    times = np.where(opens, begins[places], np.sort(ends)[places]) if len(nested) else begins
    assert list(zip(opens.tolist(), times.tolist(), strict=True)) == want
