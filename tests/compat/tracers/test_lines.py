"""JSON lines of calls as traces: from tracers, from `events --json`, and from other sources."""

import json
import random
from collections import Counter

import pytest

import gpt.trace
from gpt.base.errors import MalformedError
from gpt.compat.tracers import lines
from gpt.compat.tracers.lines import is_lines, read_lines
from gpt.stream import jsonl, records
from gpt.trace.used import read_used
from tests.trace import forge

PROBE = "uprobe:/lib/x86_64-linux-gnu/libcuda.so.1:"


def begin(ts, name, tid=7, **more):
    return {"event_id": 1, "ts": ts, "tid": tid, "phase": "B", "type": "userspace", "name": PROBE + name, **more}


def end(ts, name, us, tid=7, **more):
    told = {"event_id": 1, "ts": ts, "tid": tid, "phase": "E", "type": "userspace", "name": "uret" + PROBE[1:] + name}
    return told | {"duration_us": us, "retval": 0} | more


def more(ts, type_, op, tid=7, **keys):
    return {"event_id": 1, "ts": ts, "tid": tid, "type": type_, "op": op, **keys}


LAUNCH = more(7.0, "kernel", "launch", grid=[4, 1, 1], block=[32, 1, 1], threads=128)


def write(path, *lines):
    texts = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    path.write_bytes(b"".join((text if isinstance(text, bytes) else text.encode()) + b"\n" for text in texts))
    return path


@pytest.fixture
def calls(tmp_path):
    """Read lines as calls: name, start and duration in ns, and more fields; also return what's incomplete."""

    def read(*lines, fields=("bytes", "grid_x"), ending=b""):
        path = write(tmp_path / "trace_1.jsonl", *lines)
        path.write_bytes(path.read_bytes() + ending)
        trace = gpt.trace.open(path)
        found = trace.calls(*fields)
        rows = [
            (trace.api(call).name, int(call["start"]), int(call["duration"]), *(int(call[name]) for name in fields))
            for call in found
        ]
        return rows, [fact.removeprefix(f"{path}: ") for fact in trace.incomplete]

    return read


def test_call_joins_its_begin_end_and_other_lines(calls):
    found, missing = calls(
        "=== a tracer ===",
        begin(6.0, "cuMemAlloc_v2"),
        more(6.09, "memory", "alloc", size=4096, total_allocated=4096),
        end(6.1, "cuMemAlloc_v2", 100.0),
        "# Heartbeat: 5 events captured",
        LAUNCH,
        begin(7.0, "cuLaunchKernel"),
        end(7.1, "cuLaunchKernel", 99.5),
        begin(8, "cuMemcpyHtoD_v2"),
        end(8.5, "cuMemcpyHtoD_v2", 500),
        more(8.5, "transfer", None, direction="H2D", size=64, duration_ms=0.5),
        "=== TRACE SUMMARY ===",
    )
    assert found == [
        ("cuMemAlloc", 6_000_000, 100_000, 4096, 0),
        ("cuLaunchKernel", 7_000_000, 99_500, 0, 4),
        ("cuMemcpyHtoD", 8_000_000, 500_000, 64, 0),
    ]
    assert missing == []


def test_events_without_a_call_become_calls(calls):
    found, missing = calls(
        LAUNCH,
        more(8.5, "transfer", None, direction="D2H", size=64, duration_ms=0.5),
        more(9, "scheduler", "schedule_work"),
        begin(10, "cuInit"),
        more(11, "memory", "alloc", size=5),
    )
    assert found == [
        ("cuLaunchKernel", 7_000_000, 1, 0, 4),
        ("cuMemcpyDtoH", 8_000_000, 500_000, 64, 0),
        ("schedule_work", 9_000_000, 1, 0, 0),
        ("cuInit", 10_000_000, 1, 0, 0),
        ("cuMemAlloc", 11_000_000, 1, 5, 0),
    ]
    assert missing == ["3 calls have no duration: each counts as 1 ns"]


def test_calls_inside_of_each_other_and_of_several_threads(calls):
    found, missing = calls(
        begin(1, "cuGraphLaunch"), begin(1.5, "cuLaunchKernel", 8), begin(2, "cuCtxGetCurrent"), begin(2.5, "cuInit"),
        end(3, "cuLaunchKernel", 1500, 8), end(4, "cuCtxGetCurrent", 2000), end(5, "cuGraphLaunch", 4000),
    )  # fmt: skip
    assert found == [
        ("cuGraphLaunch", 1_000_000, 4_000_000, 0, 0),
        ("cuLaunchKernel", 1_500_000, 1_500_000, 0, 0),
        ("cuCtxGetCurrent", 2_000_000, 2_000_000, 0, 0),
        ("cuInit", 2_500_000, 1, 0, 0),  # its end was lost
    ]
    assert missing == ["1 call has no duration: each counts as 1 ns"]


def test_the_last_call_of_a_thread_that_has_no_end_did_not_return(calls):
    found, missing = calls(
        begin(1, "cuInit"), end(2, "cuInit", 1000), begin(3, "cuMemAlloc_v2"), begin(3.5, "cuInit", 8),
        more(4, "memory", "alloc", size=64), begin(5, "cuLaunchKernel", 9), begin(6, "cuCtxSynchronize", 9),
    )  # fmt: skip
    assert [(row[0], row[2], row[3]) for row in found] == [
        ("cuInit", 1_000_000, 0), ("cuMemAlloc", 0, 64), ("cuInit", 0, 0), ("cuLaunchKernel", 1, 0),
        ("cuCtxSynchronize", 0, 0),
    ]  # fmt: skip
    assert missing == ["1 call has no duration: each counts as 1 ns"]


def test_lines_of_two_processors_in_another_order(calls):
    found, missing = calls(begin(1, "cuInit"), end(2, "cuInit", 1000), end(9, "cuInit", 4000), begin(5, "cuInit"))
    assert [row[1:3] for row in found] == [(1_000_000, 1_000_000), (5_000_000, 4_000_000)]
    assert missing == []


def test_a_line_a_call(calls):
    """The lines are like those in recipes for such files: ts in us."""
    found, missing = calls(
        {"ts": 5, "type": "kernel", "op": "launch", "name": "cuLaunchKernel", "duration_us": 2.5},
        {"ts": 1, "type": "memory", "op": "alloc", "size": 4096},
        {"ts": 2.25, "type": "x", "name": "cuStreamSynchronize", "duration_us": 1},
    )
    assert found == [
        ("cuMemAlloc", 1000, 1, 4096, 0),
        ("cuStreamSynchronize", 2250, 1000, 0, 0),
        ("cuLaunchKernel", 5000, 2500, 0, 0),
    ]
    assert missing == ["1 call has no duration: each counts as 1 ns"]


def test_types_follow_from_names_of_functions(tmp_path):
    trace = gpt.trace.open(write(tmp_path / "t", begin(1, "cuStreamSynchronize"), end(2, "cuStreamSynchronize", 9)))
    assert trace.api(trace.calls()[0])[:3] == ("sync", "stream", "cuStreamSynchronize")


def test_ioctls_are_part_of_their_call(tmp_path):
    trace = gpt.trace.open(write(
        tmp_path / "t", begin(1, "cuMemAlloc"),
        {"ts": 2, "tid": 7, "phase": "B", "type": "kernel", "name": "kprobe:nvidia_ioctl", "ioctl_cmd": 0xC0},
        {"ts": 3, "tid": 7, "phase": "E", "type": "kernel", "name": "kretprobe:nvidia_ioctl", "duration_us": 1e3,
         "retval": -22}, end(4, "cuMemAlloc", 3000),
        {"ts": 9e3, "type": "kernel", "op": "ioctl", "name": "NV_ESC_RM_ALLOC", "pid": 0, "tid": 7, "duration_us": 1},
    ))  # fmt: skip
    first, second = trace.processes[0].ioctls
    start = trace.processes[0].clock.monotonic
    assert (first["name"], first["error"], first["parent"] - start) == ("nvidia_ioctl 0xc0", 22, 1_000_000)
    assert (first["start"] - start, first["duration"], first["request"]) == (2_000_000, 1_000_000, 0xC0)
    assert (second["name"], second["start"] - start, "parent" in second) == ("NV_ESC_RM_ALLOC", 9_000_000, False)


def test_launches_are_counted_and_kernels_without_a_name_known_by_their_shape(tmp_path):
    shapes = [[1, 1, 1], [2, 1, 1], [1, 1, 1]]
    lines = [more(at, "kernel", "launch", grid=shape, block=[32, 1, 1]) for at, shape in enumerate(shapes, 1)]
    named = {"ts": 9e3, "name": "cuLaunchKernel", "duration_us": 1, "kernel": "_Z1kv"}
    (process,) = gpt.trace.open(write(tmp_path / "t", *lines, "", named)).processes
    launches = {process.kernels()[id_]: count for id_, count in process.take_launches().items()}
    assert launches == {"(no name) 1x1x1 32x1x1": 2, "(no name) 2x1x1 32x1x1": 1, "_Z1kv": 1}


def test_several_processes(tmp_path):
    lines = [{"ts": ts, "name": "cuInit", "pid": ts % 3, "tid": 1, "duration_us": 1} for ts in range(1, 100)]
    trace = gpt.trace.open(write(tmp_path / "t", *lines))
    assert Counter(trace.processes[call["process"]].pid for call in trace.calls()) == {0: 33, 1: 33, 2: 33}
    assert [int(call["start"]) for call in trace.calls()] == [ts * 1000 for ts in range(1, 100)]
    assert trace.incomplete == []


GOOD = {"ts": 1, "name": "cuInit", "duration_us": 1}
BAD = [
    ('{"ts": 1, "name":', "line 2: broken"),
    ('{"ts": 1, "name": "cuInit"}, {', "line 2: broken"),
    ("{" + "[" * 100_000, "line 2: broken"),
    (b'{"ts":\xff\xfe}', "line 2: broken"),
    ('{"a": 1}', "line 2: no event"),
    ('{"ts": 1}', "line 2: no event"),
    ('{"ts": 1, "type": 3, "pid": 4}', "line 2: no event"),
    ('{"ts": 1, "name": ["cuInit"]}', "line 2: no event"),
    ('{"ts": "now", "name": "cuInit"}', "line 2: a time that makes no sense"),
    ('{"ts": NaN, "name": "cuInit"}', "line 2: a time that makes no sense"),
    ('{"ts": 1e400, "name": "cuInit"}', "line 2: a time that makes no sense"),
    ('{"ts": -1e15, "name": "cuInit"}', "line 2: a time that makes no sense"),
    ('{"ts": true, "name": "cuInit"}', "line 2: a time that makes no sense"),
    ("Lost 12 events", "the tracer lost 12 events"),
    ('# {"kind":"api","id":9,"symbol":"x","name":"x","type":"\\ud800","op":"y"}', "line 2: broken"),
    ('# {"kind":', "line 2: broken"),
]


@pytest.mark.parametrize(("line", "fact"), BAD, ids=range(len(BAD)))
def test_omitted_lines_are_reported(line, fact, calls):
    found, missing = calls(GOOD, line, "{}" if fact == "never" else "some text", GOOD)
    assert ([row[0] for row in found], missing) == (["cuInit"] * 2, [fact])


def test_thread_not_a_number(tmp_path):
    path = write(tmp_path / "t.jsonl", begin(1, "cuInit", [1]), end(2, "cuInit", 5.0, {"a": 1}))
    assert len(gpt.trace.open(path).calls()) == 1


def test_truncated_file(calls):
    found, missing = calls(GOOD, ending=b'{"ts": 2, "name": "cuI')
    assert (len(found), missing) == (1, ["line 2: cut off"])
    found, missing = calls(GOOD, ending=b'{"ts": 2, "name": "cuInit", "duration_us": 1}')
    assert (len(found), missing) == (2, [])


def test_a_line_without_an_end_takes_no_memory(calls, monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINE", 1000)
    found, missing = calls(GOOD, '{"a":"' + "x" * 10_000 + '"}', "y" * 10_000, GOOD, '{"b":"' + "x" * 1000 + '"}')
    assert (len(found), missing) == (2, ["line 2 and 1 more: longer than 1 MiB"])


def test_a_byte_order_mark_and_other_ends_of_lines(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n" + json.dumps(GOOD).encode())
    trace = gpt.trace.open(path)
    assert (len(trace.calls()), trace.incomplete) == (2, [])


def test_out_of_range_numbers_are_ignored(calls):
    odd = {"size": 1 << 70, "ptr": "0xzz", "tid": -1, "grid": [1 << 40, "x"], "block": 3, "duration_us": -5, "pid": "a"}
    found, missing = calls(GOOD | odd | {"name": "cuLaunchKernel", "retval": "no"}, fields=("bytes", "grid_x", "to"))
    assert found == [("cuLaunchKernel", 1000, 1, 0, (1 << 32) - 1, 0)]
    assert missing == ["1 call has no duration: each counts as 1 ns"]


def test_names_are_text_whatever_they_hold(calls):
    names = ['a"b\n\x1b[2J', "x" * 4096, "\ud800", ""]
    found, _ = calls(*(GOOD | {"name": name} for name in names))
    assert [row[0] for row in found] == ['a"b\n\x1b[2J', "x" * 4096, "?"]


def test_other_files_are_not_accepted(tmp_path):
    assert is_lines(b'text\n{"a": 1, "ts": 5}\n') and is_lines(b'\xef\xbb\xbf{"ts":1}')
    assert is_lines(b'# {"kind":"header"}')
    others = [b'{"kind":"header","ts": 1}', b'{"traceEvents": [\n  {"ts": 1}', b'{"ts": 1}\0', b'{"kernels": []}']
    for head in (b"", b"hello\n", b"\x84\xa4kind", *others):
        assert not is_lines(head), head
    with pytest.raises(MalformedError, match=r"no event in its 2 lines"):
        gpt.trace.open(write(tmp_path / "t", '{"ts":', "text"))


def test_lines_of_calls_are_refused_as_used_kernels(tmp_path):
    for text in ([GOOD], ["text", GOOD], ["# " + next(jsonl.lines(forge.trace()[0])), GOOD]):
        with pytest.raises(MalformedError, match="name the trace itself"):
            read_used([write(tmp_path / "t", *text)], allow_incomplete=True)


def test_any_bytes_are_read_or_refused(tmp_path):
    """Only our own errors may be raised, and each record is valid."""
    good = [json.dumps(line) for line in (begin(6.0, "cuMemAlloc"), end(6.1, "cuMemAlloc", 100), LAUNCH, GOOD)]
    good.append("# " + next(jsonl.lines(forge.trace()[0])))
    good += ['# {"kind":"api","id":1,"symbol":"a","name":"cuInit","type":"other","op":"init"}', '# {"kind":"end"}',
             '# {"kind":"resume","back":0}', '# {"kind":"launch","count":3,"function":2}']  # fmt: skip
    source = random.Random(7)
    for _ in range(80):
        data = bytearray("\n".join(source.choices(good, k=12)).encode())
        for _ in range(source.randrange(4)):
            at = source.randrange(len(data))
            data[at : at + source.randrange(3)] = source.randbytes(source.randrange(3))
        path = tmp_path / "t"
        path.write_bytes(data)
        try:
            with path.open("rb") as file:
                for record in read_lines(file, "t"):
                    assert record["kind"] in records.KINDS | records.ROWS or record["kind"] in records.ROWS.values()
            gpt.trace.open(path)
        except MalformedError:
            pass
