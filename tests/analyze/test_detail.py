"""Every analysis of a map reads launches for which only sums were kept, and has the totals of the full trace.

The trace is recorded once, in full. Here its buffers are replaced by their sums, in the layout of gpt-stream(5).
"""

import json
import math
import os
import struct
from collections import Counter

import numpy as np
import pytest

from gpt.probe.read.load import BUILTIN
from gpt.stream import records, wire
from gpt.trace.probes import Probes
from tests.analyze import asked
from tests.runtime import hooked, probing
from tests.trace import forge

PROBES = sorted(path.stem for path in BUILTIN.glob("*.toml"))
MORE = """
.reg .f32 %f<3>;
.reg .u64 %s<2>;
.reg .f32 %c<4>;
.reg .b32 %a<4>;
.shared .align 8 .b8 room[1024];
mov.u32 %r3, %tid.x;
mul.wide.u32 %s1, %r3, 8;
mov.u64 %s0, room;
add.u64 %s1, %s1, %s0;
st.shared.u32 [%s1], %r3;
bar.sync 0;
ld.shared.u32 %r4, [%s1];
cvt.rn.f32.u32 %f1, %r4;
add.f32 %f2, %f1, 0fC0A00000;
div.rn.f32 %f1, %f2, %f2;
setp.gt.u32 %p, %r3, 40;
@%p bra AHEAD;
mul.f32 %f1, %f1, 0f40400000;
AHEAD:
bar.sync 0;
mov.f32 %c0, 0f00000000; mov.f32 %c1, %c0; mov.f32 %c2, %c0; mov.f32 %c3, %c0;
mov.b32 %a0, 0; mov.b32 %a1, 0; mov.b32 %a2, 0; mov.b32 %a3, 0;
setp.gt.u32 %p, %r3, 31;
@%p bra SINGLE;
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%c0, %c1, %c2, %c3}, {%a0, %a1}, {%a2}, {%c0, %c1, %c2, %c3};
SINGLE:
"""
MAIN = """
int main(int count, char **words) {
    setup(words[1]);
    for (int i = 0; i < 4; i++)
        run();
    check();
}
"""
TOTALS = {  # columns of the answer `kernels` that cover all launches
    "bank_conflict": ("launches", "accesses"),
    "block_sched": ("launches", "blocks", "silent", "clocks"),
    "branch_divergence": ("launches", "reached", "taken", "split", "warps", "silent", "divergence"),
    "gmem_bytes": ("launches", "total", "read", "written"),
    "inst_latency": ("launches", "loads", "clocks", "warps", "latency"),
    "program_progress": ("launches",),
    "sync_wait": ("launches", "waits", "clocks", "warps"),
    "tensorop_count": ("launches", "flops", "operations"),
    "value_range": ("launches", "least", "greatest", "nans", "with_nan"),
    "warp_progress": ("launches",),
    "warp_sched": ("launches", "warps", "silent", "mean", "span"),
}


def pack_sums(buffer):
    saved, layout = buffer.read(), buffer.map
    slots = saved.slots
    if layout.type != "log":
        slots = slots[np.arange(layout.capacity) < saved.counts[:, :, None]]
    data = struct.pack("<3Q", len(slots), saved.dropped, int(saved.counts.sum()))
    for name in layout.types:
        code = {"u": "Q", "i": "q", "f": "d"}[slots[name].dtype.kind]
        values = [value for value in slots[name].tolist() if value == value]
        total = math.fsum(values) if code == "d" else sum(values)
        total = total % (1 << 64) if code == "Q" else total
        bits = Counter(min(math.trunc(min(abs(value), 2.0**64)), (1 << 64) - 1).bit_length() for value in values)
        first, last = min(bits, default=0), max(bits, default=-1)
        data += struct.pack(f"<3{code}", total, min(values, default=0), max(values, default=0))
        counts = [bits[at] for at in range(first, last + 1)]
        data += struct.pack(f"<{2 + len(counts)}Q", first, len(counts), *counts)
    return data


def reduce(path, keep):
    """Return the trace with sums in place of buffers for all launches after number `keep`."""
    found, probes, buffers = [], Probes(path.parent), {}
    with open(path, "rb") as file:
        for record in wire.read_records(file, str(path)):
            found.append(record)
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                probes.add(record)
    for buffer in probes.take():
        buffers[buffer.launch.id, buffer.map.id] = buffer
    for record in found:
        key = (record.get("launch"), record.get("map"))
        if record["kind"] == "buffer" and record["launch"] > keep:
            if buffer := buffers.pop(key, None):
                size = buffer.map.size(buffer.launch.blocks, buffer.launch.threads)
                data = pack_sums(buffer)
                yield records.make("buffer", launch=key[0], map=key[1], size=len(data), reduced=size, data=data)
        else:
            yield record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a trace of four launches with all built-in probes, and the same trace with the details of one launch
    only.
    """
    folder = tmp_path_factory.mktemp("detail")
    program = probing.build(folder, probing.CLIENT + MAIN)
    named = [word for name in PROBES for word in ("-p", name)]
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    head, body = probing.PTX.read_text().split("\tld.param.u64 %d1, [items];", 1)
    (folder / "more.ptx").write_text(f"{head}{MORE}\tld.param.u64 %d1, [items];{body}")
    done = hooked.run(folder / "t.mp", program, folder / "more.ptx", options=("-f", *named), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    data = forge.pack(list(reduce(folder / "t.mp", 1)))
    (folder / "sums.mp").write_bytes(data)
    return folder / "t.mp", folder / "sums.mp"


def answers(path, name):
    done = asked.run(name, path, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    return asked.Answers(done.stdout)


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_totals_are_those_of_the_full_trace(recorded, name):
    full, some = (answers(path, name) for path in recorded)
    first = next(iter(some.verdicts))
    assert any(line.startswith("detail: 1 of 4 launches, totals: ") for line in some.verdicts[first])
    (row,), (wanted,) = (found.rows["kernels"] for found in (some, full))
    assert [row.get(column) for column in TOTALS[name]] == pytest.approx(
        [wanted.get(column) for column in TOTALS[name]]
    )


def test_accesses_of_launches(recorded):
    full, some = (answers(path, "dmat").rows["launches"] for path in recorded)
    assert [(row["accesses"], row["bytes"]) for row in some] == [(row["accesses"], row["bytes"]) for row in full]
    assert ["pages" in row for row in some] == [True, False, False, False]


def test_fields_of_any_map(recorded):
    full, some = (answers(path, "maps") for path in recorded)
    for name in full.rows:
        if name in ("bins", "unprobed"):
            continue
        for row, wanted in zip(some.rows[name], full.rows[name], strict=True):
            for column in ("field", "launches", "records", "least", "greatest", "mean", "sum", "nans"):
                assert row.get(column) == pytest.approx(wanted.get(column)), (name, column)


def test_a_timeline_shows_sums(recorded, tmp_path):
    done = asked.run("timeline", recorded[1], "-o", tmp_path / "out.json")
    assert (done.returncode, done.stderr) == (0, b"")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    facts = [event["args"] for event in events if "gmem_bytes.read" in event.get("args", {})]
    assert [(one["gmem_bytes.read"], one["warp_sched.records"]) for one in facts] == [(3200, 18)] * 4


def test_sums_of_the_wrong_size_are_refused(recorded, tmp_path):
    data = (recorded[1].parent / "sums.mp").read_bytes()
    (tmp_path / "t.mp").write_bytes(data.replace(b"\xa7reduced\xcd\x01", b"\xa7reduced\xcd\x02"))
    done = asked.run("maps", tmp_path / "t.mp")
    assert done.returncode == 3 and b"map " in done.stderr
