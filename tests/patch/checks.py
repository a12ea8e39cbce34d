"""Checks for patched libraries in any mode. They don't use gpt/."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tests.formats import oracle

FATBINS = (".nv_fatbin", "__nv_relfatbin")
# Calls a library as its users would. It prints the library's answer, a name, and the sum of each region's bytes.
CALL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.name_of.restype = ctypes.c_char_p
library.region_sum.restype = ctypes.c_ulonglong
for region in range(int(sys.argv[2])):
    print(f"{library.region_sum(region):x}")
print(library.answer(), library.name_of(2).decode())
"""


def check_patched(original: Path, patched: Path, kept: list[str], folder: Path) -> None:
    """Check everything that can be seen in the files. `kept` are cuobjdump's names of the original's elements."""
    assert oracle.warnings(patched) <= oracle.warnings(original)
    assert patched.stat().st_mode == original.stat().st_mode
    check_elements(original, patched, kept, folder)
    check_host(original, patched)


def check_elements(original: Path, patched: Path, kept: list[str], folder: Path) -> None:
    before = oracle.extracted(original, folder / "before")
    after = oracle.extracted(patched, folder / "after")
    assert [after[name] for name in oracle.listed(patched)] == [before[name] for name in kept]
    assert len(after) == len(kept)


def check_host(original: Path, patched: Path) -> None:
    """Check that the host's sections have only changed in wrappers' words, addends that move wrappers, and symbols."""
    with open(original, "rb") as a, open(patched, "rb") as b:
        before, after = ELFFile(a), ELFFile(b)
        assert before.num_sections() == after.num_sections()
        fatbins = [section for section in before.iter_sections() if section.name in FATBINS]
        wrappers = before.get_section_by_name(".nvFatBinSegment")
        for old, new in zip(before.iter_sections(), after.iter_sections(), strict=True):
            fields = ("sh_type", "sh_flags", "sh_addr", "sh_link", "sh_info", "sh_entsize")
            assert (old.name, *(old[f] for f in fields)) == (new.name, *(new[f] for f in fields))
            if old["sh_flags"] & 2 and new["sh_size"] and new["sh_type"] != "SHT_NOBITS" and after.num_segments():
                offsets = list(after.address_offsets(new["sh_addr"], new["sh_size"]))
                assert offsets == [new["sh_offset"]], f"{new.name} is mapped elsewhere"
            if old.name in FATBINS:
                continue
            assert old["sh_size"] == new["sh_size"]
            if old["sh_type"] == "SHT_NOBITS":
                continue
            left, right = old.data(), new.data()
            if left == right:
                continue
            for at in [at for at in range(0, len(left), 8) if left[at : at + 8] != right[at : at + 8]]:
                assert _may_change(old, at, fatbins, wrappers), f"{old.name} changed at {at:#x}"
        assert before.header["e_entry"] == after.header["e_entry"]
        _check_segments(before, after, patched.stat().st_size)


def _check_segments(before: ELFFile, after: ELFFile, size: int) -> None:
    """Check program headers as a loader does, and that the same bytes are at the same addresses as before."""
    old, new = ([s for s in file.iter_segments() if s["p_type"] == "PT_LOAD"] for file in (before, after))
    for segment in new:
        assert segment["p_offset"] + segment["p_filesz"] <= size
        assert (segment["p_offset"] - segment["p_vaddr"]) % max(segment["p_align"], 4096) == 0
        assert segment["p_filesz"] <= segment["p_memsz"]
    for left, right in pairwise(new):
        assert left["p_vaddr"] + left["p_memsz"] <= right["p_vaddr"]
    assert new == sorted(new, key=lambda s: s["p_vaddr"])
    for edge in (lambda s: (s["p_vaddr"], s["p_flags"]), lambda s: (s["p_vaddr"] + s["p_memsz"], s["p_flags"])):
        assert {edge(s) for s in old} <= {edge(s) for s in new}  # segments were split, but not shortened
    if old:
        assert old[0]["p_align"] == new[0]["p_align"]  # the loader places the whole library by this alignment
    rest = [[s for s in f.iter_segments() if s["p_type"] not in ("PT_LOAD", "PT_PHDR")] for f in (before, after)]
    for left, right in zip(*rest, strict=True):
        fields = ("p_type", "p_flags", "p_vaddr", "p_filesz", "p_memsz", "p_align")
        assert [left[field] for field in fields] == [right[field] for field in fields]
        assert left["p_filesz"] == 0 or left.data() == right.data()
    for table in (s for s in after.iter_segments() if s["p_type"] == "PT_PHDR"):
        assert table["p_offset"] == after.header["e_phoff"]
        assert table["p_filesz"] == after.header["e_phnum"] * 56
        assert list(after.address_offsets(table["p_vaddr"], table["p_filesz"])) == [table["p_offset"]]


def _may_change(section, at, fatbins, wrappers):
    number, word = divmod(at, 24)
    if section.name == ".nvFatBinSegment":
        return word == 8
    if section["sh_type"] == "SHT_RELA":
        low = wrappers["sh_addr"]
        return word == 16 and low <= section.get_relocation(number)["r_offset"] < low + wrappers["sh_size"]
    if section["sh_type"] in ("SHT_SYMTAB", "SHT_DYNSYM"):
        value = section.get_symbol(number)["st_value"]  # the symbol's st_shndx is wrong in some public libraries
        return word == 8 and any(s["sh_addr"] <= value < s["sh_addr"] + s["sh_size"] for s in fatbins)
    return False


def region_sum(region: bytes) -> int:
    """Return what `region_sum` in a sample's host code returns for a region with these bytes."""
    total = 0
    for byte in region[16:]:
        total = total * 31 + byte & 0xFFFFFFFF
    return 0xBA55ED50 << 32 | total


def call(path: Path, regions: int) -> list[str]:
    """Return the output of a library or program: a sum for each region, and then the result of its own code."""
    program = path.suffix != ".so"
    command = [path, *"x" * regions] if program else [sys.executable, "-c", CALL, path, str(regions)]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    return done.stdout.splitlines()
