"""Wheels: slimmed libraries inside, everything else unchanged, and a valid RECORD."""

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpt.base.errors import GptError
from gpt.patch.versions import with_label
from gpt.patch.wheel import Wheels
from gpt.stream import wire
from tests.stages.tools import extract, kept, located, run

USED = "_Z3onePf"


def record_of(members):
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")  # noqa: E731
    lines = [f'"{name}",sha256={digest(data)},{len(data)}' for name, data in members.items()]
    return "\n".join([*lines, "pkg-1.dist-info/RECORD,,", ""]).encode()


@pytest.fixture
def wheel(sample, tmp_path):
    """Return a wheel with two libraries, one of them stored uncompressed, a text file with a comma in its name, and a
    library for the CPU.
    """
    members = {
        "pkg/__init__.py": b"",
        "pkg/lib/libone.so": sample("zstd").read_bytes(),
        "pkg/lib/libtwo.so": sample("none").read_bytes(),
        "pkg/lib/libplain.so": sample("plain").read_bytes(),
        "pkg/a,b.txt": b"text\n",
        "pkg-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pkg\nVersion: 1\n",
        "pkg-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    }
    members["pkg-1.dist-info/RECORD"] = record_of(members)
    path = tmp_path / "pkg-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (2020, 2, 2, 2, 2, 2))
            info.compress_type = zipfile.ZIP_STORED if "two" in name else zipfile.ZIP_DEFLATED
            info.external_attr = (0o755 if ".so" in name else 0o644) << 16
            file.writestr(info, data)
    return path


def test_a_wheel_is_slimmed(wheel, tmp_path):
    found = extract("-r", wheel)
    (tmp_path / "names").write_text(USED)
    made = run("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", data=found.out).out
    before = wheel.read_bytes()
    done = run("gpt-patch", "-o", tmp_path / "out", data=made)
    assert done.status == 0, done.err
    assert wheel.read_bytes() == before
    out = tmp_path / "out" / wheel.name
    assert [path.name for path in out.parent.iterdir()] == [wheel.name]
    assert done.kind("repacked") == [
        {"kind": "repacked", "wheel": str(wheel), "output": str(out), "size_before": len(before),
         "size_after": out.stat().st_size}
    ]  # fmt: skip
    table = run("gpt-patch", "-o", tmp_path / "again", "--table", "--written", tmp_path / "list", data=made).out
    assert f"wheel written: {tmp_path}/again/{wheel.name}  (" in table.decode()
    assert (tmp_path / "list").read_bytes() == f"{tmp_path}/again/{wheel.name}\0".encode()
    assert [r["output"] for r in done.kind("patched")] == [f"{out}/pkg/lib/lib{name}.so" for name in ("one", "two")]
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out) as new:
        assert new.testzip() is None
        assert new.namelist() == old.namelist()
        for a, b in zip(old.infolist(), new.infolist(), strict=True):
            assert (a.date_time, a.external_attr, a.compress_type) == (b.date_time, b.external_attr, b.compress_type)
            changed = old.read(a) != new.read(b)
            assert changed == (a.filename.endswith(("libone.so", "libtwo.so", "RECORD")))
            assert not changed or "RECORD" in a.filename or b.file_size < a.file_size
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(new.read("pkg-1.dist-info/RECORD").decode()))}
        for name in new.namelist():
            if not name.endswith("RECORD"):
                data = new.read(name)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                assert rows[name] == [f"sha256={digest}", str(len(data))]
    # Libraries in the wheel are the same as gpt-patch's output without a wheel.
    alone = tmp_path / "pkg" / "lib" / "libone.so"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out) as new:
        old.extract("pkg/lib/libone.so", tmp_path)
        assert run("gpt-patch", "-o", tmp_path / "alone", data=located(alone, USED)).status == 0
        assert (tmp_path / "alone" / "libone.so").read_bytes() == new.read("pkg/lib/libone.so")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "site", out]
    done = subprocess.run([str(part) for part in pip], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_invalid_requests_for_wheels_are_refused(wheel, tmp_path):
    (tmp_path / "names").write_text(USED)

    def patched(*options):
        made = run("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", data=extract("-r", wheel).out).out
        return run("gpt-patch", *options, data=made)

    done = patched("--in-place")
    assert (done.status, "lies in a wheel: use -o DIR" in done.err) == (1, True)
    done = patched("-o", wheel.parent)
    assert (done.status, "would overwrite the library itself" in done.err) == (1, True)
    done = patched("-n", "-o", tmp_path / "dry")
    assert (done.status, [r["mode"] for r in done.kind("patched")]) == (0, ["compact"] * 2)
    assert not (tmp_path / "dry").exists()
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("pkg-1.dist-info/RECORD.jws", b"{}")
    done = patched("-o", tmp_path / "out")
    assert (done.status, "is signed ('pkg-1.dist-info/RECORD.jws')" in done.err) == (1, True)
    assert list((tmp_path / "out").iterdir()) == []


def test_wheel_changed(wheel, tmp_path):
    (tmp_path / "names").write_text(USED)
    made = run("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", data=extract("-r", wheel).out).out
    wheel.write_bytes(b"PK\3\4 no zip")
    done = run("gpt-patch", "-o", tmp_path / "out", data=made)
    assert done.status == 3
    assert "zip: " in done.err
    assert list((tmp_path / "out").iterdir()) == []


def located_in(wheel, folder):
    (folder / "names").write_text(USED)
    found = extract("-r", wheel)
    return run("gpt-locate", "--used", folder / "names", "--arch", "sm_90", data=found.out).out


def raw_of(path):
    """Return each member's compressed bytes, and its directory entry without the offset."""
    data = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        infos = sorted(file.infolist(), key=lambda info: info.header_offset)
        ends = [*(info.header_offset for info in infos[1:]), file.start_dir]
        keys = ("flag_bits", "create_version", "create_system", "external_attr", "internal_attr", "extra", "comment")
        return [info.filename for info in file.infolist()], {
            info.filename: (data[info.header_offset : end], [getattr(info, key) for key in (*keys, "CRC", "date_time")])
            for info, end in zip(infos, ends, strict=True)
        }


class Unseekable(io.RawIOBase):
    """A file that can't seek, like a pipe. zipfile then writes sizes after the members."""

    def __init__(self, file):
        self._file = file

    def writable(self):
        return True

    def write(self, data):
        return self._file.write(data)


def test_other_members_stay_unchanged(sample, tmp_path):
    """Folders, modes, dates, comments, extra fields, names, methods, data descriptors, and other RECORD files don't
    change.
    """
    path, nested = tmp_path / "pkg-1-py3-none-any.whl", "pkg/_vendor/other-1.dist-info/RECORD"
    record = (
        b'pkg/a.so,sha256=x,1\r\n"pkg/q,""1.txt",sha256=y,2\r\n,,\r\n./pkg/b.so,md5=z,3\r\n\r\npkg-1.dist-info/RECORD,,'
    )
    members = [
        ("pkg/", b"", 0, 0o40711), ("pkg-1.dist-info/RECORD", record, 8, 0o664), ("pkg/a.so", "zstd", 8, 0o100755),
        (nested, b"a.so,sha256=x,1\n" * 9, 12, 0), ("./pkg/b.so", "none", 0, 0), ("pkg/empty/", b"", 0, 0),
        ("pkg/\xe9.txt", b"text" * 99, 14, 0o120777), ("/pkg/c.so", "balance", 8, 0o104755),
    ]  # fmt: skip
    with open(path, "wb") as file, zipfile.ZipFile(Unseekable(file), "w") as made:
        made.comment = b"of the file"
        for name, data, method, mode in members:
            info = zipfile.ZipInfo(name, (1980 + len(name), 2, 2, 2, 2, 2))
            info.compress_type, info.external_attr, info.create_system = method, mode << 16, 3
            info.comment, info.extra = b"of " + name.encode(), b"\x99\x99\4\0" + name.encode()[:4].ljust(4)
            info.internal_attr = 1
            made.writestr(info, data if isinstance(data, bytes) else sample(data).read_bytes())
    path.chmod(0o600)
    done = run("gpt-patch", "-o", tmp_path / "out", data=located_in(path, tmp_path))
    assert done.status == 0, done.err
    out = tmp_path / "out" / path.name
    assert out.stat().st_mode & 0o777 == 0o600
    (names, old), (new_names, new) = raw_of(path), raw_of(out)
    assert (names, list(old)) == (new_names, list(new))
    cut = {"pkg/a.so", "./pkg/b.so", "/pkg/c.so", "pkg-1.dist-info/RECORD"}
    assert {name for name in old if old[name] != new[name]} == cut
    for name in cut:
        assert old[name][1][1:-2] == new[name][1][1:-2]  # all except flags and checksum
    with zipfile.ZipFile(out) as file:
        assert (file.testzip(), file.comment) == (None, b"of the file")
        lines = file.read("pkg-1.dist-info/RECORD").split(b"\n")
        kept = record.split(b"\n")
        assert [n for n in range(6) if lines[n] != kept[n]] == [0, 3]
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read("./pkg/b.so")).digest()).rstrip(b"=").decode()
        assert lines[3].decode() == f"./pkg/b.so,sha256={digest},{file.getinfo('./pkg/b.so').file_size}\r"
        assert file.read("/pkg/c.so")[:4] == b"\x7fELF"


def test_wheel_with_nothing_to_cut(wheel, tmp_path):
    done = run("gpt-patch", "-o", tmp_path / "out", data=kept(extract("-r", wheel).out))
    assert done.status == 0, done.err
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.full
def test_a_large_record(wheel, tmp_path):
    """RECORD used to be read completely, and twice."""
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("other-1.dist-info/RECORD", b"\n" * (64 << 20))
    done = run("gpt-patch", "-o", tmp_path / "out", data=located_in(wheel, tmp_path), measured=True)
    assert done.status == 3
    assert "RECORD: zip: has 67108864 bytes; the limit is 16777216" in done.err
    assert done.memory < 300 << 20
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.full
def test_a_record_of_short_lines(wheel, tmp_path):
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("other-1.dist-info/RECORD", b"a\n" * (1 << 20))
    done = run("gpt-patch", "-o", tmp_path / "out", data=located_in(wheel, tmp_path), measured=True)
    assert done.status == 0, done.err
    assert done.memory < 300 << 20
    with zipfile.ZipFile(tmp_path / "out" / wheel.name) as file:
        assert file.read("other-1.dist-info/RECORD") == b"a\n" * (1 << 20)


def test_library_missing_from_record(wheel, tmp_path):
    """RECORD may spell the path in another way. The digest that an installer checks would then be the old library's."""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tmp_path / "odd-1-py3-none-any.whl", "w") as odd:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("RECORD"):
                lines = data.splitlines(keepends=True)
                data = b"".join(line.replace(b"pkg/lib/libone", rb"pkg\lib\libone") for line in lines)
            odd.writestr(info, data)
    done = run("gpt-patch", "-o", tmp_path / "out", data=located_in(tmp_path / "odd-1-py3-none-any.whl", tmp_path))
    assert done.status == 0
    assert "odd-1-py3-none-any.whl: RECORD has no line for 'pkg/lib/libone.so'" in done.err
    assert "libtwo" not in done.err


def test_member_is_listed_once(wheel, tmp_path):
    made = list(wire.read_records(io.BytesIO(located_in(wheel, tmp_path)), "stream"))
    twice = [made[0], *made[1:-1], *made[1:-1], made[-1]]
    done = run("gpt-patch", "-o", tmp_path / "out", data=b"".join(map(wire.pack, twice)))
    assert done.status == 1
    assert "libone.so: is in this stream twice" in done.err


def test_folder_replacing_our_own_is_untouched(wheel, tmp_path):
    """In a folder that a group may write to, another member may give its name to a folder with links."""
    (victim := tmp_path / "victim").write_text("precious")
    wheels, near = Wheels(), tmp_path / "near"
    wheels.add(wheel, "pkg/lib/libone.so", near)
    (ours,) = near.iterdir()
    ours.rename(tmp_path / "moved").touch()
    ours.mkdir()
    (ours / "2.before").symlink_to(victim)
    assert wheels.add(wheel, "pkg/lib/libtwo.so", near)[0].read_bytes()[:4] == b"\x7fELF"
    wheels.close()
    assert victim.read_text() == "precious" and (ours / "2.before").is_symlink()
    assert not list((tmp_path / "moved").iterdir())


def test_wheel_changes_meanwhile(wheel, tmp_path):
    wheels = Wheels()
    try:
        for name in ("pkg/lib/libone.so", "pkg/lib/libtwo.so"):
            _, target = wheels.add(wheel, name, tmp_path / "near")
            target.write_bytes(b"new")
        ((found, replaced),) = wheels.take_complete().items()
        wheel.touch()
        with pytest.raises(GptError, match="another process changed it meanwhile"):
            wheels.write(found, replaced, tmp_path / "out.whl")
    finally:
        wheels.close()
    assert not (tmp_path / "out.whl").exists()


def test_the_next_run_removes_files_of_a_killed_one(wheel, tmp_path):
    """SIGKILL leaves unpacked members. The next wheel that's written there removes these files, and no others."""
    (tmp_path / "out").mkdir()
    killed = "import os; from gpt.patch.wheel import Wheels; from pathlib import Path\n"
    killed += f"Wheels().add(Path({str(wheel)!r}), 'pkg/lib/libone.so', Path('out')); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, check=False).returncode == -9
    (left,) = (tmp_path / "out").iterdir()
    working = Wheels()
    working.add(wheel, "pkg/lib/libone.so", tmp_path / "out")
    assert not left.exists()
    (held,) = (tmp_path / "out").iterdir()
    (tmp_path / "out" / ".gpt-wheel.theirs").mkdir(mode=0o755)
    precious = tmp_path / "out" / ".gpt-wheel.renamed"  # renamed by somebody who may write to the folder
    precious.mkdir(mode=0o700)
    (precious / "thesis").touch()
    (precious / "below").mkdir()
    done = run("gpt-patch", "-o", tmp_path / "out", data=located_in(wheel, tmp_path))
    assert done.status == 0, done.err
    stay = {held.name, ".gpt-wheel.theirs", precious.name, wheel.name}
    assert {path.name for path in (tmp_path / "out").iterdir()} == stay
    assert {path.name for path in precious.iterdir()} == {"thesis", "below"}
    working.close()
    assert not held.exists()


@pytest.mark.parametrize("blocks", [8, 64])
def test_a_full_disk(wheel, tmp_path, blocks):
    """The disk is too full for the unpacked library, or for the wheel."""
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("large", bytes(100_000))
    (tmp_path / "stream").write_bytes(located_in(wheel, tmp_path))
    done = run("bash", "-c", f"ulimit -f {blocks}; gpt-patch -o {tmp_path}/out {tmp_path}/stream >/dev/null")
    assert done.status == 1
    assert "File too large" in done.err
    assert "internal" not in done.err
    assert list((tmp_path / "out").iterdir()) == []


def test_errors_name_the_folder_and_not_what_is_made_in_it(wheel, tmp_path):
    done = run("bash", "-c", f"ulimit -f 8; TMPDIR={tmp_path} gpt-extract -r {wheel} >/dev/null")
    assert (done.status, done.err) == (4, f"gpt-extract: error: {tmp_path}: File too large\n")
    done = run("gpt-patch", "-o", "/proc", data=located_in(wheel, tmp_path))  # where root can't make a folder either
    assert (done.status, set(done.err.splitlines())) == (1, {"gpt-patch: error: /proc: No such file or directory"})


def located_for(wheel, arch):
    done = run("gpt-locate", "--arch", arch, data=extract("-r", wheel).out)
    assert done.status == 0, done.err
    return done.out


def check_record(wheel):
    """Check that every member has a line in RECORD and every line is right; return the members."""
    with zipfile.ZipFile(wheel) as file:
        assert file.testzip() is None
        names = file.namelist()
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(file.read(record).decode()))}
        assert sorted(rows) == sorted(names)
        for name, (digest, size) in rows.items():
            if name != record:
                data = file.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                assert (digest, size) == (f"sha256={found}", str(len(data)))
        return {name: file.read(name) for name in names}


METADATA = b"Metadata-Version: 2.1\nName: pkg\nVersion: 1.0+cu128 \n\nVersion: 3\n"


@pytest.fixture
def versioned(sample, tmp_path):
    """Return a wheel with the version in every place that may have it, and in some places that merely look like it."""
    members = {
        "pkg/lib/libone.so": sample("zstd").read_bytes(),
        "pkg/pkg-1.0.dist-info/RECORD": b"of another package\n",
        "pkg-1.0+cu128.data/scripts/tool": b"#!python\n" * 100,
        "pkg-1.0+cu128.dist-info/METADATA": METADATA.replace(b"\n", b"\r\n"),
        "pkg-1.0+cu128.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nTag: py3-none-any\n",
    }
    members["pkg-1.0+cu128.dist-info/RECORD"] = record_of(members).replace(
        b"pkg-1.dist-info", b"pkg-1.0+cu128.dist-info"
    )
    path = tmp_path / "pkg-1.0+cu128-3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def test_label_is_wherever_the_version_is(versioned, tmp_path):
    before = check_record(versioned)
    done = run("gpt-patch", "--label", "SM_90-x", "-o", tmp_path / "out", data=located_for(versioned, "sm_90"))
    assert done.status == 0, done.err
    out = tmp_path / "out" / "pkg-1.0+cu128.sm.90.x-3-py3-none-any.whl"
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert [r["output"] for r in done.kind("repacked")] == [str(out)]
    assert [r["output"] for r in done.kind("patched")] == [f"{out}/pkg/lib/libone.so"]
    after = check_record(out)
    new = {name.replace("cu128.d", "cu128.sm.90.x.d"): data for name, data in before.items()}
    assert list(after) == list(new)
    changed = {name for name in new if new[name] != after[name]}
    metadata = "pkg-1.0+cu128.sm.90.x.dist-info/METADATA"
    assert changed == {"pkg/lib/libone.so", metadata, metadata.replace("METADATA", "RECORD")}
    assert after[metadata] == before["pkg-1.0+cu128.dist-info/METADATA"].replace(b"cu128 \r", b"cu128.sm.90.x\r")


def repacked_as(wheel, folder, name, change):
    """Patch a wheel under another name, after `change` has changed its members and their names."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(folder / name, "w") as new:
        for member, data in (change(info.filename, old.read(info)) for info in old.infolist()):
            if member:
                new.writestr(member, data)
    done = run("gpt-patch", "--label", "sm90", "-o", folder / "out", data=located_for(folder / name, "sm_90"))
    return done, [path.name for path in (folder / "out").iterdir()]


@pytest.mark.full
def test_odd_wheels_with_a_label(wheel, tmp_path):
    """wget saves wheels under such names, and headers may be in lower case. Names and wheels that pip rejects are
    rejected here, too.
    """
    same = lambda name, data: (name, data)  # noqa: E731
    local = lambda name, data: (name, data.replace(b"Version: 1\n", b"version: 1+cu130\n"))  # noqa: E731
    done, names = repacked_as(wheel, tmp_path / "a", "pkg-1%2Bcu130-py3-none-any.whl", local)
    assert (done.status, names) == (0, ["pkg-1+cu130.sm90-py3-none-any.whl"])
    with zipfile.ZipFile(tmp_path / "a" / "out" / names[0]) as file:
        assert b"\nversion: 1+cu130.sm90\n" in file.read("pkg-1+sm90.dist-info/METADATA")
    for version in ("1!2.0.post1", "2.0rc1.dev3+a_b.5"):
        _, names = repacked_as(wheel, tmp_path / version, f"pkg-{version}-py3-none-any.whl", same)
        assert names == [f"pkg-{version}{'.' if '+' in version else '+'}sm90-py3-none-any.whl"]
    refused = {
        "'1_cu130' isn't a version: rename the file": ("pkg-1_cu130-py3-none-any.whl", same),
        "a wheel without RECORD": (wheel.name, lambda name, data: (not name.endswith("RECORD") and name, data)),
        "two members with one name": (wheel.name, lambda name, data: (name.replace("b.txt", "/../__init__.py"), data)),
    }
    for fact, (name, change) in refused.items():
        done, names = repacked_as(wheel, tmp_path / fact.replace(" ", ""), name, change)
        assert (done.status, fact in done.err, names) == (3, True, []), done.err


def split(wheel, out, *options):
    """Cut a wheel for each --arch; return gpt-patch's results and gpt-locate's messages."""
    located = run("gpt-locate", *options, data=extract("-r", wheel).out)
    return run("gpt-patch", "-o", out, data=located.out), located.err


def archs_in(wheel):
    return {e["arch"] for e in extract("-r", wheel).kind("element")}


def test_a_wheel_is_written_for_each_arch(wheel, tmp_path):
    """The wheel is named after the arch, even if there's only one; a second cut doesn't repeat the name."""
    archs = ("7.5", "90a,sm_75", "sm_75,90,75f", "90", "sm_90", "90a", "sm_90f,9.0")
    done, _ = split(wheel, tmp_path / "out", *(f"--arch={arch}" for arch in archs))
    assert done.status == 0, done.err
    made = {path.name: archs_in(path) for path in (tmp_path / "out").iterdir()}
    assert made == {
        "pkg-1+sm75-py3-none-any.whl": {"sm_75"},
        "pkg-1+sm75.sm90-py3-none-any.whl": {"sm_75", "sm_90"},
        "pkg-1+sm90-py3-none-any.whl": {"sm_90"},
    }
    assert sorted(Path(r["output"]).name for r in done.kind("repacked")) == sorted(made)
    assert len(done.kind("patched")) == 3 * len(extract("-r", wheel).kind("library"))
    for name in made:
        assert f"pkg-1+{name.split('-')[1][2:]}.dist-info/METADATA" in check_record(tmp_path / "out" / name)
    both = tmp_path / "out" / "pkg-1+sm75.sm90-py3-none-any.whl"
    done, _ = split(both, tmp_path / "again", "--arch", "sm_90")
    (once,) = (tmp_path / "again").iterdir()
    assert (done.status, once.name, archs_in(once)) == (0, "pkg-1+sm90-py3-none-any.whl", {"sm_90"})
    done, _ = split(once, tmp_path / "third", "--arch", "sm_90")
    assert [path.name for path in (tmp_path / "third").iterdir()] == [once.name]
    check_record(tmp_path / "third" / once.name)


def test_arch_without_code_writes_no_wheel(wheel, tmp_path):
    _, said = split(wheel, tmp_path / "out", "--arch", "sm_60", "--arch", "sm_90")
    assert "no code for sm_60: there is cubin for sm_75, sm_80, sm_90" in said
    assert "nothing is cut for that without --allow-missing" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pkg-1+sm90-py3-none-any.whl"]
    assert archs_in(next((tmp_path / "out").iterdir())) == {"sm_90"}


@pytest.mark.full
def test_debloat_says_nothing_of_a_wheel_that_went_well(wheel, tmp_path):
    arguments = ["gpt-debloat", "--arch", "sm_80", "-o", tmp_path / "out", "-r", wheel]
    done = subprocess.run([str(word) for word in arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "out").glob("*+sm80-*.whl"))) == 1


def test_only_wheels_are_split(wheel, sample, tmp_path):
    options = ("--arch", "sm_75", "--arch", "sm_90")
    located = run("gpt-locate", *options, data=extract(sample("zstd")).out)
    for out in (("-o", tmp_path / "out"), ("--in-place",)):
        done = run("gpt-patch", *out, data=located.out)
        assert (done.status, "only wheels are written once for each --arch" in done.err) == (1, True)
    assert list((tmp_path / "out").iterdir()) == []
    located = run("gpt-locate", *options, data=extract("-r", wheel).out)
    done = run("gpt-patch", "-o", tmp_path / "out", "--label", "x", data=located.out)
    assert (done.status, "--label is for one wheel" in done.err) == (1, True)
    records = located.out.replace(b"\xa4arch\xa5sm_75", b"\xa4arch\xa5../75")
    done = run("gpt-patch", "-o", tmp_path / "out", data=records)
    assert (done.status, "architecture '../75'" in done.err) == (3, True)
    assert "sm75" not in str(list((tmp_path / "out").iterdir()))
    table = run("gpt-locate", *options, "--table", data=extract("-r", wheel).out).out.decode()
    assert "libone.so sm_75" in table and "libone.so sm_90" in table


@pytest.mark.parametrize(
    "version, label, new",
    [
        ("1", "sm90", "1+sm90"),
        ("1+sm90", "sm90", "1+sm90"),
        ("1+SM90", "sm90", "1+sm90"),
        ("1+cu128.sm80.sm90a", "sm90a", "1+cu128.sm90a"),
        ("1+sm80.cu128", "sm80", "1+sm80.cu128.sm80"),
        ("1+cu128-X", "x", "1+cu128-X"),
        ("1+xx", "x", "1+xx.x"),
        ("pkg-1!2+a", "b.c", "pkg-1!2+a.b.c"),
    ],
)
def test_label_appears_once(version, label, new):
    assert with_label(version, label) == new


def damage(wheel, name):
    """Change a byte in a member's compressed data, but not its checksum."""
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as file:
        info = file.getinfo(name)
        start, size = info.header_offset + 30 + len(name) + len(info.extra), info.compress_size
    data[start + size // 2] ^= 0x20
    wheel.write_bytes(data)


@pytest.mark.parametrize("name", ["pkg/lib/libplain.so", "pkg/a,b.txt", "pkg/stored.txt", "pkg-1.dist-info/WHEEL"])
@pytest.mark.parametrize("options", [("--label", "x"), ()])
def test_a_damaged_member(wheel, tmp_path, name, options):
    """pip refuses the wheel. If the member were copied into a new wheel, gpt-patch would seem to have damaged it."""
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("pkg/stored.txt", b"text" * 9)
    located = located_in(wheel, tmp_path)
    damage(wheel, name)
    os.utime(wheel)  # gpt-extract only reads the first bytes of such a member
    done = run("gpt-patch", "-o", tmp_path / "out", *options, data=located)
    assert (done.status, f"{wheel.name}/{name}: zip: " in done.err) == (3, True), done.err
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("folder", ["Pkg-1.dist-info", "other-2.dist-info", "./x.dist-info"])
def test_two_folders_of_metadata(wheel, tmp_path, folder):
    """pip rejects such a wheel, and it's undefined which of the two gets the new version."""
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("pkg/_vendor/other-1.dist-info/METADATA", b"Version: 1\n")
    located = run("gpt-locate", "--arch", "sm_90", data=extract("-r", wheel).out)
    assert run("gpt-patch", "-o", tmp_path / "one", data=located.out).status == 0
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr(f"{folder}/METADATA", b"Version: 1\n")
    located = run("gpt-locate", "--arch", "sm_90", data=extract("-r", wheel).out)
    done = run("gpt-patch", "-o", tmp_path / "out", data=located.out)
    assert (done.status, "dist-info, which pip refuses" in done.err) == (3, True)
    assert list((tmp_path / "out").iterdir()) == []


NOT_CUT = (
    "gpt-patch: error: gpt-locate failed to decide about these libraries (its errors say why), so they aren't written\n"
)


@pytest.mark.parametrize("options", [(), ("--recompress",), ("--label", "sm60", "--recompress"), ("--zstd-sizes",)])
def test_missing_arch_writes_nothing(wheel, tmp_path, options):
    """If nothing is cut, the wheel isn't copied under a name for sm_60, and a library isn't replaced just to make it
    smaller.
    """
    located = run("gpt-locate", "--arch", "sm_60", data=extract("-r", wheel).out)
    assert located.status == 1
    done = run("gpt-patch", *options, "-o", tmp_path / "out", data=located.out)
    assert (done.status, done.err.startswith(NOT_CUT)) == (1, True)
    assert list((tmp_path / "out").iterdir()) == []
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    library = tmp_path / "site" / "pkg" / "lib" / "libone.so"
    before = library.read_bytes()
    located = run("gpt-locate", "--arch", "sm_60", data=extract("-r", library.parent).out)
    recompress = options[-1:]
    for out in (("-o", tmp_path / "out"), ("--in-place",)):
        done = run("gpt-patch", *recompress, *out, data=located.out)
        assert (done.status, done.err) == (1, NOT_CUT)
        assert done.kind("patched") == []
    assert (library.read_bytes(), list((tmp_path / "out").iterdir())) == (before, [])
    assert not list(library.parent.glob("*.gpt-orig"))


def test_wrong_list_or_truncated_stream_writes_nothing(sample, tmp_path):
    library = sample("zstd")
    (tmp_path / "names").write_text("nosuch")
    listed = extract(library).out
    for data in (listed, listed[:-20]):
        located = run("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", data=data)
        assert located.status in (1, 3)
        done = run("gpt-patch", "--recompress", "-o", tmp_path / "out", data=located.out)
        assert done.status >= 1
        assert list((tmp_path / "out").iterdir()) == []
    located = run("gpt-locate", "--spans-json", tmp_path / "nowhere", data=listed)
    done = run("gpt-patch", "--recompress", "-o", tmp_path / "out", data=located.out)
    assert (located.status, done.status, list((tmp_path / "out").iterdir())) == (4, 1, [])


def pip(*args):
    command = [sys.executable, "-m", "pip", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_pip_takes_labelled_wheels(wheel, tmp_path):
    """If the wheels are installed one after the other, the second replaces the first; a requirement of the public
    version accepts either.
    """
    site = tmp_path / "site"
    for arch in ("sm_75", "sm_90"):
        label = arch.replace("_", "")
        done = run("gpt-patch", "--recompress", "--label", label, "-o", tmp_path / "out", data=located_for(wheel, arch))
        assert done.status == 0, done.err
        made = tmp_path / "out" / f"pkg-1+{label}-py3-none-any.whl"
        check_record(made)
        done = pip("install", "-q", "--no-deps", "--no-index", "--upgrade", "--target", site, made)
        assert done.returncode == 0, done.stderr
        assert (site / f"pkg-1+{label}.dist-info").is_dir()
        listed = pip("list", "--path", site, "--format", "json").stdout
        assert f'"version": "1+{label}"' in listed
        left = extract(site / "pkg" / "lib" / "libone.so").kind("element")
        assert {e["arch"] for e in left} == {arch}
    done = pip(
        "download", "-q", "--no-deps", "--no-index", "--find-links", tmp_path / "out", "-d", tmp_path / "d", "pkg==1"
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "d").iterdir())) == 1


def test_bad_labels_and_names(wheel, sample, tmp_path):
    for label in ("+sm90", "sm 90", "sm90-", ".", "é", "a/b"):
        done = run("gpt-patch", "--label", label, "-o", tmp_path / "out", data=b"")
        assert (done.status, "is not the label of a local version" in done.err) == (2, True)
    done = run("gpt-patch", "--label", "sm90", "--in-place", data=b"")
    assert (done.status, "--label requires -o DIR" in done.err) == (2, True)
    odd = wheel.rename(wheel.with_name("pkg.whl"))
    done = run("gpt-patch", "--label", "sm90", "-o", tmp_path / "out", data=located_for(odd, "sm_90"))
    assert (done.status, "not the name of a wheel" in done.err) == (3, True)
    assert list((tmp_path / "out").iterdir()) == []
    done = run("gpt-patch", "--label", "sm90", "-o", tmp_path / "out", data=extract(sample("zstd")).out)
    assert "--label: no wheel was written" in done.err
