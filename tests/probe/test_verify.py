"""The verifier: what a snippet may do, and one line for each forbidden thing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError
from gpt.probe.forms import counts
from gpt.probe.operands import bind
from gpt.probe.read.load import parse_toml
from gpt.probe.verify import find_misfit, verify
from gpt.ptx.parse import parse_statements
from tests.probe.allowed import ALLOWED, REGISTERS
from tests.tiers import examples

OPERANDS = ["%a", "%x", "%y", "%f", "%p", "%q", "%r1", "ADDR", "BYTES", "OUT", "IN1", "L", "{%x, %y}", "[%a]"]
OPERANDS += ["1", "-1", "09", "%p|%q", "_", "%tid.x", "0x"]


def check(snippet, position="ld.global", when="before", **options):
    extra = "".join(f"{key} = {value}\n" for key, value in options.items())
    file = parse_toml(f"[t]\nposition = '{position}'\n{extra}{when} = '''\n{REGISTERS}{snippet}'''\n", "p.toml")
    verify(file)
    return file


@pytest.mark.parametrize("snippet", ALLOWED)
def test_computations_are_allowed(snippet):
    check(snippet)


@pytest.mark.parametrize(
    ("snippet", "fact"),
    [
        ("ld.global.u64 %a, [%b];", "'ld' is not allowed in a probe"),
        ("st.global.u64 [ADDR], %a;", "'st' is not allowed in a probe"),
        ("atom.global.add.u32 %x, [%a], 1;", "'atom' is not allowed in a probe"),
        ("shfl.sync.idx.b32 %x, %y, 0, 31, -1;", "'shfl' is not allowed in a probe"),
        ("bar.sync 0;", "'bar' is not allowed in a probe"),
        ("vote.sync.any.pred %p, %q, -1;", "'vote' is not allowed in a probe"),
        ("call f;", "'call' is not allowed in a probe"),
        ("ret;", "'ret' is not allowed in a probe"),
        ("exit;", "'exit' is not allowed in a probe"),
        ("trap;", "'trap' is not allowed in a probe"),
        ("nanosleep.u32 1000000;", "'nanosleep' is not allowed in a probe"),
        ("setmaxnreg.inc.sync.aligned.u32 240;", "'setmaxnreg' is not allowed in a probe"),
        ("brandnew.u32 %x, %y;", "'brandnew' is not allowed in a probe"),
        ("add.brandnew.u32 %x, %y, %x;", "'add.brandnew.u32' is not allowed in a probe"),
        ("mov.u64 %rd17, 1;", "register '%rd17' is not declared in the probe"),
        ("add.u32 %r1, %x, %y;", "register '%r1' is not declared in the probe"),
        ("mov.u64 %a, %rd17;", "register '%rd17' is not declared in the probe"),
        ("mov.b64 {%x, %r3}, %a;", "register '%r3' is not declared in the probe"),
        ("setp.eq.u32 %p|%p9, %x, 0;", "register '%p9' is not declared in the probe"),
        ("@%p9 mov.u32 %x, 1;", "guard '%p9' is not a predicate of this file"),
        ("@%x mov.u32 %x, 1;", "guard '%x' is not a predicate of this file"),
        ("mov.u64 %a, symbol;", "reads 'symbol'"),
        ("mov.u64 %a, table[2];", "accesses memory, 'table[2]'"),
        ("mov.u64 %a, [ADDR];", "accesses memory, '[ADDR]'"),
        ("mov.u64 ADDR, %a;", "writes 'ADDR', which can only be read"),
        ("mov.u32 %tid.x, 1;", "writes '%tid.x', which is not a register"),
        ("mov.u32 %smid, 1;", "writes '%smid', which can only be read"),
        ("mov.u32 %x, %tid;", "'%tid' is not a special register"),
        ("mov.u32 %x, %x.y;", "register '%x.y' is not declared in the probe"),
        ("mov.u32 %x, ADDR;", "'ADDR' is .u64, where .u32 is expected"),
        ("add.u64 %a, %a, %x;", "'%x' is .b32, where .u64 is expected"),
        ("add.u16 %h, %h, BYTES;", "'BYTES' is .u32, where .u16 is expected"),
        ("add.u64 %a, %a, SMID;", "'SMID' is .u32, where .u64 is expected"),
        ("selp.b32 %x, 1, 0, %y;", "'%y' is .b32, where .pred is expected"),
        ("mov.u32 %x, OUT;", "'OUT' before the instruction that makes it"),
        ("bra elsewhere;", "branches out of itself, 'bra elsewhere;'"),
        ("L: add.u32 %x, %x, 1; bra L;", "loops without a static bound, 'bra L;'"),
        ("L: add.u32 %x, %x, 1; setp.lt.u32 %p, %x, 9; @%p bra L;", "loops without a static bound"),
        ("mov.u32 %x, 0; L: setp.lt.u32 %p, %x, 9; @%p bra L;", "loops without a static bound"),
        ("mov.u32 %x, 9; L: add.u32 %x, %x, -2; setp.gt.u32 %p, %x, 0; @%p bra L;", "loops more than 1024 times"),
        ("mov.u32 %x, 0; L: add.u32 %x, %x, 5; setp.ne.u32 %p, %x, 9; @%p bra L;", "loops more than 1024 times"),
        ("mov.u32 %x, 0; L: add.u32 %x, %x, 0; setp.lt.u32 %p, %x, 9; @%p bra L;", "loops more than 1024 times"),
        ("bra L; mov.u32 %x, 0; L: add.u32 %x, %x, 1; setp.lt.u32 %p, %x, 9; @%p bra L;", "loops without"),
        ("mov.u32 %x, 0; @%q bra L; L: add.u32 %x, %x, 1; setp.lt.u32 %p, %x, 9; @%p bra L;", "loops without"),
        (
            "mov.u32 %x, 0; L: add.u32 %x, %x, 1; mov.b64 {%x, %y}, %a; setp.lt.u32 %p, %x, 9; @%p bra L;",
            "loops without",
        ),
        ("mov.f32 %f, 0f00000000; L: add.f32 %f, %f, 1.0; setp.lt.f32 %p, %f, 9.0; @%p bra L;", "loops without"),
        ("mov.u32 %x, 0; L: add.u32 %x, %x, 1; setp.lt.u32 %p, %x, 02001; @%p bra L;", "loops more than 1024"),
        ("mov.u32 %x, 0; L: add.u32 %x, %x, 1; mov.u32 %x, 0; setp.lt.u32 %p, %x, 9; @%p bra L;", "loops without"),
        ("mov.u32 %x, 0; L: @%q add.u32 %x, %x, 1; setp.lt.u32 %p, %x, 9; @%p bra L;", "loops without"),
        ("mov.u32 %x, 0; L: add.u32 %x, %x, 1; @%q bra M; M: setp.lt.u32 %p, %x, 9; @%p bra L;", "loops without"),
        ("mov.u32 %x, 0; L: add.u32 %x, %x, 1; setp.lt.u32 %p, %x, %y; @%p bra L;", "loops without"),
        ("mov.u32 %x, 0; L: add.u32 %x, %x, 1; setp.lt.u32 %p, %x, 4000; @%p bra L;", "loops more than 1024"),
        ("mov.u32 %x, 20; L: add.u32 %x, %x, 1; setp.lt.u32 %q|%p, %x, 9; @%p bra L;", "loops without"),
        ("mov.u32 %x, 20; L: add.u32 %x, %x, 1; setp.lt.u32 %p|%p, %x, 9; @%p bra L;", "loops without"),
        ("mov.b64 {%y, %x}, 5; L: add.u32 %x, %x, 2; setp.ne.u32 %p, %x, 7; @%p bra L;", "loops without"),
        ("L: add.u32 %x, %x, 1; L: add.u32 %x, %x, 1;", "label 'L' is defined twice"),
        ("L: setp.lt.u32 %p; @%p bra L;", "'setp.lt.u32 %p;' has 1 operands"),
        ("M: @%p bra M; @%p bra;", "'@%p bra;' has 0 operands"),
        ("add.u32 %x, %x, 1, 2;", "has 4 operands"),
        ("add;", "'add;' has 0 operands"),
        ("setp.lt.u32 %p, %x, 3, %q;", "has 4 operands"),
        ("setp.lt.and.u32 %p, %x, 3;", "has 3 operands"),
        ("setp.eq %p, %x, 1;", "'setp.eq %p, %x, 1;' lacks a type"),
        ("SAVE.u64 {%a};", "saves without a datamodel"),
        # Nameless state of the program: its carry flag, and that all its lanes branch together.
        ("add.cc.u32 %x, %x, 1;", "'add.cc.u32' is not allowed in a probe"),
        ("addc.u32 %x, %x, 1;", "'addc' is not allowed in a probe"),
        ("mad.lo.cc.u32 %x, %x, 1, %y;", "'mad.lo.cc.u32' is not allowed in a probe"),
        ("@%p bra.uni L; L:", "'bra.uni' is not allowed in a probe"),
        # What ptxas would refuse
        ("mov.u32 _, 1;", "writes '_', which is not a register"),
        ("mov.b64 %a, {%x, _};", "reads '_'"),
        ("add.u32 %x, _, 1;", "reads '_'"),
        ("add.u64 %a, %a, -%b;", "a probe may not use '-%b'"),
        ("add.u64 %a, %a, -ADDR;", "a probe may not use '-ADDR'"),
        ("mov.u64 %a, ADDR.x;", "'ADDR.x' is not a helper"),
        ("mov.u64 %a, IN1.a;", "'IN1.a' is not a helper"),
        ("mov.u32 %x, %tid.x.y;", "'%tid.x.y' is not a special register"),
        ("mov.u32 %x, %tid.w;", "'%tid.w' is not a special register"),
        ("mov.u32 %x, %smid.x;", "'%smid.x' is not a special register"),
        ("mov.u32 %x, 0x1FFFFFFFF;", "'0x1FFFFFFFF' where .u32 is expected"),
        ("mov.b64 %a, 0f3F800000;", "'0f3F800000' where .b64 is expected"),
        ("min.f32 %f, %f, %f, %f, %f;", "has 5 operands"),
        ("min.u32 %x, %x, %x, %x;", "has 4 operands"),
        ("ex2.approx.ftz.f16 %h, %h;", "'ex2.approx.ftz.f16' is not allowed in a probe"),
        ("add.f32.f16 %f, %h, %f;", "'add.f32.f16' is not allowed in a probe"),
        ("add.lt.u32 %x, %x, %x;", "'add.lt.u32' is not allowed in a probe"),
        ("add.sat.u32 %x, %x, %x;", "'add.sat.u32' is not allowed in a probe"),
        ("div.f32 %f, %f, %f;", "'div.f32' is not allowed in a probe"),
        ("cvt.f32.u32 %f, %x;", "'cvt.f32.u32' is not allowed in a probe"),
        ("mov.u32 %x, 5/0;", "'5 / 0' divides by 0 or by something that isn't a number"),
        ("mov.u32 %x, 5%(3-3);", "'5 % (3-3)' divides by"),
        ("mov.s64 %a, (-9223372036854775807-1)/-1;", "divides by"),  # ptxas crashes on this
        ("mov.f32 %f, 1.0/0.0;", "divides by"),
        ("mov.f32 %f, 1e999;", "'1e999' is not a number of 64 bits"),
        ("mov.f32 %f, 1e-320;", "'1e-320' is not a number of 64 bits"),
        ("mov.f32 %f, -0f3F800000;", "'-0f3F800000' is not a PTX constant"),
        ("mov.f32 %f, ~1.5;", "'~1.5' is not a PTX constant"),
        ("mov.f32 %f, WARP_SZ;", "'WARP_SZ' where .f32 is expected"),
        ("mov.u32 %x, (1, 2);", "'(1, 2)' is not a PTX constant"),
        ("mov.u32 %x, (.f64)1;", "'(.f64)1' is not a PTX constant"),
        ("add.f16x2 %x, %x, 1;", "'add.f16x2 %x, %x, 1;' does not take '1'"),
        ("add.f16x2 %x, %x, BYTES;", "'BYTES' is not a register of plain bits"),
        (".reg .u32 %u; add.f16x2 %u, %x, %x;", "'%u' is not a register of plain bits"),
        ("abs.f16 %h, 5;", "does not take '5'"),
        ("cvt.rn.bf16.f32 %h, %a;", "'%a' is .b64, where .f32 is expected"),
        ("bfe.u32 %x, %x, 256, 1;", "does not take '256'"),
        ("lop3.b32 %x, %x, %x, %x, %y;", "does not take '%y'"),
        ("add.u32 %x, {%h, %h}, 1;", "does not take '{%h, %h}'"),
        ("mov.u64 %a, {%x, %y};", "does not take '{%x, %y}'"),
        ("mov.b64 {%x, %y}, {%y, %x};", "does not take '{%y, %x}'"),
        ("mov.b64 {_, _}, %a;", "does not take '{_, _}'"),
        ("and.pred %p, %p|%q, %p;", "does not take '%p|%q'"),
        ("mov.u32 %x, %current_graph_exec_hi;", "register '%current_graph_exec_hi' is not declared in the probe"),
        (".reg .b32 WARP_SZ;", "register 'WARP_SZ' has a name that is taken"),
        (".reg .b32 _;", "register '_' has a name that is taken"),
        ("L: .branchtargets M; M:", "a probe may not contain '.branchtargets'"),
        (".reg .b32 %c<4.5>;", "'%c<4.5>' is not a number of registers"),
        ("mov.u64 IN1.x, %a;", "writes 'IN1.x', which is not a register"),
        ("mov.u64 %a, ADDR+8;", "a probe may not use 'ADDR+8'"),
        ("mov.u32 %x, (%y);", "a probe may not use '(%y)'"),
        ("mov.u32 %x, 09;", "'09' is not a number of 64 bits"),
        ("mov.u32 %x, 18446744073709551616;", "'18446744073709551616' is not a number of 64 bits"),
        ("mov.u32 %x, " + "9" * 5000 + ";", "is not a number of 64 bits"),
        ("mov.u32 %x, 1.5;", "'1.5' where .u32 is expected"),
        ("mov.b32 %x, 1.5;", "'1.5' where .b32 is expected"),
        ("add.f32 %f, %f, 1;", "'1' where .f32 is expected"),
        (".reg .u32 %u; add.f32 %f, %f, %u;", "'%u' is .u32, where .f32 is expected"),
        (".reg .u32 %u; mov.u32 %u, %f;", "'%f' is .f32, where .u32 is expected"),
        (".reg .f64 %d; cvt.rn.f32.u32 %d, %x;", "'%d' is .f64, where .f32 is expected"),
        (".reg .b64 ADDR;", "register 'ADDR' has a name that is taken"),
        (".reg .b64 %smid;", "register '%smid' has a name that is taken"),
    ],
)
def test_invalid_snippets_are_refused(snippet, fact):
    with pytest.raises(GptError) as error:
        check(snippet)
    assert fact in error.value.fact
    assert error.value.where.startswith("p.toml:")
    if "without a datamodel" not in fact:
        assert error.value.where in ("p.toml:4", "p.toml:5")


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "@%p ", "@!%q ", "@PRED "]),
            st.sampled_from([*counts(), "bra", "bra", "setp.lt", "add", "mov", "L: add", "SAVE", "ld"]),
            st.sampled_from(["", ".u32", ".u64", ".s32", ".f32", ".pred", ".wide.u32", ".u64.u32", ".lt.u32"]),
            st.lists(
                st.sampled_from(OPERANDS),
                max_size=5,
            ).map(", ".join),
        ).map(lambda parts: f"{parts[0]}{parts[1]}{parts[2]} {parts[3]};" if ":" not in parts[1] else "L:"),
        max_size=6,
    )
)
def test_any_snippet_is_allowed_or_refused(lines):
    try:
        check("\n".join(lines))
    except GptError as error:
        assert error.where.startswith("p.toml:")


@pytest.mark.parametrize(
    ("position", "helper", "fact"),
    [
        ("kernel", "ADDR", "'ADDR' at position 'kernel', which is not an instruction"),
        ("kernel", "OUT", "'OUT' at position 'kernel'"),
        ("func:f", "IN1", "'IN1' at position 'func:f'"),
        ("ld.global:label:L", "IN1", "'IN1' at position 'label:L'"),
        ("line:f.cu:3", "ADDR", "position of a line"),
    ],
)
def test_helpers_need_an_instruction(position, helper, fact):
    with pytest.raises(GptError) as error:
        check(f"mov.b64 %a, {helper};", position, "after")
    assert fact in error.value.fact


@pytest.mark.parametrize(
    ("save", "size", "fact"),
    [
        ("SAVE.u32 {%a};", 8, "saves '%a', .b64, as field 'a' of type u32"),
        ("SAVE.u32 {ADDR};", 8, "saves 'ADDR', .u64, as field 'addr' of type u32"),
        ("SAVE.u64 {%smid};", 8, "saves '%smid', .u32"),
        ("SAVE.u32 {%p};", 8, "saves predicate '%p'"),
        ("@%p SAVE.u32 {%x}; SAVE.u32 {%y};", 8, "SAVEs of one record have different guards"),
        ("@%p SAVE.u32 {%x}; @!%p SAVE.u32 {%y};", 8, "SAVEs of one record have different guards"),
        ("SAVE.f32 {%smid};", 8, "saves '%smid', .u32, as field 'smid' of type f32"),
        ("SAVE.f32 {BYTES};", 8, "saves 'BYTES', .u32, as field 'bytes' of type f32"),
        ("SAVE.u8 {300};", 8, "'300' where .u8 is expected"),
        ("SAVE.f16 {1.5};", 8, "'1.5' where .f16 is expected"),
        ("SAVE.b64 {0f3F800000};", 8, "'0f3F800000' where .b64 is expected"),
        ("SAVE.u32 {99999999999999999999};", 8, "'99999999999999999999' is not a number of 64 bits"),
        ("SAVE.u32 {1.5};", 8, "'1.5' where .u32 is expected"),
        ("SAVE.u32 {%r9};", 8, "register '%r9' is not declared in the probe"),
        ("SAVE.u32 {{%x, %y}};", 8, "saves '{%x, %y}', which is not a register"),
        ("SAVE.u64 {%a}; SAVE.u64 {%b};", 8, "16 bytes of fields in a record of 8"),
    ],
)
def test_saves_fit_their_map(save, size, fact):
    with pytest.raises(GptError) as error:
        check(save, datamodel=f"'warp:{size}'")
    assert fact in error.value.fact


TOTAL = """[map.m]
type = "{}"
level = "warp"
data = {{a = "u64", b = "u64", c = "u64"}}
[probe.p]
position = "kernel"
level = "warp"
after = "SAVE [m] {{{}}};"
"""


@pytest.mark.parametrize(
    ("type_", "values", "fact"),
    [
        ("total", "_, CLOCK, _", None),
        ("total", "_, _, _", "saves nothing"),
        ("total", "_, CLOCK", "saves 2 values, map 'm' has 3 fields"),
        ("array", "_, CLOCK, _", "reads '_'"),
    ],
)
def test_a_save_to_a_total_may_leave_fields_alone(type_, values, fact):
    file = parse_toml(TOTAL.format(type_, values), "p.toml")
    if fact is None:
        verify(file)
        return
    with pytest.raises(GptError) as error:
        verify(file)
    assert fact in error.value.fact


def test_special_registers_and_numbers_may_be_saved():
    check("SAVE.u64 {BYTES}; SAVE.u32 {BYTES};", datamodel="'thread:16'")
    check("@%p SAVE.u64 {%a}; @%p SAVE.u32 {%x};", datamodel="'thread:16'")
    file = check("SAVE.u64 {%a, %clock64}; SAVE.u32 {%smid, %tid.x, 7};", datamodel="'thread:32'")
    assert [field.offset for field in file.maps[0].fields] == [0, 8, 16, 20, 24]


@pytest.mark.parametrize(
    ("snippet", "instruction", "misfit"),
    [
        ("mov.b32 %x, OUT;", "ld.global.u32 %r1, [%rd1];", None),
        ("mov.b32 %x, OUT;", "ld.global.u64 %rd2, [%rd1];", "OUT has 64 bits, and line 5 expects 32"),
        ("mov.b64 %a, OUT;", "ld.global.v2.u32 {%r1, %r2}, [%rd1];", None),
        ("mov.b32 %x, OUT;", "ld.global.v2.u32 {%r1, %r2}, [%rd1];", "OUT has 64 bits, and line 5 expects 32"),
        ("mov.u64 %a, ADDR;", "bar.sync 0;", "has no ADDR"),
        ("mov.b32 %x, OUT;", "setp.eq.u32 %p1, %r1, 0;", "OUT has 1 bit, and line 5 expects 32"),
        ("mov.pred %p, OUT;", "setp.eq.u32 %p1|%p2, %r1, 0;", None),
        ("mov.pred %p, OUT;", "ld.global.u32 %r1, [%rd1];", "OUT has 32 bits, and line 5 expects 1"),
        ("mov.b32 %x, OUT;", "popc.b64 %r1, %rd1;", None),
        ("mov.b32 %x, IN3;", "selp.b32 %r1, 1, 0, %p1;", "IN3 has 1 bit, and line 5 expects 32"),
        ("mov.b32 %x, OUT;", "st.global.u32 [%rd1], %r1;", "has no OUT"),
        ("mov.u32 %x, FLOPS;", "ld.global.u32 %r1, [%rd1];", "has no FLOPS"),
        ("mov.b64 %a, IN1;", "ld.global.u32 %r1, [%rd1+4];", None),
        ("mov.b64 %a, IN1;", "st.global.u32 [%rd1], %r1;", "IN1 has 32 bits, and line 5 expects 64"),
        ("mov.b32 %x, IN2;", "atom.global.add.u64 %rd3, [%rd1], %rd2;", "IN2 has 64 bits, and line 5 expects 32"),
        ("mov.b32 %x, IN1;", "mul.wide.u32 %rd1, %r1, %r2;", None),
        ("mov.b32 %x, OUT.x;", "ld.global.u32 %r1, [%rd1];", None),
        ("mov.b32 %x, OUT.w;", "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", None),
        ("mov.b32 %x, OUT.w;", "ld.global.v2.f32 {%f1, %f2}, [%rd1];", "has no OUT.w"),
        ("mov.b32 %x, OUT.y;", "ld.global.u32 %r1, [%rd1];", "has no OUT.y"),
        ("mov.b32 %x, IN1.y;", "st.global.v2.u64 [%rd1], {%rd2, %rd3};", "IN1.y has 64 bits, and line 5 expects 32"),
        ("mov.b32 %x, IN2;", "cp.async.cg.shared.global [%r1], [%rd1], 16;", None),
        ("mov.b32 %x, IN1;", "add.f64 %fd1, %fd2, 0d3FF0000000000000;", "IN1 has 64 bits, and line 5 expects 32"),
        ("mov.u64 %a, ADDR;", "ld.param.u64 %rd1, [k_param_0];", "has no ADDR"),
    ],
)
def test_misfits_name_the_missing_helper(snippet, instruction, misfit):
    file = check(snippet, when="after")
    (node,) = parse_statements(instruction)
    assert find_misfit(file.probes[0], bind(node)) == misfit


@pytest.mark.parametrize(
    ("saved", "instruction", "misfit"),
    [
        ("SAVE.u32 {OUT};", "ld.global.u32 %r1, [%rd1];", None),
        ("SAVE.u64 {OUT};", "ld.global.u32 %r1, [%rd1];", None),
        ("SAVE.u64 {OUT};", "ld.global.v2.u32 {%r1, %r2}, [%rd1];", None),
        ("SAVE.u32 {OUT};", "ld.global.u64 %rd2, [%rd1];", "OUT has 64 bits, and line 6 expects 32"),
        ("SAVE.u32 {OUT};", "ld.global.v2.u32 {%r1, %r2}, [%rd1];", "OUT has 64 bits, and line 6 expects 32"),
        ("SAVE.u64 {OUT};", "ld.global.v2.u16 {%h1, %h2}, [%rd1];", None),
        ("SAVE.f64 {OUT};", "ld.global.f32 %f1, [%rd1];", "OUT has 32 bits, and line 6 expects 64"),
        ("SAVE.u32 {OUT};", "setp.eq.u32 %p1, %r1, 0;", "OUT has 1 bit, and line 6 expects 32"),
        ("SAVE.u32 {IN1};", "ld.global.u32 %r1, [%rd1];", "IN1 has 64 bits, and line 6 expects 32"),
        ("SAVE.u32 {BYTES};", "cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
         "[%r1], [%rd1, {%r2}], [%r3];", "has no BYTES, which its tensor map knows"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_a_field_are_misfits(saved, instruction, misfit):
    file = check(saved, when="after", datamodel="'thread:8'")
    (node,) = parse_statements(instruction)
    assert find_misfit(file.probes[0], bind(node)) == misfit
