"""Negativa-ML's span files: `LIB.json`, `{"so_path": PATH, "spans": [{"start": N, "end": N}]}`, end exclusive."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpt.errors import MalformedError, MissingError

Span = tuple[int, int]
MAX_FILE = 256 << 20  # bytes


def path_of(folder: Path, library: str) -> Path:
    """Where the spans of a library stand."""
    return folder / f"{Path(library).name}.json"


def write_spans(folder: Path, library: str, spans: list[Span]) -> None:
    """Writes the file of one library, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, library)
    value = {"so_path": os.path.abspath(library), "spans": [{"start": s, "end": e} for s, e in spans]}
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(value) + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_spans(folder: Path, library: str) -> list[Span]:
    """The spans of a library. Raises MissingError without a file, MalformedError where it says something else."""
    path = path_of(folder, library)
    try:
        with open(path, "rb") as file:
            value: Any = json.loads(file.read(MAX_FILE))
        spans = [(span["start"], span["end"]) for span in value["spans"]]
        if not all(type(n) is int and n >= 0 for span in spans for n in span):
            raise ValueError("start and end are no offsets")
    except FileNotFoundError:
        raise MissingError(f"no spans for it: {path} is absent", library) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(f"no spans of Negativa-ML: {error}", str(path)) from None
    return sorted(spans)
