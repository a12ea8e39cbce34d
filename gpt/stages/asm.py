"""gpt-asm: PTX to cubins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli, records
from gpt.errors import GptError, MalformedError, MissingError

if TYPE_CHECKING:
    from gpt.asm.assembler import Assembler, Code
    from gpt.asm.backlog import Backlog
    from gpt.asm.targets import Target

TOOL = "gpt-asm"
JOBS = len(os.sched_getaffinity(0))
MAX_WARNINGS = 3  # of one module that are told
MAX_TIMEOUT = 1e6  # seconds; poll takes twice as many

Records = Iterator[dict[str, Any]]


class Codec(StrEnum):
    """How the elements of a fatbin are stored."""

    zstd = "zstd"
    none = "none"


def main() -> int:
    """Entry point of the executable."""
    return cli.run(TOOL, asm)


def asm(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[STREAM]...", help="Standard input without any.")
    ] = None,
    arch: Annotated[str, typer.Option(metavar="SM,...", help="What to assemble for.")] = "",
    fatbin: Annotated[bool, typer.Option("--fatbin", help="Pack the cubins and the PTX of a module together.")] = False,
    compress: Annotated[Codec, typer.Option(help="How a fatbin stores them.")] = Codec.zstd,
    compare: Annotated[bool, typer.Option("--compare", help="Assemble without probes too, and tell both.")] = False,
    level: Annotated[
        int | None, typer.Option("--opt-level", "-O", min=0, max=4, metavar="N", help="Passed to ptxas.")
    ] = None,
    registers: Annotated[
        int | None, typer.Option("--maxrregcount", min=1, max=255, metavar="N", help="Passed to ptxas.")
    ] = None,
    relocatable: Annotated[
        bool, typer.Option("--compile-only", "-c", help="Passed to ptxas: relocatable code.")
    ] = False,
    line_info: Annotated[bool, typer.Option("--lineinfo", help="Passed to ptxas: line numbers.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Write cubins or fatbins to files as well.")] = None,
    ptxas: Annotated[str | None, typer.Option(metavar="FILE", help="The ptxas to use.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=MAX_TIMEOUT, metavar="SECONDS", help="What ptxas may take for a module.")
    ] = 600,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep nothing, and use nothing that was kept.")] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Modules at a time.", show_default="one a core")
    ] = JOBS,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Assemble PTX for GPUs, and say what its kernels need."""
    from gpt.asm.assembler import Assembler
    from gpt.asm.backlog import Backlog
    from gpt.asm.cache import Cache, default_folder
    from gpt.asm.ptxas import Options
    from gpt.asm.targets import parse_targets

    targets = parse_targets(arch)
    options = Options(level, registers, relocatable, line_info)
    assembler = Assembler(ptxas, Cache(None if no_cache else default_folder()), options, timeout)
    if save:
        save.mkdir(parents=True, exist_ok=True)
    stage = cli.Stage(TOOL, json=json, from_json=from_json, table=table)
    with Backlog[Any, dict[str, Any]](jobs, assembler.stop) as backlog:
        work = Assembly(stage, assembler, backlog, targets, compare, compress.value if fatbin else None, save)
        return stage.filter(work.handle, files or (), backlog.drain, cli.PTX)


class Assembly:
    """One run: hands the modules of a stream to the assembler, and makes records of what comes back."""

    def __init__(
        self,
        stage: cli.Stage,
        assembler: Assembler,
        backlog: Backlog[Code, dict[str, Any]],
        targets: list[Target],
        compare: bool,
        fatbin: Any,
        save: Path | None,
    ) -> None:
        self._stage = stage
        self._assembler = assembler
        self._backlog = backlog
        self._targets = targets
        self._compare = compare
        self._fatbin = fatbin
        self._save = save
        self._saved: set[Path] = set()

    def handle(self, record: dict[str, Any]) -> Records:
        """A record, and after a `ptx` what was made of it, when it and all before it is done."""
        size = len(getattr(record, "raw", b""))
        if record["kind"] != "ptx":
            yield from self._backlog.add([], lambda _: [record], size)
            return
        if fault := records.check(record):
            diag = self._stage.error(MalformedError(fault, str(record.get("module", ""))))
            yield from self._backlog.add([], lambda _: [record, diag], size)
            return
        texts = [record["data"]] + ([record["original"]] if self._compare and "original" in record else [])
        targets = self._assembler.targets(record["data"], self._targets)
        jobs = [
            partial(self._assembler.assemble, text, record["module"], target) for text in texts for target in targets
        ]
        yield from self._backlog.add(jobs, partial(self._finish, record, len(targets)), size)

    def _finish(self, record: dict[str, Any], count: int, futures: list[Future[Code]]) -> Records:
        """The record, and what its jobs led to: `count` targets, and perhaps as many without probes."""
        from gpt.asm.images import iter_images, save

        yield record
        told: set[tuple[str, str]] = set()
        done = []
        for number, future in enumerate(futures[:count]):
            try:
                code = future.result()
            except (GptError, OSError) as error:
                yield from self._tell(error, record, told)
                continue
            yield from self._warn(code.warnings, record, told)
            before = {}
            if futures[count:]:
                try:
                    before = futures[count + number].result().kernels
                except (GptError, OSError) as error:
                    text = f"cannot be assembled without probes: {error}"
                    yield from self._warn([(record["module"], text)], record, told)
            done.append((code, before))
        try:
            whole = len(done) == count or not self._fatbin
            for image in iter_images(record, [code for code, _ in done], self._fatbin) if whole else ():
                if self._save:
                    path = save(self._save, image)
                    if path in self._saved:
                        yield self._stage.warn(str(path), "is the second of its name, and took the place of the first")
                    self._saved.add(path)
                yield image
        except (GptError, OSError) as error:
            yield from self._tell(error, record, told)
            return
        for code, before in done:
            for name, needs in code.kernels.items():
                without = {f"{key}_before": value for key, value in before.get(name, {}).items()}
                yield records.make("kernel", id=record["id"], name=name, arch=str(code.target), **needs, **without)

    def _tell(self, error: GptError | OSError, record: dict[str, Any], told: set[tuple[str, str]]) -> Records:
        """A `diag` for each fault of a module that was not told yet."""
        from gpt.asm.ptxas import Faults

        ref = record["module"]
        if isinstance(error, OSError):
            error = GptError.of(error, error.filename or ref)
        if isinstance(error, Faults):
            faults: list[GptError] = [MalformedError(fact, where) for where, fact in error.found]
        else:
            faults = [type(error)(error.fact, error.where or ref)]
        for fault in faults:
            if (fault.where, fault.fact) not in told:
                told.add((fault.where, fault.fact))
                yield self._stage.error(fault, ref=ref, once=isinstance(error, MissingError))

    def _warn(self, found: list[tuple[str, str]], record: dict[str, Any], told: set[tuple[str, str]]) -> Records:
        for where, fact in found[:MAX_WARNINGS]:
            if (where, fact) not in told:
                told.add((where, fact))
                yield self._stage.warn(where, fact, ref=record["module"])
