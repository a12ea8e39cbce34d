"""Functions that no kernel needs, and names used too early: ptxas and the simulated device reject the same."""

import struct
import subprocess

import pytest

from gpt.asm.host.module import ModuleWriter
from tests import cuda
from tests.asm.host.thread import Thread, kernel

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
KERNEL = "\n.visible .entry k() { ret; }\n"
PAIR = ".func (.reg .u32 a, .reg .u32 b) pair() { ret; }\n"

UNREACHED = {
    ".func f() { .reg .f32 a; add.f32 a, a, 1; ret; }": "'1' where .f32 is expected",
    ".func f() { .reg .b16 a; .reg .f32 b; cvt.f16.f32 a, b; ret; }": "needs one of .rn .rz",
    ".func f() { nonsense.u32; ret; }": "not supported",
    ".func f() { bra elsewhere; ret; }": "no label 'elsewhere'",
    ".func f() { bar.sync 99; ret; }": "'99'",
    ".func f() { .reg .u32 a, a; ret; }": "'a' is declared twice",
    ".func f(.param .b32 a) { .param .b64 x; call f, (x); ret; }": "'x', which is .b64, for a parameter",
    ".func f(.param .b64 a) { .param .b64 x; call f, (x); ret; }": "",
    ".extern .func g(); .func f() { call g; ret; }": "'g'",
    ".func f() { .reg .f64 b; add.f32 b, b, b; ret; }\n.global .u64 p = f;": "where .f32 is expected",
    ".visible .func h();\n.visible .func f() { .reg .f64 b; add.f32 b, b, b; ret; }\n.alias h, f;": "where .f32 is",
    ".func f() { .local .b8 x[100000000]; .reg .u64 a; mov.u64 a, x; ret; }": "",
    ".func f() { .shared .b8 x[100000]; .reg .u64 a; mov.u64 a, x; ret; }": "",
    f"{PAIR}.func f() {{ call f; ret; }}": "",
    f"{PAIR}.func f() {{ .reg .u64 a; mov.u64 a, pair; ret; }}": "",
    ".global .texref t;\n.func f() { .reg .u64 a; mov.u64 a, t; ret; }": "",
    ".func f() { .reg .f32 a; .reg .u64 t; .reg .s32 i; tex.1d.v4.f32.s32 {a,a,a,a}, [t, {i}]; ret; }": "",
}
ORDER = {
    ".visible .entry e() { .reg .u32 a; ld.const.u32 a, [q]; ret; }\n.const .u32 q;": "'q' is declared only in line 5",
    ".visible .entry e() { .reg .u32 a; ld.shared.u32 a, [q]; ret; }\n.shared .u32 q;": "'q' is declared only in",
    ".visible .entry e() { .reg .u64 a; mov.u64 a, q; ret; }\n.global .u32 q;": "'q' is declared only in line 5",
    ".visible .entry e() { call g; ret; }\n.func g() { ret; }": "'g' is declared only in line 5",
    ".visible .entry e() { .reg .u64 a; mov.u64 a, g; ret; }\n.func g() { ret; }": "'g' is declared only in line 5",
    ".visible .entry e() { .reg .u64 a; T: .calltargets g; call a, T; ret; }\n.func g() { ret; }": "'g' is declared",
    ".func f() { call g; ret; }\n.func g() { ret; }": "'g' is declared only in line 5",
    ".global .u64 p = q;\n.global .u32 q;": "'q' is declared only in line 5",
    ".global .u64 p = q+4;\n.global .u32 q[4];": "'q' is declared only in line 5",
    ".global .u64 p = g;\n.func g() { ret; }": "'g' is declared only in line 5",
    ".global .u64 p = p;": "'p'",
    ".func h();\n.alias h, g;\n.func g() { ret; }": "an alias before 'g' is declared",
    ".func g() { ret; }\n.alias h, g;\n.func h();": "an alias before 'h' is declared",
    ".func h();\n.func g() { ret; }\n.alias h, g;": "",
    ".func g();\n.visible .entry e() { call g; ret; }\n.func g() { ret; }": "",
    ".extern .global .u32 q;\n.visible .entry e() { .reg .u64 a; mov.u64 a, q; ret; }\n.visible .global .u32 q;": "",
    ".func f() { call f; ret; }": "",
    ".visible .entry e() { .reg .u32 q, r; mov.u32 r, q; ret; }\n.global .u32 q;": "",
}
SCOPES = {
    ".func q() { ret; }\n.visible .entry e() { .reg .u64 q; call q; ret; }": "no function and no prototype 'q'",
    ".visible .entry e() { .reg .u32 q; { .local .u32 q; mov.u32 q, 1; } ret; }": "'q' is not a declared register",
    ".visible .entry e() { .local .u32 q; { .reg .u32 q; mov.u32 q, 1; } ret; }": "",
}
CASES = UNREACHED | ORDER | SCOPES


def judged(folder, text):
    (folder / "m.ptx").write_text(HEAD + text)
    line = [cuda.tool("ptxas"), "-arch=sm_90", folder / "m.ptx", "-o", "/dev/null"]
    return subprocess.run(line, capture_output=True, check=False).returncode


@pytest.mark.parametrize("text", CASES)
def test_reason(text):
    code = ModuleWriter((HEAD + text + KERNEL).encode(), "m")
    code.write()
    said = [fact for _, fact in code.faults]
    assert any(CASES[text] in fact for fact in said) if CASES[text] else not said, said


@pytest.mark.full
def test_ptxas_agrees(tmp_path):
    try:
        cuda.tool("ptxas")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    taken = [text for text in CASES if not judged(tmp_path, text + KERNEL)]
    assert set(taken) == {text for text, reason in CASES.items() if not reason}


def test_a_register_hides_a_variable_of_its_name(tmp_path):
    """The nearest scope counts: a kernel's own register, not the module's variable or its address."""
    body = """
    .reg .u32 q, r; .reg .u64 p;
    mov.u32 q, 5; add.u32 r, q, q; st.global.u32 [%p], r;
    { .local .u32 r; st.local.u32 [r], 7; ld.local.u32 q, [r]; }
    add.u32 r, r, q; st.global.u32 [%p+4], r;
    mov.u64 p, %p; st.global.u32 [p+8], q;
    { .reg .u32 q; mov.u32 q, 9; st.global.u32 [%p+12], q; }
    """
    module = ".global .u32 q, r; .shared .u64 p;"
    made = Thread(tmp_path).run(kernel(body, module), bytes(16))
    assert struct.unpack("<4I", made) == (10, 17, 7, 9)
