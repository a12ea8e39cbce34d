"""RANGE in probes of each format, and what's refused."""

import pytest

from gpt.base.errors import GptError
from gpt.probe.read.python import compile_python
from gpt.probe.read.show import to_toml
from gpt.probe.read.toml import parse_toml
from gpt.probe.verify import verify

RING = '[map.{name}]\nlevel = "{level}"\nring = {ring}\n{more}\n'
PROBE = """
[probe.wait]
position = "bar.sync"
level = "warp"
before = '''.reg .u32 %n = 0;
.reg .pred %p;
setp.eq.u32 %p, %n, 0;
RANGE begin "TMA wait, ä; {{";
@%p RANGE begin tile, %n;'''
after = '''@!%p RANGE end tile;
RANGE end "TMA wait, ä; {{", 7;'''
"""
PYTHON = """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="warp", ring=8)
class rows:
    pass

n: nl.u32 = 0

@probe(pos="bar.sync", level="warp", before=True)
def a():
    if n % 4 == 0:
        rows.begin("TMA wait", n)

@probe(pos="bar.sync", level="warp")
def b():
    rows.end("TMA wait")
    n += 1
"""


def read(text=PROBE, name="rows", level="warp", ring=8, more=""):
    found = parse_toml(RING.format(name=name, level=level, ring=ring, more=more) + text, "p.toml")
    verify(found)
    return found


def marks(file):
    """Return each RANGE: its edge, its name, what it saves, and its guard."""
    saves = [save for probe in file.probes for _, snippet in probe.snippets for save in snippet.saves]
    return [(*save.mark, [str(value) for value in save.values], save.guard and str(save.guard)) for save in saves]


def test_names_are_numbered_in_order_of_appearance():
    file = read()
    assert marks(file) == [
        ("begin", "TMA wait, ä; {{", ["CLOCK", "SMID", "0", "0"], None),
        ("begin", "tile", ["CLOCK", "SMID", "2", "%n"], "@%p"),
        ("end", "tile", ["CLOCK", "SMID", "3", "0"], "@!%p"),
        ("end", "TMA wait, ä; {{", ["CLOCK", "SMID", "1", "7"], None),
    ]
    (map_,) = file.maps
    assert (map_.ring, map_.capacity, map_.ranges) == (8, None, ("TMA wait, ä; {{", "tile"))
    assert [(field.name, field.type) for field in map_.fields] == [
        ("clock", "u64"), ("sm", "u32"), ("range", "u32"), ("number", "u32"),
    ]  # fmt: skip


def test_show_round_trips():
    file = read()
    again = parse_toml(to_toml(file), "p.toml")
    assert marks(again) == marks(file) and again.maps[0].ranges == file.maps[0].ranges
    assert 'RANGE begin "TMA wait, ä; {{";' in to_toml(file)


def test_python():
    file = compile_python(PYTHON, "p.py")
    verify(file)
    (begin, end) = marks(file)
    assert begin[:2] == ("begin", "TMA wait") and begin[2] == ["CLOCK", "SMID", "0", "%n"] and begin[3]
    assert end == ("end", "TMA wait", ["CLOCK", "SMID", "1", "0"], None)
    assert marks(parse_toml(to_toml(file), "p.toml"))[1] == end


SHORT = "\n[probe.x]\nposition = 'bar.sync'\nlevel = 'warp'\nbefore = '{}'\n"
NAMES = [
    "RANGE begin x",
    "a RANGE end y",
    "SAVE [rows] {",
    "a;b",
    "{}",
    "//",
    "/*",
    "#",
    "%p",
    "CLOCK",
    "   ",
    "😀" * 64,
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_data(name):
    file = read(
        SHORT.replace("'{}'", f"""'''/* RANGE begin "q */ RANGE\n  begin // "\n"{name}"; RANGE end "{name}";'''""")
    )
    again = parse_toml(to_toml(file), "p.toml")
    python = compile_python(PYTHON.replace("TMA wait", name), "p.py")
    for found in file, again, python, parse_toml(to_toml(python), "p.toml"):
        assert [save[:2] for save in marks(found)] == [("begin", name), ("end", name)]
        assert found.maps[0].ranges == (name,)


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"level": "thread"}, "a ring is an array of level warp or block, without 'cap'"),
        ({"more": "cap = 4"}, "a ring is an array of level warp or block, without 'cap'"),
        ({"more": "type = 'total'"}, "a ring is an array of level warp or block, without 'cap'"),
        ({"ring": 0}, "ring '0' is not a number of records from 1 to 65536"),
        ({"ring": 65537}, "ring '65537' is not a number of records from 1 to 65536"),
        ({"more": "data = {clock = 'u64'}"}, "RANGE needs one map with 'ring'"),
        ({"text": PROBE + RING.format(name="other", level="warp", ring=1, more="")}, "RANGE needs one map"),
        ({"text": SHORT.format("RANGE begin;")}, "'RANGE begin;' is neither"),
        ({"text": SHORT.format("RANGE start x;")}, "'RANGE start x;' is neither 'RANGE begin NAME;'"),
        ({"text": SHORT.format("RANGE begin x, 1, 2;")}, "is neither 'RANGE begin NAME;'"),
        ({"text": SHORT.format("RANGE begin %r1, IN1;").replace("bar.sync", "kernel")}, "'IN1' at position"),
        ({"text": SHORT.format(f'RANGE begin "{"x" * 65}";')}, "the name of a range has 1 to 64"),
        ({"text": SHORT.format('RANGE begin "";')}, "the name of a range has 1 to 64"),
        ({"text": SHORT.format("".join(f"RANGE begin n{n};" for n in range(257)))}, "more than 256 ranges"),
        ({"text": PROBE.replace('level = "warp"', 'level = "block"')}, "of level block saves to map 'rows'"),
    ],
)
def test_invalid_ranges_are_refused(given, fact):
    with pytest.raises(GptError) as error:
        read(**given)
    assert fact in error.value.fact and error.value.where.startswith("p.toml")


def test_a_table_for_each_probe_has_no_ring():
    with pytest.raises(GptError, match="RANGE needs a map with 'ring', in a table"):
        parse_toml("[x]\nposition = 'bar.sync'\ndatamodel = 'warp:16'\nbefore = 'RANGE begin y;'", "p.toml")


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ('rows.end("TMA wait")', 'rows.end("a\\"b")', "the name of a range has"),
        ('rows.end("TMA wait")', "rows.end(n)", "a probe may not contain 'rows.end(n)'"),
        ("ring=8", "cap=8", "no fields"),
        ('rows.end("TMA wait")', 'other.end("x")', "'other' is not a map with a ring"),
    ],
)
def test_invalid_ranges_in_python_are_refused(old, new, fact):
    with pytest.raises(GptError) as error:
        verify(compile_python(PYTHON.replace(old, new), "p.py"))
    assert fact in error.value.fact and error.value.where.startswith("p.py:")
