"""Programs whose kernels are machine code, run on the simulated device: each cubin has a twin in PTX that runs in its
place.

A `Folder` makes a cubin from PTX, which becomes its twin. `python -m tests.runtime.twins` is a stage for the end of
gpt-hook's pipeline. If gpt-sass-probe wove probes into a cubin, the stage weaves the same probes into its twin, or gets
the twin from what gpt-asm assembled. Both weavers must add the same parameters and maps. The folder's launcher is a
gpt-hook that finds a gpt-sass-probe next to it, followed by that stage; everything else is from the checkout.

gpt-sim(7), GPT_SIM_TWINS, describes how a twin is found.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt.base.errors import GptError
from gpt.formats.cubin import parse_cubin
from gpt.formats.cubin_drop import drop_kernels
from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.plan.maps import make_map
from gpt.probe.ptx.weave import weave
from gpt.probe.read.load import load_all
from gpt.ptx.prune import pruned
from gpt.ptx.scan import scan_module
from gpt.stream.stage import Stage
from tests import cuda, loaded

ROOT = Path(__file__).parents[2]
ADDRESSES = b".nv.constant4"
STAGES = "gpt-extract", "gpt-ptx-probe", "gpt-asm", "gpt-dump"


def find_addresses(cubin: bytes) -> tuple[int, int]:
    """Return the offset and size of constant bank 4 in a cubin."""
    editor = CubinEditor(cubin)
    number = editor.numbers.get(ADDRESSES)
    if number is None:
        return 0, 0
    return int(editor.original["offset"][number]), int(editor.original["size"][number])


def digest(cubin: bytes) -> str:
    """Return the name of a cubin's twin."""
    start, size = find_addresses(cubin)
    return hashlib.sha256(cubin[:start] + bytes(size) + cubin[start + size :]).hexdigest()


def write(folder: Path, cubin: bytes, text: bytes) -> None:
    """Make PTX the twin of a cubin."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(text)
    Path(file.name).rename(folder / digest(cubin))


def assemble(folder: Path, ptx: Path, arch: str = "sm_90") -> Path:
    """Return the cubin of a file of PTX, which becomes its twin."""
    text = ptx.read_bytes()
    out = folder / f"{hashlib.sha256(text).hexdigest()}.cubin"
    if not out.exists():
        made = out.with_suffix(f".{os.getpid()}")
        cuda.run("ptxas", f"-arch={arch}", ptx, "-o", made)
        cubin = made.read_bytes()
        kernels = {symbol["name"] for symbol in parse_cubin(cubin).kernels}
        # Cut in the same way as by gpt-sass-probe.
        for one in (cubin, *(drop_kernels(cubin, kernels - {name}) for name in kernels)):
            write(folder, one, text)
        made.rename(out)
    return out


class Folder:
    """A folder for cubins, their twins and a launcher."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.launcher = make_launcher(path / "launcher")

    def replace(self, word: str | Path) -> str | Path:
        """If a word of a command line names a file of PTX, return the file of its cubin, else the word itself."""
        return assemble(self.path, word) if isinstance(word, Path) and word.suffix == ".ptx" else word


def make_launcher(folder: Path) -> Path:
    """Make a gpt-hook in a folder, with a pipeline that ends in this stage."""
    folder.mkdir()
    places = loaded.install() / "bin"
    for name in STAGES:
        (folder / name).symlink_to(places / name)
    real, twins = (shlex.quote(str(places / name)) for name in ("gpt-sass-probe", "twins"))
    stage = folder / "gpt-sass-probe"
    stage.write_text(f'#!/bin/bash\nset -o pipefail\n{real} "$@" --original | {twins} "$@"\n')
    stage.chmod(0o755)
    shutil.copy(ROOT / "gpt" / "_runtime" / "gpt-hook", folder)
    return folder / "gpt-hook"


class Twins:
    """One run of the stage, with gpt-sass-probe's options."""

    def __init__(self, stage: Stage, options: list[str]) -> None:
        self._stage = stage
        self._folder = Path(os.environ["GPT_SIM_TWINS"])
        self._files = load_all([options[at + 1] for at, word in enumerate(options) if word == "-p"])
        self._count, self._original = "--count" in options, "--original" in options
        self._ptx: dict[str, Any] = {}
        self._cubin: dict[str, Any] = {}
        self._maps: list[dict[str, Any]] = []

    def handle(self, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a record, and write twins."""
        kind = record["kind"]
        if kind == "module":
            self._ptx, self._cubin = {}, {}
        elif kind == "ptx":
            self._ptx = record
        elif kind == "cubin" and record["id"] == self._ptx.get("id"):
            write(self._folder, record["data"], self._ptx["data"])
            if "original" in record:
                write(self._folder, record["original"], self._ptx["original"])
        elif kind == "cubin":
            self._cubin, self._maps = record, []
            if not self._original:
                record = {key: value for key, value in record.items() if key != "original"}
        elif kind == "map" and self._cubin:
            self._maps.append(record)
        elif kind == "kernel" and self._cubin and "params" in record:
            try:
                self._weave(record)
            except GptError as error:
                yield self._stage.error(error)
        yield record

    def _weave(self, kernel: dict[str, Any]) -> None:
        """Weave the twin of the last cubin."""
        name, cubin = kernel["name"], self._cubin["data"]
        module = scan_module((self._folder / digest(self._cubin["original"])).read_bytes(), name)
        woven = weave(pruned(module, [name]), name, self._files, count=self._count)
        twin = woven.make_kernel(kernel["id"], self._maps[0]["id"], True)
        for key in ("params", "added"):
            ours, theirs = (_places(one[key]) for one in (kernel, twin))
            if ours != theirs:
                raise GptError(f"{key} {ours}, and in its twin {theirs}", name)
        maps = [make_map(one["id"], placed) for one, placed in zip(self._maps, woven.maps, strict=True)]
        maps = [{key: value for key, value in one.items() if key != "room"} for one in maps]  # machine code has no room
        if maps != self._maps:
            raise GptError(f"maps {self._maps}, and in its twin {maps}", name)
        start, _ = find_addresses(cubin)
        at = {one.name: one.offset for one in woven.variables}
        lines = [
            f"// address {one['offset'] - start} {woven.table} {at[one['name']]}\n"
            for one in kernel.get("variables", ()) if one["space"] == "global"
        ]  # fmt: skip
        write(self._folder, cubin, "".join(lines).encode() + woven.data)


def _places(params: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(one["offset"], one["size"]) for one in params]


def main() -> int:
    """Run the stage."""
    stage = Stage("twins")
    return stage.filter(Twins(stage, sys.argv[1:]).handle)


if __name__ == "__main__":
    sys.exit(main())
