"""Plain command lines are read as typer would, but without importing it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base import cli, options
from gpt.base.options import Argument, Option
from gpt.stages.analyze import ANALYSES, _Commands, _no_command
from gpt.stages.asm import asm
from gpt.stages.attach import attach
from gpt.stages.dump import dump
from gpt.stages.extract import extract
from gpt.stages.locate import locate
from gpt.stages.neutrino import neutrino
from gpt.stages.patch import patch
from gpt.stages.ptx_probe import ptx_probe
from gpt.stages.sass_probe import sass_probe
from tests.stages.tools import run
from tests.tiers import examples

TOP = Path(__file__).parents[1]
COMMANDS = [asm, attach, dump, extract, locate, neutrino, patch, ptx_probe, sass_probe]
STAGES = [*COMMANDS, *_Commands(ANALYSES).values()]
VALUES = st.sampled_from(["x", "", "-", "--", "-1", "0", "3", "1.5", "a=b", "sm_90", "zstd", "md", "nan", "1_0", " 7"])
TYPER = {"help_option_names": ["-h", "--help"]}

# Modules that no start needs and that take long to import: 46 ms for typer, 10 for pyelftools, 100 for numpy.
HEAVY = {
    "typer",
    "click",
    "elftools",
    "numpy",
    "rich",
    "lark",
    "multiprocessing",
    "subprocess",
    "tempfile",
    "traceback",
}


def read_by_typer(command, words, words_after):
    """Return the arguments that typer passes to a command, or None if it rejects the words."""
    found = {}

    def keep(**values):
        found.update(values)
        return 0

    wrapped = options.for_typer(command)
    keep.__signature__, keep.__annotations__ = wrapped.__signature__, {}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings=TYPER | ({"allow_interspersed_args": False} if words_after else {}))(keep)
    try:
        app(args=list(words), prog_name="gpt-test", standalone_mode=False)
    except Exception as error:
        return type(error).__name__
    return found


def words_of(command):
    """Return a strategy for command lines with a command's own options, values for them, and unknown options."""
    names = [name for one in options._iter_parameters(command) for name in one.declared.names]
    names = [name for name in names if name not in ("--version", "--path")]  # these end the run
    option = st.sampled_from(names or ["--none"])
    joined = st.builds("{}={}".format, option, VALUES)
    return st.lists(st.one_of(option, VALUES, joined), max_size=6)


@pytest.mark.parametrize("command", STAGES, ids=lambda command: command.__name__)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_a_plain_line_is_read_as_typer_reads_it(command, data):
    words = data.draw(words_of(command))
    try:
        plain = options.read(command, words, command is neutrino)
    except Exception as error:  # any error from a parser
        plain = type(error).__name__
    if plain is not None:
        theirs = read_by_typer(command, words, command is neutrino)
        if isinstance(plain, dict):
            assert repr(plain) == repr({name: theirs[name] for name in plain}), words
        else:  # if a line has two faults, either may be reported
            assert isinstance(theirs, str), words


def sample(
    files: Annotated[list[Path] | None, Argument()] = None,
    count: Annotated[int, Option("--count", "-c", min=1, max=9)] = 2,
    names: Annotated[list[str] | None, Option("--name", "-n")] = None,
    flag: Annotated[bool, Option("--flag", "-f")] = False,
    where: Annotated[str, Option(envvar="GPT_TEST_WHERE")] = "here",
) -> int:
    return 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["a", "-f", "b"], {"files": [Path("a"), Path("b")], "flag": True}),
        (["--count=3", "--name", "x", "-n", "--flag"], {"count": 3, "names": ["x", "--flag"]}),
        (["-c", "1", "--count", "2", "-"], {"count": 2, "files": [Path("-")]}),
        (["--", "-f"], {"files": [Path("-f")]}),
        (["--where", "there"], {"where": "there"}),
    ],
)
def test_plain_lines_are_read_here(words, expected):
    defaults = {"files": None, "count": 2, "names": None, "flag": False, "where": "here"}
    assert options.read(sample, words) == defaults | expected == read_by_typer(sample, words, False)


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["-fc", "3"], ["-c3"], ["--cou", "3"], ["--count", "10"], ["--count"], ["--flag=1"]]
)
def test_all_other_lines_are_left_to_typer(words):
    assert options.read(sample, words) is None


def test_a_variable_of_the_environment_is_left_to_typer(monkeypatch):
    monkeypatch.setenv("GPT_TEST_WHERE", "there")
    assert options.read(sample, []) is None


def test_options_of_typer_itself_are_left_to_it():
    def command(name: Annotated[str, typer.Option()] = "") -> int:
        return 0

    assert options.read(command, []) is None


def test_a_parameter_without_a_default_is_required():
    def command(name: Annotated[str, Option("--name")]) -> int:
        return 0

    assert options.read(command, []) is None
    assert options.read(command, ["--name", "x"]) == {"name": "x"} == read_by_typer(command, ["--name", "x"], False)
    assert isinstance(read_by_typer(command, [], False), str)


def test_parameters_that_only_typer_knows_stay_as_they_are():
    def command(name, count: int = 3, json: cli.Json = False) -> int:
        return 0

    assert options.read(command, ["x"]) is None
    assert read_by_typer(command, ["x", "--count", "4"], False) == {"name": "x", "count": 4, "json": False}
    assert isinstance(read_by_typer(command, [], False), str)


def test_with_words_after_the_first_operand_ends_the_options():
    assert options.read(sample, ["-f", "a", "-f", "--"], True)["files"] == [Path("a"), Path("-f"), Path("--")]


def test_before_a_command_stand_options_of_all():
    with pytest.raises(cli.Done):
        options.read(_no_command, ["--version"])
    assert options.read(_no_command, ["nope"]) is None


def imported(*argv):
    """Return the modules that a run imports."""
    code = f"""
import json, sys
from gpt import executables
sys.argv = {list(argv)!r}
try:
    getattr(executables, {argv[0].removeprefix("gpt-").replace("-", "_")!r})()
finally:
    print(json.dumps(list(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=TOP, timeout=60, check=False)
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize(
    "stage", ["analyze", "attach", "asm", "dump", "extract", "locate", "neutrino", "patch", "ptx-probe", "sass-probe"]
)
def test_the_version_is_printed_without_what_takes_long_to_import(stage):
    assert sorted(imported(f"gpt-{stage}", "--version") & HEAVY - {"subprocess", "tempfile"}) == []


def test_a_file_is_read_without_what_takes_long_to_import(tmp_path):
    file = tmp_path / "k.ptx"
    file.write_text(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n")
    assert sorted(imported("gpt-extract", "--json", str(file)) & HEAVY) == []


def test_no_trace_is_standard_input():
    commands = _Commands(ANALYSES)
    assert [
        name for name in ANALYSES if (options.read(commands[name], []) or {"traces": "?"})["traces"] is not None
    ] == []


def options_with_numbers():
    tools = [([f"gpt-{command.__name__.replace('_', '-')}"], command) for command in COMMANDS]
    analyses = [(["gpt-analyze", name], command) for name, command in _Commands(ANALYSES).items()]
    for words, command in [*tools, *analyses]:
        for one in options._iter_parameters(command):
            if one.type in options.NUMBERS and one.declared:
                yield words, one.declared.names[0] if one.declared.names else f"--{one.name.replace('_', '-')}", one


def test_each_option_with_a_number_refuses_the_rest():
    """Options are tested directly and, once a tool, through typer, which parses a command line again if there's a
    mistake in it.
    """
    checked = set()
    for tool, name, option in options_with_numbers():
        for text in (" 3", "3_0", "\u0663"):
            with pytest.raises(ValueError):
                option.convert([text])
            if (tool[0], name) in checked:
                continue
            done = run(*tool, f"{name}={text}")
            wrong = "is not a valid" in done.err or "not in the range" in done.err
            assert (done.status, wrong, done.err.count("\n")) == (2, True, 1), (tool, name, text, done.err)
        checked.add((tool[0], name))
    assert {("gpt-patch", "--recompress"), ("gpt-asm", "--timeout"), ("gpt-analyze", "--pid")} <= checked
    assert len(checked) > 12
