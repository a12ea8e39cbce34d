"""gpt-sass-probe as a user runs it."""

import json
import re
import struct
import subprocess

import pytest

from gpt.formats.closed import read_table
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.sass.arch import ARCHS
from gpt.sass.words import Control, dump_words, parse_words, with_control
from gpt.stream import records
from gpt.stream.packed import unpack_rows
from tests import cuda
from tests.stages.cubins import compiled, element, segment
from tests.stages.tools import run

LOADS = '[loads]\nposition = "{}"\ndatamodel = "thread:8"\nbefore = "SAVE.u64 {{ADDR}};"\n'
NEEDED = "gpt-sass-probe: error: -p PROBE is required: a probe file, or the name of a built-in probe\n"


@pytest.fixture(scope="module")
def image():
    return compiled()


def explain(*options, data, status=0):
    done = run("gpt-sass-probe", "--explain", *options, data=data)
    assert done.status == status, done.err
    return done


def rows(done):
    """Return the rows of the only answer, as dicts, without absent values."""
    (answer,) = done.kind("answer")
    fields, found = unpack_rows(answer)
    return [{f.name: v for f, v in zip(fields, row, strict=True) if v is not None} for row in found]


def faces(done, kernel):
    return [row["face"] for row in rows(done) if row["kernel"] == kernel and "instruction" in row]


def weave(*options, data, status=0):
    done = run("gpt-sass-probe", *options, data=data)
    assert done.status == status, done.err
    return done


def test_it_needs_a_probe(image):
    done = run("gpt-sass-probe", data=segment(element(image)))
    assert (done.status, done.out, done.err) == (2, b"", NEEDED)


def test_original_is_included_on_request(image):
    """`gpt-hook run --benchmark` and --memusage compare with this code."""
    done = weave("-p", "block_sched", "--original", data=segment(element(image)))
    assert [list(CubinEditor(record["original"]).kernels) for record in done.kind("cubin")] == [[b"sums"], [b"copy"]]


def test_a_kernel_with_probes_is_a_cubin_of_its_own(image):
    """Run gpt-ptx-probe and gpt-asm on PTX: return the code, its maps, and the facts that a launcher needs."""
    done = weave("-p", "block_sched", "-p", "gmem_bytes", data=segment(element(image), {"kind": "unknown", "x": 1}))
    kinds = ["cubin", "map", "map", "kernel", "kernel"]
    assert [record["kind"] for record in done.records] == ["header", *kinds, *kinds, "unknown", "end"]
    first, second = done.kind("cubin")
    assert (first["kernels"], second["kernels"]) == (["sums"], ["copy"])
    assert first["module"] == "libfoo.so#3" and first["data"] != image and "original" not in first
    assert first["id"] != second["id"]
    *_, kernel, needs = done.kind("kernel")
    assert kernel["id"] == needs["id"] == second["id"]
    assert kernel["params"] == [{"offset": 0, "size": 8}, {"offset": 8, "size": 8}]
    maps = [record["id"] for record in done.kind("map")]
    assert len(set(maps)) == 4 and kernel["maps"] == maps[2:]
    assert kernel["added"] == [{"offset": 16 + 8 * k, "size": 8, "type": "u64", "map": maps[2 + k]} for k in range(2)]
    assert needs["registers"] >= needs["registers_before"]
    places = {(site["probe"], site["position"]): (site["matched"], site["woven"]) for site in kernel["sites"]}
    assert places["gmem_bytes.load", "ld.global"] == places["gmem_bytes.store", "st.global"] == (1, 1)


def test_kernels_left_alone_pass_without_probes(image):
    """tensorop_count has no place in this kernel; and requests from a hook are rejected by name."""
    done = weave("-p", "tensorop_count", data=segment(element(image)), status=1)
    assert [record["kind"] for record in done.records] == ["header", "cubin", "kernel", "kernel", "diag", "diag", "end"]
    assert [record["code"] for record in done.kind("kernel")] == ["no_place"] * 2
    assert done.kind("cubin")[0]["data"] == image
    module = records.make("module", id=7, type="cubin", arch="sm_90", only=["sums"])
    done = weave("-p", "tensorop_count", data=segment(module, element(image, only=["sums"])), status=1)
    (refused,) = done.kind("refused")
    assert (refused["module"], refused["name"], refused["code"]) == (7, "sums", "no_place")


def test_a_kernel_has_no_more_registers_than_are_allowed(image):
    """gpt-hook requests the kernel again with a register limit if a block doesn't fit."""
    for limit, kinds in ((64, {"module", "cubin", "map", "kernel"}), (16, {"module", "refused"})):
        module = records.make("module", id=7, type="cubin", arch="sm_90", only=["copy"], registers=limit)
        done = weave("-p", "gmem_bytes", data=segment(module, element(image, only=["copy"])))
        assert {record["kind"] for record in done.records} - {"header", "end"} == kinds
    (refused,) = [record for record in done.records if record["kind"] == "refused"]
    assert (refused["module"], refused["name"], refused["code"]) == (7, "copy", "no_registers")
    assert refused["detail"].endswith("and 16 are allowed")


def test_a_woven_cubin_has_one_kernel(image):
    done = weave("-p", "gmem_bytes", "-k", "copy", data=segment(element(image)))
    (cubin,) = [record["data"] for record in done.records if record["kind"] == "cubin"]
    assert list(CubinEditor(cubin).kernels) == [b"copy"]
    assert b".text.copy" in cubin and b".text.sums" not in cubin


@pytest.mark.parametrize("arch", [name for name, arch in ARCHS.items() if not arch.proven])
def test_other_architectures_are_refused_as_a_whole(arch):
    module = records.make("module", id=7, type="cubin", arch=arch, only=["sums"])
    done = weave("-p", "block_sched", data=segment(module, element(compiled(arch), arch=arch, only=["sums"])))
    (refused,) = done.kind("refused")
    assert (refused["module"], refused.get("name"), refused["code"]) == (7, None, "not_proven")
    assert not done.kind("cubin")


def test_kernels_of_cuda_tile_are_left_alone(image):
    """The attribute LANGUAGE, which nvcc 13.5 writes, is 7 for these kernels; for C++ it's 3."""
    for language, code in ((3, None), (7, "tile_kernel")):
        editor = CubinEditor(image)
        kernel = KernelEditor(editor, "copy")
        kernel.info[:] = struct.pack("<BBHI", 4, 0x66, 4, language) + bytes(kernel.info)
        data = segment(element(editor.build()))
        answers = weave("-p", "block_sched", "-k", "copy", data=data).kind("kernel")
        assert {record.get("code") for record in answers} == {code}
        row = next(row for row in rows(explain("-k", "copy", data=data)) if "instruction" not in row)
        assert row.get("code") == code


def test_code_for_one_gpu_only_is_woven():
    """Code for sm_90a, as XLA and CUTLASS make it, has attribute 9 in `.nv.compat`, as CUDA Tile code does."""
    data = segment(element(compiled("sm_90a"), arch="sm_90a"))
    answers = weave("-p", "block_sched", "-k", "copy", data=data).kind("kernel")
    assert {record.get("code") for record in answers} == {None}


def test_closed_libraries_are_never_woven(image):
    done = weave("-p", "block_sched", data=segment(element(image, "lib/libcublas.so.13")))
    assert {record["code"] for record in done.kind("kernel")} == {"closed_library"}
    assert done.kind("cubin")[0]["data"] == image


LIBRARY = """namespace cublas { __global__ void gemv(float *x) { x[threadIdx.x] += 1; } }
__global__ void helper(float *x) { x[threadIdx.x] += 2; }
void multiply(float *x) { cublas::gemv<<<1, 32>>>(x); helper<<<1, 32>>>(x); }
"""
PROGRAM = """void multiply(float *x);
__global__ void mine(float *x) { x[threadIdx.x] += 3; }
int main() { float *x = nullptr; mine<<<1, 32>>>(x); multiply(x); }
"""


@pytest.mark.skipif(not cuda.have_cxx(), reason="nvcc needs a host compiler")
@pytest.mark.full
def test_a_program_with_a_static_closed_library(tmp_path):
    """The library's code is an element of its own, in a program of any name; `helper` was compiled with closed code.
    (NVIDIA's own static library is in no wheel; tests/formats/test_closed.py reads the elements of the shared one.)
    """
    (tmp_path / "blas.cu").write_text(LIBRARY)
    (tmp_path / "mine.cu").write_text(PROGRAM)
    cuda.nvcc("-arch=sm_90", "-c", "blas.cu", cwd=tmp_path)
    subprocess.run(["ar", "rcs", "libcublas_static.a", "blas.o"], cwd=tmp_path, check=True)
    cuda.nvcc("-arch=sm_90", "-o", "mine", "mine.cu", "-L.", "-lcublas_static", cwd=tmp_path)
    data = run("gpt-extract", "--payload", "--type", "cubin", tmp_path / "mine").out
    done = weave("-p", "block_sched", data=data)
    assert {record["name"]: record.get("code") for record in done.kind("kernel")} == {
        "_Z4minePf": None,
        "_Z6helperPf": "closed_library",
        "_ZN6cublas4gemvEPf": "closed_library",
    }
    rows = [row for answer in explain(data=data).kind("answer") for row in unpack_rows(answer)[1]]
    assert {row[0] for row in rows if "closed_library" in row} == {"_Z6helperPf", "_ZN6cublas4gemvEPf"}


def test_kernels_and_their_sites(image):
    done = explain(data=segment(element(image)))
    assert [record["kind"] for record in done.records] == ["header", "element", "answer", "end"]
    assert done.kind("answer")[0]["name"] == "libfoo.so#3"
    assert done.kind("element")[0]["data"] == image
    assert faces(done, "copy") == ["entry", "ld.global.v4.b32", "st.global.v4.b32", "exit"]
    assert {"bar.sync", "ld.global.b32", "st.shared.b32", "ld.shared.b32"} <= {*faces(done, "sums")}
    assert any(face.startswith("red.global.add") for face in faces(done, "sums"))
    kernel, *sites = [row for row in rows(done) if row["kernel"] == "copy"]
    assert kernel["sites"] == len(sites) == 4 and kernel["registers"] >= 8
    for file in ("R", "UR", "P", "UP", "B"):
        assert kernel[file] == min(site[file] for site in sites)
    entry, load, store, exit_ = (site["live"] for site in sites)
    assert entry == exit_ == "" and "UR" in load
    assert re.fullmatch(r"R(\d+)-R(\d+) UR(\d+)-UR(\d+)", store), "an address, four words, and a descriptor"
    assert [site["offset"] for site in sites] == sorted(site["offset"] for site in sites)
    assert not any("code" in row for row in rows(done))


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ("block_sched", {"entry", "exit"}),
        ("ld.global", {"ld.global.v4.b32"}),
        ("st.global.v4:exit", {"st.global.v4.b32", "exit"}),
        ("ld.shared", set()),
    ],
)
def test_only_places_of_a_probe(image, tmp_path, probe, expected):
    path = tmp_path / "loads.toml"
    path.write_text(LOADS.format(probe).replace("{ADDR}", "{CLOCK}"))
    done = explain("-p", probe if probe == "block_sched" else path, "-k", "copy", data=segment(element(image)))
    assert set(faces(done, "copy")) == expected
    assert all("probes" in row for row in rows(done) if "instruction" in row)


def test_a_probe_at_a_begin_and_one_at_an_end(image):
    done = explain("-p", "block_sched", "-k", "copy", data=segment(element(image)))
    assert [(row["face"], row["probes"]) for row in rows(done)[1:]] == [
        ("entry", "block_sched.begin"),
        ("exit", "block_sched.end"),
    ]


def test_positions_that_machine_code_has_not(image, tmp_path):
    path = tmp_path / "lines.toml"
    path.write_text(LOADS.format("line:k.cu:7").replace("{ADDR}", "{CLOCK}"))
    done = explain("-p", path, data=segment(element(image)))
    assert done.err == f"gpt-sass-probe: warning: {path}: 'line:k.cu:7' isn't a position in machine code\n"


def test_places_with_too_few_registers(image):
    done = explain("--registers", "255", "-k", "copy", data=segment(element(image)))
    kernel, *sites = rows(done)
    assert {site["code"] for site in sites} == {"few_registers"} and "code" not in kernel
    assert done.kind("answer")[0]["verdict"] == [
        "4 places left alone: few_registers: fewer registers are free than --registers asks for"
    ]


@pytest.mark.parametrize(
    ("library", "names", "facts"),
    [
        ("lib/libcublas.so.13", None, {}),
        ("libmine.so", ["_ZN6cublas4gemvEv"], {}),
        ("libmine.so", None, {"build_id": read_table()["build-id"][0]}),
        ("libmine.so", None, {"soname": "libcublas.so.13"}),
    ],
    ids=["file name", "kernel", "build id", "soname"],
)
def test_closed_libraries_are_left_alone_before_anything_is_decoded(image, library, names, facts):
    found = records.make("library", path=library, type="elf", size=1, **facts)
    kernels = {"kernels": [{"name": name} for name in names]} if names else {}
    nonsense = image.replace(b".nv.info.copy", b".nv.xxxx.copy")  # this change isn't noticed
    start, size = text_of(image, "copy")
    nonsense = nonsense[:start] + b"\xff" * size + nonsense[start + size :]  # no table has this opcode
    data = segment(found, element(nonsense, library, **kernels))
    done = explain(data=data)
    assert {row["kernel"]: row["code"] for row in rows(done)} == dict.fromkeys(("copy", "sums"), "closed_library")
    assert len(rows(done)) == 2
    done = weave("-p", "block_sched", data=data)
    assert {record["code"] for record in done.kind("kernel")} == {"closed_library"}
    assert done.kind("cubin")[0]["data"] == nonsense


def test_code_without_a_schedule(image):
    """ptxas 13.5 writes no stalls and no barriers into code that it doesn't optimize. --explain still shows the
    kernel's sites.
    """
    start, size = text_of(image, "copy")
    words = parse_words(image[start : start + size])
    bare = dump_words([with_control(word, Control(0, True, 7, 7, 0, 0)) for word in words])
    data = segment(element(image[:start] + bare + image[start + size :]))
    found = {row["kernel"]: row for row in rows(explain(data=data)) if "instruction" not in row}
    copy = found["copy"]
    assert (copy["code"], copy["detail"], copy["sites"]) == ("no_schedule", "LDC at 0x0 has a stall of 0", 4)
    assert "code" not in found["sums"]
    left = {record["name"]: record.get("code") for record in weave("-p", "block_sched", data=data).kind("kernel")}
    assert left == {"copy": "no_schedule", "sums": None}


@pytest.mark.parametrize(("arch", "code"), [("sm_80", "not_proven"), ("sm_75", "no_table"), ("x\x1b", "no_table")])
def test_other_architectures(image, arch, code):
    done = explain("-k", "copy", data=segment(element(image, arch=arch)))
    assert [(row["code"], len(row)) for row in rows(done)] == [(code, 3)]


def text_of(image, name):
    """Return where the code of a kernel is in a cubin."""
    cubin = CubinEditor(image)
    number = KernelEditor(cubin, name).section
    return int(cubin.original["offset"][number]), int(cubin.original["size"][number])


def test_instruction_in_no_table(image):
    start, _ = text_of(image, "copy")
    changed = bytearray(image)
    changed[start + 16] = changed[start + 17] = 0xFF
    done = explain(data=segment(element(bytes(changed))))
    found = {row["kernel"]: row for row in rows(done) if "instruction" not in row}
    assert found["copy"]["code"] == "unknown_opcode" and "fff" in found["copy"]["detail"]
    assert "code" not in found["sums"], "the other kernels are explained"


def test_code_that_runs_past_its_end(image):
    start, size = text_of(image, "copy")
    mov = struct.pack("<QQ", 0x0000000000007202 | 7 << 12, 0x000FE20000000F00)  # MOV R0, R0
    changed = image[:start] + mov * (size // 16) + image[start + size :]
    (row, *_) = rows(explain("-k", "copy", data=segment(element(changed))))
    assert row["code"] == "unbounded" and "runs past its end" in row["detail"]


def test_kernel_with_different_start(image):
    start, _ = text_of(image, "copy")
    changed = bytearray(image)
    changed[start : start + 16] = struct.pack("<QQ", 0x0000000000007202 | 7 << 12, 0x000FE20000000F00)
    kernel, *sites = rows(explain("-k", "copy", data=segment(element(bytes(changed)))))
    assert (kernel["code"], kernel["detail"]) == ("unknown_entry", "MOV") and sites


@pytest.mark.parametrize("size", [0, 5, 63, 64, 1000, -1])
def test_truncated_cubin_passes_with_an_error(image, size):
    data = segment(element(image[:size]), element(image))
    done = run("gpt-sass-probe", "--explain", data=data)
    assert done.status == 3 and done.err.startswith("gpt-sass-probe: error: libfoo.so#3: ")
    assert len(done.kind("element")) == 2 and len(done.kind("answer")) == 1
    assert [record["level"] for record in done.kind("diag")] == ["error"]


def test_a_list_without_bytes(image):
    found = {key: value for key, value in element(image).items() if key != "data"}
    done = explain(data=segment(found), status=1)
    assert done.err == "gpt-sass-probe: error: no bytes in the list of GPU code: gpt-extract --payload adds them\n"
    assert done.kind("element") == [found]


def test_names_are_safe_on_a_terminal(image):
    """Anybody can choose a kernel's name in a file."""
    changed = image.replace(b"copy", b"c\x1b[y")
    done = explain("--table", data=segment(element(changed)))
    assert "\x1b" not in done.out.decode() and "c\\x1b[y" in done.out.decode()
    assert done.out.decode().replace("\n", "").isprintable()


def test_a_table_has_a_line_for_each_site(image):
    lines = explain("--table", "-k", "copy", data=segment(element(image))).out.decode().splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("kernel"))
    assert [line.split()[0] for line in lines[head + 1 : head + 6]] == ["copy", "LDC", "LDG", "STG", "EXIT"]
    assert max(map(len, lines)) <= 80


def test_json_has_a_line_for_each_row(image):
    lines = explain("--json", "-k", "copy", data=segment(element(image))).out.decode().splitlines()
    found = [json.loads(line) for line in lines]
    assert [row.get("instruction") for row in found if row["kind"] == "row"] == [None, "LDC", "LDG", "STG", "EXIT"]


def test_kernels_are_chosen_by_name(image):
    data = segment(element(image))
    assert {row["kernel"] for row in rows(explain("--filter", "op", data=data))} == {"sums"}
    done = explain("-k", "op:zzz", "-k", "yyy", data=data)
    assert {row["kernel"] for row in rows(done)} == {"copy"}
    assert done.err == "gpt-sass-probe: warning: -k: matches no kernel: 'zzz:yyy'\n"
    done = explain("-k", "zzz", data=data, status=1)
    assert done.err.startswith("gpt-sass-probe: error: --kernel and --filter leave no kernel: there are ")
    assert not done.kind("answer")
