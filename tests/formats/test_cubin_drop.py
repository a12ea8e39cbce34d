"""Kernels dropped from cubins: NVIDIA's tools can read the rest, which hasn't changed."""

import io
import re
import struct
import subprocess
import time
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.formats import callgraph, cubin_edit
from gpt.formats.callgraph import KeptWhole, find_cut
from gpt.formats.cubin import parse_cubin, section_headers
from gpt.formats.cubin_drop import Dropper, drop_kernels, find_fault, without
from gpt.formats.image import parse_image
from gpt.formats.source import Source
from gpt.patch.trim import trim_all
from tests import cuda
from tests.formats import oracle, samples
from tests.patch import checks
from tests.patch.cubins import ARCHS, KERNELS, code_of, cut_out, damaged, forged
from tests.stages.tools import extract, located, run
from tests.tiers import examples, first, full

MANY = "_Z4manyILi{}EEvPfi"


def built(arch):
    return samples.linked(arch, samples.USERS, samples.FUNCTIONS)


def cuobjdump(*args):
    done = subprocess.run([cuda.tool("cuobjdump"), *args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize("arch", [full(ARCHS[0]), *ARCHS[1:]])
@pytest.mark.parametrize("used", first({"pointer"}, {"direct"}, {"plain", "alone"}, set()))
def test_used_kernels_and_their_functions_are_left(arch, used, tmp_path):
    data = built(arch)
    cut = find_cut(data, set(KERNELS) - used)
    left = without(data, cut.sections)
    assert find_fault(data, left, cut.sections) is None
    assert len(left) < len(data)
    functions = used.union(*(KERNELS[name] for name in used))
    assert code_of(left) == {name: code for name, code in code_of(data).items() if name in functions}
    assert {k["name"] for k in parse_cubin(left).kernels} == used
    was = {s["name"]: s for part in parse_cubin(data)[:2] for s in part}
    assert {s["name"]: s for part in parse_cubin(left)[:2] for s in part} == {n: was[n] for n in functions}

    # Segments contain the same sections as before, and everything is aligned as required.
    before, after = ELFFile(io.BytesIO(data)), ELFFile(io.BytesIO(left))
    for section in after.iter_sections():
        if section["sh_size"] and section["sh_type"] not in ("SHT_NOBITS", "SHT_NULL"):
            assert section["sh_offset"] % max(section["sh_addralign"], 1) == 0
            assert section["sh_offset"] + section["sh_size"] <= len(left)
    for old, new in zip(before.iter_segments(), after.iter_segments(), strict=True):
        held = [s.name for s in before.iter_sections() if s["sh_size"] and old.section_in_segment(s)]
        holds = [s.name for s in after.iter_sections() if s["sh_size"] and new.section_in_segment(s)]
        assert holds == [name for name in held if name in holds]
        gone = set(held) - set(holds)
        assert all(after.get_section_by_name(name) is None for name in gone)
        assert new["p_offset"] + new["p_filesz"] <= len(left)

    # nvdisasm prints the same for each function, and cuobjdump lists the functions, their resources and calls.
    for number, content in enumerate((data, left)):
        (tmp_path / f"{number}.cubin").write_bytes(content)
    listing = cuda.disassemble(left)
    for name in functions:
        one, two = (list(ELFFile(io.BytesIO(d)).get_section_by_name(".symtab").iter_symbols()) for d in (data, left))
        number = [symbol.name for symbol in one].index(name)
        assert two[number].name == name  # indexes don't change
        before, after = (cuda.disassemble(cubin, "-c", "-fun", str(number)) for cubin in (data, left))
        assert before == after
        assert f".text.{name}" in listing
    old, new = (cuobjdump("-res-usage", tmp_path / f"{number}.cubin") for number in (0, 1))
    usage = re.compile(r"Function (\w+):\n(.*)")
    assert dict(usage.findall(new)) == {k: v for k, v in usage.findall(old) if k in functions}
    old, new = (cuobjdump("-elf", tmp_path / f"{number}.cubin") for number in (0, 1))
    assert graph(new, data) == [p for p in graph(old, data) if p[0] in {*functions, ""} and p[1] in {*functions, None}]


def graph(text, data):
    """Return the call graph that cuobjdump prints, as pairs of names. None stands for a symbol that isn't a
    function.
    """
    names = [s.name for s in ELFFile(io.BytesIO(data)).get_section_by_name(".symtab").iter_symbols()]
    pairs, group, found = re.search(r"^\.nv\.callgraph\n((?: <.*>\n)+)", text, re.MULTILINE)[1], 0, []
    for caller, callee in re.findall(r"<(\d+),(-?\d+)>", pairs):
        group = int(callee) if caller == "0" and int(callee) < 0 else group
        calls = group in (-1, -4) and int(callee) > 0
        found.append((names[int(caller)], names[int(callee)] if calls else None))
    return found


def test_cutting_is_idempotent(monkeypatch):
    """One reader of a cubin cuts it to each kernel, in any order, and reads the whole cubin once."""
    data = built("sm_90")
    alone = {name: drop_kernels(data, set(KERNELS) - {name}) for name in KERNELS}
    assert len(set(alone.values())) == len(KERNELS)
    read = []
    monkeypatch.setattr(callgraph, "section_headers", lambda data: read.append(len(data)) or section_headers(data))
    monkeypatch.setattr(cubin_edit, "section_headers", lambda data: read.append(len(data)) or section_headers(data))
    dropper = Dropper(data)
    for name in [*KERNELS, *reversed(KERNELS)]:
        assert dropper.drop(set(KERNELS) - {name}) == alone[name]
    assert read == [len(data)] * 2
    assert dropper.drop(set()) == data
    assert dropper.drop({*KERNELS}) == drop_kernels(data, {*KERNELS})


@pytest.mark.parametrize("arch", ARCHS)
def test_names_are_gone(arch):
    data = built(arch)
    left = without(data, find_cut(data, {"alone"}).sections)
    assert b"lonely" in data
    assert b"alone" not in left
    assert b"lonely" not in left
    assert b"direct" in left


@pytest.mark.full
@pytest.mark.parametrize("codec", [full("none"), "zstd", full("lz4")])
@pytest.mark.parametrize("mode", ["compact", full("fill"), full("hole")])
def test_libraries(codec, mode, tmp_path):
    pair = [(arch, "cubin", built(arch)) for arch in ("sm_75", "sm_90")]
    regions = [samples.region(samples.MANY, codec), cuda.fatbin(pair, codec, ["-link"])]
    library = samples.link(tmp_path / "libmany.so", [*regions, samples.region(samples.VARIABLES)])
    used = {MANY.format(3), "direct"}
    made = located(library, "\n".join(used), "--granularity", "kernel")
    zero = run("gpt-patch", "-o", tmp_path / "zero", "--mode", mode, "--kernels", "zero", data=made).kind("patched")[0]
    done = run("gpt-patch", "-o", tmp_path / "drop", "--mode", mode, data=made)
    assert done.status == 0, done.err
    (record,) = done.kind("patched")
    assert record["gpu_after"] < zero["gpu_after"]
    patched = Path(record["output"])
    elements = extract(patched).kind("element")
    assert record["gpu_after"] == sum(e["header_size"] + e["payload_size"] for e in elements)
    assert {k["name"] for e in elements for k in e["kernels"]} == used
    checks.check_host(library, patched)
    assert oracle.warnings(patched) <= oracle.warnings(library)
    assert checks.call(patched, 3)[-1] == "42 two"
    cubins = oracle.extracted(patched, tmp_path / "x")
    assert len(cubins) == len(elements) == len(oracle.listed(patched))
    for name, cubin in cubins.items():
        if parse_cubin(cubin).kernels:
            cuda.run("nvdisasm", "-c", tmp_path / "x" / name)
    again = run("gpt-patch", "-n", "--in-place", "--mode", "hole",
                data=located(patched, "\n".join(used), "--granularity", "kernel"))  # fmt: skip
    assert [r["mode"] for r in again.kind("patched")] == ["copy"]


def place_of(name):
    """Return the number of a section in the sm_90 build, and its row."""
    elf = ELFFile(io.BytesIO(built("sm_90")))
    return elf.get_section_index(name), elf.get_section_by_name(name)


def header_of(name, field):
    """Return the offset of a field in a section's header; fields are in ELF's order, 4 or 8 bytes each."""
    number, _ = place_of(name)
    shoff = struct.unpack_from("<Q", built("sm_90"), 40)[0]
    return shoff + 64 * number + {"link": 40, "align": 48}[field]


def attribute(offset):
    """Return the offset of a byte in the first sized attribute of .nv.info."""
    section = place_of(".nv.info")[1]
    data, at = section.data(), 0
    while data[at] != 4:
        at += 4
    return section["sh_offset"] + at + offset


UNKNOWN = {  # fault -> the offset, format and value that cause it
    "attribute 0x7f of the module is not understood": lambda: (attribute(1), "<B", 0x7F),
    "attributes of the module end within an entry": lambda: (attribute(2), "<H", 0xFFF0),
    "unknown program headers": lambda: (54, "<H", 55),
    "an alignment of 8192": lambda: (header_of(".nv.info", "align"), "<Q", 8192),
    "another section shares a string table with the symbols or section names": lambda: (
        header_of(".nv.info", "link"),
        "<I",
        place_of(".strtab")[0],
    ),
    "a segment cuts through a section": lambda: (
        program_header() + 8,
        "<Q",
        place_of(".text.direct")[1]["sh_offset"] + 8,
    ),
    "a segment takes more bytes in the file than in memory": lambda: (program_header() + 40, "<Q", 1),
}


def program_header():
    """Return the offset of the first loadable segment's header."""
    data = built("sm_90")
    (phoff,), (phnum,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    places = (phoff + 56 * number for number in range(phnum))
    return next(
        at for at in places if struct.unpack_from("<I", data, at)[0] == 1 and struct.unpack_from("<Q", data, at + 32)[0]
    )


@pytest.mark.parametrize("codec", ["none", full("zstd")])
@pytest.mark.parametrize("why", [*list(UNKNOWN)[:2], *map(full, list(UNKNOWN)[2:])])
def test_kernels_that_cannot_be_dropped_become_zeros(why, codec, tmp_path):
    data = bytearray(built("sm_90"))
    place, form, value = UNKNOWN[why]()
    struct.pack_into(form, data, place, value)
    check_zeroed(bytes(data), why, codec, tmp_path)


def check_zeroed(data, why, codec, folder):
    """Check that nothing can be dropped from a cubin for this reason, although only `direct` is used."""
    path = folder / "code.fatbin"
    path.write_bytes(cuda.fatbin([("sm_90", "cubin", data)], codec, ["-link"]))
    done = run("gpt-patch", "-o", folder / "out", data=located(path, "direct", "--granularity", "kernel"))
    assert done.status == 0, done.err
    (trimmed,) = done.kind("trimmed")
    assert (trimmed["zeroed"], trimmed["kernels"]) == (why, 3)
    assert "reason" not in trimmed
    (element,) = run("gpt-extract", "--payload", folder / "out" / "code.fatbin").kind("element")
    left = element["data"]
    gone = {name for name, code in code_of(left).items() if not any(code)}
    assert gone == set(KERNELS) - {"direct"} | {
        name for kernel in KERNELS if kernel != "direct" for name in KERNELS[kernel]
    }
    cut = find_cut(data, set(KERNELS) - {"direct"})
    assert left == cut_out(data, cut)[0]
    table = run(
        "gpt-patch", "-n", "--table", "-o", folder / "out", data=located(path, "direct", "--granularity", "kernel")
    )
    assert why in " ".join(table.out.decode().split())


def test_kernels_become_zeros_if_verification_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("gpt.formats.cubin_drop.find_fault", lambda *_: "section 7 changed")
    path = tmp_path / "code.fatbin"
    path.write_bytes(cuda.fatbin([("sm_90", "cubin", built("sm_90"))], "none", ["-link"]))
    with open(path, "rb") as file:
        source = Source(str(path), file.fileno())
        elements = [placed.element for placed in parse_image(source).iter_elements()]
        (trimmed,) = trim_all(source, {elements[0].offset: {"alone"}}, elements, dropping=True, jobs=1)
    assert (trimmed.zeroed_for, trimmed.dropped, trimmed.reason) == ("section 7 changed", False, None)
    assert trimmed.cut.kernels == 1


def test_sections_over_each_other_are_not_copied():
    data = forged(50_000, 2)
    begin = time.process_time()
    with pytest.raises(KeptWhole, match="sections overlap"):
        without(data, (1,))
    assert time.process_time() - begin < 5


def test_faults_are_found():
    data = built("sm_90")
    cut = find_cut(data, {"plain"})
    left = without(data, cut.sections)
    elf = ELFFile(io.BytesIO(left))
    text = elf.get_section_by_name(".text.direct")["sh_offset"]
    for place, words in ((text, "section .* changed"), (elf.header["e_shoff"] + 64 * 5 + 8, "header of section")):
        broken = bytearray(left)
        broken[place] ^= 1
        assert re.search(words, find_fault(data, broken, cut.sections) or "")
    table = elf.get_section_by_name(".symtab")
    broken = bytearray(left)
    struct.pack_into("<Q", broken, table["sh_offset"] + 24 * (table.num_symbols() - 1) + 16, 7)
    assert find_fault(data, broken, cut.sections)
    assert find_fault(
        data, left, ()
    ) == f"section {cut.sections[0]} is missing, but isn't part of the dropped code" or find_fault(data, left, ())
    assert find_fault(data, data, cut.sections)


def test_tables_that_are_wrong():
    """Cubins are rejected if the size of any section is off by one, or if a symbol's name is outside of the table of
    names.
    """
    data = built("sm_90")
    elf = ELFFile(io.BytesIO(data))
    table = elf.get_section_by_name(".symtab")
    sizes = [
        (elf["e_shoff"] + 64 * number + 32, elf.get_section(number)["sh_size"] + 1)
        for number in range(elf.num_sections())
    ]
    names = [(table["sh_offset"] + 24 * number, 1 << 24) for number in range(1, table.num_symbols())]
    for place, value in sizes + names:
        broken = bytearray(data)
        struct.pack_into("<I", broken, place, value)
        try:
            cut = find_cut(broken, {"plain", "alone"})
            left = without(broken, cut.sections)
        except (KeptWhole, MalformedError):
            continue
        find_fault(broken, left, cut.sections)


@settings(max_examples=examples(300))
@given(st.data())
def test_bytes_that_are_wrong(draw):
    """Whatever is damaged, the result passes its own check, or the cubin is rejected."""
    data = damaged(built("sm_90"), draw)
    try:
        cut = find_cut(data, {"plain", "alone"})
        left = without(data, cut.sections)
    except (KeptWhole, MalformedError):
        return
    assert len(left) < 2 * len(data) + 128 * len(
        ELFFile(io.BytesIO(built("sm_90"))).get_section_by_name(".symtab").data()
    )
    find_fault(data, left, cut.sections)
