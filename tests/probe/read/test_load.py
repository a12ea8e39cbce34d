"""Probe files: every format gives the same objects; contradictions are rejected with their line."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.probe.model import Field, Line, Position, Register, Save
from gpt.probe.read import load
from gpt.probe.read.load import find_probe, load_probes, parse_toml
from gpt.probe.read.show import to_toml
from gpt.probe.verify import verify
from gpt.ptx.tree import Instruction, Name
from tests.probe.read.written import COOPERATING, DYNAMIC, PYTHON, SCHEDULING, SECOND
from tests.tiers import examples


def read(text, tmp_path, name="probe.toml"):
    path = tmp_path / name
    path.write_text(text)
    file = load_probes(path)
    verify(file)
    return file


def text_of(snippet):
    return [str(line.node) for line in snippet.lines]


def test_the_example_of_the_first_generation(tmp_path):
    file = read(SCHEDULING, tmp_path)
    assert file.callback == "block_sched_local.py"
    (probe,) = file.probes
    assert (probe.name, probe.positions, probe.level) == ("block_sched", (Position("kernel"),), "warp")
    assert text_of(probe.before) == ["mov.u64 %lstart, %clock64;"]
    assert [line.line for line in probe.before.lines] == [10]
    assert [line.line for line in probe.after.lines] == [12, 13, 14, 15, 16]
    assert probe.after.lines[3] == Line(Save("block_sched", (Name("%lstart"),), ("u64",), 0, False), 15)
    assert probe.after.lines[4].node == Save("block_sched", (Name("%elapse"), Name("%smid")), ("u32", "u32"), 1, True)
    (map_,) = file.maps
    assert (map_.name, map_.level, map_.size, map_.capacity, map_.stride) == ("block_sched", "warp", 16, 1, 16)
    assert map_.fields == (Field("lstart", "u64", 0), Field("elapse", "u32", 8), Field("smid", "u32", 12))
    assert [(r.name, r.type) for r in file.registers] == [
        ("%lstart", "b64"),
        ("%lend", "b64"),
        ("%elapsed", "b64"),
        ("%elapse", "b32"),
    ]


def test_probes_that_cooperate(tmp_path):
    file = read(COOPERATING, tmp_path)
    total, access, divergent = file.probes
    assert [map_.name for map_ in file.maps] == ["total"]
    assert access.positions == tuple(
        Position("opcode", tuple(text.split("."))) for text in ("ld.global", "st.global", "cp.async.cg", "cp.async.ca")
    )
    assert access.after.helpers == {"BYTES"}
    assert not access.after.saves
    assert (total.no_pred, access.no_pred, divergent.no_pred) == (False, False, True)


def test_a_log_without_bound(tmp_path):
    file = read(DYNAMIC, tmp_path)
    (map_,) = file.maps
    assert (map_.level, map_.size, map_.capacity) == ("thread", 16, None)
    assert [field.name for field in map_.fields] == ["now", "addr"]


@pytest.mark.parametrize("count", ["dynamic", "count"])
def test_capacities(count, tmp_path):
    text = DYNAMIC.replace("dynamic = true\n", "")
    assert read(text.replace(":count", f":{count}"), tmp_path).maps[0].capacity is None
    assert read(text.replace(":count", ":128"), tmp_path).maps[0].capacity == 128
    assert read(text.replace(":count", ""), tmp_path).maps[0].capacity == 1


def test_the_second_generation(tmp_path):
    file = read(SECOND, tmp_path)
    assert file.callback == "sched.py"
    sched, log = file.maps
    assert (sched.level, sched.size, sched.capacity) == ("warp", 16, 1)
    assert sched.fields == (Field("start", "u64", 0), Field("elapsed", "u32", 8), Field("cuid", "u32", 12))
    assert (log.level, log.size, log.capacity) == ("thread", 16, None)
    assert {register.name: register.type for register in file.registers} == {
        "%NR0": "u64",
        "%NR1": "u64",
        "%PD0": "u32",
    }
    begin, end, access = file.probes
    assert begin.after is None
    assert end.before is None
    assert end.after.saves == [Save("sched", (Name("%NR0"), Name("%PD0"), Name("SMID")), ("u64", "u32", "u32"))]
    assert [line.line for line in end.after.lines] == [28, 29, 30]
    assert access.level == "thread"


def test_undeclared_registers_have_no_type(tmp_path):
    text = """[map.m]
type = "total"
data = {n = "u64", least = "f32", now = "u64"}
[probe.end]
pos = "kernel"
after = "SAVE [m] {%NR0, %NR1, %NR2};"
[probe.p]
pos = "ld.global"
before = "add.u32 %NR0, %NR0, 1; min.f32 %NR1, %NR1, 0f00000000; and.b32 %NR3, %NR1, 3; add.f32 %NR3, %NR1, %NR1;"
"""
    file = read(text, tmp_path)
    assert {register.name: register.type for register in file.registers} == {
        "%NR0": "u32",
        "%NR1": "f32",
        "%NR2": "u64",
        "%NR3": "b32",
    }


@pytest.mark.parametrize(
    "fields",
    ['{a = "u64", b = "u32"}', '{a = ["u64", 0], b = ["u32", 0]}', '[["a", "u64"], ["b", "u32"]]',
     '[{name = "a", type = "u64"}, {name = "b", type = "u32"}]'],
)  # fmt: skip
def test_fields_however_written(fields, tmp_path):
    probe = '[probe.p]\npos = "kernel"\nlevel = "warp"\nafter = "SAVE [m] {1, 2};"'
    text = f'[map.m]\nlevel = "warp"\ndata = {fields}\n{probe}'
    (map_,) = read(text, tmp_path).maps
    assert map_.fields == (Field("a", "u64", 0), Field("b", "u32", 8))
    assert (map_.size, map_.stride) == (12, 16)


def test_python_says_the_same_as_toml(tmp_path):
    python, toml = read(PYTHON, tmp_path, "probe.py"), read(SECOND, tmp_path)
    assert python.maps[0].fields == toml.maps[0].fields
    assert [(p.name, p.positions, p.level) for p in python.probes] == [
        (p.name, p.positions, p.level) for p in toml.probes[:2]
    ]
    assert python.callback == toml.callback
    assert text_of(python.probes[0].before) == ["mov.b64 %start, CLOCK;"]
    assert python.probes[1].after.lines[0].node == Instruction(
        "sub", (".u64",), (Name("%elapsed"), Name("CLOCK"), Name("%start"))
    )
    assert Register("%start", "u64", "0", 13) in python.registers


def test_snippets_on_one_line_of_the_file(tmp_path):
    text = "\n[p]\nposition = 'kernel'\nafter = \"mov.u32 %NR0, 1;\\nmov.u32 %NR0, 2;\\nEND\"\n"
    file = read(text.replace("END", ""), tmp_path)
    assert [line.line for line in file.probes[0].after.lines] == [4, 4]
    with pytest.raises(MalformedError, match=r"probe.toml:4: probe 'p': unexpected '#'"):
        read(text.replace("END", "#"), tmp_path)


def test_line_ends_of_windows(tmp_path):
    (tmp_path / "w.toml").write_bytes(SCHEDULING.replace("\n", "\r\n").encode())
    assert load_probes(tmp_path / "w.toml").probes == read(SCHEDULING, tmp_path).probes


# Refusals

P = '[p]\nposition = "kernel"\n'
LOG = "[map.m]\ndata = ['u64']\ncap = 'count'\nbudget = "
Q = '[probe.p]\npos = "kernel"\n'


@pytest.mark.parametrize(
    ("text", "line", "fact", "kind"),
    [
        ("[p\n", 1, "TOML: ", MalformedError),
        ("", None, "no probe in it", GptError),
        ("[p]\nbefore = ''\n", 1, "probe 'p': needs one position", MalformedError),
        (P, 1, "probe 'p': neither 'before' nor 'after'", MalformedError),
        (P + "befor = ''\n", 3, "probe 'p': unknown key 'befor'", MalformedError),
        (P + "before = 3\n", 3, "probe 'p': 'before' is not a string", MalformedError),
        (P + "no_pred = 'yes'\nbefore = ''\n", 3, "'no_pred' is neither true nor false", MalformedError),
        (P + "datamodel = 'warp'\nbefore = ''", 3, "datamodel 'warp' is not LEVEL:BYTES[:CAPACITY]", MalformedError),
        (P + "datamodel = 'lane:8'\nafter = 'SAVE.u64 {1};'", 3, "level 'lane' is not one of", GptError),
        (P + "datamodel = 'warp:8:many'\nafter = 'SAVE.u64 {1};'", 3, "'many' is not a number", MalformedError),
        (P + "datamodel = 'warp:8:0'\nafter = 'SAVE.u64 {1};'", 3, "capacity 0 is not from 1", GptError),
        (P + "datamodel = 'warp:4'\nafter = 'SAVE.u64 {1};'", 3, "8 bytes of fields in a record of 4", GptError),
        (P + "datamodel = 'warp:8'\nafter = ''", 3, "a datamodel and no SAVE", GptError),
        (P + "datamodel = 'warp:8'\nlevel = 'thread'\nafter = ''", 4, "level 'thread' and datamodel", GptError),
        (P + "after = 'SAVE.u64 {1};'", 1, "saves without a datamodel", GptError),
        (P + "datamodel = 'warp:9999'\nafter = 'SAVE.u64 {1};'", 3, "a record of 9999 bytes", GptError),
        ("dynamic = false\n" + P + "datamodel = 'warp:8:count'\nafter = 'SAVE.u64 {1};'", 4, "dynamic =", GptError),
        (P + "sample = 'lane/3'\nafter = ''", 3, "sample 'lane/3' is not 'block/N' or 'warp/N'", MalformedError),
        (P + "before = '''\nmov.u32 %a, ;\n'''", 4, "probe 'p': unexpected ';'", MalformedError),
        (P + "before = '''\n\n#\n'''", 5, "probe 'p': unexpected '#'", MalformedError),
        (P + "before = '''\nret; /*\n'''", 4, "probe 'p': comment without end", MalformedError),
        (P + "before = '''.reg .b32 %a;\n{ .reg .b32 %b; }'''", 4, "a probe may not contain scopes", GptError),
        (P + "before = '.shared .b32 %a;'", 3, "declares no plain register", GptError),
        (P + "before = '.reg .b32 %a<99>;'", 3, "more than 64 registers", GptError),
        (P + "before = '.loc 1 2 3'", 3, "a probe may not contain '.loc'", GptError),
        (P + "before = 'SAVE {%a};'", 3, "is neither 'SAVE.u64 {%a};' nor", MalformedError),
        (P + "before = '.reg .b32 %a;'\n[q]\nposition='kernel'\nbefore='.reg .b64 %a;'", 6, ".b32 in line 3", GptError),
        ("x = 3\n" + P + "before = ''", 1, "unknown key 'x'", MalformedError),
        ('[p]\nposition = "line:f.cu"\nbefore = ""', 2, "position 'line:f.cu' lacks a part", MalformedError),
        ('[p]\nposition = "ld.:st"\nbefore = ""', 2, "position 'ld.' is not an opcode", MalformedError),
        (Q + "before = ''\n[other]\nposition = ''", 4, "table 'other' is neither", MalformedError),
        (Q + "after = 'SAVE.u64 {1};'", 3, "SAVE names no map", GptError),
        ("[map.m]\ndata = ['u64']\n", None, "no probe in it", GptError),
        ("[map.m]\ndata = ['u64']\n[probe.p]\n[probe.q]\n", 3, "probe 'p': needs one position", MalformedError),
        (Q + "after = 'SAVE [m] {1};'", 3, "saves to 'm', which is not a map of this file", GptError),
        (Q + "after = 'mov.u32 %NR0, 1; mov.u64 %NR0, 1;'", 3, "'%NR0' is .u64 here and .u32", GptError),
        ("[map.m]\nlevel = 'warp'\n" + Q + "after = ''", 1, "map 'm': needs its fields", MalformedError),
        ("[map.m]\nlevel = 'warp'\ndata = {a = 'x'}\n" + Q + "after = ''", 3, "has no valid type", MalformedError),
        ("[map.m]\ntype = 'hash'\ndata = ['u64']\n" + Q + "after = ''", 2, "type 'hash' is not one of array", GptError),
        ("[map.m]\nsize = 4\ndata = ['u64']\n" + Q + "after = ''", 1, "8 bytes of fields in a record of 4", GptError),
        ("[map.m]\ndata = ['u64']\nbudget = 9\n" + Q + "after = ''", 1, "both a budget and a fixed capacity", GptError),
        (LOG + "9" * 30 + "\n" + Q + "after = ''", 1, "a budget of 9", GptError),
        (LOG + "2559\n" + Q + "after = ''", 1, "a budget of 2559 bytes; it may be from 2560 to 34359738368", GptError),
        (LOG + f"{(1 << 35) + 1}\n" + Q + "after = ''", 1, "a budget of 34359738369 bytes; it may be", GptError),
        (P + "datamodel = ':8'\nafter = ''", 3, "datamodel ':8' is not LEVEL:BYTES", MalformedError),
        (P + "datamodel = 'warp:\u0668'\nafter = ''", 3, "is not LEVEL:BYTES", MalformedError),
        (LOG + "9" * 5000 + "\n" + Q, None, "TOML: exceeds", MalformedError),
        ("[map.m]\ndata = [[['u64'], 'u64']]\n" + Q + "after = ''", 2, "has no valid type", MalformedError),
        (Q + "register = {'%a' = ['u64']}\nafter = 'mov.u64 %a, 1;'", 4, "register '%a' is not declared", GptError),
        (P + "datamodel = 'warp:" + "1" * 5000 + "'\nafter = ''", 3, "is not LEVEL:BYTES", MalformedError),
        ("[p]\nposition = 'line:f.cu:" + "1" * 5000 + "'\nafter = ''", 2, "is not a line", MalformedError),
        ("[map.m]\nleader = 'lane0'\ndata = ['u64']\n" + Q + "after = ''", 1, "a leader where every thread", GptError),
        ("[map.m]\ndata = ['u64']\n" + Q + "after = ''", 1, "no probe saves to it", GptError),
        (
            "[map.m]\nlevel = 'warp'\ndata = ['u64']\n" + Q + "after = 'SAVE [m] {1};'",
            6,
            "of level thread saves to map 'm' of level warp",
            GptError,
        ),
        (Q + "after = '.reg .u32 %a = %b;'", 3, "'%a = %b' is not a register", GptError),
        (Q + "after = '.reg .f32 %a = 1.5;'", 3, "is not a register", GptError),
        (Q + "after = '.reg .u32 %a = 4294967296;'", 3, "is not a register", GptError),
        (Q + "after = '.reg .u8 %a = 1;'", 3, "is not a register", GptError),
        (Q + "after = '.reg .pred %a = 1;'", 3, "is not a register", GptError),
        (Q + "after = '.reg .u32 %a<2> = 1;'", 3, "is not a register", GptError),
        (Q + "after = '.reg .u32 %a = 1; .reg .u32 %a = 2;'", 3, "'%a' begins with 2 here", GptError),
        (Q + "after = 'SAVE [\"a b\"] {1};'", 3, "is neither", MalformedError),
        ("[map.p]\ndata = ['u64']\n" + Q + "after = 'SAVE.u32 {1};'", 5, "SAVE.u32 of 1 from field 0 on", GptError),
        ("[map.p]\ndata = ['u64', 'u64']\n" + Q + "after = 'SAVE.u64 {1};'", 3, "saves 1 values, map 'p'", GptError),
        ("[map.m]\ndata = ['u64']\n" + Q + "after = 'SAVE [m] {1, 2};'", 5, "saves 2 values, map 'm' has 1", GptError),
    ],
)  # fmt: skip
def test_refusals_name_file_and_line(text, line, fact, kind, tmp_path):
    with pytest.raises(kind) as error:
        read(text, tmp_path)
    path = str(tmp_path / "probe.toml")
    assert error.value.where == (path if line is None else f"{path}:{line}")
    assert fact in error.value.fact
    assert "\n" not in error.value.fact


def test_missing_or_binary_files(tmp_path):
    with pytest.raises(MissingError, match="no such probe file"):
        find_probe(str(tmp_path / "none.toml"))
    with pytest.raises(MissingError, match="no such probe file"):
        load_probes(tmp_path / "none.toml")
    (tmp_path / "b.toml").write_bytes(b"[p]\nx = '\xff'")
    with pytest.raises(MalformedError, match=r"b.toml:2: not UTF-8"):
        load_probes(tmp_path / "b.toml")
    with pytest.raises(MissingError):
        find_probe("../../etc/hostname.toml")
    os.truncate(tmp_path / "b.toml", 1 << 40)
    with pytest.raises(MalformedError, match="larger than 1 MiB"):
        load_probes(tmp_path / "b.toml")


def test_a_pipe_is_a_file(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(path.write_text, SCHEDULING)
        assert load_probes(find_probe(str(path))).probes[0].name == "block_sched"


def test_a_file_of_that_name_is_found(tmp_path):
    (tmp_path / "p.toml").write_text(SCHEDULING)
    assert find_probe(str(tmp_path / "p.toml")) == Path(tmp_path / "p.toml")


@settings(max_examples=examples(200))
@given(st.data())
def test_mutated_files_are_read_or_refused(data):
    text = data.draw(st.sampled_from([SCHEDULING, COOPERATING, DYNAMIC, SECOND]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(
            st.sampled_from(["", '"', "[", "]", "{", "\n", ";", "=", "%", "9", "SAVE", "ADDR", "'''", "(" * 80])
        )
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 8)) :]
    try:
        verify(parse_toml(text, "p.toml"))
    except GptError as error:
        assert error.where.startswith("p.toml")
        assert "\n" not in error.fact


@pytest.mark.parametrize(
    "text",
    [
        "[x]\nposition = 'kernel'\ndatamodel = '''warp\n8'''\nbefore = 'SAVE.u64 {CLOCK};'\n",
        "[x]\nposition = '''ld\n;'''\nbefore = 'SAVE.u64 {CLOCK};'\n",
        "[map.\"a\\nb\"]\ndata = {a = 'u64'}\n[probe.x]\nposition = 'kernel'\nbefore = '.reg .b64 %a;'\n",
        "[\"x\\ny\"]\nposition = 'kernel'\nbefore = '''exit;'''\n",
        "[x]\nposition = 'kernel'\nbefore = '''.reg .b32 %a; mov.b32 %a, \"\n\";'''\n",
    ],
)
def test_a_message_is_one_line_whatever_it_quotes(text):
    with pytest.raises(GptError) as error:
        verify(parse_toml(text, "p.toml"))
    assert error.value.fact.isprintable()


def test_callback_is_found_next_to_the_probe_or_built_in(tmp_path, monkeypatch):
    text = 'callback = "{}"\n[m]\nposition = "kernel"\ndatamodel = "warp:8"\nbefore = "SAVE.u64 {{CLOCK}};"\n'
    (tmp_path / "built").mkdir()
    monkeypatch.setattr(load, "BUILTIN", tmp_path / "built")
    here, there, probe = tmp_path / "p" / "here.py", tmp_path / "built" / "there.py", tmp_path / "p" / "probe.toml"
    for path in (here, there):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for name, found in (
        ("here.py", here), ("there.py", there), ("../p/here.py", here), (str(there), there), ("absent.py", None),
        ("probe.toml", None), ("here", None), ("gmem_bytes", None), ("..", None), ("x" * 5000 + ".py", None),
    ):  # fmt: skip
        probe.write_text(text.format(name))
        file = load.load_probes(probe)
        assert (file.callback, file.script) == ((str(found),) * 2 if found else (name, None))


TOTAL = """[map.m]
type = "total"
level = "block"
{}
data = {{a = "u64", b = "s32", c = "f32"}}
[probe.p]
position = "kernel"
level = "block"
after = """
TOTAL += '""".reg .u64 %a; .reg .s32 %b; .reg .f32 %c;\nSAVE [m] {{%a, %b, %c}};"""\n'


def test_fields_of_a_total_have_operations(tmp_path):
    keys = 'min = ["a"]\nmax = ["b"]\nlast = ["c"]\ncounts = false\nleader = "active"'
    (map_,) = read(TOTAL.format(keys), tmp_path).maps
    assert [(field.name, field.op) for field in map_.fields] == [("a", "min"), ("b", "max"), ("c", "last")]
    assert (map_.counts, map_.leader) == (False, "active")
    (plain,) = read(TOTAL.format(""), tmp_path).maps
    assert [field.op for field in plain.fields] == ["sum"] * 3 and (plain.counts, plain.leader) == (True, "all")


def test_the_same_in_python(tmp_path):
    text = """from neutrino import probe, Map
import neutrino.language as nl

@Map(level="block", type="total", min=["a"], last=("b",), counts=False)
class m:
    a: nl.u64
    b: nl.u32

@probe(pos="kernel", level="block")
def end():
    m.save(nl.clock(), nl.cuid())
"""
    (map_,) = read(text, tmp_path, "probe.py").maps
    assert [(field.name, field.op) for field in map_.fields] == [("a", "min"), ("b", "last")] and not map_.counts
    assert parse_toml(to_toml(load_probes(tmp_path / "probe.py")), "x").maps[0].fields == map_.fields


@pytest.mark.parametrize(
    ("keys", "fact"),
    [
        ('min = ["d"]', "'min' names 'd', which is not a field"),
        ('min = "a"', "'min' is not a list of fields"),
        ('min = ["a"]\nmax = ["a"]', "field 'a' is in 'min' and in 'max'"),
        ('max = ["c"]', "'max' of field 'c', which isn't an integer"),
        ('counts = "no"', "'counts' is true or false, of a total"),
        ('leader = "first"', "leader 'first' is not one of active, lane0, all"),
    ],
)
def test_inconsistent_total(tmp_path, keys, fact):
    with pytest.raises(GptError, match=fact):
        read(TOTAL.format(keys), tmp_path)


@pytest.mark.parametrize("key", ['min = ["a"]', "counts = false", 'leader = "all"'])
def test_array_rejects_keys_of_totals(tmp_path, key):
    with pytest.raises(GptError, match="total"):
        read(TOTAL.format(key).replace('"total"', '"array"'), tmp_path)


HISTOGRAM = """[map.m]
type = "histogram"
{}
data = {{a = "u32"}}
[probe.p]
position = "kernel"
after = "SAVE [m] {{SMID}};"
"""


def test_the_bins_of_a_histogram(tmp_path):
    (doubling,) = read(HISTOGRAM.format(""), tmp_path).maps
    assert (doubling.scale.step, doubling.stride) == (0, 33 * 8)
    file = read(HISTOGRAM.format("low = 10\nhigh = 50\nstep = 8"), tmp_path)
    assert file.maps[0].scale == (10, 50, 8) and file.maps[0].stride == (5 + 2) * 8
    assert parse_toml(to_toml(file), "x").maps[0].scale == (10, 50, 8)


@pytest.mark.parametrize(
    ("keys", "fact"),
    [
        ("low = 1", "needs low, high and step"),
        ("low = 1\nhigh = 10\nstep = 2", "needs low, high and step, which divides"),
        ("low = 10\nhigh = 10\nstep = 1", "needs low, high and step"),
        ("low = -1\nhigh = 10\nstep = 1", "needs low, high and step"),
        ("low = 0\nhigh = 5000\nstep = 1", "more than 1024 bins"),
        ("low = 0\nhigh = 8589934592\nstep = 4294967296", "'high' is beyond a u32"),
        ("cap = 2", "has one field"),
        ('leader = "active"', "a leader where every thread saves"),
        ('min = ["a"]', "'min' is for totals"),
    ],
)
def test_inconsistent_histogram(tmp_path, keys, fact):
    with pytest.raises(GptError, match=fact):
        read(HISTOGRAM.format(keys), tmp_path)


TABLE = """[map.m]
type = "table"
{}
[probe.p]
position = "kernel"
after = "SAVE [m] {{SMID, TIME, CLOCK}};"
"""
THREE = 'data = {a = "u64", b = "u64", c = "u64"}'


def test_the_slots_of_a_table(tmp_path):
    """A slot has a count, 8 bytes for each 32 bits of the key, and the other fields, aligned by their types."""
    data = 'data = {a = "u32", b = "u64", c = "u64"}'
    file = read(TABLE.format(f'{data}\nkey = ["b", "a"]\ncap = 9\nmin = ["c"]'), tmp_path)
    (map_,) = file.maps
    assert [(field.offset, field.op) for field in map_.fields] == [(8, "key"), (16, "key"), (32, "min")]
    assert (map_.stride, map_.capacity) == (40, 9)
    assert parse_toml(to_toml(file), "x").maps[0].fields == map_.fields
    (plain,) = read(TABLE.format(f'{THREE}\nkey = ["c"]'), tmp_path).maps
    assert plain.capacity == 256 and [field.offset for field in plain.fields] == [24, 32, 8]


@pytest.mark.parametrize(
    ("keys", "fact"),
    [
        (THREE, "the 'key' of a table is one field or 2"),
        (f"{THREE}\nkey = []", "the 'key' of a table is one field or 2"),
        (f'{THREE}\nkey = ["a", "b", "c"]', "the 'key' of a table is one field or 2"),
        (f'{THREE}\nkey = "a"', "'key' is not a list of fields"),
        (f'{THREE}\nkey = ["a", "a"]', "field 'a' is in 'key' and in 'key'"),
        (f'{THREE}\nkey = ["d"]', "'key' names 'd', which is not a field"),
        (f'{THREE}\nkey = ["a"]\nmin = ["a"]', "field 'a' is in 'key' and in 'min'"),
        (f'{THREE}\nkey = ["a"]\nlast = ["b"]', "'last' is for totals"),
        (f'{THREE}\nkey = ["a"]\ncap = 5000', "from 1 to 4096 slots of 40 bytes"),
        (f'{THREE}\nkey = ["a"]\ncap = 0', "from 1 to 4096 slots of 40 bytes"),
        (f'{THREE}\nkey = ["a"]\ncap = "dynamic"', "from 1 to 4096 slots"),
        (f'{THREE}\nkey = ["a"]\nsize = 64', "'size' is not for tables"),
        (f'{THREE}\nkey = ["a"]\ncounts = false', "'counts' is true or false, of a total"),
        (f'{THREE}\nkey = ["a"]\nleader = "active"', "a leader where every thread saves"),
        (f'{THREE}\nkey = ["a"]\nstep = 2', "'step' is for histograms"),
        ('data = {a = "f32", b = "u64", c = "u64"}\nkey = ["a"]', "'key' of field 'a', which isn't an integer"),
        ('data = {a = "u32", b = "u16", c = "u64"}\nkey = ["a"]', "the fields of a table have 4 or 8 bytes"),
    ],
)
def test_inconsistent_table(tmp_path, keys, fact):
    with pytest.raises(GptError, match=fact):
        read(TABLE.format(keys), tmp_path)


def test_others_have_no_bins(tmp_path):
    with pytest.raises(GptError, match="'key' is for tables"):
        read(TOTAL.format('key = ["a"]'), tmp_path)
    with pytest.raises(GptError, match="'low' is for histograms"):
        read(TOTAL.format("low = 1"), tmp_path)
