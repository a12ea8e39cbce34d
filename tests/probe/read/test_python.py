"""Probes in Python compile to code with Python's meaning, which ptxas accepts."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError
from gpt.probe.read.load import load_probes, parse_toml
from gpt.probe.read.python import compile_python
from gpt.probe.verify import verify
from gpt.ptx import tree
from tests import cuda
from tests.probe.allowed import ALLOWED, REGISTERS
from tests.probe.lower import kernel_of, run
from tests.tiers import examples

HEAD = """import neutrino.language as nl
from neutrino import probe, Map
@Map(level="thread", type="array", size=24, cap=1)
class record:
    x: nl.u64
    y: nl.u32
    z: nl.u64
a: nl.u32 = 0
b: nl.u32 = 0
c: nl.u64 = 0
s: nl.s32 = 0
@probe(pos="ld.global", before=True)
def p():
"""
FIRST = HEAD.count("\n") + 1


def compiled(body):
    lines = body if isinstance(body, list) else body.strip("\n").split("\n")
    file = compile_python(HEAD + "".join(f"    {line}\n" for line in lines), "p.py")
    if file.map("record") and any(snippet.saves for probe in file.probes for _, snippet in probe.snippets):
        verify(file)
    return file


def result(body, **values):
    """Return the shared registers after a body, and what it saved."""
    file = compiled([*body.strip("\n").split("\n"), "if False: record.save(0, 0, 0)"])
    registers = {f"%{name}": values.get(name, 0) for name in "abcs"}
    helpers = {"ADDR": values.get("addr", 0), "BYTES": 16, "IN2": 5, "CLOCK": 1000, "SMID": 3, "ACTIVE": 32}
    own = {register.name: 0 for register in file.registers if register.name not in registers}
    everything = {**own, **registers}
    saved = run(file.probes[0].before, everything, helpers)
    return {name: everything[f"%{name}"] for name in "abcs"}, saved


@pytest.mark.parametrize(
    ("body", "values", "expected"),
    [
        ("a = 7", {}, {"a": 7}),
        ("a = b + 1", {"b": 0xFFFFFFFF}, {"a": 0}),
        ("c = b + 1", {"b": 0xFFFFFFFF}, {"c": 0}),
        ("c = nl.u64(b) + 1", {"b": 0xFFFFFFFF}, {"c": 1 << 32}),
        ("a += nl.bytes; a -= 1", {"a": 1}, {"a": 16}),
        ("a = c", {"c": (5 << 32) + 9}, {"a": 9}),
        ("c = nl.clock() - c", {"c": 400}, {"c": 600}),
        ("a = 1 if b > 4 else 2", {"b": 5}, {"a": 1}),
        ("a = 1 if 2 < b <= 4 else 2", {"b": 5}, {"a": 2}),
        ("if a == 1 or b == 1: c = 5", {"b": 1}, {"c": 5}),
        ("if a == 1 and b == 1: c = 5", {"b": 1}, {"c": 0}),
        ("if not (a == 1): c = 5", {"a": 1}, {"c": 0}),
        ("if a: c = 5\nelse: c = 6", {"a": 3}, {"c": 5}),
        ("if a: c = 5\nelif b: c = 7\nelse: c = 6", {"b": 3}, {"c": 7}),
        ("if a:\n  a = 0\n  c = 5\nelse: c = 6", {"a": 3}, {"a": 0, "c": 5}),
        ("if a:\n  if b: c = 1\n  else: c = 2\nelse: c = 3", {"a": 1}, {"c": 2}),
        ("t = a\na = b\nb = t", {"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ("for i in range(5): a += i * 2", {}, {"a": 20}),
        ("for i in range(6, 0, -2): a += i", {}, {"a": 12}),
        ("a = nl.u32(nl.in2) << 2", {}, {"a": 20}),
        ("a = b >> 4", {"b": 0x80000000}, {"a": 0x08000000}),
        ("s = s >> 4", {"s": 0x80000000}, {"s": 0xF8000000}),
        ("a = 1 if s < 0 else 0", {"s": 0xFFFFFFFF}, {"a": 1}),
        ("s = -s", {"s": 5}, {"s": 0xFFFFFFFB}),
        ("c = s", {"s": 0xFFFFFFFF}, {"c": 0xFFFFFFFFFFFFFFFF}),
        ("a = min(a, 3); b = max(b, 3)", {"a": 9, "b": 9}, {"a": 3, "b": 9}),
        ("a = ~b", {"b": 1}, {"a": 0xFFFFFFFE}),
        ("held = a > 3\nif held:\n  held = a > 30\n  b = 1\n  if held: c = 1", {"a": 9}, {"b": 1, "c": 0}),
        ("a = b == 3", {"b": 3}, None),
    ],
)
def test_compiled_code_computes_the_same_values(body, values, expected):
    if expected is None:
        with pytest.raises(GptError, match="computes with a condition"):
            result(body, **values)
        return
    found, _ = result(body, **values)
    assert {name: found[name] for name in expected} == expected


def test_compiled_code_saves_the_expected_records():
    assert result("record.save(a, c, nl.cuid())", a=7, c=(1 << 40) + 2)[1] == [(7, 2, 3)]
    assert result("if a > 7: record.save(a, c, 0)", a=7)[1] == []
    assert result("if a > 7: pass\nelse: record.save(a, 0, 1)", a=7)[1] == [(7, 0, 1)]


def test_operand_is_saved_with_its_type():
    (save,) = compiled("record.save(nl.in2, nl.in2, 1)").probes[0].before.saves
    assert save.values[:2] == (tree.Name("IN2"), tree.Name("IN2"))


def test_registers_may_have_any_name():
    """`clock` is also a special register, and `p_1` might be a temporary of p."""
    text = HEAD.replace("a: nl.u32", "clock: nl.u64 = 0\np_q: nl.u64 = 0\np_1: nl.u32 = 0\na: nl.u32")
    text += "    q = a + 1\n    clock = nl.clock()\n    p_q = 7\n    p_1 = (q * 3 + p_1) >> 1\n"
    file = compile_python(text + "    record.save(clock, p_1, q + p_q)\n", "p.py")
    verify(file)
    assert len({register.name for register in file.registers}) == len(file.registers)
    values = {register.name: 0 for register in file.registers} | {"%a": 4, "%p_1": 5}
    assert run(file.probes[0].before, values, {"CLOCK": 1000}) == [(1000, 10, 12)]


# Any expression

leaves = st.sampled_from(["a", "b", "nl.bytes", "1", "3", "250", "4096"])


def expression(inner):
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "&", "|", "^"]), inner)
    return st.one_of(
        binary.map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from(["<<", ">>"]), st.integers(0, 31)).map(lambda t: f"(({t[0]}) {t[1]} {t[2]})"),
        st.tuples(inner, conditions(inner), inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        inner.map(lambda x: f"(~{x})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    )


def conditions(inner):
    compare = st.tuples(inner, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), inner).map(" ".join)
    return st.one_of(compare, st.tuples(compare, st.sampled_from(["and", "or"]), compare).map(" ".join))


expressions = st.recursive(leaves, expression, max_leaves=8)
assignments = st.tuples(st.sampled_from(["a", "b", "t"]), expressions).map(" = ".join)


@st.composite
def programs(draw, depth=2):
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        if depth and draw(st.booleans()):
            lines.append(f"if {draw(conditions(expressions))}:")
            lines += [f"    {line}" for line in draw(programs(depth - 1))]
            if draw(st.booleans()):
                lines.append("else:")
                lines += [f"    {line}" for line in draw(programs(depth - 1))]
        else:
            lines.append(draw(assignments))
    return lines


class U32(int):
    """An operand in a register of 32 bits. It wraps around, and a constant next to it gets its type."""

    def make(name):
        def method(self, other=0):
            return U32(getattr(int, name)(int(self), int(other)) & 0xFFFFFFFF)

        return method

    for _name in ("add", "sub", "mul", "and", "or", "xor", "rshift", "lshift", "radd", "rmul", "rand", "ror", "rxor"):
        vars()[f"__{_name}__"] = make(f"__{_name}__")

    def __rsub__(self, other):
        return U32((int(other) - int(self)) & 0xFFFFFFFF)

    def __invert__(self):
        return U32(~int(self) & 0xFFFFFFFF)


WORD = st.integers(0, 0xFFFFFFFF)


@settings(max_examples=examples(300))
@given(programs(), WORD, WORD, WORD)
def test_any_program_means_what_python_says(lines, a, b, t):
    typed = [typed_constants(line) for line in lines]
    file = compiled([f"t = nl.u32({t})", *typed, "if a == 77: record.save(0, 0, 0)"])
    registers = {register.name: 0 for register in file.registers} | {"%a": a, "%b": b}
    run(file.probes[0].before, registers)
    names = {"a": U32(a), "b": U32(b), "t": U32(t), "nl": SimpleNamespace(u32=U32), "min": min, "max": max}
    exec("\n".join(typed), names)
    assert {name: registers[f"%{name}"] for name in "ab"} == {name: int(names[name]) & 0xFFFFFFFF for name in "ab"}


def typed_constants(line):
    """Return the line with each constant as an nl.u32, except shift counts. Plain constants would get the width of the
    other operand.
    """
    line = line.replace("nl.bytes", "16")
    return re.sub(r"(<< |>> )?\b(\d+)\b", lambda m: m[0] if m[1] else f"nl.u32({m[2]})", line)


# ptxas


def assemble(data, folder):
    (folder / "k.ptx").write_bytes(data)
    cuda.run("ptxas", "-arch", "sm_90", folder / "k.ptx", "-o", folder / "k.cubin")


def test_ptxas_takes_what_is_compiled(tmp_path):
    body = """
f = nl.f32(3)
f = f * 2.5 + nl.f32(a) / 3
g = nl.f64(f) - 1
if f != f or g > 1e300: a = nl.u32(f)
h = nl.u16(a) + 1
c = nl.addr // 128 % 7
s = abs(-s) - nl.s32(c)
if nl.pred and nl.active() < 32: b = b * nl.flops
c += nl.block() + nl.time() + nl.laneid() + nl.warpid()
record.save(c, h, s)
"""
    assemble(kernel_of(compiled(body)), tmp_path)


@settings(max_examples=examples(15))
@given(programs())
def test_ptxas_takes_any_program(tmp_path_factory, lines):
    body = ["t = nl.u32(0)", *lines, "record.save(a, b, t)"]
    try:
        file = compiled(body)
    except GptError as error:
        assert "does not fit" in error.fact
        return
    assemble(kernel_of(file), tmp_path_factory.mktemp("ptxas"))


def test_ptxas_takes_what_the_verifier_allows(tmp_path):
    for snippet in ALLOWED:
        wide = "b64" if "IN1" in snippet else "b32"
        snippet = snippet.replace("mov.b32 %x, IN2; mov.b64 %a, IN1;", "mov.b64 %a, IN1;")
        text = f"[t]\nposition = 'ld.global'\nbefore = '''\n{REGISTERS}{snippet}'''\n"
        file = parse_toml(text, "p.toml")
        verify(file)
        assemble(kernel_of(file, wide), tmp_path)


# Refusals


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        ("import os", "a probe may not contain 'import os'"),
        ("while a: pass", "a probe may not contain 'while a:'"),
        ("a = open('/etc/passwd')", "a probe cannot compute"),
        ("a = __import__('os')", "a probe cannot compute"),
        ("a = x", "'x' is not set"),
        ("c = other.clock()", "'other' is not imported"),
        ("c = record.clock()", "'record' is not imported"),
        ("a = 1 / b", "'/' of integers"),
        ("a = nl.out", None),
        ("t = nl.out", "'t': an operand has no type"),
        ("a = 5000000000", "5000000000 does not fit u32"),
        ("a = 1.5", "1.5 does not fit u32"),
        ("for i in range(a): b = 1", "a loop needs a constant range"),
        ("for i in range(65): b = 1", "loops more than 64 times"),
        ("for i in range(9):\n  for j in range(60): a += b", "more than 512 statements"),
        ("for i in range(-9223372036854775808, 9223372036854775807): pass", "loops more than 64 times"),
        ("for i in range(64):\n for j in range(64):\n  for k in range(64): pass", "more than 4096 times, all in all"),
        ("for i in range(64):\n for j in range(64): record.save(1, 2, 3)", "more than 512 statements"),
        ("for a in range(3): b = 1", "counts a loop and is also used for something else"),
        ("other.save(1)", "saves to 'other', which is not a map"),
        ("record.save(1)", "saves 1 values, map 'record' has 3 fields"),
        ("record = 3", "'record' is not a register"),
        ("a = [1]", "a probe cannot compute"),
        ("a, b = b, a", "a probe may not contain"),
        ("return 3", "a probe may not contain"),
        ("a = 1 if b", "Python: "),
        ("a = nl.u128(b)", "a probe cannot compute"),
        ("t: int = 3", "'int' is not a type, as nl.u64"),
        ("a = (a > 1) + 1", "computes with a condition"),
        ("a = 'x'", "a probe cannot compute"),
    ],
)
def test_refusals_name_file_and_line(body, fact):
    if fact is None:
        compiled(body)
        return
    with pytest.raises(MalformedError) as error:
        compiled(body)
    assert fact in error.value.fact
    assert error.value.where in (f"p.py:{FIRST}", f"p.py:{FIRST + 1}")


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        ("x = open('f')", 1, "a probe file may not contain"),
        ("class A: pass", 1, "'A' needs @Map(...), alone"),
        ("def f(): pass", 1, "'f' needs @probe(...), alone"),
        ("@probe(pos='kernel')\n@other\ndef f(): pass", 3, "'f' needs @probe(...), alone"),
        ("@probe(level='warp')\ndef f(): pass", 2, 'needs pos="..."'),
        ("@probe(pos='kernel', colour=3)\ndef f(): pass", 1, "unknown option 'colour'"),
        ("@probe(pos='kernel', level='lane')\ndef f(): pass", 2, "level 'lane' is not one of"),
        ("@probe(pos='kernel')\ndef f(x): pass", 2, "takes no arguments"),
        ("@probe(pos='line:x')\ndef f(): pass", 2, "lacks a part"),
        ("@Map(level='warp', cap='many')\nclass m:\n  a: nl.u64", 2, "capacity 'many' is not a number"),
        ("@Map(level='warp', size=4)\nclass m:\n  a: nl.u64", 2, "8 bytes of fields in a record of 4"),
        ("@Map(level='warp')\nclass m:\n  a = 3", 3, "is not a field, as 'start: nl.u64'"),
        ("x: nl.u32 = y", 1, "'y' is not a constant"),
        ("x: nl.u32 = 1\nx: nl.u32 = 1", 2, "declared twice"),
        ("x: nl.u16 = 70000", 1, "70000 does not fit u16"),
        ("def f(:", 1, "Python: "),
        ("x = " + "(" * 300, 1, "Python: "),
        ("\0", 1, "Python: "),
        ("", None, "no probe in it"),
    ],
)
def test_files_that_are_refused(text, line, fact):
    if "nl." in text:
        text, line = "import neutrino.language as nl\n" + text, line + 1
    with pytest.raises(GptError) as error:
        compile_python(text, "p.py")
    assert fact in error.value.fact
    assert error.value.where == ("p.py" if line is None else f"p.py:{line}")


@pytest.mark.parametrize(
    "text",
    ["x = " + "-" * 100000 + "1", "x = " + "a." * 50000 + "b", "@probe(pos='a')\ndef f():\n a=" + "1+" * 9000 + "x"],
)
def test_deep_files_are_refused(text):
    with pytest.raises(GptError):
        compile_python(text, "p.py")


def test_nothing_is_executed(tmp_path):
    marker = tmp_path / "marker"
    with pytest.raises(GptError):
        compile_python(f"import os\nx: nl.u32 = os.system('touch {marker}')", "p.py")
    assert not marker.exists()


@settings(max_examples=examples(200))
@given(st.data())
def test_mutated_files_are_read_or_refused(data):
    body = "    t = nl.u32(1)\n    for i in range(4):\n        if nl.addr % 16 == i and not nl.pred: t += i\n"
    body += "    record.save(c if b > 3 else nl.clock(), min(t, 5), -1)\n"
    pieces = [
        "",
        "(",
        ")",
        ":",
        "=",
        "\n",
        "    ",
        "1",
        "9" * 5000,
        "1.5",
        "'",
        "\0",
        "\\",
        "é",
        "@",
        "#",
        "[",
        ".x",
        "~",
    ]
    pieces += [
        "for j in range(64): ",
        "if c: ",
        "else: ",
        "def f(): ",
        "nl.",
        "record.save(",
        "lambda: ",
        "import os\n",
    ]
    text = HEAD + body
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(pieces)) + text[at + data.draw(st.integers(0, 9)) :]
    try:
        verify(compile_python(text, "p.py"))
    except GptError as error:
        assert error.where.startswith("p.py")
        assert "\n" not in error.fact


def test_warnings_of_python_are_not_shown(tmp_path, recwarn):
    path = tmp_path / "p.py"
    path.write_text(HEAD + '    "\\d"\n    a = 1 if 1 is 1 else 2\n', encoding="utf-8-sig")
    with pytest.raises(GptError, match="a comparison that a probe cannot make"):
        load_probes(path)
    path.write_text(HEAD + '    "\\d"\n    a = 1\n', encoding="utf-8-sig")
    assert load_probes(path).probes and not recwarn


def test_none_leaves_a_field_of_a_total_alone():
    text = (
        "from neutrino import probe, Map\nimport neutrino.language as nl\n"
        '@Map(level="warp", type="total")\nclass m:\n    a: nl.u64\n    b: nl.u64\n'
        '@probe(pos="kernel", level="warp")\ndef end():\n    m.save(None, nl.clock())\n'
    )
    file = compile_python(text, "p.py")
    verify(file)
    assert str(file.probes[0].after.saves[0].values[0]) == "_"
    array = compile_python(text.replace('type="total"', 'type="array", cap=1'), "p.py")
    with pytest.raises(GptError, match="reads '_'"):
        verify(array)
