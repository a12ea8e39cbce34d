"""The layers of runtime/hook are its folders: entry uses probe, probe uses watch, watch uses write, never the other
way.

Within a folder, no two files use each other, directly or through other files. Weak references don't count, because a
file works without them. The hook refers weakly to its stubs, which some processors lack.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.runtime import hooked

RUNTIME = hooked.ROOT / "runtime"
FLOORS = ["write", "watch", "probe", "entry"]  # from bottom to top
FILES = {path.stem: path for path in sorted((RUNTIME / "hook").glob("**/*.c"))}


FOLDERS = [*(f"hook/{name}" for name in FLOORS), "common", "launcher", "follow", "sim", "replace", "cudart"]
VERSIONS = ["-w", '-DGPT_PACKAGE_VERSION="0"', '-DGPT_WEAVER="0"', '-DGPT_GENERATOR="0"']


def floor(path):
    return FLOORS.index(path.parent.name)


def symbols(objects):
    """Return, for each object, the symbols that it defines for others, and the symbols that it needs from others."""
    lines = subprocess.run(["nm", "-A", *objects], capture_output=True, text=True, check=True).stdout
    found = {name_of(path): (set(), set()) for path in objects}
    for line in lines.splitlines():
        path, _, rest = line.rpartition(":")
        *_, kind, symbol = rest.split()
        if kind == "U":
            found[name_of(path)][1].add(symbol)
        elif kind.isupper() and kind != "W":
            found[name_of(path)][0].add(symbol)
    return found


def name_of(path):
    """Return the name of an object's source: make calls the object of a.c a.c.o."""
    return Path(path).name.partition(".")[0]


@pytest.mark.full
def test_no_symbol_is_used_from_below():
    found = symbols([path for path in hooked.hook_objects() if name_of(path) in FILES])
    assert found.keys() == FILES.keys()
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


def circles(needed):
    """Return the largest sets of files that all need each other, directly or not."""
    reached = {}
    for name in needed:
        found, new = set(), {name}
        while new := {other for one in new for other in needed[one]} - found:
            found |= new
        reached[name] = found
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in needed
        if name in reached[name]
    }


def files_of(folder):
    arch = {"hook/entry": "hook", "sim": "sim", "launcher": "launcher"}.get(folder, "none of it")
    return sorted([*(RUNTIME / folder).glob("*.c"), *hooked.ARCH.glob(f"{arch}/*.[cS]")])


def find_circles(found):
    """Return the cycles among files, given the symbols that each defines and uses."""
    home = {symbol: name for name, (defined, _) in found.items() for symbol in defined}
    return circles({name: {home[s] for s in used & home.keys()} - {name} for name, (_, used) in found.items()})


@pytest.mark.full
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_two_files_of_a_folder_need_each_other(folder, tmp_path):
    files = files_of(folder)
    if folder.startswith("hook/"):
        names = {path.stem for path in files}
        objects = [path for path in hooked.hook_objects() if name_of(path) in names]
    else:
        objects = [hooked.compile_object(tmp_path / f"{path.stem}.o", path, *VERSIONS) for path in files]
    assert len(objects) == len(files)
    found = find_circles(symbols(objects))
    assert not found


DEFINITION = re.compile(r"^(?!static\b|extern\b|typedef\b)[a-zA-Z_][^;={}()#]*?\b([a-z]+_\w+)\s*[(=;\[]", re.M)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_two_files_of_a_folder_seem_to_need_each_other(folder):
    """Scanning the text gives the same result without a compiler, but misses uses in macros."""
    found = {}
    headers = "".join(path.read_text() for path in (RUNTIME / folder).glob("*.h"))
    weak = {*re.findall(r"(\w+)[\[(]", "".join(re.findall(r"^(?:extern )?IF_STUBS .*", headers, re.M)))}
    for path in files_of(folder):
        text = re.sub(r'//.*|"(?:\\.|[^"\\\n])*"', "", path.read_text())
        defined = {*(re.findall(r"\.globl (\w+)", text) if path.suffix == ".S" else DEFINITION.findall(text))}
        found[path.stem] = defined, {*re.findall(r"\w+", text)} - defined - weak
    assert not find_circles(found)
