"""The maps of a folder, from its probe file, with the fields named as in the corresponding built-in probes.

Records in a result have their fields one after another, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.formats.paths import open_regular, read_at_most
from gpt.probe.model import Map
from gpt.probe.read.load import MAX_SOURCE
from gpt.ptx.types import SIZES
from gpt.stream import records
from gpt.stream.packed import TYPES

PROBES = "probe.toml", "probe.py"
U64, U32 = "u64", "u32"
TOOLS: dict[
    str, tuple[bool, dict[tuple[str, ...], tuple[str, ...]]]
] = {  # Neutrino's probes: True if each access has a record, and our names of the fields, by their types
    "block_sched": (False, {(U64, U32, U32): ("start", "elapsed", "sm")}),
    "gmem_bytes": (False, {(U64, U64): ("sync", "async"), (U32, U32): ("sync", "async")}),
    "tensorop_count": (False, {(U64,): ("operations",), (U32,): ("operations",)}),
    "dmat": (True, {(U64, U64): ("clock", "address")}),
    "program_progress": (True, {(U64, U32, U32): ("clock", "steps", "sm")}),
}


class FolderMap(NamedTuple):
    """A map whose records have `bytes` bytes. `capacity` is None if each result has a capacity of its own."""

    name: str
    level: str
    bytes: int
    capacity: int | None
    fields: list[tuple[str, str]]

    def make(self, id_: int, capacity: int) -> dict[str, Any]:
        """Return a `map` record; `capacity` is the room of a log."""
        places, at = [], 0
        for name, type_ in self.fields:
            places.append({"name": name, "type": type_, "offset": at})
            at += SIZES[type_]
        type_, capacity = ("log", capacity) if self.capacity is None else ("array", self.capacity)
        return records.make("map", id=id_, name=self.name, type=type_, level=self.level, capacity=capacity,
                            stride=self.bytes, fields=places)  # fmt: skip


def read_maps(folder: Path) -> list[FolderMap]:
    """Return the maps of a folder's probe file, in the order of its text. Raises MissingError, MalformedError."""
    for name in PROBES:
        path = folder / name
        if not path.exists():
            continue
        with open_regular(path, follow=False) as file:
            data = read_at_most(file, MAX_SOURCE + 1)
        if len(data) > MAX_SOURCE:
            raise MalformedError(f"larger than {MAX_SOURCE >> 20} MiB", str(path))
        maps, callback = _parse(data.decode("utf-8-sig", "replace"), path)
        return [_make_map(maps, callback, map_) for map_ in maps]
    raise MissingError("no probe.toml, so nothing says what its records are: put the probe file there", str(folder))


def _parse(source: str, path: Path) -> tuple[tuple[Map, ...], str | None]:
    if path.suffix == ".py":
        from gpt.probe.read.python import compile_python  # it is not executed

        found = compile_python(source, str(path))
        return found.maps, found.callback
    from gpt.probe.read.toml import parse_maps

    return parse_maps(source, str(path))


def _make_map(maps: Sequence[Map], callback: str | None, map_: Map) -> FolderMap:
    fields = [(field.name, _type(field.type)) for field in map_.fields]
    size = max(map_.size, sum(SIZES[type_] for _, type_ in fields))
    hook = Path(callback or "").name
    named = [map_.name, *([tool for tool in TOOLS if hook.startswith(tool)] if len(maps) == 1 else [])]
    tool = next((name for name in named if name in TOOLS), None)
    if tool is None:
        return FolderMap(map_.name, map_.level, size, map_.capacity, fields)
    log, forms = TOOLS[tool]
    names = forms.get(tuple(type_ for _, type_ in fields), tuple(name for name, _ in fields))
    fields = [(name, type_) for name, (_, type_) in zip(names, fields, strict=True)]
    return FolderMap(tool, map_.level, size, None if log else map_.capacity, fields)


def _type(type_: str) -> str:
    """Convert a type of PTX to the type of a field."""
    found = {"b": "u", "s": "i"}.get(type_[0], type_[0]) + type_[1:]
    if found not in TYPES:
        raise GptError(f"a field of type '{type_}'")
    return found


def choose(maps: Sequence[FolderMap], sections: int, info: Sequence[tuple[int, int]]) -> list[int]:
    """Return which maps the sections of a result belong to: all, or the maps that fit its `kernel.info`.

    Raises MalformedError if that is not clear.
    """
    if sections == len(maps):
        return list(range(sections))
    found: list[int] = []
    for level, size in info if len(info) == sections else ():
        wanted = ("thread", "warp", "block")[level : level + 1]
        fits = [at for at, one in enumerate(maps) if one.level in wanted and size % one.bytes == 0 and at not in found]
        found += fits[:1]
    if len(found) != sections:
        raise MalformedError(f"{sections} sections; the probe file has {len(maps)} maps")
    return found
