"""Where files come from: directories, wheels, pipes, streams; and which files are refused, in which words."""

import hashlib
import os
import struct
import zipfile

import pytest

from gpt import records, stream
from tests import cuda
from tests.formats import oracle
from tests.formats.samples import ONE, image, region
from tests.stages.tools import extract, run


def segment(*inner):
    made = [stream.header("test", []), *inner, records.make("end", records=len(inner), status=0)]
    return b"".join(stream.pack(record) for record in made)


def paths(done):
    return [record["path"] for record in done.kind("library")]


@pytest.fixture
def tree(sample, tmp_path):
    """A directory with links of every sort and files of no interest."""
    top = tmp_path / "tree"
    (top / "deep" / "er").mkdir(parents=True)
    data = sample("zstd").read_bytes()
    (top / "b.so").write_bytes(data)
    (top / "deep" / "a.so").write_bytes(sample("relocatable").read_bytes())
    os.link(top / "b.so", top / "deep" / "hard.so")
    (top / "link.so").symlink_to("b.so")
    (top / "deep" / "er" / "up").symlink_to("../..")
    (tmp_path / "outside.cubin").write_bytes(sample("cubin").read_bytes())
    (top / "outside").symlink_to(tmp_path / "outside.cubin")
    (top / "dangling").symlink_to("nowhere")
    (top / "plain.so").write_bytes(sample("plain").read_bytes())
    (top / "README").write_text("no library\n")
    (top / "empty").touch()
    os.mkfifo(top / "pipe")
    return top


def test_a_directory_gives_each_file_once(tree):
    done = extract("-r", tree)
    assert done.status == 0, done.err
    assert done.err == ""
    assert paths(done) == [f"{tree}/{name}" for name in ("b.so", "outside", "deep/a.so")]


def test_a_directory_needs_r(tree):
    done = extract(tree)
    assert done.status == 4
    assert done.err == f"gpt-extract: error: {tree}: is a directory: read it with -r\n"


def test_a_broken_file_in_a_directory_is_named_and_the_rest_read(tree):
    (tree / "deep" / "a.so").write_bytes((tree / "deep" / "a.so").read_bytes()[:-100])
    done = extract("-r", tree)
    assert done.status == 3
    assert done.err.count("\n") == 1
    assert "deep/a.so" in done.err
    assert paths(done) == [f"{tree}/b.so", f"{tree}/outside"]
    assert [record["level"] for record in done.kind("diag")] == ["error"]


def test_a_missing_file_does_not_keep_from_the_next(sample, tmp_path):
    done = extract(tmp_path / "nowhere", sample("cubin"))
    assert done.status == 4
    assert "nowhere: No such file or directory" in done.err
    assert len(paths(done)) == 1


def test_a_wheel_is_read_member_by_member(sample, tmp_path):
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(sample("balance"), "x/lib/libx.so")
        file.writestr("x/__init__.py", "")
        file.write(sample("archive"), "x/lib/libx.a")
    done = extract("-r", wheel)
    assert done.status == 0, done.err
    assert paths(done) == [f"{wheel}/x/lib/libx.so", f"{wheel}/x/lib/libx.a"]
    assert len(done.kind("element")) == 16
    assert extract(wheel).err == f"gpt-extract: error: {wheel}: zip file or wheel: read it with -r\n"


def test_a_torn_wheel_is_refused(sample, tmp_path):
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(sample("balance"), "libx.so")
    data = bytearray(wheel.read_bytes())
    for torn in (data[: len(data) // 2], data[:200] + os.urandom(500) + data[700:]):
        wheel.write_bytes(torn)
        done = extract("-r", wheel)
        assert (done.status, done.err.count("\n")) == (3, 1), done.err


@pytest.mark.parametrize("name", ["zstd", "archive", "fatbin", "cubin", "ptx"])
def test_standard_input_is_a_file(sample, name):
    path = sample(name)
    named, piped = extract(path), extract(data=path.read_bytes())
    assert piped.status == 0, piped.err
    assert paths(piped) == ["<stdin>"]
    strip = [{key: value for key, value in e.items() if key != "library"} for e in piped.kind("element")]
    assert strip == [{key: value for key, value in e.items() if key != "library"} for e in named.kind("element")]


def test_a_pipe_can_be_named(sample):
    done = run("bash", "-c", 'gpt-extract <(cat "$0")', sample("zstd"))
    assert (done.status, len(done.kind("element"))) == (0, 9)


def test_modules_of_a_stream_are_extracted(sample):
    data = region(ONE)
    library = sample("balance")
    offset = library.read_bytes().index(data)
    digest = hashlib.sha256(data).hexdigest()
    within = {"path": str(library), "offset": offset}
    modules = [
        records.make("module", id=1, type="fatbin", data=data),
        records.make("module", id=2, type="fatbin", **within, size=len(data), sha256=digest),
        records.make("module", id=3, type="cubin", data=image(ONE, "sm_90"), sha256="0" * 64),
        records.make("module", id=4, type="fatbin", **within, size=1 << 60),
        records.make("module", id=5, type="fatbin", path="/nowhere/lib.so", offset=0),
        records.make("module", id=6, type="fatbin"),
        records.make("module", id=7, type="fatbin", path=str(library), sha256=digest),
        records.make("module", id=8, type="ptx", data=image(ONE, "compute_90")),
        {"kind": "module", "id": 9},
    ]
    done = extract(data=segment(*modules))
    assert done.status == 4
    assert [m["id"] for m in done.kind("module")] == list(range(1, 10))  # each is passed on
    assert paths(done) == ["module:1", "module:2", "module:8"]
    by_library = {path: [e for e in done.kind("element") if e["library"] == path] for path in paths(done)}
    assert [e["arch"] for e in by_library["module:1"]] == ["sm_75", "sm_80", "sm_90", "sm_90"]
    assert [e["offset"] for e in by_library["module:1"]] == [e["offset"] for e in by_library["module:2"]]
    assert "module:3: is not what was loaded: its sha256 differs" in done.err
    assert "module:7: is not what was loaded: its sha256 differs" in done.err
    assert done.err.count("error: ") == 6


def test_a_stream_can_be_a_file(tmp_path):
    path = tmp_path / "trace.mp"
    path.write_bytes(segment(records.make("module", id=1, type="fatbin", data=region(ONE))))
    assert paths(extract(path)) == ["module:1"]


def elf_header(machine=62, bits=2, order=1):
    return b"\x7fELF" + bytes([bits, order, 1]) + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44)


REFUSED = {
    "empty": (b"", "empty file"),
    "text": (b"int main() {}\n", "no ELF file, archive, fatbin, cubin or PTX"),
    "32-bit": (elf_header(machine=3, bits=1), "ELF file of a machine that does not run CUDA (or 32-bit)"),
    "big-endian": (elf_header(machine=21, order=2), "ELF file of a machine that does not run CUDA (or 32-bit)"),
    "riscv": (elf_header(machine=243), "ELF file of a machine that does not run CUDA (or 32-bit)"),
    "32-bit cubin": (elf_header(machine=190, bits=1), "ELF file of a machine that does not run CUDA (or 32-bit)"),
    "thin": (b"!<thin>\n/               0           0     0     0       0         `\n", "thin archive: name"),
    "zip": (b"PK\3\4" + bytes(30), "zip file or wheel: read it with -r"),
    "comments": (b"/**/" * 5000 + b"// c\n" * 1000 + b"int x;", "no ELF file, archive, fatbin, cubin or PTX"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name, tmp_path):
    data, reason = REFUSED[name]
    path = tmp_path / "file"
    path.write_bytes(data)
    done = extract(path)
    assert (done.status, done.err.count("\n")) == (3, 1)
    assert done.err.startswith(f"gpt-extract: error: {path}: {reason}")
    assert done.seconds < 5


def test_a_library_without_gpu_code_is_a_fault_only_when_named(sample, tmp_path):
    done = extract(sample("plain"))
    assert (done.status, done.kind("library")) == (1, [])
    assert "no GPU code in the usual sections (--scan looks everywhere)" in done.err
    (tmp_path / "lib.so").symlink_to(sample("plain"))
    assert extract("-r", tmp_path).status == 0


@pytest.mark.skipif(not cuda.have_cxx(), reason="nvcc needs g++")
@pytest.mark.parametrize("name", ["kernels.o", "rdc.o", "libplain.so", "librdc.so", "libboth.a"])
def test_what_nvcc_links(sample, name, tmp_path):
    path = sample("nvcc") / name
    done = extract("--save", tmp_path / "ours", path)
    assert done.status == 0, done.err
    ours = {file.name: file.read_bytes() for file in (tmp_path / "ours").iterdir()}
    assert ours == oracle.extracted(path, tmp_path / "theirs")
    assert {k["name"] for e in done.kind("element") for k in e["kernels"]} == {"_Z1fPi"}
