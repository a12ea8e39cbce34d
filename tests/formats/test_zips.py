"""Zip files with false sizes: reading them stays within limits, and a broken member affects only itself."""

import io
import struct
import zipfile

import pytest

from gpt.base.errors import MalformedError
from gpt.formats import zips
from gpt.formats.source import Source
from gpt.formats.zips import Zip
from tests.formats import forge
from tests.stages.tools import MIB, extract
from tests.tiers import every

LIBRARY = "a.so"


def packed(*members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name) if isinstance(name, str) else name, data, method)
    return bytearray(out.getvalue())


def directory_of(data):
    """Return where each entry of the directory begins."""
    at = data.index(b"PK\1\2")
    while data[at : at + 4] == b"PK\1\2":
        yield at
        at += 46 + sum(struct.unpack_from("<HHH", data, at + 28))


def changed(data, at, form, value, entry=0):
    """Return the archive with a field of a directory entry changed."""
    struct.pack_into(form, data, list(directory_of(data))[entry] + at, value)
    return data


def renamed(old, new):
    """Return members with names that zipfile wouldn't write. All names here have the same length."""
    assert len(old) == len(new)
    return packed((old.decode(), b"x" * 100)).replace(old, new)


def flagged(data, flag):
    """Return the archive with a flag set in both headers of the first member."""
    data[6:8] = struct.pack("<H", flag)
    return changed(data, 8, "<H", flag)


def corrupt(method):
    data = packed((LIBRARY, forge.cubin(50_000)), method=method)
    data[60:200] = b"\xff" * 140
    return data


def overlapping():
    """Return two entries with one body."""
    data = packed(("a", b"x" * 5000), ("b", b"y" * 5000))
    return changed(data, 42, "<I", 0, entry=1)


def nested_names():
    """Return an archive whose second entry is inside the first one's body."""
    data = packed(("a", b"x" * 5000), ("b", b"y" * 5000), method=zipfile.ZIP_STORED)
    return changed(changed(data, 20, "<I", 6000), 24, "<I", 6000)


def long_extra():
    """Return an archive whose local header claims a longer extra field than the directory, so its data would end too
    late.
    """
    data = packed((LIBRARY, forge.cubin(10)), ("b", b"y" * 50_000), method=zipfile.ZIP_STORED)
    struct.pack_into("<H", data, 28, 20_000)
    return data


def zip64(sizes):
    info = zipfile.ZipInfo(LIBRARY)
    info.extra = struct.pack("<HHQQ", 1, 16, *sizes)
    return changed(changed(packed((info, b"x" * 99)), 20, "<I", 0xFFFFFFFF), 24, "<I", 0xFFFFFFFF)


def large_directory():
    data = packed(("a", b"x"))
    struct.pack_into("<I", data, data.index(b"PK\5\6") + 12, 1 << 30)
    return data


HOSTILE = {
    "an empty name": (lambda: packed(("", b"x")), "a member without a name"),
    "a name that begins with NUL": (lambda: renamed(b"abc", b"\0bc"), "a member without a name"),
    "a name of no UTF-8": (lambda: flagged(renamed(b"abc", b"\xff\xfe\xfd"), 0x800), "zip: "),
    "one name twice": (
        lambda: renamed(b"abc", b"abc") and packed(("a", b""), ("b", b"")).replace(b"b", b"a"),
        "one name",
    ),
    "corrupt deflate": (lambda: corrupt(zipfile.ZIP_DEFLATED), "zip: "),
    "corrupt bzip2": (lambda: corrupt(zipfile.ZIP_BZIP2), "neither stored nor deflated"),
    "corrupt LZMA": (lambda: corrupt(zipfile.ZIP_LZMA), "neither stored nor deflated"),
    "method 99": (lambda: changed(packed((LIBRARY, b"x")), 10, "<H", 99), "neither stored nor deflated"),
    "encrypted": (lambda: flagged(packed((LIBRARY, b"x")), 1), ": zip: is encrypted"),
    "strongly encrypted": (lambda: flagged(packed((LIBRARY, b"x")), 0x41), "zip: "),
    "patch data": (lambda: flagged(packed((LIBRARY, b"x")), 0x20), "zip: "),
    "a wrong checksum": (lambda: changed(packed((LIBRARY, forge.cubin(9))), 16, "<I", 1), "CRC"),
    "two of one body": (overlapping, "shares bytes"),
    "one in another": (nested_names, "shares bytes"),
    "bytes of the next": (long_extra, "shares bytes"),
    "beyond the file": (lambda: changed(packed((LIBRARY, b"x")), 42, "<I", 1 << 30), "shares bytes"),
    "no header there": (lambda: changed(packed((LIBRARY, b"x" * 999), method=0), 42, "<I", 9), "shares bytes"),
    "8 EiB": (lambda: zip64((1 << 63, 3)), "the limit is"),
    "8 EiB packed": (lambda: zip64((99, 1 << 63)), "shares bytes"),
    "a ratio": (lambda: changed(packed((LIBRARY, b"x")), 24, "<I", 0xFFFFFFFE), "the limit is 1073741824"),
    "a large directory": (large_directory, "zip: "),
    "no directory": (lambda: packed((LIBRARY, b"x"))[:-30], "zip: "),
    "nothing else": (lambda: b"PK\3\4", "zip: "),
    "a version to come": (lambda: changed(packed((LIBRARY, b"x")), 6, "<H", 99), "zip: "),
}


@pytest.mark.parametrize("name", every(4, HOSTILE))
def test_hostile_zips(name, tmp_path):
    make, words = HOSTILE[name]
    path = tmp_path / "x.whl"
    path.write_bytes(make())
    done = extract("-r", path, measured=True)
    assert done.status == 3, done.err
    assert [words in line for line in done.err.splitlines()] == [True]
    assert [record["kind"] for record in done.records] == ["header", "diag", "end"]
    assert done.memory < 200 * MIB


def test_a_wheel_without_members_is_reported(tmp_path):
    """A comment that looks like the end of a directory hides the real one from everything that uses zipfile."""
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.comment = b"PK\5\6" + bytes(18)
        file.writestr(LIBRARY, forge.cubin(9))
    done = extract("-r", path)
    assert (done.status, done.err) == (0, f"gpt-extract: warning: {path}: no GPU code: the wheel has no members\n")


def test_a_broken_member_costs_itself_alone(tmp_path):
    data = packed(("a.so", forge.cubin(50_000)), ("b.so", forge.cubin(3)), ("c.txt", b"c" * 100))
    data[60:200] = b"\xff" * 140
    (tmp_path / "x.whl").write_bytes(data)
    done = extract("-r", tmp_path / "x.whl")
    assert done.status == 3
    assert [record["path"] for record in done.kind("library")] == [f"{tmp_path}/x.whl/b.so"]
    assert [record["where"] for record in done.kind("diag")] == [f"{tmp_path}/x.whl/a.so"]


def test_strange_names_are_names(tmp_path):
    names = ["/x.so", "./x.so", "../x.so", "a/../x.so", "\\x.so", "a//b.so", "[red].so", "é.so"]
    (tmp_path / "x.whl").write_bytes(packed(*((name, forge.cubin(1)) for name in names)))
    done = extract("-r", tmp_path / "x.whl")
    assert done.status == 0, done.err
    assert [record["path"] for record in done.kind("library")] == [f"{tmp_path}/x.whl/{name}" for name in names]


@pytest.mark.full
def test_members_without_gpu_code_are_not_unpacked(tmp_path, monkeypatch):
    """The text has 800 MB, compressed to 1 MB."""
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a.txt", "w") as member:
        for _ in range(800):
            member.write(b"a" * MIB)
    done = extract("-r", path)
    assert done.status == 0 and "no GPU code in any of 1 files" in done.err
    with open(path, "rb") as file:
        wheel = Zip(Source("x", file.fileno()))
        with wheel.spooled(wheel.members[0]) as (head, member):
            assert (len(head), member) == (1 << 16, None)


@pytest.mark.full
def test_many_members(tmp_path):
    """The directory has the maximum number of members, each as small as possible."""
    count = zips.MAX_DIRECTORY // 51
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 10, 0, 0, 0, 33, 0, 0, 0, 5, 0)
    entry = struct.pack("<4sHHHHHHIIIHHHHHI", b"PK\1\2", 10, 10, 0, 0, 0, 33, 0, 0, 0, 5, 0, 0, 0, 0, 0)
    names = [b"%05x" % n for n in range(count)]
    entries = (entry[:42] + struct.pack("<I", n * 35) + name for n, name in enumerate(names))
    data = b"".join(local + name for name in names) + b"".join(entries)
    data += struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, count * 51, count * 35, 0)
    with pytest.raises(MalformedError, match="a directory of"):
        Zip(Source("x", data[: -22 + 12] + struct.pack("<I", zips.MAX_DIRECTORY + 1) + data[-6:]))
    assert len(Zip(Source("x", data)).members) == count
