"""gpt-locate: finds GPU code that these runs never used, or these devices never run."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

from gpt.base import cli
from gpt.base.arch import parse_archs
from gpt.base.errors import UsageError
from gpt.base.options import Argument, Option
from gpt.base.outputs import check_folder
from gpt.stream.stage import ELEMENT

TOOL = "gpt-locate"


class Granularity(StrEnum):
    """The unit that is kept or cut."""

    element = "element"
    kernel = "kernel"


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, locate)


def locate(
    files: Annotated[list[Path] | None, Argument(metavar="[STREAM]...", help="Standard input by default.")] = None,
    used: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE", help="A trace, a list of kernel names, or a trace.json; repeatable. All kernels by default."
        ),
    ] = None,
    arch: Annotated[
        list[str] | None,
        Option(metavar="SM,...", help="Devices to run on; by default the traces' devices. Repeat it for a wheel each."),
    ] = None,
    keep: Annotated[
        list[str] | None, Option(metavar="REGEX", help="Also count these kernels as used; repeatable.")
    ] = None,
    keep_ptx: Annotated[bool, Option("--keep-ptx", help="Keep PTX for future devices.")] = False,
    granularity: Annotated[
        Granularity, Option(help="Cut elements, or also unused kernels of kept cubins.")
    ] = Granularity.element,
    spans_json: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write Negativa-ML's LIB.json; without --used and --arch, read them."),
    ] = None,
    trace_json: Annotated[
        Path | None, Option(metavar="FILE", help="Write Negativa-ML's trace.json, and nothing else.")
    ] = None,
    allow_incomplete: Annotated[bool, Option("--allow-incomplete", help="Accept incomplete traces.")] = False,
    allow_missing: Annotated[
        bool, Option("--allow-missing", help="Continue if a listed name is in no library.")
    ] = False,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Find the GPU code that isn't needed to run these kernels on these devices."""
    from gpt.compat import negativa
    from gpt.locate.holding import Holding
    from gpt.locate.search import LocateOptions, Search
    from gpt.locate.targets import find_targets
    from gpt.trace.used import read_used

    archs = [group for text in arch or () if (group := parse_archs(text))]
    stage = Holding(TOOL, json=json, from_json=from_json, table=table)
    if not used and not archs:
        if spans_json is None:
            raise UsageError("--used FILE or --arch SM is required (or --spans-json DIR, to read spans)")
        return stage.filter(negativa.SpansFromFile(stage, spans_json).handle, files or (), wants=ELEMENT)
    cli.check_names("--keep", keep or ())
    by_kernel = granularity == Granularity.kernel
    for option, is_given in (("--keep", keep), ("--granularity kernel", by_kernel), ("--trace-json", trace_json)):
        if is_given and not used:
            raise UsageError(f"{option} requires --used FILE: without it every kernel counts as used")
    if spans_json and by_kernel:
        raise UsageError("--spans-json cannot be combined with --granularity kernel")
    if trace_json:
        check_folder(trace_json)
    found = read_used(used or [], allow_incomplete)
    for where, fact in found.warnings:
        stage.warn(where, fact)
    if trace_json:
        negativa.write_trace(trace_json, found.loaded, found.names)
        return stage.status
    if used and not found.names and not keep:
        stage.warn("", "no kernel is used: all GPU code for these devices counts as unused")
    targets = find_targets(archs, found, everything=not used)
    if spans_json and len(targets) > 1:
        raise UsageError("--spans-json requires a single --arch: sm_80,sm_90 keeps the code of both")
    write_spans = partial(negativa.write_spans, spans_json) if spans_json else None
    wanted = LocateOptions(targets, keep or (), keep_ptx, by_kernel, allow_missing, write_spans, not used)
    search = Search(stage, found, wanted)
    stage.filter(search.handle, files or (), wants=ELEMENT)
    search.report_missing()
    return stage.status
