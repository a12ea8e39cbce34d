"""The libraries that a trace recorded as loaded, and files with several names, links or signatures."""

import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from gpt.screen.units import human
from gpt.stream import records, wire
from tests.stages.tools import extract, kept, located, run


def trace(path, *libraries, module=None, child=None):
    """Return a trace in which `libraries` were loaded: (path, bytes of GPU code or None), as gpt-hook writes them."""
    made = [wire.header("gpt-hook", [])]
    for library, gpu in libraries:
        size = library.stat().st_size if library.exists() else 1
        made.append(records.make("library", path=str(library), type="elf", size=size, gpu=gpu))
    if module:
        made.append(records.make("module", id=1, type="cubin", path=str(module), offset=0))
    if child:
        made.append(records.make("child", pid=2, how="fork", path=child.name))
    made.append(records.make("end", records=len(made) - 1, status=0))
    path.write_bytes(b"".join(map(wire.pack, made)))
    return path


def parsed(data):
    return list(wire.read_records(io.BytesIO(data), "stream"))


def paths(done):
    return [record["path"] for record in done.kind("library")]


def test_libraries_with_gpu_code_of_all_processes(sample, tmp_path):
    one, two, odd, plain = sample("zstd"), sample("lz4"), sample("scattered"), sample("plain")
    driver = Path(shutil.copy(one, tmp_path / "libcuda.so.1"))
    child = trace(tmp_path / "t.2", (two, 1), (one, 1))
    root = trace(tmp_path / "t", (one, 1), (plain, None), (odd, None), (driver, 1), module=odd, child=child)
    done = extract("--loaded", root)
    assert done.status == 0, done.err
    assert paths(done) == sorted(map(str, (one, two, odd)))
    assert done.kind("element") == sorted(
        (e for path in (one, two, odd) for e in extract(path).kind("element")),
        key=lambda e: (e["library"], e["index"]),
    )


def test_file_with_several_names_is_listed_once(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "a.so"))
    os.link(library, tmp_path / "b.so")
    (tmp_path / "c.so").symlink_to("a.so")
    done = extract("--loaded", trace(tmp_path / "t", *((tmp_path / f"{name}.so", 1) for name in "abc")))
    assert paths(done) == [str(library)]


def test_changed_file_is_refused(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "lib.so"))
    made = trace(tmp_path / "t", (library, 1), (tmp_path / "gone.so", 1))
    shutil.copy(sample("lz4"), library)
    done = extract("--loaded", made)
    assert done.status == 4
    assert "gone.so: No such file" in done.err
    assert "lib.so: the file has changed since it was loaded: its size differs" in done.err
    assert paths(done) == []


def test_the_build_id_counts(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "lib.so"))
    size = library.stat().st_size
    made = [
        wire.header("gpt-hook", []),
        records.make("library", path=str(library), size=size, build_id="00", gpu=1),
        records.make("end", records=1, status=0),
    ]
    (tmp_path / "t").write_bytes(b"".join(map(wire.pack, made)))
    done = extract("--loaded", tmp_path / "t")
    assert done.status == 1
    assert "its build id differs" in done.err


def test_files_of_negativa(sample, tmp_path):
    (tmp_path / "trace.json").write_text(
        json.dumps({"loaded_sos": [str(sample("plain")), str(sample("zstd"))], "detected_kernels": []})
    )
    (tmp_path / "spans.json").write_text(json.dumps({"so_path": str(sample("lz4")), "spans": []}))
    assert paths(extract("--loaded", tmp_path / "trace.json")) == [str(sample("zstd"))]
    assert paths(extract("--loaded", tmp_path / "spans.json")) == [str(sample("lz4"))]
    (tmp_path / "bad.json").write_text('{"loaded_sos": [1], "detected_kernels": []}')
    done = extract("--loaded", tmp_path / "bad.json")
    assert (done.status, "loaded_sos is not a list of strings" in done.err) == (3, True)
    (tmp_path / "names").write_text("x")
    done = run("gpt-locate", "--used", tmp_path / "spans.json", "--arch", "sm_90", data=extract(sample("lz4")).out)
    assert done.status == 3  # a file of spans isn't a list of used code
    assert extract("--loaded", "-r", tmp_path).status == extract("--loaded").status == 2


def test_a_trace_json_is_what_was_traced(sample, tmp_path):
    made = trace(tmp_path / "t", (sample("zstd"), 1), (sample("plain"), None))
    (tmp_path / "more").write_text("kernel\n")
    done = run("gpt-locate", "--used", made, "--used", tmp_path / "more", "--trace-json", tmp_path / "out.json")
    assert (done.status, done.out, done.err) == (0, b"", "")
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "loaded_sos": sorted([str(sample("zstd")), str(sample("plain"))]),
        "detected_kernels": ["kernel"],
    }


def test_a_directory_is_read_without_backups(sample, tmp_path):
    for name in ("lib.so", "lib.so.gpt-orig"):
        shutil.copy(sample("zstd"), tmp_path / name)
    assert paths(extract("-r", tmp_path)) == [str(tmp_path / "lib.so")]


def test_parents_keep_libraries_of_one_name_apart(sample, tmp_path):
    for folder, name in (("a", "zstd"), ("b", "lz4")):
        (tmp_path / folder).mkdir()
        shutil.copy(sample(name), tmp_path / folder / "lib.so")
    made = located([tmp_path / "a" / "lib.so", tmp_path / "b" / ".." / "b" / "lib.so"], "_Z3onePf")
    options = "-o", tmp_path / "out", "--parents", "--written", tmp_path / "written"
    done = run("gpt-patch", *options, data=made)
    assert done.status == 0, done.err
    outputs = [record["output"] for record in done.kind("patched")]
    assert outputs == [f"{tmp_path}/out{tmp_path}/{folder}/lib.so" for folder in "ab"]
    assert (tmp_path / "written").read_bytes() == b"".join(f"{output}\0".encode() for output in outputs)
    assert run("gpt-patch", "--in-place", "--parents", data=made).status == 2


def test_unlistable_file_is_not_replaced(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "lib.so"))
    done = run("gpt-patch", "--in-place", "--written", "/dev/full", data=located(library, "_Z3onePf"))
    assert (done.status, done.err.strip()) == (1, "gpt-patch: error: /dev/full: No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["lib.so"]
    assert library.read_bytes() == sample("zstd").read_bytes()


def test_hard_links_are_reported(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "lib.so"))
    os.link(library, tmp_path / "other.so")
    before = library.read_bytes()
    done = run("gpt-patch", "--in-place", data=located(library, "_Z3onePf"))
    assert done.status == 0
    assert "lib.so: has 1 more name (hard links), which keep the original" in done.err
    assert (tmp_path / "other.so").read_bytes() == before
    done = run("gpt-patch", "--in-place", data=located(library, "nothing"))
    assert (done.status, done.err) == (0, "")  # the new file has only one name


def test_a_signed_file_is_not_replaced(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "lib.so"))
    try:
        os.setxattr(library, "security.ima", b"\x04" + bytes(32))
    except OSError as error:
        pytest.skip(f"no such attributes here: {error}")
    before = library.read_bytes()
    made = located(library, "_Z3onePf")
    done = run("gpt-patch", "--in-place", data=made)
    assert done.status == 1
    assert "is signed (security.ima)" in done.err
    assert library.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["lib.so"]
    assert run("gpt-patch", "-o", tmp_path / "out", data=made).status == 0


def test_a_file_without_cuts_stays_unchanged(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "lib.so"))
    inode = library.stat().st_ino
    done = run("gpt-patch", "--in-place", data=kept(extract(library).out))
    assert [record["mode"] for record in done.kind("patched")] == ["copy"]
    assert library.stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["lib.so"]


def tables(made, columns, monkeypatch, folder):
    """Return gpt-patch's tables for a stream on a screen with this many columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    done = run("gpt-patch", "-n", "-o", folder, "--table", data=made)
    assert done.status == 0, done.err
    lines = done.out.decode().splitlines()
    assert max(map(len, lines)) <= columns
    return lines


@pytest.mark.full
def test_tables_of_patched_libraries(sample, tmp_path, monkeypatch):
    libraries = [sample("zstd"), sample("lz4")]
    shared = libraries[0].parents[1]
    assert shared == libraries[1].parents[1]
    made = located(libraries, "_Z4manyILi3EEvPfi", "--granularity", "kernel")
    tallies = run("gpt-patch", "-n", "-o", tmp_path, data=made).kind("tally")  # includes tallies of elements that stay
    for width in (80, 120, 160):
        lines = tables(made, width, monkeypatch, tmp_path)
        text = "\n".join(lines)
        assert "other architecture" in text and "kernel not used" in text
        assert "cut out of elements that stay: 14 kernels and 0 device functions" in " ".join(text.split())
        folders = [line for line in lines if line.startswith("in ")]
        assert len(folders) == 2 and len(folders[0]) <= 80  # once for each table
        if width >= len(str(shared)) + 5:
            assert folders[0] == f"in {shared}/:"
        assert str(shared / "zstd") not in text
        assert re.search(r"^zstd/libzstd.so +[0-9].* [0-9.]+ %$", text, re.MULTILINE)
        columns = re.search("^library +elements +left +kernels +left +(.*)$", text, re.MULTILINE)[1].split("  ")
        columns = [column.strip() for column in columns if column]
        cut = {t["reason"] for t in tallies} - {"kept"}
        reasons = {"bytes cut": cut} if width == 80 else {reason: {reason} for reason in cut}
        assert reasons.keys() == {*columns}
        for library in (*libraries, None):
            found = [t for t in tallies if library in (None, Path(t["library"]))]
            left = [t for t in found if t["reason"] == "kept"]
            counts = [sum(t[key] for t in rows) for key in ("elements", "kernels") for rows in (found, left)]
            gone = [sum(t["bytes"] for t in found if t["reason"] in reasons[column]) for column in columns]
            row = [
                f"{library.parent.name}/{library.name}" if library else "total",
                *counts,
                *(human(size) for size in gone),
            ]
            assert re.search(r"^" + " +".join(map(re.escape, map(str, row))) + "$", text, re.MULTILINE)


def test_an_upgrade_is_not_undone(sample, tmp_path):
    library = Path(shutil.copy(sample("zstd"), tmp_path / "lib.so"))
    before = library.read_bytes()
    assert run("gpt-patch", "--in-place", data=located(library, "_Z3onePf")).status == 0
    slim = library.read_bytes()
    shutil.copy(sample("plain"), library)  # somebody installs another version
    done = run("gpt-patch", "--restore", library)
    assert done.status == 1
    assert "is another version than its backup" in done.err
    assert library.read_bytes() == sample("plain").read_bytes()
    library.write_bytes(slim)
    assert run("gpt-patch", "--restore", library).status == 0
    assert library.read_bytes() == before
    shutil.move(library, tmp_path / "lib.so.gpt-orig")  # nothing takes its place
    assert run("gpt-patch", "--restore", library).status == 0
    assert library.read_bytes() == before
