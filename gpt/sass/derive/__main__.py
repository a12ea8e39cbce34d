"""Make the instruction tables, or compare them with those in the checkout, and the facts in gpt/sass/arch.py.

    python -m gpt.sass.derive sm_90            # writes gpt/sass/tables/sm_90.txt
    python -m gpt.sass.derive --check sm_90    # exit status 1, and the differences, if it would change

Without names, it does every architecture that has facts in gpt/sass/arch.py and that the installed ptxas supports.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from gpt.asm.find import Tools
from gpt.asm.targets import GpuTarget
from gpt.base.arch import parse_arch
from gpt.base.errors import GptError, MissingError
from gpt.base.install import install_command
from gpt.sass.arch import ARCHS
from gpt.sass.derive.facts import find_facts
from gpt.sass.derive.table import derive_table
from gpt.sass.tables import dump_table

TABLES = Path(__file__).parents[1] / "tables"
# Some instructions exist only on some GPUs with the same number; the code of these targets has all the others too.
COMPILED_AS = {"sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}


def find_tools(arch: str) -> tuple[str, str, str]:
    """Return ptxas, nvdisasm and their versions, for the table's title. Raises MissingError.

    The wheels take precedence over PATH: their versions are pinned, and the committed tables were made with them.
    """
    given = os.environ.get("GPT_PTXAS")
    wheels = [path for place in _wheels() for path in sorted(place.glob("cu[0-9]*/bin/ptxas"), reverse=True)]
    for path in [given] if given else [*map(str, wheels), None]:
        ptxas = Tools(path).choose(None, GpuTarget(*parse_arch(arch)))
        beside = Path(ptxas.path).with_name("nvdisasm")
        nvdisasm = str(beside) if beside.exists() else shutil.which("nvdisasm")
        if nvdisasm:
            said = subprocess.run([nvdisasm, "--version"], capture_output=True, text=True, check=True).stdout
            version = re.search(r"V(\d+\.\d+\.\d+)", said)
            return ptxas.path, nvdisasm, f"{ptxas.name}, nvdisasm {version[1] if version else '?'}"
    raise MissingError(f"no nvdisasm: {install_command('nvidia-cuda-nvdisasm')}")


def _wheels() -> list[Path]:
    spec = find_spec("nvidia")
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def derive(arch: str) -> tuple[str, list[str]]:
    """Return the text of an architecture's table, and what couldn't be explained."""
    target = COMPILED_AS.get(arch, arch)
    table, found = derive_table(target, *find_tools(target))
    left = {f"{one.word:032x} {one.text}: {one.registers}" for one in found.unexplained}
    text = dump_table(table)
    if found.left_out:  # see gpt/sass/derive/table.py
        title, made_with, rest = text.split("\n", 2)
        omitted = " ".join(f"{number:03x}" for number in found.left_out)
        text = f"{title}\n{made_with}\n# left out: {omitted}\n{rest}"
    return text, sorted(left)


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
        facts = find_facts(arch, *find_tools(arch)[:2])
        if facts != ARCHS[arch]:
            print(f"-{ARCHS[arch]}\n+{facts}")
        status = status or int(bool(changes) or facts != ARCHS[arch])
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GptError as error:
        print(f"derive: error: {error}", file=sys.stderr)
        sys.exit(error.status)
