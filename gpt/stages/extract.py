"""gpt-extract: what GPU code is in these files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli, records
from gpt.errors import GptError, MalformedError, MissingError, UsageError

if TYPE_CHECKING:
    from gpt.formats.listing import Listing
    from gpt.formats.source import Source

TOOL = "gpt-extract"
TYPES = {"cubin", "ptx", "ltoir"}
JOBS = min(4, len(os.sched_getaffinity(0)))  # 40 MB each; four stay under 300 MB
DRIVER = ("libcuda.so", "libnvidia-", "libcudadebugger.so")  # libraries that belong to the kernel module
STREAM = b"\x80"  # a msgpack map begins with this byte or a higher one, no file of ours does

Records = Iterator[cli.Output]


def main() -> int:
    """Entry point of the executable."""
    return cli.run(TOOL, extract)


def extract(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Standard input without any.")] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Read all that directories and wheels hold.")
    ] = False,
    loaded: Annotated[
        bool, typer.Option("--loaded", help="Read the libraries that FILE, a trace, saw loaded.")
    ] = False,
    scan: Annotated[bool, typer.Option("--scan", help="Look outside the usual sections too.")] = False,
    arch: Annotated[str, typer.Option(metavar="SM,...", help="Only these architectures.")] = "",
    type_: Annotated[str, typer.Option("--type", metavar="TYPE,...", help="Only these of cubin, ptx, ltoir.")] = "",
    kernel: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Only elements with such a kernel.")] = None,
    payload: Annotated[bool, typer.Option("--payload", help="Add the unpacked bytes.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Write ptx records, not elements.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the elements to files as well.")] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes.", show_default="one a core, at most 4")
    ] = JOBS,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """List the GPU code in libraries, programs, objects, archives, wheels, fatbins, cubins and PTX."""
    from gpt.formats.listing import Listing

    types = set(filter(None, type_.split(",")))
    if types - TYPES:
        raise UsageError(f"--type '{min(types - TYPES)}' is none of {', '.join(sorted(TYPES))}")
    if save:
        save.mkdir(parents=True, exist_ok=True)
    stage = cli.Stage(TOOL, json=json, from_json=from_json)
    archs = set(filter(None, arch.split(",")))
    listing = Listing(jobs, stage.warn, scan, archs, types, kernel or [], payload, ptx, save)
    work = Extraction(stage, listing)
    if loaded:
        if recursive or not files:
            raise UsageError("--loaded wants traces, and no -r")
        return stage.source(work.read_loaded(files), sys.argv)
    if files and (from_json or is_stream(files[0])):
        return stage.filter(work.read_module, files)
    if files:
        return stage.source(work.read_files(files, recursive), sys.argv)
    if os.isatty(0):
        raise UsageError("name a file, or pipe one in", cli.STDIN)
    if from_json or stage.stdin.peek(1)[:1] >= STREAM:
        return stage.filter(work.read_module)
    return stage.source(work.read_pipe(), sys.argv)


class Extraction:
    """One run: the inputs, each a source of records for the stage."""

    def __init__(self, stage: cli.Stage, listing: Listing) -> None:
        self._stage = stage
        self._listing = listing

    def read_files(self, files: list[Path], recursive: bool) -> Records:
        """The records of files. A broken one costs a `diag`; the rest goes on."""
        from gpt.formats.files import is_wheel, iter_files, iter_wheel, opened

        for top in files:
            below = recursive and top.is_dir()
            for path in iter_files(top) if below else [top]:
                try:
                    with opened(path) as source:
                        if recursive and is_wheel(source):
                            for member in iter_wheel(source):
                                yield from self._read(member, named=False)
                        else:
                            yield from self._read(source, named=not below)
                except GptError as error:
                    yield self._stage.error(error, ref=str(path))
                except OSError as error:
                    fact = "is a directory: read it with -r" if path.is_dir() else error.strerror or str(error)
                    yield self._stage.error(MissingError(fact, str(error.filename or path)), ref=str(path))

    def read_loaded(self, traces: list[Path]) -> Records:
        """The records of the libraries with GPU code that the processes of these traces loaded, each file once.

        Whether the traces are whole matters to whoever decides what is unused, not here.
        """
        from gpt.debloat.negativa import find_so_path
        from gpt.debloat.used import Loaded, read_used
        from gpt.formats.files import opened

        named = {trace: find_so_path(trace) for trace in traces}
        loaded = read_used([trace for trace in traces if not named[trace]], allow_incomplete=True).loaded
        loaded |= {name: Loaded() for name in named.values() if name}
        seen: set[tuple[int, int]] = set()
        for name, (size, build_id, gpu) in sorted(loaded.items()):
            if not gpu or Path(name).name.startswith(DRIVER):
                continue
            try:
                status = os.stat(name)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                with opened(Path(name)) as source:
                    if size not in (None, source.size):
                        raise GptError("is not what was loaded: its size differs", name)
                    yield from self._read(source, named=False, build_id=build_id)
            except GptError as error:
                yield self._stage.error(error, ref=name)
            except OSError as error:
                yield self._stage.error(MissingError(error.strerror or str(error), name), ref=name)

    def read_pipe(self) -> Records:
        """The records of one raw file on standard input."""
        from gpt.formats.files import spool

        with ExitStack() as stack:
            yield from self._read(spool(stack, self._stage.stdin, cli.STDIN), named=True)

    def read_module(self, record: dict[str, Any]) -> Records:
        """A record of a stream, and after a `module` what its image holds."""
        from gpt.formats.source import Source

        yield record
        if record["kind"] != "module":
            return
        name, path = f"module:{record.get('id')}", record.get("path", record.get("saved"))
        try:
            if fault := records.check(record):
                raise MalformedError(fault, name)
            if path is None and "data" not in record:
                raise MissingError("neither data nor a path", name)
            with nullcontext() if "data" in record else open(str(path), "rb") as file:
                source = Source(name, file.fileno() if file else record["data"])
                if file and "offset" in record:
                    rest = source.size - record["offset"]
                    source = source.sub(record["offset"], record.get("size", rest))
                if record.get("sha256", digest := source.sha256()) != digest:
                    raise MalformedError("is not what was loaded: its sha256 differs", name)
                yield from self._read(source, named=True)
        except GptError as error:
            yield self._stage.error(error, ref=name)
        except OSError as error:
            yield self._stage.error(MissingError(error.strerror or str(error), str(path)), ref=name)

    def _read(self, source: Source, named: bool, build_id: str | None = None) -> Records:
        """The records of one file; a fault where it was named itself and holds no GPU code, or has another build id."""
        from gpt.formats.image import find_image, parse_image

        progress = cli.Progress(Path(source.name).name)
        found = False
        try:
            image = parse_image(source) if named else find_image(source)
            if image and build_id not in (None, image.build_id):
                raise GptError("is not what was loaded: its build id differs", source.name)
            for record in self._listing.iter_records(image, progress.show) if image else ():
                found = True
                yield record
            if named and not found:
                where = "anywhere" if self._listing.scan else "in the usual sections (--scan looks everywhere)"
                raise GptError(f"no GPU code {where}", source.name)
        except GptError as error:
            yield self._stage.error(error, ref=source.name)
        finally:
            progress.clear()


def is_stream(path: Path) -> bool:
    """Whether a file begins as a stream does."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(1) >= STREAM
