"""Measure what a probe adds to one event, in cycles of an SM and in ns: `python tests/gpu/events.py [--device sim]`.

A kernel executes one event per iteration of a loop, or ten, and reads the SM's clock before and after the loop. It runs
plain, and with probes that count the event in a register, count it in a histogram in shared memory or in global memory,
or save a record in an array. One lane of a warp counts or saves. Each event must be in the trace. (dmat.py measures
logs.)

Cycles per event compare the loop with probes to the plain one. "ns" does the same with the kernel's time on the GPU,
which includes its start and end. "outside" is how much longer a launch takes before and after the loop, in us: it
clears shared memory, adds it up, and writes its sums. The runs alternate, and the figures are medians of ROUNDS; "plain
again" shows by how much equal runs differ. `one` is a single warp, `full` has eight warps on each SM.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream import wire  # noqa: E402
from gpt.trace.probes import Probes  # noqa: E402
from tests.gpu import accounts  # noqa: E402
from tests.gpu.light import Gpu  # noqa: E402

ROUNDS = 3
EVENTS = 1, 10  # per iteration
SHAPES = {"one": (1, 32), "full": (132, 256)}  # blocks and threads
NONE = 49152  # bytes of dynamic shared memory that leave no room
BEGIN = """
[probe.begin]
position = "kernel"
level = "{level}"
before = \"\"\".reg .u32 %n;
mov.u32 %n, 0;\"\"\"
"""
COUNTER = (
    """
[map.counter]
type = "total"
level = "warp"
cap = 1
data = {{n = "u64"}}
"""
    + BEGIN.replace("{level}", "warp")
    + """
[probe.event]
position = "mad.lo.u32"
level = "warp"
before = "add.u32 %n, %n, 1;"

[probe.end]
position = "kernel"
level = "warp"
after = \"\"\".reg .pred %other;
setp.ne.u32 %other, LANEID, 0;
selp.u32 %n, 0, %n, %other;
SAVE [counter] {{%n}};\"\"\"
"""
)
HISTOGRAM = """
[map.histogram]
type = "histogram"
level = "thread"
data = {{value = "u32"}}

[probe.event]
position = "mad.lo.u32"
level = "thread"
before = \"\"\".reg .pred %first;
setp.eq.u32 %first, LANEID, 0;
@%first SAVE [histogram] {{IN1}};\"\"\"
"""
RECORD = """
[map.record]
level = "warp"
cap = {cap}
data = {{clock = "u64"}}

[probe.event]
position = "mad.lo.u32"
level = "warp"
before = "SAVE [record] {{CLOCK}};"
"""
PROBES: dict[str, tuple[str | None, int]] = {  # a probe, and bytes of dynamic shared memory
    "plain": (None, 0),
    "plain again": (None, 0),
    "counter": (COUNTER, 0),
    "histogram, shared": (HISTOGRAM, 0),
    "plain, 48 KiB": (None, NONE),
    "histogram, global": (HISTOGRAM, NONE),
    "record": (RECORD, 0),
}


def kernel(events: int) -> str:
    """Return a kernel that stores the cycles of its loop, by warp."""
    body = "\n".join(["  mad.lo.u32 %r1, %r1, %r1, %r2;"] * events)
    return f"""
.visible .entry loop{events}(.param .u64 out, .param .u32 count) {{
  .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r2, [count];
  mov.u32 %r1, %tid.x;
  mov.u64 %rd2, %clock64;
again:
{body}
  sub.u32 %r2, %r2, 1;
  setp.ne.u32 %p1, %r2, 0;
  @%p1 bra again;
  mov.u64 %rd3, %clock64;
  sub.u64 %rd3, %rd3, %rd2;
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
  mul.lo.u32 %r3, %r3, %r4;
  add.u32 %r3, %r3, %r5;
  shr.u32 %r3, %r3, 5;
  mul.wide.u32 %rd4, %r3, 16;
  add.u64 %rd4, %rd1, %rd4;
  and.b32 %r6, %r5, 31;
  setp.ne.u32 %p2, %r6, 0;
  @%p2 bra done;
  st.global.u64 [%rd4], %rd3;
  st.global.u32 [%rd4+8], %r1;
done:
  ret;
}}"""


def launch_all(iterations: int, launches: int, shared: int, shapes: list[str]) -> None:
    """Run the kernels in this process, and print cycles of a loop and us of a launch by kernel and shape."""
    gpu, found = Gpu(), {}
    text = ".version 7.0\n.target sm_70\n.address_size 64\n" + "".join(map(kernel, EVENTS))
    for events in EVENTS:
        function = gpu.load(text.encode() + b"\0", f"loop{events}", NONE)
        for shape in shapes:
            blocks, threads = SHAPES[shape]
            warps = blocks * threads // 32
            out, count = gpu.memory(16 * warps), ctypes.c_uint32(iterations)
            pointers = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(count))
            marks = ctypes.c_void_p(), ctypes.c_void_p()
            for mark in marks:
                gpu.call("cuEventCreate", ctypes.byref(mark), 0)
            times, cycles = [], []
            for number in range(launches + 1):
                gpu.call("cuEventRecord", marks[0], None)
                gpu.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, shared, None, pointers, None)
                gpu.call("cuEventRecord", marks[1], None)
                gpu.call("cuEventSynchronize", marks[1])
                ms = ctypes.c_float()
                gpu.call("cuEventElapsedTime", ctypes.byref(ms), *marks)
                if not number:  # the first one may load or compile it
                    continue
                times.append(ms.value * 1000)
                words = (ctypes.c_uint64 * (2 * warps))()
                gpu.call("cuMemcpyDtoH_v2", words, out, ctypes.c_size_t(16 * warps))
                cycles.append(statistics.median(words[::2]))
            found[f"{events} {shape}"] = statistics.median(cycles), statistics.median(times)
    print(json.dumps(found))


def check(trace: Path, name: str, wanted: list[int]) -> list[str]:
    """Return what's wrong with a trace: every launch must have counted each warp's events."""
    probes, room, found = Probes(trace.parent), set[bool](), []
    with open(trace, "rb") as file:
        for record in wire.read_records(file, str(trace)):
            if record["kind"] == "probed":
                room.add("room" in record)
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                probes.add(record)
    for buffer in sorted(probes.take(), key=lambda one: one.launch.start):
        saved = buffer.read()
        if saved.bins is not None:
            found.append(int(saved.bins.sum()))
        elif "n" in (saved.slots.dtype.names or ()):
            found.append(int(saved.slots["n"].sum()))
        else:
            found.append(int((saved.slots["clock"] != 0).sum()))
    wrong = [] if found == wanted else [f"{found[:4]}... events, not {wanted[:4]}..."]
    if name.startswith("histogram") and room != {name.endswith("shared")}:
        wrong.append(f"room: {room}")
    return wrong


def run(folder: Path, device: str, name: str, iterations: int, launches: int, shapes: list[str]) -> tuple[Any, Any]:
    """Run the kernels in a process of their own, and return its figures and what's wrong."""
    text, shared = PROBES[name]
    trace = folder / "t.mp"
    line = [sys.executable, __file__, "--launch", str(iterations), str(launches), str(shared), *shapes]
    if text or device == "sim":
        options = []
        if text:
            path = folder / f"{name.split(',')[0].replace(' ', '_')}.toml"
            path.write_text(text.format(cap=iterations * max(EVENTS)))
            options = ["-p", str(path)]
        line = [*map(str, accounts.hooked(trace, device, *options)), *line]
    done = accounts.run(line, accounts.environment(folder, device), 300)
    if done.status:
        return None, [f"status {done.status}: {(done.output + done.said)[-300:]}"]
    figures = json.loads(done.output.splitlines()[-1])
    wrong = []
    if text:
        warps = [SHAPES[shape][0] * SHAPES[shape][1] // 32 for shape in shapes]
        wanted = [iterations * events * many for events in EVENTS for many in warps for _ in range(launches + 1)]
        wrong = check(trace, name, wanted)
    for file in folder.glob("t.mp*"):
        file.unlink()
    return figures, wrong


def report(raw: dict[str, dict[str, list[Any]]], iterations: int) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    rows = []
    for name, kinds in raw.items():
        base = "plain, 48 KiB" if PROBES[name][1] else "plain"
        for kind, figures in kinds.items():
            events = iterations * int(kind.split()[0])
            cycles, us = (statistics.median(one[at] for one in figures) for at in (0, 1))
            plain_cycles, plain_us = (statistics.median(one[at] for one in raw[base][kind]) for at in (0, 1))
            per_us = plain_cycles / plain_us  # a plain kernel spends nearly all its time in the loop
            outside = (us - plain_us) - (cycles - plain_cycles) / per_us
            rows.append({"probe": name, "kernel": kind, "cycles": (cycles - plain_cycles) / events,
                         "ns": (us - plain_us) * 1000 / events, "outside_us": outside})  # fmt: skip
    return rows


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="real", choices=("real", "sim"))
    parser.add_argument("--launch", nargs="+")
    chosen = parser.parse_args()
    if chosen.launch:
        iterations, launches, shared = map(int, chosen.launch[:3])
        launch_all(iterations, launches, shared, chosen.launch[3:])
        return 0
    sim = chosen.device == "sim"
    iterations, launches, rounds, shapes = (20, 2, 1, ["one"]) if sim else (500, 3, ROUNDS, [*SHAPES])
    raw: dict[str, dict[str, list[Any]]] = {name: {} for name in PROBES}
    wrong: dict[str, list[str]] = {name: [] for name in PROBES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name in PROBES:
                figures, faults = run(Path(folder), chosen.device, name, iterations, launches, shapes)
                wrong[name] += faults
                for kind, one in (figures or {}).items():
                    raw[name].setdefault(kind, []).append(one)
    rows = report(raw, iterations) if all(raw.values()) else []
    print(f"{'probe':18} {'kernel':8} {'cycles':>8} {'ns':>8} {'outside':>8}  an event")
    for row in rows:
        print("{probe:18} {kernel:8} {cycles:8.1f} {ns:8.2f} {outside_us:8.2f}".format(**row))
    for name, faults in wrong.items():
        if faults:
            print(f"{name}: {'; '.join(faults[:3])}")
    accounts.OUT.mkdir(parents=True, exist_ok=True)
    (accounts.OUT / "events.json").write_text(json.dumps({"rows": rows, "raw": raw, "wrong": wrong}, indent=1) + "\n")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
