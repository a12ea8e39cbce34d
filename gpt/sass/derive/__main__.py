"""Make the instruction tables, or compare them with those in the checkout.

    python -m gpt.sass.derive sm_90            # writes gpt/sass/tables/sm_90.txt
    python -m gpt.sass.derive --check sm_90    # exit status 1, and the differences, if it would change

Without names it does every architecture that has facts in gpt/sass/arch.py and that the installed ptxas knows.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
from pathlib import Path

from gpt.asm.find import Tools
from gpt.asm.targets import GpuTarget
from gpt.base.arch import parse_arch
from gpt.base.errors import GptError, MissingError
from gpt.sass.arch import ARCHS
from gpt.sass.derive.table import derive_table
from gpt.sass.tables import dump_table

TABLES = Path(__file__).parents[1] / "tables"
# Instructions that only some GPUs of a number have: their targets, whose code has all the others too.
COMPILED_AS = {"sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}


def find_tools(arch: str) -> tuple[str, str, str]:
    """Return ptxas, nvdisasm and their versions, for the table's title. Raises MissingError."""
    ptxas = Tools(None).choose(None, GpuTarget(*parse_arch(arch)))
    nvdisasm = Path(ptxas.path).with_name("nvdisasm")
    if not nvdisasm.exists():
        raise MissingError(f"no nvdisasm next to {ptxas.path}")
    said = subprocess.run([str(nvdisasm), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"V(\d+\.\d+\.\d+)", said)
    return ptxas.path, str(nvdisasm), f"{ptxas.name}, nvdisasm {version[1] if version else '?'}"


def derive(arch: str) -> tuple[str, list[str]]:
    """Return the text of an architecture's table, and what of it couldn't be explained."""
    target = COMPILED_AS.get(arch, arch)
    table, found = derive_table(target, *find_tools(target))
    left = {f"{one.word:032x} {one.text}: {one.registers}" for one in found.unexplained}
    return dump_table(table), sorted(left)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m gpt.sass.derive", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, don't write")
    parser.add_argument("arch", nargs="*", default=list(ARCHS))
    options = parser.parse_args()
    status = 0
    for arch in options.arch:
        text, left = derive(arch)
        for line in left[:20]:
            print(f"derive: warning: {arch}: {line}", file=sys.stderr)
        path = TABLES / f"{arch}.txt"
        if not options.check:
            path.write_text(text)
            print(f"derive: {path.name}: {text.count(chr(10))} lines", file=sys.stderr)
            continue
        old = path.read_text() if path.exists() else ""
        changes = list(difflib.unified_diff(old.splitlines(True), text.splitlines(True), path.name, "derived"))
        sys.stdout.writelines(changes)
        status = status or int(bool(changes))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GptError as error:
        print(f"derive: error: {error}", file=sys.stderr)
        sys.exit(error.status)
