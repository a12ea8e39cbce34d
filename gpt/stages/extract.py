"""gpt-extract: what GPU code is in these files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli, records
from gpt.errors import GptError, MalformedError, MissingError, UsageError

if TYPE_CHECKING:
    from gpt.formats.contents import Opened, Reader
    from gpt.formats.image import Image, Placed
    from gpt.formats.source import Source

TOOL = "gpt-extract"
TYPES = {"cubin", "ptx", "ltoir"}
JOBS = len(os.sched_getaffinity(0))

Records = Iterator[dict[str, Any]]


def main() -> int:
    """Entry point of the executable."""
    return cli.run(TOOL, extract)


def extract(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Standard input without any.")] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Read all that directories and wheels hold.")
    ] = False,
    scan: Annotated[bool, typer.Option("--scan", help="Look outside the usual sections too.")] = False,
    arch: Annotated[str, typer.Option(metavar="SM,...", help="Only these architectures.")] = "",
    type_: Annotated[str, typer.Option("--type", metavar="TYPE,...", help="Only these of cubin, ptx, ltoir.")] = "",
    kernel: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Only elements with such a kernel.")] = None,
    payload: Annotated[bool, typer.Option("--payload", help="Add the unpacked bytes.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Write ptx records, not elements.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the elements to files as well.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Threads.", show_default="one a core")] = JOBS,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """List the GPU code in libraries, programs, objects, archives, wheels, fatbins, cubins and PTX."""
    from gpt.formats.contents import Reader

    types = set(filter(None, type_.split(",")))
    if types - TYPES:
        raise UsageError(f"--type '{min(types - TYPES)}' is none of {', '.join(sorted(TYPES))}")
    archs = set(filter(None, arch.split(",")))
    if save:
        save.mkdir(parents=True, exist_ok=True)
    stage = cli.Stage(TOOL, json=json, from_json=from_json)
    with Reader(jobs) as reader, ExitStack() as stack:
        work = Extraction(stage, reader, scan, archs, types, kernel or [], payload, ptx, save)
        if files:
            return stage.source(work.read_files(files, recursive), sys.argv)
        if os.isatty(0):
            raise UsageError("name a file, or pipe one in", cli.STDIN)
        file = stack.enter_context(open(0, "rb", closefd=False))
        if from_json or file.peek(1)[:1] >= b"\x80":  # a msgpack map; no file of ours begins so
            return stage.filter(work.read_module)
        return stage.source(work.read_pipe(file, stack), sys.argv)


class Extraction:
    """One run: where records go, the threads that unpack, and what is wanted of each file."""

    def __init__(
        self,
        stage: cli.Stage,
        reader: Reader,
        scan: bool,
        archs: set[str],
        types: set[str],
        kernels: list[str],
        payload: bool,
        ptx: bool,
        save: Path | None,
    ) -> None:
        self.stage, self.reader = stage, reader
        self.scan, self.archs, self.types, self.kernels = scan, archs, types, kernels
        self.payload, self.ptx, self.save = payload, ptx, save
        self.modules = 0  # ptx records so far

    # Inputs

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
                    yield self.stage.error(error, ref=str(path))
                except OSError as error:
                    fact = "is a directory: read it with -r" if path.is_dir() else error.strerror or str(error)
                    yield self.stage.error(MissingError(fact, str(path)), ref=str(path))

    def read_pipe(self, file: Any, stack: ExitStack) -> Records:
        """The records of one raw file on standard input."""
        from gpt.formats.files import spool

        yield from self._read(spool(stack, file, cli.STDIN), named=True)

    def read_module(self, record: dict[str, Any]) -> Records:
        """A record of a stream, and after a `module` what its image holds."""
        from gpt.formats.source import Source

        yield record
        if record["kind"] != "module":
            return
        try:
            if fault := records.check(record):
                raise MalformedError(fault)
            name, path = f"module:{record['id']}", record.get("path")
            if path is None and "data" not in record:
                raise MissingError("neither data nor a path: record it with --save-modules", name)
            with nullcontext() if "data" in record else open(str(path), "rb") as file:
                source = Source(name, file.fileno() if file else record["data"])
                if file and "offset" in record:
                    rest = source.size - record["offset"]
                    source = source.sub(record["offset"], record.get("size", rest))
                if record.get("sha256", digest := source.sha256()) != digest:
                    raise MalformedError("is not what was loaded: its sha256 differs", name)
                yield from self._read(source, named=True)
        except OSError as error:
            yield self.stage.error(MissingError(error.strerror or str(error), str(path)))
        except GptError as error:
            yield self.stage.error(error)

    # Records

    def _read(self, source: Source, named: bool) -> Records:
        from gpt.formats.image import find_image, parse_image

        try:
            image = parse_image(source) if named else find_image(source)
            if image:
                yield from self._read_image(image, named)
        except MalformedError as error:
            yield self.stage.error(error, ref=source.name)

    def _read_image(self, image: Image, named: bool) -> Records:
        source = image.source
        found = image.iter_elements(self.scan)
        first = next(found, None)
        if first is None and not image.has_fatbins:
            if named:
                fact = "no GPU code" if self.scan else "no GPU code in the usual sections (--scan looks everywhere)"
                yield self.stage.error(GptError(fact, source.name), ref=source.name)
            return
        numbers: dict[int, int] = {}
        digest = self.reader.digest(source)
        opened = self.reader.open(
            source, self._select(chain([first] if first else [], found), numbers), self._wants_data
        )
        ahead = next(opened, None)  # unpacking begins beside the digest
        yield records.make(
            "library",
            path=source.name,
            type=image.type,
            size=source.size,
            build_id=image.build_id,
            sha256=digest.result(),
            machine=image.machine,
        )
        progress = cli.Progress(source.name)
        for item in chain([ahead] if ahead else [], opened):
            progress.show(item.placed.element.offset, source.size)
            names = (symbol.name for symbol in item.contents.kernels)
            if self.kernels and not any(fnmatchcase(n, glob) for n in names for glob in self.kernels):
                continue
            if self.save:
                self._save(source, item, numbers[item.placed.index])
            yield from self._ptx(source, item) if self.ptx else [self._element(source, item)]
        progress.clear()
        yield records.make("library_end", path=source.name)

    def _select(self, found: Iterator[Placed], numbers: dict[int, int]) -> Iterator[Placed]:
        """The elements that are wanted by what their headers say; all are numbered by type, as cuobjdump does."""
        counts: dict[str, int] = {}
        for placed in found:
            element = placed.element
            counts[element.type] = numbers[placed.index] = counts.get(element.type, 0) + 1
            if element.arch in (self.archs or {element.arch}) and element.type in (self.types or {element.type}):
                yield placed

    def _wants_data(self, element: Any) -> bool:
        return self.payload or self.save is not None or (self.ptx and element.type in ("ptx", "cubin"))

    def _element(self, source: Source, item: Opened) -> dict[str, Any]:
        placed, element, contents = item.placed, item.placed.element, item.contents
        data = item.data if self.payload else None
        if data is not None and len(data) > records.MAX_RECORD - (8 << 20):
            fact = f"payload of {len(data)} bytes does not fit a record: use --save"
            self.stage.write(self.stage.warn(source.at(element.offset), fact, ref=source.name))
            data = None
        return records.make(
            "element",
            library=source.name,
            section=placed.section,
            member=placed.member,
            region=element.region,
            index=placed.index,
            type=element.type,
            arch=element.arch,
            offset=element.offset,
            header_size=element.header_size,
            payload_size=element.payload_size,
            size=element.size,
            codec=element.codec,
            flags=element.flags,
            kernels=[_symbol(*symbol) for symbol in contents.kernels],
            functions=[_symbol(*symbol) for symbol in contents.functions],
            variables=contents.variables,
            data=data,
        )

    def _ptx(self, source: Source, item: Opened) -> Records:
        from gpt.formats.cubin import find_ptx

        element, data = item.placed.element, item.data
        if data is None or element.type not in ("ptx", "cubin"):
            return
        text = data if element.type == "ptx" else find_ptx(data)
        if text is None:
            return
        yield records.make(
            "ptx",
            id=self.modules,
            module=f"{source.name}#{item.placed.index}",
            arch=element.arch,
            kernels=[symbol.name for symbol in item.contents.kernels],
            data=text,
        )
        self.modules += 1

    def _save(self, source: Source, item: Opened, number: int) -> None:
        element = item.placed.element
        stem = Path(source.name).stem or "module"
        name = f"{stem}.{number}.{element.arch}.{element.type.replace(':', '')}"
        assert self.save is not None and item.data is not None
        path = self.save / name
        part = path.with_name(f".{name}.{os.getpid()}")
        try:
            part.write_bytes(item.data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _symbol(name: str, size: int | None) -> dict[str, Any]:
    return {"name": name} if size is None else {"name": name, "size": size}
