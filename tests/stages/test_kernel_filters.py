"""Options that select kernels by name follow the same rule in all tools.

An empty value is a usage error, because it may come from a script's empty variable. Repeated options add up. If one of
several selects nothing, a warning names it; if nothing is selected at all, that's an error.
"""

import pytest

from gpt.stream import records
from tests.stages.tools import run
from tests.trace import forge

PTX = b"""//
.version 8.0
.target sm_90
.address_size 64
.visible .entry alpha() { ret; }
.visible .entry beta() { ret; }
"""
PART = "names no part of a kernel's name"


@pytest.fixture
def kernels(tmp_path):
    """Return a file with two kernels, as PTX and as a stream, and a trace that has launched one of them."""
    (tmp_path / "k.ptx").write_bytes(PTX)
    (tmp_path / "k.mp").write_bytes(run("gpt-extract", "--ptx", "k.ptx", cwd=tmp_path).out)
    launches = forge.calls([forge.launch(1000, 10, 1, 2)], forge.LAUNCH)
    known = [forge.api(1, "cuLaunchKernel"), records.make("function", id=2, name="alpha")]
    (tmp_path / "t.mp").write_bytes(forge.pack(forge.trace(*known, launches, forge.launches({2: 1}))))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "option", "fact"),
    [
        ("gpt-extract k.ptx", "--kernel", "names no kernel"),
        ("gpt-asm --arch host k.mp", "--kernel", "names no kernel"),
        ("gpt-analyze summary t.mp", "--kernel", "names no kernel"),
        ("gpt-locate --used k.ptx --arch sm_90", "--keep", "names no kernel"),
        ("gpt-ptx-probe -p block_sched k.mp", "-k", PART),
        ("gpt-ptx-probe -p block_sched k.mp", "--filter", PART),
        ("gpt-sass-probe --explain k.mp", "-k", PART),
        ("gpt-sass-probe --explain k.mp", "--filter", PART),
        ("gpt-neutrino -p block_sched true", "-k", PART),
        ("gpt-neutrino -p block_sched true", "--filter", PART),
    ],
)
def test_an_empty_one_is_wrong_usage(kernels, command, option, fact):
    tool, *words = command.split()
    for value in ("", ":", "::")[: 3 if fact == PART else 1]:
        first = words[:1] if tool == "gpt-analyze" else []
        done = run(tool, *first, option, value, *words[len(first) :], cwd=kernels)
        assert (done.status, done.out, done.err) == (2, b"", f"{tool}: error: {option}: '{value}' {fact}\n")


@pytest.mark.parametrize(
    ("command", "options", "warning"),
    [
        ("gpt-extract k.ptx", "--kernel alpha --kernel zzz", "--kernel: matches no kernel: 'zzz'"),
        ("gpt-extract k.ptx", "--kernel alpha --kernel b*", ""),
        ("gpt-ptx-probe -p block_sched k.mp", "-k alp:zzz -k yyy", "-k: matches no kernel: 'zzz:yyy'"),
        ("gpt-ptx-probe -p block_sched k.mp", "-k alp -k bet", ""),
        ("gpt-ptx-probe -p block_sched k.mp", "--filter zzz", ""),  # there's nothing to exclude
        ("gpt-analyze summary t.mp", "--kernel zzz --kernel *", "--kernel: matches no kernel: 'zzz'"),
        ("gpt-analyze summary t.mp", "--kernel *", ""),
    ],
)
def test_one_of_several_that_chooses_nothing_is_named(kernels, command, options, warning):
    tool, *words = command.split()
    done = run(tool, *words, *options.split(), cwd=kernels)
    assert (done.status, done.err) == (0, f"{tool}: warning: {warning}\n" if warning else "")


def test_repeated_ones_add_up(kernels):
    done = run("gpt-ptx-probe", "-p", "block_sched", "-k", "alp", "-k", "bet", "k.mp", cwd=kernels)
    assert {record["name"] for record in done.kind("kernel") if "code" not in record} == {"alpha", "beta"}
    done = run("gpt-ptx-probe", "-p", "block_sched", "--filter", "alp", "--filter", "zzz", "k.mp", cwd=kernels)
    assert {record["name"] for record in done.kind("kernel") if "code" not in record} == {"beta"}
