"""Every mode, on every layout that linkers produce: the output is sound, loads, runs, and keeps the used code."""

import shutil
from pathlib import Path

import pytest

from gpt.formats import fatbin
from gpt.patch import cut_names
from tests import cuda
from tests.formats import oracle
from tests.formats.samples import linker_takes
from tests.patch import checks
from tests.stages.tools import extract, located, patch, run
from tests.tiers import first, full

MODES = ("fill", "hole", "compact")
USED = "_Z3onePf\n"  # in the first region
# The three regions by number: ONE for sm_75, sm_80, sm_90 and PTX, MANY for sm_75, sm_90 and PTX, VARIABLES for
# sm_75 and sm_90. On sm_90 the used kernel and the variables stay.
KEPT = ("{}.3.sm_90.cubin", "{}.7.sm_90.cubin")
LAYOUTS = ["zstd"]
MORE_LAYOUTS = ["relr", "none", "unwrapped", "lz4", "balance", "aligned", "pie", "fixed", "symbols", "arm"]
FALL_BACK = {
    "inside": "points into the middle of a region",
    "referenced": "may refer to a region that has no wrapper",
    "small": "less than a page would go",
}


def slim(library, folder, *locate, used=USED, arch="sm_90"):
    """Return the patched library and its `patched` record for each mode. Patching it again must not change it."""
    stream = located(library, used, *locate, arch=arch)
    made = {}
    for mode in MODES:
        record = patch(stream, "-o", folder / mode, "--mode", mode)
        made[mode] = Path(record["output"]), record
    stream = located([path for path, _ in made.values()], used, *locate, arch=arch)
    again = run("gpt-patch", "--in-place", "-n", "--mode", "hole", data=stream)
    assert again.status == 0, again.err
    assert [r["mode"] for r in again.kind("patched")] == ["copy"] * 3
    return made


@pytest.mark.parametrize("name", [*LAYOUTS, *map(full, MORE_LAYOUTS)])
def test_layouts(sample, name, tmp_path):
    if name == "relr" and not linker_takes("-Wl,-z,pack-relative-relocs"):
        pytest.skip("the linker does not pack relative relocations")
    library = sample(name)
    for mode, (patched, record) in slim(library, tmp_path).items():
        assert (record["mode"], record.get("reason")) == (mode, None)
        checks.check_patched(library, patched, [kept.format(library.stem) for kept in KEPT], tmp_path / f"x{mode}")
        assert patched.stat().st_size == record["size_after"]
        if mode == "compact":
            assert patched.stat().st_size < library.stat().st_size - 4096
        else:
            assert patched.stat().st_size == library.stat().st_size
        if name != "arm":
            check_call(library, patched, mode, 2 if name == "unwrapped" else 3)


def check_call(library, patched, mode, regions):
    """Check that the host code still finds each region through its wrapper."""
    *sums, answer = checks.call(patched, regions)
    assert answer == "42 two"
    assert all(line.startswith("ba55ed50") for line in sums)
    if mode == "compact":  # a region has its kept elements, one after the other, and a mark if it lost some
        data = library.read_bytes()
        elements = extract(library).kind("element")
        kept = {2, 8}  # by index
        for region, line in zip(sorted({e["region"] for e in elements}), sums, strict=False):
            parts = [e for e in elements if e["region"] == region and e["index"] in kept]
            body = b"".join(data[e["offset"] : e["offset"] + e["header_size"] + e["payload_size"]] for e in parts)
            lost = [e for e in elements if e["region"] == region and e["index"] not in kept]
            names = {kernel["name"] for element in lost for kernel in element["kernels"]}
            block = cut_names.pack(sorted(names), len(names))
            head = data[lost[-1]["offset"] :][: fatbin.ELEMENT.size]
            mark = fatbin.dead_element(head, fatbin.ELEMENT.size + len(block)) + block
            assert int(line, 16) == checks.region_sum(bytes(16) + body + mark)


@pytest.mark.parametrize("name", [full("balance"), full("fixed")])
def test_overwritten_code_can_still_be_cut_out(sample, name, tmp_path):
    made = slim(sample(name), tmp_path)
    for mode in MODES:
        record = patch(located(made[mode][0], USED), "-o", tmp_path / "again" / mode)
        assert record["mode"] == ("copy" if mode == "compact" else "compact")
        assert Path(record["output"]).read_bytes() == made["compact"][0].read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("name", ["inside", full("referenced"), full("small")])
def test_unknown_layouts_become_holes(sample, name, tmp_path):
    library = sample(name)
    made = slim(library, tmp_path)
    patched, record = made["compact"]
    assert record["mode"] == "hole"
    assert FALL_BACK[name] in record["reason"]
    kept = [] if name == "small" else [kept.format(library.stem) for kept in KEPT]
    checks.check_patched(library, patched, kept, tmp_path / "x")
    assert checks.call(patched, 1 if name == "small" else 2)[-1] == "42 two"
    assert patched.read_bytes() == made["hole"][0].read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("used", ["caller", full("nothing")])
@pytest.mark.parametrize("name", ["relocatable", full("relocatable_first")])
def test_relocatable_code(sample, name, used, tmp_path):
    """nvlink has put all code into the linked cubin, which the device loads, so no other code can be needed."""
    library = sample(name)
    for mode, (patched, _) in slim(library, tmp_path, used=used).items():
        kept = [f"{library.stem}.2.sm_90.cubin"] if used == "caller" else []
        checks.check_patched(library, patched, kept, tmp_path / f"x{mode}")


@pytest.mark.full
def test_a_fleet_and_ptx(sample, tmp_path):
    library = sample("zstd")
    names = ["1.sm_75.cubin", "2.sm_80.cubin", "1.sm_90.ptx", "6.sm_75.cubin"]
    for mode, (patched, _) in slim(library, tmp_path, "--keep-ptx", arch="sm_75,sm_86").items():
        checks.check_patched(library, patched, [f"libzstd.{name}" for name in names], tmp_path / f"x{mode}")


@pytest.mark.full
def test_everything_can_go(sample, tmp_path):
    """Every region is kept, if only as a header, because its wrapper is registered when the library is loaded."""
    library = sample("none")
    for mode, (patched, record) in slim(library, tmp_path, used="nothing", arch="sm_60").items():
        assert record["gpu_after"] == 0
        checks.check_patched(library, patched, [], tmp_path / f"x{mode}")
        assert checks.call(patched, 3)[-1] == "42 two"


@pytest.mark.full
def test_nothing_goes(sample, tmp_path):
    library = sample("none")
    for patched, record in slim(library, tmp_path, "--keep", ".", "--keep-ptx", arch="sm_75,sm_80,sm_90").values():
        assert record["mode"] == "copy"
        assert patched.read_bytes() == library.read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("name", ["archive", full("object_")])
def test_objects_and_archives_keep_their_offsets(sample, name, tmp_path):
    library = sample(name)
    for mode, (patched, record) in slim(library, tmp_path).items():
        assert record["mode"] == ("hole" if mode == "compact" else mode)
        assert oracle.warnings(patched) <= oracle.warnings(library)
        checks.check_elements(library, patched, [f"{library.stem}.3.sm_90.cubin"], tmp_path / f"x{mode}")
        assert patched.stat().st_size == library.stat().st_size


def test_a_patched_object_still_links(sample, tmp_path):
    patch(located(sample("object_"), USED), "-o", tmp_path / "slim", "--mode", "fill")
    (tmp_path / "main.c").write_text("int answer(void) { return 42; }")
    library = tmp_path / "liblinked.so"
    files = tmp_path / "main.c", tmp_path / "slim" / "one.o"
    cuda.c_compiler("-shared", "-fPIC", *files, "-Wl,-z,noexecstack", "-o", library)
    assert oracle.listed(library) == ["liblinked.1.sm_90.cubin"]


def test_fatbins(sample, tmp_path):
    library = sample("fatbin")
    for mode, (patched, record) in slim(library, tmp_path).items():
        assert record["mode"] == mode
        checks.check_elements(library, patched, ["raw.3.sm_90.cubin"], tmp_path / f"x{mode}")
        assert (patched.stat().st_size < library.stat().st_size) == (mode == "compact")


@pytest.mark.parametrize("mode", first(*MODES))
def test_code_outside_the_sections_becomes_holes(sample, mode, tmp_path):
    library = sample("scattered")
    (tmp_path / "names").write_text(USED)
    found = run("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", data=extract("--scan", library).out)
    patch(found.out, "-o", tmp_path / "slim", "--mode", mode)
    patched = tmp_path / "slim" / library.name
    left = extract("--scan", patched).kind("element")
    stays = [(".rodata", "cubin", "sm_90"), (".rodata", "ptx", "sm_90"), (".nv_fatbin", "cubin", "sm_90")]
    assert [(e["section"], e["type"], e["arch"]) for e in left] == stays  # stays, because the PTX may be linked
    assert checks.call(patched, 1)[-1] == "42 two"


def test_holes_take_no_disk_however_often(sample, tmp_path):
    library = shutil.copy(sample("none"), tmp_path)
    first = patch(located(Path(library), USED), "-o", tmp_path / "1", "--mode", "hole")
    again = patch(located(Path(first["output"]), USED), "-o", tmp_path / "2", "--mode", "hole")
    assert again["mode"] == "copy"
    assert first["disk_after"] == Path(first["output"]).stat().st_blocks * 512 < first["disk_before"] / 3
    assert again["disk_after"] == Path(again["output"]).stat().st_blocks * 512 <= first["disk_after"]
    assert Path(first["output"]).read_bytes() == Path(again["output"]).read_bytes()


def test_fill_writes_the_byte_that_is_asked_for(sample, tmp_path):
    stream = located(sample("none"), USED)
    for byte in (0, 0xAB):
        done = run("gpt-patch", "-o", tmp_path / str(byte), "--mode", "fill", "--fill", str(byte), data=stream)
        data = (tmp_path / str(byte) / "libnone.so").read_bytes()
        named = 0
        for span in done.kind("span"):
            found = data[span["start"] : span["end"]]
            if found.startswith(cut_names.MAGIC):
                named += 1
                found = found[len(cut_names.pack(*cut_names.parse(found[: cut_names.MOST]))) :]
            assert set(found) == {byte}
        assert 0 < named <= len({element["region"] for element in done.kind("element")})  # at most one in each region


def test_where_two_elements_tie_both_stay(sample, tmp_path):
    library = sample("suffix")
    patch(located(library, USED), "-o", tmp_path / "slim")
    kept = ["libsuffix.2.sm_90.cubin", "libsuffix.3.sm_90a.cubin"]
    checks.check_patched(library, tmp_path / "slim" / library.name, kept, tmp_path)
