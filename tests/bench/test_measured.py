"""The tables of docs/measured.md match the committed figures."""

import json
from pathlib import Path

from tests.bench import memory, probed, sass, timeline, weave, wheels
from tests.bench.run import READ, WHEELS, reading_table, zstd_table
from tests.tally.report import markdown

ROOT = Path(__file__).parents[2]


def test_page_has_the_table_of_the_results():
    result = json.loads((ROOT / "docs/figures/bench/weave.json").read_text())
    lines = list(markdown(weave.table(result["kernels"])))
    measured = [probe for probe in weave.PROBES if weave.of_probe(result["kernels"], probe)]
    assert len(lines) == 2 + len(measured) and set(weave.PROBES) - set(measured) <= {"warp_ranges"}, "newer than these"
    page = (ROOT / "docs/measured.md").read_text()
    assert "\n".join(lines) in page
    assert f"{result['bounds'][-1]['value']:.2f} s of CPU time" in page


def test_page_has_the_figures_of_reading():
    reading = json.loads((ROOT / "docs/figures/bench/slim.json").read_text())["reading"]
    assert list(reading["libraries"]) == list(READ)
    assert "\n".join(reading_table(reading)) in (ROOT / "docs/measured.md").read_text()


def test_page_has_the_figures_of_zstd():
    rows = json.loads((ROOT / "docs/figures/bench/slim.json").read_text())["zstd"]
    assert rows.keys() <= WHEELS.keys()
    assert "\n".join(zstd_table(rows)) in (ROOT / "docs/measured.md").read_text()


def test_page_has_the_figures_of_wheels():
    figures = json.loads((ROOT / "docs/figures/bench/wheels.json").read_text())
    assert figures["wheels"].keys() <= {*wheels.WHEELS}
    assert "\n".join(wheels.table(figures)) in (ROOT / "docs/measured.md").read_text()


def test_page_has_the_figures_of_timelines():
    result = json.loads((ROOT / "docs/figures/bench/timeline.json").read_text())
    assert result["spans"] == timeline.SPANS
    assert "\n".join(timeline.table(result)) in (ROOT / "docs/measured.md").read_text()


def test_page_has_the_figures_of_memory():
    result = json.loads((ROOT / "docs/figures/bench/memory.json").read_text())
    lines = memory.table(result, json.loads(memory.BEFORE.read_text()))
    assert "\n".join(lines) in (ROOT / "docs/measured.md").read_text()
    assert {f"{calls}" for calls in memory.CALLS} == {*result["runs"]["gaps"]}


def test_page_has_the_figures_of_probed_launches():
    figures = json.loads((ROOT / "docs/figures/bench/probed.json").read_text())["ns"]
    assert {len(rounds) for rounds in figures.values()} == {8}
    assert "\n".join(probed.table(figures)) in (ROOT / "docs/measured.md").read_text()


def test_page_has_the_figures_of_machine_code():
    result = json.loads((ROOT / "docs/figures/bench/sass.json").read_text())
    page = (ROOT / "docs/measured.md").read_text()
    assert bool(result["differing"]) == ("The cubins differ" in page)
    for one in result["runs"]:
        for figures in one.values():
            assert {len(rows) for rows in figures["read and cut, cut again, weave, ms"].values()} == {result["kernels"]}
    assert "\n".join(sass.table(result)) in page
