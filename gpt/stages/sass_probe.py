"""gpt-sass-probe: weaves probes into machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gpt.base import cli
from gpt.base.errors import UsageError
from gpt.base.options import Argument, Option
from gpt.stream.stage import ELEMENT, Stage

TOOL = "gpt-sass-probe"


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, sass_probe)


def sass_probe(
    files: Annotated[list[Path] | None, Argument(metavar="[STREAM]...", help="Standard input by default.")] = None,
    explain: Annotated[
        bool, Option("--explain", help="Show where probes could go, and what would be left alone.")
    ] = False,
    probe: cli.Probes = None,
    kernel: cli.Kernels = None,
    filter_: cli.Filter = None,
    registers: Annotated[
        int, Option(min=0, max=255, metavar="N", help="Registers that a probe needs at each position.")
    ] = 0,
    no_verify: cli.NoVerify = False,
    count: Annotated[bool, Option("--count", help="Only count records.")] = False,
    original: Annotated[bool, Option("--original", help="Also write each cubin without probes.")] = False,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Weave probes into machine code that comes without PTX."""
    from gpt.probe.read.load import load_all
    from gpt.probe.verify import verify

    if not probe and not explain:
        raise UsageError("-p PROBE is required: a probe file, or the name of a built-in probe")
    if explain and (count or original):
        raise UsageError("--explain weaves nothing, so --count and --original have no meaning")
    if registers and not explain:
        raise UsageError("--registers is for --explain")
    keep, drop = cli.split_parts("-k", kernel or ()), cli.split_parts("--filter", filter_ or ())
    loaded = load_all(probe or [])
    if not no_verify:
        for file in loaded:
            verify(file)
    stage = Stage(TOOL, json=json, from_json=from_json, table=table)
    if explain:
        from gpt.probe.sass.explain import Wanted
        from gpt.probe.sass.stream import Explaining

        return stage.filter(Explaining(stage, Wanted(loaded, registers), keep, drop).handle, files or (), wants=ELEMENT)
    from gpt.probe.sass.weaving import SassWeaving

    weaving = SassWeaving(stage, loaded, keep, drop, not no_verify, count=count, original=original)
    return stage.filter(weaving.handle, files or (), wants=ELEMENT)
