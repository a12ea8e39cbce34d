"""A record has the bits of an operand that the instruction reads or writes, extended according to its type."""

import re

import pytest

from gpt.probe.ptx.weave import LeftAlone, weave
from tests.probe.ptx.woven import check, kernel, lines, probe
from tests.tiers import first

REGISTERS = ".reg .b8 %c<4>; .reg .b16 %h<9>;"
LATEST = ".version 8.6\n.target sm_100\n.address_size 64\n"


def file(field, saved, when, position):
    return probe(
        f'[map.m]\ndata = {{a = "{field}"}}\n[probe.x]\nposition = "{position}"\n{when} = "SAVE [m] {{{saved}}};"\n'
    )


def read(instruction, file, tmp_path=None):
    """Return the lines that compute the saved value from the instruction's operands; registers are named by type."""
    data = kernel(f"{REGISTERS}\n{instruction}\nret;", LATEST)
    found = lines(check(data, file, tmp_path=tmp_path) if tmp_path else weave(data, "k", [file]))
    made = {re.sub(r".*? ", "", line.split(",")[0]): line for line in found if re.match(r"\w[\w.]* %gpt", line)}
    (value,) = {line.split(", ")[1][:-1] for line in found if re.search(r"st\.global\.b\d+ \[\S+\+8\], ", line)}
    steps = []
    while value in made:
        steps.append(made[value])
        value = made[value].split(", ")[1].rstrip(";")
    return [re.sub(r"%gpt_b\d+_\d+", "%", step)[:-1] for step in reversed(steps)]


@pytest.mark.parametrize(
    ("instruction", "saved", "field", "steps"),
    [
        ("st.global.u8 [%rd1], %r1;", "IN1", "u32", ["mov.b32 %, %r1", "cvt.u32.u8 %, %"]),
        ("st.global.u8 [%rd1], %r1;", "IN1", "s64", ["mov.b32 %, %r1", "cvt.u64.u8 %, %"]),
        ("st.global.u8 [%rd1], %r1;", "IN1", "u8", ["mov.b32 %, %r1", "cvt.u16.u8 %, %"]),
        ("st.global.b8 [%rd1], %rd2;", "IN1", "u32", ["mov.b64 %, %rd2", "cvt.u32.u8 %, %"]),
        ("st.global.s8 [%rd1], %h1;", "IN1", "u32", ["mov.b16 %, %h1", "cvt.s32.s8 %, %"]),
        ("st.shared.u16 [%rd1], %r1;", "IN1", "u32", ["mov.b32 %, %r1", "cvt.u32.u16 %, %"]),
        ("st.global.b16 [%rd1], %f1;", "IN1", "u16", ["mov.b32 %, %f1", "cvt.u16.u16 %, %"]),
        ("st.global.u16 [%rd1], %h1;", "IN1", "s32", ["mov.b16 %, %h1", "cvt.s32.s16 %, %"]),  # not wider
        ("st.global.b32 [%rd1], %rd2;", "IN1", "u64", ["mov.b64 %, %rd2", "cvt.u64.u32 %, %"]),
        ("st.global.v4.u8 [%rd1], {%r1, %r2, %r3, %r4};", "IN1.z", "u32", ["mov.b32 %, %r3", "cvt.u32.u8 %, %"]),
        ("cvt.u32.u8 %r1, %r2;", "IN1", "u32", ["mov.b32 %, %r2", "cvt.u32.u8 %, %"]),
        ("cvt.rn.f32.s16 %f1, %rd2;", "IN1", "u64", ["mov.b64 %, %rd2", "cvt.s64.s16 %, %"]),
        ("cvt.f32.f16 %f1, %r2;", "IN1", "u16", ["mov.b32 %, %r2", "cvt.u16.u16 %, %"]),
        ("cvt.u16.u16 %h1, %tid.x;", "IN1", "u32", ["mov.u32 %, %tid.x", "cvt.u32.u16 %, %"]),
        ("cvt.rn.f16x2.e4m3x2 %r1, %h1;", "IN1", "u16", ["mov.b16 %, %h1"]),
        ("cvt.s8.u32 %r1, %r2;", "OUT", "u32", ["mov.b32 %, %r1", "cvt.s32.s8 %, %"]),
        ("cvt.pack.sat.u8.s32.b32 %r1, %r2, %r3, %r4;", "OUT", "u32", ["mov.b32 %, %r1"]),
        ("ld.global.s8 %h1, [%rd1];", "OUT", "u64", ["mov.b16 %, %h1", "cvt.s64.s8 %, %"]),
        ("ld.global.u16 %r1, [%rd1];", "OUT", "u32", ["mov.b32 %, %r1", "cvt.u32.u16 %, %"]),
        ("ld.global.f32 %rd1, [%rd1];", "OUT", "f32", ["mov.b64 %, %rd1", "cvt.u32.u32 %, %"]),
        ("ld.global.b8 %c1, [%rd1];", "OUT", "u32", ["cvt.u16.u8 %, %c1", "cvt.u32.u8 %, %"]),
        ("suld.b.1d.b8.trap {%r1}, [%rd1, {%r2}];", "OUT", "u32", ["mov.b32 %, %r1", "cvt.u32.u8 %, %"]),
        ("sust.b.1d.b16.trap [%rd1, {%r2}], {%r1};", "IN1", "u32", ["mov.b32 %, %r1", "cvt.u32.u16 %, %"]),
        ("slct.u64.s32 %rd1, %rd2, %rd3, %r1;", "OUT", "u64", ["mov.b64 %, %rd1"]),
        ("st.global.u8 [%rd1], 300;", "IN1", "u32", ["mov.b32 %, 44"]),
        ("st.global.s8 [%rd1], 255;", "IN1", "s32", ["mov.b32 %, 4294967295"]),
        ("st.global.u16 [%rd1], -1;", "IN1", "u64", ["mov.b64 %, 65535"]),
        ("st.global.u32 [%rd1], -1;", "IN1", "u64", ["mov.b64 %, 4294967295"]),
        ("st.global.u32 [%rd1], -1;", "IN1", "s64", ["mov.b64 %, 18446744073709551615"]),
    ],
)
def test_values_are_cut_to_the_size_of_the_operand(instruction, saved, field, steps):
    when = "before" if saved != "OUT" else "after"
    assert read(instruction, file(field, saved, when, instruction.split()[0])) == steps


@pytest.mark.parametrize("when", first("after", "before"))
def test_cut_values_assemble(when, tmp_path):
    """The cut uses registers of every size that ptxas takes, in all fields."""
    body = ""
    for bits, names in ((8, "c1 h1 r1 rd2"), (16, "h1 r1 rd2"), (32, "r1 rd2")):
        for name in names.split():
            body += f"st.global.b{bits} [%rd1], %{name}; ld.global.s{bits} %{name}, [%rd1];\n"
            body += f"cvt.u64.s{bits} %rd3, %{name}; cvt.u{bits}.u32 %{name}, %r2;\n"
            body += f"st.global.v2.u{bits} [%rd1], {{%{name}, 7}};\n"
    text = ""
    for field in ("u8", "u16", "s32", "u64", "b64"):
        for saved in ("IN1", "OUT")[: 1 + (when == "after")]:
            name = f"{saved}_{field}"
            text += f'[map.{name}]\ndata = {{a = "{field}"}}\n[probe.{name}]\nposition = "cvt:st.global:ld.global"\n'
            text += f'{when} = "SAVE [{name}] {{{saved}}};"\n'
    woven = check(kernel(f"{REGISTERS}\n{body}\nret;"), probe(text), tmp_path=tmp_path)
    assert all("bits, and line" in fact or "has no OUT" in fact for fact in woven.misfits), woven.misfits
    assert sum(site.woven for site in woven.sites) > 100


def test_vectors_in_wider_registers(tmp_path):
    out = file("u64", "OUT", "after", "ld.global.v4")
    data = kernel("ld.global.v4.u16 {%r1, %r2, %r3, %r4}, [%rd1];\nret;")
    found = lines(check(data, out, tmp_path=tmp_path))
    assert sum(line.startswith("cvt.u16.u16") for line in found) == 4
    stored = file("u32", "IN1", "before", "st.global.v2")
    found = lines(check(kernel("st.global.v2.u16 [%rd1], {%r1, 70000};\nret;"), stored, tmp_path=tmp_path))
    assert any(line.endswith(", 4464;") for line in found)


def test_a_float_conversion_of_the_wrong_size_is_left_alone():
    """cvt takes integers of any size; all bits of a float are kept."""
    reads = "cvt.rn.f32.f64 %a, OUT;"
    text = f'[x]\nposition = "add.f32"\ndatamodel = "thread:8"\nafter = ".reg .f32 %a; {reads} SAVE.f32 {{%a}};"\n'
    with pytest.raises(LeftAlone, match="OUT has 32 bits, and line 4 expects 64"):
        weave(kernel("add.f32 %f1, %f1, %f2;\nret;"), "k", [probe(text)])
