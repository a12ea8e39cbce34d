"""gpt-locate: which GPU code these runs never used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli, records
from gpt.arch import Arch, describe, find_arch, parse_archs
from gpt.errors import GptError, MalformedError, UsageError

if TYPE_CHECKING:
    from gpt.locate.holding import Holding
    from gpt.locate.unused import Candidate, Device
    from gpt.trace.used import Used

TOOL = "gpt-locate"

Records = Iterator[dict[str, Any]]


class Granularity(StrEnum):
    """What is kept or not as a whole."""

    element = "element"
    kernel = "kernel"


def main() -> int:
    """Entry point of the executable."""
    return cli.run(TOOL, locate)


def locate(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[STREAM]...", help="Standard input without any.")
    ] = None,
    used: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A trace, a list of kernel names, or a trace.json; repeatable."),
    ] = None,
    arch: Annotated[
        str, typer.Option(metavar="SM,...", help="Devices to run on; those of the traces by default.")
    ] = "",
    keep: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="Kernels that count as used; repeatable.")
    ] = None,
    keep_ptx: Annotated[bool, typer.Option("--keep-ptx", help="Keep PTX that devices to come could run.")] = False,
    granularity: Annotated[
        Granularity, typer.Option(help="Cut out elements, or unused kernels of kept cubins too.")
    ] = Granularity.element,
    spans_json: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write Negativa-ML's LIB.json; without --used, read them (or one)."),
    ] = None,
    trace_json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Negativa-ML's trace.json, and nothing else.")
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Trust traces that end too early.")
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Go on if no library has a name of a list.")
    ] = False,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Find the GPU code that is not needed to run these kernels on these devices."""
    from gpt.locate.holding import Holding

    archs = parse_archs(arch)
    stage = Holding(TOOL, json=json, from_json=from_json, table=table)
    if not used:
        if spans_json is None:
            raise UsageError("--used FILE is needed (or --spans-json DIR, to read spans)")
        return stage.filter(Given(stage, spans_json).handle, files or (), wants=cli.LIBRARY)
    if spans_json and granularity == Granularity.kernel:
        raise UsageError("--spans-json knows no kernels inside of elements")
    from gpt.locate.unused import Device
    from gpt.trace.used import read_used

    found = read_used(used, allow_incomplete)
    for where, fact in found.warnings:
        stage.warn(where, fact)
    if trace_json:
        from gpt.formats.negativa import write_trace

        write_trace(trace_json, found.loaded, found.names)
        return stage.status
    if not found.names and not keep:
        stage.warn("", "no kernel is used: all GPU code for these devices counts as unused")
    if archs:
        devices = [Device(one) for one in archs]
    else:
        devices = [Device(_device_arch(name), runs == "ptx") for name, runs in sorted(found.devices)]
    if not devices:
        raise UsageError("no trace names a device: say --arch sm_90 or the like")
    by_kernel = granularity == Granularity.kernel
    search = Search(
        stage, found, devices, keep or [], keep_ptx, spans_json, by_kernel, allow_missing, devices if archs else ()
    )
    stage.filter(search.handle, files or (), wants=cli.LIBRARY)
    search.report_missing()
    return stage.status


def _device_arch(name: str) -> Arch:
    """The compute capability of a device, which a trace names. Raises MalformedError."""
    if arch := find_arch(name):
        return arch
    raise MalformedError(f"a trace has a device of architecture '{name}'")


class Given:
    """Spans that somebody else decided on take the place of a search."""

    def __init__(self, stage: cli.Stage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder

    def handle(self, record: dict[str, Any]) -> Records:
        """A record, and before the end of a library its spans."""
        from gpt.formats.negativa import read_spans

        if record["kind"] == "library_end":
            library = record["path"]
            try:
                for start, end in read_spans(self._folder, library):
                    yield records.make("span", library=library, start=start, end=end, reason="given")
            except GptError as error:
                yield self._stage.error(error, ref=library)
        yield record


class Search:
    """Collects the elements of a library and decides when it is complete."""

    def __init__(
        self,
        stage: Holding,
        used: Used,
        devices: list[Device],
        keep: list[str],
        keep_ptx: bool,
        spans_json: Path | None,
        by_kernel: bool,
        allow_missing: bool,
        asked: Sequence[Device],
    ) -> None:
        from gpt.locate.listed import Listed

        self._stage = stage
        stage.judge = self._judge
        self._used = used
        self._devices = devices
        try:
            self._keep = {k: re.compile(k) for k in keep}  # not as one, for flags and groups are each one's own
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"--keep: {error}") from None
        self._idle = dict(self._keep)  # those that matched nothing so far
        self._keep_ptx = keep_ptx
        self._spans_json = spans_json
        self._by_kernel = by_kernel
        self._allow_missing = allow_missing
        self._idle_devices = asked  # those of --arch, as long as none of them could run any code
        self._there: set[tuple[str, str]] = set()  # types and architectures that there are
        self._lists = Listed(used.lists)
        self._maybe: list[tuple[Candidate, list[str]]] = []  # kernels of the library that a demangled name may mean
        self._files: list[tuple[str, list[tuple[int, int]]]] = []  # libraries and spans for --spans-json, not written
        self._seen: set[str] = set()  # used names that some library holds
        self._kept: set[str] = set()  # used names that an element holds that stays
        self._strange = dict(used.images)  # images from memory that no library so far holds
        self._libraries: set[str] = set()
        self._library: dict[str, Any] = {}
        self._candidates: list[Candidate] = []
        self._whole: set[int] = set()  # regions of the library whose elements are needed
        self._listed: set[int] = set()  # those of them that may need every kernel
        self._unused: dict[int, list[str]] = {}  # the unused kernels of each cubin that could be kept in part

    def handle(self, record: dict[str, Any]) -> Records:
        """A record, and before the end of a library its spans and tallies."""
        kind = record["kind"]
        if kind in ("library", "element", "library_end") and (fault := records.check(record)):
            raise MalformedError(fault, str(record.get("path", record.get("library", ""))))
        match kind:
            case "library":
                self._begin(record)
            case "element":
                self._add(record)
            case "library_end" if record["path"] == self._library.get("path"):
                yield from self._decide()
                self._library = {}
        yield record

    def _add(self, element: dict[str, Any]) -> None:
        from gpt.locate.unused import candidate_of, fits

        if element["library"] != self._library.get("path"):
            raise MalformedError("element outside of its library", element["library"])
        names = {kernel["name"] for kernel in element["kernels"]}
        hits = names & self._used.names.keys()
        self._seen |= hits
        if self._keep:
            hits |= {name for name in names if any(one.search(name) for one in self._keep.values())}
            self._idle = {k: one for k, one in self._idle.items() if not any(map(one.search, hits))}
        whole = element["region"] in self._whole or element.get("sha256") in self._used.images
        self._strange.pop(element.get("sha256", ""), None)
        candidate = candidate_of(element, hits, whole)
        self._candidates.append(candidate)
        if maybe := self._lists.look(names, {function["name"] for function in element["functions"]}):
            self._maybe.append((candidate, maybe))
        self._there.add((element["type"], element["arch"]))
        if self._idle_devices and any(fits(candidate, device) for device in self._devices):
            self._idle_devices = ()
        if self._settled:
            self._stage.release()
            self._write_files()
        if self._by_kernel and element["type"] == "cubin" and element["region"] not in self._listed:
            self._unused[element["offset"]] = sorted(names - hits)

    def _begin(self, library: dict[str, Any]) -> None:
        from gpt.formats.paths import real_path

        self._library, self._candidates, self._unused, self._maybe = library, [], {}, []
        build_id, path = library.get("build_id"), real_path(library["path"])
        self._libraries.add(path)
        self._whole, self._listed = (
            {
                offset
                for file, file_build_id, offset in places
                if (build_id and build_id == file_build_id) or real_path(file) == path
            }
            for places in (self._used.whole, self._used.listed)
        )

    def _decide(self) -> Records:
        """The spans of the library that is complete, and what they come to, reason by reason."""
        from gpt.locate.holding import Added
        from gpt.locate.unused import KEPT, KERNEL_UNUSED, iter_reasons, may_link

        self._find_demangled()
        if not self._settled and not self._allow_missing:
            self._stage.hold()
        library = self._library["path"]
        tallies: dict[str, Counter[str]] = {}
        spans = []
        loaders = set().union(*self._strange.values())
        linking = any(may_link(library, loader, self._candidates) for loader in loaders)
        for candidate, reason in iter_reasons(self._candidates, self._devices, linking):
            if self._keep_ptx and candidate.type == "ptx" and candidate.needed:
                reason = KEPT
            tally = tallies.setdefault(reason, Counter())
            tally.update(elements=1, kernels=candidate.kernels, bytes=candidate.end - candidate.start)
            if reason == KEPT:
                self._kept |= candidate.used
                if unused := self._unused.get(candidate.start):
                    tally["kernels"] -= len(unused)
                    tallies.setdefault(KERNEL_UNUSED, Counter())["kernels"] += len(unused)
                    yield Added(
                        records.make(
                            "trim", library=library, offset=candidate.start, kernels=unused, reason=KERNEL_UNUSED
                        )
                    )
            elif candidate.payload < candidate.end:
                spans.append((candidate.payload, candidate.end))
                yield Added(
                    records.make("span", library=library, start=candidate.payload, end=candidate.end, reason=reason)
                )
        tallies[KEPT] = tallies.pop(KEPT, Counter())  # last
        for reason, tally in tallies.items():
            counts = {key: tally[key] for key in ("elements", "kernels", "bytes")}
            yield Added(records.make("tally", library=library, reason=reason, **counts))
        if self._spans_json:
            self._files.append((library, spans))
        if self._settled or self._allow_missing:
            self._write_files()

    def _find_demangled(self) -> None:
        """Counts those kernels of the library as used that a demangled name of a list may mean."""
        found = self._lists.fit({name for _, names in self._maybe for name in names})
        self._seen |= found
        for candidate, names in self._maybe:
            if hits := found.intersection(names):
                candidate.used |= hits
                candidate.needed = True
                if unused := self._unused.get(candidate.start):
                    self._unused[candidate.start] = [name for name in unused if name not in hits]

    @property
    def _settled(self) -> bool:
        """Whether nothing that comes can show that a list or --arch is wrong."""
        return self._lists.settled and not self._idle_devices

    def _misfits(self) -> list[GptError]:
        """What the user named and no library so far has."""
        faults = [GptError(one.fact, one.where) for one in self._lists.faults()]
        if self._idle_devices and self._there:
            names = " or ".join(str(device.arch) for device in self._idle_devices)
            faults.append(GptError(f"--arch: no code for {names}: there is {describe(self._there)}"))
        return faults

    def _faults(self) -> list[GptError]:
        return [GptError(f"{one.fact}: nothing is cut without --allow-missing", one.where) for one in self._misfits()]

    def _judge(self) -> list[GptError]:
        """What is wrong with the names of lists, as far as libraries came by. If nothing is, files of spans appear."""
        faults = self._faults()
        if not faults:
            self._write_files()
        self._files = []
        return faults

    def _write_files(self) -> None:
        from gpt.formats.negativa import write_spans

        files, self._files = self._files, []
        for library, spans in files:
            try:
                write_spans(self._spans_json or Path(), library, spans)
            except GptError as error:
                self._stage.error(error, ref=library)

    def report_missing(self) -> None:
        """Names what was used and is in no library that came by. What a trace saw elsewhere is no surprise."""
        from gpt.formats.paths import real_path

        if not self._libraries:
            return  # as was said
        if self._allow_missing:
            for fault in self._misfits():
                self._stage.warn(fault.where, fault.fact)
        else:
            for fault in self._faults():
                self._stage.error(fault)
        origins = self._used.names
        missing = {
            name
            for name in origins.keys() - self._seen - self._used.lists.keys()
            if origins[name] is None or real_path(origins[name] or "") in self._libraries
        }
        self._warn_of("used, but in no library", missing)
        if not self._idle_devices:
            self._warn_of("used, but in no code for these devices", self._seen - self._kept)
        if self._libraries:
            self._warn_of("--keep: matches no kernel", set(self._idle))

    def _warn_of(self, fact: str, names: set[str]) -> None:
        from gpt.locate.listed import quoted

        if names:
            self._stage.warn("", f"{fact}: {quoted(names)}")
