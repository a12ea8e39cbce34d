"""Wrappers and regions that don't belong together: what patchelf 0.14 leaves, and what else a tool can break."""

import io
import struct
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from gpt.extract.unfound import iter_unfound
from gpt.formats.image import find_image, parse_image
from gpt.formats.pointers import NotUnderstood, find_unreferenced
from gpt.formats.source import Source
from tests.formats.samples import SAMPLES
from tests.stages.tools import extract, run
from tests.tiers import every

WRAPPER, RELA = 24, 24


class File:
    """A copy in memory of an ELF file, for changing the fatbin wrappers in it."""

    def __init__(self, path):
        self.data = bytearray(path.read_bytes())
        with open(path, "rb") as file:
            elf = ELFFile(file)
            self.sections = {s.name: dict(s.header) for s in elf.iter_sections()}
            wrappers = self.sections[".nvFatBinSegment"]
            self.at, self.wrapper = wrappers["sh_addr"], wrappers["sh_offset"]
            self.fatbin = self.sections[".nv_fatbin"]["sh_addr"]
            self.words = [self.at + n * WRAPPER + 8 for n in range(wrappers["sh_size"] // WRAPPER)]
            self.relocations = {}  # file offset of the relocation of each wrapper
            for section in elf.iter_sections():
                if section["sh_type"] == "SHT_RELA":
                    for n, one in enumerate(section.iter_relocations()):
                        if one["r_offset"] in self.words and (elf["e_type"] != "ET_REL" or "FatBin" in section.name):
                            self.relocations[one["r_offset"]] = section["sh_offset"] + n * RELA

    def target(self, number):
        place = self.relocations.get(self.words[number])
        if place is None:
            return struct.unpack_from("<Q", self.data, self.wrapper + number * WRAPPER + 8)[0]
        return struct.unpack_from("<Q", self.data, place + 16)[0]

    def point(self, number, value):
        """Make a wrapper point elsewhere."""
        place = self.relocations.get(self.words[number])
        struct.pack_into("<Q", self.data, self.wrapper + number * WRAPPER + 8 if place is None else place + 16, value)

    def facts(self, scan=False):
        image = parse_image(Source("file", bytes(self.data)))
        return list(iter_unfound(image, list(image.iter_elements(scan))))


@pytest.mark.parametrize("name", every(3, sorted(SAMPLES)))
def test_files_as_linkers_make_them_are_right(name, sample):
    path = sample(name)
    for one in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
        image = find_image(Source(name, one.read_bytes()))
        assert image is None or list(iter_unfound(image, list(image.iter_elements()))) == []


@pytest.mark.parametrize("name", ["balance", "relr", "pie", "fixed"])
@pytest.mark.parametrize("where", ["header", "middle", "beyond", "null"])
def test_wrapper_without_fatbin(name, where, sample):
    file = File(sample(name))
    start = file.target(1)
    value = {"header": file.target(0) & ~0xFFF, "middle": start + 64, "beyond": 1 << 40, "null": 0}[where]
    file.point(1, value)
    (fact,) = file.facts()
    assert f"1 wrapper in '.nvFatBinSegment' leads to no fatbin ({file.at + WRAPPER:#x} to {value:#x})" in fact
    assert (f"no wrapper leads to the fatbin at {start:#x}" in fact) == (name != "fixed")
    assert "launches from it fail" in fact and "patchelf" in fact


def test_all_wrappers_are_stray_where_the_section_moved(sample):
    """patchelf 0.14 moves the sections at the front to the end, and fills their old place with X."""
    file = File(sample("balance"))
    section = file.sections[".nv_fatbin"]
    for at in range(section["sh_offset"], section["sh_offset"] + section["sh_size"]):
        file.data[at] = ord("X")
    table = struct.unpack_from("<Q", file.data, 40)[0]
    number = list(file.sections).index(".nv_fatbin")
    moved = len(file.data) + -len(file.data) % 8
    with open(sample("balance"), "rb") as original:
        original.seek(section["sh_offset"])
        file.data += bytes(moved - len(file.data)) + original.read(section["sh_size"])
    struct.pack_into("<QQ", file.data, table + 64 * number + 16, moved + 0x100000, moved)
    (fact,) = file.facts()
    assert fact.startswith("3 wrappers in '.nvFatBinSegment' lead to no fatbin (")


def test_region_with_kernels_but_no_wrapper(sample):
    file = File(sample("balance"))
    lost = file.target(1)
    file.point(1, file.target(0))  # two wrappers of one region
    (fact,) = file.facts()
    assert fact.startswith(f"no wrapper leads to the fatbin at {lost:#x}: the driver won't find that code")


def test_wrapper_without_relocation(sample):
    file = File(sample("balance"))
    struct.pack_into("<I", file.data, file.relocations[file.words[0]] + 8, 0)
    file.data[file.wrapper + 8 : file.wrapper + 16] = bytes(8)
    assert f"({file.at:#x} to 0x0)" in file.facts()[0]


def test_other_relocation_types_are_left_to_the_loader(sample):
    file = File(sample("balance"))
    struct.pack_into("<I", file.data, file.relocations[file.words[0]] + 8, 6)  # R_X86_64_GLOB_DAT
    file.point(0, 0x260)
    assert all("wrappers in" not in fact for fact in file.facts())


def test_a_file_without_section_headers(sample):
    file = File(sample("balance"))
    file.data[40:48], file.data[58:64] = bytes(8), bytes(6)
    assert file.facts(scan=True) == []
    file.point(2, 0x40)
    assert f"({file.at + 2 * WRAPPER:#x} to 0x40)" in file.facts(scan=True)[0]


def test_wrappers_in_a_section_of_another_name(sample):
    """A linker script can name it so."""
    file = File(sample("balance"))
    names = list(file.sections)
    table = struct.unpack_from("<Q", file.data, 40)[0]
    strings = file.sections[".shstrtab"]["sh_offset"]
    place = strings + struct.unpack_from("<I", file.data, table + 64 * names.index(".nvFatBinSegment"))[0]
    file.data[place : place + 5] = b".data"
    assert file.facts() == []
    file.point(0, 0x40)
    assert f"({file.at:#x} to 0x40)" in file.facts()[0]


def test_an_arm_library(sample):
    file = File(sample("balance"))
    struct.pack_into("<H", file.data, 18, 183)
    section = file.sections[".rela.dyn"]
    for at in range(section["sh_offset"], section["sh_offset"] + section["sh_size"], RELA):
        if struct.unpack_from("<I", file.data, at + 8)[0] == 8:
            struct.pack_into("<I", file.data, at + 8, 1027)  # R_AARCH64_RELATIVE
    assert file.facts() == []
    file.point(0, 0x40)
    assert f"({file.at:#x} to 0x40)" in file.facts()[0]


@pytest.mark.parametrize("how", ["middle", "gone", "code"])
def test_objects_and_archives(how, sample, tmp_path):
    file = File(sample("object_"))
    assert file.facts() == []
    (place,) = [file.relocations[file.words[0]]]
    match how:
        case "middle":
            struct.pack_into("<Q", file.data, place + 16, 8)
        case "gone":
            struct.pack_into("<I", file.data, place + 8, 0)
        case "code":
            struct.pack_into("<I", file.data, place + 12, symbol_outside(file))
    (fact,) = file.facts()
    assert fact.startswith("1 wrapper in '.nvFatBinSegment' leads to no fatbin (")
    (tmp_path / "bad.o").write_bytes(file.data)
    subprocess.run(["ar", "cr", tmp_path / "libbad.a", sample("object_"), tmp_path / "bad.o"], check=True)
    done = extract("libbad.a", cwd=tmp_path)
    assert f"gpt-extract: warning: libbad.a: bad.o: {fact}" == done.err.strip() and done.status == 0


def symbol_outside(file):
    """Return the number of a symbol in the object file that's in no fatbin section."""
    table, fatbin = file.sections[".symtab"], list(file.sections).index(".nv_fatbin")
    entries = struct.iter_unpack("<IBBHQQ", file.data[table["sh_offset"] : table["sh_offset"] + table["sh_size"]])
    return next(n for n, entry in enumerate(entries) if 0 < entry[3] < 0xFF00 and entry[3] != fatbin)


def test_both_tools_warn_and_nothing_is_compacted(sample, tmp_path):
    file = File(sample("balance"))
    (tmp_path / "libok.so").write_bytes(file.data)
    file.point(0, 0x260)
    (tmp_path / "libbad.so").write_bytes(file.data)
    assert extract("libok.so", cwd=tmp_path).err == ""
    found = extract("libbad.so", cwd=tmp_path)
    assert found.status == 0 and found.err.startswith("gpt-extract: warning: libbad.so: 1 wrapper in")
    assert [record["level"] for record in found.kind("diag")] == ["warning"]
    (tmp_path / "names").write_text("_Z3onePf\n")
    spans = run("gpt-locate", "--used", "names", "--arch", "sm_90", data=found.out, cwd=tmp_path)
    done = run("gpt-patch", "-o", "slim", data=spans.out, cwd=tmp_path)
    assert done.status == 0 and done.err.startswith("gpt-patch: warning: libbad.so: 1 wrapper in")
    (patched,) = done.kind("patched")
    assert patched["mode"] == "hole" and patched["reason"] == f"the wrapper at {file.at:#x} leads to no fatbin"
    assert (tmp_path / "slim/libbad.so").stat().st_size == len(file.data)


@pytest.mark.parametrize("address", [1 << 62, (1 << 63) - 64, 1 << 63, (1 << 64) - 16], ids=hex)
@pytest.mark.parametrize("part", ["section", "segment"])
def test_unknown_addresses_are_not_an_error(part, address, sample):
    """Computing with these addresses in 64 bits once failed. Such a file can't be loaded, so there's no warning about
    it.
    """
    file = File(sample("small"))
    header = ELFFile(io.BytesIO(bytes(file.data)))
    if part == "section":
        places = [header["e_shoff"] + n * 64 + 16 for n in range(header["e_shnum"])]
    else:
        places = [header["e_phoff"] + n * 56 + 16 for n in range(header["e_phnum"])]
    for place in places:
        struct.pack_into("<Q", file.data, place, address)
    image = parse_image(Source("file", bytes(file.data)))
    regions = {element.element.region for element in image.iter_elements()}
    for some in (regions, set()):
        with pytest.raises(NotUnderstood, match="has the address 0x"):
            find_unreferenced(image.source, image.elf, some)
    file.facts()
