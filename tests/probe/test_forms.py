"""The instruction table, compared with ptxas: each instruction is accepted from the table's version and target on."""

import re
import subprocess

import pytest

from gpt.probe.forms import SPECIAL, _since, forms
from gpt.ptx.quick import parse_instruction
from gpt.ptx.types import SPECIAL as TYPES
from gpt.ptx.types import VECTORS, types_of
from tests import cuda
from tests.tiers import every

HEAD = ".version {}.{}\n.target sm_{}\n.address_size 64\n.visible .entry k()\n{{\n"
REGISTERS = {"pred": "p", "b8": "c", "b16": "h", "b32": "r", "b64": "d"}
DECLARED = "".join(f".reg .{type_} %{name}<9>; " for type_, name in REGISTERS.items()) + "\n"
TARGETS = {30: (3, 0), 50: (4, 0), 53: (4, 2), 61: (5, 0), 70: (6, 0), 75: (6, 3), 80: (7, 0), 86: (7, 1), 90: (7, 8)}
TARGETS |= {100: (8, 6)}
VERSIONS = [(6, 2), (6, 5), (7, 0), (7, 1), (7, 2), (7, 6), (7, 7), (7, 8), (8, 0), (8, 1), (8, 6), (8, 8), (9, 0)]


def written(name, count):
    """Return a form with registers that it accepts."""
    types = types_of(parse_instruction(f"{name} {', '.join('x' * count)};"))
    found = []
    for number, type_ in enumerate(types):
        plain = type_ if type_ in REGISTERS else "b" + re.sub(r"\D", "", type_ or "")
        found.append(f"%{REGISTERS[plain]}{number}" if type_ else "L")
    if name.startswith("lop3"):
        found[4] = "0x96"
    return f"{name} {', '.join(found)};"


def special(name):
    """Return an instruction that reads a special register."""
    type_ = TYPES[name]
    part = ".x" if name in VECTORS else ""
    return f"mov.{type_} %{'d' if type_.endswith('64') else 'r'}0, {name}{part};"


LINES = {written(*form): since for form, since in forms().items()}
LINES |= {special(name): _since(*SPECIAL.get(name, "0 0").split()) for name in TYPES}


def refused(version, target, folder):
    """Return the lines that ptxas rejects in a module of this version and target."""
    head = HEAD.format(*version, target) + DECLARED
    (folder / "k.ptx").write_text(head + "\n".join(LINES) + "\nL:\n}\n")
    command = [cuda.tool("ptxas"), f"-arch=sm_{max(target, 75)}", folder / "k.ptx", "-o", folder / "k.cubin"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    found = {int(line) - head.count("\n") - 1 for line in re.findall(r"line (\d+); (?:error|fatal)", done.stderr)}
    assert done.returncode == 0 or found, done.stderr
    return {line for number, line in enumerate(LINES) if number in found}


@pytest.mark.parametrize(
    ("version", "target"),
    every(4, [(version, max(t for t, first in TARGETS.items() if first <= version)) for version in VERSIONS])
    + every(4, [((9, 0), target) for target in list(TARGETS)[:-1]]),
)
def test_ptxas_takes_a_form_as_long_as_the_table_says(version, target, tmp_path):
    expected = {line for line, since in LINES.items() if since.version > version or since.target > target}
    assert refused(version, target, tmp_path) == expected
