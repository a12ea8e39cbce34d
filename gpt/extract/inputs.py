"""Convert inputs to records: files, folders, wheels, libraries that a trace lists, modules in a stream.

Modules that few runs need are imported where they're used, because with small files, most of the time is spent
starting.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.base import messages, wrong_input
from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.base.printable import printable
from gpt.extract.contents import Opened
from gpt.extract.files import iter_files, opened, spool
from gpt.extract.listing import Listing
from gpt.formats.foreign import find_other, find_other_in
from gpt.formats.image import find_image, parse_image
from gpt.formats.offload import describe
from gpt.formats.paths import open_regular
from gpt.formats.source import Source
from gpt.stream import records
from gpt.stream.stage import STDIN, Output, Stage
from gpt.stream.wire import Packed

if TYPE_CHECKING:
    from gpt.extract.kernels import KernelFinder

DRIVER = ("libcuda.so", "libnvidia-", "libcudadebugger.so")  # libraries of the NVIDIA driver
WISHES = ("only", "registers", "want")  # keys of a module that are passed on to the stage that assembles its PTX
BATCH = 4096  # names to demangle at once, which takes at most 2 s

Records = Iterator[Output]


class Extraction:
    """Converts the inputs of a run to records."""

    def __init__(self, stage: Stage, listing: Listing) -> None:
        self._stage = stage
        self._listing = listing
        self._found = False  # True if GPU code was found in the current argument
        self._others: Counter[str] = Counter()  # what else is in it, by description
        self._count = 0  # number of files read in it
        self._paths: list[str] = []  # files with GPU code
        self._kernels: KernelFinder | None = None  # images from which single kernels were requested

    def read_source(self, files: list[Path], recursive: bool, loaded: bool) -> Records:
        """Yield the records of files, of libraries in traces, or of a pipe. If nothing was selected, yield an error."""
        if loaded:
            yield from self.read_loaded(files)
        elif files:
            yield from self.read_files(files, recursive)
        else:
            yield from self.read_pipe()
        yield from self._report_idle()

    def _report_idle(self) -> Records:
        if not self._stage.status and (fact := self._listing.find_idle()):  # otherwise a broken file has been reported
            yield self._stage.error(GptError(fact, self._paths[0] if len(self._paths) == 1 else ""))
        elif self._listing.matched and (unmatched := self._listing.unmatched):
            yield self._stage.warn("--kernel", f"matches no kernel: {', '.join(map(repr, sorted(unmatched)))}")

    def write_names(self, produce: Records, demangled: bool) -> int:
        """Print the names of all kernels, sorted and without duplicates. Returns the exit status."""
        from gpt.screen.demangle import demangle

        names: set[str] = set()
        for output in produce:
            for record in output if isinstance(output, Packed) else [output]:
                if record["kind"] == "element" and not records.check(record):
                    names.update(kernel["name"] for kernel in record["kernels"])
        wanted = sorted(filter(self._listing.wants_kernel, names))
        if demangled:
            batches = (wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH))
            wanted = sorted({name for batch in batches for name in demangle(batch)})
        self._stage.write_text("".join(printable(name) + "\n" for name in wanted))
        if not (wanted or self._stage.status):
            self._stage.error(GptError("no kernel", self._paths[0] if len(self._paths) == 1 else ""))
        return self._stage.close()

    def read_files(self, files: list[Path], recursive: bool) -> Records:
        """Yield the records of files. For a broken file, yield a `diag`, and continue."""
        for top in files:
            below = recursive and top.is_dir()
            self._found, self._others, self._count = False, Counter(), 0
            faults = self._stage.faults
            for path in iter_files(top) if below else [top]:
                try:
                    with opened(path) as source:
                        if recursive and _is_zip(source):
                            yield from self._read_zip(source)
                        else:
                            self._count += 1
                            yield from self._read(source, named=not below)
                except GptError as error:
                    yield self._stage.error(error, ref=str(path))
                except OSError as error:
                    fact = "is a directory: read it with -r" if path.is_dir() else error.strerror or str(error)
                    yield self._stage.error(MissingError(fact, str(error.filename or path)), ref=str(path))
            if recursive and not self._found:
                yield from self._report_none(str(top), self._stage.faults > faults)

    def _report_none(self, top: str, told: bool) -> Records:
        """Yield warnings that an argument contains no GPU code, and what it contains instead."""
        for other, count in self._others.items():
            yield self._stage.warn(top, f"no GPU code found, and files skipped ({count}): {other}", ref=top)
        if self._count and not (self._others or told):
            fact = f"no GPU code in any of {self._count} files (--scan looks outside the usual sections)"
            yield self._stage.warn(top, fact, ref=top)
        elif not (self._others or told or os.path.isdir(top)):
            yield self._stage.warn(top, "no GPU code: the wheel has no members", ref=top)

    def _read_zip(self, source: Source) -> Records:
        """Yield the records of a wheel's members. For a broken member, yield a `diag`, and continue."""
        from gpt.formats.zips import Zip

        wheel = Zip(source)
        for info in wheel.members:
            self._count += 1
            try:
                with wheel.spooled(info) as (head, member):
                    if member:
                        yield from self._read(member, named=False)
                    elif other := find_other(Source(info.filename, head)):
                        self._others[other] += 1
            except GptError as error:
                yield self._stage.error(error, ref=source.name)

    def read_loaded(self, traces: list[Path]) -> Records:
        """Yield the records of all libraries with GPU code that were loaded according to these traces, each file once.

        The traces may be incomplete: that only matters when a later stage decides what's unused.
        """
        from gpt.trace.inputs import find_library
        from gpt.trace.used import Loaded, read_used

        named = {trace: find_library(trace) for trace in traces}
        loaded = read_used([trace for trace in traces if not named[trace]], allow_incomplete=True).loaded
        loaded |= {name: Loaded() for name in named.values() if name}
        seen: set[tuple[int, int]] = set()
        for name, (size, build_id, gpu) in sorted(loaded.items()):
            if not gpu or Path(name).name.startswith(DRIVER):
                continue
            try:
                with open_regular(name) as file:
                    status = os.fstat(file.fileno())
                    if (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                    source = Source(name, file.fileno())
                    if size not in (None, source.size):
                        raise GptError("the file has changed since it was loaded: its size differs", name)
                    yield from self._read(source, named=False, build_id=build_id)
            except GptError as error:
                yield self._stage.error(error, ref=name)
            except OSError as error:
                yield self._stage.error(MissingError(error.strerror or str(error), name), ref=name)

    def read_pipe(self) -> Records:
        """Yield the records of a single file on standard input."""
        with ExitStack() as stack:
            yield from self._read(spool(stack, self._stage.stdin, STDIN), named=True)

    def read_module(self, record: dict[str, Any]) -> Records:
        """Pass a record on. If it's a `module`, also yield the contents of its image."""
        if record["kind"] == "end":
            yield from self._report_idle()
        yield record
        if record["kind"] != "module":
            return
        name, path = f"module:{record.get('id')}", record.get("path", record.get("saved"))
        try:
            if fault := records.check(record):
                raise MalformedError(fault, name)
            if path is None and "data" not in record:
                raise MissingError("neither data nor a path", name)
            with nullcontext() if "data" in record else open_regular(str(path)) as file:
                source = Source(name, file.fileno() if file else record["data"])
                if file and "offset" in record:
                    rest = source.size - record["offset"]
                    source = source.sub(record["offset"], record.get("size", rest))
                if "sha256" in record and record["sha256"] != source.sha256():
                    raise MalformedError("the image has changed since it was loaded: its sha256 differs", name)
                self._listing.wishes = {key: record[key] for key in WISHES if key in record}
                if self._listing.ptx and "arch" in record:
                    yield from self._read_kernels(source, file.fileno() if file else None, record)
                    return
                yield from self._read(source, named=True)
        except GptError as error:
            yield self._stage.error(error, ref=name)
        except OSError as error:
            yield self._stage.error(MissingError(error.strerror or str(error), str(path)), ref=name)

    def _read_kernels(self, source: Source, file: int | None, record: dict[str, Any]) -> Records:
        """Yield the code for single kernels of a module, or why it isn't available."""
        from gpt.extract.kernels import KernelFinder, Refused

        self._kernels = self._kernels or KernelFinder(self._listing.payload)
        for kernel in record.get("only", ()):
            try:
                found = self._kernels.find(source, file, kernel, record["arch"])
            except Refused as refused:
                name = None if refused.whole else kernel
                yield records.make("refused", module=record["id"], name=name, **refused.reason.keys())
                continue
            if isinstance(found, Opened):
                yield self._listing.one_element(source, found, kernel)
            else:
                yield self._listing.one_kernel(source, found.index, found.arch, kernel, found.text)

    def _read(self, source: Source, named: bool, build_id: str | None = None) -> Records:
        """Yield the records of a file.

        If the user has named the file, it must contain GPU code, and have the expected build ID.
        """
        progress = messages.Progress(Path(source.name).name)
        found = False
        try:
            image = parse_image(source) if named else find_image(source)
            if image and build_id not in (None, image.build_id):
                raise GptError("the file has changed since it was loaded: its build id differs", source.name)
            for record in self._listing.iter_records(image, progress.show) if image else ():
                if not found:
                    found = True
                    self._paths.append(source.name)
                yield record
            self._found |= found
            other = None if found else find_other_in(image.elf) if image else find_other(source)
            if image and (foreign := image.find_foreign()):
                fact = f"{describe(foreign)}: not read (clang makes cubins of it when it links)"
                if found:
                    yield self._stage.warn(source.name, fact)
                other = other or fact
            if other and named and not found:
                raise GptError(other, source.name)
            if other and not found:
                self._others[other] += 1
            if named and not found:
                where = "anywhere" if self._listing.scan else "in the usual sections (--scan looks everywhere)"
                raise GptError(f"no GPU code {where}", source.name)
        except GptError as error:
            yield self._stage.error(error, ref=source.name)
        finally:
            progress.clear()


def is_stream(path: Path) -> bool:
    """Return whether a file begins in the same way as a stream."""
    if not path.is_file():
        return False
    with suppress(OSError), open(path, "rb") as file:  # errors are reported when it's read
        return wrong_input.is_stream(file.read(1))
    return False


def _is_zip(source: Source) -> bool:
    from gpt.formats.zips import is_zip

    return is_zip(source)
