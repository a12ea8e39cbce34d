"""LLVM's offload binaries, generated according to llvm/Object/OffloadBinary.h: whole files, and sections of objects."""

import struct
import subprocess

import pytest

from gpt.formats import offload
from tests.formats.samples import ONE, image
from tests.stages import tools
from tests.stages.tools import extract

OBJECT, BITCODE, CUBIN, FATBIN, PTX = range(1, 6)
OPENMP, CUDA, HIP = 1, 2, 4
NVPTX, AMD = "nvptx64-nvidia-cuda", "amdgcn-amd-amdhsa"


def make(version, *images):
    """Return an offload binary with images, each given as (kind, producer, triple, architecture, bytes). Version 1 has
    one image.
    """
    header, entry, string = struct.Struct("<4sIQQQ"), struct.Struct("<HHIQQQQ"), (16, 24)[version - 1]
    assert version == 2 or len(images) == 1
    at = header.size + len(images) * entry.size
    entries = strings = texts = data = b""
    names_at = at + len(images) * 2 * string
    for kind, producer, triple, arch, content in images:
        place = at + len(strings)
        for key, value in (("triple", triple), ("arch", arch)):
            fields = [names_at + len(texts), names_at + len(texts) + len(key) + 1]
            strings += struct.pack("<QQ", *fields) + (struct.pack("<Q", len(value)) if version == 2 else b"")
            texts += f"{key}\0{value}\0".encode()
        entries += struct.pack("<HHIQQ", kind, producer, 0, place, 2)
        entries += struct.pack("<QQ", len(data), len(content))  # offsets are adjusted below
        data += content + bytes(-len(content) % 8)
    start = names_at + len(texts) + -(names_at + len(texts)) % 8
    moved = b"".join(
        entries[n : n + 24] + struct.pack("<QQ", start + int.from_bytes(entries[n + 24 : n + 32], "little"), *size)
        for n in range(0, len(entries), entry.size)
        for size in [struct.unpack("<Q", entries[n + 32 : n + 40])]
    )
    size = start + len(data)
    count = len(images) if version == 2 else entry.size
    body = header.pack(offload.MAGIC, version, size, header.size, count) + moved + strings + texts
    return body.ljust(start, b"\0") + data


@pytest.fixture
def contents():
    return {"cubin": image(ONE, "sm_90"), "ptx": image(ONE, "compute_90").rstrip(b"\0")}


def listed(run):
    assert run.status == 0, run.err
    return [(record["type"], record["arch"], record["data"], record["section"]) for record in run.kind("element")]


@pytest.mark.parametrize("version", [1, 2])
def test_cubins_and_ptx_are_listed(contents, tmp_path, version):
    parts = [(CUBIN, CUDA, NVPTX, "sm_90", contents["cubin"]), (PTX, OPENMP, NVPTX, "sm_90", contents["ptx"])]
    binaries = [make(2, *parts)] if version == 2 else [make(1, part) for part in parts]
    path = tmp_path / "images.out"
    path.write_bytes(b"".join(binaries))
    done = extract("--payload", path)
    section = offload.SECTION
    assert listed(done) == [("cubin", "sm_90", contents["cubin"], section), ("ptx", "sm_90", contents["ptx"], section)]
    assert done.kind("library")[0]["type"] == "offload"
    for record in done.kind("element"):
        assert path.read_bytes()[record["offset"] :].startswith(record["data"])
        assert record["kernels"]


def test_an_object_for_cuda_is_a_cubin_and_fatbins_are_read(contents, sample, tmp_path):
    fatbin = sample("fatbin").read_bytes()
    path = tmp_path / "images.out"
    path.write_bytes(make(2, (OBJECT, OPENMP, NVPTX, "sm_90", contents["cubin"]), (FATBIN, CUDA, NVPTX, "", fatbin)))
    inside = extract("--payload", sample("fatbin")).kind("element")
    assert [one[:3] for one in listed(extract("--payload", path))] == [
        ("cubin", "sm_90", contents["cubin"]),
        *((record["type"], record["arch"], record["data"]) for record in inside),
    ]


@pytest.fixture
def in_object(tmp_path):
    """Return an object with a section of offload binaries."""

    def build(data):
        (tmp_path / "o.c").write_text("int x;\n")
        (tmp_path / "data").write_bytes(data)
        subprocess.run(["cc", "-c", "o.c", "-o", "plain.o"], cwd=tmp_path, check=True)
        section = f"--add-section={offload.SECTION}=data"
        subprocess.run(["objcopy", section, "plain.o", "with.o"], cwd=tmp_path, check=True)
        return tmp_path / "with.o"

    return build


def test_the_section_of_an_object_is_read_and_never_cut(contents, in_object, tmp_path):
    parts = (CUBIN, CUDA, NVPTX, "sm_90", contents["cubin"]), (PTX, CUDA, NVPTX, "sm_90", contents["ptx"])
    path = in_object(make(1, parts[0]) + make(1, parts[1]) + bytes(8))
    done = extract("--payload", path)
    assert [one[:3] for one in listed(done)] == [
        ("cubin", "sm_90", contents["cubin"]),
        ("ptx", "sm_90", contents["ptx"]),
    ]
    names = tmp_path / "names"
    names.write_text("nothing\n")
    options = "--allow-missing", "--arch", "sm_80"
    located = tools.run("gpt-locate", "--used", names, *options, data=extract(path).out)
    patched = tools.run("gpt-patch", "-o", tmp_path / "out", data=located.out)
    assert patched.status == 0, patched.err
    assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_scan_lists_them_once(contents, in_object):
    path = in_object(make(1, (PTX, CUDA, NVPTX, "sm_90", contents["ptx"])))
    assert listed(extract("--scan", "--payload", path)) == listed(extract("--payload", path))


def test_unread_images_are_named(tmp_path, in_object):
    data = make(
        2,
        (BITCODE, OPENMP, NVPTX, "sm_90", b"BC\xc0\xde.version 8.0\n.target sm_90\n"),
        (OBJECT, HIP, AMD, "gfx90a", b"\x7fELF"),
    )
    path = tmp_path / "images.out"
    path.write_bytes(data)
    fact = (
        f"1 bitcode of OpenMP for {NVPTX} sm_90, 1 object of HIP for {AMD} gfx90a: not read"
        " (clang makes cubins of it when it links)"
    )
    for one in (path, in_object(data)):
        done = extract(one)
        assert (done.status, done.err) == (1, f"gpt-extract: error: {one}: {fact}\n")


def test_unread_images_next_to_a_cubin_are_a_warning(contents, tmp_path):
    path = tmp_path / "images.out"
    path.write_bytes(
        make(2, (CUBIN, CUDA, NVPTX, "sm_90", contents["cubin"]), (BITCODE, CUDA, NVPTX, "sm_80", b"BC\xc0\xde"))
    )
    done = extract(path)
    assert done.status == 0
    assert f"warning: {path}: 1 bitcode of CUDA for {NVPTX} sm_80: not read" in done.err


def changed(data, offset, value):
    return data[:offset] + struct.pack("<Q", value) + data[offset + 8 :]


WHOLE = make(1, (PTX, CUDA, NVPTX, "sm_90", b".version 8.0\n.target sm_90\n.entry k() {}"))


def test_images_that_share_their_bytes_are_limited(tmp_path):
    """Without limits, a file of a megabyte would be read for minutes."""
    path = tmp_path / "images.out"
    path.write_bytes(WHOLE[: -len(WHOLE) % 8 or None] * (offload.MAX_ENTRIES + 1))
    done = extract(path)
    assert done.status == 3 and f"over {offload.MAX_ENTRIES} images in offload binaries" in done.err


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (WHOLE[:40], "offload binary that does not fit its header"),
        (WHOLE[:-8], "offload binary that does not fit its header"),
        (changed(WHOLE, 8, 1 << 63), "offload binary that does not fit its header"),
        (changed(WHOLE, 8, 8), "offload binary that does not fit its header"),
        (changed(WHOLE, 16, 1 << 63), "offload binary that does not fit its header"),
        (changed(make(2, (PTX, CUDA, NVPTX, "", b"x")), 24, 1 << 60), "offload binary that does not fit its header"),
        (changed(WHOLE, 32 + 24, 1 << 62), "image beyond the end of its offload binary"),
        (changed(WHOLE, 32 + 16, 1 << 62), "image beyond the end of its offload binary"),
        (changed(WHOLE, 32 + 8, 1 << 62), "bytes expected, but the file ends"),
        (WHOLE[:4] + b"\7" + WHOLE[5:], "offload binary of version 7: 1 and 2 are read"),
        (WHOLE + b"garbage that is long enough to be a header", "no offload binary where one should begin"),
    ],
)
def test_malformed_binaries_are_errors(tmp_path, data, fact):
    path = tmp_path / "images.out"
    path.write_bytes(data)
    done = extract(path)
    assert done.status == 3 and fact in done.err, done.err


def test_probes_go_into_their_ptx(contents, tmp_path):
    path = tmp_path / "images.out"
    path.write_bytes(make(1, (PTX, CUDA, NVPTX, "sm_90", contents["ptx"])))
    woven = tools.run("gpt-ptx-probe", "-p", "block_sched", data=extract("--ptx", path).out)
    assert woven.status == 0 and woven.kind("ptx")
    assembled = tools.run("gpt-asm", "--arch", "sm_90", data=woven.out)
    assert assembled.status == 0 and assembled.kind("cubin")
