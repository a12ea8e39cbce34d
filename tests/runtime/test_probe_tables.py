"""Tables, read by an independent reader: what threads saved with each key, and what didn't fit."""

import os
from collections import defaultdict

import pytest

from gpt.stream.wire import read_records
from gpt.trace.probes import Probes
from tests.analyze.asked import ask
from tests.runtime import hooked, probing
from tests.runtime.ends import CLIENT, PTX
from tests.stream.totals_reader import read_maps
from tests.tiers import first

SHAPES = [(1, 1, 0), (6, 70, 3), (2, 32, 5), (3, 256, 0)]
FILE = """
[map.one]
type = "table"
key = ["zone"]
cap = 7
data = {zone = "u32", sum = "u64", least = "u32", low = "s32", high = "s64", part = "f32"}
min = ["least", "low"]
max = ["high"]

[map.two]
type = "table"
key = ["far", "low"]
cap = 300
data = {sum = "u32", far = "u64", wide = "f64", low = "s64"}

[map.few]
type = "table"
key = ["value"]
cap = 4
data = {value = "u64"}

[probe.ends]
position = "kernel"
level = "thread"
after = '''.reg .u32 %value; .reg .u32 %zone; .reg .u64 %far; .reg .f32 %part; .reg .f64 %wide; .reg .s32 %low;
.reg .s64 %high;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
rem.u32 %zone, %value, 7;
sub.s32 %low, 300, %value;
cvt.s64.s32 %high, %low;
sub.s64 %high, %high, 100000000000;
cvt.rn.f32.u32 %part, %zone;
cvt.f64.f32 %wide, %part;
and.b32 %value, %value, 3;
cvt.u64.u32 %far, %value;
sub.u64 %far, 18446744073709551615, %far;
mad.lo.u32 %value, %ctaid.x, 1000, %tid.x;
SAVE [one] {%zone, %value, %value, %low, %high, %part};
sub.s64 %high, 0, 1;
SAVE [two] {%value, %far, %wide, %high};
SAVE [few] {%value};'''
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return probing.build(tmp_path_factory.mktemp("tables"), CLIENT)


def run(folder, program, how, *options):
    words = [str(number) for shape in SHAPES for number in shape]
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    options = ("-f", "-p", probing.probe_file("tables.toml", FILE), *options)
    done = hooked.run(folder / "t.mp", program, PTX, how, *words, options=options, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return read_maps(folder / "t.mp")


def wanted(shape):
    """Return the rows of the tables `one` and `two`, by their keys."""
    blocks, threads, _ = shape
    values = [1000 * block + thread for block in range(blocks) for thread in range(threads)]
    zones, pairs = defaultdict(list), defaultdict(list)
    for value in values:
        zones[(value % 7,)].append(value)
        pairs[(1 << 64) - 1 - value % 4, -1].append(value)
    one = {
        key: (len(saved), {"sum": sum(saved), "least": min(saved), "low": 300 - max(saved),
                           "high": 300 - min(saved) - 10**11, "part": key[0] * len(saved)})
        for key, saved in zones.items()
    }  # fmt: skip
    two = {key: (len(saved), {"sum": sum(saved), "wide": sum(value % 7 for value in saved)})
           for key, saved in pairs.items()}  # fmt: skip
    return one, two, len(values)


@probing.in_both_forms
@pytest.mark.parametrize("how", first("graph", "default"))
def test_tables_have_what_the_threads_saved(tmp_path, program, how, code):
    found = run(tmp_path, program, how)
    shapes = [shape for shape in SHAPES for _ in range(2 if how == "graph" else 1)]
    assert {name: len(launches) for name, launches in found.items()} == dict.fromkeys(
        ("one", "two", "few"), len(shapes)
    )
    for number, shape in enumerate(shapes):
        one, two, few = (sorted(found[name].items())[number][1] for name in ("one", "two", "few"))
        rows_of_one, rows_of_two, threads = wanted(shape)
        assert one == (rows_of_one, 0)
        assert two == (rows_of_two, 0)
        rows, dropped = few
        assert min(threads, 4) <= len(rows) <= min(threads, 4 * shape[0]), "as many keys as slots, for each SM"
        assert all(row == (1, {}) for row in rows.values())
        assert dropped == threads - len(rows)


def test_readers_find_what_the_independent_one_does(tmp_path, program):
    tables = run(tmp_path, program, "default")
    found = Probes(tmp_path)
    with open(tmp_path / "t.mp", "rb") as file:
        for record in read_records(file, "t.mp"):
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                found.add(record)
    for buffer in found.take():
        saved, (rows, dropped) = buffer.read(), tables[buffer.map.name][buffer.launch.id]
        keys = buffer.map.table.keys
        assert saved.dropped == dropped
        read = {}
        for count, row in zip(saved.counts.tolist(), saved.slots, strict=True):
            fields = {name: row[name].item() for name in row.dtype.names}
            read[tuple(fields.pop(key) for key in keys)] = count, fields
        assert read == rows
    every = [wanted(shape) for shape in SHAPES]
    with open(tmp_path / "t.mp", "rb") as file:
        answers = ask("maps", list(read_records(file, "t.mp")))
    table = {(row["zone"],): row for row in answers.rows["table one"]}
    for key in {key for one, _, _ in every for key in one}:
        parts = [one[key] for one, _, _ in every if key in one]
        assert table[key]["saved"] == sum(count for count, _ in parts)
        assert table[key]["sum"] == sum(fields["sum"] for _, fields in parts)
        assert table[key]["least"] == min(fields["least"] for _, fields in parts)
        assert table[key]["high"] == max(fields["high"] for _, fields in parts)
    assert any("had no room for all keys" in line for line in answers.verdicts["few"])
    assert not any("had no room" in line for line in answers.verdicts["one"])
    (whole,) = answers.rows["few"]
    threads = sum(count for _, _, count in every)
    assert whole["records"] + whole["dropped"] == threads and whole["launches"] == len(SHAPES)
