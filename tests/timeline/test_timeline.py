"""gpt-analyze timeline on hand-made traces: spans in rows, as text and as Chrome's JSON."""

import gzip
import io
import json
import os
import re
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from gpt.analyze import timeline
from gpt.stream import records, wire
from gpt.stream.stage import Stage
from gpt.timeline.tracks import CORRELATION, find_lanes
from gpt.trace.machines import NO_END
from gpt.trace.modules import LAYERS
from gpt.trace.process import iter_processes
from tests.analyze.asked import run
from tests.timeline.made import US, ZERO, call, draw, launch, pushed, ran, segment, small
from tests.trace import forge


def chrome(*segments):
    return json.loads(draw("chrome", *segments))


def rows_of(found):
    """Return the spans of each row, by row name."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    rows = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            rows[names[event["pid"], event["tid"]]].append((begin, begin + round(event["dur"] * 1000), event["name"]))
    return rows


def check_rows(found):
    """Check that the spans of each row are separate or nested."""
    for spans in rows_of(found).values():
        stack = []
        for begin, end, _ in sorted(spans, key=lambda span: (span[0], -span[1])):
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)


def test_nodes_take_as_long_as_in_a_replay_without_events():
    graph = records.make("graph", exec=0, at=ZERO, nodes=2, functions=[1], launches=[2], operations=[])
    timed = records.make("node_times", exec=0, thread=1, start=ZERO + 30 * US, begin=ZERO + 42 * US, pause=US,
                         types=[0, 0], functions=[1, 1], threads=[0, 0], calls=[0, 0], early=[0, 0],
                         begins=[0, 9 * US], durations=[9 * US, 7 * US])  # fmt: skip
    calls = call("cuGraphLaunch", 30, 5), call("cuGraphLaunch", 70, 5)
    rows = rows_of(chrome(segment(*calls, graph, timed, ran(42, 16, 0, 30, api=5), ran(75, 10, 0, 70, api=5))))
    below = [(begin // US - 10**6, end // US - 10**6) for begin, end, _ in rows["default stream (2)"]]
    assert below == [(42, 48), (51, 55)]  # less 3 us: 10 us together


def test_nodes_of_a_replay_are_below_it():
    graph = records.make("graph", exec=0, at=ZERO, nodes=3, functions=[1, 2], launches=[1, 1], operations=[])
    timed = records.make("node_times", exec=0, thread=1, start=ZERO + 30 * US, begin=ZERO + 43 * US, pause=US,
                         types=[0, 0, 1], functions=[1, 2, 0], threads=[1, 1, 0], calls=[ZERO + 11 * US] * 2 + [0],
                         early=[0, 0, 1], begins=[0, 5 * US, 8 * US], durations=[5 * US, 3 * US, 99 * US])  # fmt: skip
    layer = pushed(1, "layers.0", 10, 12, domain=LAYERS)
    made = segment(*layer, call("cuGraphLaunch", 30, 10), graph, timed, ran(42, 20, 0, 30, api=5))
    found = chrome(made)
    check_rows(found)
    rows = {name: [(begin // US - 10**6, end // US - 10**6, what) for begin, end, what in spans]
            for name, spans in rows_of(found).items()}  # fmt: skip
    assert rows["default stream"] == [(42, 62, "cuGraphLaunch")]
    assert rows["default stream (2)"] == [
        (43, 47, "add(float*, int)"), (48, 50, 'odd"name\n\x1b[31m'), (51, 62, "Memcpy"),  # not beyond the replay
    ]  # fmt: skip
    nodes = [event for event in found["traceEvents"] if event.get("cat") == "graph_node"]
    assert [event["args"].get("layer") for event in nodes] == ["layers.0", "layers.0", None]
    arrows = [event for event in found["traceEvents"] if event.get("name") == "ac2g"]
    assert len(arrows) == 2
    packets = schema.Trace.FromString(draw("perfetto", made)).packet
    events = [packet.gpu_render_stage_event for packet in packets if packet.HasField("gpu_render_stage_event")]
    assert [event.event_id for event in events].count(0) == 3 and len(events) >= 4
    done = run("timeline", data=forge.pack(made), env=os.environ | {"COLUMNS": "73"})
    text = done.stdout.decode().splitlines()  # from 10 to 62 us: a letter for each us
    assert [line for line in text if "default stream" in line] == [
        "  default stream     " + "." * 32 + "K" * 20,
        "  default stream (2) " + "." * 33 + "KKKK.KK.TTTTTTTTTTT",
    ]


def test_a_row_a_thread_and_a_stream():
    found = chrome(small())
    check_rows(found)
    rows = {name: [(begin // US - 10**6, end // US - 10**6, what) for begin, end, what in spans]
            for name, spans in rows_of(found).items()}  # fmt: skip
    assert rows == {
        "thread 1": [
            (0, 100, "step"), (1, 10, "cuMemcpyHtoD"), (10, 15, "cuLaunchKernel"), (20, 25, "cuLaunchKernel"),
            (30, 40, "cuGraphLaunch"), (50, 100, "cuStreamSynchronize"),
        ],
        "ranges io": [(5, 60, "both")], "ranges io (2)": [(50, 90, "more")],
        "default stream": [(2, 9, "Memcpy HtoD"), (16, 36, "add(float*, int)"), (42, 48, "graphed")],
        "default stream (2)": [(45, 75, "graphed")], "stream 0x7": [(26, 30, 'odd"name\n\x1b[31m')],
    }  # fmt: skip
    assert found["incomplete"] == []


def test_arrows_and_correlation_join_calls_with_gpu_work():
    events = chrome(small())["traceEvents"]
    spans = {(e["pid"], e["tid"], e["ts"]): e for e in events if e["ph"] == "X" and e["cat"] != "user_annotation"}
    joined = []
    for start in (e for e in events if e["ph"] == "s"):
        (end,) = (e for e in events if e["ph"] == "f" and e["id"] == start["id"])
        left, right = (spans[e["pid"], e["tid"], e["ts"]] for e in (start, end))
        assert left["args"]["correlation"] == right["args"]["correlation"] > 1 << 15  # HTA rejects smaller numbers
        joined.append((left["name"], right["name"]))
    assert sorted(joined) == [
        ("cuGraphLaunch", "graphed"), ("cuGraphLaunch", "graphed"), ("cuLaunchKernel", "add(float*, int)"),
        ("cuLaunchKernel", 'odd"name\n\x1b[31m'), ("cuMemcpyHtoD", "Memcpy HtoD"),
    ]  # fmt: skip


def test_gpu_work_has_the_arguments_that_kineto_writes():
    events = chrome(small())["traceEvents"]
    (one,) = (e for e in events if e["name"] == "add(float*, int)")
    assert (one["cat"], one["pid"]) == ("kernel", 0)
    assert one["args"] == {"device": 0, "stream": 0, "correlation": one["args"]["correlation"], "shared memory": 128,
                           "grid": [1, 2, 3], "block": [32, 4, 1], "range": "step"}  # fmt: skip
    (copy,) = (e for e in events if e["name"] == "Memcpy HtoD")
    assert (copy["cat"], copy["args"]["bytes"]) == ("gpu_memcpy", 4096)
    assert copy["args"]["memory bandwidth (GB/s)"] == 0.585143
    counters = [(e["name"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters[0] == ("bytes copied HtoD", {"bytes": 4096})
    assert {name for name, _ in counters[1:]} == {"HtoD a second"}
    assert [(e["name"], e["ts"]) for e in events if e["ph"] == "i"] == [("here", 10**6 + 70)]


def test_launches_and_their_work_name_the_module_and_the_ranges():
    made = segment(
        *pushed(1, "step 3", 0, 90), *pushed(2, "layers.3", 5, 50, domain=LAYERS),
        *pushed(3, 'odd"\n', 15, 50, domain="app"), *pushed(4, "layers.3.up", 19, 30, domain=LAYERS),
        launch(10, 5, 1), launch(20, 5, 2, 7), call("cuGraphLaunch", 60, 10), call("cuStreamSynchronize", 75, 10),
        launch(95, 1, 1), launch(21, 5, 1, thread=2), ran(16, 20, 1, 10), ran(26, 4, 2, 20, stream=7),
    )  # fmt: skip
    both = {"layer": "layers.3.up", "range": 'step 3/app: odd"\n'}
    one = {"layer": "layers.3", "range": "step 3"}
    want = {10: one, 16: one, 20: both, 26: both, 60: {"range": "step 3"}, 75: {}, 95: {}, 21: {}}
    events = [e for e in chrome(made)["traceEvents"] if e["ph"] == "X" and e["cat"] in ("cuda_driver", "kernel")]
    keys = ("layer", "range")
    told = {round(e["ts"]) - 10**6: {key: e["args"][key] for key in keys if key in e["args"]} for e in events}
    assert told == want
    found, packets = {}, perfetto(made)
    notes = {one.iid: one.name for one in packets[0].interned_data.debug_annotation_names}
    for packet in packets:
        event, work = packet.track_event, packet.gpu_render_stage_event
        texts = {note.name or notes[note.name_iid]: note.string_value for note in event.debug_annotations}
        texts |= {one.name: one.value for one in work.extra_data}
        if packet.HasField("gpu_render_stage_event") or "correlation" in texts:
            found[(packet.timestamp - ZERO) // US] = {key: texts[key] for key in keys if key in texts}
    assert found == want
    assert b"layer: layers.3.up\\nrange: step 3/app: odd" in draw("html", made)


def test_memory_is_a_counter():
    alloc = forge.calls(
        [(ZERO, US, 2, 0, 0x1000, 0, 4096, 0), (ZERO + 5 * US, US, 2, 0, 0x9000, 0, 100, 0)], forge.MEMORY
    )
    events = chrome(segment(alloc, launch(10, 5, 1)))["traceEvents"]
    points = [(e["name"], e["ts"] - 10**6, e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert points == [("GPU 0 memory", 1, 4096), ("GPU 0 memory", 6, 4196)]
    packets = perfetto(segment(alloc, launch(10, 5, 1)))
    values = [p.track_event.counter_value for p in packets if p.track_event.type == schema.TrackEvent.TYPE_COUNTER]
    assert values == [4096, 4196]


def test_unfinished_spans_end_with_their_process_and_are_marked():
    cut = segment(*pushed(1, "step", 0, None), call("cuStreamSynchronize", 5, 0), launch(1, 40, 1, thread=2))[:-1]
    found = json.loads(run("timeline", "--format", "chrome", data=forge.pack(cut)).stdout)
    spans = {e["name"]: e for e in found["traceEvents"] if e["ph"] == "X"}
    assert spans["step"]["dur"] == 41
    assert spans["cuStreamSynchronize"]["dur"] == 36
    assert [name for name, e in spans.items() if e["args"].get("incomplete")] == ["step", "cuStreamSynchronize"]
    assert found["incomplete"] == [f"no end of process 10: {NO_END}"]


def test_processes_of_two_machines_with_one_pid():
    found = chrome(small(), small(host="there", boot_id="c"))
    check_rows(found)
    names = [(e["pid"], e["args"]["labels"]) for e in found["traceEvents"] if e["name"] == "process_labels"]
    assert sorted(names) == [
        (0, "GPU 0 of 10"),
        (1, "GPU 0 of 10"),
        (10, "process 10 on here"),
        (11, "process 10 on there"),
    ]


def test_ranks_are_shown():
    trace = small(rank=3)
    assert draw("ascii", trace).startswith(b"rank 3, process 10 on here: app\n")
    assert '"rank 3, process 10 on here: app"' in draw("html", trace).decode()
    (process,) = (p.track_descriptor.process for p in perfetto(trace) if p.track_descriptor.HasField("process"))
    assert process.process_name == "app, rank 3, process 10 on here"
    found = chrome(trace)
    assert found["distributedInfo"] == {"rank": 3}
    assert "rank 3, process 10 on here" in {e["args"].get("labels") for e in found["traceEvents"] if e["ph"] == "M"}


def test_ranks_are_drawn_in_order():
    traces = small(rank=1), small(rank=0)
    assert re.findall(rb"^rank (\d)", draw("ascii", *traces), re.MULTILINE) == [b"0", b"1"]
    assert re.search(rb'"processes": ?\[\[1, ?"rank 0, [^]]*\], ?\[0, ?"rank 1,', draw("html", *traces))
    named = [e for e in chrome(*traces)["traceEvents"] if e["name"] in {"process_labels", "process_sort_index"}]
    order = {e["args"]["sort_index"]: e["pid"] for e in named if "sort_index" in e["args"]}
    labels = {e["pid"]: e["args"]["labels"] for e in named if "labels" in e["args"]}
    told = [labels[order[at]] for at in sorted(order)]
    assert [label[:6] for label in told if label.startswith("rank")] == ["rank 0", "rank 1"]


def test_a_range_begins_where_another_ends():
    inner = [one for n in range(4) for one in pushed(2 * n + 2, "inner", 100 * n + 40, 100 * n + 90)]
    outer = [one for n in range(4) for one in pushed(2 * n + 1, f"step {n}", 100 * n + 1, 100 * n + 99)]
    told = sorted([*inner, *outer], key=lambda one: one.get("start", one.get("end")))
    text = draw("ascii", segment(launch(0, 400, 1), *told)).decode()
    assert re.findall(r"\[([^-\]]+)-*\]", text) == ["step 0", "step 1", "step 2", "step 3"]


def test_ranges_without_room_for_a_name_take_no_row():
    text = draw("ascii", segment(launch(0, 100, 1), *pushed(1, "short", 5, 6)))
    assert not re.search(rb"^ +$", text, re.MULTILINE)
    assert b"thread 1" in text


def test_streams_of_two_devices():
    rows = [(ZERO + at * US, 5 * US, 0, 0, 1, 1, 1, 0, device) for at, device in ((0, 0), (1, 1), (8, 1))]
    times = records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES | {"device": "u32"}))
    found = chrome(segment(launch(0, 1, 1), times))
    check_rows(found)
    rows = {name: [begin // US - 10**6 for begin, *_ in spans] for name, spans in rows_of(found).items()}
    assert rows == {"thread 1": [0], "default stream": [0], "GPU 1 default stream": [1, 8]}
    devices = {(e["pid"], e["args"]["device"]) for e in found["traceEvents"] if e.get("cat") == "kernel"}
    assert devices == {(0, 0), (1, 1)}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=30), st.booleans())
def test_lanes(spans, nested):
    spans = sorted(((begin, begin + took) for begin, took in spans), key=lambda span: (span[0], -span[1]))
    begin, end = (np.array([span[at] for span in spans], np.int64) for at in (0, 1))
    lanes = find_lanes(begin, end, nested=nested)
    for lane in np.unique(lanes):
        mine = [span for span, own in zip(spans, lanes == lane, strict=True) if own]
        for at, (_, last) in enumerate(mine):
            for other, end_ in mine[at + 1 :]:
                assert other >= last or (nested and end_ <= last) or other == end_
    if all(a[1] <= b[0] for a, b in pairwise(spans)):
        assert not lanes.any()


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file(tmp_path, name):
    done = run("timeline", "--format", "chrome", "-o", tmp_path / name, data=forge.pack(small()))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    data = (tmp_path / name).read_bytes()
    assert json.loads(gzip.decompress(data) if name.endswith(".gz") else data) == chrome(small())
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("name", "begins"),
    [("t.html", b"<!DOCTYPE html>"), ("t.json", b"{"), ("t.json.gz", b"\x1f\x8b"), ("t.HTML", b"<!DOCTYPE html>"),
     ("t.txt", b"process"), ("t", b"process"), ("t.html.txt", b"process")],
)  # fmt: skip
def test_the_name_of_a_file_says_its_form(tmp_path, name, begins):
    done = run("timeline", "-o", tmp_path / name, data=forge.pack(small()))
    assert (done.returncode, done.stderr) == (0, b"")
    data = (tmp_path / name).read_bytes()
    assert data.lstrip().startswith(begins) or (begins == b"process" and not data.startswith((b"<", b"{")))


def test_standard_output(tmp_path):
    done = run("timeline", "--format", "chrome", "-o", "-", data=forge.pack(small()), cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout), os.listdir(tmp_path)) == (0, chrome(small()), [])
    done = run("timeline", "--format", "all", "-o", "-", data=forge.pack(small()), cwd=tmp_path)
    assert (done.returncode, done.stdout, os.listdir(tmp_path)) == (2, b"", [])


def test_all_files(tmp_path):
    done = run("timeline", "--format", "all", "-o", tmp_path / "t", data=forge.pack(small()))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(os.listdir(tmp_path)) == ["t.html", "t.json.gz", "t.pftrace", "t.txt"]
    assert (tmp_path / "t.html").read_text().startswith("<!DOCTYPE html>")
    assert run("timeline", "--format", "all", data=forge.pack(small())).returncode == 2


def test_output_in_missing_folder(tmp_path):
    done = run("timeline", "-o", tmp_path / "no" / "t.txt", data=forge.pack(small()))
    assert done.returncode == 4
    assert b"No such file or directory" in done.stderr


@pytest.mark.parametrize("width", [80, 160])
def test_text(width):
    done = run("timeline", data=forge.pack(small()), env=os.environ | {"COLUMNS": str(width)})
    lines = done.stdout.decode().splitlines()
    assert max(map(len, lines)) <= width
    rows = {line[2:20].strip(): line[20:] for line in lines if line.startswith("  ")}
    thread, stream = rows["thread 1"], rows["default stream"]
    assert [thread[len(thread) * at // 100] for at in (5, 12, 22, 35, 45, 75)] == list("CLLL.W")
    assert [stream[len(stream) * at // 100] for at in (5, 20, 40, 45, 90)] == list("HK.K.")
    assert "[both---" in rows["ranges io"]
    assert "[more---" in rows["ranges io (2)"]
    assert any("K kernel" in line for line in lines[-3:])


def test_text_on_a_narrow_screen():
    done = run("timeline", data=forge.pack(small()), env=os.environ | {"COLUMNS": "36"})
    lines = done.stdout.decode().splitlines()
    assert max(map(len, lines)) <= 36
    assert "  thread 1      CCL.L.LL..WWWWWWWWWW" in lines


def test_process_on_unknown_machine():
    line = {"ts": 1, "type": "kernel", "op": "launch", "name": "cuLaunchKernel", "pid": 7, "tid": 7, "duration_us": 2}
    done = run("timeline", data=json.dumps(line).encode() + b"\n")
    assert done.stdout.startswith(b"process 7: ")


def test_nothing():
    done = run("timeline", data=forge.pack(segment()))
    assert (done.returncode, done.stdout) == (0, b"nothing that took time in the trace\n")
    done = run("timeline", "--json", data=forge.pack(segment()))
    assert done.returncode == 2


def perfetto(*segments):
    """Return the packets."""
    return schema.Trace.FromString(draw("perfetto", *segments)).packet


def spans_of(packets):
    """Return the spans of each track with their notes, from begins and ends in ns since ZERO."""
    said = packets[0].interned_data
    names, notes = ({one.iid: one.name for one in each} for each in (said.event_names, said.debug_annotation_names))
    tracks = {p.track_descriptor.uuid: p.track_descriptor.name for p in packets if p.HasField("track_descriptor")}
    open_, found = defaultdict(list), defaultdict(list)
    for packet in (packet for packet in packets if packet.HasField("track_event")):
        event, time = packet.track_event, packet.timestamp - ZERO
        if event.type == event.TYPE_SLICE_BEGIN:
            told = {
                notes.get(note.name_iid, note.name): note.int_value or note.bool_value
                for note in event.debug_annotations
            }
            open_[event.track_uuid].append((time, names[event.name_iid], told))
        elif event.type == event.TYPE_SLICE_END:
            begin, name, told = open_[event.track_uuid].pop()
            found[tracks[event.track_uuid]].append((begin // US, time // US, name, told))
    assert not any(open_.values())
    return found


def test_perfetto_round_trips():
    packets, same = perfetto(small()), chrome(small())
    rows = {name: sorted(span[:3] for span in spans) for name, spans in spans_of(packets).items()}
    want = {name: sorted((begin // US - 10**6, end // US - 10**6, what) for begin, end, what in spans)
            for name, spans in rows_of(same).items() if "stream" not in name}  # fmt: skip
    assert rows == want
    correlations = {event["ts"]: event["args"]["correlation"] for event in same["traceEvents"]
                    if event["ph"] == "X" and event["cat"] == "cuda_driver"}  # fmt: skip
    told = {begin: notes["correlation"] for begin, _, what, notes in spans_of(packets)["thread 1"] if what[:2] == "cu"}
    assert told == {round(ts) - 10**6: number for ts, number in correlations.items()}


def test_perfetto_has_its_own_records_of_work():
    packets = perfetto(small())
    said = packets[0].interned_data
    names = {one.iid: one.name for one in said.event_names}
    queues = {one.iid: one.name for one in said.gpu_specifications}
    stages = {one.iid: one.description for one in said.gpu_specifications}
    assert [(one.pid, one.api) for one in said.graphics_contexts] == [(10, 4)]  # 4 stands for CUDA
    found = {}
    for packet in (packet for packet in packets if packet.HasField("gpu_render_stage_event")):
        work, launch_ = packet.gpu_render_stage_event, packet.gpu_render_stage_event.launch
        shape = (
            [[d.x, d.y, d.z] for d in (launch_.grid_size, launch_.workgroup_size)] if work.HasField("launch") else []
        )
        where = queues[work.hw_queue_iid], stages[work.stage_iid]
        assert queues[work.stage_iid] == names[work.name_iid]  # the name that versions of Perfetto before 2026 show
        begin = (packet.timestamp - ZERO) // US
        found[begin] = (names[work.name_iid], *where, work.duration // US, shape)
        assert work.submission_id
    grid = [[1, 2, 3], [32, 4, 1]]
    assert found == {
        2: ("Memcpy HtoD", "default stream", "memcpy", 7, []),
        16: ("add(float*, int)", "default stream", "kernel", 20, grid),
        26: ('odd"name\n\x1b[31m', "stream 0x7", "kernel", 4, grid),
        42: ("graphed", "default stream", "kernel", 6, []),
        45: ("graphed", "default stream (2)", "kernel", 30, []),
    }


def test_perfetto_has_arrows():
    """Calls refer to the records of GPU work, through TrackEvent's extension gpu_correlation, which the package doesn't
    know.
    """
    packets = perfetto(small())
    names = {one.iid: one.name for one in packets[0].interned_data.event_names}
    works = [p.gpu_render_stage_event for p in packets if p.HasField("gpu_render_stage_event")]
    work = {one.event_id: names[one.name_iid] for one in works}
    found = defaultdict(list)
    for event in (packet.track_event for packet in packets if packet.HasField("track_event")):
        for field in UnknownFieldSet(event):
            assert (field.field_number, event.type) == (3000, event.TYPE_SLICE_BEGIN)
            found[names[event.name_iid]] += [work[id_] for id_ in varints(field.data)]
    assert found == {
        "cuMemcpyHtoD": ["Memcpy HtoD"], "cuLaunchKernel": ["add(float*, int)", 'odd"name\n\x1b[31m'],
        "cuGraphLaunch": ["graphed", "graphed"],
    }  # fmt: skip


def varints(data):
    """Return the numbers of fields 1, below 128."""
    assert set(data[::2]) == {1 << 3}
    return list(data[1::2])


def test_perfetto_marks_what_is_incomplete():
    cut = segment(call("cuStreamSynchronize", 5, 0), launch(1, 40, 1, thread=2))[:-1]
    packets = schema.Trace.FromString(run("timeline", "--format", "perfetto", data=forge.pack(cut)).stdout).packet
    assert spans_of(packets)["thread 1"] == [
        (5, 41, "cuStreamSynchronize", {"correlation": CORRELATION + 1, "incomplete": True})
    ]
    marks = [p for p in packets if p.track_event.type == schema.TrackEvent.TYPE_INSTANT]
    assert [(p.track_event.name, p.timestamp) for p in marks] == [
        (
            f"incomplete: no end of process 10: {NO_END}",
            ZERO + US,
        )  # where the picture begins
    ]


def test_perfetto_gets_texts_that_it_reads_whole():
    """Perfetto ends texts at NUL."""
    packets = perfetto(segment(*pushed(1, "a\0b", 0, 9), argv=["c\0d"]))
    assert [span[2] for span in spans_of(packets)["thread 1"]] == ["a\ufffdb"]
    assert any(p.track_descriptor.process.process_name.startswith("c\ufffdd, ") for p in packets)


@pytest.mark.parametrize(("form", "file"), [("html", ""), ("chrome", ", and as much in the file"), ("ascii", None)])
def test_much_memory_is_announced(form, file, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(timeline, "MUCH", 2 * timeline.EACH)
    """Text needs little memory, however long the trace."""
    told = f"gpt-analyze: warning: timeline: 3 calls and GPU times take about 0.0 GB of memory{file}: --time FROM,TO "
    for times, said in ((1, ""), (2, f"{told}draws a part\n" if file is not None else "")):
        stage = Stage("gpt-analyze", stream=True)
        drawing = timeline.Drawing(stage, False, timeline.TimelineFormat(form), tmp_path / "t")
        data = forge.pack(segment(launch(1, 2, 1), *(ran(10 * at, 5, 1, 1) for at in range(times))))
        for process in iter_processes(wire.read_records(io.BytesIO(data), "in"), drawing.kinds):
            drawing.take(process)
        assert not [*drawing.answer([])]
        assert capfd.readouterr().err == said
