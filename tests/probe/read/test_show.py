"""The output of --show reads back as the same model, and weaves to the same code."""

import re
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError
from gpt.probe.model import Line, Map, Position, Probe, ProbeFile, Register, Save, Snippet, layout
from gpt.probe.ptx.weave import MARK, LeftAlone, weave
from gpt.probe.read.load import BUILTIN, load_probes
from gpt.probe.read.python import compile_python
from gpt.probe.read.show import to_toml
from gpt.probe.read.snippet import parse_snippet
from gpt.probe.read.toml import parse_toml
from gpt.ptx.tree import Name, Number, Prefixed
from tests.probe.allowed import ALLOWED, REGISTERS
from tests.probe.ptx.woven import kernel
from tests.probe.read.written import COOPERATING, DYNAMIC, PYTHON, SCHEDULING, SECOND
from tests.tiers import examples

ODD = r"""
analyze_hook = 'a "b" \\ \t'
["a\u0000b]\u202e.\""]
position = ".kernel : line:a b*.cu:7:func:a::b"
datamodel = "thread:24:3"
level = "thread"
no_pred = true
sample = "warp/3"
before = ".reg .b32 %a<2>; .reg .b64 unused; mov.u32 %a1, 3; SAVE.u32 {%a0, -1}; X: @%NR0 bra X;"
after = "@!%NR0 SAVE.u64 {CLOCK};"
[""]
position = "ld.*"
after = ""
"""
STRINGS = r"""
[map.m]
leader = "lane0"
level = "warp"
cap = "count"
budget = 2560
regs = ["u8", "f64"]
[probe.m]
pos = "kernel"
level = "warp"
register = {"%a b" = "u64", "%x" = "pred"}
after = '''SAVE.u8 {1}; SAVE.f64 {0d0000000000000000};
trap "a'b", "x
y"; '''
before = 'SAVE ["größe"] {"\\"}; SAVE [m] {2, 3.5};'
[probe.n]
pos = "kernel"
before = ".reg .u64 %one = -1;\n.reg .f32 %two = 0f3F800000; a \"'''\"; b \"\\\\\\u0007\";"
"""
LETTERS = PYTHON.replace("elapsed", "größe").replace("sched", "plän").replace("end", "ö").replace("begin", "ü")
LETTERS += "    ä = größe + 1\n    if ä > 3: start = ä % 7\n"


def read(text):
    return (compile_python if text is PYTHON or text is LETTERS else parse_toml)(text, "probe.x")


def plain(file):
    """Return a file without the fields that only describe its text: path, lines."""

    def of(snippet):
        return snippet and Snippet(tuple(replace(line, line=0) for line in snippet.lines))

    probes = tuple(replace(p, line=0, before=of(p.before), after=of(p.after)) for p in file.probes)
    maps, registers = ([replace(one, line=0) for one in ones] for ones in (file.maps, file.registers))
    return ProbeFile("", probes, tuple(maps), tuple(registers), file.callback)


OWN = [SCHEDULING, COOPERATING, DYNAMIC, SECOND, PYTHON, LETTERS, ODD, STRINGS]
FILES = [*sorted(path.stem for path in BUILTIN.glob("*.toml")), *map(str, range(len(OWN)))]
RENAMED = {"5", "7"}  # they have registers with names that PTX lacks
WOVEN = kernel(
    "ld.global.u32 %r1, [%rd1]; @%p1 bra L; bar.sync 0; ld.shared.u32 %r2, [%rd2]; st.global.u32 [%rd1], %r2;"
    " cp.async.ca.shared.global [%rd2], [%rd1], 16; L: add.f32 %f1, %f2, %f3; @%p2 ret; ret;"
)


def code(file):
    """Return the woven text, without the line numbers of the probe."""
    try:
        return re.sub(rf"{MARK}.*", "", weave(WOVEN, "k", [file]).data.decode())
    except LeftAlone as error:
        return str(error)


@pytest.mark.parametrize("name", FILES)
def test_shown_probes_can_be_read_again(name):
    file = read(OWN[int(name)]) if name.isdigit() else load_probes(BUILTIN / f"{name}.toml")
    text = to_toml(file)
    again = parse_toml(text, file.path)
    assert to_toml(again) == text
    if name in RENAMED:
        assert plain(again).maps == plain(file).maps and len(again.registers) == len(file.registers)
        assert sorted(code(again).splitlines()) == sorted(code(file).splitlines())
    else:
        assert plain(again) == plain(file)
        assert code(again) == code(file)


def test_shown_toml_is_as_expected():
    assert (
        to_toml(read(SCHEDULING))
        == """callback = "block_sched_local.py"

[map.block_sched]
type = "array"
level = "warp"
cap = 1
data = {lstart = "u64", elapse = "u32", smid = "u32"}

[probe.block_sched]
position = "kernel"
level = "warp"
before = '''
.reg .b64 %lstart;
mov.u64 %lstart, %clock64;
'''
after = '''
.reg .b64 %lend;
.reg .b64 %elapsed;
.reg .b32 %elapse;
mov.u64 %lend, %clock64;
sub.u64 %elapsed, %lend, %lstart;
cvt.u32.u64 %elapse, %elapsed;
SAVE.u64 {%lstart};
SAVE.u32 {%elapse, %smid};
'''
"""
    )
    shown = to_toml(read(LETTERS))
    assert 'SAVE ["plän"] {%start, %_$2, SMID};' in shown and ".reg .u64 %gr__e = 0;" in shown


def test_names_are_escaped():
    shown = to_toml(read(ODD))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count(r'"a\u0000b]\u202E.\""') == 2
    assert tomllib.loads(shown)["callback"] == 'a "b" \\\\ \\t'


def test_probes_too_long_to_be_read_again_are_refused():
    long = "ä" * 30000
    python = f"import nl\n{long}: nl.u64 = 0\n@probe(pos='ld')\ndef p():\n    {long} = {long} + 1\n"
    with pytest.raises(GptError, match="as TOML it could not be read again: probe 'p': snippet larger than 64 KiB"):
        to_toml(compile_python(python, "p.py"))


# Any model

TEXT = st.text(max_size=6)
NAMES = st.one_of(st.from_regex(r"[a-z_][a-z0-9_]{0,3}", fullmatch=True), st.sampled_from(["größe", "$x", "%y"]))
TYPES = st.sampled_from(["u8", "u16", "s32", "u32", "u64", "f32", "f64", "b16"])
VALUES = st.sampled_from([Name("%a"), Name("CLOCK"), Name("%tid", (".x",)), Number("7"), Prefixed(("-",), Number("1"))])
POSITIONS = st.sampled_from(
    [Position("kernel"), Position("opcode", ("func",)), Position("opcode", ("ld", "global")), Position("func", ("f*",)),
     Position("line", ("a.cu", "7")), Position("label", ("L::x",))]
)  # fmt: skip


@st.composite
def files(draw):
    maps = {}
    for name in draw(st.lists(st.one_of(TEXT, NAMES), max_size=3, unique=True)):
        names = draw(st.lists(TEXT, min_size=1, max_size=4, unique=True))
        fields, size = layout([(field, draw(TYPES)) for field in names])
        is_log = draw(st.booleans())
        maps[name] = Map(
            name,
            draw(st.sampled_from(["warp", "block"])),
            size + draw(st.sampled_from([0, 0, 24])),
            None if is_log else draw(st.integers(1, 99)),
            fields,
            draw(st.sampled_from(["active", "lane0"])),
            draw(st.sampled_from([None, 1 << 20])) if is_log else None,
        )
    registers = [Register(r.name, r.type, None) for r in parse_snippet(REGISTERS, "", 1, "p")[1]]
    registers += [Register("%first", "u64", draw(st.sampled_from(["0", "-5"]))), Register("%x", "f32", "0f3F800000")]
    kept = draw(st.permutations(list({register.name: register for register in registers}.values())))
    probes = []
    for name in draw(st.lists(st.one_of(TEXT, st.sampled_from([*maps, "p"])), min_size=1, max_size=4, unique=True)):
        parts = []
        if name in maps and draw(st.booleans()):  # a record saved in parts, in both snippets
            fields = maps[name].fields
            parts = [
                Save(name, (draw(VALUES),), (field.type,), number, number + 1 == len(fields))
                for number, field in enumerate(fields)
            ]
        cut = draw(st.integers(0, len(parts)))
        snippets = []
        for piece in (parts[:cut], parts[cut:]):
            nodes = [line.node for line in parse_snippet(draw(st.sampled_from([*ALLOWED, ""])), "", 1, "p")[0].lines]
            named = [target for target in maps if target.isidentifier() or target in ("$x", "%y")]
            if named and draw(st.booleans()):
                target = draw(st.sampled_from(named))
                types = tuple(field.type for field in maps[target].fields)
                nodes.append(Save(target, tuple(draw(VALUES) for _ in types), types))
            snippets.append(Snippet(tuple(Line(node, 0) for node in [*nodes, *piece])))
        before, after = snippets
        if not parts and draw(st.booleans()):
            before = None
        probes.append(
            Probe(
                name,
                tuple(draw(st.lists(POSITIONS, min_size=1, max_size=3, unique=True))),
                draw(st.sampled_from(["thread", "warp", "block"])),
                before,
                after,
                draw(st.booleans()),
                draw(st.sampled_from([None, ("block", 8), ("warp", 1)])),
            )
        )
    return ProbeFile("", tuple(probes), tuple(maps.values()), tuple(kept), draw(st.one_of(st.none(), TEXT)))


@settings(max_examples=examples(150))
@given(files())
def test_any_model_reads_back(file):
    assert plain(parse_toml(to_toml(file), "")) == plain(file)
