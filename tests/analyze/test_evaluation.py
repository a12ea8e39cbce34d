"""docs/evaluation.md and docs/analyses.md: each command exists and takes the options shown."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from gpt.analyze.lib.command import ANSWERED, COMMON, FILTERS
from gpt.stages.analyze import ANALYSES

DOCS = Path(__file__).parents[2] / "docs"
TEXT, DRAWN = ((DOCS / name).read_text() for name in ("evaluation.md", "analyses.md"))
COMMANDS = sorted(set(re.findall(r"`gpt-analyze (?!--script)([^`]*)`", TEXT + DRAWN)))
SEEDS = {"Neutrino's static notebook": range(1, 7), "Neutrino's dynamic notebook": range(1, 8)}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command):
    name, *words = command.split()
    assert name in ANALYSES
    analysis = import_module(f"gpt.analyze.{name}").ANALYSIS
    declared = [*analysis.options.values(), *({} if analysis.lines else ANSWERED).values(), *COMMON.values()]
    infos = [info for one in [*declared, *FILTERS.values()] for info in one.__metadata__]
    known = {flag for info in infos for flag in info.names} | {"--format"}
    assert [word for word in words if word.startswith("-") and word not in known] == []


def test_every_picture_exists():
    drawn = {f"figures/analyses/{file.name}" for file in (DOCS / "figures" / "analyses").iterdir()}
    assert set(re.findall(r"\]\((figures/[^)]*)\)", DRAWN)) == drawn


@pytest.mark.parametrize(("title", "numbers"), SEEDS.items())
def test_each_section_has_a_command(title, numbers):
    part = TEXT.split(f"## {title}")[1].split("\n## ")[0]
    for number in numbers:
        (row,) = re.findall(rf"^\| {number}\. .*$", part, re.M)
        assert "`gpt-" in row


def test_each_of_the_seven_questions_has_a_command():
    part = TEXT.split("## LittleBoy")[1].split("\n## ")[0]
    assert [int(number) for number in re.findall(r"^\| (\d)\. ", part, re.M)] == [*range(1, 8)]
