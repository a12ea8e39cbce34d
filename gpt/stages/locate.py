"""gpt-locate: which GPU code these runs never used."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpt import cli, records
from gpt.errors import GptError, MalformedError, UsageError

if TYPE_CHECKING:
    from gpt.debloat.unused import Candidate, Device
    from gpt.debloat.used import Used

TOOL = "gpt-locate"
NAMED, NAME_LENGTH = 3, 100  # names that a message lists, characters of each

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
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Find the GPU code that is not needed to run these kernels on these devices."""
    stage = cli.Stage(TOOL, json=json, from_json=from_json)
    if not used:
        if spans_json is None:
            raise UsageError("--used FILE is needed (or --spans-json DIR, to read spans)")
        return stage.filter(Given(stage, spans_json).handle, files or ())
    if spans_json and granularity == Granularity.kernel:
        raise UsageError("--spans-json knows no kernels inside of elements")
    from gpt.debloat.unused import Device, parse_arch
    from gpt.debloat.used import read_used

    found = read_used(used, allow_incomplete)
    for where, fact in found.warnings:
        stage.warn(where, fact)
    if trace_json:
        from gpt.debloat.negativa import write_trace

        write_trace(trace_json, found.loaded, found.names)
        return stage.status
    if not found.names and not keep:
        stage.warn("", "no kernel is used: all GPU code for these devices counts as unused")
    if arch:
        devices = [Device(parse_arch(name)) for name in arch.split(",") if name]
    else:
        devices = [Device(parse_arch(name), runs == "ptx") for name, runs in sorted(found.devices)]
    if not devices:
        raise UsageError("no trace names a device: say --arch sm_90 or the like")
    search = Search(stage, found, devices, keep or [], keep_ptx, spans_json, granularity == Granularity.kernel)
    stage.filter(search.handle, files or ())
    search.report_missing()
    return stage.status


class Given:
    """Spans that somebody else decided on take the place of a search."""

    def __init__(self, stage: cli.Stage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder

    def handle(self, record: dict[str, Any]) -> Records:
        """A record, and before the end of a library its spans."""
        from gpt.debloat.negativa import read_spans

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
        stage: cli.Stage,
        used: Used,
        devices: list[Device],
        keep: list[str],
        keep_ptx: bool,
        spans_json: Path | None,
        by_kernel: bool,
    ) -> None:
        self._stage = stage
        self._used = used
        self._devices = devices
        try:
            self._keep = re.compile("|".join(f"(?:{k})" for k in keep)) if keep else None
        except re.error as error:
            raise UsageError(f"--keep: {error}") from None
        self._keep_ptx = keep_ptx
        self._spans_json = spans_json
        self._by_kernel = by_kernel
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
        from gpt.debloat.unused import candidate_of

        if element["library"] != self._library.get("path"):
            raise MalformedError("element outside of its library", element["library"])
        names = {kernel["name"] for kernel in element["kernels"]}
        hits = names & self._used.names.keys()
        self._seen |= hits
        if self._keep:
            hits |= {name for name in names if self._keep.search(name)}
        whole = element["region"] in self._whole or element.get("sha256") in self._used.images
        self._strange.pop(element.get("sha256", ""), None)
        self._candidates.append(candidate_of(element, hits, whole))
        if self._by_kernel and element["type"] == "cubin" and element["region"] not in self._listed:
            self._unused[element["offset"]] = sorted(names - hits)

    def _begin(self, library: dict[str, Any]) -> None:
        self._library, self._candidates, self._unused = library, [], {}
        self._libraries.add(os.path.realpath(library["path"]))
        build_id, path = library.get("build_id"), os.path.realpath(library["path"])
        self._whole, self._listed = (
            {
                offset
                for file, file_build_id, offset in places
                if (build_id and build_id == file_build_id) or os.path.realpath(file) == path
            }
            for places in (self._used.whole, self._used.listed)
        )

    def _decide(self) -> Records:
        """The spans of the library that is complete, and what they come to, reason by reason."""
        from gpt.debloat.negativa import write_spans
        from gpt.debloat.unused import KEPT, KERNEL_UNUSED, iter_reasons, may_link

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
                    yield records.make(
                        "trim", library=library, offset=candidate.start, kernels=unused, reason=KERNEL_UNUSED
                    )
            elif candidate.payload < candidate.end:
                spans.append((candidate.payload, candidate.end))
                yield records.make("span", library=library, start=candidate.payload, end=candidate.end, reason=reason)
        tallies[KEPT] = tallies.pop(KEPT, Counter())  # last
        for reason, tally in tallies.items():
            counts = {key: tally[key] for key in ("elements", "kernels", "bytes")}
            yield records.make("tally", library=library, reason=reason, **counts)
        if self._spans_json:
            write_spans(self._spans_json, library, spans)

    def report_missing(self) -> None:
        """Names what was used and is in no library that came by. What a trace saw elsewhere is no surprise."""
        origins = self._used.names
        missing = {
            name
            for name in origins.keys() - self._seen
            if origins[name] is None or os.path.realpath(origins[name] or "") in self._libraries
        }
        self._warn_of("used, but in no library", missing)
        self._warn_of("used, but in no code for these devices", self._seen - self._kept)

    def _warn_of(self, fact: str, names: set[str]) -> None:
        if names:
            shown = ", ".join(f"'{_shorten(name)}'" for name in sorted(names)[:NAMED])
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            self._stage.warn("", f"{fact}: {shown}{more}")


def _shorten(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else name[:NAME_LENGTH] + "..."
