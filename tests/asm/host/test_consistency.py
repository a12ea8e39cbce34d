"""Declarations of one name, names in one scope, and pragmas: ptxas and the simulated device reject the same."""

import subprocess

import pytest

from gpt.asm.host.module import ModuleWriter
from tests import cuda

HEAD = ".version {}\n.target sm_90\n.address_size 64\n"
UNUSED = ".visible .entry k(.param .u32 p) { ret; }\n"
USED = ".visible .entry k() { .reg .u64 a; mov.u64 a, x; ret; }\n"
CALLED = ".visible .entry k() { .reg .u32 a; call (a), f, (a); ret; }\n"
BODY = "(.reg .u32 y) { mov.u32 r, y; ret; }"

FUNCTIONS = {  # each function is called in one case, unused in another
    f".func (.reg .u32 r) f(.reg .u32 y);\n.func (.reg .u32 r) f{BODY}": "",
    f".visible .func (.reg .u32 r) f(.reg .u32 y);\n.func (.reg .u32 r) f{BODY}": "",
    f".visible .func (.reg .u32 r) f(.reg .u32 y);\n.visible .func (.reg .u32 r) f{BODY}": "",
    f".weak .func (.reg .u32 r) f(.reg .u32 y);\n.func (.reg .u32 r) f{BODY}": "",
    f".func (.reg .u32 r) f(.reg .u32 y);\n.visible .func (.reg .u32 r) f{BODY}": "other linking words: none",
    f".visible .func (.reg .u32 r) f(.reg .u32 y);\n.weak .func (.reg .u32 r) f{BODY}": "linking words: .visible",
    f".extern .func (.reg .u32 r) f(.reg .u32 y);\n.func (.reg .u32 r) f{BODY}": "linking words: .extern",
    f".func (.reg .u32 r) f{BODY}\n.func (.reg .u32 r) f{BODY}": "'f' is defined twice",
    f".func (.reg .u32 r) f{BODY}\n.func (.reg .u32 r) f(.reg .u32 y);": "'f' is defined twice",
    f".func (.reg .u32 r) f(.reg .s32 y);\n.func (.reg .u32 r) f{BODY}": "'f' differs from its first declaration",
    f".func f(.reg .u32 y);\n.func (.reg .u32 r) f{BODY}": "'f' differs from its first declaration",
    f".func (.reg .u32 r) f(.reg .u32 y) .noreturn;\n.func (.reg .u32 r) f{BODY}": "'f' differs",
    f".global .u32 f;\n.func (.reg .u32 r) f{BODY}": "'f' is a variable and a function",
    f".func (.reg .u32 r) f{BODY}\n.visible .entry f();": "'f' is a kernel and a function",
    ".func (.reg .u32 r) f(.reg .u32 y);": "defined nowhere",
}
UNCALLED = {
    ".extern .func f(.param .b32 a);\n.extern .func f(.param .b32 b);": "",
    ".func f(.param .align 8 .b64 a);\n.func f(.param .b64 a) { ret; }": "",
    ".func f(.param .align 8 .b32 a);\n.func f(.param .b32 a) { ret; }": "'f' differs",
    ".func f(.param .b8 a[4]);\n.func f(.param .b8 a[8]) { ret; }": "'f' differs",
    ".visible .entry f(.param .u32 a);\n.entry f(.param .u32 b) { ret; }": "",
    ".visible .entry f(.param .u32 a);\n.visible .entry f(.param .u64 a) { ret; }": "'f' differs",
    ".visible .entry f(.param .u32 a);": "defined nowhere",
    ".visible .func g();\n.visible .func f() { ret; }\n.alias g, f;": "",
}
VARIABLES = {  # each variable is used in one case, unused in another
    ".visible .global .u32 x;\n.extern .global .u32 x;": "",
    ".extern .global .u32 x;\n.visible .global .align 8 .u32 x;": "",
    ".extern .global .u32 x[];\n.visible .global .u32 x[4];": "",
    ".extern .global .u32 x[];\n.visible .global .u32 x[] = {1, 2};": "",
    ".extern .global .u32 x[];\n.extern .global .u32 x[4];": "",
    ".extern .shared .u32 x[];\n.extern .shared .u32 x[];": "",
    ".extern .global .u32 x[];": "array 'x' has no size",
    ".extern .const .u32 x[];": "array 'x' has no size",
    ".extern .global .u32 x;\n.visible .global .b32 x;": "'x' differs",
    ".extern .global .u32 x[3];\n.visible .global .u32 x[] = {1, 2};": "'x' differs",
    ".extern .global .u32 x[2][2];\n.visible .global .u32 x[4];": "'x' differs",
    ".extern .global .v2 .u32 x;\n.visible .global .u64 x;": "'x' differs",
    ".extern .shared .u32 x[];\n.extern .shared .u64 x[];": "'x' differs",
    ".extern .global .u32 x;\n.global .u32 x;": "neither '.visible' nor '.weak'",
    ".shared .u32 x;\n.shared .u32 x;": "'x' is declared twice",
    ".visible .global .u32 x;\n.global .u64 x;": "'x' is declared twice",
}
SCOPES = {  # in a kernel with the parameter `p`
    ".shared .u32 x; .shared .u32 x;": "'x' is declared twice",
    ".local .u32 x; .reg .u32 x;": "'x' is declared twice",
    ".reg .u32 x; .shared .u32 x;": "'x' is declared twice",
    ".reg .u32 p;": "'p' is declared twice",
    ".shared .u32 p;": "'p' is declared twice",
    ".shared .u32 x; x: bra x;": "label 'x' is defined twice",
    "p: ret;": "label 'p' is defined twice",
    "x: ret; x: .branchtargets x;": "'x' is declared twice",
    "{ .reg .u32 p; mov.u32 p, 1; }": "",
}
_UNCALLABLE = ("kernels can't call functions that have it",) * 2
PRAGMAS = {  # in a kernel, in a function, before the kernel's body, in the module: from .version 9.0 on
    "nounroll": ("", "", "", ""),
    "unknown": ("", "", "", "has only 'nounroll'"),
    "": ("", "", "", "has only 'nounroll'"),
    "frequency 0x10": ("", "", "outside of a function's body", "outside of a function's body"),
    "frequency 0": ("without a number", "without a number", "outside", "outside"),
    "frequency -1": ("without a number", "without a number", "outside", "outside"),
    "frequency 1.5": ("without a number", "without a number", "outside", "outside"),
    "used_bytes_mask 0xf": ("", "", "outside", "outside"),
    "used_bytes_mask": ("without a number", "without a number", "outside", "outside"),
    "enable_smem_spilling": ("", "only kernels have it", "outside", "outside"),
    "abi_param_reg": (*_UNCALLABLE, *("without the number of a register",) * 2),
    "abi_param_reg 4": (*_UNCALLABLE, "", ""),
    "abi_param_reg all": (*_UNCALLABLE, "", ""),
    "abi_param_reg 256": (*_UNCALLABLE, "without the number", "without the number"),
    "retaddr_reg 20": (*_UNCALLABLE, "", ""),
    "retaddr_reg 3": (*_UNCALLABLE, "without the number", "without the number"),
}
PLACES = (
    '.visible .entry k() {{ .pragma "{}"; ret; }}\n',
    '.func f() {{ .pragma "{}"; ret; }}\n.visible .entry k() {{ call f; ret; }}\n',
    '.visible .entry k() .pragma "{}"; {{ ret; }}\n',
    '.pragma "{}";\n.visible .entry k() {{ ret; }}\n',
)
CASES = {
    **{f"{text}\n{kernel}": reason for text, reason in FUNCTIONS.items() for kernel in (UNUSED, CALLED)},
    **{f"{text}\n{UNUSED}": reason for text, reason in UNCALLED.items()},
    **{f"{text}\n{kernel}": reason for text, reason in VARIABLES.items() for kernel in (UNUSED, USED)},
    **{f".visible .entry k(.param .u32 p) {{ {text} ret; }}\n": reason for text, reason in SCOPES.items()},
    f".global .u32 k;\n{UNUSED}": "'k' is a variable and a function",
    **{
        place.format(pragma): reason
        for pragma, reasons in PRAGMAS.items()
        for place, reason in zip(PLACES, reasons, strict=True)
        if reason is not None
    },
    '.func f() .pragma "unknown"; { ret; }\n.visible .entry k() { call f; ret; }\n': "a pragma without a kernel's body",
    ".visible .entry k() { .pragma nounroll; ret; }\n": "a pragma has strings",
    '.pragma "nounroll" "nounroll";\n.visible .entry k() { ret; }\n': "a pragma has strings",
}


def faults(text, version="9.0"):
    code = ModuleWriter((HEAD.format(version) + text).encode(), "m")
    code.write()
    return [fact for _, fact in code.faults]


@pytest.mark.parametrize("text", CASES)
def test_reason(text):
    said = faults(text)
    assert any(CASES[text] in fact for fact in said) if CASES[text] else not said, said


def test_pragmas_have_versions():
    for pragma, before in ("used_bytes_mask 1", "8.2"), ("enable_smem_spilling", "8.6"), ("frequency 2", "8.8"):
        (said,) = faults(PLACES[0].format(pragma), before)
        assert said.startswith(f"pragma '{pragma}' needs .version"), said


@pytest.mark.full
def test_ptxas_agrees(tmp_path):
    try:
        ptxas = cuda.tool("ptxas")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = tmp_path / "m.ptx"
    for text, reason in CASES.items():
        path.write_text(HEAD.format("9.0") + text)
        line = [ptxas, "-arch=sm_90", "-O0", path, "-o", tmp_path / "m.cubin"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (not reason), (text, done.stderr)
