"""Tile IR: its kernels, its handling in a library made by nvcc -enable-tile, and hostile modules."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.formats import fatbin
from gpt.formats.tileir import MAGIC, parse_tileir
from tests.formats import oracle
from tests.packages import CACHE
from tests.patch import checks
from tests.stages.tools import extract, patch, run

NEW = b"\x0b\0\x06\0"
NVCC = ("nvcc", "cuda-crt", "cuda-runtime", "cuda-tileiras", "nvvm")


def number(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def module(functions, attributes=b"", texts=None, rest=b""):
    """Return a module of functions `(name, flags, body)`; its text consists of the names."""
    texts = texts if texts is not None else [name for name, _, _ in functions]
    body = number(len(functions))
    for index, (_, flags, code) in enumerate(functions):
        body += number(index) + number(300) + bytes([flags]) + number(1) + attributes + number(len(code)) + code
    body += b"\xcb" * (-len(body) % 8) + rest
    data = MAGIC + bytes([13, 5, 0, 0])
    data += bytes([0x82]) + number(len(body)) + b"\x08"
    data += b"\xcb" * (-len(data) % 8) + body
    strings = number(len(texts))
    strings += b"\xcb" * (-len(strings) % 4)
    at = 0
    for text in texts:
        strings += at.to_bytes(4, "little")
        at += len(text)
    strings += b"".join(texts)
    data += bytes([0x81]) + number(len(strings)) + b"\x04"
    return data + b"\xcb" * (-len(data) % 4) + strings + b"\0"


@pytest.mark.parametrize("attributes", [b"", NEW])
def test_kernels_are_named(attributes):
    functions = [(b"first", 2, b"x" * 500), (b"helper", 0, b"y"), (b"second", 3, b"")]
    found = parse_tileir(module(functions, attributes))
    assert [k["name"] for k in found.kernels] == ["first", "second"]
    assert [f["name"] for f in found.functions] == ["helper"]


def test_unknown_tile_ir_has_no_names():
    functions = [(b"first", 2, b"x" * 5)]
    assert parse_tileir(module(functions, b"\x0b\x01\x07")) is None
    assert parse_tileir(module([(b"first", 6, b"x" * 5)])) is None
    assert parse_tileir(module(functions, rest=b"12345678")) is None


def test_hostile_modules():
    good = module([(b"first", 2, b"x" * 50)] * 3)
    for data in (
        b"", MAGIC, good[:30], good[:-1], b"\x7fELF" + good[4:], module([(b"f", 2, b"")], texts=[]),
        good.replace(b"\x81", b"\x83"), MAGIC + bytes(4) + b"\x02" + b"\xff" * 20, MAGIC + bytes(4) + b"\x05\0" * 100,
    ):  # fmt: skip
        with pytest.raises(MalformedError):
            parse_tileir(data)


@given(st.data())
def test_mutants_are_read_or_refused(data):
    good = bytearray(module([(b"first", 2, b"x" * 50), (b"second", 2, b"y")], NEW))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(8, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_tileir(bytes(good))
    except MalformedError:
        return
    assert found is None or sum(len(k["name"]) for k in found.kernels) < 1000


def write(path, parts):
    body = b""
    for kind, arch, data in parts:
        padded = data + bytes(-len(data) % 8)
        body += fatbin.ELEMENT.pack(kind, 0x101, 64, len(padded), 0, 0, 5, 13, arch, 0, 0, 0x11, 0, 0) + padded
    path.write_bytes(fatbin.REGION.pack(fatbin.MAGIC, 1, 16, len(body)) + body)
    return path


def test_elements_are_listed_and_selected(tmp_path):
    """Modules that can't be parsed are listed, too, without names."""
    good = module([(b"tiled", 2, b"x" * 50)], NEW)
    path = write(tmp_path / "x.fatbin", [(128, 100, good), (128, 100, b"\x7fTileIR\0newer" * 9)])
    found = [(e["type"], e["arch"], [k["name"] for k in e["kernels"]]) for e in extract(path).kind("element")]
    assert found == [("tileir", "sm_100", ["tiled"]), ("tileir", "sm_100", [])]
    assert len(extract("--type", "tileir", path).kind("element")) == 2
    assert [e["kernels"][0]["name"] for e in extract("--kernel", "til*", path).kind("element")] == ["tiled"]


def fetch_nvcc():
    """Return nvcc with Tile IR from PyPI (540 MB unpacked) or the cache. Skips the test if it isn't available."""
    home = CACHE / "nvcc-13.5-tile"
    if not (home / "ready").exists():
        names = [f"nvidia-{'cuda-' if name == 'nvcc' else ''}{name}==13.5.*" for name in NVCC]
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-qq",
            "--retries=1",
            "--timeout=15",
            "--no-deps",
            "--target",
            home,
        ]
        done = subprocess.run([*map(str, pip), *names], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no nvcc with Tile IR: {done.stderr.strip().rpartition(chr(10))[2][:200]}")
        (home / "ready").touch()
    return home / "nvidia" / "cu13" / "bin" / "nvcc"


@pytest.mark.full
def test_tile_ir_of_nvcc_is_parsed(tmp_path):
    source = Path(__file__).with_name("tile.cu")
    library = tmp_path / "libtile.so"
    command = [
        fetch_nvcc(), "--enable-tile", "-std=c++20", "-gencode", "arch=compute_90,code=sm_90", "-gencode",
        "arch=compute_100,code=[sm_100,compute_100]", "--shared", "-Xcompiler", "-fPIC", "--cudart", "none",
        "-o", library, source,
    ]  # fmt: skip
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = extract(library)
    assert found.err == ""  # each wrapper leads to a fatbin, in .nvFatBinSegmentAlt, too
    elements = [(e["type"], e["arch"], sorted(k["name"] for k in e["kernels"])) for e in found.kind("element")]
    simt, tiles = ["simt"], ["doubled", "tiled"]
    assert elements == [
        ("cubin", "sm_90", simt), ("cubin", "sm_100", simt), ("ptx", "sm_100", simt),
        ("cubin", "sm_90", tiles), ("cubin", "sm_100", tiles), ("tileir", "sm_100", tiles),
    ]  # fmt: skip
    kept = {"sm_90": [0, 3], "sm_100": [1, 4], "sm_120": [2, 5]}
    for arch, indexes in kept.items():
        stream = run("gpt-locate", "--arch", arch, data=found.out).out
        record = patch(stream, "--recompress", "-o", tmp_path / arch)
        assert record["mode"] == "compact"
        left = extract(record["output"])
        assert left.err == ""
        assert [(e["type"], e["arch"]) for e in left.kind("element")] == [elements[i][:2] for i in indexes]
        assert oracle.warnings(Path(record["output"])) <= oracle.warnings(library)
    assert checks.FATBINS[0] == ".nv_fatbin"
