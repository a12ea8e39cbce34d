"""Inputs: directories, wheels, pipes, streams; and the messages for refused files."""

import hashlib
import os
import struct
import zipfile

import pytest

from gpt.stream import records, wire
from tests import cuda
from tests.formats import forge, oracle
from tests.formats.samples import ONE, image, region
from tests.stages.tools import extract, run


def segment(*inner):
    made = [wire.header("test", []), *inner, records.make("end", records=len(inner), status=0)]
    return b"".join(wire.pack(record) for record in made)


def paths(done):
    return [record["path"] for record in done.kind("library")]


@pytest.fixture
def tree(sample, tmp_path):
    """Return a directory with links of every kind and irrelevant files."""
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


def test_one_fault_is_one_message_after_others(tmp_path, sample):
    for name in ("a.so", "b.so"):
        (tmp_path / name).write_bytes(sample("cubin").read_bytes()[:100])
    done = extract("-r", tmp_path / "a.so", tmp_path / "b.so")
    assert (done.status, done.err.count("error: "), done.err.count("\n")) == (3, 2, 2)


def test_unreadable_file_is_named_and_the_rest_is_read(sample):
    """The file is like one on a failing disk: it can be opened, but reading its first byte fails."""
    done = extract("/proc/self/mem", sample("cubin"))
    assert (done.status, done.err) == (3, "gpt-extract: error: /proc/self/mem: empty file\n")
    assert len(paths(done)) == 1


def test_empty_name_is_not_the_working_directory(tmp_path):
    done = extract("-r", "", cwd=tmp_path)
    assert (done.status, done.err) == (2, "gpt-extract: error: '' is not a file name\n")


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
    assert "module:3: the image has changed since it was loaded: its sha256 differs" in done.err
    assert "module:7: the image has changed since it was loaded: its sha256 differs" in done.err
    assert done.err.count("error: ") == 6


def test_a_stream_can_be_a_file(tmp_path):
    path = tmp_path / "trace.mp"
    path.write_bytes(segment(records.make("module", id=1, type="fatbin", data=region(ONE))))
    assert paths(extract(path)) == ["module:1"]


def elf_header(machine=62, bits=2, order=1):
    return b"\x7fELF" + bytes([bits, order, 1]) + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44)


def test_missing_code_is_reported_with_the_available_code(sample):
    path = sample("zstd")
    there = "there is cubin for sm_75, sm_80, sm_90; ptx for sm_90"
    for args, fact in {
        "--arch sm_100,sm_120": f"no code for sm_100 or sm_120: {there}",
        "--arch 7.5 --ptx": f"no PTX for sm_75: {there}",
        "--type ltoir": f"no ltoir: {there}",
        "--kernel nope": "no kernel matches 'nope': there are ",
    }.items():
        done = extract(*args.split(), path)
        assert (done.status, done.err.count("\n")) == (1, 1)
        assert done.err.startswith(f"gpt-extract: error: {path}: {fact}")
        assert [record["kind"] for record in done.records] == ["header", "library", "library_end", "diag", "end"]
    cubin = sample("cubin")
    done = extract("--ptx", cubin)
    assert done.status == 1 and f"{cubin}: no PTX: there is cubin for sm_" in done.err and "nvcc adds PTX" in done.err
    woven = run("gpt-ptx-probe", "-p", "block_sched", data=done.out)
    assert (woven.status, woven.err) == (1, "")
    assert run("gpt-asm", "--arch", "sm_90", data=woven.out).status == 1
    assert extract("--ptx", cubin, path).status == 0  # one of the files has some


def test_a_folder_without_gpu_code_is_a_warning(tmp_path):
    assert extract("-r", tmp_path).err == ""  # also in a folder without files
    (tmp_path / "a.txt").write_text("text")
    done = extract("-r", tmp_path)
    assert done.status == 0 and done.err.startswith(
        f"gpt-extract: warning: {tmp_path}: no GPU code in any of 1 files (--scan "
    )


def test_names_of_kernels(sample, tmp_path):
    path = sample("zstd")
    names = sorted({kernel["name"] for element in extract(path).kind("element") for kernel in element["kernels"]})
    done = extract("--names", path, path)
    assert (done.status, done.out.decode().splitlines()) == (0, names)
    assert extract("--names", "--kernel", names[0], path).out.decode() == names[0] + "\n"
    assert extract("--names", data=extract(path).out).out == done.out  # from a stream
    (tmp_path / "names.txt").write_bytes(done.out)
    located = run("gpt-locate", "--used", tmp_path / "names.txt", "--arch", "sm_90", data=extract(path).out)
    assert (located.status, located.err) == (0, "")
    assert extract("--names", "--kernel", "nope", path).status == 1
    for wrong in (["-C", path], ["--names", "--json", path], ["--names", "--ptx", path]):
        assert extract(*wrong).status == 2


def test_names_hold_nothing_for_a_terminal():
    numbers = ("region", "index", "offset", "header_size", "payload_size", "size", "flags", "variables")
    kernels = [{"name": "_Z6matmulIfEvPT_i"}, {"name": "_Z\x1b[2Jk\n"}]
    texts = {"library": "l", "type": "ptx", "arch": "sm_90", "codec": "none"}
    element = records.make("element", kernels=kernels, functions=[], **texts, **dict.fromkeys(numbers, 0))
    data = segment(element)
    assert extract("--names", data=data).out == b"_Z\\x1b[2Jk\\n\n_Z6matmulIfEvPT_i\n"
    assert extract("--names", "-C", data=data).out == b"_Z\\x1b[2Jk\\n\nvoid matmul<float>(float*, int)\n"


PE = b"MZ".ljust(60, b"\0") + struct.pack("<I", 128) + bytes(64) + b"PE\0\0" + bytes(20)

REFUSED = {
    "empty": (b"", "empty file"),
    "text": (b"int main() {}\n", "not an ELF file, archive, fatbin, cubin or PTX"),
    "32-bit": (elf_header(machine=3, bits=1), "ELF file for a machine that does not run CUDA (or 32-bit)"),
    "big-endian": (elf_header(machine=21, order=2), "ELF file for a machine that does not run CUDA (or 32-bit)"),
    "riscv": (elf_header(machine=243), "ELF file for a machine that does not run CUDA (or 32-bit)"),
    "32-bit cubin": (elf_header(machine=190, bits=1), "ELF file for a machine that does not run CUDA (or 32-bit)"),
    "thin": (b"!<thin>\n/               0           0     0     0       0         `\n", "thin archive: name"),
    "zip": (b"PK\3\4" + bytes(30), "zip file or wheel: read it with -r"),
    "PE": (PE, "PE file (Windows): only ELF files are read"),
    "MZ": (b"MZ".ljust(99, b"\0"), "DOS program: only ELF files are read"),
    "a PE header beyond the end": (b"MZ" + bytes(58) + b"\xff" * 4, "DOS program: only ELF files are read"),
    "Mach-O": (b"\xcf\xfa\xed\xfe" + bytes(28), "Mach-O file (macOS): only ELF files are read"),
    "Mach-O, fat": (b"\xca\xfe\xba\xbe\0\0\0\2" + bytes(56), "Mach-O file (macOS): only ELF files are read"),
    "Java": (b"\xca\xfe\xba\xbe\0\0\0\x34" + bytes(56), "not an ELF file, archive, fatbin, cubin or PTX"),
    "HIP": (b"__CLANG_OFFLOAD_BUNDLE__" + bytes(40), "code for AMD GPUs (a clang offload bundle): only NVIDIA's"),
    "HIP, packed": (b"CCOB" + bytes(40), "code for AMD GPUs (a packed clang offload bundle): only NVIDIA's is read"),
    "an AMD GPU's": (elf_header(machine=224), "code for AMD GPUs (an AMD ELF file): only NVIDIA's is read"),
    "comments": (b"/**/" * 5000 + b"// c\n" * 1000 + b"int x;", "not an ELF file, archive, fatbin, cubin or PTX"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name, tmp_path):
    data, reason = REFUSED[name]
    path = tmp_path / "file"
    path.write_bytes(data)
    done = extract(path, measured=True)
    assert (done.status, done.err.count("\n")) == (3, 1)
    assert done.err.startswith(f"gpt-extract: error: {path}: {reason}")
    assert done.seconds < 5


def hip_library():
    names = b"\0.hip_fatbin\0"
    sections = forge.section(0, 0) + forge.section(1, 1, offset=64, size=64) + forge.section(0, 3, offset=128, size=13)
    return forge.elf_header(shoff=144, shnum=3, shstrndx=2) + bytes(64) + names.ljust(16, b"\0") + sections


def test_a_library_for_other_gpus(tmp_path):
    """A library for other GPUs is an error if the user named it, and a warning in a folder or wheel where nothing else
    is found.
    """
    reason = "code for AMD GPUs (section '.hip_fatbin'): only NVIDIA's is read"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.so").write_bytes(hip_library())
    done = extract(tmp_path / "lib" / "a.so")
    assert (done.status, done.err) == (1, f"gpt-extract: error: {tmp_path}/lib/a.so: {reason}\n")
    (tmp_path / "lib" / "b.dll").write_bytes(PE)
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        for name in ("b.dll", "a.so"):
            wheel.write(tmp_path / "lib" / name, name)
    for path in (tmp_path / "w.whl", tmp_path / "lib"):
        done = extract("-r", path)
        assert done.status == 0
        counts = [
            done.err.count(f"{path}: no GPU code found, and files skipped (1): {what}") for what in (reason, "PE file")
        ]
        assert counts == [1, 1], done.err
    (tmp_path / "lib" / "c.cubin").write_bytes(forge.cubin(1))
    assert extract("-r", tmp_path / "lib").err == ""


def test_a_library_without_gpu_code_is_a_fault_only_when_named(sample, tmp_path):
    done = extract(sample("plain"))
    assert (done.status, done.kind("library")) == (1, [])
    assert "no GPU code in the usual sections (--scan looks everywhere)" in done.err
    (tmp_path / "lib.so").symlink_to(sample("plain"))
    assert extract("-r", tmp_path).status == 0


@pytest.mark.full
@pytest.mark.skipif(not cuda.have_cxx(), reason="nvcc needs g++")
@pytest.mark.parametrize("name", ["kernels.o", "rdc.o", "libplain.so", "librdc.so", "libboth.a"])
def test_libraries_linked_by_nvcc_match_cuobjdump(sample, name, tmp_path):
    path = sample("nvcc") / name
    done = extract("--save", tmp_path / "ours", path)
    assert done.status == 0, done.err
    ours = {file.name: file.read_bytes() for file in (tmp_path / "ours").iterdir()}
    assert ours == oracle.extracted(path, tmp_path / "theirs")
    assert {k["name"] for e in done.kind("element") for k in e["kernels"]} == {"_Z1fPi"}
