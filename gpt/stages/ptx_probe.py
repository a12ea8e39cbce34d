"""gpt-ptx-probe: weaves probes into PTX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpt.base import cli
from gpt.base.errors import UsageError
from gpt.base.options import Argument, Option
from gpt.stream.stage import PTX, Stage

if TYPE_CHECKING:
    from gpt.probe.model import ProbeFile

TOOL = "gpt-ptx-probe"


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, ptx_probe)


def ptx_probe(
    files: Annotated[list[Path] | None, Argument(metavar="[STREAM]...", help="Standard input by default.")] = None,
    probe: cli.Probes = None,
    kernel: cli.Kernels = None,
    filter_: cli.Filter = None,
    no_verify: cli.NoVerify = False,
    show: Annotated[bool, Option("--show", help="Print the probes as TOML, as they were read; weave nothing.")] = False,
    count: Annotated[bool, Option("--count", help="Only count records.")] = False,
    relocatable: Annotated[
        bool, Option("--compile-only", "-c", help="Weave for gpt-asm -c: functions may be defined elsewhere.")
    ] = False,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Weave probes into the kernels of PTX modules."""
    from gpt.probe.read.load import load_all
    from gpt.probe.verify import verify

    if not probe:
        raise UsageError("-p PROBE is required: a probe file, or the name of a built-in probe")
    if show and (kernel or filter_ or count or relocatable or table or json or from_json):
        raise UsageError("--show can be combined with -p and --no-verify only")
    keep, drop = cli.split_parts("-k", kernel or ()), cli.split_parts("--filter", filter_ or ())
    loaded = load_all(probe)
    if not no_verify:
        for file in loaded:
            verify(file)
    if show:
        return _show(loaded, files or [])
    from gpt.probe.ptx.stream import PtxWeaving  # gpt-hook waits for --show, which doesn't need it

    stage = Stage(TOOL, json=json, from_json=from_json, table=table)
    weaving = PtxWeaving(stage, loaded, keep, drop, not no_verify, count=count, relocatable=relocatable)
    return stage.filter(weaving.handle, files or (), wants=PTX)


def _show(loaded: list[ProbeFile], files: list[Path]) -> int:
    from gpt.probe.read.show import to_toml

    if files:
        raise UsageError("--show reads no stream", str(files[0]))
    stage = Stage(TOOL, stream=True)
    for file in loaded:
        stage.write_text(f"# {file.path}\n" if len(loaded) > 1 else "")
        stage.write_text(to_toml(file))
    return stage.close()
