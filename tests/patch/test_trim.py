"""Kernels removed from cubins that stay, mostly by zeroing their code: cuobjdump, nvdisasm and pyelftools can read the
result.
"""

import io
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from gpt.stream import records, wire
from tests import cuda
from tests.formats import oracle, samples
from tests.patch import checks
from tests.stages.tools import extract, located, patch, run
from tests.tiers import first, full

MODES = ("fill", "hole", "compact")
CODECS = ("none", "lz4", "zstd")
MANY = "_Z4manyILi{}EEvPfi"
USED = {MANY.format(3), "direct"}
GONE = {MANY.format(n) for n in range(1, 9) if n != 3} | {"pointer", "alone", "plain", "pointed", "other", "lonely"}


@pytest.fixture(scope="module", params=["zstd", *(full(codec) for codec in CODECS if codec != "zstd")])
def library(request, tmp_path_factory):
    """Return MANY, and linked code, for two GPUs."""
    out = tmp_path_factory.mktemp(request.param) / "libmany.so"
    pairs = [(arch, "cubin", samples.linked(arch, samples.USERS, samples.FUNCTIONS)) for arch in ("sm_75", "sm_90")]
    regions = [samples.region(samples.MANY, request.param), cuda.fatbin(pairs, request.param, ["-link"])]
    return samples.link(out, [*regions, samples.region(samples.VARIABLES)])


def sections(cubin):
    """Return header fields and bytes of every section."""
    elf = ELFFile(io.BytesIO(cubin))
    return {s.name: (dict(s.header), s.data()) for s in elf.iter_sections()}


def check_cubins(library, patched, folder):
    """Check that cuobjdump extracts the same sections, except that removed code is zeros. Returns the removed names."""
    before = oracle.extracted(library, folder / "before", ".sm_90.cubin")
    after = oracle.extracted(patched, folder / "after")
    assert len(before) == len(after)
    gone = set()
    for left, right in zip(sorted(before.items()), sorted(after.items()), strict=True):
        old, new = sections(left[1]), sections(right[1])
        assert list(old) == list(new)
        for name in old:
            assert old[name][0] == new[name][0]
            if old[name][1] != new[name][1]:
                assert name.startswith(".text.")
                assert not any(new[name][1])
                gone.add(name.removeprefix(".text."))
    return gone


@pytest.mark.parametrize("mode", ["compact", full("fill"), full("hole")])
def test_unused_kernels_become_zeros(library, mode, tmp_path):
    made = located(library, "\n".join(USED), "--granularity", "kernel")
    done = run("gpt-patch", "-o", tmp_path / "slim", "--mode", mode, "--kernels", "zero", data=made)
    assert done.status == 0, done.err
    (record,) = done.kind("patched")
    patched = Path(record["output"])
    assert (record["mode"], record.get("reason")) == (mode, None)
    assert oracle.warnings(patched) <= oracle.warnings(library)
    checks.check_host(library, patched)
    assert check_cubins(library, patched, tmp_path) == GONE
    assert checks.call(patched, 3)[-1] == "42 two"

    trimmed = done.kind("trimmed")
    assert [(t["kernels"], t["functions"]) for t in trimmed] == [(7, 0), (3, 3)]
    assert all(t["code"] > 0 and not t.keys() & {"reason", "zeroed"} for t in trimmed)
    packed = "none" not in str(library)
    assert all((t["size_after"] < t["size_before"]) == packed for t in trimmed)
    whole = patch(located(library, "\n".join(USED)), "-o", tmp_path / "whole", "--mode", mode)
    saved = sum(t["size_before"] - t["size_after"] for t in trimmed)
    tallies = {t["reason"]: t for t in done.kind("tally")}  # actual cuts, not planned ones
    assert (tallies["kernel not used"]["kernels"], tallies["kernel not used"]["bytes"]) == (10, saved)
    assert (tallies["kept"]["kernels"], tallies["kept"]["bytes"]) == (2, record["gpu_after"])
    assert [r["kind"] for r in done.records[-6:]] == [
        "tally", "trimmed", "trimmed", "patched", "library_end", "end",
    ]  # fmt: skip
    assert whole["gpu_after"] - record["gpu_after"] == saved
    assert whole["gpu_after"] == sum(e["header_size"] + e["payload_size"] for e in extract(
        tmp_path / "whole" / library.name).kind("element"))  # fmt: skip
    assert record["gpu_after"] == sum(e["header_size"] + e["payload_size"] for e in extract(patched).kind("element"))

    # Again: nothing is left to cut.
    again = run("gpt-patch", "-n", "--in-place", "--mode", "hole", "--kernels", "zero",
                data=located(patched, "\n".join(USED), "--granularity", "kernel"))  # fmt: skip
    assert [r["mode"] for r in again.kind("patched")] == ["copy"]
    assert [(t["kernels"], t["code"]) for t in again.kind("trimmed")] == [(0, 0)] * 2


@pytest.mark.full
def test_nvdisasm_reads_the_kept_kernel_as_before(library, tmp_path):
    made = located(library, "\n".join(USED), "--granularity", "kernel")
    patched = Path(patch(made, "-o", tmp_path / "slim")["output"])

    def text(path, folder):
        for data in oracle.extracted(path, tmp_path / folder, ".sm_90.cubin").values():
            symbols = list(ELFFile(io.BytesIO(data)).get_section_by_name(".symtab").iter_symbols())
            names = [symbol.name for symbol in symbols]
            if MANY.format(3) in names:
                return cuda.disassemble(data, "-c", "-fun", str(names.index(MANY.format(3))))
        raise AssertionError

    assert text(patched, "after") == text(library, "before")


def test_the_mode_element_is_what_it_was(library, tmp_path):
    made = located(library, "\n".join(USED))
    kinds = {r["kind"] for r in wire.read_records(io.BytesIO(made), "made")}
    assert "trim" not in kinds


def parsed(data):
    return list(wire.read_records(io.BytesIO(data), "stream"))


def test_tallies_add_up(library):
    by_element = parsed(located(library, "\n".join(USED)))
    by_kernel = parsed(located(library, "\n".join(USED), "--granularity", "kernel"))
    tallies = {r["reason"]: r for r in by_kernel if r["kind"] == "tally"}
    assert tallies["kernel not used"] | {"library": ""} == records.make(
        "tally", library="", reason="kernel not used", elements=0, kernels=10, bytes=0
    )
    assert tallies["kept"]["kernels"] == 2
    for key in ("elements", "kernels", "bytes"):
        assert sum(t[key] for t in tallies.values()) == sum(r[key] for r in by_element if r["kind"] == "tally")
    (first, second) = [r for r in by_kernel if r["kind"] == "trim"]
    assert set(first["kernels"]) == {MANY.format(n) for n in range(1, 9) if n != 3}
    assert set(second["kernels"]) == {"pointer", "alone", "plain"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offset": 0}, "the stream trims a cubin here"),
        full({"offset": (1 << 64) - 1}, "the stream trims a cubin here"),
        full({"library": "other"}, "trim outside its library"),
        ({"kernels": 3}, "trim.kernels is not an array"),
    ],
)
def test_records_that_make_no_sense(library, change, words, tmp_path):
    made = [
        {**r, **change} if r["kind"] == "trim" else r
        for r in parsed(located(library, "\n".join(USED), "--granularity", "kernel"))
    ]
    done = run("gpt-patch", "-o", tmp_path / "out", data=b"".join(map(wire.pack, made)))
    assert done.status == 3
    assert words in done.err
    assert done.err.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_a_span_goes_before_a_trim(library, tmp_path):
    made = parsed(located(library, "", "--keep", MANY.format(3), "--granularity", "kernel"))
    (trim,) = [r for r in made if r["kind"] == "trim"]
    (element,) = [r for r in made if r["kind"] == "element" and r["offset"] == trim["offset"]]
    start = trim["offset"] + element["header_size"]
    span = records.make("span", library=str(library), start=start, end=start + element["payload_size"], reason="mine")
    made.insert(made.index(trim), span)
    done = run("gpt-patch", "-o", tmp_path / "out", data=b"".join(map(wire.pack, made)))
    assert done.status == 0, done.err
    assert done.kind("trimmed") == []
    assert all(
        e["arch"] != "sm_90" or not e["kernels"] for e in extract(tmp_path / "out" / library.name).kind("element")
    )


def test_elements_kept_whole_have_a_reason(tmp_path):
    regions = [cuda.fatbin([("sm_90", "cubin", samples.linked("sm_90", samples.TABLE))], "zstd", ["-link"])]
    library = samples.link(tmp_path / "libtable.so", [*regions, samples.region(samples.MANY)])
    data = located(library, "indirect", "--granularity", "kernel")
    made = parsed(data)
    done = run("gpt-patch", "-o", tmp_path / "slim", data=data)
    (trimmed,) = done.kind("trimmed")
    assert trimmed["reason"] == "variables hold addresses of functions"
    assert (trimmed["kernels"], trimmed["code"], trimmed["size_after"]) == (0, 0, trimmed["size_before"])
    assert done.kind("patched")[0]["mode"] == "compact"

    # Nothing was cut from it, so no tally mentions it.
    located_tallies, tallies = (
        {r["reason"]: r for r in found if r["kind"] == "tally"} for found in (made, done.records)
    )
    announced = located_tallies.pop("kernel not used")
    assert announced["kernels"] == trimmed["left"] > 0
    assert tallies.pop("kept")["kernels"] == located_tallies.pop("kept")["kernels"] + announced["kernels"]
    assert tallies == located_tallies
    table = run("gpt-patch", "-n", "-o", tmp_path / "slim", "--table", data=data).out.decode()
    table = " ".join(table.split())
    assert f"elements kept whole: 1 with {trimmed['left']} unused kernels ({trimmed['reason']})" in table
    assert "kernel not used" not in table


def test_failed_library_has_no_tallies(library, tmp_path):
    made = parsed(located(library, "\n".join(USED), "--granularity", "kernel"))
    data = b"".join(wire.pack({**r, "size": 1} if r["kind"] == "library" else r) for r in made)
    done = run("gpt-patch", "-o", tmp_path / "out", data=data)
    assert done.status == 1 and "has changed since it was extracted" in done.err
    assert done.kind("tally") == []


def test_a_bare_cubin(sample, tmp_path):
    cubin = sample("cubin")
    done = run("gpt-patch", "-o", tmp_path, data=located(cubin, "_Z3onePf", "--granularity", "kernel"))
    assert [t["zeroed"] for t in done.kind("trimmed")] == ["it isn't in a fatbin"]
    before, after = sections(cubin.read_bytes()), sections(Path(done.kind("patched")[0]["output"]).read_bytes())
    assert {name for name in before if before[name] != after[name]} == {".text._Z3twoPf"}


def trace(path, library, *lookups):
    """Return the trace of a process that used the kernel `direct`, and enumerated the module that contains it."""
    region = extract(library).kind("element")[-3]["region"]
    made = [
        wire.header("gpt-hook", []),
        records.make("library", path=str(library), size=library.stat().st_size),
        records.make("device", index=0, name="a GPU", arch="sm_90", runs="sass"),
        records.make("module", id=1, type="fatbin", path=str(library), offset=region),
        records.make("function", id=1, module=1, name="direct"),
        *(records.make("lookup", module=1, what=what) for what in lookups),
        records.make("end", records=4 + len(lookups), status=0),
    ]
    path.write_bytes(b"".join(map(wire.pack, made)))


@pytest.mark.parametrize(
    ("lookups", "kept"), first((["variable", "enumerate"], True), ([], False), (["variable"], False))
)
def test_enumerated_module_keeps_its_kernels(library, lookups, kept, tmp_path):
    trace(tmp_path / "trace.mp", library, *lookups)
    made = run("gpt-locate", "--used", tmp_path / "trace.mp", "--granularity", "kernel", data=extract(library).out)
    assert made.status == 0, made.err
    assert [r["kernels"] for r in made.kind("trim")] == ([] if kept else [["alone", "plain", "pointer"]])


def test_spans_json_knows_no_kernels(library, tmp_path):
    (tmp_path / "names").write_text("direct")
    done = run("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", "--granularity", "kernel",
               "--spans-json", tmp_path, data=extract(library).out)  # fmt: skip
    assert done.status == 2
    assert "cannot be combined" in done.err
