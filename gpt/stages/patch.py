"""gpt-patch: writes libraries without the code that they don't need."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from gpt.base import cli, messages
from gpt.base.errors import GptError, UsageError
from gpt.base.options import Argument, Option
from gpt.base.outputs import make_folder
from gpt.stream.stage import ELEMENT, Stage

TOOL = "gpt-patch"
JOBS = min(4, len(os.sched_getaffinity(0)))  # the same as gpt-extract


class UnusedKernels(StrEnum):
    """Treatment of unused kernels in a cubin that stays."""

    drop = "drop"
    zero = "zero"


class Mode(StrEnum):
    """The method of removing unused code."""

    fill = "fill"
    hole = "hole"
    compact = "compact"


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, patch, defaults={"--recompress": "19"})


def patch(
    files: Annotated[
        list[Path] | None,
        Argument(
            metavar="[STREAM]...", help="Streams to read (default: standard input); with --restore, the libraries."
        ),
    ] = None,
    output: Annotated[Path | None, Option("--output", "-o", metavar="DIR", help="Write the libraries here.")] = None,
    mode: Annotated[Mode, Option(help="Overwrite, punch holes, or make the file smaller.")] = Mode.compact,
    fill: Annotated[int, Option(min=0, max=255, metavar="BYTE", help="The byte to overwrite with.")] = 1,
    parents: Annotated[bool, Option("--parents", help="Recreate each library's directories below DIR.")] = False,
    kernels: Annotated[UnusedKernels, Option(help="Drop unused kernels, or zero their code.")] = UnusedKernels.drop,
    recompress: Annotated[
        int | None,
        Option(min=1, max=22, metavar="[=LEVEL]", help="Recompress kept code with zstd, at level 19 by default."),
    ] = None,
    zstd_sizes: Annotated[
        bool, Option("--zstd-sizes", help="Also report how large the code would be, compressed with zstd at level 19.")
    ] = False,
    jobs: Annotated[
        int | None,
        Option("--jobs", "-j", min=1, metavar="N", help="Number of processes.", show_default="one per core, at most 4"),
    ] = None,
    label: Annotated[str, Option(metavar="LABEL", help="Add +LABEL to the version of each wheel.")] = "",
    in_place: Annotated[
        bool, Option("--in-place", help="Replace each library; keep the original as NAME.gpt-orig.")
    ] = False,
    no_backup: Annotated[bool, Option("--no-backup", help="With --in-place: don't keep the original.")] = False,
    once: Annotated[bool, Option("--once", help="Reject libraries that were replaced before.")] = False,
    restore: Annotated[bool, Option("--restore", help="Restore what --in-place replaced.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", "-n", help="Write no libraries.")] = False,
    written: Annotated[
        Path | None, Option(metavar="FILE", help="Append the path of each library written, and a NUL, to FILE.")
    ] = None,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.VerboseRows = False,
    version: cli.Version = False,
) -> int:
    """Write libraries without the GPU code that gpt-locate found unused."""
    if sum((output is not None, in_place, restore)) != 1:
        raise UsageError("one of -o DIR, --in-place and --restore is required")
    if parents and not output:
        raise UsageError("--parents requires -o DIR")
    for option, is_given in (("--once", once), ("--no-backup", no_backup)):
        if is_given and not in_place:
            raise UsageError(f"{option} requires --in-place")
    if recompress is not None and mode != Mode.compact:
        raise UsageError("--recompress requires --mode compact")
    if label and not output:
        raise UsageError("--label requires -o DIR")
    if restore:
        return _restore(files or [])
    if output and not dry_run:
        make_folder(output)
    from gpt.patch.library import PatchOptions
    from gpt.patch.places import Places
    from gpt.patch.stream import Patcher
    from gpt.patch.versions import parse_label

    dropping = kernels == UnusedKernels.drop
    way = PatchOptions(
        mode.value,
        fill,
        dropping,
        in_place,
        dry_run,
        once,
        not no_backup,
        written,
        jobs or JOBS,
        recompress,
        zstd_sizes,
    )
    places = Places(output, parents, dry_run, parse_label(label))
    stage = Stage(TOOL, json=json, from_json=from_json, table=table)
    patcher = Patcher(stage, places, way)
    try:
        stage.filter(patcher.handle, files or (), wants=ELEMENT)
        patcher.report_unfinished()
    finally:
        places.close()
    return stage.status


def _restore(files: list[Path]) -> int:
    from gpt.patch.backup import restore

    if not files:
        raise UsageError("name the libraries to restore")
    status = 0
    for path in files:
        try:
            restore(path)
        except (GptError, OSError) as error:
            if isinstance(error, OSError):
                error = GptError.of(error, error.filename or path)
            messages.say(TOOL, "error", error.where, error.fact)
            status = max(status, error.status)
    return status
