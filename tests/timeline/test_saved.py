"""gpt-analyze timeline: probes' data below the kernel, and data that's missing, in each format."""

import json
import struct

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from gpt.stream import records
from gpt.timeline.counters import CALLED, Spread
from tests.analyze import blocks
from tests.analyze.asked import run
from tests.timeline.made import US, ZERO, call, draw, launch, pushed, ran, segment
from tests.trace import forge

SCHED = forge.probe_map("block_sched", **forge.BLOCK_SCHED)
BYTES = forge.probe_map("gmem_bytes", 2, type_="total", **forge.GMEM_BYTES)
BLOCKS = [(1000, 100, 0), (1000, 50, 0), (1060, 50, 0), (1000, 8000, 9)]
TOTALS = b"".join(struct.pack("<6Q", 32, 256, 0, 0, block, 0) for block in range(4))


def probed(id_, start, sched=None, total=TOTALS, kernel=1):
    """Return a launch at a given time, and its records."""
    told = forge.probed(id_, kernel, kernel, 4, 32) | {"start": ZERO + start * US, "stream": 0}
    saved = blocks.saved(BLOCKS) if sched is None else sched
    found = [(saved, 1), (total, 2)]
    return [told, *(forge.buffer(id_, data, map_) for data, map_ in found if data)]


def traced(*inner, end=True):
    return segment(SCHED, BYTES, forge.kernel(1, 1, "_Z3addPfi", 1, 2), *inner, end=end)


def chrome(*segments):
    return json.loads(draw("chrome", *segments))


def perfetto(*segments):
    return schema.Trace.FromString(draw("perfetto", *segments)).packet


FACTS = {"block_sched.records": 4, "block_sched.SMs": 2, "block_sched.blocks an SM": "1 to 3",
         "block_sched.start": 1000, "gmem_bytes.read": 1024, "gmem_bytes.bulk": 6}  # fmt: skip
KERNEL = traced(launch(10, 5, 1), ran(16, 20, 1, 10), *probed(7, 10))


def test_a_kernel_has_what_its_probes_saved():
    (kernel,) = (event["args"] for event in chrome(KERNEL)["traceEvents"] if event.get("cat") == "kernel")
    assert {name: kernel.get(name) for name in FACTS} == FACTS | {"block_sched.start": "1,000 to 1,060"}
    (work,) = (p.gpu_render_stage_event for p in perfetto(KERNEL) if p.HasField("gpu_render_stage_event"))
    told = {extra.name: extra.value for extra in work.extra_data}
    assert {name: told.get(name) for name in FACTS} == {
        name: str(value) for name, value in (FACTS | {"block_sched.start": "1,000 to 1,060"}).items()
    }
    text = " ".join(draw("ascii", KERNEL).decode().split())
    assert "P kernel with probes" in text
    assert "add(float*, int): block_sched.records 4, block_sched.SMs 2, block_sched.blocks an SM 1 to 3" in text


def test_its_warps_are_a_counter_under_it():
    counters = [event for event in chrome(KERNEL)["traceEvents"] if event["ph"] == "C"]
    points = [(event["ts"], event["args"]["warps"]) for event in counters if "warps" in event["name"]]
    assert len(points) <= 102
    times = [round(time * 1000) - ZERO for time, _ in points]
    assert (times[0], times[-1], points[-1][1]) == (16 * US, 20 * US, 0)  # 8000 clocks are 4 us
    assert max(value for _, value in points) == 3


def test_without_its_time_they_are_of_the_call():
    trace = traced(launch(10, 5, 1), *probed(7, 10))
    (told,) = (event["args"] for event in chrome(trace)["traceEvents"] if event["ph"] == "X")
    assert told["gmem_bytes.read"] == 1024
    (begin,) = (p.track_event for p in perfetto(trace) if p.track_event.type == schema.TrackEvent.TYPE_SLICE_BEGIN)
    told = {note.name: note.int_value or note.string_value for note in begin.debug_annotations}
    assert (told["gmem_bytes.read"], told["block_sched.blocks an SM"]) == (1024, "1 to 3")


def test_kernels_of_one_call_are_distinguished():
    """For two nodes of a graph, it isn't known which GPU time belongs to which node."""
    trace = traced(call("cuGraphLaunch", 10, 5), ran(16, 20, 1, 10, api=5), ran(40, 20, 1, 10, api=5),
                   *probed(7, 10), *probed(8, 10))  # fmt: skip
    (told,) = (event["args"] for event in chrome(trace)["traceEvents"] if event.get("cat") == "cuda_driver")
    assert (told["launches"], told["gmem_bytes.read"]) == (2, 1024)
    assert told["add(float*, int), launch 8: gmem_bytes.read"] == 1024


def test_missing_data_is_reported():
    lost = records.make("buffer", launch=8, map=1, size=4 * 40, lost="no room")
    unprobed = records.make("unprobed", function=2, launches=1, reason="no PTX")
    trace = traced(launch(10, 5, 1), ran(16, 2, 1, 10), launch(20, 5, 2), ran(26, 2, 2, 20), launch(30, 5, 1),
                   ran(36, 2, 1, 30), launch(40, 5, 1), *probed(8, 10, b"", b""), lost, *probed(9, 30, b"", b""),
                   unprobed, end=False)  # fmt: skip
    done = run("timeline", "--format", "chrome", data=forge.pack(trace))
    found = json.loads(done.stdout)
    assert found["incomplete"] == [
        "no end of process 10: killed, still running, or no longer recorded",
        "2 launches ran with probes, 1 without: no PTX (1)",
        "1 launch with probes lost: no room", "1 launch with probes lost: the trace ends before it was written",
    ]  # fmt: skip
    kernels = {round(e["ts"]) - 10**6: e["args"] for e in found["traceEvents"] if e.get("cat") == "kernel"}
    assert kernels[16]["block_sched"] == "lost: no room"
    assert kernels[26]["unprobed"] == "no PTX"
    assert kernels[36]["launch 9"] == "lost: the trace ends before it was written"


def test_when_recording_was_off_is_a_row():
    def change(at, on):
        return records.make("recording", on=on, at=ZERO + at * US)

    trace = segment(change(5, False), change(20, True), launch(30, 5, 1), launch(50, 5, 1), change(52, False))
    found = chrome(trace)
    gaps = [(round(e["ts"]) - 10**6, round(e["dur"]), "incomplete" in e["args"]) for e in found["traceEvents"]
            if e["name"] == "not recorded"]  # fmt: skip
    assert gaps == [(5, 15, False), (52, 3, True)]
    assert found["incomplete"] == ["recording was off at times in process 10"]
    late = chrome(segment(change(20, True), launch(30, 5, 1)))["traceEvents"]
    assert [(e["ts"], e["dur"]) for e in late if e["name"] == "not recorded"] == [(0, 10**6 + 20)]
    assert any(line[:12] == b"  recording " and b"[not rec" in line for line in draw("ascii", trace).splitlines())


def test_bytes_a_second():
    copies = [call("cuMemcpyHtoD", 0, 10, size=10_000), call("cuMemcpyHtoD", 20, 10, size=40_000)]
    points = [(e["ts"] - 10**6, e["args"]["bytes/s"]) for e in chrome(segment(*copies))["traceEvents"]
              if e["name"] == "HtoD a second"]  # fmt: skip
    assert points == [(0, 10**9), (10, 0), (20, 4 * 10**9), (30, 0)]
    gpu = chrome(segment(copies[0], ran(2, 5, 0, 0, 4)))["traceEvents"]
    assert [(e["ts"] - 10**6, e["args"]["bytes/s"]) for e in gpu if e["name"] == "HtoD a second"] == [
        (2, 2 * 10**9), (7, 0),
    ]  # fmt: skip
    begins = np.sort(np.random.default_rng(1).integers(0, 10**14, 5000))
    spread = Spread(CALLED, int(begins[0]), int(begins[-1]) + 10**9, 5e9)
    for part in np.array_split(begins, 3):
        spread.add(part, part + 10**9, np.full(len(part), 1e6))
    times, rates = spread.rates()
    assert len(times) <= 1001
    assert abs(float((np.diff(times) * rates[:-1]).sum()) / 5e18 - 1) < 1e-4


def test_memory_of_several_gpus():
    """In a process with two GPUs, launches run on the GPU of the thread's context."""
    names = ["cuCtxSetCurrent", "cuMemAlloc", "cuLaunchKernel"]
    cards = [records.make("device", index=n, name="x", arch="sm_90", runs="sass") for n in (0, 1)]
    apis = [forge.api(number, name) for number, name in enumerate(names, 1)]
    told = []
    for turn, context in enumerate((0xA, 0xB)):
        at = ZERO + 100 * US * turn
        told.append(forge.calls([(at, US, 1, 0, context, 0)], forge.OBJECT))
        told.append(forge.calls([(at + 5 * US, US, 2, 0, 0x10000 << turn, 0, 4096 << turn, 0)], forge.MEMORY))
        told.append(forge.calls([forge.launch(at + 10 * US, US, 3, 0)], forge.LAUNCH))
        row = (at + 12 * US, US, at + 10 * US, 0, 3, 0, 1, 0, turn)
        told.append(records.make("gpu_times", **forge.rows([row], forge.GPU_TIMES | {"device": "u32"})))
    points = [(e["name"], e["args"]["bytes"]) for e in chrome(forge.trace(*cards, *apis, *told))["traceEvents"]
              if e["ph"] == "C"]  # fmt: skip
    assert points == [("GPU 0 memory", 4096), ("GPU 1 memory", 8192)]


def test_marks_are_in_the_text():
    mark = records.make("range", type="mark", thread=5, name="here", start=ZERO + 70 * US)
    lines = draw("ascii", segment(launch(10, 90, 1), *pushed(1, "step", 0, None), mark)).decode().splitlines()
    (row,) = (line for line in lines if line.startswith("  thread 5"))
    assert row.split("thread 5")[1].strip() == "!here"
    assert any(line.endswith(">") for line in lines)
    assert "> not over, ! mark" in " ".join(lines)


def test_text_that_is_not_utf8_is_replaced():
    odd = "\udcff"
    mark = records.make("range", type="mark", thread=1, name=odd, start=ZERO)
    trace = segment(*pushed(1, odd, 0, 10, "start", odd), mark, argv=[odd], host=odd)
    data = draw("chrome", trace)
    assert rb"\ud" not in data
    told = [(e["name"], e.get("args", {}).get("name")) for e in json.loads(data)["traceEvents"] if e["ph"] in "XiM"]
    assert {("\ufffd", None), ("process_name", "\ufffd"), ("thread_name", "ranges \ufffd")} <= set(told)
    names = {p.track_descriptor.name for p in perfetto(trace) if p.HasField("track_descriptor")}
    assert "ranges \ufffd" in names


def test_copy_direction_not_utf8_is_replaced():
    odd = forge.api(9, "cuMemcpyHtoD") | {"op": "\udcff"}
    rows = [(ZERO, US, 9, 0, 0, 0, 4096, 0)]
    trace = segment(odd, forge.calls(rows, forge.MEMORY, 1))
    names = {p.track_descriptor.name for p in perfetto(trace) if p.HasField("track_descriptor")}
    assert {"bytes copied \ufffd", "\ufffd a second"} <= names
    assert "bytes copied \ufffd" in draw("chrome", trace).decode()


def test_spans_of_no_length_lie_within_others():
    trace = segment(
        *pushed(1, "step", 0, 10), *pushed(2, "none", 5, 5), *pushed(3, "none", 5, 5), call("cuMemAlloc", 6, 1)
    )
    page = draw("html", trace).decode()
    texts = json.loads(page.split('id="texts">')[1].split("</script>")[0])
    assert [row[4:] for row in texts["rows"]] == [[0, 0, 1], [1, 1, 3]]


def test_kernels_that_are_left_out_are_not_missed():
    args = "timeline", "--format", "chrome", "--kernel"
    other = segment(records.make("function", id=9, name="other"), launch(50, 5, 9), pid=11)
    for glob, facts in (("other", 0), ("add*", 1)):
        found = json.loads(run(*args, glob, data=forge.pack(KERNEL, other)).stdout)
        assert found["incomplete"] == []
        assert sum("gmem_bytes.read" in event.get("args", {}) for event in found["traceEvents"]) == facts
