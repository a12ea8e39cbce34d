"""Parse the text of a snippet, which is PTX with helpers and SAVE, into the statements of model.py.

`SAVE.u64 {%a};` adds fields of that type to the record of its probe, and `SAVE [MAP] {%a, %b};` writes a whole record.
`SAVE ["MAP"]` can name any map. `RANGE begin NAME;` and `RANGE end NAME;` save to the map with a ring. `.reg` declares
registers, which all probes of the file share; `= 0` sets the initial value of a register.
"""

from __future__ import annotations

import re
from typing import TypeGuard

from gpt.base.errors import GptError, MalformedError
from gpt.probe.constants import find_fault
from gpt.probe.model import EDGES, Line, Register, Save, Snippet
from gpt.probe.read.ranges import make_range
from gpt.ptx import tree
from gpt.ptx.quick import parse_statement
from gpt.ptx.scan import scan_statements
from gpt.ptx.types import SIZES, integer

# Comments and strings, which stay as they are; `SAVE [MAP]`; and RANGE with its first word
_WORDS = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"[^"\n]*"|(\bSAVE\s*\[[^\]\n]*\])\s*(?=\{)|\bRANGE\s+(\w+)(\s+)""", re.DOTALL
)
MAX_TEXT = 1 << 16  # bytes per snippet
MAX_REGISTERS = 64  # registers in a declaration that has a count


def parse_snippet(text: str, path: str, first: int, probe: str, is_text: bool = True) -> tuple[Snippet, list[Register]]:
    """Parse a snippet that begins on line `first` of the file `path`. Return its statements and its declarations.

    If `is_text`, the lines of the text are lines of the file; otherwise, it's a string on a single line. A SAVE that
    doesn't name a map goes to the map with the probe's name. Raises MalformedError and GptError, with file and line.
    """
    if len(text) > MAX_TEXT:
        raise GptError(f"probe '{probe}': snippet larger than {MAX_TEXT >> 10} KiB", f"{path}:{first}")
    text = _WORDS.sub(_as_instruction, text)
    lines: list[Line] = []
    registers: list[Register] = []
    module = None
    try:
        module, statements = scan_statements(text, "")
        for statement in statements:
            line = first + module.line(statement.start) - 1 if is_text else first
            node, *more = _parse(module.source(statement), path, line, probe, is_text)
            if more:  # a label that's followed by a list
                node = more[0]
            checked: tuple[object, ...] = (node,)
            if _is_save(node):  # the name of a map or range can be anything
                checked = node.operands[1:] if node.opcode == "RANGE" else node.operands[-1:]
            if not all(str(part).isascii() for part in checked):  # such as strings; template.py relies on ASCII
                raise MalformedError(
                    f"probe '{probe}': '{statement.head}' has a string that is not ASCII", f"{path}:{line}"
                )
            if isinstance(node, tree.Declaration):
                registers += _registers(node, path, line, probe)
            elif _is_save(node):
                make = _range if node.opcode == "RANGE" else _save
                lines.append(Line(make(node, path, line, probe), line))
            elif isinstance(node, tree.Instruction | tree.Label):
                lines.append(Line(node, line))
            else:
                raise GptError(f"probe '{probe}': a probe may not contain '{statement.head}'", f"{path}:{line}")
    except MalformedError as error:
        if module is not None or not error.where.startswith(":"):
            raise
        line = int(error.where[1:].partition(":")[0])  # line number within the snippet
        raise _malformed(error, path, first + line - 1 if is_text else first, probe) from None
    return Snippet(tuple(lines)), registers


def _as_instruction(found: re.Match[str]) -> str:
    """Return a SAVE or RANGE as an instruction, which is what the parser takes."""
    save, edge, space = found.groups()
    if save:
        return f"{save},"
    return f"RANGE.{edge}{space}" if edge else found[0]


def _parse(text: str, path: str, line: int, probe: str, is_text: bool) -> list[tree.Statement]:
    if text in ("{", "}"):
        raise GptError(f"probe '{probe}': a probe may not contain scopes", f"{path}:{line}")
    try:
        return parse_statement(text)
    except MalformedError as error:
        at = int(error.where[1:].split(":")[0])
        raise _malformed(error, path, line + at - 1 if is_text else line, probe) from None


def _malformed(error: MalformedError, path: str, line: int, probe: str) -> MalformedError:
    return MalformedError(f"probe '{probe}': {error.fact.removeprefix('PTX: ')}", f"{path}:{line}")


def _registers(node: tree.Declaration, path: str, line: int, probe: str) -> list[Register]:
    words = [specifier.word for specifier in node.specifiers]
    type_ = words[-1][1:]
    if words[0] != ".reg" or len(words) != 2 or type_ not in SIZES:
        raise GptError(f"probe '{probe}': '{node}' declares no plain register", f"{path}:{line}")
    found = []
    for declarator in node.declarators:
        value = declarator.value
        if declarator.dimensions or (value and (declarator.count or not _is_first_value(value, type_))):
            raise GptError(f"probe '{probe}': '{declarator}' is not a register", f"{path}:{line}")
        if declarator.count is None:
            found.append(Register(declarator.name, type_, str(value) if value else None, line))
            continue
        count = integer(declarator.count)
        if count is None or count > MAX_REGISTERS:
            fact = f"'{declarator}' is not a number of registers, or more than {MAX_REGISTERS} registers"
            raise GptError(f"probe '{probe}': {fact}", f"{path}:{line}")
        found += [Register(f"{declarator.name}{n}", type_, None, line) for n in range(count)]
    return found


def _is_save(node: tree.Statement) -> TypeGuard[tree.Instruction]:
    return isinstance(node, tree.Instruction) and node.opcode in ("SAVE", "RANGE")


def _is_first_value(value: tree.Operand, type_: str) -> bool:
    """Return whether a register can be initialized with this: a number of its type that's also valid as bits without a
    type.
    """
    if SIZES[type_] < 2 or not isinstance(value, tree.Number | tree.Prefixed):
        return False
    return not any(find_fault(value, wanted) for wanted in (type_, f"b{SIZES[type_] * 8}"))


def _save(node: tree.Instruction, path: str, line: int, probe: str) -> Save:
    match node.operands:
        case (tree.Vector(values),) if len(node.modifiers) == 1 and node.modifiers[0][1:] in SIZES:
            type_ = node.modifiers[0][1:]
            if values and SIZES[type_]:
                return Save(probe, values, (type_,) * len(values), guard=node.guard)
        case (tree.Address((tree.Name(name, ()),)), tree.Vector(values)) if not node.modifiers and values:
            return Save(name, values, (), guard=node.guard)
        case (tree.Address((tree.String(name),)), tree.Vector(values)) if not node.modifiers and values:
            if name.isidentifier():  # it may be the name of a Python class
                return Save(name, values, (), guard=node.guard)
    raise MalformedError(
        f"probe '{probe}': '{node}' is neither 'SAVE.u64 {{%a}};' nor 'SAVE [MAP] {{%a}};'", f"{path}:{line}"
    )


def _range(node: tree.Instruction, path: str, line: int, probe: str) -> Save:
    what, where = f"probe '{probe}'", f"{path}:{line}"
    match node.modifiers, node.operands:
        case (edge,), (tree.Name(name, ()) | tree.String(name), *rest) if edge[1:] in EDGES and len(rest) <= 1:
            return make_range(edge[1:], name, rest[0] if rest else None, node.guard, what, where)
    text = str(node).replace(".", " ", 1)
    raise MalformedError(f"{what}: '{text}' is neither 'RANGE begin NAME;' nor 'RANGE end NAME, %n;'", where)
