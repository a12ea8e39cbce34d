"""Paths in records: pipes, folders, devices, sockets, NULs. The run reports each, and goes on."""

import os
import socket

import pytest

from gpt.stream import records, wire
from tests.formats.samples import ONE, image
from tests.stages.tools import kept, run
from tests.tiers import every
from tests.trace import forge

ODD = {  # kind of file at the path -> the expected message
    "fifo": "not a regular file",
    "folder": "a directory",
    "/dev/zero": "not a regular file",
    "socket": "No such device or address",
    "absent": "No such file or directory",
    "n\0ul": "not a valid file name",
}


@pytest.fixture
def folder(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "good.cubin").write_bytes(image(ONE, "sm_90"))
    (tmp_path / "names.txt").touch()
    with socket.socket(socket.AF_UNIX) as there:
        os.chdir(tmp_path)  # the name of a socket is short
        there.bind("socket")
    return tmp_path


def segment(*found):
    return b"".join(map(wire.pack, [wire.header("test", []), *found, records.make("end", records=0, status=0)]))


def check(done, name, fact):
    """Check that there's exactly one error about the odd path."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
    assert done.err.count("\n") == 1
    assert fact in done.err and "internal error" not in done.err
    assert shown[:4] in done.err


@pytest.mark.parametrize("name", ODD)
def test_modules(folder, name):
    modules = [records.make("module", id=n, type="cubin", path=path) for n, path in enumerate([name, "good.cubin"])]
    done = run("gpt-extract", data=segment(*modules), cwd=folder, timeout=120)
    assert done.status == 4
    check(done, name, ODD[name])
    assert len(done.kind("element")) == 1


@pytest.mark.parametrize("name", ODD)
def test_loaded_libraries(folder, name):
    libraries = [records.make("library", path=path, type="elf", size=8, gpu=1) for path in (name, "good.cubin")]
    libraries[1]["size"] = (folder / "good.cubin").stat().st_size
    (folder / "trace.mp").write_bytes(segment(*libraries))
    done = run("gpt-extract", "--loaded", "trace.mp", cwd=folder, timeout=120)
    assert done.status == 4
    check(done, name, ODD[name])
    assert len(done.kind("element")) == 1


@pytest.mark.parametrize("name", every(3, ODD))
def test_libraries(folder, name):
    odd = [records.make("library", path=name, type="elf", size=0), records.make("library_end", path=name)]
    good = run("gpt-extract", "good.cubin", cwd=folder).records[1:-1]
    data = segment(*odd, *good)
    done = run("gpt-locate", "--used", "names.txt", "--keep", "one", "--arch", "sm_90", data=data, cwd=folder)
    assert done.status == 0
    assert len(done.kind("library_end")) == 2
    done = run("gpt-patch", "-o", "slim", data=done.out, cwd=folder, timeout=120)
    assert done.status == 4
    check(done, name, ODD["absent" if "\0" in name else name])
    assert os.listdir(folder / "slim") == ["good.cubin"]


@pytest.mark.parametrize("name", ["n\0ul", "x" * 300, ""])
def test_files_of_spans(folder, name):
    """The files are named after their library. If one can't be written, the next one still is."""
    odd = [records.make("library", path=name, type="elf", size=0), records.make("library_end", path=name)]
    data = segment(*odd, *run("gpt-extract", "good.cubin", cwd=folder).records[1:-1])
    args = ("--keep", "one", "--arch", "sm_90", "--spans-json", "spans")
    done = run("gpt-locate", "--used", "names.txt", *args, data=data, cwd=folder)
    assert "internal error" not in done.err and len(done.kind("library_end")) == 2
    assert (done.status, done.err.count("\n")) == ({"n\0ul": 4, "": 0}.get(name, 1), 1 if name else 0), done.err
    assert (folder / "spans" / "good.cubin.json").exists()


@pytest.mark.parametrize("name", ["fifo", "n\0ul"])
def test_traces_of_children(folder, name):
    (folder / "trace.mp").write_bytes(segment(records.make("child", pid=1, how="fork", path=name)))
    done = run("gpt-locate", "--used", "trace.mp", "--arch", "sm_90", data=segment(), cwd=folder, timeout=120)
    assert done.status == 1
    check(done, name, "the trace of a child")
    done = run("gpt-analyze", "summary", "trace.mp", cwd=folder, timeout=120)
    assert done.status == 0
    check(done, name, "the trace of a child is absent")


def test_libraries_that_a_trace_names(folder):
    """A kernel's file is only opened if its path allows that."""
    found = forge.trace(
        records.make("module", id=1, type="cubin", path="a\0b"),
        records.make("function", id=1, module=1, name="one"),
        records.make("lookup", module=1, what="enumerate"),
    )
    (folder / "trace.mp").write_bytes(forge.pack(found))
    data = segment(*run("gpt-extract", "good.cubin", cwd=folder).records[1:-1])
    done = run("gpt-locate", "--used", "trace.mp", "--arch", "sm_90", data=data, cwd=folder)
    assert (done.status, done.err) == (0, "")


def test_links_that_lead_to_themselves(folder):
    (folder / "loop").symlink_to("loop")
    extracted = run("gpt-extract", "-r", folder)
    assert (extracted.status, extracted.err) == (0, "")
    out = folder / "folder"
    (out / "good.cubin").symlink_to("good.cubin")
    patched = run("gpt-patch", "-o", out, data=kept(run("gpt-extract", "good.cubin").out))
    assert (patched.status, patched.err) == (0, "")
    assert (out / "good.cubin").read_bytes() == (folder / "good.cubin").read_bytes()
