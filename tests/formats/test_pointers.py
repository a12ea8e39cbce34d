"""Pointers into a fatbin: words that move with it, and words that keep a library from being compacted."""

import struct

import numpy as np
import pytest

from gpt.formats import fatbin
from gpt.formats.image import find_image, iter_sections
from gpt.formats.pointers import NotUnderstood, _arm_refers, _x86_refers, find_pointers
from gpt.formats.source import Source
from tests.formats.samples import ONE, VARIABLES, link, region
from tests.patch import checks
from tests.stages.tools import located, patch

TABLE = """
    .section .data.rel.ro, "aw"
    .balign 8
    .globl table
table:
    .8byte {}, {}
"""


def pointers(path):
    """Return (section of the host, address pointed to) for each pointer, and the addresses of the regions."""
    image = find_image(Source(str(path), path.read_bytes()))
    sections = list(iter_sections(image.elf))
    starts = {
        s.addr + found.offset - s.offset
        for s in sections
        for found in fatbin.iter_regions(image.source, s.offset, s.end)
    }
    found = find_pointers(image.source, image.elf, sections, starts)
    where = {
        p.at: next(s.name for s in image.elf.sections if s.in_file and s.offset <= p.at < s.end) for p in found
    }  # fmt: skip
    return sorted((where[p.at], p.value) for p in found), sorted(starts)


@pytest.fixture(scope="module")
def regions():
    return [region(ONE), region(VARIABLES)]


def test_wrappers_and_their_relocations(sample):
    found, starts = pointers(sample("balance"))
    assert {value for name, value in found if name == ".rela.dyn"} == set(starts)
    found, starts = pointers(sample("relr"))
    assert {value for name, value in found if name == ".nvFatBinSegment"} == set(starts)
    found, starts = pointers(sample("fixed"))
    assert {value for name, value in found if name == ".nvFatBinSegment"} == set(starts)
    found, starts = pointers(sample("symbols"))
    assert {value for name, value in found if name == ".dynsym"} == set(starts)


def test_a_table_of_the_host_is_moved_too(regions, tmp_path):
    code = "extern const unsigned *const table[]; unsigned first(int i) { return *table[i]; }"
    path = link(tmp_path / "libtable.so", regions * 4, assembly=TABLE.format("region1", "region6"), code=code)
    found, starts = pointers(path)
    rela = [value for name, value in found if name == ".rela.dyn"]
    assert sorted(rela) == sorted([*starts, starts[1], starts[6]])
    patched = patch(located(path, "_Z3onePf\n"), "-o", tmp_path / "slim")
    assert patched["mode"] == "compact"
    import ctypes

    assert [ctypes.CDLL(patched["output"]).first(i) & 0xFFFFFFFF for i in (0, 1)] == [0xBA55ED50] * 2
    with pytest.raises(AssertionError, match="changed at"):  # the checks would have detected it
        checks.check_host(path, tmp_path / "slim" / path.name)


@pytest.mark.parametrize(
    ("assembly", "reason"),
    [
        (TABLE.format("region0 + 16", 0), "points into the middle of a region"),
        (TABLE.format("region1", "region1 + 8"), "points into the middle of a region"),
        ("\n.section .nv_fatbin\n.globl last\nlast:\n", "marks the end of '.nv_fatbin'"),
        ("\n.section .nvFatBinSegment\n.8byte 1, 2, 3\n", "'.nvFatBinSegment' holds no wrapper"),
    ],
    ids=["data", "data beside", "the end", "no wrapper"],
)
def test_unsupported_pointers_are_refused(regions, assembly, reason, tmp_path):
    path = link(tmp_path / "libodd.so", regions, "-Wl,-z,notext", "-Wl,--no-warnings", assembly=assembly)
    with pytest.raises(NotUnderstood, match=reason):
        pointers(path)


PLACE = 0x40_1000


def x86(code, wanted, fixed=False, at=100):
    data = np.frombuffer(bytes(at) + code + bytes(50), "u1")
    return _x86_refers(data, PLACE, np.array([wanted], np.int64), fixed)


def test_x86_code():
    after = PLACE + 100 + 7
    lea = b"\x48\x8d\x05" + struct.pack("<i", 0x1234)
    assert x86(lea, after + 0x1234)
    assert not x86(lea, after + 0x1235 + 8)
    assert not _x86_refers(np.frombuffer(lea[3:], "u1"), PLACE, np.array([PLACE], np.int64), True)  # too short
    back = b"\x48\x8b\x0d" + struct.pack("<i", -0x300)
    assert x86(back, after - 0x300)
    compare = b"\x48\x81\x3d" + struct.pack("<ii", 0x500, 77)  # an immediate follows the displacement
    assert x86(compare, after + 4 + 0x500)
    move = b"\xbf" + struct.pack("<I", 0x40_5000)
    assert x86(move, 0x40_5000, fixed=True)
    assert not x86(move, 0x40_5000, fixed=False)


def adrp(place, target, register=0):
    pages = (target >> 12) - (place >> 12)
    return struct.pack("<I", 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register)


def adr(place, target):
    offset = target - place
    return struct.pack("<I", 0x10000000 | (offset & 3) << 29 | (offset >> 2 & 0x7FFFF) << 5)


@pytest.mark.parametrize("target", [0x50_2468, 0x30_0008, 0x40_1FF8])
def test_arm_code(target):
    place = PLACE + 8 * 4
    for instruction in (
        adrp(place, target, 5),
        adr(place, target) if abs(target - place) < 1 << 20 else adrp(place, target),
    ):
        code = np.frombuffer(b"\x1f\x20\x03\xd5" * 8 + instruction + b"\x1f\x20\x03\xd5" * 8, "u1")
        assert _arm_refers(code, PLACE, np.array([target], np.int64))
        assert not _arm_refers(code, PLACE, np.array([target + 0x20_0000], np.int64))


def test_code_is_searched_across_blocks(monkeypatch, regions, tmp_path):
    """An instruction that crosses the boundary of two blocks is found."""
    from gpt.formats import pointers as module

    hidden = 'extern const char region1[] __attribute__((visibility("hidden")));'
    code = f"{hidden}\nconst void *address(void) {{ return region1; }}"
    path = link(tmp_path / "libref.so", regions, bare=[1], assembly="\n.globl region1\n", code=code)
    for block in (*range(40, 72), 1 << 20):  # with some sizes, the last block is shorter than an instruction
        monkeypatch.setattr(module, "BLOCK", block)
        with pytest.raises(NotUnderstood, match="may refer to a region that has no wrapper"):
            pointers(path)
