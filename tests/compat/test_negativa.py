"""Negativa-ML's LIB.json: written, read, and rejected."""

import io
import json
import os

import pytest

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.compat.negativa import path_of, read_spans, write_spans, write_trace
from gpt.stream import wire
from tests.stages.tools import extract, located, patch, run

USED = "_Z3onePf\n"


def test_round_trip(tmp_path):
    spans = [(10, 20), (30, 31), (1 << 40, (1 << 40) + 1)]
    write_spans(tmp_path / "new", "dir/lib.so.1", spans)
    assert path_of(tmp_path / "new", "dir/lib.so.1") == tmp_path / "new" / "lib.so.1.json"
    assert read_spans(tmp_path / "new", "elsewhere/lib.so.1") == spans
    value = json.loads((tmp_path / "new" / "lib.so.1.json").read_text())
    assert value["so_path"].endswith("/dir/lib.so.1")
    assert value["spans"][0] == {"start": 10, "end": 20}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lib.so.1.json"]


def test_only_regular_files_are_replaced(tmp_path):
    """An example is /dev/stdout, which the superuser could replace."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(GptError, match="not a regular file"):
        write_trace(tmp_path / "pipe", [], [])
    write_trace(tmp_path / "link", [], ["k"])
    assert json.loads((tmp_path / "link").read_text())["detected_kernels"] == ["k"]
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "file"}
    assert (tmp_path / "file").read_text() == "precious" and not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"spans": 1}', '{"spans": [1]}', '{"spans": [{"start": 1}]}',
        '{"spans": [{"start": -1, "end": 2}]}',
        '{"spans": [{"start": 1.5, "end": 2}]}', '{"spans": [{"start": true, "end": 2}]}', '{"a":' * 100_000, "\xff",
        '{"spans": [{"start": "1", "end": "2"}]}',
    ],
    ids=range(12),
)  # fmt: skip
def test_malformed_span_files_are_refused(tmp_path, text):
    (tmp_path / "lib.so.json").write_text(text)
    with pytest.raises(MalformedError, match="not a span file of Negativa-ML"):
        read_spans(tmp_path, "lib.so")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"lib\.so\.json is absent"):
        read_spans(tmp_path, "lib.so")


@pytest.mark.full
def test_spans_out_and_in_give_the_same_library(sample, tmp_path):
    library = sample("none")
    decided = located(library, USED, "--spans-json", str(tmp_path / "spans"))
    ours = patch(decided, "-o", tmp_path / "ours")
    given = run("gpt-locate", "--spans-json", tmp_path / "spans", data=extract(library).out)
    assert given.status == 0, given.err
    assert {span["reason"] for span in given.kind("span")} == {"given"}
    theirs = patch(given.out, "-o", tmp_path / "theirs")
    assert {**ours, "output": ""} == {**theirs, "output": ""}
    tallies = {tally["reason"]: tally for tally in given.kind("tally")}
    assert list(tallies) == ["given", "kept"]
    told = [record for record in wire.read_records(io.BytesIO(decided), "") if record["kind"] == "tally"]
    for key in ("elements", "kernels", "bytes"):
        assert tallies["kept"][key] == sum(tally[key] for tally in told if tally["reason"] == "kept")
        assert tallies["given"][key] == sum(tally[key] for tally in told if tally["reason"] != "kept")
    name = library.name
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_a_library_without_spans_file_is_a_fault_and_stays(sample, tmp_path):
    done = run("gpt-locate", "--spans-json", tmp_path, data=extract(sample("none")).out)
    assert (done.status, done.kind("span")) == (4, [])
    assert [record["level"] for record in done.kind("diag")] == ["error"]
