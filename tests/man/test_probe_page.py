"""gpt-probe(5): its examples are read and verified; its helpers and types match the code."""

import re
from pathlib import Path

import pytest

from gpt.probe.model import HELPERS
from gpt.probe.read.load import parse_toml
from gpt.probe.read.python import compile_python
from gpt.probe.read.python_expr import SOURCES, TYPES
from gpt.probe.verify import verify

PAGE = (Path(__file__).parents[2] / "man/man5/gpt-probe.5").read_text()
EXAMPLES = dict(re.findall(r"^\.Bd -literal -offset indent\n\$ cat (\S+)\n(.*?)^\.Ed", PAGE, re.M | re.S))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_good(name):
    read = compile_python if name.endswith(".py") else parse_toml
    file = read(EXAMPLES[name].replace(r"\&", ""), name)
    verify(file)
    assert file.maps


def test_there_is_an_example_of_each_form():
    assert len(EXAMPLES) == 4


def test_helpers_are_listed_with_their_types():
    rows = re.findall(r"^\.It Li ([A-Z][A-Z0-9 ]+) Ta (\S+(?: own)?) Ta", PAGE, re.M)
    assert {name: type_ for names, type_ in rows for name in names.split()} == {
        name: type_ or "its own" for name, type_ in HELPERS.items()
    }


def test_python_names_are_listed():
    named = set(re.findall(r"\bnl\.(\w+)", PAGE))
    assert named <= {*SOURCES, *TYPES}
    assert {name for name in SOURCES if name not in ("in2", "in3", "smid")} <= named
