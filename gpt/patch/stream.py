"""Read what a stream says about libraries, and write the new libraries and wheels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.patch.library import PatchOptions, Request, rewrite
from gpt.patch.places import Places
from gpt.patch.wheel import Wheels
from gpt.patch.write import append
from gpt.stream import records
from gpt.stream.stage import Stage

NO_SPANS = "no spans in the stream: gpt-locate finds them"
NO_ELEMENTS = "no spans in the stream, nor a list of GPU code: 'gpt-extract LIBRARY | gpt-locate' makes both"
UNDECIDED = "gpt-locate failed to decide about these libraries (its errors say why), so they aren't written"
TRACE = "a trace, in which no library is read: 'gpt-extract LIBRARY | gpt-locate --used TRACE' does"
FIND_NONE = {"gpt-asm", "gpt-dump", "gpt-patch", "gpt-ptx-probe"}  # filters that add no spans

Records = Iterator[dict[str, Any]]


class Patcher:
    """Collects the records of a library, and patches it when the last one has arrived."""

    def __init__(self, stage: Stage, places: Places, way: PatchOptions) -> None:
        self._stage = stage
        self._places = places
        self._way = way
        self._request: Request | None = None  # for the current library
        self._by_arch: dict[str, Request] = {}  # for the same library, by --arch

    def handle(self, record: dict[str, Any]) -> Records:
        """Pass a record on. Before the end of a library, yield the changes that were made to it."""
        kind, of = record["kind"], self._request.library["path"] if self._request else None
        if kind in ("library", "span", "trim", "tally", "library_end") and (fault := records.check(record)):
            raise MalformedError(fault, str(record.get("path", record.get("library", ""))))
        if kind in ("span", "trim") and of != record["library"]:
            raise MalformedError(f"{kind} outside its library", record["library"])
        match self._request, kind:
            case _, "library" if self._stage.header.get("tool") in ("gpt-hook", "gpt-attach"):
                yield self._stage.error(GptError(TRACE), once=True)
            case _, "library":
                self.report_unfinished()
                self._request, self._by_arch = Request(record), {}
            case Request(), "element" if record.get("library") == of and not records.check(record):
                self._request.kernels[record["offset"]] = [kernel["name"] for kernel in record["kernels"]]
            case Request(), "span":
                request = self._request_of(record)
                request.spans.append((record["start"], record["end"]))
                request.reasons.setdefault(record["reason"], set()).add(record["start"])
            case Request(), "trim":
                self._request_of(record).unused.setdefault(record["offset"], set()).update(record["kernels"])
            case Request(), "tally" if record["library"] == of:
                self._request_of(record).tallies.append(record)  # held back until the library has been patched
                return
            case Request(), "library_end" if record["path"] == of:
                request, self._request = self._request, None
                if self._is_undecided(request):
                    yield self._stage.error(GptError(UNDECIDED), ref=request.library["path"], once=True)
                elif fact := self._find_forgotten(request):
                    yield self._stage.error(GptError(fact), ref=request.library["path"], once=True)
                elif fact := self._find_mixed(request):
                    yield self._stage.error(GptError(fact, request.library["path"]), ref=request.library["path"])
                else:
                    for arch, one in (self._by_arch or {"": request}).items():
                        yield from self._patch(one, self._places.for_arch(arch) if arch else self._places)
            case _, "end" if any(places.wheels for places in self._places.all):
                for places in self._places.all:
                    if places.wheels:
                        yield from self._finish_wheels(places, places.wheels)
            case _, "end" if self._places.renaming.label:
                yield self._stage.warn("", "--label: no wheel was written", ref="")
        yield record

    def report_unfinished(self) -> None:
        """Report a library that wasn't patched, because the stream ended before all of its records."""
        if self._request:
            if self._stage.told:
                self._stage.status = max(self._stage.status, MalformedError.status)
            else:
                fact = "the stream ends before the library does: not patched"
                self._stage.error(MalformedError(fact, self._request.library["path"]))
            self._request = None

    def _request_of(self, record: dict[str, Any]) -> Request:
        """Return the request to which a span, trim or tally belongs."""
        base = self._request
        assert base
        if not (arch := record.get("arch")):
            return base
        return self._by_arch.setdefault(arch, Request(base.library, kernels=base.kernels))

    def _find_mixed(self, request: Request) -> str | None:
        """Return why the library can't be written separately for each --arch, or None."""
        if self._by_arch and (request.spans or request.unused):
            return "some spans have an arch, others have none"
        if len(self._by_arch) > 1 and os.path.exists(request.library["path"]):
            return "only wheels are written once for each --arch: put commas between devices that share a library"
        if len(self._by_arch) > 1 and self._places.renaming.label:
            return "--label is for one wheel: without it each is named after its --arch"
        return None

    def _is_undecided(self, request: Request) -> bool:
        """Return whether gpt-locate made no decision about the library. If it did, there's a tally, even if it's an
        empty one.

        gpt-locate writes no records if --arch or a list turns out to be wrong. Then nothing is cut, and the library
        isn't compressed again either.
        """
        decided = request.spans or request.unused or request.tallies or self._by_arch
        return not decided and "gpt-locate" in self._stage.header.get("via", [])

    def _find_forgotten(self, request: Request) -> str | None:
        """If no stage can have found spans, return which stage is missing. Otherwise, return None."""
        if self._way.level is not None or self._way.zstd_sizes:
            return None
        if request.spans or request.unused or self._by_arch or set(self._stage.header.get("via", [])) - FIND_NONE:
            return None
        return NO_SPANS if request.kernels else NO_ELEMENTS

    def _patch(self, request: Request, places: Places) -> Records:
        """Rewrite a library. Errors become `diag`s."""
        path = request.library["path"]
        try:
            done = rewrite(request, places.find(path), self._way)
        except GptError as error:
            yield self._stage.error(error, ref=path)
        except OSError as error:
            yield self._stage.error(MissingError.of(error, error.filename or path), ref=path)
        else:
            yield from (self._stage.warn(path, note, ref=path) for note in done.notes)
            yield from done.records

    def _finish_wheels(self, places: Places, wheels: Wheels) -> Records:
        """Write the wheels whose libraries were patched. Errors become `diag`s."""
        for wheel, replaced in wheels.take_complete().items():
            try:
                target = places.take(wheel, is_wheel=True)
                for name in wheels.write(wheel, replaced, target, places.renaming):
                    fact = f"RECORD has no line for '{name}', so installers can't check it"
                    yield self._stage.warn(str(target), fact, ref=str(wheel))
                sizes = {"size_before": wheel.stat().st_size, "size_after": target.stat().st_size}
                if self._way.listing:
                    append(self._way.listing, os.fsencode(os.path.abspath(target)) + b"\0")
                yield records.make("repacked", wheel=str(wheel), output=str(target), **sizes)
            except GptError as error:
                yield self._stage.error(error, ref=str(wheel))
