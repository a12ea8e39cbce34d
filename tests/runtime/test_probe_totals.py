"""Totals and histograms, read by an independent reader: sums, minimums, maximums and last values of threads, warps and
blocks, and how often each value was saved.

Threads leave a block together, at several places, from a partial warp, or alone, so their unit has one writer or many.
"""

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from gpt.stream.wire import read_records
from gpt.trace.probes import Probes
from tests.analyze.asked import ask
from tests.runtime import hooked, probing
from tests.runtime.ends import CLIENT, PTX
from tests.stream.totals_reader import read_maps
from tests.tiers import first, full

SHAPES = [(1, 1, 0), (3, 1, 1), (6, 70, 0), (6, 70, 3), (2, 32, 0), (2, 32, 5), (5, 8, 2), (1, 1024, 0), (2, 1000, 7)]
MAP = """
[map.{name}]
type = "total"
level = "{level}"
data = {{sum = "u64", least = "u32", most = "u32", low = "s32", high = "s64", far = "u64", any = "u32"}}
min = ["least", "low", "far"]
max = ["most", "high"]
last = ["any"]
"""
PROBE = """
[probe.{level}]
position = "kernel"
level = "{level}"
after = '''.reg .u32 %value;
.reg .s32 %low;
.reg .s64 %high;
.reg .u64 %far;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
add.u32 %value, %value, 5;
sub.s32 %low, 300, %value;
cvt.s64.s32 %high, %low;
sub.s64 %high, %high, 100000000000;
cvt.u64.u32 %far, %value;
mad.lo.u64 %far, %far, 12297829382473034410, 7;
{saves}'''
"""
LEVELS = ("thread", "warp", "block")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("totals"), CLIENT)


def write_probe(levels):
    """Return a probe file with a total per level, with and without a count, and one lane that saves for others."""
    maps, probes = "", ""
    for level in levels:
        names = [f"{level}_counted", f"{level}_plain", *([] if level == "thread" else [f"{level}_led"])]
        for name in names:
            maps += MAP.format(name=name, level=level)
            maps += "counts = false\n" * name.endswith("plain") + 'leader = "active"\n' * name.endswith("led")
        saves = "\n".join(f"SAVE [{name}] {{%value, %value, %value, %low, %high, %far, %value}};" for name in names)
        probes += PROBE.format(level=level, saves=saves)
    return probing.probe_file("totals.toml", maps + probes)


def run(folder, program, how, shapes, levels=LEVELS):
    words = [str(number) for shape in shapes for number in shape]
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    probe = write_probe(levels)
    done = hooked.run(folder / "t.mp", program, PTX, how, *words, options=("-f", "-p", probe), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return read_maps(folder / "t.mp")


def units_of(level, blocks, threads):
    """Yield the values that the threads of each unit save."""
    for block in range(blocks):
        values = 1000 * block + np.arange(threads) + 5
        size = {"thread": 1, "warp": 32, "block": threads}[level]
        yield from (values[at : at + size] for at in range(0, threads, size))


def check(level, kind, units, shape):
    blocks, threads, apart = shape
    wanted = list(units_of(level, blocks, threads))
    assert len(units) == len(wanted)
    for unit, values in zip(units, wanted, strict=True):
        count, found = unit
        led = kind == "led"
        lowest = values.reshape(-1, 32)[:, 0] if len(values) % 32 == 0 else values[::32]
        saved = lowest if led else values  # however lanes are grouped, the lowest lane of a warp is one of its leaders
        far = (saved.astype(np.uint64) * np.uint64(12297829382473034410) + np.uint64(7)).tolist()
        assert found["any"] in values
        if led and apart:
            assert len(lowest) <= count <= len(values)
            assert values.min() <= found["least"] <= found["most"] <= values.max()
            continue
        assert count == (None if kind == "plain" else len(saved))
        assert found["sum"] == saved.sum() and (found["least"], found["most"]) == (saved.min(), saved.max())
        assert found["low"] == 300 - saved.max() and found["high"] == 300 - saved.min() - 100000000000
        assert found["far"] == min(far)


@pytest.mark.full
@pytest.mark.parametrize("how", first("graph", "default", "stream"))
def test_totals_are_those_of_the_threads(tmp_path, program, how):
    totals = run(tmp_path, program, how, SHAPES)
    assert sorted(totals) == sorted(f"{level}_{kind}" for level in LEVELS for kind in ("counted", "plain", "led")
                                    if (level, kind) != ("thread", "led"))  # fmt: skip
    for name, launches in totals.items():
        shapes = [shape for shape in SHAPES for _ in range(2 if how == "graph" else 1)]
        assert len(launches) == len(shapes)
        for (_, units), shape in zip(sorted(launches.items()), shapes, strict=True):
            check(*name.split("_"), units, shape)


@pytest.mark.full
def test_analyses_read_what_the_independent_reader_does(tmp_path, program):
    totals = run(tmp_path, program, "default", SHAPES)
    found = Probes(tmp_path)
    with open(tmp_path / "t.mp", "rb") as file:
        for record in read_records(file, "t.mp"):
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                found.add(record)
    for buffer in found.take():
        saved, units = buffer.read(), totals[buffer.map.name][buffer.launch.id]
        assert saved.counts.size == len(units) and (saved.counts > 0).all()
        for name in buffer.map.types:
            assert saved.slots[name].ravel().tolist() == [fields[name] for _, fields in units]


TWICE = """
import sys
from gpt.probe.plan.maps import make_map
from gpt.probe.ptx.weave import weave
from gpt.probe.read.load import load_probes
from gpt.trace.buffers import MapLayout
from pathlib import Path
from tests.gpu.weave import Gpu
import ctypes
ptx, probe = (Path(path) for path in sys.argv[1:])
woven = weave(ptx.read_bytes(), "ends", [load_probes(probe)])
gpu = Gpu()
for flag in (0, 1):
    maps = [MapLayout(make_map(number, placed)) for number, placed in enumerate(woven.maps)]
    sizes = [layout.size(2, 32) for layout in maps]
    places = [gpu.put(bytes(size)) for size in sizes]
    for _ in range(3):
        added = [ctypes.c_uint64(place.value | (flag if layout.repeats else 0))
                 for place, layout in zip(places, maps, strict=True)]
        gpu.launch(woven.data + bytes(1), "ends", (2, 1, 1), (32, 1, 1), [ctypes.c_uint32(0), *added])
    for layout, place, size in zip(maps, places, sizes, strict=True):
        saved = layout.read(gpu.take(place, size, layout.name), 2, 32)
        print(flag, layout.name, int(saved.slots["sum"].sum()), int(saved.slots["least"].min()))
"""


@pytest.mark.full
def test_repeated_launch_sums_its_runs(tmp_path):
    """The buffer isn't cleared between the launches, so the value of a unit with one writer mustn't be overwritten.
    Only a warp's lane that saves for all others may store, and only without the flag.
    """
    probe = write_probe(LEVELS)
    sim = hooked.runtime() / "sim"
    env = os.environ | {"GPT_SIM_RUN": "all", "LD_LIBRARY_PATH": str(sim), "XDG_CACHE_HOME": probing.kept()}
    line = [sys.executable, "-c", TWICE, PTX, probe]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=hooked.ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    once = {"plain": sum(values.sum() for values in units_of("block", 2, 32)), "led": 5 + 1005}
    for line in done.stdout.splitlines():
        flag, name, found, least = line.split()
        runs = 1 if flag == "0" and not name.startswith("block") else 3
        assert (int(found), least) == (runs * once.get(name.partition("_")[2], once["plain"]), "5"), line


HISTOGRAMS = """
[map.doubling]
type = "histogram"
data = {value = "u64"}

[map.narrow]
type = "histogram"
data = {value = "u32"}

[map.linear]
type = "histogram"
data = {value = "u32"}
low = 7
high = 1002
step = 5

[map.shifted]
type = "histogram"
data = {value = "u64"}
low = 1000
high = 1064
step = 8

[map.wide]
type = "histogram"
data = {value = "u64"}
low = 3
high = 700000000000703
step = 1000000000001

[map.large]
type = "histogram"
data = {value = "u32"}
low = 2
high = 4294967002
step = 858993400

[probe.end]
position = "kernel"
after = '''.reg .u32 %value;
.reg .u64 %wide;
.reg .pred %odd;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
cvt.u64.u32 %wide, %value;
mul.lo.u64 %wide, %wide, %wide;
mul.lo.u64 %wide, %wide, %wide;
and.b32 %value, %value, 1023;
setp.ne.u32 %odd, %laneid, 3;
SAVE [doubling] {%wide};
@%odd SAVE [narrow] {%value};
SAVE [linear] {%value};
SAVE [shifted] {%value};
SAVE [wide] {%wide};
mul.lo.u32 %value, %value, 4198404;
SAVE [large] {%value};'''
"""


def find_bins(values, starts):
    """Return the bins that contain some of these values, by their lower bounds."""
    counts = Counter(max(start for start in starts if start <= value) for value in values)
    after = dict(zip(starts, [*starts[1:], None], strict=True))
    return [(start, after[start], counts[start]) for start in starts if counts[start]]


@pytest.mark.parametrize(
    ("how", "code"),
    [full("default", "ptx"), full("graph", "ptx"), ("default", "sass"), full("graph", "sass")],
    indirect=["code"],
)
def test_histograms_count_each_value(tmp_path, program, how, code):
    """In machine code, ptxas turns the save under a predicate into a branch, which the weaver has to understand."""
    probe = probing.probe_file("h.toml", HISTOGRAMS)
    words = [str(number) for shape in SHAPES for number in shape]
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    done = hooked.run(tmp_path / "t.mp", program, PTX, how, *words, options=("-f", "-p", probe), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    found = read_maps(tmp_path / "t.mp")
    shapes = [shape for shape in SHAPES for _ in range(2 if how == "graph" else 1)]
    assert sorted(found) == ["doubling", "large", "linear", "narrow", "shifted", "wide"]
    for number, (blocks, threads, _) in enumerate(shapes):
        plain = [1000 * block + thread for block in range(blocks) for thread in range(threads)]
        small = [value & 1023 for value in plain]
        few = [1000 * block + thread & 1023 for block in range(blocks) for thread in range(threads) if thread % 32 != 3]
        doubling = [0, *(2**bit for bit in range(64))]
        launch = {name: sorted(launches.items())[number][1] for name, launches in found.items()}
        assert launch["doubling"] == find_bins([value**4 for value in plain], doubling)
        assert launch["narrow"] == find_bins(few, doubling[:33])
        assert launch["linear"] == find_bins(small, [0, *range(7, 1003, 5)])
        assert launch["wide"] == find_bins(
            [value**4 for value in plain], [0, *range(3, 10**12 * 700 + 704, 10**12 + 1)]
        )
        large = [0, *range(2, 4294967003, 858993400)]
        assert launch["large"] == find_bins([4198404 * value for value in small], large)
        assert launch["shifted"] == find_bins(small, [0, *range(1000, 1065, 8)])
    with open(tmp_path / "t.mp", "rb") as file:
        answers = ask("maps", list(read_records(file, "t.mp")))
    rows = answers.rows["histogram linear"]
    assert sum(row["records"] for row in rows) == sum(blocks * threads for blocks, threads, _ in shapes)
    assert all(row["low"] < row.get("high", 1 << 64) for row in rows)


@pytest.mark.full
def test_a_launch_of_262144_warps(tmp_path, program):
    shape = (8192, 1024, 0)
    for name, launches in run(tmp_path, program, "default", [shape], ["block"]).items():
        (units,) = launches.values()
        check(*name.split("_"), units, shape)
