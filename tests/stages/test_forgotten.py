"""Pipelines in which a stage was forgotten or has nothing to do: the stage that notices says which."""

import pytest

from gpt.stream import records
from tests import cuda
from tests.stages.tools import run
from tests.trace import forge

NO_SPANS = "no spans in the stream: gpt-locate finds them"
NO_ELEMENTS = "no spans in the stream, nor a list of GPU code: 'gpt-extract LIBRARY | gpt-locate' makes both"
NO_CODE = "no GPU code listed in the stream: gpt-extract without --ptx lists it"
TRACE = "a trace, in which no library is read: 'gpt-extract LIBRARY | gpt-locate --used TRACE' does"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a library with a kernel for sm_90 and its PTX."""
    folder = tmp_path_factory.mktemp("forgotten")
    code = 'extern "C" __global__ void one(int *p) { *p = 1; }'
    elements = [("sm_90", "cubin"), ("compute_90", "ptx")]
    fatbin = cuda.fatbin([(arch, kind, cuda.nvrtc_compile(code, arch)) for arch, kind in elements], "none")
    (folder / "used.txt").write_text("one\n")
    return cuda.shared_library(folder / "libone.so", [fatbin])


def pipe(*stages):
    """Run one stage after the other, and return the last."""
    data = b""
    for stage in stages:
        done = run(*map(str, stage), data=data)
        data = done.out
    return done


def trace():
    return forge.pack(forge.trace(records.make("library", path="libone.so", type="elf", size=1)))


@pytest.mark.parametrize("json", [False, True])
def test_patch_without_locate(library, tmp_path, json):
    form, back = (["--json"], ["--from-json"]) if json else ([], [])
    done = pipe(["gpt-extract", *form, library], ["gpt-patch", "-o", tmp_path, *back])
    assert (done.status, done.err) == (1, f"gpt-patch: error: {NO_SPANS}\n")
    assert not (tmp_path / library.name).exists()


@pytest.mark.parametrize(
    ("probe", "fact"),
    [([], NO_ELEMENTS), ([["gpt-ptx-probe", "-p", "block_sched"]], NO_ELEMENTS)],
)
def test_patch_of_ptx(library, tmp_path, probe, fact):
    done = pipe(["gpt-extract", "--ptx", library], *probe, ["gpt-patch", "-o", tmp_path])
    assert (done.status, done.err) == (1, f"gpt-patch: error: {fact}\n")
    assert not (tmp_path / library.name).exists()


def test_locate_of_ptx(library, tmp_path):
    locate = ["gpt-locate", "--used", library.with_name("used.txt"), "--arch", "sm_90", "--allow-missing"]
    done = pipe(["gpt-extract", "--ptx", library], locate)
    assert done.status == 1 and f"gpt-locate: error: {NO_CODE}\n" in done.err
    after = run("gpt-patch", "-o", tmp_path, data=done.out)
    assert (after.status, after.err) == (1, "")  # an earlier stage has reported it


def test_nothing_to_cut_is_not_an_error(library, tmp_path):
    keep = ["gpt-locate", "--used", library.with_name("used.txt"), "--keep-ptx", "--arch", "sm_90"]
    done = pipe(["gpt-extract", library], keep, ["gpt-patch", "-o", tmp_path])
    (patched,) = done.kind("patched")
    assert (done.status, done.err) == (0, "")
    assert (patched["mode"], patched["reason"]) == ("copy", "there is nothing to cut")
    assert (tmp_path / library.name).read_bytes() == library.read_bytes()
    shown = pipe(["gpt-extract", library], keep, ["gpt-patch", "--table", "-n", "-o", tmp_path])
    assert "copy because there is nothing to cut" in " ".join(shown.out.decode().split())


def test_foreign_locate_stage_may_add_no_spans(library, tmp_path):
    """Another project's stage added its name to the header, but no span to the stream."""
    listed = run("gpt-extract", "--json", library).out.decode()
    data = listed.replace('"via": []', '"via": ["my-locate"]').encode()
    done = run("gpt-patch", "--from-json", "-o", tmp_path, data=data)
    assert (done.status, done.err) == (0, "")


def test_a_trace_is_not_a_list_of_libraries(library, tmp_path):
    done = run("gpt-patch", "-o", tmp_path, data=trace())
    assert (done.status, done.err) == (1, f"gpt-patch: error: {TRACE}\n")


@pytest.mark.parametrize("command", [["gpt-asm", "--arch", "sm_90"], ["gpt-ptx-probe", "-p", "block_sched"]])
def test_stages_that_want_ptx(library, command):
    for listed in (run("gpt-extract", library).out, trace()):
        done = run(*command, data=listed)
        fact = "no PTX in the stream: gpt-extract --ptx reads it"
        assert (done.status, done.err) == (1, f"{command[0]}: error: {fact}\n")


@pytest.mark.parametrize("analysis", ["summary", "gaps", "maps", "timeline", "memory"])
def test_an_empty_trace(analysis):
    done = run("gpt-analyze", analysis, data=forge.pack(forge.trace()))
    fact = "the trace has no records: no process that gpt-hook watched used the CUDA driver"
    assert (done.status, done.err) == (0, f"gpt-analyze: warning: {fact}\n")
