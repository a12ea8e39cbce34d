"""The floors of runtime/hook, its folders: entry uses probe, probe uses watch, watch uses write, never upwards."""

import re
import subprocess

import pytest

from tests.runtime import hooked

RUNTIME = hooked.ROOT / "runtime"
FLOORS = ["write", "watch", "probe", "entry"]  # from the ground up
FILES = {path.stem: path for path in sorted((RUNTIME / "hook").glob("**/*.[cS]"))}


def floor(path):
    return FLOORS.index(path.parent.name)


def symbols(path):
    """What an object defines for others, and what it uses of them."""
    lines = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines]
    defined = {word[-1] for word in words if word[-2].isupper() and word[-2] not in "UW"}
    return defined, {word[-1] for word in words if word[-2] == "U"}


@pytest.mark.full
def test_no_symbol_is_used_from_below(tmp_path):
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-fPIC", f"-I{RUNTIME}"]
    subprocess.run(["cc", "-c", *flags, *FILES.values()], cwd=tmp_path, check=True)
    found = {name: symbols(tmp_path / f"{name}.o") for name in FILES}
    home = {symbol: path for name, path in FILES.items() for symbol in found[name][0]}
    upwards = {
        (name, symbol)
        for name, (_, used) in found.items()
        for symbol in used & home.keys()
        if floor(home[symbol]) > floor(FILES[name])
    }
    assert not upwards


def test_no_header_is_included_from_below():
    for path in (RUNTIME / "hook").glob("*/*.[chS]"):
        used = re.findall(r'#include "hook/(\w+)/', path.read_text())
        assert all(FLOORS.index(name) < floor(path) for name in used), path


def test_the_readme_names_each_file():
    named = re.findall(r"`(\w+\.[cS])`(?=.*\|)", (RUNTIME / "hook" / "README.md").read_text())
    assert sorted(named) == sorted(path.name for path in FILES.values())
