"""Read and write the files of Negativa-ML: lists of used code, and spans.

`trace.json` is `{"loaded_sos": [PATH], "detected_kernels": [NAME]}`. `LIB.json` is `{"so_path": PATH, "spans":
[{"start": N, "end": N}]}`, where the end is exclusive.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.base.outputs import make_folder, replacing
from gpt.formats.paths import read_at_most
from gpt.locate.unused import KEPT
from gpt.stream import records
from gpt.trace.inputs import Format

if TYPE_CHECKING:
    from gpt.stream.stage import Stage

Span = tuple[int, int]
MAX_FILE = 256 << 20  # bytes
GIVEN = "given"  # the reason that's recorded for these spans


def path_of(place: Path, library: str) -> Path:
    """Return the file with the spans of a library. `place` is this file, or a folder that contains it."""
    return place if place.is_file() else place / f"{Path(library).name}.json"


def write_spans(folder: Path, library: str, spans: list[Span]) -> None:
    """Write the spans of a library to its file, atomically. Raises GptError if it can't be written."""
    make_folder(folder)
    value = {"so_path": os.path.abspath(library), "spans": [{"start": s, "end": e} for s, e in spans]}
    path = folder / f"{Path(library).name}.json"
    try:
        _write(path, value)
    except ValueError:  # a NUL
        raise MissingError("not a valid file name", str(path)) from None
    except OSError as error:  # for example, the name is too long
        raise GptError.of(error, path) from None


def write_trace(path: Path, loaded: Iterable[str], kernels: Iterable[str]) -> None:
    """Write a trace.json, atomically. Raises GptError if it can't be written."""
    try:
        _write(path, {"loaded_sos": sorted(loaded), "detected_kernels": sorted(kernels)})
    except OSError as error:
        raise GptError.of(error, path) from None


def _write(path: Path, value: dict[str, Any]) -> None:
    import json  # summaries of traces don't need it

    with replacing(path) as file:
        file.write(json.dumps(value).encode() + b"\n")


def _parse(data: bytes) -> Any:
    import json

    return json.loads(data)


def find_so_path(path: Path) -> str | None:
    """Return the library that a file with spans describes, or None if it's a different file."""
    try:
        with open(path, "rb") as file:
            value = _parse(read_at_most(file, MAX_FILE)) if file.peek(1)[:1] == b"{" else None
        found = value.get("so_path") if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def read_spans(folder: Path, library: str) -> list[Span]:
    """Return the spans of a library. Raises MissingError if there's no file, and MalformedError if it contains anything
    else.
    """
    path = path_of(folder, library)
    try:
        with open(path, "rb") as file:
            value = _parse(read_at_most(file, MAX_FILE))
        spans = [(span["start"], span["end"]) for span in value["spans"]]
        if not all(type(n) is int and n >= 0 for span in spans for n in span):
            raise ValueError("start and end are not offsets")
    except FileNotFoundError:
        raise MissingError(f"no spans for it: {path} is absent", library) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(f"not a span file of Negativa-ML: {error}", str(path)) from None
    return sorted(spans)


def list_used(data: bytes, path: Path) -> tuple[list[str], list[str]] | None:
    """Return the kernels and libraries in a trace.json, or None if the text isn't JSON. Raises MalformedError."""
    if not data.startswith(b"{"):
        return None
    try:
        value = _parse(data)
        names = value["detected_kernels"]
        libraries = value.get("loaded_sos", [])
        for key, strings in (("detected_kernels", names), ("loaded_sos", libraries)):
            if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
                raise TypeError(f"{key} is not a list of strings")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(f"not a trace.json of Negativa-ML: {error}", str(path)) from None
    return names, libraries


class SpansFromFile:
    """Takes the spans of unused code from a file, in place of gpt-locate."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder
        self._elements: list[dict[str, Any]] = []  # elements of the current library

    def handle(self, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Pass a record on. Before the end of a library, insert its spans, and tallies of what they cut."""
        match record["kind"]:
            case "library":
                self._elements = []
            case "element" if not records.check(record):
                self._elements.append(record)
            case "library_end":
                yield from self._decide(record["path"])
        yield record

    def _decide(self, library: str) -> Iterator[dict[str, Any]]:
        try:
            spans = read_spans(self._folder, library)
        except GptError as error:
            yield self._stage.error(error, ref=library)
            return
        for start, end in spans:
            yield records.make("span", library=library, start=start, end=end, reason=GIVEN)
        tallies = {GIVEN: Counter[str](), KEPT: Counter[str]()}
        for element in self._elements:
            start, payload = element["offset"], element["offset"] + element["header_size"]
            end = payload + element["payload_size"]
            reason = GIVEN if any(low <= payload and end <= high for low, high in spans) else KEPT
            tallies[reason].update(elements=1, kernels=len(element["kernels"]), bytes=end - start)
        for reason, tally in tallies.items():
            if tally or reason == KEPT:
                counts = {key: tally[key] for key in ("elements", "kernels", "bytes")}
                yield records.make("tally", library=library, reason=reason, **counts)


FORMAT = Format("negativa", list_used=list_used, find_library=find_so_path)
