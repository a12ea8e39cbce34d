"""The same probe in the same kernel gives the same buffers, whether it's woven into machine code or PTX.

The machine code runs on the interpreter, the PTX on the simulated device. In these kernels, ptxas turns each access
into one access, and drops none.
"""

import itertools
from collections import Counter

import pytest

from tests.probe.sass import running
from tests.probe.sass.both_ways import NUMBERS, agreed, from_ptx
from tests.sass.interp.cases import CASES
from tests.tiers import every, full

MAPS = {
    "blocks": """type = "total"
level = "block"
data = {sum = "u64", few = "u32", least = "u32", low = "s32", high = "s64", far = "u64"}
min = ["least", "low", "far"]
max = ["high"]""",
    "warps": """type = "total"
level = "warp"
leader = "active"
counts = false
data = {sum = "u64", most = "u32"}
max = ["most"]""",
    "floats": """type = "total"
level = "block"
data = {sum = "f32", wide = "f64"}""",
    "threads": """type = "total"
level = "thread"
data = {sum = "u64", low = "s32"}
min = ["low"]""",
    "numbers": """type = "histogram"
data = {value = "u32"}
low = 7
high = 1002
step = 5""",
    "rows": """type = "table"
key = ["zone", "far"]
cap = 9
data = {zone = "u32", far = "u64", sum = "u64", low = "s32", part = "f32"}
min = ["low"]""",
}
SAVES = {
    "blocks": "SAVE [blocks] {%far, %value, %value, %low, %high, %far};",
    "warps": "SAVE [warps] {%first, %zone};\nSAVE [warps] {%zone, %zone};",
    "floats": "SAVE [floats] {%number, %wide};",
    "threads": "SAVE [threads] {%far, %low};\nSAVE [threads] {%value, %low};",
    "numbers": "SAVE [numbers] {%value};",
    "rows": "and.b32 %value, %value, 1;\ncvt.u64.u32 %far, %value;\nsub.u64 %far, 4294967295, %far;\n"
    "SAVE [rows] {%zone, %far, %first, %low, %number};",
}
PROBE = """
[map.{name}]
{map}

[probe.end]
position = "kernel"
level = "{level}"
after = '''.reg .u32 %value;
.reg .u32 %zone;
.reg .s32 %low;
.reg .s64 %high;
.reg .u64 %far;
.reg .u64 %first;
.reg .f32 %number;
.reg .f64 %wide;
mov.u32 %zone, %ctaid.x;
add.u32 %zone, %zone, 3;
mul.wide.u32 %first, %zone, 1000000007;
mad.lo.u32 %value, %zone, 1000, %tid.x;
sub.s32 %low, 3300, %value;
cvt.s64.s32 %high, %low;
sub.s64 %high, %high, 100000000000;
cvt.u64.u32 %far, %value;
mad.lo.u64 %far, %far, 12297829382473034410, 7;
cvt.rn.f32.u32 %number, %value;
cvt.f64.f32 %wide, %number;
{saves}'''
"""


@pytest.mark.parametrize(
    ("name", "probe", "fields"),
    [
        ("widths-2x64-5", "gmem_bytes", None),
        full("votes-2x96-5", "gmem_bytes", None),
        full("bulk-2x256-5", "gmem_bytes", None),
        full("reduction-2x256-5", "sync_wait", ["waits"]),
        full("products-2x64-5", "tensorop_count", None),
        full("reduction-2x256-5", "warp_sched", ["block"]),
    ],
)
def test_buffers_are_equal(tmp_path, name, probe, fields):
    case = CASES[NUMBERS[name]]
    try:
        made = running.woven(case, probe)
        wanted = running.records(case, *from_ptx(tmp_path, case, probe))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = running.records(case, made.maps[0], running.run(case, made, strict=False).buffers[0])

    def chosen(units):
        return [(count, [[row[key] for key in fields or row] for row in rows]) for count, rows in units]

    assert chosen(found) == chosen(wanted)


@pytest.mark.parametrize(
    ("name", "kind"),
    every(  # `make test` runs one
        18,
        [
            *itertools.product(("reduction-2x256-5", "leaving-2x33-5", "groups-2x50-5"), sorted({*MAPS} - {"warps"})),
            # All lanes leave together.
            *itertools.product(("widths-2x64-5", "votes-2x96-5", "groups-2x50-5"), ["warps"]),
        ],
    ),
)
def test_totals_are_equal(tmp_path, name, kind):
    """Totals of every kind are compared, with one writer per unit or many: stores, atomics, and sums over lanes."""
    case, probe = CASES[NUMBERS[name]], tmp_path / "probe.toml"
    level = "thread" if kind in ("numbers", "rows") else kind.removesuffix("s") if kind != "floats" else "block"
    probe.write_text(PROBE.format(name=kind, map=MAPS[kind], saves=SAVES[kind], level=level))
    found = agreed(tmp_path, case, probe)
    assert all(rows for _, rows in found[kind == "rows" :])


@pytest.mark.parametrize("name", [full("reduction-2x256-5"), full("blockwide-2x160-5")])
def test_shared_memory_addresses_are_equal(tmp_path, name):
    """Each lane's address in each access is compared. On the simulated device, the shared memory window begins
    elsewhere.
    """
    case = CASES[NUMBERS[name]]
    try:
        made = running.woven(case, "bank_conflict")
        wanted = running.entries(case, *from_ptx(tmp_path, case, "bank_conflict"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert all(site.matched == site.woven for site in made.sites)
    plain, probed = running.run(case), running.run(case, made)
    assert (plain.out == probed.out).all()
    assert not probed.early

    def accesses(rows):
        first = min(row["address"] for row in rows)
        return [(row["unit"], row["address"] - first, row["bytes"]) for row in rows]

    assert accesses(running.entries(case, made.maps[0], probed.buffers[0])) == accesses(wanted)


SAMPLED = """
[map.m]
level = "thread"
cap = 5
data = {{block = "u64", warp = "u32", sampled = "u32"}}

[probe.some]
position = "ld.global"
level = "thread"
sample = "{sample}"
before = '''.reg .u32 %one;
mov.u32 %one, 1;
SAVE [m] {{BLOCK, WARPID, %one}};'''

[probe.all]
position = "ld.global"
level = "thread"
before = '''.reg .u32 %none;
mov.u32 %none, 0;
SAVE [m] {{BLOCK, WARPID, %none}};'''
"""


@pytest.mark.parametrize(("name", "sample"), [full("groups-2x50-5", "block/2"), full("reduction-2x256-5", "warp/3")])
def test_samples_are_equal(tmp_path, name, sample):
    """Blocks or warps that aren't sampled jump over one of two probes. The other probe still gets its values."""
    case, probe = CASES[NUMBERS[name]], tmp_path / "probe.toml"
    probe.write_text(SAMPLED.format(sample=sample))
    wanted = agreed(tmp_path, case, probe)
    level, every = sample.split("/")
    for thread, (count, rows) in enumerate(wanted):
        block, warp = thread // case.block, thread % case.block // 32
        unit = block if level == "block" else block * -(-case.block // 32) + warp
        sampled = [1, 0] if unit % int(every) == 0 else [0]
        loads, rest = divmod(count, len(sampled))
        assert not rest
        assert [list(row.values()) for row in rows[:count]] == [[block, warp, one] for one in sampled * loads][:5]


LOG = """
[map.m]
level = "thread"
cap = "dynamic"
budget = 65536
data = {even = "u64", near = "s64", far = "u64", short = "u16", part = "f32", wide = "f64", time = "u64", lane = "u32"}

[probe.access]
position = "ld.global"
level = "thread"
before = '''.reg .u32 %lane; .reg .u32 %square; .reg .u64 %even; .reg .s64 %near; .reg .u64 %far; .reg .u16 %short;
.reg .f32 %part; .reg .f64 %wide;
mov.u32 %lane, LANEID;
mul.lo.u32 %square, %lane, %lane;
cvt.u64.u32 %even, %lane;
mad.lo.u64 %even, %even, 24, BLOCK;
cvt.s64.u32 %near, %square;
sub.s64 %near, %near, 300;
cvt.u64.u32 %far, %square;
mul.lo.u64 %far, %far, 81985529216486895;
cvt.u16.u32 %short, %square;
cvt.rn.f32.u32 %part, %lane;
cvt.rn.f64.u32 %wide, %square;
SAVE [m] {%even, %near, %far, %short, %part, %wide, TIME, %lane};'''
"""


@pytest.mark.parametrize("name", ["groups-2x50-5", full("votes-2x96-5")])
def test_log_entries_are_equal(tmp_path, name):
    """Each way to store a log's values is compared: at equal distances, as distances of 32 and 64 bits, and lane by
    lane.
    """
    case, probe = CASES[NUMBERS[name]], tmp_path / "probe.toml"
    probe.write_text(LOG)
    try:
        made = running.woven(case, str(probe))
        other, data = from_ptx(tmp_path, case, str(probe))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert made.maps[0].stored == other.stored == ("lane",) * 4 + ("each",) * 2 + ("shared", "each")
    plain, probed = running.run(case), running.run(case, made)
    assert (plain.out == probed.out).all() and not probed.early
    counts = []
    for placed, buffer in ((other, data), (made.maps[0], probed.buffers[0])):
        rows = running.entries(case, placed, buffer)
        for row in rows:
            block, thread = divmod(row["unit"], case.block)
            lane = thread % 32
            far = lane * lane * 81985529216486895 % (1 << 64)
            values = lane * 24 + block, lane * lane - 300, far, lane * lane, float(lane), float(lane * lane)
            assert tuple(row.values())[1:7] == values and row["lane"] == lane and row["time"] > 0
        counts.append(Counter(row["unit"] for row in rows))
    assert counts[0] == counts[1] and counts[0]


RINGS = """
[map.m]
level = "warp"
ring = 3

[probe.wait]
position = "bar.sync"
level = "warp"
before = '''.reg .u32 %n = 0;
RANGE begin wait, %n;'''
after = '''RANGE end wait, %n;
add.u32 %n, %n, 1;'''
"""


@pytest.mark.parametrize("name", ["reduction-2x256-5"])
def test_rings_are_equal(tmp_path, name):
    """Each warp passes 4 barriers, so it makes 8 records and keeps 3 of them."""
    case, probe = CASES[NUMBERS[name]], tmp_path / "probe.toml"
    probe.write_text(RINGS)
    try:
        made = running.woven(case, str(probe))
        other, data = from_ptx(tmp_path, case, str(probe))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert made.maps[0].stored == other.stored == ("clock", "sm", "shared", "shared")
    plain, probed = running.run(case), running.run(case, made)
    assert (plain.out == probed.out).all() and not probed.early
    warps = case.grid * case.block // 32
    for placed, buffer in ((other, data), (made.maps[0], probed.buffers[0])):
        saved = running.saved(case, placed, buffer)
        rows = zip(saved.units.tolist(), saved.slots["range"].tolist(), saved.slots["number"].tolist(), strict=True)
        last = [(warp, edge, number) for warp in range(warps) for edge, number in ((1, 2), (0, 3), (1, 3))]
        assert [*rows] == last
        assert saved.overwritten == 5 * warps and saved.counts[0] == 8 * warps
        same = saved.units[1:] == saved.units[:-1]
        assert (saved.slots["clock"][1:] > saved.slots["clock"][:-1])[same].all()
        assert len(saved.pairs.sm) == 2 * warps and (saved.pairs.time > 0).all()


ENTRY = """
[map.m]
level = "warp"
ring = 1

[probe.kernel]
position = "kernel"
level = "warp"
before = '''.reg .u32 %n = 5;
add.u32 %n, %n, 1;
RANGE begin kernel, %n;'''
after = "RANGE end kernel, %n;"
"""


@pytest.mark.parametrize("ring", [1, 2])
def test_a_probe_at_the_entry_keeps_its_values(tmp_path, ring):
    """The ring that a warp has claimed at the kernel's entry, and a register with an initial value, which is changed
    there.
    """
    case, probe = CASES[NUMBERS["widths-2x64-5"]], tmp_path / f"probe{ring}.toml"
    probe.write_text(ENTRY.replace("ring = 1", f"ring = {ring}"))
    try:
        made = running.woven(case, str(probe))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    plain, probed = running.run(case), running.run(case, made)
    assert (plain.out == probed.out).all() and not probed.early
    saved = running.saved(case, made.maps[0], probed.buffers[0])
    rows = zip(saved.units.tolist(), saved.slots["range"].tolist(), saved.slots["number"].tolist(), strict=True)
    assert [*rows] == [(warp, edge, 6) for warp in range(4) for edge in (0, 1)[-ring:]]
    assert (saved.overwritten, saved.dropped) == (4 * (2 - ring), 0)
