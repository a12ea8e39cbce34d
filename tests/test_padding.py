"""Rows that a trace reserved but never wrote don't count as calls."""

from gpt.stream import jsonl, records


def test_rows_of_zero_bytes_are_skipped():
    fields = [{"name": "start", "type": "u32", "offset": 0}, {"name": "result", "type": "i32", "offset": 4}]
    rows = bytes(8) + b"\1\0\0\0\xff\xff\xff\xff" + bytes(16)
    record = records.make("calls", thread=7, fields=fields, stride=8, rows=rows)
    assert list(jsonl.lines(record)) == ['{"kind": "call", "thread": 7, "start": 1, "result": -1}']
