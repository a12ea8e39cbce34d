"""gpt-asm: compiles PTX to cubins."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from gpt.base import cli
from gpt.base.errors import UsageError
from gpt.base.options import Argument, Option
from gpt.base.outputs import make_folder
from gpt.base.printable import printable

TOOL = "gpt-asm"
JOBS = len(os.sched_getaffinity(0))
MAX_TIMEOUT = 1e6  # seconds; poll takes twice as many


class Codec(StrEnum):
    """Compression of a fatbin's elements."""

    zstd = "zstd"
    none = "none"


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, asm)


def asm(
    files: Annotated[list[Path] | None, Argument(metavar="[STREAM]...", help="Standard input by default.")] = None,
    arch: Annotated[str, Option(metavar="SM,...", help="The targets: sm_XY or host.")] = "",
    fatbin: Annotated[bool, Option("--fatbin", help="Combine a module's cubins and PTX.")] = False,
    compress: Annotated[Codec, Option(help="How a fatbin stores elements.")] = Codec.zstd,
    kernel: Annotated[
        list[str] | None, Option("--kernel", metavar="NAME", help="Assemble only what this kernel needs; repeatable.")
    ] = None,
    check: Annotated[bool, Option("--check", help="Only check; the objects are empty (--arch host).")] = False,
    compare: Annotated[bool, Option("--compare", help="Also assemble without probes, and report both.")] = False,
    original: Annotated[
        bool, Option("--original", help="Like --compare, but also write the code without probes.")
    ] = False,
    level: Annotated[
        int | None, Option("--opt-level", "-O", min=0, max=4, metavar="N", help="Passed to ptxas.")
    ] = None,
    registers: Annotated[
        int | None, Option("--maxrregcount", min=1, max=255, metavar="N", help="Passed to ptxas.")
    ] = None,
    relocatable: Annotated[bool, Option("--compile-only", "-c", help="Passed to ptxas: relocatable code.")] = False,
    line_info: Annotated[bool, Option("--lineinfo", help="Passed to ptxas: line numbers.")] = False,
    save: Annotated[Path | None, Option(metavar="DIR", help="Also write the results to files.")] = None,
    ptxas: Annotated[str | None, Option(metavar="FILE", help="The ptxas to use.")] = None,
    which: Annotated[bool, Option("--which", help="Print which ptxas is found first, and exit.")] = False,
    tools: Annotated[bool, Option("--tools", help="Print which compilers there are, and exit.")] = False,
    timeout: Annotated[
        float, Option(min=0.001, max=MAX_TIMEOUT, metavar="SECONDS", help="Time limit for ptxas, per module.")
    ] = 600,
    no_cache: Annotated[bool, Option("--no-cache", help="Don't use the cache.")] = False,
    jobs: Annotated[
        int,
        Option("--jobs", "-j", min=1, metavar="N", help="Number of parallel ptxas runs.", show_default="one per core"),
    ] = JOBS,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Assemble PTX for GPUs, and report what its kernels need."""
    if tools:
        from gpt.asm.find import iter_files

        cli.show("".join(f"{printable(line)}\n" for line in iter_files(ptxas)))
        return 0
    from gpt.asm.assembler import Assembler
    from gpt.asm.backend import Options
    from gpt.asm.backends import parse_targets
    from gpt.asm.backlog import Backlog
    from gpt.asm.find import Tools
    from gpt.asm.stream import Assembly
    from gpt.base.cache import Cache, default_folder
    from gpt.base.keep import keeping
    from gpt.stream.stage import PTX, Stage

    if which:
        tool = Tools(ptxas).first()
        cli.show(printable(f"{tool.path} ({tool.name})"))
        return 0
    cli.check_names("--kernel", kernel or ())
    targets = parse_targets(arch)
    if fatbin and any(target.family != "sm" for target in targets):
        raise UsageError("--fatbin: code for host cannot be packed")
    if fatbin and original:
        raise UsageError("--fatbin: holds no code without probes; not with --original")
    if check and (save or any(target.family != "host" for target in targets)):
        raise UsageError("--check: for --arch host, without --save")
    options = Options(level, registers, relocatable, line_info, ptxas, timeout, check)
    assembler = Assembler(targets, options, Cache(None if no_cache or keeping() else default_folder()))
    if save:
        make_folder(save)
    stage = Stage(TOOL, json=json, from_json=from_json, table=table)
    with Backlog[Any, dict[str, Any]](jobs, assembler.stop) as backlog:
        codec = compress.value if fatbin else None
        work = Assembly(stage, assembler, backlog, compare, original, codec, save, kernel or [], registers)
        return stage.filter(work.handle, files or (), backlog.drain, PTX)
