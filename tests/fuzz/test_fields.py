"""Whatever number or wrong type is in any field of any record, every reader answers, or fails with a one-line message.

`make test` tests a small part; `make test-full` tests every field with every value, each with a quarter of the
analyses. A record that the reader refuses reaches no analysis, which only sees that its trace ends there. Each field
has a dozen such values, so each of them goes to a sixteenth of the analyses, and the next one to others.
"""

from itertools import islice
from pathlib import Path

import pytest

from gpt.stream import records
from tests.fuzz import fields
from tests.fuzz.mutate import unpack
from tests.fuzz.stages import call, stage_main
from tests.fuzz.streams import cubin_stream_seeds, extract_seeds, furnish, kernel_seeds, ptx_stream_seeds
from tests.tiers import FULL, every

PARTS = 64 if FULL else 256
SHARE = 4 if FULL else 44  # each case runs every fourth analysis, or one of them
CODE = {  # streams of code, and the stages that read them
    "locate": (extract_seeds, ("--used", "names.txt")),
    "patch": (kernel_seeds, ("-n", "-o", "slim")),
    "ptx_probe": (ptx_stream_seeds, ("-p", "block_sched")),
    "sass_probe": (cubin_stream_seeds, ("--explain", "-p", "gmem_bytes")),
}
parts = pytest.mark.parametrize("part", every(PARTS, range(PARTS)))


@pytest.fixture
def folder(tmp_path, monkeypatch, sample):
    monkeypatch.chdir(tmp_path)
    furnish(sample)
    Path("before.mp").write_bytes(b"".join(map(fields.pack, fields.trace())))


def iter_slice(cases, part):
    for number, change in islice(enumerate(cases), part, None, PARTS):
        yield number, change()


def questions(number, found, asked):
    step = min(4 * SHARE if any(map(records.check, found)) else SHARE, len(asked))
    return [args for at, args in enumerate(asked) if (at + number) % step == 0]


def test_the_trace_has_every_kind_and_key(folder):
    found = fields.trace()
    assert [fault for record in found if (fault := records.check(record))] == []
    keys = {kind: set() for kind in fields.KINDS}
    for record in found:
        keys[record["kind"]] |= record.keys() - {"kind"}
    missing = {kind: set(records.KINDS[kind]) - keys[kind] for kind in fields.KINDS}
    assert {kind: names for kind, names in missing.items() if names} == {}, "add an example to trace() in fields.py"


def test_each_question_has_an_answer(folder):
    Path("in.mp").write_bytes(b"".join(map(fields.pack, fields.trace())))
    for args in fields.ASKED if FULL else fields.ASKED[::3]:
        done = call(stage_main("analyze"), "gpt-analyze", *args, *(() if args[0] == "diff" else ["in.mp"]))
        assert done.status == 0, (args, done.err)


@parts
def test_any_value_of_a_trace(folder, part):
    for number, found in iter_slice(fields.iter_changes(fields.trace()), part):
        for args in questions(number, found, fields.ASKED):
            fields.ask(found, *args)


@parts
def test_any_number_of_rows_and_buffers(folder, part):
    for number, found in iter_slice(fields.iter_row_changes(fields.trace()), part):
        for args in questions(number, found, fields.ASKED):
            fields.ask(found, *args)


@parts
def test_any_value_of_rows_in_json(folder, part):
    asked = [args for args in fields.ASKED if args[0] != "diff"]
    for number, found in iter_slice(fields.iter_changes(fields.lines()), part):
        for args in questions(number, found, asked):
            fields.ask_json(found, *args)


@parts
def test_any_value_in_used_trace(folder, part, sample):
    Path("stream.mp").write_bytes(extract_seeds(sample)[0])
    base = [{key: value for key, value in record.items() if key != "attached"} for record in fields.trace()]
    for _, found in iter_slice(fields.iter_changes(base), part):
        fields.locate(found, "--allow-incomplete")


@pytest.mark.parametrize("stage", CODE)
@parts
def test_any_value_of_a_stream_of_code(folder, part, stage, sample):
    seeds, args = CODE[stage]
    for _, found in iter_slice(fields.iter_changes(unpack(seeds(sample)[0])), part):
        fields.pass_on(stage, found, *args)


WIDE = [("header", "pid"), ("function", "id"), ("api", "id"), ("device", "index"), ("probed", "function")]


@pytest.mark.parametrize(("kind", "key"), WIDE)
@pytest.mark.parametrize(
    "command",
    every(6, ["block_sched", "summary", "gaps", "stages", "memory", "graphs", "nvtx", "idle", "startup", "launches"]),
)
def test_an_id_beyond_32_bits_is_named(folder, kind, key, command):
    found = fields.trace()
    number = next(at for at, record in enumerate(found) if record["kind"] == kind)
    data = b"".join(map(fields.pack, fields.changed(found, (number, (key,)), 274877907036)))
    done = call(stage_main("analyze"), "gpt-analyze", command, data=data)
    if done.status or kind == "header":  # an analysis ignores kinds that it doesn't use
        assert done.status == 3 and f"{kind}.{key} is not of type u32" in done.err
