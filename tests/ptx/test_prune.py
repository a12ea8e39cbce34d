"""A module reduced to what one kernel needs."""

import re
import subprocess
from pathlib import Path

import pytest

from gpt.base.errors import GptError
from gpt.ptx import prune, scan
from tests import cuda

SHAPES = Path(__file__).with_name("shapes.ptx").read_bytes()
SOURCE = """
__device__ int counter, unused, reached[4] = {1, 2, 3, 4};
__constant__ int *through = reached;
__device__ __noinline__ int leaf(int x) { return x + counter; }
__device__ __noinline__ int other(int x) { return x * unused; }
__device__ __noinline__ int middle(int x) { return leaf(x) * *through; }
extern "C" __global__ void one(int *p) { p[0] = middle(p[1]); }
extern "C" __global__ void two(int *p) { p[0] = other(p[1]); }
extern "C" __global__ void three(int *p) { *p = 3; }
"""


def names(data):
    return {name for item in scan.scan_module(data).items for name in item.names}


@pytest.mark.parametrize("options", [[], ["-lineinfo"], ["-G"]])
def test_dependencies_of_a_kernel_stay_and_assemble(options, tmp_path):
    module = scan.scan_module(cuda.nvrtc_compile(SOURCE, "compute_90", options))
    for entry, kept in {
        "one": {"one", "middle", "leaf", "counter", "through", "reached"},
        "two": {"two", "other", "unused"},
        "three": {"three"},
    }.items():
        pruned = prune.prune(module, [entry])
        found = {name for name in names(pruned) if not name.startswith(".debug")}
        assert {name for name in found if any(part in name for part in kept)} == found
        assert len(found) == len(kept)
        path = tmp_path / "pruned.ptx"
        path.write_bytes(pruned)
        cuda.run("ptxas", "-arch", "sm_90", path, "-o", tmp_path / "out")
        assert ("entry", (entry,)) in [(item.kind, item.names) for item in scan.scan_module(pruned).items]


def test_blanking_keeps_line_numbers():
    data = cuda.nvrtc_compile(SOURCE, "compute_90")
    module = scan.scan_module(data)
    left = prune.blanked(module, ["one"])
    assert names(left) == names(prune.prune(module, ["one"]))
    lines = list(zip(left.decode().split("\n"), module.text.split("\n"), strict=False))
    assert all(line == before or not line.strip() for line, before in lines)
    assert any(line == before and "one(" in line for line, before in lines[30:])


def test_order_and_text_stay():
    module = scan.scan_module(SHAPES)
    pruned = prune.prune(module, ["shapes"])
    kept = [module.source(item) for item in module.items if item.kind != "section"]
    after = scan.scan_module(pruned)
    lines = [after.source(item) for item in after.items]
    assert [text for text in kept if text in lines] == [text for text in lines if not text.startswith(".section")]
    assert names(pruned) >= {"shapes", "later", "old_style", "nothing", "grid", "texture", "sampler"}
    assert names(pruned).isdisjoint({"hidden", "unseen", "vprintf", "pointers", "floats", "twin"})


def test_everything_wanted_is_everything_needed():
    module = scan.scan_module(SHAPES)
    whole = prune.prune(module, [entry.name for entry in module.entries])
    assert names(whole) >= {"hidden", "unseen", "shapes", ".debug_info", ".debug_str"}


TABLES = """
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ __noinline__ int never(int x) { return -x; }
typedef int (*function)(int);
__device__ function kept = twice, other;
extern "C" __global__ void store(int *p) { other = square; *p = never(*p); }
extern "C" __global__ void call(function f, int *p) { *p = f(*p); }
"""


def test_indirect_call_targets_stored_addresses():
    module = scan.scan_module(cuda.nvrtc_compile(TABLES, "compute_80"))
    found = names(prune.prune(module, ["call"]))
    assert {name for name in found if "Z" in name} == {"_Z5twicei", "_Z6squarei"}
    assert not {"_Z5twicei", "kept"} & names(prune.prune(module, ["store"]))


def test_an_alias_brings_what_it_names():
    text = SHAPES.replace(b".weak .entry hidden() { exit; }", b".entry hidden() { call twin, (0); }")
    assert {"twin", "same"} <= names(prune.prune(scan.scan_module(text), ["hidden"]))


def test_missing_kernel():
    with pytest.raises(GptError, match="k: no kernel 'later'"):
        prune.prune(scan.scan_module(SHAPES, "k"), ["later"])


def test_pruned_modules_have_the_locations_of_the_whole_module():
    whole = scan.scan_module(SHAPES, "shapes")
    for entry in whole.entries:
        part = prune.pruned(prune.pruned(whole, [entry.name]), [entry.name])
        for here in part.functions:
            there = whole.find(here.name)
            for a, b in zip(part.statements(here), whole.statements(there), strict=True):
                assert (part.where(a.start), part.line(a.end)) == (whole.where(b.start), whole.line(b.end))


def test_debug_sections_omit_removed_code(tmp_path):
    """Two functions and a variable are removed. Their names are gone, and everything else stays at its offset."""
    module = scan.scan_module(cuda.nvrtc_compile(SOURCE, "compute_90", ["-G"]), "m")
    pruned = prune.pruned(module, ["one"])
    sections = {item.name: item for item in module.items if item.kind == "section"}
    kept = {item.name: item for item in pruned.items if item.kind == "section"}
    assert kept.keys() == sections.keys() >= {".debug_info", ".debug_abbrev"}
    info, whole = pruned.source(kept[".debug_info"]), module.source(sections[".debug_info"])
    assert len(info) == len(whole) and info != whole
    labels = {label for item in pruned.functions for label in re.findall(r"\$L__\w+(?=:)", pruned.source(item))}
    named = set(re.findall(r"\$L__\w+", info))
    assert named and named <= labels and set(re.findall(r"\$L__\w+", whole)) - labels
    path = tmp_path / "pruned.ptx"
    path.write_bytes(prune.prune(module, ["one"]))
    cuda.run("ptxas", "-g", "-arch", "sm_90", path, "-o", tmp_path / "out")
    headers = subprocess.run(["readelf", "-SW", tmp_path / "out"], capture_output=True, text=True, check=True).stdout
    assert {".debug_info", ".debug_line", ".debug_abbrev"} <= set(re.findall(r"\.debug_\w+", headers))


def test_a_list_of_ranges_does_not_end_where_something_is_gone():
    text = b""".version 9.0
.target sm_90, debug
.address_size 64
.entry k() { a: ret; b: }
.entry gone() { c: ret; d: }
.section .debug_ranges { .b64 c .b64 d .b64 a .b64 b .b64 0 .b64 0 }
.section .debug_info { .b64 c+4 .b8 99 .b64 gone .b32 .debug_ranges .b64 a .b64 k .b32 d-c .b32 b-a .b32 b-c }
"""
    found = prune.prune(scan.scan_module(text), ["k"]).decode()
    assert ".section .debug_ranges { .b64 1 .b64 1 .b64 a .b64 b .b64 0 .b64 0 }" in found
    data = (
        ".section .debug_info { .b64 0   .b8 99 .b64 0    .b32 .debug_ranges .b64 a .b64 k .b32 0   .b32 b-a .b32 0   }"
    )
    assert data in found
