"""Files designed to break a reader: one error line with the location, exit 3, little memory, little time.

Each of the forged files once kept some reader busy for hours, filled the memory, or ended in a traceback.
"""

import os
import random
import struct

import pytest

from tests.formats import forge
from tests.stages.tools import MIB, extract
from tests.tiers import every, first

BASE = 300 * MIB  # whatever the input
UNPACKED = 256 * MIB  # gpt.formats.fatbin.MAX_UNPACKED
WINDOW = 128 * MIB  # gpt.formats.fatbin.MAX_WINDOW


def nested_regions():
    """Return regions nested in payloads, each extending to a broken end. A naive reader would read the rest again from
    each one.
    """
    count = 100_000
    parts = []
    for number in range(count):
        head = forge.element(b"", size=16)
        parts.append(head + forge.region(b"", (count - number - 1) * 80 + 40))
    return forge.elf_header() + bytes(64) + b"".join(parts) + b"\xff" * 40


def nested_cubins():
    """Return headers of cubins that claim 200 MB each, in a file made large by a hole; their symbols have no names."""
    head = forge.elf_header(shoff=200_000_000, shnum=3, machine=190)
    return forge.elf_header() + head * 1000


def linked_sections():
    """Return symbol tables that are linked in a chain, and thousands that are linked to the first, to confuse a reader
    that follows links.
    """
    count = 65_000
    end = 64 + 64 * count
    links = [number + 1 if number < 250 else 1 for number in range(2, 251)] + [2] * (count - 251)
    tables = b"".join(forge.section(0, 2, offset=end, link=link) for link in links)
    head = forge.elf_header(shoff=64, shnum=count, shstrndx=1)
    return head + forge.section(0, 0) + forge.section(0, 3, offset=end, size=1) + tables + bytes(8)


def long_names():
    """Return 65,000 sections with names of 20 MB, which share all bytes except the first."""
    count = 65_000
    names = b"\0" + b"a" * 20_000_000 + b"\0"
    head = forge.elf_header(shoff=64, shnum=count, shstrndx=1)
    table = forge.section(0, 3, offset=64 + 64 * count, size=len(names))
    return head + forge.section(0, 0) + table + b"".join(forge.section(n, 1) for n in range(2, count)) + names


def many_segments():
    """Return 60,000 dynamic segments. A reader that searches for the sections of each would never finish."""
    count, headers = 60_000, 60_000
    end = 64 + 64 * count
    head = forge.elf_header(shoff=64, shnum=count, shstrndx=1, phoff=end, phnum=headers)
    segments = struct.pack("<IIQQQQQQ", 2, 0, end, 0, 0, 16, 16, 8) * headers
    table = forge.section(0, 3, offset=end, size=1)
    return head + forge.section(0, 0) + table + forge.section(0, 1) * (count - 2) + segments


def sections_by_the_million():
    count = 1_500_000
    first = forge.section(0, 0, size=count)
    return forge.elf_header(shoff=64, shnum=0, shstrndx=1) + first + forge.section(0, 1) * (count - 1)


def archive_of_long_names():
    count = 60_000
    names = b"".join(b"name%07d.o/\n" % number for number in range(count))
    table = b"//".ljust(48) + str(len(names)).encode().ljust(10) + b"`\n" + names
    members = ((b"/%d" % (number * 14)).ljust(48) + b"0".ljust(10) + b"`\n" for number in range(count))
    return b"!<arch>\n" + table + b"".join(members)


def nested_archives(depth):
    data = b""
    for _ in range(depth):
        data = (
            b"!<arch>\n" + b"a/".ljust(48) + str(len(data)).encode().ljust(10) + b"`\n" + data + b"\n" * (len(data) % 2)
        )
    return data


def note_that_claims_gigabytes():
    names = b"\0.note.gnu.build-id\0"
    note = struct.pack("<III", 0xFFFFFFF0, 0xFFFFFFF0, 3) + b"GNU\0" + bytes(20)
    offset = 64 + 3 * 64
    head = forge.elf_header(shoff=64, shnum=3, shstrndx=1)
    tables = forge.section(0, 0) + forge.section(0, 3, offset=offset, size=len(names))
    return head + tables + forge.section(1, 7, offset=offset + len(names), size=len(note)) + names + note


HUGE = (1 << 64) - 8
# name -> (the file, options, exit status, words of the error, bytes of memory beyond BASE)
FILES = {
    "comments": (lambda: b"/**/" * 10_000 + b"x", [], 3, "not an ELF file", 0),
    "PTX of empty lines": (lambda: b".version 8.0\n.target sm_90\n" + b"\n" * 3_000_000, [], 0, "", 0),
    "PTX of open comments": (lambda: b".version 8.0\n.target sm_90\n" + b"/* " * 2_000_000, [], 0, "", 0),
    "PTX of open brackets": (lambda: b".version 8.0\n.target sm_90\n" + b".func (" * 260_000, [], 0, "", 0),
    "PTX of one line": (lambda: b".version 8.0\n.target sm_90\n" + b".weak " * 1_000_000, [], 0, "", 0),
    "PTX of names": (
        lambda: b".version 8.0\n.target sm_90\n" + b"".join(b".entry a%d " % n for n in range(1_000_000)),
        [], 3, "more functions than its text can define", 0,
    ),
    "packed comments": (
        lambda: forge.region(forge.zstd(b".version 8.0\n.target sm_90\n" + b"// c\n" * 20_000_000, kind=1)),
        ["-j1"], 0, "", UNPACKED,
    ),
    "packed variables": (
        lambda: forge.region(forge.zstd(b".version 8.0\n.target sm_90\n" + b".global .b32 x;\n" * 3_000_000, kind=1)),
        ["-j1"], 3, "over 262144 functions and variables", UNPACKED,
    ),
    "PTX that is all variables": (
        lambda: b".version 8.0\n.target sm_90\n" + b" .global " * 20_000_000, [], 3, "over 262144 functions", UNPACKED,
    ),
    "PTX that is all variables in a comment": (
        lambda: b".version 8.0\n.target sm_90\n//" + b" .global " * 1_000_000, [], 3, "over 262144 functions", 0,
    ),
    "PTX for an odd target": (lambda: b".version 8.0\n.target sm_" + b"9" * 60_000, [], 0, "", 0),
    "names that overlap": (
        lambda: forge.cubin(5_000, b"\0" + b"a" * 2_000_000 + b"\0"), [], 3, "more functions and names than", 0,
    ),
    "more symbols than bytes": (lambda: forge.cubin(200_000), [], 3, "more functions and names than", 0),
    "packed symbols": (
        lambda: forge.region(forge.zstd(forge.cubin(8_000_000))), ["-j1"], 3, "more functions", 2 * UNPACKED,
    ),
    "symbols beyond the end": (
        lambda: forge.cubin(9)[:-104] + struct.pack("<Q", 1 << 40) + forge.cubin(9)[-96:], [], 3, "beyond its end", 0,
    ),
    "symbols that overflow": (
        lambda: forge.cubin(9)[:-104] + struct.pack("<Q", HUGE) + forge.cubin(9)[-96:], [], 3, "beyond its end", 0,
    ),
    "symbols linked nowhere": (
        lambda: forge.cubin(9)[:-88] + struct.pack("<I", 77) + forge.cubin(9)[-84:], [], 3, "table without names", 0,
    ),
    "symbols without names": (lambda: forge.cubin(200, b"abc"), [], 3, "cubin: symbol without a name", 0),
    "symbol names elsewhere": (lambda: forge.cubin(200, name=1 << 31), [], 3, "cubin: symbol without a name", 0),
    "long names": (long_names, [], 3, "names of sections overlap", 200 * MIB),
    "linked sections": (linked_sections, [], 1, "no GPU code", 0),
    "many segments": (many_segments, [], 1, "no GPU code", 0),
    "sections by the million": (sections_by_the_million, [], 3, "1500000 sections; the limit is 262144", 0),
    "section count": (
        lambda: forge.elf_header(shoff=64) + forge.section(0, 0, size=1 << 63), [], 3, "do not fit the file", 0,
    ),
    "section headers": (lambda: forge.elf_header(shoff=HUGE, shnum=1), [], 3, "section headers do not fit", 0),
    "program headers": (lambda: forge.elf_header(phoff=HUGE, phnum=1), [], 3, "program headers do not fit", 0),
    "a note": (note_that_claims_gigabytes, [], 1, "no GPU code", 0),
    "regions and zeros": (lambda: (forge.region(b"") + bytes(8)) * 400_000, [], 3, "over 65536 fatbin regions", 0),
    "tiny elements": (
        lambda: forge.region(forge.element(b"", kind=9) * 300_000), ["--type", "ptx"], 3, "over 65536 elements", 0,
    ),
    "a bomb in many elements": (
        lambda: forge.region(forge.zstd(bytes(8 << 20), 255 << 20) * 200), [], 3, "elements unpack to over 2", 0,
    ),
    "nested regions": (nested_regions, ["--scan"], 3, "too many places that only begin like GPU code", 0),
    "long names of members": (archive_of_long_names, [], 1, "no GPU code", 0),
    "nested archives": (lambda: nested_archives(1_100), [], 3, "archives nested over 8 deep", 0),
    "region of another version": (lambda: forge.region(b"", version=2), [], 3, "unknown version 2 of a", 0),
    "region beyond the file": (lambda: forge.region(bytes(64), 1 << 40), [], 3, "ends beyond its container", 0),
    "region that overflows": (lambda: forge.region(bytes(64), HUGE), [], 3, "ends beyond its container", 0),
    "no region": (lambda: forge.region(b"") + b"text text text text", [], 3, "not a fatbin region", 0),
    "element beyond its region": (
        lambda: forge.region(forge.element(bytes(8), size=16)), [], 3, "element ends beyond its region", 0,
    ),
    "element that overflows": (
        lambda: forge.region(forge.element(bytes(8), size=HUGE)), [], 3, "element", 0,
    ),
    "header of no size": (lambda: forge.region(forge.element(b"", header=0)), [], 3, "with a header of 0 bytes", 0),
    "header of great size": (
        lambda: forge.region(forge.element(bytes(64), header=1 << 31)), [], 3, "with a header of", 0,
    ),
    "half an element": (lambda: forge.region(bytes(32)), [], 3, "element ends beyond its region", 0),
    "both codecs": (lambda: forge.region(forge.element(b"", flags=0xA000)), [], 3, "unsupported compression", 0),
    "packed to more than its payload": (
        lambda: forge.region(forge.element(bytes(8), flags=0x8000, packed=9, unpacked=9)), [],
        3, "longer than its payload", 0,
    ),
    "unpacked size too large": (lambda: forge.region(forge.zstd(bytes(1000), 1001)), [], 3, "zstd data", 0),
    "unpacked size too small": (lambda: forge.region(forge.zstd(bytes(1000), 999)), [], 3, "zstd data", 0),
    "unpacked size 0": (lambda: forge.region(forge.zstd(bytes(1000), 0)), [], 3, "zstd data", 0),
    "LZ4 size too large": (lambda: forge.region(forge.lz4(bytes(1000), 1001)), [], 3, "lz4 data", 0),
    "LZ4 size too small": (lambda: forge.region(forge.lz4(bytes(1000), 999)), [], 3, "lz4 data", 0),
    "LZ4 size 0": (lambda: forge.region(forge.lz4(bytes(1000), 0)), [], 3, "lz4 data", 0),
    "no zstd": (
        lambda: forge.region(forge.element(b"nonsense", flags=0x8000, packed=8, unpacked=99)), [], 3, "zstd data", 0,
    ),
    "a bomb that is honest": (lambda: forge.region(forge.zstd(bytes(200 << 20))), [], 3, "no cubin", UNPACKED + WINDOW),
    "a bomb that is not": (
        lambda: forge.region(forge.zstd(bytes(250 << 20), 200 << 20)), [], 3, "it unpacks to more", UNPACKED + WINDOW,
    ),
    "a bomb beyond the limit": (
        lambda: forge.region(forge.zstd(bytes(1000), 64 << 30)), [], 3, "element of 68719476736 bytes; the limit", 0,
    ),
    "an LZ4 bomb": (lambda: forge.region(forge.lz4(bytes(200 << 20))), [], 3, "no cubin", UNPACKED),
    "LZ4 that claims much": (lambda: forge.region(forge.lz4(bytes(99), 250 << 20)), [], 3, "lz4 data", UNPACKED),
}  # fmt: skip
SPARSE = {  # sparse file of that size, with only the beginning written
    "huge cubin": (lambda: forge.elf_header(shoff=64, shnum=1, machine=190), 8 << 30, "cubin of 8589934592 bytes"),
    "huge raw element": (
        lambda: forge.region(forge.element(b"", size=8 << 30), 64 + (8 << 30)), 80 + (8 << 30), "element of 8589934592",
    ),
    "huge packed element": (
        lambda: forge.region(
            forge.element(b"", size=8 << 30, packed=(1 << 32) - 8, unpacked=9, flags=0x8000), 64 + (8 << 30)
        ),
        80 + (8 << 30), "element of 4294967288",
    ),
    "huge PTX": (lambda: b".version 8.0\n.target sm_90\n", 8 << 30, "PTX of 8589934592 bytes"),
}  # fmt: skip


def check(done, status, words, beyond=0):
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    assert done.status == status, done.err
    assert done.err.count("\n") == (1 if status else 0), done.err
    assert words in done.err
    assert done.memory < BASE + beyond, f"{done.memory / MIB:.0f} MiB"
    assert done.seconds < 15


@pytest.mark.parametrize("name", every(8, [*FILES][1:] + [*FILES][:1]))
def test_forged(name, tmp_path):
    make, options, status, words, beyond = FILES[name]
    path = tmp_path / "file"
    path.write_bytes(make())
    done = extract(*options, path, measured=True)
    check(done, status, words, beyond)
    if status == 3:
        assert done.err.startswith(f"gpt-extract: error: {path}")
        assert not done.kind("library_end")


@pytest.mark.parametrize("name", SPARSE)
def test_sparse(name, tmp_path):
    make, size, words = SPARSE[name]
    path = tmp_path / "file"
    path.write_bytes(make())
    os.truncate(path, size)
    check(extract(path, measured=True), 3, words)


@pytest.mark.full
def test_cubins_that_claim_much(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(nested_cubins())
    with open(path, "r+b") as file:
        file.truncate(260_000_000)
        for number in range(1000):  # a symbol table whose names are in no section
            file.seek(64 + 64 * number + 200_000_000)
            file.write(forge.section(0, 2, link=9))
    done = extract("--scan", path, measured=True)
    check(done, 3, "too many places that only begin like GPU code", UNPACKED)


@pytest.mark.parametrize("name", first("zstd", "archive", "fatbin", "cubin"))
def test_truncated(sample, name, tmp_path):
    """Files truncated at many places are read in one run, because a folder of broken files must be read to its end."""
    data = sample(name).read_bytes()
    rng = random.Random(name)
    for size in {0, 1, 4, 8, 16, 20, 63, 64, 65, 100, len(data) - 1, *(rng.randrange(len(data)) for _ in range(60))}:
        (tmp_path / f"{size:08}").write_bytes(data[:size])
    done = extract(*sorted(tmp_path.iterdir()), measured=True)
    assert done.status == 3
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    lines = done.err.splitlines()
    assert all(line.startswith("gpt-extract: error: ") for line in lines)
    complete = {record["path"] for record in done.kind("library_end")}
    for path in tmp_path.iterdir():
        assert str(path) in complete or any(str(path) in line for line in lines)
    assert done.memory < BASE
