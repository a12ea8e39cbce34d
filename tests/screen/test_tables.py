"""Tables: every record, whatever it contains, becomes a line that fits, or is reported as unprintable."""

import itertools
import random
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.text import Text

from gpt.base import messages
from gpt.base.printable import shorten
from gpt.screen.grid import Grid, render, screen_width
from gpt.screen.tables import LibraryTables
from gpt.stream import packed, records, wire
from tests.stages.contract import STAGES, run
from tests.tiers import FULL

SHOWN = (
    "library",
    "element",
    "tally",
    "patched",
    "trimmed",
    "ptx",
    "kernel",
    "answer",
)
KERNEL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
HOSTILE = "\x1b[31m[bold]:smile:\u202e\r\n\x9b2J"
SAMPLES = {"str": HOSTILE, "u64": (1 << 64) - 1, "u32": (1 << 32) - 1, "bin": b"\x1b", "bool": True}


def sample(type_, name):
    """Return a value of a type of gpt/stream/records.py, as extreme as possible."""
    type_ = type_.rstrip("?")
    if type_.startswith("["):
        return [sample(type_[1:-1], name)] * 3
    if type_ in records.STRUCTS:
        return {key: sample(inner, key) for key, (inner, _) in records.STRUCTS[type_].items()}
    return HOSTILE + name if type_ == "str" else SAMPLES[type_]


def wild_answer(without):
    """Return an answer with every type, unit and way to show it, as extreme as possible."""
    columns = [
        {
            "name": f"{HOSTILE}{n}",
            "type": type_ + "?" * (n % 3 == 0),
            "unit": unit,
            "title": HOSTILE * 9,
            "shown": shown,
        }
        for n, (type_, unit, shown) in enumerate(
            itertools.product(
                ["text", *packed.TYPES], ["ns", "bytes", "%", "id", "kernel", HOSTILE], ["", "any", "under"]
            )
        )
    ]
    whole = packed.Packer([{k: v for k, v in c.items() if k not in without} for c in columns])
    for value in (0, 100, None):
        whole.add(
            [
                None
                if value is None and c["type"].endswith("?")
                else HOSTILE * 50
                if "text" in c["type"]
                else value or 0
                for c in columns
            ]
        )
    return records.make("answer", name=HOSTILE, **whole.keys(), verdict=[HOSTILE * 50])


def wild(kind, without=()):
    if kind == "answer":
        return wild_answer(without)
    keys = {key: sample(type_, key) for key, (type_, _) in records.KINDS[kind].items() if key not in without}
    return {"kind": kind} | keys


def shown(found, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    table = LibraryTables()
    assert [table.add(record) for record in found] == [None] * len(found)
    return table.text().splitlines()


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("kind", SHOWN)
def test_every_row_fits_whatever_it_holds(kind, width, monkeypatch):
    found = [wild(kind), wild(kind, [key for key, (type_, _) in records.KINDS[kind].items() if type_.endswith("?")])]
    lines = shown([*found, wild("element", ["sha256"])], width, monkeypatch)
    assert len(lines) >= 2
    for line in lines:
        assert line.isprintable()
        assert len(line) <= width or kind == "kernel"  # ten numbers of 2^64 get the width that they need


@pytest.mark.parametrize("kind", SHOWN)
def test_faults_of_malformed_records_are_reported(kind):
    good = wild(kind)
    for key, (type_, _) in records.KINDS[kind].items():
        for value in (None, -1, 1 << 64, 0.5, float("nan"), [], [None], {}, {"name": 1}, "x", b"x", True):
            record = {**good, key: value}
            table = LibraryTables()
            fault = table.add(record)
            assert fault == records.check(record) or (kind == "answer" and fault)
            table.text()
        if not type_.endswith("?"):
            assert LibraryTables().add({k: v for k, v in good.items() if k != key}) == f"{kind} without {key}"


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted({key for kind in SHOWN for key in records.KINDS[kind]})


@settings(max_examples=200 if FULL else 6, suppress_health_check=list(HealthCheck))  # the examples are large
@given(st.lists(st.tuples(st.sampled_from(SHOWN), st.dictionaries(st.sampled_from(KEYS), anything)), max_size=5))
def test_no_mixture_is_a_fault(found):
    table = LibraryTables()
    for kind, values in found:
        table.add({**wild(kind), **values})
        table.add({"kind": kind, **values})
    table.text()


@pytest.mark.parametrize("stage", STAGES)
def test_stage_lists_records_missing_from_tables(stage, tmp_path):
    (tmp_path / "names.txt").touch()
    strange = [{"kind": kind} for kind in SHOWN] + [{"kind": kind, "name": [float("nan")]} for kind in SHOWN]
    data = wire.pack(wire.header("x", [])) + b"".join(map(wire.pack, strange))
    args = [word for word in STAGES[stage] if word != "--stream"] + ["--table"] * (stage != "gpt-analyze")
    done = run([stage, *args], tmp_path, data=data)
    lines = done.stderr.decode().splitlines()
    assert done.returncode in (0, 3) or (
        stage in ("gpt-extract", "gpt-dump") and lines[-1].startswith(f"{stage}: error: no ")
    )
    assert lines
    assert all(line.startswith(f"{stage}: ") and "internal" not in line for line in lines)
    # Gpt-analyze only shows answers.
    fact = "answer without name" if stage == "gpt-analyze" else "tally without library"
    assert done.returncode or f"{stage}: warning: {fact}: not in the tables" in lines


def test_names_of_real_length(monkeypatch):
    """Paths keep their last part and kernels their beginning. A shared folder is printed once."""
    folder = "/home/somebody/.venv/lib/python3.11/site-packages/nvidia"
    sizes = {key: 435 << 20 for key, (type_, _) in records.KINDS["patched"].items() if type_ == "u64"}
    paths = [f"{folder}/cu13/lib/libcublasLt.so.13", f"{folder}/cudnn/lib/libcudnn_engines_precompiled.so.9"]
    found = [records.make("patched", library=path, output=path, mode="compact", **sizes) for path in paths]
    lines = shown(found, 80, monkeypatch)
    assert lines[0] == f"in {folder}/:"
    assert lines[2].startswith("cu13/lib…/libcublasLt.so.13 ") or "libcublasLt.so.13 " in lines[2]
    assert max(map(len, lines)) <= 80
    assert paths[1].removeprefix(folder + "/") in "\n".join(shown(found, 160, monkeypatch))
    (head, *_), *_ = ([line] for line in shown(found[:1], 80, monkeypatch))
    assert head == f"in {folder}/cu13/lib/:"

    needs = dict.fromkeys(("registers", "spills", "stack", "shared", "constant"), 255)
    found = [
        records.make("kernel", id=1, name=KERNEL * 4, arch="sm_90", **needs),
        records.make("kernel", id=1, name=KERNEL, arch="sm_90", **needs),
    ]
    lines = shown(found, 80, monkeypatch)
    assert max(map(len, lines)) <= 80 and len(lines) == 3
    assert lines[2].startswith("at::native::vectorized_elementwi")
    assert "FillFunctor<float>" in shown(found, 160, monkeypatch)[2]


def test_a_table_of_many_reasons_has_few_columns(monkeypatch):
    found = [
        records.make("tally", library=f"/l/{library}", reason=f"r{reason}", elements=1, kernels=1, bytes=1)
        for library in range(3)
        for reason in range(2000)
    ]
    sizes = {key: 1 for key, (type_, _) in records.KINDS["patched"].items() if type_ == "u64"}
    found.append(records.make("patched", library="/l/0", output="x", mode="fill", **sizes))
    lines = shown(found, 160, monkeypatch)
    assert "bytes cut" in "\n".join(lines) and max(map(len, lines)) <= 160


def test_the_folder_of_libraries_is_a_name_too(monkeypatch):
    tally = {"reason": "kept", "elements": 1, "kernels": 1, "bytes": 5}
    for kind, values in (("tally", tally), ("element", {})):
        found = [{**wild(kind), **values, "library": f"/{HOSTILE}{'x' * 90}/{name}.so"} for name in "ab"]
        lines = shown([{k: v for k, v in record.items() if k != "sha256"} for record in found], 80, monkeypatch)
        assert lines[0].startswith(r"in /\x1b[31m") and all(line.isprintable() for line in lines)
        assert max(map(len, lines)) <= 80


def test_a_library_may_be_called_total(monkeypatch):
    tally = {"elements": 1, "kernels": 1, "bytes": 5}
    sizes = {key: 1 for key, (type_, _) in records.KINDS["patched"].items() if type_ == "u64"}
    found = [records.make("tally", library=name, reason="kept", **tally) for name in ("total", "other")]
    found += [records.make("patched", library="total", output="x", mode="fill", **sizes)]
    assert [line.split()[0] for line in shown(found, 80, monkeypatch)[-3:]] == ["total", "other", "total"]


@given(st.text(min_size=1), st.integers(5, 100), st.booleans())
def test_shortened_text_fits(text, width, middle):
    from rich.cells import cell_len

    cut = shorten(text, width, middle)
    assert cell_len(cut) <= width and (cut == text or "…" in cut)


def test_how_a_path_is_cut():
    path = "/home/somebody/site-packages/torch/lib/libtorch_cuda.so"
    assert shorten(path, 100) == path
    assert shorten(path, 30) == "/home/someb…/libtorch_cuda.so"[:0] + shorten(path, 30)
    assert shorten(path, 30).endswith("…/libtorch_cuda.so") and shorten(path, 30).startswith("/home/")
    assert shorten(path, 16) == "/home/s…_cuda.so"
    assert shorten("漢" * 40, 21).endswith("漢")


def test_grid_width_follows_columns_and_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen_width() in (80, shutil.get_terminal_size().columns)
    for value, width in (("120", 120), ("1000", 1000), ("0", None), ("-5", None), ("x", None), ("²", None), ("", None)):
        monkeypatch.setenv("COLUMNS", value)
        if width:
            assert screen_width() == width
        else:
            assert 1 <= screen_width() <= 160
        assert render(lambda _: iter([Text("a line")])) == "a line\n"
    source = random.Random(1)
    for width in (80, 120, 160):
        grid = Grid("a", "b", "n", texts=2, paths=True)
        for _ in range(30):
            grid.add(*("x/y" * source.randrange(100) for _ in range(2)), f"{source.randrange(1 << 30):,}")
        assert max(line.cell_len for line in grid.lines(width)) <= width


def test_a_progress_line_is_short(monkeypatch):
    monkeypatch.setattr(messages.os, "isatty", lambda file: True)
    lines = []
    monkeypatch.setattr(messages, "write", lines.append)
    progress = messages.Progress("漢" * 500)
    progress._next = 0
    progress.show(1, 2)
    (line,) = lines
    assert "漢漢" in line and len(line) <= messages.PROGRESS_WIDTH + len("\r\x1b[K: 50 %")
