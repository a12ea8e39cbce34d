"""Arguments and results of functions that ptxas accepts: vector registers, predicates, several results."""

from __future__ import annotations

import struct
import subprocess

import pytest

from gpt.asm.backend import Faults
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
def test_what_ptxas_refuses_or_makes_no_sense_of(thread, text, fault):
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
        (SEVERAL, "call (%r1, %r2), divide, (1, 2, %p2);", "a predicate and .u32"),
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
def test_ptxas_takes_and_refuses_the_same(thread, tmp_path, module, body, fault):
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
