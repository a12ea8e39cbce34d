"""The simulated device accepts and rejects the same declarations as ptxas, and gives a reason."""

import struct
import subprocess

import pytest

from gpt.asm.host.module import ModuleWriter
from gpt.asm.host.names import evaluate_float
from gpt.asm.host.table import TYPES
from gpt.ptx.parse import parse_statements
from tests import cuda

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
BEFORE = ".global .u32 y[8]; .shared .u32 s;\n"
USES = ".visible .entry k() { .reg .u64 a; mov.u64 a, x; ret; }\n"
CALLED = ".visible .entry k() { .reg .u64 a; mov.u64 a, f; ret; }\n"

UNUSED = ".visible .entry k() { ret; }\n"
VARIABLES = {  # a module's variables, used by a kernel or not
    ".global .v2 .f64 x;": "",
    ".shared .v4 .u16 x;": "",
    ".global .f16x2 x;": "",
    ".global .b128 x;": "",
    ".global .bf16 x;": "which only instructions have: declare .b16",
    ".const .e4m3x2 x;": "which only instructions have",
    ".shared .pred x;": "which only single registers have",
    ".global .v4 .f64 x;": "at most 128 bits",
    ".global .align 3 .u32 x;": "an alignment is a power of two",
    ".shared .u32 x = 1;": "only .global and .const variables",
    ".extern .global .u32 x = 1;": "only .global and .const variables",
    ".shared .b8 x[];": "without a size",
    ".extern .shared .b8 x[];": "",
    ".global .u32 x[] = {1, 2};": "",
    ".global .u32 x[4] = 1;": "without braces",
    ".global .u32 x = {1};": "in braces",
    ".global .u32 x[2][2] = {1, 2};": "each dimension has braces",
    ".global .u32 x[2][2] = {{1}, {2, 3}};": "",
    ".global .u32 x[4] = {{1, 2}, {3}};": "each dimension has braces",
    ".global .v2 .u32 x = {1, 2};": "",
    ".global .v2 .f32 x[2] = {{1.0, 2.0}, {3.0, 4.0}};": "",
    ".global .u32 x = 1.5;": "'1.5' as a value of type .u32",
    ".global .s64 x = 0d3FF0000000000000;": "as a value of type .s64",
    ".global .f16 x = 1.5;": "of type .f16 with an initial value",
    ".global .b32 x = 0f3F800000;": "",
    ".global .f64 x = 1e999;": "isn't a normal 64-bit float",
    ".global .f64 x = -1e-310;": "isn't a normal 64-bit float",
    ".global .f64 x = 0e-999;": "",
    ".global .f32 x[2] = {(1.5+0.5)*2.0, 0d3FF8000000000000/-3.0};": "",
    ".global .f32 x = 1.5+1;": "operand '1'",
    ".global .f32 x = 1.5/0.0;": "divides by zero",
    ".global .u64 x = y+4;": "",
    ".global .b64 x = y;": "address 'y' as a value of type .b64",
    ".global .u8 x = y;": "address 'y' as a value of type .u8",
    ".global .u8 x[2] = {0xFF(y), 0xFF00(y)};": "",
    ".global .u64 x = missing;": "the address of 'missing', which is neither",
    ".global .u64 x = s;": "the address of 's', which is neither",
    ".reg .u32 x;": "outside of functions",
    ".global .u32 x[0];": "array 'x' without elements",
    ".global .u32 x[-1];": "array 'x' without elements",
    ".const .b8 x[65536];": "",
    ".const .b8 x[65537];": "bytes of constant memory, of 65536 at most",
    ".const .b8 z[65535]; .const .b16 x;": "bytes of constant memory, of 65536 at most",
    ".global .attribute(.managed) .u32 x;": "",
    ".shared .attribute(.managed) .u32 x;": "which only .global variables are",
    ".global .attribute(.nosuch) .u32 x;": "which PTX doesn't have",
    ".visible .weak .global .u32 x;": "as .visible and .weak",
    ".visible .global .u32 x; .visible .global .u32 x;": "'x' is declared twice",
    ".global .attribute(.managed, .managed) .u32 x;": "",
    ".global .attribute(.unified) .u32 x;": "which needs ptxas --compile-only",
    ".global .attribute(.unified(1, 2)) .u32 x;": "which needs ptxas --compile-only",
    ".global .u32 .attribute(.managed) x;": "in another order",
    ".attribute(.managed) .align 8 .global .align 4 .u32 x;": "",
    ".global .u32 .align 8 x;": "in another order",
    ".global .visible .u32 x;": "in another order",
    ".visible .v2 .global .u32 x;": "in another order",
    ".align 8 .global .v2 .u32 x;": "",
    ".global .global .u32 x;": "in another order",
    ".extern .global .u32 x; .visible .global .u32 x;": "",
    ".extern .global .u32 x; .global .u32 x;": "neither '.visible' nor '.weak'",
}
OPAQUE = {  # no kernel uses them
    ".global .texref x;": "",
    ".global .texref x, y;": "",
    ".global .surfref x[2];": "",
    ".global .samplerref x[2];": "",
    ".global .samplerref x;": "without 'texmode_independent'",
    ".global .texref x[];": "without a size",
    ".const .texref x;": "outside of .global memory",
    ".shared .surfref x;": "outside of .global memory",
    ".common .global .texref x;": "as '.common' or as a vector",
    ".global .v2 .texref x;": "as '.common' or as a vector",
    ".global .texref x; .global .texref x;": "declared twice",
    ".global .texref x; .global .u64 z = x;": "",
    ".global .texref x = 1;": "named fields in braces",
    ".global .texref x = {};": "",
    ".global .texref x = { filter_mode = linear, addr_mode_0 = clamp_to_border, width = 5 };": "",
    ".global .texref x[2] = { { width = 5 }, { height = 7 } };": "",
    ".global .texref x = { filter_mode };": "its fields are",
    ".global .texref x = { filter_mode = true };": "neither a number nor a mode",
    ".global .texref x = { force_unnormalized_coords = 1 };": "its fields are",
    ".global .surfref x = { width = 5 };": "",
    ".global .surfref x = { filter_mode = linear };": "its fields are",
}
IN_KERNELS = {
    ".reg .v4 .u16 x;": "",
    ".reg .tf32 x;": "which only instructions have: declare .b32",
    ".reg .v2 .pred x;": "which only single registers have",
    ".reg .v4 .b64 x;": "at most 128 bits",
    ".reg .u32 x[2];": "as an array",
    ".reg .u32 x = 1;": "only .global and .const variables",
    ".local .u32 x = 1;": "only .global and .const variables",
    ".local .u32 x[];": "without a size",
    ".param .align 16 .b8 x[16];": "",
    ".param .v2 .u32 x;": "declare an array of .b8",
    ".sreg .u32 x;": "'.sreg' in a function",
    ".visible .global .u32 x;": "'.visible' in a function",
    ".reg .f32 x; mov.f32 x, .5;": "",
    ".reg .f32 x; mov.f32 x, 1.5-0.5*2.0;": "",
    ".reg .f32 x; add.f32 x, x, 1e999;": "isn't a normal 64-bit float",
    ".reg .f32 x; mov.f32 x, 0f3F800000+1.0;": "operand '0f3F800000'",
    ".reg .u32 x; mov.u32 x, %tid;": "a vector",
    ".reg .b32 x; mov.b32 x, %nctaid;": "a vector",
    ".reg .u32 x; mov.u32 x, %tid.r;": "",
    ".reg .v4 .u32 x; mov.v4.u32 x, %tid;": "",
    ".reg .v2 .u32 x; .reg .u32 y; mov.u32 y, x;": "a vector",
    ".reg .v2 .u32 x; .reg .b64 y; mov.b64 y, x;": "",
    ".reg .u64 a, b; mov.v2.u64 {a, b}, {b, a};": "",
    ".reg .u64 a, b; mov.v4.u64 {a, b, a, b}, {b, a, b, a};": "at most 128 bits",
    ".reg .u32 x; b: .branchtargets a; brx.idx x, b; a:": "",
    ".reg .u64 x; b: .branchtargets a; brx.idx x, b; a:": "where .u32 is expected",
    ".reg .u16 x; b: .branchtargets a; brx.idx x, b; a:": "where .u32 is expected",
    "b: .branchtargets a; brx.idx %tid.x, b; a:": "where .u32 is expected",
    ".reg .u32 x; { .reg .u32 x; mov.u32 x, 1; }": "",
    ".reg .u32 x<3>; .reg .u32 x3;": "",
    ".reg .u32 x3; .reg .u32 x<3>;": "",
    ".reg .u32 x<3>; .reg .u32 x2;": "declared twice",
    ".reg .u32 x2; .reg .u32 x<3>;": "declared twice",
    ".reg .u32 x; x: mov.u32 x, 1;": "defined twice",
    "x: .reg .u32 x; mov.u32 x, 1;": "declared twice",
    "mov.u32 x, 1; .reg .u32 x;": "'x' is not a declared register",
    "mov.u32 x2, 1; .reg .u32 x<3>;": "'x2' is not a declared register",
    ".extern .shared .b8 x[];": "'.extern' in a function",
    ".reg .u32 x; brx.idx x, b; b: .branchtargets a; a:": "no .branchtargets 'b'",
    ".reg .u32 x; mov.u32 x, y; .shared .u32 y;": "'y' is not a declared register",
    ".reg .u32 x; st.local.u32 [y], x; .local .u32 y;": "'y' is not a declared register",
    ".reg .u32 x; .local .u32 y; st.local.u32 [y], x;": "",
}
PARAMETERS = {  # functions' parameters
    ".reg .v2 .u16 a": "",
    ".reg .u16 a": "functions have .b8, .b16 or more",
    ".param .s8 a": "functions have .b8, .b16 or more",
    ".param .b8 a": "",
    ".param .u64 .ptr a": "after the type of parameter 'a': only kernels have that",
    ".param .u64 .align 8 a": "after the type of parameter 'a': only kernels have that",
    ".align 8 .param .u64 a": "",
    ".param .ptr .u64 a": "in another order",
    ".param .u32 a, .param .u32 a": "declared twice",
    ".param .f16x2 a": "declare an array of .b8",
    ".reg .b8 a[4]": "as an array",
}
ATTRIBUTES = {
    ".maxntid 32 .minnctapersm 2": "",
    ".maxntid 32 .reqntid 32": "'.maxntid' and '.reqntid' together",
    ".maxntid 32, 0": "'.maxntid' of 0",
    ".maxnreg 0": "'.maxnreg' of 0",
    ".maxntid 1, 1, 1, 1": "'.maxntid' with 4 numbers",
    ".maxntid": "'.maxntid' with 0 numbers",
    ".maxnreg 32, 1": "'.maxnreg' with 2 numbers",
    ".explicitcluster 1": "'.explicitcluster' with 1 numbers",
    ".maxntid 1048576": "",
    ".maxntid 4294967296": "'.maxntid' with a number over 4294967295",
    ".maxntid 99999999999999999999": "with '99999999999999999999'",
    ".maxnctapersm 2": "'.maxnctapersm' needs .target or .version before 2.1",
    ".reqntid 32 .reqnctapercluster 1 .blocksareclusters": "'.blocksareclusters' needs .version 9.0",
    ".reqnctapercluster 1 .maxclusterrank 1": "'.reqnctapercluster' and '.maxclusterrank' together",
    ".noreturn": "'.noreturn', which kernels don't have",
    ".abi_preserve 5": "'.abi_preserve', which kernels don't have",
    ".minnreg 32": "'.minnreg', which kernels don't have",
}
HEADS = {
    ".func f() .maxntid 32 { ret; }": "'.maxntid', which functions don't have",
    ".func f() .maxntid 32; .func f() { ret; }": "'.maxntid', which functions don't have",
    ".extern .func f() .maxnreg 32;": "'.maxnreg', which functions don't have",
    ".extern .func f() .noreturn;": "",
    ".func f() .noreturn { exit; }": "",
    ".func f() .noreturn .noreturn { exit; }": "'.noreturn' after '.noreturn'",
    ".func f() .noreturn 1 { exit; }": "'.noreturn' with 1 numbers",
    ".func f() .abi_preserve 5 { ret; }": "'.abi_preserve' needs .version 9.0",
    ".func .attribute(.unified(1, 2)) f() { ret; }": "'.attribute(.unified(1, 2))' after '.func'",
    ".extern .func .attribute(.unified) f();": "'.attribute(.unified)' after '.func'",
    ".func f() .attribute(.unified(1, 2)) { ret; }": "unexpected",
    ".func .visible f() { ret; }": "'.visible' after '.func'",
    '.extern .func f() .pragma "nounroll";;': "a pragma without a kernel's body",
    ".visible .entry f();": "'f' is declared, not '.extern', and defined nowhere",
    ".extern .entry f() .maxntid 32;": "'.maxntid 32' of a declaration",
    ".entry f() .maxntid 32; .entry f() .maxntid 32 { ret; }": "'.maxntid 32' of a declaration",
    ".entry f(); .entry f() .maxntid 32 { ret; }": "",
    ".entry .attribute(.unified(1, 2)) f() { ret; }": "'.attribute(.unified(1, 2))' after '.entry'",
}
NEWER = {  # .target and .version: modules that are right there only
    ("sm_90", "9.0"): (
        ".visible .entry k() .reqntid 32 .reqnctapercluster 1 .blocksareclusters { ret; }",
        f".func f() .abi_preserve 200 {{ ret; }} {CALLED}",
        f".func f() .abi_preserve 8 .abi_preserve_control 11 {{ ret; }} {CALLED}",
        f".func f() .abi_preserve 4; .func f() .abi_preserve 4 {{ ret; }} {CALLED}",
    ),
    ("sm_90", "7.8"): (
        ".visible .entry k() .maxclusterrank 8 { ret; }",
        ".visible .entry k() .explicitcluster .reqnctapercluster 1, 1, 1 { ret; }",
    ),
}
WRONG = (  # in 9.0
    ".visible .entry k() .blocksareclusters { ret; }",
    f".func f() .abi_preserve 240 {{ ret; }} {CALLED}",
    f".func f() .abi_preserve_control 12 {{ ret; }} {CALLED}",
    f".func f() .abi_preserve 4 .noreturn {{ ret; }} {CALLED}",
    f".func f() .abi_preserve 4 .abi_preserve 4 {{ ret; }} {CALLED}",
    f".func f() .abi_preserve 4; .func f() {{ ret; }} {CALLED}",
    f".func f(); .func f() .abi_preserve 4 {{ ret; }} {CALLED}",
    ".visible .entry k() { .reg .u64 a; x: .callprototype _ () .abi_preserve; mov.u64 a, 0; call a, (), x; ret; }",
    ".visible .entry k() { .reg .u64 a; x: .callprototype _ () .maxntid 1; mov.u64 a, 0; call a, (), x; ret; }",
)
CASES = {
    **{f"{BEFORE}{text}\n{USES}": reason for text, reason in VARIABLES.items()},
    **{f"{BEFORE}{text}\n{UNUSED}": reason for text, reason in VARIABLES.items()},
    **{f"{text}\n{UNUSED}": reason for text, reason in OPAQUE.items()},
    f".reg .texref x;\n{UNUSED}": "outside of functions",
    f".common .shared .u32 x;\n{UNUSED}": "'.common'",
    **{f".visible .entry k() {{ {text} ret; }}\n": reason for text, reason in IN_KERNELS.items()},
    **{f".func f({text}) {{ ret; }}\n{CALLED}": reason for text, reason in PARAMETERS.items()},
    **{f".visible .entry k() {text} {{ ret; }}\n": reason for text, reason in ATTRIBUTES.items()},
    **{f"{text}\n{UNUSED}": reason for text, reason in HEADS.items()},
    ".visible .entry k(.param .v4 .f32 a) { ret; }\n": "declare an array of .b8",
    ".visible .entry k(.param .u64 .ptr .global .align 8 a) { ret; }\n": "",
    ".visible .entry k(.param .u64 .ptr .nosuch a) { ret; }\n": "parameter 'a' with '.nosuch'",
    ".visible .entry k(.shared .u32 a) { ret; }\n": "parameter 'a' with '.shared'",
    ".visible .entry k(.param .b8 a[32764]) { ret; }\n": "",
    ".visible .entry k(.param .b8 a[32765]) { ret; }\n": "32765 bytes of parameters, of 32764 at most",
}


@pytest.mark.parametrize("text", CASES)
def test_declarations(text):
    code = ModuleWriter((HEAD + text).encode(), "m")
    code.write()
    said = [fact for _, fact in code.faults]
    assert any(CASES[text] in fact for fact in said) if CASES[text] else not said, said


def faults(text, target, version):
    code = ModuleWriter(f".version {version}\n.target {target}\n.address_size 64\n{text}".encode(), "m")
    code.write()
    return code.faults


def test_heads_of_later_targets_and_versions():
    for (target, version), texts in NEWER.items():
        for text in texts:
            assert not faults(text, target, version), text
            assert version == "7.8" or faults(text, target, "8.8"), text
            assert ("abi" in text) == (not faults(text, "sm_80", version)), text
            assert faults(text, "sm_75", version), text
    for text in WRONG:
        assert faults(text, "sm_90", "9.0"), text


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5-0.5*2.0", 0.5), ("-(1.5-0.5)/4.0", -0.25), ("1.5-1.0-1.0", -0.5), ("0d3FF8000000000000*2.0", 3.0)],
)
def test_expressions_of_floats(text, value):
    (move,) = parse_statements(f"mov.f64 x, {text};")
    assert evaluate_float(move.operands[1], TYPES["f64"]).to_bytes(8, "little") == struct.pack("<d", value)
    assert evaluate_float(move.operands[1], TYPES["f32"]).to_bytes(4, "little") == struct.pack("<f", value)


@pytest.mark.full
def test_ptxas_agrees(tmp_path):
    try:
        ptxas = cuda.tool("ptxas")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = tmp_path / "m.ptx"
    modules = {HEAD + text: reason for text, reason in CASES.items()}
    modules |= {HEAD.replace("8.7", "9.0") + text: "" for text in NEWER["sm_90", "9.0"]}
    modules |= {HEAD.replace("8.7", "9.0") + text: "wrong" for text in WRONG}
    for text, reason in modules.items():
        path.write_text(text)
        # External variables, which are defined in another module.
        flags = ["-c"] if ".extern .global" in text else []
        line = [ptxas, "-arch=sm_90", "-O0", *flags, path, "-o", tmp_path / "m.cubin"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (not reason), (text, done.stderr)
