"""Say which code of a stream is from one of NVIDIA's closed libraries (gpt/formats/closed.py), so that no stage decodes
or probes it.

A `library` record has a file's path, the name it was linked with, and its build ID. The code's own kernel names decide
as well, except in a bare PTX file: anybody may write a kernel with such a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpt.formats.closed import find_closed_kernel, is_closed_name


class ClosedCode:
    """Remembers the libraries of a stream."""

    def __init__(self) -> None:
        self._types: dict[str, str | None] = {}  # by path
        self._closed: set[str] = set()

    def note(self, record: dict[str, Any]) -> None:
        """Remember a record if it describes a library."""
        path = record.get("path")
        if record["kind"] != "library" or not isinstance(path, str):
            return
        soname, build_id, type_ = (
            value if isinstance(value := record.get(key), str) else None for key in ("soname", "build_id", "type")
        )
        self._types[path] = type_
        if is_closed_name([path, soname or ""], build_id):
            self._closed.add(path)

    def knows(self, library: str) -> bool:
        """Return whether a record described the library."""
        return library in self._types

    def covers(self, library: str, kernels: Iterable[str]) -> bool:
        """Return whether code of a library, or of a file that no record describes, is closed."""
        if library in self._closed or is_closed_name([library], None):
            return True
        return self._types.get(library) != "ptx" and find_closed_kernel(kernels) is not None
