"""Parse probe files in TOML, of either generation, into the objects of model.py."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from gpt.base.errors import GptError, MalformedError
from gpt.base.printable import printable
from gpt.probe import model
from gpt.probe.model import LEVELS, Map, Probe, ProbeFile, Register, Save, Snippet
from gpt.probe.positions import parse_positions
from gpt.probe.read.infer import infer_types
from gpt.probe.read.maps import OPTIONS, default_capacity, make_map, parse_capacity, parse_number, parse_sample
from gpt.probe.read.ranges import find_ring, number_ranges, refuse_ranges
from gpt.probe.read.snippet import parse_snippet
from gpt.probe.read.toml_lines import lines_of
from gpt.ptx.types import SIZES
from gpt.stream.rooms import RANGE_FIELDS

TOP = {
    "author",
    "description",
    "analyze_hook",
    "callback",
    "CALLBACK",
    "dynamic",
    "platform",
    "name",
    "version",
    "license",
    "regs",  # the number of shared registers, written by Neutrino's compiler; ignored, because the snippets show it
}
FIRST = {"position", "pos", "datamodel", "before", "after", "no_pred", "sample", "leader", "budget", "level"}
PROBE = {"position", "pos", "level", "register", "before", "after", "no_pred", "sample"}
MAP = {"level", "size", "cap", "data", "regs", "fields", *OPTIONS}


def parse_toml(source: str, path: str) -> ProbeFile:
    """Parse a probe file in TOML. Raises MalformedError and GptError, with file and line."""
    return _parse(source, path, _TomlReader.read)


def parse_maps(source: str, path: str) -> tuple[tuple[Map, ...], str | None]:
    """Return the maps and the callback of a probe file, which are all that's needed to read its results.

    Code of the second generation isn't parsed, because compilers write some that ptxas rejects. Raises the same errors
    as `parse_toml`.
    """
    return _parse(source, path, _TomlReader.read_maps)


T = TypeVar("T")


def _parse(source: str, path: str, read: Callable[[_TomlReader], T]) -> T:
    source = source.replace("\r\n", "\n")
    try:
        tables = tomllib.loads(source)
    except ValueError as error:  # either TOMLDecodeError, or an integer has thousands of digits
        text, _, place = str(error).partition(" (at line ")
        line = place.partition(",")[0]
        where = f"{path}:{line}" if line.isdecimal() else path
        raise MalformedError(f"TOML: {text[:1].lower()}{text[1:]}", where) from None
    except RecursionError:
        raise MalformedError("TOML: nested too deep", path) from None
    try:
        return read(_TomlReader(source, path, tables))
    except GptError as error:  # the message may quote many lines
        raise type(error)(printable(error.fact), error.where) from error


class _TomlReader:
    """Reads one file. `where` converts the dotted name of a table or key to a location."""

    def __init__(self, source: str, path: str, tables: dict[str, Any]) -> None:
        self.source, self.path, self.tables = source, path, tables
        self.lines = lines_of(source)
        self.registers: dict[str, Register] = {}

    def where(self, *names: str) -> str:
        return f"{self.path}:{self.line(*names)}"

    def line(self, *names: str) -> int:
        """Return the line of a key, or of the innermost table that contains it."""
        while names:
            if found := self.lines.get(".".join(names)):
                return found[0]
            names = names[:-1]
        return 1

    def read(self) -> ProbeFile:
        second = self.is_second()
        maps, probes = self.second() if second else self.first()
        if not probes:
            raise GptError("no probe in it", self.path)
        registers = infer_types(probes, list(self.registers.values()), self.path)
        parts = tuple(probes), tuple(maps), tuple(registers)
        return ProbeFile(self.path, *parts, self.callback(), self.source, second)

    def read_maps(self) -> tuple[tuple[Map, ...], str | None]:
        if not self.is_second():
            found = self.read()
            return found.maps, found.callback
        return tuple(self.maps().values()), self.callback()

    def callback(self) -> str | None:
        callback = self.tables.get("analyze_hook", self.tables.get("callback", self.tables.get("CALLBACK")))
        if callback is not None and not isinstance(callback, str):
            raise MalformedError("'analyze_hook' is not a string", self.where("analyze_hook"))
        return callback

    def is_second(self) -> bool:
        """Return whether the file has the format of the second generation. Raises MalformedError for unknown keys."""
        tables = self.tables
        second = any(_holds_tables(tables.get(name)) for name in ("probe", "map"))
        for key, value in tables.items():
            if key in TOP and not isinstance(value, dict):
                continue
            if not isinstance(value, dict):
                raise MalformedError(f"unknown key '{key}'", self.where(key))
            if second and key not in ("map", "probe"):
                raise MalformedError(f"table '{key}' is neither [probe.*] nor [map.*]", self.where(key))
        return second

    # First generation: every table is a probe with a map of its own

    def first(self) -> tuple[list[Map], list[Probe]]:
        maps, probes = [], []
        dynamic = self.tables.get("dynamic")
        if dynamic not in (None, True, False):
            raise MalformedError("'dynamic' is neither true nor false", self.where("dynamic"))
        for name, table in self.tables.items():
            if isinstance(table, dict):
                self.check(name, table, FIRST, name)
                model_ = table.get("datamodel")
                level, size, capacity = self.datamodel(name, model_, dynamic) if model_ is not None else (None, 0, 1)
                if level and table.get("level", level) != level:
                    fact = f"level '{table['level']}' and datamodel '{model_}'"
                    raise GptError(f"probe '{name}': {fact}", self.where(name, "level"))
                probe = self.probe(name, table, (name,), level or table.get("level", "thread"))
                refuse_ranges(probe, self.path)
                if level:
                    probe, map_ = self.own_map(probe, table, size, capacity)
                    maps.append(map_)
                elif any(snippet.saves for _, snippet in probe.snippets):
                    raise GptError(f"probe '{name}': saves without a datamodel", self.where(name))
                probes.append(probe)
        return maps, probes

    def datamodel(self, name: str, text: Any, dynamic: bool | None) -> tuple[str, int, int | None]:
        """Return the level, the bytes and the capacity from `warp:16`, `thread:8:128` or `thread:16:count`."""
        where = self.where(name, "datamodel")
        parts = text.split(":") if isinstance(text, str) else [""]
        level, *rest = (part.strip() for part in parts)
        size = parse_number(rest[0]) if level and len(parts) in (2, 3) else None
        if size is None:
            raise MalformedError(f"probe '{name}': datamodel '{text}' is not LEVEL:BYTES[:CAPACITY]", where)
        if not rest[1:]:
            return level, size, 1
        capacity = parse_capacity(rest[1], f"probe '{name}': datamodel '{text}'", where)
        if capacity is None and dynamic is False:
            raise GptError(f"probe '{name}': datamodel '{text}' in a file with dynamic = false", where)
        return level, size, capacity

    def own_map(self, probe: Probe, table: dict[str, Any], size: int, capacity: int | None) -> tuple[Probe, Map]:
        """Make the map of a first-generation probe. Its fields are in the order of the SAVEs, which get the numbers of
        their fields.
        """
        fields: list[tuple[str, str]] = []
        total = sum(len(save.values) for _, snippet in probe.snippets for save in snippet.saves)

        def place(save: Save, line: int) -> Save:
            if not save.types:
                raise GptError(
                    f"probe '{probe.name}': 'SAVE [{save.map}]' excludes a datamodel",
                    f"{self.path}:{line}",
                )
            first = len(fields)
            for value, type_ in zip(save.values, save.types, strict=True):
                fields.append((_field_name(value, [name for name, _ in fields]), type_))
            return replace(save, first=first, last=len(fields) == total)

        probe = probe.with_saves(place)
        where = self.where(probe.name, "datamodel")
        if not fields:
            raise GptError(f"probe '{probe.name}': a datamodel and no SAVE", where)
        options = {key: table[key] for key in ("leader", "budget") if key in table}
        what = f"probe '{probe.name}'"
        map_ = make_map(probe.name, what, where, fields, level=probe.level, size=size, capacity=capacity, **options)
        return probe, map_

    # Second generation: [map.NAME] and [probe.NAME]

    def maps(self) -> dict[str, Map]:
        maps: dict[str, Map] = {}
        for name, table in self.tables.get("map", {}).items():
            if not isinstance(table, dict):
                raise MalformedError(f"map '{name}' is not a table", self.where("map", name))
            maps[name] = self.map(name, table)
        return maps

    def second(self) -> tuple[list[Map], list[Probe]]:
        maps = self.maps()
        probes = []
        for name, table in self.tables.get("probe", {}).items():
            self.check(name, table, PROBE, "probe", name)
            probe = self.probe(name, table, ("probe", name), table.get("level", "thread"))
            self.counted(name, table.get("register"))
            probes.append(self.typed(probe, maps))
        return number_ranges(probes, list(maps.values()), self.path)

    def typed(self, probe: Probe, maps: dict[str, Map]) -> Probe:
        """Set the types of a probe's SAVEs to the types of the fields in their map. SAVEs that don't name a map fill
        one record of the map with the probe's name.
        """
        own = maps.get(probe.name)
        fields = own.fields if own else ()
        count = 0

        def place(save: Save, line: int) -> Save:
            nonlocal count
            if save.mark:
                save = replace(save, map=find_ring(maps.values(), f"probe '{probe.name}'", f"{self.path}:{line}"))
            if not save.types:
                types = [field.type for field in maps[save.map].fields] if save.map in maps else []
                return replace(save, types=tuple(types[: len(save.values)]))
            if not own:
                example = f"SAVE [{next(iter(maps), 'MAP')}] {{...}};"
                raise GptError(f"probe '{probe.name}': SAVE names no map, as in '{example}'", f"{self.path}:{line}")
            first, count = count, count + len(save.values)
            if save.types != tuple(field.type for field in fields[first:count]):
                fact = f"SAVE.{save.types[0]} of {len(save.values)} from field {first} on"
                raise GptError(f"probe '{probe.name}': {fact} of map '{own.name}'", f"{self.path}:{line}")
            return replace(save, first=first, last=count == len(fields))

        typed = probe.with_saves(place)
        if 0 < count < len(fields):
            fact = f"saves {count} values, map '{probe.name}' has {len(fields)} fields"
            raise GptError(f"probe '{probe.name}': {fact}", f"{self.path}:{probe.line}")
        return typed

    def map(self, name: str, table: dict[str, Any]) -> Map:
        what, where = f"map '{name}'", self.where("map", name)
        for key in table:
            if key not in MAP:
                raise MalformedError(f"{what}: unknown key '{key}'", self.where("map", name, key))
        if table.get("type", "array") not in model.MAP_TYPES:
            known = ", ".join(model.MAP_TYPES)
            raise GptError(f"{what}: type '{table['type']}' is not one of {known}", self.where("map", name, "type"))
        given = [key for key in ("data", "regs", "fields") if key in table]
        if len(given) != 1 and (given or "ring" not in table):
            raise MalformedError(f"{what}: needs its fields, once, as 'data' or 'regs'", where)
        fields = list(RANGE_FIELDS)
        if given:
            fields = self.fields(what, table[given[0]], self.where("map", name, given[0]))
        size = parse_number(table["size"]) if "size" in table else model.layout(fields)[1]
        if size is None:
            raise MalformedError(f"{what}: size '{table['size']}' is not a number", self.where("map", name, "size"))
        capacity = parse_capacity(
            table.get("cap", default_capacity(table.get("type"), "ring" in table)), what, self.where("map", name, "cap")
        )
        options = {key: table[key] for key in OPTIONS if key in table}
        level = table.get("level", "thread")
        return make_map(name, what, where, fields, level=level, size=size, capacity=capacity, **options)

    def fields(self, what: str, given: Any, where: str) -> list[tuple[str, str]]:
        """Return named types. They can be given as `{a = "u64"}`, `{a = ["u64", 0]}`, `["u64"]`, `[["a", "u64"]]` or
        `[{name=, type=}]`.
        """
        found: list[tuple[str, str]] = []
        items = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else ()
        for key, value in items:
            if isinstance(value, dict):
                name, type_ = value.get("name", key), value.get("type", value.get("dtype"))
            elif isinstance(value, list) and value:
                name, type_ = (key, value[0]) if isinstance(given, dict) else (value[0], value[-1])
            else:
                name, type_ = (key if isinstance(given, dict) else f"field{key}"), value
            if not isinstance(name, str | int) or not isinstance(type_, str) or not SIZES.get(type_):
                raise MalformedError(f"{what}: field '{name}' has no valid type, such as 'u64'", where)
            found.append((str(name), type_))
        if not found:
            raise MalformedError(f"{what}: no fields", where)
        if len({name for name, _ in found}) < len(found):
            raise GptError(f"{what}: two fields have the same name", where)
        return found

    def counted(self, name: str, given: Any) -> None:
        """Parse `register` of the second generation: types, or a count, which is ignored, because the snippets
        show it.
        """
        where = self.where("probe", name, "register")
        if given is None or isinstance(given, int | list):
            return
        if not isinstance(given, dict):
            raise MalformedError(f"probe '{name}': 'register' is not a table", where)
        for key, value in given.items():
            if key.startswith("%") and isinstance(value, str) and value in SIZES:
                self.declare(Register(key, value, None, self.line("probe", name, "register")), name)

    # Both generations

    def check(self, name: str, table: Any, known: set[str], *names: str) -> None:
        if not isinstance(table, dict):
            raise MalformedError(f"probe '{name}' is not a table", self.where(*names))
        for key in table:
            if key not in known:
                raise MalformedError(f"probe '{name}': unknown key '{key}'", self.where(*names, key))

    def probe(self, name: str, table: dict[str, Any], names: tuple[str, ...], level: Any) -> Probe:
        what = f"probe '{name}'"
        positions = [table[key] for key in ("position", "pos") if key in table]
        if len(positions) != 1 or not isinstance(positions[0], str):
            raise MalformedError(f"{what}: needs one position", self.where(*names))
        if level not in LEVELS:
            where = self.where(*names, "level" if "level" in table else "datamodel")
            raise GptError(f"{what}: level '{level}' is not one of {', '.join(LEVELS)}", where)
        for key in ("before", "after"):
            if not isinstance(table.get(key, ""), str):
                raise MalformedError(f"{what}: '{key}' is not a string", self.where(*names, key))
        if not isinstance(table.get("no_pred", False), bool):
            raise MalformedError(f"{what}: 'no_pred' is neither true nor false", self.where(*names, "no_pred"))
        if "before" not in table and "after" not in table:
            raise MalformedError(f"{what}: neither 'before' nor 'after'", self.where(*names))
        where = self.where(*names, "position" if "position" in table else "pos")
        try:
            found = parse_positions(positions[0])
        except MalformedError as error:
            raise MalformedError(f"{what}: {error.fact}", where) from None
        before, after = (self.snippet(name, table, key, names) for key in ("before", "after"))
        sample = parse_sample(table.get("sample"), what, self.where(*names, "sample"))
        return Probe(name, found, level, before, after, table.get("no_pred", False), sample, self.line(*names))

    def snippet(self, name: str, table: dict[str, Any], key: str, names: tuple[str, ...]) -> Snippet | None:
        if key not in table:
            return None
        line, is_text = self.lines.get(".".join((*names, key)), (self.line(*names), False))
        snippet, registers = parse_snippet(table[key], self.path, line, name, is_text)
        for register in registers:
            self.declare(register, name)
        return snippet

    def declare(self, register: Register, probe: str) -> None:
        other = self.registers.setdefault(register.name, register)
        if register.initial not in (None, other.initial):
            fact = f"'{register.name}' begins with {register.initial} here and not in line {other.line}"
            raise GptError(f"probe '{probe}': {fact}", f"{self.path}:{register.line}")
        if SIZES[other.type] != SIZES[register.type]:
            raise GptError(
                f"probe '{probe}': '{register.name}' is .{register.type} here and .{other.type} in line {other.line}",
                f"{self.path}:{register.line}",
            )


def _holds_tables(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(inner, dict) for inner in value.values())


def _field_name(value: Any, taken: list[str]) -> str:
    """Derive the name of a field from the value that's saved: lstart from `%lstart`, addr from ADDR."""
    name = str(value).lstrip("%").replace(".", "_").lower()
    name = "".join(c for c in name if c.isalnum() or c == "_") or "field"
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique
