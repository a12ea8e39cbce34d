"""Arguments and results of functions that ptxas accepts: vector registers, predicates, several results."""

from __future__ import annotations

import re
import struct
import subprocess

import pytest

from gpt.asm.backend import Faults
from gpt.asm.host.module import ModuleWriter
from tests import cuda
from tests.asm.host.thread import Thread, kernel

MODULE = """
.func (.reg .v2 .u32 r) swap(.reg .v2 .u32 a) { mov.u32 r.x, a.y; mov.u32 r.y, a.x; ret; }
.func (.reg .v4 .f32 r) scale(.reg .v4 .f32 a, .reg .f32 by)
{ mul.f32 r.x, a.x, by; mul.f32 r.y, a.g, by; mul.f32 r.z, a.z, by; mul.f32 r.w, a.a, by; ret; }
.func (.reg .v2 .b16 r) halves(.reg .v2 .b16 a) { mov.b16 r.x, a.y; mov.b16 r.y, a.x; ret; }
.func (.reg .v2 .b64 r) wide(.reg .v2 .b64 a, .reg .b64 b) { add.u64 r.x, a.x, b; sub.u64 r.y, a.y, b; ret; }
.func (.param .b64 r) plain(.param .b64 a)
{ .reg .v2 .b32 x; ld.param.v2.b32 x, [a]; st.param.b32 [r], x.y; st.param.b32 [r+4], x.x; ret; }
.func (.reg .v2 .u32 r) deep(.reg .v2 .u32 a, .reg .u32 n)
{
    .reg .pred p; .reg .u32 m; .reg .v2 .u32 b;
    setp.eq.u32 p, n, 0; mov.v2.u32 r, a; @p ret;
    sub.u32 m, n, 1; add.u32 b.x, a.x, a.y; mov.u32 b.y, a.x; call (r), deep, (b, m); ret;
}
"""
BODY = """
    .reg .v2 .u32 v<3>, w; .reg .v4 .f32 q; .reg .v2 .b16 h, i; .reg .v2 .b64 l;
    ld.global.v2.u32 v1, [%p];
    call (w), swap, (v1);           st.global.v2.u32 [%p+16], w;      // 2 1
    call (v1), swap, (w);           st.global.v2.u32 [%p+24], v1;     // 1 2
    mov.v2.u32 w, v1;
    mov.u64 %d3, swap;
    P: .callprototype (.reg .v2 .u32 _) _ (.reg .v2 .u32 _);
    call (w), %d3, (w), P;          st.global.v2.u32 [%p+32], w;      // 2 1
    mov.b16 h.x, 5; mov.b16 h.y, 6;
    call (i), halves, (h); mov.b32 %r1, {i.x, i.y}; st.global.u32 [%p+40], %r1; // 0x50006
    mov.f32 q.x, 0f3F800000; mov.f32 q.y, 0f40000000; mov.f32 q.z, 0f40400000; mov.f32 q.w, 0f40800000;
    call (q), scale, (q, 0f40000000); cvt.rni.u32.f32 %r1, q.w; st.global.u32 [%p+44], %r1; // 8
    mov.b64 l.x, 7; mov.b64 l.y, 9;
    call (l), wide, (l, 2); cvt.u32.u64 %r1, l.x; cvt.u32.u64 %r2, l.y; st.global.v2.u32 [%p+48], {%r1, %r2}; // 9 7
    call (w), deep, (v1, 5);        st.global.v2.u32 [%p+56], w;      // 18 11
    call (_), swap, (v1);
"""
WANTED = (2, 1, 1, 2, 2, 1, 0x50006, 8, 9, 7, 18, 11)


@pytest.fixture(scope="module")
def thread(tmp_path_factory):
    return Thread(tmp_path_factory.mktemp("thread"))


def test_vector_registers(thread):
    made = thread.run(kernel(BODY, MODULE), struct.pack("<4I", 1, 2, 0, 0) + bytes(64))
    assert struct.unpack_from("<12I", made, 16) == WANTED


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("call (_), swap, (7);", "'7' for the vector parameter '.reg .v2 .u32 a'"),
        ("call (_), swap, (%tid);", "'%tid' for the vector parameter '.reg .v2 .u32 a'"),
        ("call (%r1), swap, (_);", "'%r1' for the vector parameter '.reg .v2 .u32 r'"),
        ("call (_), swap, ({%r1, %r2});", "'{%r1, %r2}' for the vector parameter '.reg .v2 .u32 a'"),
        (".reg .v4 .u32 v; call (_), swap, (v);", "'v' for the vector parameter '.reg .v2 .u32 a'"),
        ("call (_), swap, (%d1);", "'%d1' for the vector parameter '.reg .v2 .u32 a'"),
        (".reg .v2 .b32 v; call (_), plain, (v);", "'v' for the parameter '.param .b64 a'"),
    ],
)
def test_invalid_calls_are_refused(thread, text, fault):
    with pytest.raises(Faults) as caught:
        thread.run(kernel(text, MODULE))
    assert fault in caught.value.found[0][1]


# If one function has several results, ptxas doesn't follow the ABI in the whole module, and says so.
SEVERAL = """
.func (.reg .u32 q, .reg .pred r) divide(.reg .u32 a, .reg .u32 b, .reg .pred up)
{
    .reg .u32 s;
    div.u32 q, a, b; rem.u32 s, a, b; setp.ne.u32 r, s, 0;
    @!up ret;
    @r add.u32 q, q, 1;
    ret;
}
.func (.reg .pred r) negate(.reg .pred a) { not.pred r, a; ret; }
.func (.reg .u16 r) twice(.param .u8 a) { .reg .u16 x; ld.param.u8 x, [a]; add.u16 r, x, x; ret; }
"""
DECLARED = ".extern .func (.reg .u32 a, .reg .u32 b) elsewhere(.reg .u32 c);\n"
PLAIN = ".func (.reg .u32 r) plain(.reg .u32 a) { mov.u32 r, a; ret; }\n"
AGAIN = ".func deep(.reg .u32 n) { .reg .pred p; setp.eq.u32 p, n, 0; @p ret; call deep, (0); ret; }\n"
TURNS = ".func b();\n.func a() { call b; ret; }\n.func b() { call a; ret; }\n"


def test_several_results(thread):
    body = """
    ld.global.v2.u32 {%r1, %r2}, [%p];
    setp.eq.u32 %p1, %r1, %r1;
    call (%r3, %p2), divide, (%r1, %r2, %p1);
    selp.u32 %r4, 1, 0, %p2;
    call (%p3), negate, (%p2);
    @%p3 call (%r3, _), divide, (1, 1, %p2);
    selp.u32 %r5, 1, 0, %p3;
    st.global.v2.u32 [%p], {%r3, %r4};
    { .param .u8 x; st.param.u8 [x], %r3; call (%h1), twice, (x); }
    cvt.u32.u16 %r6, %h1;
    st.global.v2.u32 [%p+8], {%r5, %r6};
    """
    assert struct.unpack("<4I", thread.run(kernel(body, SEVERAL), struct.pack("<4I", 7, 2, 0, 0))) == (4, 1, 0, 8)
    assert struct.unpack("<4I", thread.run(kernel(body, SEVERAL), struct.pack("<4I", 8, 2, 0, 0))) == (1, 0, 1, 2)


@pytest.mark.parametrize(
    ("module", "body", "fault"),
    [
        (SEVERAL, "call (%r1, %p1), divide, (1, 2, %p2);", ""),
        (DECLARED + ".func f(.reg .pred a) { ret; }\n", "call f, (%p1);", ""),
        (".func f(.reg .pred a) { ret; }", "call f, (%p1);", "parameter 'a' of type .pred"),
        (".func (.reg .s16 r) f() { ret; }", "call (%h1), f;", "parameter 'r' of type .s16"),
        (SEVERAL, "call (%r1, %p1), divide, (1, 2, 1);", "'1' where a predicate is expected"),
        (SEVERAL, "call (%r1, %p1), divide, (1, 2, !%p2);", "'!%p2' where a predicate is expected"),
        (SEVERAL, "call (%r1, %r2), divide, (1, 2, %p2);", "which is .b32, for a parameter that is .pred"),
        (".func (.param .u32 a, .param .u32 b) f() { ret; }", "{ .param .u32 x, y; call (x, y), f; }", "result 'a'"),
        (SEVERAL + PLAIN, "mov.u64 %d1, plain;", "the address of function 'plain', which ptxas refuses"),
        (SEVERAL + PLAIN + ".global .u64 t = plain;", "mov.u64 %d1, t;", "a function's address in 't', which ptxas"),
        (SEVERAL + AGAIN, "call deep, (1);", "function 'deep' calls itself, which ptxas refuses"),
        (SEVERAL + AGAIN, "", ""),
        (SEVERAL + TURNS, "call a;", "function 'a' calls itself"),
        (SEVERAL + ".extern .func free(.param .b64 a);", "{ .param .b64 x; call free, (x); }", "a call of 'free'"),
        (".func free(.param .b64 a);", "P: .callprototype (.reg .u32 _, .reg .u32 _) _ ();", ""),
    ],
)
def test_ptxas_accepts_and_refuses_the_same_forms(thread, tmp_path, module, body, fault):
    text = kernel(body, module)
    (tmp_path / "m.ptx").write_text(text)
    line = [cuda.tool("ptxas"), "-arch=sm_90", tmp_path / "m.ptx", "-o", "/dev/null"]
    assert bool(subprocess.run(line, capture_output=True, check=False).returncode) == bool(fault)
    if fault:
        with pytest.raises(Faults) as caught:
            thread.run(text, bytes(64))
        assert fault in " ".join(said for _, said in caught.value.found)
    else:
        thread.run(text, bytes(64))


TYPES = ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
ARRAYS = (
    ".b8 x[4]",
    ".align 4 .b8 x[4]",
    ".align 8 .b8 x[8]",
    ".align 8 .b8 x[16]",
    ".align 16 .b8 x[16]",
    ".b32 x[4]",
)
FORMALS = (
    *(f"{space} .{type_} x" for type_ in TYPES for space in (".reg", ".param")),
    *(f".param {a}" for a in ARRAYS),
)


def test_arguments_have_the_types_of_parameters(tmp_path):
    """Pass every kind of register, constant, variable and array to each parameter; ptxas takes the same."""
    try:
        ptxas = cuda.tool("ptxas")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    types = [*TYPES, "f16", "b8", "u8"]
    given = {
        **{f"r_{type_}": f".reg .{type_} r_{type_};" for type_ in types},
        **{f"p_{type_}": f".param .{type_} p_{type_};" for type_ in types},
        **{f"a_{number}": f".param {array.replace(' x', f' a_{number}')};" for number, array in enumerate(ARRAYS)},
        **dict.fromkeys(("5", "-1", "0f3F800000"), ""),
    }
    head = ".version 8.7\n.target sm_90\n.address_size 64\n"
    head += "".join(f".func f{number}({formal}) {{ ret; }}\n" for number, formal in enumerate(FORMALS))
    head += ".visible .entry k() {\n" + " ".join(given.values()) + "\n"
    calls = [(number, one) for number in range(len(FORMALS)) for one in given]
    text = head + "".join(f"call f{number}, ({one});\n" for number, one in calls) + "ret;\n}\n"
    module = tmp_path / "m.ptx"
    module.write_text(text)
    done = subprocess.run([ptxas, "-arch=sm_90", module, "-o", "/dev/null"], capture_output=True, text=True)
    code = ModuleWriter(text.encode(), "m")
    code.write()
    theirs = {int(line) for line in re.findall(r"line (\d+); error", done.stderr)}
    ours = {int(where.rpartition(":")[2]) for where, _ in code.faults}
    first = head.count("\n") + 1
    named = [(FORMALS[number], one) for number, one in calls]
    assert [one for at, one in enumerate(named) if (first + at in theirs) != (first + at in ours)] == []
    assert len(theirs) == REFUSED


REFUSED = 848  # out of 28 parameters times 38 arguments


def test_too_small_array_is_not_an_argument(thread):
    """The function would read beyond it."""
    module = ".func f(.param .align 8 .b8 x[64]) { ret; }\n"
    with pytest.raises(Faults) as caught:
        thread.run(kernel("{ .param .b64 y; st.param.b64 [y], %p; call f, (y); }", module))
    assert "'y', which is .b64, for a parameter that is 64 bytes aligned to 8" in caught.value.found[0][1]


def test_arguments_of_indirect_calls_have_the_types_of_the_prototype(thread):
    module = ".func f(.reg .b64 x) { ret; }\n"
    text = "mov.u64 %d1, f; P: .callprototype _ (.reg .b64 _); call %d1, (%r1), P;"
    with pytest.raises(Faults) as caught:
        thread.run(kernel(text, module))
    assert "'%r1', which is .b32, for a parameter that is .b64" in caught.value.found[0][1]


def test_arguments_of_device_functions_have_the_types_of_their_declaration(thread):
    module = ".extern .func (.param .b64 r) malloc(.param .b64 size);\n"
    with pytest.raises(Faults) as caught:
        thread.run(kernel("{ .param .b64 r; .param .b32 s; st.param.b32 [s], 8; call (r), malloc, (s); }", module))
    assert "'s', which is .b32, for a parameter that is .b64" in caught.value.found[0][1]
