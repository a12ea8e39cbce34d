"""Print probes as TOML, in tables [map.*] and [probe.*], whatever the format of the file.

Parsing the output gives the same model: the same maps, probes, registers in the same order, and callback. Comments are
lost. A register is declared in the first snippet that uses it, or in an earlier one if that's necessary to keep the
order. Python allows letters in the names of registers that PTX doesn't allow; such registers are renamed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import toml

from gpt.base.errors import GptError
from gpt.probe.model import OPS, Map, Position, Probe, ProbeFile, Register, Save, Snippet, layout, names_of
from gpt.probe.positions import RESERVED
from gpt.probe.read.load import MAX_SOURCE
from gpt.probe.read.toml import parse_toml
from gpt.ptx import tree
from gpt.ptx.tokens import NAME

_NAME = re.compile(NAME, re.ASCII)
_REGISTER = re.compile(r"%(?:[\w$]|[^\x00-\x7f])+", re.ASCII)  # includes letters that only Python allows
_BARE = re.compile(r"[\w-]+", re.ASCII)
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_toml(file: ProbeFile) -> str:
    """Return the probes of a file as TOML. Raises GptError if the result would be too large to be read."""
    text: str = toml.dumps(_tables(file), _Encoder())
    if len(text.encode()) > MAX_SOURCE:
        raise GptError(f"as TOML it would be larger than {MAX_SOURCE >> 20} MiB", file.path)
    try:
        parse_toml(text, file.path)
    except GptError as error:
        raise GptError(f"as TOML it could not be read again: {error.fact}", file.path) from None
    return text


class _Literal(str):
    """The text of a snippet."""


class _Inline(dict[str, str]):
    """A table on one line."""


def _tables(file: ProbeFile) -> dict[str, Any]:
    names = _plain_names(file)
    declared = iter(_declarations(file))
    found: dict[str, Any] = {} if file.callback is None else {"callback": file.callback}
    found["map"] = {map_.name: _map(map_) for map_ in file.maps}
    found["probe"] = {}
    for probe in file.probes:
        found["probe"][probe.name] = table = _probe(probe)
        for when, snippet in probe.snippets:
            registers = [f".reg .{r.type} {names.get(r.name, r.name)}{_initial(r)};" for r in next(declared)]
            table[when] = _Literal("\n".join([*registers, *_lines(snippet, names)]))
    return found


def _map(map_: Map) -> dict[str, Any]:
    table: dict[str, Any] = {"type": map_.type, "level": map_.level}
    if map_.type != "table" and map_.size != layout([(field.name, field.type) for field in map_.fields])[1]:
        table["size"] = map_.size
    if map_.ring is not None:
        table["ring"] = map_.ring
    else:
        table["cap"] = "dynamic" if map_.capacity is None else map_.capacity
    if map_.leader != ("active" if map_.type == "array" else "all"):
        table["leader"] = map_.leader
    if map_.scale and map_.scale.step:
        table |= map_.scale._asdict()
    if not map_.counts and not map_.scale:
        table["counts"] = False
    for op in ("key", *OPS):
        if names := [field.name for field in map_.fields if field.op == op]:
            table[op] = names
    if map_.budget is not None:
        table["budget"] = map_.budget
    table["data"] = _Inline((field.name, field.type) for field in map_.fields)
    return table


def _probe(probe: Probe) -> dict[str, Any]:
    """Return the table of a probe, without its snippets."""
    table: dict[str, Any] = {"position": ":".join(map(_position, probe.positions)), "level": probe.level}
    if probe.no_pred:
        table["no_pred"] = True
    if probe.sample:
        table["sample"] = "{}/{}".format(*probe.sample)
    return table


def _position(position: Position) -> str:
    is_word = position.kind == "opcode" and str(position) in RESERVED  # with a dot before it, it's an opcode
    return f".{position}" if is_word else str(position)


# Registers


def _plain_names(file: ProbeFile) -> Mapping[str, str]:
    """Choose names for registers whose names PTX doesn't allow."""
    taken = {register.name for register in file.registers}
    found: dict[str, str] = {}
    for name in (register.name for register in file.registers if not _NAME.fullmatch(register.name)):
        plain = "%" + (re.sub(r"[^\w$]", "_", name.removeprefix("%"), flags=re.ASCII) or "_")
        while plain in taken:
            plain += "_"
        taken.add(plain)
        found[name] = plain
    return found


def _declarations(file: ProbeFile) -> list[list[Register]]:
    """Choose the snippet that declares each register: the first snippet with that register, or an earlier one to keep
    the order.
    """
    snippets = [snippet for probe in file.probes for _, snippet in probe.snippets]
    users: dict[str, int] = {}
    for number, snippet in enumerate(snippets):
        for line in snippet.lines:
            for name in names_of(line.node):
                users.setdefault(name, number)
    found: list[list[Register]] = [[] for _ in snippets]
    place = len(snippets) - 1
    for register in reversed(file.registers):
        place = min(place, users.get(register.name, place))
        found[place].append(register)
    return [registers[::-1] for registers in found]


def _initial(register: Register) -> str:
    return "" if register.initial is None else f" = {register.initial}"


# Snippets


def _lines(snippet: Snippet, names: Mapping[str, str]) -> list[str]:
    """Return the statements of a snippet, with these names of registers."""

    def renamed(text: str) -> str:
        return _REGISTER.sub(lambda found: names.get(found[0], found[0]), text) if names else text

    nodes = [line.node for line in snippet.lines]
    return [_range(node, renamed) if isinstance(node, Save) and node.mark else
            renamed(_save(node) if isinstance(node, Save) else str(node)) for node in nodes]  # fmt: skip


def _range(save: Save, renamed: Callable[[str], str]) -> str:
    """Return a RANGE, whose name may look like a register."""
    assert save.mark
    edge, name = save.mark
    guard = f"{save.guard} " if save.guard else ""
    number = "" if save.values[-1] == tree.Number("0") else f", {save.values[-1]}"
    return f'{renamed(guard)}RANGE {edge} "{name}"{renamed(number)};'


def _save(save: Save) -> str:
    """Return a SAVE. If it saves a whole record, it names the map; otherwise it goes to the map with the probe's
    name.
    """
    is_whole = save.first == 0 and save.last
    if is_whole and _NAME.fullmatch(save.map):
        target = f" [{save.map}]"
    elif is_whole and save.map.isidentifier():  # it may be the name of a Python class
        target = f' ["{save.map}"]'
    else:
        target = f".{save.types[0]}"
    guard = f"{save.guard} " if save.guard else ""
    return f"{guard}SAVE{target} {tree.Vector(save.values)};"


# TOML


class _Encoder(toml.TomlEncoder):  # type: ignore[misc]
    """Writes values so that people can read them, and quotes keys if necessary."""

    def __init__(self) -> None:
        super().__init__()
        self.dump_funcs |= {str: _string, _Literal: _code, _Inline: self._inline}

    def dump_sections(self, o: Mapping[str, Any], sup: str) -> tuple[str, dict[str, Any]]:
        """Return the values in a table, and the tables in it by the keys as they're written."""
        values = "".join(f"{_key(k)} = {self.dump_value(v)}\n" for k, v in o.items() if type(v) is not dict)
        return values, {_key(key): value for key, value in o.items() if type(value) is dict}

    def _inline(self, table: _Inline) -> str:
        return "{" + ", ".join(f"{_key(key)} = {_string(value)}" for key, value in table.items()) + "}"


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _string(text)


def _string(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _code(text: str) -> str:
    """Return text of several lines as it is, or with escapes if it contains `'''` or characters that aren't
    printable.
    """
    lines = text.split("\n")
    if len(lines) == 1:
        return _string(text)
    if "'''" not in text and all(map(str.isprintable, lines)):
        return f"'''\n{text}\n'''"
    escaped = "\n".join("".join(map(_escaped, line)) for line in lines)
    return f'"""\n{escaped}\n"""'


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code < 1 << 16 else f"\\U{code:08X}"
