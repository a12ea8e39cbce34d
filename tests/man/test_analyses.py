"""gpt-analyze(1) and docs/analyses.md list every analysis, in each place that gpt(7) names."""

import re
from pathlib import Path

import pytest

from gpt.stages.analyze import ANALYSES, _load

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "man" / "man1"
PAGE = (PAGES / "gpt-analyze.1").read_text()
DRAWN = (ROOT / "docs" / "analyses.md").read_text()
NOT_DRAWN = {  # analyses that docs/analyses.md may leave out, and why
    "events": "makes no picture",
    "export": "makes no picture",
    "stacks": "no run on a GPU has been drawn yet",
    "tokens": "no run on a GPU has been drawn yet",
    **dict.fromkeys(
        ("roofline", "program_progress", "tensorop_count", "bank_conflict", "branch_divergence", "maps"),
        "no run on a GPU has been drawn since its picture changed",
    ),
}


def section(title):
    """Return the text of a section of gpt-analyze(1)."""
    return PAGE.partition(f"\n.Sh {title}\n")[2].partition("\n.Sh ")[0]


PLACES = {  # where analyses are listed, and those found there
    "the SYNOPSIS of its own page, gpt-analyze-NAME(1)": [
        name
        for page in PAGES.glob("gpt-analyze-*.1")
        for name in re.findall(r"^\.Nm gpt-analyze\n\.Cm (\w+)$", page.read_text(), re.M)
        if page.stem == f"gpt-analyze-{name}"
    ],
    "WHICH ANALYSIS in gpt-analyze(1)": re.findall(r"\bTa Cm (\w+)", section("WHICH ANALYSIS")),
    "docs/analyses.md, with a picture that tests/lab/pictures.py draws": {
        *re.findall(r"`gpt-analyze (\w+)", DRAWN), *NOT_DRAWN,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ANALYSES)
def test_analysis_is_listed_everywhere(name):
    missing = [place for place, found in PLACES.items() if name not in found]
    assert not missing, f"'{name}' is missing in: {'; '.join(missing)}"


def test_analyses_that_run_on_a_cluster_are_listed():
    lines = re.findall(r"^\.It (.*) Ta yes; workers send (sums|the rows)", section("MANY RANKS"), re.M)
    listed = {name: what == "the rows" for line, what in lines for name in re.findall(r"Cm (\w+)", line)}
    merged = {name: _load(name).sends for name in ANALYSES if _load(name).merges}
    assert listed == merged, "MANY RANKS in gpt-analyze(1) must list the analyses that can be merged"
