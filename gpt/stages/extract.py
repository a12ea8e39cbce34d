"""gpt-extract: lists the GPU code in files."""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

from gpt.base import cli, wrong_input
from gpt.base.arch import parse_archs
from gpt.base.errors import UsageError
from gpt.base.options import Argument, Option
from gpt.base.outputs import make_folder
from gpt.stream.stage import MODULE, STDIN, Stage

TOOL = "gpt-extract"
TYPES = {"cubin", "ptx", "ltoir", "tileir"}
JOBS = min(4, len(os.sched_getaffinity(0)))  # 40 MB each; four stay under 300 MB


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, extract)


def parse_path(text: str) -> Path:
    """Return a path from the command line. An empty one, as from an unset variable, would mean the current folder."""
    if not text:
        raise UsageError("'' is not a file name")
    return Path(text)


def extract(
    files: Annotated[
        list[Path] | None,
        Argument(metavar="[FILE]...", help="Standard input by default.", parser=parse_path),
    ] = None,
    recursive: Annotated[bool, Option("--recursive", "-r", help="Read all files in directories and wheels.")] = False,
    loaded: Annotated[
        bool, Option("--loaded", help="FILE is a trace: read the libraries that its program loaded.")
    ] = False,
    scan: Annotated[bool, Option("--scan", help="Also search outside the usual sections.")] = False,
    arch: Annotated[str, Option(metavar="SM,...", help="Only these architectures.")] = "",
    type_: Annotated[
        str, Option("--type", metavar="TYPE,...", help="Only these types: cubin, ptx, ltoir, tileir.")
    ] = "",
    kernel: Annotated[list[str] | None, Option(metavar="GLOB", help="Only elements with these kernels.")] = None,
    payload: Annotated[bool, Option("--payload", help="Add the unpacked bytes to records.")] = False,
    ptx: Annotated[bool, Option("--ptx", help="Write ptx records instead of elements.")] = False,
    names: Annotated[bool, Option("--names", help="Write kernel names as text.")] = False,
    demangle: Annotated[bool, Option("--demangle", "-C", help="With --names: demangle them.")] = False,
    save: Annotated[Path | None, Option(metavar="DIR", help="Also write the elements to files.")] = None,
    jobs: Annotated[
        int,
        Option("--jobs", "-j", min=1, metavar="N", help="Number of processes.", show_default="one per core, at most 4"),
    ] = JOBS,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """List the GPU code in libraries, programs, objects, archives, wheels, fatbins, cubins and PTX."""
    from gpt.extract.inputs import Extraction, is_stream
    from gpt.extract.listing import Listing

    cli.check_names("--kernel", kernel or ())
    types = set(filter(None, type_.split(",")))
    if types - TYPES:
        raise UsageError(f"--type: not a type: '{min(types - TYPES)}' (there are {', '.join(sorted(TYPES))})")
    if demangle and not names:
        raise UsageError("--demangle requires --names")
    if names and (json or table or ptx or payload):
        raise UsageError("--names cannot be combined with --json, --table, --ptx or --payload")
    if save:
        make_folder(save)
    stage = Stage(TOOL, json=json or names, from_json=from_json, table=table)
    archs = {str(one) for one in parse_archs(arch)}
    seen = not (names or stage.table)
    listing = Listing(jobs, stage.warn, scan, archs, types, kernel or [], payload, ptx, seen, save)
    if loaded:
        import gpt.compat  # noqa: F401 - registers the trace formats of other tools
    work = Extraction(stage, listing)
    if loaded and (recursive or not files):
        raise UsageError("--loaded requires traces, and cannot be combined with -r")
    if not files and os.isatty(0):
        raise UsageError("name a file, or pipe one in", STDIN)
    if not loaded and (from_json or (is_stream(files[0]) if files else wrong_input.is_stream(stage.peek()[:1]))):
        if names:
            return work.write_names(chain.from_iterable(map(work.read_module, stage.read(files or ()))), demangle)
        return stage.filter(work.read_module, files or (), wants=MODULE)
    produce = work.read_source(files or [], recursive, loaded)
    return work.write_names(produce, demangle) if names else stage.source(produce, sys.argv)
