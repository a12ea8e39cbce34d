"""Wheels: slimmed libraries inside, everything else as it was, and a RECORD that holds."""

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile

import pytest

from tests.stages.tools import extract, located, run

USED = "_Z3onePf"


def record_of(members):
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")  # noqa: E731
    lines = [f'"{name}",sha256={digest(data)},{len(data)}' for name, data in members.items()]
    return "\n".join([*lines, "pkg-1.dist-info/RECORD,,", ""]).encode()


@pytest.fixture
def wheel(sample, tmp_path):
    """Two libraries, one of them stored, a text with a comma in its name, and one library without GPU code."""
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
    # What is in it is what gpt-patch makes of the libraries outside.
    alone = tmp_path / "pkg" / "lib" / "libone.so"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out) as new:
        old.extract("pkg/lib/libone.so", tmp_path)
        assert run("gpt-patch", "-o", tmp_path / "alone", data=located(alone, USED)).status == 0
        assert (tmp_path / "alone" / "libone.so").read_bytes() == new.read("pkg/lib/libone.so")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "site", out]
    done = subprocess.run([str(part) for part in pip], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_refused(wheel, tmp_path):
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


def test_a_wheel_that_changed(wheel, tmp_path):
    (tmp_path / "names").write_text(USED)
    made = run("gpt-locate", "--used", tmp_path / "names", "--arch", "sm_90", data=extract("-r", wheel).out).out
    wheel.write_bytes(b"PK\3\4 no zip")
    done = run("gpt-patch", "-o", tmp_path / "out", data=made)
    assert done.status == 3
    assert "zip: " in done.err
    assert list((tmp_path / "out").iterdir()) == []
