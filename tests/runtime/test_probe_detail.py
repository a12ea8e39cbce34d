"""gpt-hook run --detail: later launches keep only sums of the data that earlier launches keep in full; here they're
compared with sums computed from full data.
"""

import math
import os
from collections import Counter

import numpy as np
import pytest

from gpt.stream.wire import read_records
from gpt.trace.probes import Probes
from tests.analyze import asked
from tests.runtime import hooked, probing
from tests.runtime.ends import CLIENT, PTX
from tests.stream.totals_reader import read_maps, read_reduced

SHAPES = [*[(7, 70, 3)] * 5, (3, 40, 0), *[(7, 70, 3)] * 5]  # mixing launches of three grids would hide a wrong count
FILE = """
[map.total]
type = "total"
level = "thread"
data = {sum = "u64", least = "u32", low = "s32", high = "s64", far = "u64", any = "u32"}
min = ["least", "low"]
max = ["high", "far"]
last = ["any"]

[map.plain]
type = "total"
level = "block"
counts = false
data = {sum = "u32", least = "u64"}
min = ["least"]

[map.rows]
level = "thread"
cap = 2
data = {value = "u16", small = "s8", low = "s64", part = "f32", wide = "f64"}

[map.log]
level = "thread"
cap = "dynamic"
budget = 65536
data = {low = "s32", far = "u64"}

[map.bins]
type = "histogram"
data = {value = "u32"}
low = 5
high = 305
step = 3

[map.keyed]
type = "table"
key = ["zone"]
cap = 8
data = {zone = "u32", sum = "u64"}

[probe.end]
position = "kernel"
level = "thread"
after = '''.reg .u32 %value; .reg .u32 %zone; .reg .u64 %far; .reg .f32 %part; .reg .f64 %wide; .reg .s32 %low;
.reg .s64 %high; .reg .u16 %short; .reg .s8 %small; .reg .pred %many; .reg .pred %odd;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
and.b32 %zone, %value, 7;
sub.s32 %low, 300, %value;
cvt.s64.s32 %high, %low;
sub.s64 %high, %high, 100000000000;
cvt.u64.u32 %far, %value;
mad.lo.u64 %far, %far, 12297829382473034410, 7;
cvt.rn.f32.s32 %part, %low;
div.rn.f32 %part, %part, 0f40400000;
setp.ne.u32 %odd, %zone, 5;
selp.f32 %part, %part, 0f7FC00000, %odd;
cvt.rn.f64.s64 %wide, %high;
cvt.u16.u32 %short, %value;
cvt.s8.s32 %small, %low;
setp.gt.u32 %many, %zone, 3;
SAVE [total] {%value, %value, %low, %high, %far, %zone};
SAVE [rows] {%short, %small, %high, %part, %wide};
SAVE [rows] {%short, %small, %high, %part, %wide};
@%many SAVE [rows] {%short, %small, %high, %part, %wide};
SAVE [log] {%low, %far};
SAVE [bins] {%value};
SAVE [keyed] {%zone, %value};'''

[probe.block]
position = "kernel"
level = "block"
after = '''.reg .u32 %value; .reg .u64 %far;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
cvt.u64.u32 %far, %value;
SAVE [plain] {%value, %far};'''
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("detail"), CLIENT)


def run(folder, program, how, *options, probes=(), shapes=SHAPES):
    words = [str(number) for shape in shapes for number in shape]
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    folder.mkdir(exist_ok=True)
    named = [word for probe in probes or [probing.probe_file("probe.toml", FILE)] for word in ("-p", probe)]
    done = hooked.run(folder / "t.mp", program, PTX, how, *words, options=("-f", *named, *options), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "t.mp"


def read(path):
    """The buffers of a trace, by map and launch."""
    probes, found = Probes(path.parent), {}
    with open(path, "rb") as file:
        for record in read_records(file, str(path)):
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                probes.add(record)
    for buffer in probes.take():
        found.setdefault(buffer.map.name, {})[buffer.launch.id] = buffer
    return found


def sums_of(values):
    """The sums of a field's values, as described in gpt-stream(5)."""
    kind = values.dtype.kind
    values = [value for value in values.ravel().tolist() if value == value]
    if kind == "f":
        total = math.fsum(values)
    else:
        total = sum(values) % (1 << 64)
        total -= 1 << 64 if kind == "i" and total >> 63 else 0
    bits = Counter(min(abs(math.trunc(value)), (1 << 64) - 1).bit_length() for value in values)
    return total, min(values), max(values), dict(bits)


def reduce(buffer):
    """The sums of a buffer that was kept in full."""
    saved, layout = buffer.read(), buffer.map
    slots = saved.slots
    if layout.type != "log":
        slots = slots[np.arange(layout.capacity) < saved.counts[:, :, None]]
    fields = {name: sums_of(slots[name]) for name in layout.types}
    return len(slots), saved.dropped, int(saved.counts.sum()), fields


@pytest.mark.parametrize("how", ["default", "graph"])
def test_sums_are_those_of_the_full_detail(tmp_path, program, how):
    all_, some = (run(tmp_path / count, program, how, "--detail", count) for count in ("99", "4"))
    launches = len(SHAPES) * (2 if how == "graph" else 1)
    whole, part, reduced, maps = read(all_), read(some), read_reduced(some), read_maps(all_)
    assert not read_reduced(all_)
    assert sorted(reduced) == ["bins", "plain", "rows", "total"]
    grids = np.repeat([blocks for blocks, _, _ in SHAPES], launches // len(SHAPES))
    later = [number for number, blocks in enumerate(grids.tolist(), 1) if blocks == 7][4:]
    for name, of in whole.items():
        assert sorted(of) == sorted(part[name]) == [*range(1, launches + 1)]
        assert sorted(reduced.get(name, {})) == (later if name not in ("keyed", "log") else []), (
            "the first four of a grid are full"
        )
    for name, found in reduced.items():
        for launch, (size, sums) in found.items():
            buffer, left = whole[name][launch], part[name][launch]
            assert size == buffer.map.size(buffer.launch.blocks, buffer.launch.threads) or name == "log"
            if name == "bins":
                assert sums == maps[name][launch]
                assert left.read().bins.tolist() == buffer.read().bins.tolist()
                continue
            records, dropped, saves, fields = reduce(buffer)
            assert sums[:3] == (records, dropped, saves)
            assert dropped or name != "rows"
            for field, (total, least, greatest, bits) in fields.items():
                if field != "any":
                    assert sums[3][field][1:] == (least, greatest, bits), (name, field)
                    assert sums[3][field][0] == pytest.approx(total, rel=1e-12), (name, field)
                    assert sums[3][field][0] == total or "f" in buffer.map.types[field]
            told = left.read_sums()
            assert (told.records, told.dropped, told.saves) == (records, dropped, saves)
            for field, (total, least, greatest, bits) in sums[3].items():
                one = told.fields[field]
                assert (one.least, one.greatest) == (least, greatest)
                assert {at: count for at, count in enumerate(one.bins, one.first) if count} == bits
                assert (one.total - total) % (1 << 64) == 0
    assert maps["keyed"] == read_maps(some)["keyed"]


def answers(path, name):
    done = asked.run(name, path, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    return asked.Answers(done.stdout)


@pytest.mark.full
@pytest.mark.parametrize("how", ["default", "graph"])
def test_analyses_have_the_right_totals(tmp_path, program, how):
    shapes = [(300, 70, 3)] * (10 if how == "graph" else 20)
    all_ = run(tmp_path / "all", program, how, probes=["block_sched", "warp_sched"], shapes=shapes)
    some = run(tmp_path / "some", program, how, "--detail", "2", probes=["block_sched", "warp_sched"], shapes=shapes)
    assert os.path.getsize(some) + 18 * 1000 < os.path.getsize(all_) + sum(
        file.stat().st_size for file in all_.parent.glob("*.buffers")
    )
    for name, totals in (("block_sched", "launches and blocks"), ("warp_sched", "launches, warps, means and spans")):
        found, wanted = answers(some, name), answers(all_, name)
        assert f"detail: 2 of 20 launches, totals: {totals}" in found.verdicts["kernels"]
        assert not any("detail" in line for line in wanted.verdicts["kernels"])
    (row,), (other,) = (answers(path, "block_sched").rows["kernels"] for path in (some, all_))
    assert (row["launches"], row["blocks"], row["silent"]) == (other["launches"], other["blocks"], other["silent"])
    assert row["clocks"] > 0
    rows = answers(some, "warp_sched").rows["launches"]
    assert [("p50" in row, row["warps"], row["mean"] > 0) for row in rows] == [(at < 2, 900, True) for at in range(20)]


@pytest.mark.full
def test_a_launch_no_larger_than_its_sums_keeps_its_detail(tmp_path, program):
    some = run(tmp_path / "some", program, "default", "--detail", "0", probes=["block_sched"], shapes=[(6, 70, 0)] * 3)
    assert not read_reduced(some)
    assert len(answers(some, "block_sched").rows["launches"]) == 3
