"""GPU code outside of the fatbin sections: the parts that are removed from the file. No byte of the
host's data moves.
"""

import subprocess
import sys

import pytest
from elftools.elf.elffile import ELFFile

from tests.formats import oracle
from tests.formats.samples import OUTSIDE
from tests.stages.tools import extract, patch, run

USED = "bulky\n"
CALL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.outside_size.restype = library.outside_host.restype = ctypes.c_uint64
print(*(library.outside_size(i) for i in range(3)), library.outside_host() + library.outside_host())
"""


def locate(folder, *libraries, used=USED, arch="sm_90"):
    (folder / "names").write_text(used)
    return run(
        "gpt-locate",
        "--allow-missing",
        "--used",
        folder / "names",
        "--arch",
        arch,
        data=extract("--scan", *libraries).out,
    )


def slim(sample, folder, mode="compact", **locating):
    library = sample("outside")
    record = patch(locate(folder, library, **locating).out, "-o", folder / mode, "--mode", mode)
    assert (record["mode"], record.get("reason")) == (mode, None)
    return library, folder / mode / library.name, record


def seen(library):
    """Return what the program reads: the sizes of three regions from a table, and a sum of the host's data."""
    done = subprocess.run([sys.executable, "-c", CALL, library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.full
def test_scan_finds_regions_and_cubins_that_are_packed(sample):
    found = [e for e in extract("--scan", sample("outside")).kind("element") if e["section"] == ".ldata"]
    kinds = [(kind, arch) for _, kind, arch in OUTSIDE if kind]
    assert [e["arch"] for e in found] == [arch for _, arch in kinds]
    assert [e["codec"] for e in found] == ["zstd" if kind == "frame" else "none" for kind, _ in kinds]
    assert [e["header_size"] > 0 for e in found] == [kind == "cubin" for kind, _ in kinds]
    assert all([k["name"] for k in e["kernels"]] == ["bulky"] for e in found)


@pytest.mark.parametrize("used", [USED, "nothing\n"])
@pytest.mark.parametrize("mode", ["fill", "hole", "compact"])
@pytest.mark.full
def test_the_host_sees_what_it_saw(sample, mode, used, tmp_path):
    library, patched, record = slim(sample, tmp_path, mode, used=used)
    before, after = seen(library), seen(patched)
    assert after[3] == before[3]  # the host's own data, including data that it writes to
    stays = used == USED
    if mode == "compact":
        assert after[:2] == [0, 0]  # regions for other devices keep a header that marks them as empty
        assert after[2] == (before[2] if stays else 0)
        assert record["size_after"] == patched.stat().st_size < record["size_before"] - (200000 if stays else 300000)
    else:
        assert after[:3] == before[:3]
    left = [e for e in extract("--scan", patched).kind("element") if e["section"] == ".ldata"]
    assert [e["arch"] for e in left] == (["sm_90"] * 3 if stays else [])
    again = run("gpt-patch", "-o", tmp_path / "again", data=locate(tmp_path, patched, used=used).out)
    assert [r["mode"] for r in again.kind("patched")] == ["copy"]


@pytest.mark.full
def test_memory_is_unchanged_except_zeros(sample, tmp_path):
    library, patched, _ = slim(sample, tmp_path)
    assert oracle.warnings(patched) <= oracle.warnings(library)
    with open(library, "rb") as a, open(patched, "rb") as b:
        before, after = ELFFile(a), ELFFile(b)
        section = before.get_section_by_name(".ldata")
        low, size = section["sh_addr"], section["sh_size"]
        old, new = (memory(elf, low, low + size) for elf in (before, after))
        changed = [at for at in range(size) if old[at] != new[at]]
        parts = [s for s in after.iter_sections() if s.name == ".ldata"]
        table = after.header["e_phoff"] - parts[0]["sh_offset"]  # the program headers were put into that space
        headers = range(table, table + 56 * after.header["e_phnum"])
        assert len(changed) > 200000 and all(new[at] == 0 or at in headers for at in changed)
        assert len(parts) > 2
        assert (parts[0]["sh_addr"], parts[-1]["sh_addr"] + parts[-1]["sh_size"]) == (low, low + size)
        for part in parts:
            assert list(after.address_offsets(part["sh_addr"], part["sh_size"])) == [part["sh_offset"]]
        assert len(list(after.iter_segments("PT_LOAD"))) == len(list(before.iter_segments("PT_LOAD"))) + len(parts) - 1


def memory(elf, start, end):
    """Return the bytes between two addresses, which must be loaded."""
    data = b""
    for s in elf.iter_segments("PT_LOAD"):
        loaded = s.data() + bytes(s["p_memsz"] - s["p_filesz"])
        data += loaded[max(0, start + len(data) - s["p_vaddr"]) : max(0, end - s["p_vaddr"])]
    assert len(data) == end - start
    return data
