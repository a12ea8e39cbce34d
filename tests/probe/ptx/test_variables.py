"""Variables that a woven kernel shares with its module."""

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError
from gpt.probe.ptx.weave import MARK, LeftAlone, unweave, weave
from gpt.probe.read.load import parse_toml
from gpt.ptx.prune import prune
from gpt.ptx.scan import scan_module
from tests import cuda
from tests.tiers import every, examples

HEAD = ".version 8.3\n.target sm_90\n.address_size 64\n"
REGISTERS = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b128 %q;"
SCHED = parse_toml('[m]\nposition = "kernel"\ndatamodel = "warp:8"\nbefore = "SAVE.u64 {TIME};"\n', "probe.toml")
ADDRESS = parse_toml(
    '[m]\nposition = "ld.global:st.global:atom:mov:cp.async:call"\ndatamodel = "thread:8:4"\n'
    'before = "SAVE.u64 {ADDR};"\n', "probe.toml"
)  # fmt: skip


def kernel(body, declared=".global .align 16 .b8 a[64];\n.visible .global .align 4 .u32 b = 7;\n", more=""):
    text = f"{HEAD}{declared}\n{more}.visible .entry k(.param .u64 p)\n{{\n{REGISTERS}\n{body}\nret;\n}}\n"
    return text.encode()


def report(data, folder):
    """Return ptxas's messages about a module."""
    (folder / "k.ptx").write_bytes(data)
    command = [cuda.tool("ptxas"), "-arch=sm_90", "-v", folder / "k.ptx", "-o", folder / "k.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + data.decode()
    return done.stderr


def check(data, folder, file=SCHED):
    """Weave, and check that the program is unchanged and the kernel assembles with only the table in global memory."""
    woven = weave(data, "k", [file])
    assert unweave(woven.data) == data
    size = 8 * sum(variable.space == "global" for variable in woven.variables)
    assert f"ptxas info    : {size} bytes gmem" in report(woven.data, folder)
    return woven


def test_the_oldest_target_has_no_cached_load(tmp_path):
    data = kernel("ld.global.u32 %r1, [b];").replace(b".version 8.3", b".version 6.4").replace(b".b128", b".b64")
    woven = check(data.replace(b"sm_90", b"sm_30"), tmp_path)
    assert "ld.global.u64 %gpt_address_0, [gpt_variables+8];" in code(woven)


def told(woven):
    return [tuple(variable) for variable in woven.variables]


def code(woven):
    """Return the text as ptxas reads it: without comments, one blank between words."""
    return " ".join(re.sub("//[^\n]*", "", woven.data.decode()).split())


# Each way to name a variable in global memory, with its replacement.
SHAPES = {
    "mov.u64 %rd1, a;": "ld.global.nc.u64 %X0, [T+0]; mov.u64 %rd1, %X0 ;",
    "mov.b64 %rd1, b;": "ld.global.nc.u64 %X0, [T+8]; mov.b64 %rd1, %X0 ;",
    "mov.u64 %rd1, a+8;": "ld.global.nc.u64 %X0, [T+0]; add.s64 %X0, %X0, 0+8; mov.u64 %rd1, %X0 ;",
    "mov.u64 %rd1, a + 4*2 ;": "ld.global.nc.u64 %X0, [T+0]; add.s64 %X0, %X0, 0+ 4*2; mov.u64 %rd1, %X0 ;",
    "cvta.global.u64 %rd1, a;": "ld.global.nc.u64 %X0, [T+0]; cvta.global.u64 %rd1, %X0 ;",
    "ld.global.u32 %r1, [b];": "ld.global.nc.u64 %X0, [T+8]; ld.global.u32 %r1, [ %X0 ];",
    "ld.global.u32 %r1, [ a /* b */ + 4 ];": "ld.global.nc.u64 %X0, [T+0]; ld.global.u32 %r1, [ %X0 /* b */ + 4 ];",
    "ld.u32 %r1, [a+-4];": "ld.global.nc.u64 %X0, [T+0]; ld.u32 %r1, [ %X0 +-4];",
    "ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [a+16];":
        "ld.global.nc.u64 %X0, [T+0]; ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [ %X0 +16];",
    "@!%p1 st.global.u32 [b], %r1;": "ld.global.nc.u64 %X0, [T+8]; @!%p1 st.global.u32 [ %X0 ], %r1;",
    "mov.u64 %rd1, a+-8;": "ld.global.nc.u64 %X0, [T+0]; add.s64 %X0, %X0, 0+-8; mov.u64 %rd1, %X0 ;",
    "cp.async.bulk.prefetch.L2.global [a], 16;":
        "ld.global.nc.u64 %X0, [T+0]; cp.async.bulk.prefetch.L2.global [ %X0 ], 16;",
    "cp.async.bulk.global.shared::cta.bulk_group [a], [%r1], 16;":
        "ld.global.nc.u64 %X0, [T+0]; cp.async.bulk.global.shared::cta.bulk_group [ %X0 ], [%r1], 16;",
    "atom.global.add.u32 %r1, [b], 1;": "ld.global.nc.u64 %X0, [T+8]; atom.global.add.u32 %r1, [ %X0 ], 1;",
    "red.global.add.u32 [a+4], %r1;": "ld.global.nc.u64 %X0, [T+0]; red.global.add.u32 [ %X0 +4], %r1;",
    "prefetch.global.L2 [a];": "ld.global.nc.u64 %X0, [T+0]; prefetch.global.L2 [ %X0 ];",
    "cp.async.ca.shared.global [%r1], [a+8], 8;":
        "ld.global.nc.u64 %X0, [T+0]; cp.async.ca.shared.global [%r1], [ %X0 +8], 8;",
    '.pragma "used_bytes_mask 0x3";\nld.global.u32 %r1, [a];':
        'ld.global.nc.u64 %X0, [T+0]; .pragma "used_bytes_mask 0x3"; ld.global.u32 %r1, [ %X0 ];',
}  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), every(3, SHAPES.items()))
def test_ways_to_name_a_variable(statement, expected, tmp_path):
    data = kernel(statement)
    report(data, tmp_path)
    woven = check(data, tmp_path)
    expected = expected.replace("%X", "%gpt_address_").replace("[T", "[gpt_variables")
    assert expected in code(woven)
    assert told(woven) == [("a", "global", 64, 0, None), ("b", "global", 4, 8, None)]
    assert woven.table == "gpt_variables"


def test_names_that_only_look_like_it(tmp_path):
    body = "{ .reg .b32 %a; mov.u32 %a, %tid.x; }\nx: mov.u32 %r1, %tid.x;\nadd.u32 %r1, %r1, %r2;\nbra x_b;\nx_b:"
    declared = ".global .u32 add;\n.global .u32 a;\n.global .u32 u32;\n.global .u32 x_;\n"
    woven = check(kernel(body, declared), tmp_path)
    assert "%gpt_address_" not in code(woven) and len(woven.variables) == 4


def test_device_functions_and_their_callers(tmp_path):
    more = ".func f() { .reg .b32 %r; ld.global.u32 %r, [b]; st.global.u32 [a], %r; ret; }\n.global .u32 late;\n"
    woven = check(kernel("call f;\nst.global.u32 [late], 1;", more=more), tmp_path)
    found = code(woven)
    assert found.index("gpt_variables[3];") < found.index(".func f")
    assert found.count(".reg .b64 %gpt_address_<1>;") == 2 and found.count("ld.global.nc.u64") == 3


@pytest.mark.parametrize(
    ("declared", "names", "sizes"),
    [
        (".global .attribute(.managed) .align 4 .u32 m = 3;", "m", [4]),
        (".weak .global .align 8 .v4 .f32 w;", "w", [16]),
        (".common .global .align 4 .f16x2 c;", "c", [4]),
        (".extern .global .align 4 .b8 other[];", "other", [None]),
        (".extern .global .u32 n;\n.visible .global .u32 n = 5;", "n", [4]),
        (".global .u32 x[2][3], y = 4,\n z[] = {1, 2};", "x y z", [24, 4, None]),
        (".global .u32 first;\n.visible .global .b64 table[3] = {first, generic(first)+8, 1};", "first table", [4, 24]),
        ('.global .align 1 .b8 $str[6] = {97, 32, 37, 100, 10}; // "', "$str", [6]),
    ],
)  # fmt: skip
def test_definitions_go(declared, names, sizes, tmp_path):
    names = names.split()
    data = kernel("\n".join(f"ld.global.u32 %r1, [{name}];" for name in names), declared)
    woven = check(data, tmp_path)
    assert told(woven) == [
        (name, "global", size, 8 * number, None)
        for number, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]  # fmt: skip


CONSTANTS = """.global .u32 g;
.const .align 4 .b8 plain[16];
.const .u32 first = 5;
.const .u64 pointers[4] = {1, generic(g)+4, g , 7};
.const .align 8 .b8 mask[8] = {0xff(generic(g)), 0xff00(generic(g)), 3};
.extern .const .align 4 .b8 other[64], another[4];
.extern .const .u32 both;
.visible .const .u32 both = 3;
"""


def test_constants_stay_and_are_copied(tmp_path):
    body = "".join(
        f"ld.const.u32 %r1, [{name}];\n" for name in ("plain", "first", "pointers", "mask", "other", "another", "both")
    )
    woven = check(kernel(body + "mov.u64 %rd1, plain+4;", CONSTANTS), tmp_path)
    assert told(woven) == [
        ("g", "global", 4, 0, None),
        ("plain", "const", 16, None, "taken"),
        ("first", "const", 4, None, "taken"),
        ("pointers", "const", 32, None, "always"),
        ("mask", "const", 8, None, "always"),
        ("other", "const", 64, None, "always"),
        ("another", "const", 4, None, "always"),
        ("both", "const", 4, None, "taken"),
    ]
    found = code(woven)
    assert ".const .u64 pointers[4] = {1, 0 , 0 , 7};" in found
    assert ".const .align 8 .b8 mask[8] = { 0 , 0 , 3};" in found
    assert " .const .align 4 .b8 other[64], another[4];" in found and "mov.u64 %rd1, plain+4;" in found


def test_a_kernel_with_constants_only_has_no_table(tmp_path):
    woven = check(kernel("ld.const.u32 %r1, [c];", ".const .u32 c;"), tmp_path)
    assert woven.table is None and told(woven) == [("c", "const", 4, None, "taken")]
    woven = check(kernel("", ""), tmp_path)
    assert woven.table is None and told(woven) == []


def test_probes_see_the_shared_variable(tmp_path):
    body = "ld.global.u32 %r1, [a+12];\n@%p1 atom.global.add.u32 %r1, [b], 1;\ncp.async.ca.shared.global [%r1], [a], 4;"
    found = code(check(kernel(body), tmp_path, ADDRESS))
    assert not re.search(r"\bmov\.u64 %\w+, [ab]\b", found)
    assert "ld.global.nc.u64 %gpt_b64_0, [gpt_variables+0];" in found
    moved = parse_toml(
        '[m]\nposition = "mov"\ndatamodel = "thread:16:4"\nafter = "SAVE.u64 {IN1}; SAVE.u64 {OUT};"\n', "probe.toml"
    )
    found = code(check(kernel("mov.u64 %rd1, a+4;"), tmp_path, moved))
    assert re.search(r"ld.global.nc.u64 (%gpt_b64_\d+), \[gpt_variables\+0\]; add.s64 \1, \1, 0\+4;", found)


def test_debug_information_names_no_variable(tmp_path):
    source = '__device__ int v; __constant__ int c; extern "C" __global__ void k(int *x) { *x = v + c; } '
    source += 'extern "C" __global__ void other(int *x) { *x = 2; }'
    data = cuda.nvrtc_compile(source, "compute_90", ["-G"])
    data = prune(scan_module(data), ["k"])
    assert b".b64 v" in data
    woven = weave(data, "k", [SCHED])
    assert unweave(woven.data) == data
    (tmp_path / "k.ptx").write_bytes(woven.data)
    subprocess.run([cuda.tool("ptxas"), "-g", "-arch=sm_90", "k.ptx", "-o", "k.cubin"], cwd=tmp_path, check=True)
    read = ["readelf", "--debug-dump=info", "k.cubin"]
    told = subprocess.run(read, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.search(r"DW_TAG_subprogram(?s:.*?)DW_AT_high_pc +: 0x[1-9a-f](?s:.*?)DW_AT_name +: k\n", told)


TAKEN = "mov.u64 %rd1, c; cvta.const.u64 %rd2, %rd1; add.s64 %rd3, %rd2, 8; ld.u32 %r1, [%rd3];"


def test_constant_read_by_generic_address(tmp_path):
    check(kernel(TAKEN, ".const .u32 c;"), tmp_path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (kernel("", ".global .texref t;"), "it uses 't', a texref"),
        (kernel("", ".global .samplerref s;"), "it uses 's', a samplerref"),
        (kernel("", ".global .surfref s;"), "it uses 's', a surfref"),
        (kernel("", ".tex .u32 old;"), "it uses 'old', a tex"),
        (kernel(".global .u32 own;"), "function 'k' has variables of its own"),
        (kernel("x: .callprototype _ ();\ncall %rd1, (), x;"), "it calls through a pointer"),
        (kernel(f"{TAKEN} st.global.u64 [a], %rd3;", ".const .u32 c;"), "it passes on the address of a variable in"),
        (kernel(f"{TAKEN} setp.eq.u64 %p1, %rd2, 0;", ".const .u32 c;"), "it passes on the address of a variable in"),
        (kernel("mov.u64 %rd1, f;", ".func f() { ret; }"), "it takes the address of function 'f'"),
        (kernel("", ".extern .const .b8 c[];"), "the size of 'c', which is defined elsewhere, is not known"),
        (kernel("{ .reg .b32 a; }"), "function 'k' uses the name of a variable for something else"),
        (kernel("a: ret;"), "function 'k' uses the name of a variable for something else"),
        (kernel("mov.u32 %r1, a;"), r"'mov.u32' uses variable 'a' in an unknown way \(line 10\)"),
        (kernel("ld.global.u32 %r1, a[3];"), "uses variable 'a' in an unknown way"),
        (kernel("mov.u64 %rd1, 8+a;"), "uses variable 'a' in an unknown way"),
        (kernel("mov.u64 %rd1, a & 7;"), "uses variable 'a' in an unknown way"),
    ],
)
def test_modules_with_unsupported_variables_are_left_alone(data, reason):
    with pytest.raises(LeftAlone, match=reason):
        weave(data, "k", [SCHED])


def test_initializers_with_any_text_are_kept():
    data = kernel("ld.global.u32 %r1, [a];", '.global .b8 a[9] = { 1, // \\ \x85 "\n /* \xe9\r\n\t*/ 2\n};')
    woven = weave(data, "k", [SCHED])
    assert unweave(woven.data) == data and woven.data.count(f"{MARK}=".encode()) == 2


TEXT = kernel("ld.const.u32 %r1, [plain];\nmov.u64 %rd1, a+8;\n@%p1 st.global.u32 [g+4], %r1;",
              CONSTANTS + ".global .align 16 .b8 a[64], b[2] = {1, {2}};").decode()  # fmt: skip
PIECES = st.sampled_from(
    ["", "{", "}", ",", ";", "=", "[", "]", "(", "g", "a", ".const ", ".global ", "9" * 5000, "\n", "+"]
)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 6), PIECES), min_size=1, max_size=4))
def test_torn_modules(edits):
    """The module is rejected, left alone, or restored."""
    text = TEXT
    for at, length, piece in edits:
        text = text[:at] + piece + text[at + length :]
    try:
        woven = weave(text.encode(), "k", [SCHED, ADDRESS])
    except GptError:
        return
    assert unweave(woven.data) == text.encode()


def test_relocatable_kernels_have_tables_of_their_own(tmp_path):
    """Two kernels from two modules are linked."""
    cubins = []
    for name in ("first", "second"):
        data = kernel(f"ld.global.u32 %r1, [{name}];", f".global .u32 {name};")
        data = data.replace(b" k(", f" {name}_k(".encode())
        woven = weave(data, f"{name}_k", [SCHED], relocatable=True)
        assert woven.table == f"gpt_variables_{name}_k" and unweave(woven.data) == data
        source, cubin = tmp_path / f"{name}.ptx", tmp_path / f"{name}.cubin"
        source.write_bytes(woven.data)
        subprocess.run([cuda.tool("ptxas"), "-c", "-arch=sm_90", source, "-o", cubin], check=True)
        cubins.append(cubin)
    subprocess.run([cuda.tool("nvlink"), "-arch=sm_90", *cubins, "-o", tmp_path / "linked.cubin"], check=True)
