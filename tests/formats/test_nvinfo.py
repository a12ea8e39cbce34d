"""Facts about kernels in cubins, compared with cuobjdump's, and for random bytes."""

import random
import re

import pytest

from gpt.base.errors import MalformedError
from gpt.formats.cubin import parse_cubin
from gpt.formats.nvinfo import read_needs
from tests import cuda
from tests.asm.modules import RICH, hungry
from tests.formats.mutate import mutants

_USED = re.compile(
    r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:\d+ CONSTANT\[0\]:(\d+)((?: CONSTANT\S+)*)"
)


def assembled(folder, text, *options):
    (folder / "in.ptx").write_text(text)
    cuda.run("ptxas", *options, "in.ptx", "-o", "out.cubin", cwd=folder)
    return folder / "out.cubin"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
@pytest.mark.parametrize("options", [[], ["-c"], ["-O0"]])
def test_needs_are_those_that_cuobjdump_lists(tmp_path, arch, options):
    for text in (RICH, hungry(60)):
        cubin = assembled(tmp_path, text, f"-arch={arch}", *options)
        listed = {
            name: (int(registers), int(stack), int(constant) + sum(map(int, re.findall(r":(\d+)", more))))
            for name, registers, stack, constant, more in _USED.findall(cuda.run("cuobjdump", "-res-usage", cubin))
        }
        needs = read_needs(cubin.read_bytes())
        assert {name: (n.registers, n.stack, n.constant) for name, n in needs.items()} == listed
        assert list(needs) == [symbol["name"] for symbol in parse_cubin(cubin.read_bytes()).kernels]


def test_mutants_are_read_or_refused(tmp_path):
    data = assembled(tmp_path, RICH, "-arch=sm_90").read_bytes()
    rng, read = random.Random(1), 0
    for mutant in mutants(data, "needs", 1000):
        end = rng.choice([len(mutant), rng.randrange(len(mutant))])
        try:
            read += bool(read_needs(mutant[:end]))
        except MalformedError as error:
            assert error.fact
    assert read > 100
