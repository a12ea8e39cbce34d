"""A sample of the tally (`make tally`) finds no faults; the tally reports faults, and can be interrupted.

The sample has each source of tests/tally/corpus for one target, except the three that nvcc takes longest for, and some
kernels of libraries from PyPI (tests/packages.py).
"""

import json
import re
from pathlib import Path

import pytest

from gpt.ptx.scan import scan_module
from gpt.ptx.tree import Instruction
from tests import cuda
from tests.asm.modules import HEAD, PLAIN, RICH
from tests.packages import PACKAGES, fetch
from tests.stages.tools import extract
from tests.tally import __main__ as tally
from tests.tally import check, report, sources
from tests.tally.plan import plan

SLOW = ("blockcub", "cub_all", "thrust_all")
SOURCES = sorted(path for path in (sources.HERE / "corpus").glob("*.cu") if path.stem not in SLOW)
STATUSES = {"woven", "nowhere", "left"}
LONG = 20_000  # kernels from this size on take too long for a sample
NEWEST = b".version 9.0"  # newest PTX version for the ptxas of the tests


def sound(found):
    """Check that the tally found no fault of ours in a kernel, and return the probes that were woven into it."""
    assert found["same"] == "ok"
    assert not tally.is_failure(found)
    assert {result["status"] for result in found["probes"].values()} <= STATUSES, found
    assert list(found["probes"]) == list(check.probes())
    return {name for name, result in found["probes"].items() if result["status"] == "woven"}


@pytest.mark.skipif(not cuda.have_cxx(), reason="no g++")
@pytest.mark.full
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_sources(source, tmp_path):
    archs = [arch for arch in sources.ARCHS if sources.fits(source, arch)]
    arch = archs[SOURCES.index(source) % len(archs)]
    data = sources.compile_source(source, arch, tmp_path / "out.ptx")
    assert check.check_module(data, source.stem) | {"cpu": 0} == {"parsed": "ok", "same": "ok", "cpu": 0}
    module = scan_module(data, source.stem)
    assert module.entries
    for number, entry in enumerate(module.entries[:4]):
        found = check.check_kernel(module, entry.name, alone=number == 0)
        woven = sound(found)
        if source.stem == "recurse":
            assert all("calls through a pointer" in result["why"] for result in found["probes"].values())
        else:
            assert {"block_sched", "warp_sched"} <= woven


@pytest.mark.full
@pytest.mark.parametrize("name", ["bitsandbytes", "curand", "xgboost"])
def test_libraries(name):
    records = extract("--ptx", fetch(PACKAGES[name])).kind("ptx")
    swept = 0
    for record in records[:: max(1, len(records) // 4)]:
        module = scan_module(re.sub(rb"\.version 9\.[1-9]", NEWEST, record["data"]), record["module"])
        for entry in [entry for entry in module.entries if entry.end - entry.start < LONG][:2]:
            found = check.check_kernel(module, entry.name, alone=False)
            if report.is_ours(found["same"]):
                sound(found)
                swept += 1
    assert swept >= 2


@pytest.mark.full
def test_tree_with_different_output_is_detected(monkeypatch):
    module = scan_module(RICH.encode())
    assert sound(check.check_kernel(module, "calls", alone=False))
    original = Instruction.__str__
    monkeypatch.setattr(Instruction, "__str__", lambda self: original(self).replace("frame+8", "frame+12"))
    assert check.check_kernel(module, "calls", alone=False)["same"] == "differs"
    assert "prints other tokens" in check.check_module(RICH.encode(), "rich")["parsed"]


def test_weave_that_does_not_assemble_or_unweave_is_detected(monkeypatch):
    module = scan_module(PLAIN.encode())

    def tampered(old, new):
        def weave(data, *rest, **more):
            woven = original(data, *rest, **more)
            return type(woven)(**vars(woven) | {"data": woven.data.replace(old, new)})

        return weave

    original = check.weave
    for change, why in (((b"mov.u64", b"mvo.u64"), "ptxas"), ((b"ret;", b"ret ;"), "unweaving")):
        monkeypatch.setattr(check, "weave", tampered(*change))
        found = check.check_kernel(module, "plain", alone=False)
        assert tally.is_failure(found)
        assert why in found["probes"]["block_sched"]["why"]


def test_kernel_refused_by_ptxas_is_not_a_failure():
    module = scan_module(PLAIN.replace("cvta.to", "cvat.to").encode())
    found = check.check_kernel(module, "plain", alone=True)
    assert found["same"].startswith("ptxas: ")
    assert found["probes"] == {}
    assert not tally.is_failure(found)


def test_uncuttable_module_is_a_failure():
    found = check.check_module(b".version 8.0\n.target sm_80\n) \n", "torn")
    assert found["parsed"].startswith("torn:3:1: ")
    assert tally.is_failure(found)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Return two corpora of small modules, in a separate cache."""
    monkeypatch.setattr(sources, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(tally, "LINES", tmp_path / "cache" / "lines.jsonl")
    monkeypatch.setattr(tally, "RESULTS", tmp_path / "results" / "tally.json")
    monkeypatch.setattr(sources, "newest_cuda", lambda: tmp_path)
    texts = {"rich": RICH.encode(), "again": RICH.encode(), "plain": PLAIN.encode()}
    made = {
        "one": lambda folder, jobs: iter(texts.items()),
        "two": lambda folder, jobs: iter([("bare", HEAD.encode())]),
    }
    monkeypatch.setattr(sources, "CORPORA", made)
    return texts


def test_everything_is_done_once_and_added_up(corpus, capsys, monkeypatch):
    assert tally.main(["-j", "1"]) == 0
    lines = tally.LINES.read_text()
    assert len(lines.splitlines()) == 3 + 3  # modules and kernels; identical texts count once
    (summary,) = [json.loads(tally.RESULTS.read_text())]
    one, two = summary["corpora"]["one"], summary["corpora"]["two"]
    assert (one["modules"], one["kernels"], one["kernels_swept"], one["kernels_same"]) == (2, 3, 3, 3)
    assert (two["modules"], two["modules_parsed"], two["kernels"]) == (1, 1, 0)
    assert sum(one["probes"].values()) == 3 * len(check.probes())
    assert one["probes"]["failed"] == 0
    added = summary["added"]["block_sched"]
    assert added["kernels"] == 3
    assert added["median"] <= added["max"] < 20
    assert "3 of 3" in capsys.readouterr().out
    assert tally.main(["-j", "1", "--stale"]) == 0  # there's nothing left to do
    assert tally.LINES.read_text() == lines
    tally.LINES.unlink()  # as if on another machine
    assert tally.main(["-j", "1", "--stale"]) == 0
    assert tally.LINES.read_text() == lines
    monkeypatch.setattr(tally, "code", lambda: "other")
    assert tally.main(["-j", "1", "--stale"]) == 0  # everything is left to do
    assert len(tally.LINES.read_text().splitlines()) == 2 * len(lines.splitlines())
    assert tally.main(["--fresh", "--report"]) == 0
    assert json.loads(tally.RESULTS.read_text())["corpora"]["one"]["kernels_swept"] == 0


@pytest.mark.full
def test_an_interrupted_run_is_taken_up_and_failures_are_tried_again(corpus):
    tally.main(["-j", "1"])
    lines = tally.LINES.read_bytes().splitlines(keepends=True)
    failed = {**json.loads(lines[1]), "same": "differs"}
    rest = b"".join(lines[2:-1]) + lines[-1][:20]  # the last line is truncated
    tally.LINES.write_bytes(lines[0] + json.dumps(failed).encode() + b"\n" + rest)
    assert tally.main(["--report"]) == 1
    assert json.loads(tally.RESULTS.read_text())["failed"] == 1
    assert tally.main(["-j", "1"]) == 0
    again = [(line["module"], line["kernel"]) for line in tally.read_lines()]
    assert len(again) == len(set(again)) + 1
    assert len(set(again)) == len(lines)


@pytest.mark.full
def test_unavailable_corpus_is_reported(corpus, monkeypatch, capsys):
    def fail(folder, jobs):
        raise RuntimeError("no such wheel")
        yield

    monkeypatch.setitem(sources.CORPORA, "two", fail)
    assert tally.main(["-j", "1"]) == 4
    assert "tally: error: two: no such wheel" in capsys.readouterr().err
    assert json.loads(tally.RESULTS.read_text())["corpora"]["one"]["kernels_swept"] == 3


def test_readme_has_the_tables_of_the_results():
    summary = json.loads(tally.RESULTS.read_text())
    readme = (Path(__file__).parents[2] / "docs/measured.md").read_text().splitlines()
    lines = [line for table in report.tables(summary) for line in report.markdown(table)]
    assert len(lines) == 2 * 2 + len(sources.CORPORA) + 1 + 3
    assert [line for line in lines if line not in readme] == []


def test_every_stratum_comes_before_a_second_of_any():
    def module(number, corpus, target, size, kernels):
        return sources.Module(
            corpus, "", "", f"{number:03}", "8.0", target, size, [f"k{n}" for n in range(kernels)], [9] * kernels
        )

    modules = [module(n, "a", "sm_90", 5000, 9) for n in range(20)] + [module(20, "a", "sm_80", 5000, 3)]
    modules += [module(21, "a", "sm_90", 9_000_000, 30), module(22, "b", "sm_90", 5000, 2)]
    pieces = plan(modules)
    first = {"000": True, "020": True, "021": False, "022": True}
    assert {piece.module.digest: piece.whole for piece in pieces[:4]} == first
    assert pieces[-1].module.digest == "021"
    done = sorted((piece.module.digest, kernel) for piece in pieces for kernel, _ in piece.kernels)
    assert done == sorted((module.digest, kernel) for module in modules for kernel in module.kernels)
    assert sum(piece.whole for piece in pieces) == len(modules)
    assert plan(reversed(modules)) == pieces
