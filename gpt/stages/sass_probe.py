"""gpt-sass-probe: probes in machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gpt.base import cli
from gpt.base.errors import GptError
from gpt.base.options import Argument, Option
from gpt.stream.stage import ELEMENT, Stage

TOOL = "gpt-sass-probe"


def main() -> int:
    """Entry point of the executable."""
    return cli.run(TOOL, sass_probe)


def sass_probe(
    files: Annotated[list[Path] | None, Argument(metavar="[STREAM]...", help="Standard input by default.")] = None,
    explain: Annotated[
        bool, Option("--explain", help="Say where probes could go, and what would be left alone.")
    ] = False,
    probe: cli.Probes = None,
    kernel: cli.Kernels = None,
    filter_: cli.Filter = None,
    registers: Annotated[
        int, Option(min=0, max=255, metavar="N", help="Registers that a probe needs at each place.")
    ] = 0,
    no_verify: cli.NoVerify = False,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Find where probes can go in machine code that comes without PTX."""
    if not explain:
        raise GptError("probes are not woven into machine code yet: --explain says where they could go")
    from gpt.probe.read.load import load_all
    from gpt.probe.sass.explain import Wanted
    from gpt.probe.sass.stream import Explaining
    from gpt.probe.verify import verify

    keep, drop = cli.split_parts("-k", kernel or ()), cli.split_parts("--filter", filter_ or ())
    loaded = load_all(probe or [])
    if not no_verify:
        for file in loaded:
            verify(file)
    stage = Stage(TOOL, json=json, from_json=from_json, table=table)
    explaining = Explaining(stage, Wanted(loaded, registers), keep, drop)
    return stage.filter(explaining.handle, files or (), wants=ELEMENT)
