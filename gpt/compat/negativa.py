"""Negativa-ML's files: what was used, and spans.

`trace.json` is `{"loaded_sos": [PATH], "detected_kernels": [NAME]}` (gpt/trace/used.py reads it), `LIB.json`
`{"so_path": PATH, "spans": [{"start": N, "end": N}]}`, end exclusive.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.base.outputs import make_folder, replacing
from gpt.formats.paths import read_at_most

Span = tuple[int, int]
MAX_FILE = 256 << 20  # bytes


def path_of(place: Path, library: str) -> Path:
    """Where the spans of a library stand: `place` is that file, or a folder of such files."""
    return place if place.is_file() else place / f"{Path(library).name}.json"


def write_spans(folder: Path, library: str, spans: list[Span]) -> None:
    """Writes the file of one library, whole or not at all. Raises GptError if it cannot be written."""
    make_folder(folder)
    value = {"so_path": os.path.abspath(library), "spans": [{"start": s, "end": e} for s, e in spans]}
    path = folder / f"{Path(library).name}.json"
    try:
        _write(path, value)
    except ValueError:  # a NUL
        raise MissingError("not a valid file name", str(path)) from None
    except OSError as error:  # the name is too long, say
        raise GptError.of(error, path) from None


def write_trace(path: Path, loaded: Iterable[str], kernels: Iterable[str]) -> None:
    """Writes a trace.json, whole or not at all. Raises GptError if it is not a file."""
    try:
        _write(path, {"loaded_sos": sorted(loaded), "detected_kernels": sorted(kernels)})
    except OSError as error:
        raise GptError.of(error, path) from None


def _write(path: Path, value: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write(json.dumps(value).encode() + b"\n")


def find_so_path(path: Path) -> str | None:
    """The library that a span file is about; None if the file is something else."""
    try:
        with open(path, "rb") as file:
            value = json.loads(read_at_most(file, MAX_FILE)) if file.peek(1)[:1] == b"{" else None
        found = value.get("so_path") if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def read_spans(folder: Path, library: str) -> list[Span]:
    """The spans of a library. Raises MissingError without a file, MalformedError if it says something else."""
    path = path_of(folder, library)
    try:
        with open(path, "rb") as file:
            value: Any = json.loads(read_at_most(file, MAX_FILE))
        spans = [(span["start"], span["end"]) for span in value["spans"]]
        if not all(type(n) is int and n >= 0 for span in spans for n in span):
            raise ValueError("start and end are not offsets")
    except FileNotFoundError:
        raise MissingError(f"no spans for it: {path} is absent", library) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(f"not a span file of Negativa-ML: {error}", str(path)) from None
    return sorted(spans)
