"""Decide which code of each library in a stream is unused, once all elements of the library have been read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gpt.base.arch import describe
from gpt.base.errors import GptError, MalformedError, UsageError
from gpt.formats.paths import real_path
from gpt.locate.holding import Added, Holding, Verdict
from gpt.locate.listed import Listed, quoted
from gpt.locate.targets import DeviceSet
from gpt.locate.unused import KEPT, KERNEL_UNUSED, Candidate, candidate_of, fits, iter_reasons, may_link
from gpt.stream import records
from gpt.trace.used import Used

Records = Iterator[dict[str, Any]]
Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class LocateOptions:
    """Options of the command line. gpt-locate(1) explains them."""

    targets: list[DeviceSet]
    keep: Sequence[str]
    keep_ptx: bool
    by_kernel: bool
    allow_missing: bool
    write_spans: Callable[[str, Spans], None] | None  # writes the spans of a library to a file of their own
    everything: bool = False  # all kernels count as used

    @cached_property
    def kept(self) -> dict[str, re.Pattern[str]]:
        """Return the patterns of --keep.

        They aren't merged into one pattern, because each has its own flags and groups. Raises UsageError.
        """
        try:
            return {text: re.compile(text) for text in self.keep}
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"--keep: {error}") from None


@dataclass
class Library:
    """A library while its elements are being read: its record, and what's known about their use."""

    record: dict[str, Any]
    whole: set[int]  # regions whose elements are needed
    listed: set[int]  # regions in which any kernel may be needed
    candidates: list[Candidate] = field(default_factory=list)
    unused: dict[int, list[str]] = field(default_factory=dict)  # unused kernels, by offset of their cubin
    maybe: list[tuple[Candidate, list[str]]] = field(default_factory=list)  # kernels that a demangled name may mean

    @property
    def path(self) -> str:
        """Return the path in the stream."""
        path: str = self.record["path"]
        return path


class Search:
    """Compares the kernels that were used with the contents of libraries."""

    def __init__(self, stage: Holding, used: Used, wanted: LocateOptions) -> None:
        self._stage = stage
        stage.judge = self._judge
        self._used = used
        self._wanted = wanted
        self._idle = dict(wanted.kept)  # patterns without a match so far
        self._there: set[tuple[str, str]] = set()  # types and architectures that exist
        self._lists = Listed(used.lists)
        self._files: list[tuple[str, Spans]] = []  # libraries and their spans that --spans-json hasn't written yet
        self._seen: set[str] = set()  # used names with a kernel in some library
        self._strange = dict(used.images)  # images loaded from memory that haven't been found in a library
        self._libraries: set[str] = set()
        self._library: Library | None = None

    def handle(self, record: dict[str, Any]) -> Records:
        """Pass a record on. At the end of a library, its spans and tallies come first."""
        kind, library = record["kind"], self._library
        if kind in ("library", "element", "library_end") and (fault := records.check(record)):
            raise MalformedError(fault, str(record.get("path", record.get("library", ""))))
        match kind:
            case "library":
                self._library = self._begin(record)
            case "element":
                if not library or record["library"] != library.path:
                    raise MalformedError("element outside its library", record["library"])
                self._add(library, record)
            case "library_end" if library and record["path"] == library.path:
                yield from self._decide(library)
                self._library = None
        yield record

    def _begin(self, record: dict[str, Any]) -> Library:
        build_id, path = record.get("build_id"), real_path(record["path"])
        self._libraries.add(path)

        def regions(places: Iterable[tuple[str, str | None, int]]) -> set[int]:
            """Return the offsets of the given places that are in this library."""
            return {
                offset
                for file, its_build_id, offset in places
                if (build_id and build_id == its_build_id) or real_path(file) == path
            }

        return Library(record, regions(self._used.whole), regions(self._used.listed))

    def _add(self, library: Library, element: dict[str, Any]) -> None:
        names = {kernel["name"] for kernel in element["kernels"]}
        hits = names & self._used.names.keys()
        self._seen |= hits
        hits |= names if self._wanted.everything else self._match_kept(names)
        whole = element["region"] in library.whole or element.get("sha256") in self._used.images
        self._strange.pop(element.get("sha256", ""), None)
        candidate = candidate_of(element, hits, whole, self._wanted.everything)
        library.candidates.append(candidate)
        if maybe := self._lists.look(names, {function["name"] for function in element["functions"]}):
            library.maybe.append((candidate, maybe))
        self._there.add((element["type"], element["arch"]))
        for target in self._wanted.targets:
            target.idle = [device for device in target.idle if not fits(candidate, device)]
        if self._settled:
            self._stage.release()
            self._write_files()
        if self._wanted.by_kernel and element["type"] == "cubin" and element["region"] not in library.listed:
            library.unused[element["offset"]] = sorted(names - hits)

    def _match_kept(self, names: set[str]) -> set[str]:
        """Return the names that --keep matches."""
        found: set[str] = set()
        for text, pattern in self._wanted.kept.items():
            if hits := set(filter(pattern.search, names)):
                found |= hits
                self._idle.pop(text, None)
        return found

    def _decide(self, library: Library) -> Records:
        """Yield the spans of a complete library for each target, and a tally for each reason."""
        self._find_demangled(library)
        if not self._settled and not self._wanted.allow_missing:
            self._stage.hold()
        loaders = set().union(*self._strange.values())
        linking = self._wanted.everything or any(
            may_link(library.path, loader, library.candidates) for loader in loaders
        )
        for target in self._wanted.targets:
            for record in self._decide_for(target, library, linking):
                added = Added(record)
                added.target = target.number
                yield added
        if self._settled or self._wanted.allow_missing:
            self._write_files()

    def _decide_for(self, target: DeviceSet, library: Library, linking: bool) -> Records:
        tallies: dict[str, Counter[str]] = {}
        spans = []
        candidates = [replace(candidate) for candidate in library.candidates]  # each target picks its own
        for candidate, reason in iter_reasons(candidates, target.devices, linking):
            if self._wanted.keep_ptx and candidate.type == "ptx" and candidate.needed:
                reason = KEPT
            tally = tallies.setdefault(reason, Counter())
            tally.update(elements=1, kernels=candidate.kernels, bytes=candidate.end - candidate.start)
            if reason == KEPT:
                target.kept |= candidate.used
                if unused := library.unused.get(candidate.start):
                    tally["kernels"] -= len(unused)
                    tallies.setdefault(KERNEL_UNUSED, Counter())["kernels"] += len(unused)
                    trim = {"offset": candidate.start, "kernels": unused, "reason": KERNEL_UNUSED}
                    yield records.make("trim", library=library.path, arch=target.arch, **trim)
            elif candidate.payload < candidate.end:
                spans.append((candidate.payload, candidate.end))
                span = {"start": candidate.payload, "end": candidate.end, "reason": reason}
                yield records.make("span", library=library.path, arch=target.arch, **span)
        tallies[KEPT] = tallies.pop(KEPT, Counter())  # last in order
        if self._wanted.everything and candidates and all(c.arch for c in candidates) and not tallies[KEPT]:
            target.lost[library.path] = describe({(c.type, str(c.arch)) for c in candidates})
        for reason, tally in tallies.items():
            counts = {key: tally[key] for key in ("elements", "kernels", "bytes")}
            yield records.make("tally", library=library.path, reason=reason, arch=target.arch, **counts)
        if self._wanted.write_spans:
            self._files.append((library.path, spans))

    def _find_demangled(self, library: Library) -> None:
        """Count kernels as used if a demangled name in a list may refer to them."""
        found = self._lists.fit({name for _, names in library.maybe for name in names})
        self._seen |= found
        for candidate, names in library.maybe:
            if hits := found.intersection(names):
                candidate.used |= hits
                candidate.needed = True
                if unused := library.unused.get(candidate.start):
                    library.unused[candidate.start] = [name for name in unused if name not in hits]

    @property
    def _settled(self) -> bool:
        """Return True if lists and --arch can't cause any more faults."""
        return self._lists.settled and not any(target.all_idle for target in self._wanted.targets)

    def _misfits(self) -> Iterator[tuple[GptError, list[DeviceSet]]]:
        """Yield the faults of lists and --arch that are known so far, each with the targets that it affects."""
        for one in self._lists.faults():
            yield GptError(one.fact, one.where), self._wanted.targets
        for target in self._wanted.targets:
            if target.all_idle and self._there:
                yield GptError(self._describe_idle(target)), [target]

    def _describe_idle(self, target: DeviceSet) -> str:
        names = " or ".join(str(device.arch) for device in target.idle)
        return f"--arch: no code for {names}: there is {describe(self._there)}"

    def _judge(self) -> Verdict:
        """Return the faults of lists and --arch, judging by the libraries that have been read.

        If there are no faults, write the files of spans.
        """
        faults, bad = [], set[int]()
        for fault, targets in self._misfits():
            what = "nothing is cut" if targets == self._wanted.targets else "nothing is cut for that"
            faults.append(GptError(f"{fault.fact}: {what} without --allow-missing", fault.where))
            bad |= {target.number for target in targets}
        if not faults:
            self._write_files()
        self._files = []
        return Verdict(faults, bad)

    def _write_files(self) -> None:
        write_spans = self._wanted.write_spans
        if not write_spans:
            return
        files, self._files = self._files, []
        for library, spans in files:
            try:
                write_spans(library, spans)
            except GptError as error:
                self._stage.error(error, ref=library)

    def report_missing(self) -> None:
        """Report kernels that were used, but aren't in any library of the stream.

        Kernels that were in other libraries, according to a trace, are expected.
        """
        if not self._libraries:
            return  # there was nothing to search
        if self._wanted.allow_missing:
            for fault, _ in self._misfits():
                self._stage.warn(fault.where, fault.fact)
        else:
            for fault in self._judge().faults:
                self._stage.error(fault)
        for target in self._wanted.targets:
            if target.idle and not target.all_idle:
                self._stage.warn("", self._describe_idle(target))
            if not target.all_idle:
                names = " or ".join(str(device.arch) for device in target.devices)
                for library, there in target.lost.items():
                    self._stage.warn(library, f"loses all of its GPU code, since none is for {names}: there is {there}")
        origins = self._used.names
        missing = {
            name
            for name in origins.keys() - self._seen - self._used.lists.keys()
            if origins[name] is None or real_path(origins[name] or "") in self._libraries
        }
        self._warn_of("used, but in no library", missing)
        for target in self._wanted.targets:
            if not target.all_idle:
                devices = target.arch if len(self._wanted.targets) > 1 else "these devices"
                self._warn_of(f"used, but in no code for {devices}", self._seen - target.kept)
        self._warn_of("--keep: matches no kernel", set(self._idle))

    def _warn_of(self, fact: str, names: set[str]) -> None:
        if names:
            self._stage.warn("", f"{fact}: {quoted(names)}")
