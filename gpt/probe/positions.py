"""Positions: parse them, and find the matching statements of a function.

A position is `kernel`, an opcode with modifiers, `func:NAME`, `line:FILE:N` or `label:NAME`; several are joined by `:`.
An opcode position matches if its first word is the instruction's opcode and every further word is among the modifiers,
in any place: `ld.global` matches `ld.volatile.global.v4.u32`. Names and words may be globs.

Three rules apply. A load without a state space is generic, and matches only with the word `generic`. `cp.async` matches
only plain copies: bulk copies and the waits of its family must be named in full, and so must `bar.warp.sync`, which
isn't a barrier of a block. For a modifier with `::`, the part before it is enough: `shared` matches `shared::cta`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.probe.model import Position
from gpt.ptx.scan import Item, Module, Statement

_WORD = re.compile(r"[\w*?\[\]!$-]+(?:::[\w*?\[\]!$-]+)*", re.ASCII)
_LINE = re.compile(r"[0-9]{1,9}")
_ARGUMENTS = {"func": 1, "label": 1, "line": 2}
RESERVED = {"kernel", *_ARGUMENTS}  # these aren't opcodes
_SPACED = {"ld", "st", "atom", "red", "prefetch"}  # may name a state space; generic without one
_SPACES = ("global", "shared", "local", "const", "param")
_OTHERS = {  # modifiers that turn an opcode into another instruction: positions must name them
    "cp": {"bulk", "commit_group", "wait_group", "wait_all", "mbarrier", "prefetch"},
    "bar": {"warp"},
}
LEAVES = {"ret", "exit", "trap", "bra", "brx"}  # without a guard, control doesn't fall through


class Site(NamedTuple):
    """A place in a function that a position means.

    `kind` is entry (before the first statement), exit (a `ret` or `exit`), end (after the last statement, which falls
    off the end), instruction, label or line. `first` to `last` are the statements it spans, by their number in
    Module.statements; an entry has first 0, an end the number of statements. A probe's `before` goes in front of
    first, its `after` goes after last; at an entry and at an exit all goes in front, at a label after it.
    """

    position: Position
    kind: str
    first: int
    last: int


def parse_positions(text: str, where: str = "") -> tuple[Position, ...]:
    """Parse `ld.global:st.global`, `func:dot*`, `line:matmul.cu:42`, ... Raises MalformedError."""
    parts = [part.strip() for part in re.split(r"(?<!:):(?!:)", text)]
    found: list[Position] = []
    while parts:
        word, *parts = parts
        count = _ARGUMENTS.get(word, 0)
        arguments, parts = parts[:count], parts[count:]
        if not word or len(arguments) < count or not all(arguments):
            raise MalformedError(f"position '{text}' lacks a part", where)
        if count:
            if word == "line" and not _LINE.fullmatch(arguments[1]):
                raise MalformedError(f"position '{text}': '{arguments[1]}' is not a line", where)
            found.append(Position(word, tuple(arguments)))
        elif word == "kernel":
            found.append(Position("kernel"))
        else:
            words = tuple(word.lstrip(".").split("."))
            if not all(map(_WORD.fullmatch, words)):
                raise MalformedError(f"position '{word}' is not an opcode with modifiers", where)
            found.append(Position("opcode", words))
    return tuple(dict.fromkeys(found))


class Body:
    """A function's statements, with the numbers of its instructions by opcode and then by opcode with modifiers, and
    of its directives.
    """

    def __init__(self, module: Module, function: Item, statements: list[Statement]) -> None:
        self.module, self.function, self.statements = module, function, statements
        self.directives: defaultdict[str, list[int]] = defaultdict(list)
        heads: defaultdict[str, list[int]] = defaultdict(list)
        for number, (kind, head, _, _, _) in enumerate(statements):
            if kind == "instruction":
                heads[head].append(number)
            elif kind == "directive":
                self.directives[head].append(number)
        self._opcodes: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)
        for head, numbers in heads.items():
            self._opcodes[head.partition(".")[0]][head] = numbers

    def find(self, position: Position) -> list[int]:
        """Return the instructions that an opcode position matches, in order."""
        found = [
            numbers
            for opcode, heads in self._opcodes.items()
            if opcode == "wmma" or fnmatchcase(opcode, position.words[0])
            for head, numbers in heads.items()
            if matches(position, head)
        ]
        return sorted(number for numbers in found for number in numbers)

    def numbers(self, *opcodes: str) -> list[int]:
        """Return the instructions with these opcodes, in order."""
        found = [numbers for opcode in opcodes for numbers in self._opcodes.get(opcode, {}).values()]
        return sorted(number for numbers in found for number in numbers)


def find_sites(body: Body, positions: Iterable[Position]) -> list[Site]:
    """The sites of the positions in a function, in the order of the positions.

    `kernel` has sites in entries (its entry and exits) and in device functions (each `exit`, which ends the kernel).
    """
    return [site for position in positions for site in _sites(body, position)]


def _sites(body: Body, position: Position) -> Iterable[Site]:
    match position.kind:
        case "kernel" if body.function.kind == "func":
            return (Site(position, "exit", number, number) for number in body.numbers("exit"))
        case "kernel":
            return _ends(body, position)
        case "func" if fnmatchcase(body.function.name, position.words[0]):
            return _ends(body, position)
        case "label":
            return (
                Site(position, "label", number, number)
                for number, statement in enumerate(body.statements)
                if statement.kind == "label" and fnmatchcase(statement.head, position.words[0])
            )
        case "line":
            return _line_sites(body.module, body.statements, position)
        case "opcode":
            return (Site(position, "instruction", number, number) for number in body.find(position))
    return ()


def _ends(body: Body, position: Position) -> Iterable[Site]:
    """Yield the sites at the start and the ends of a function."""
    yield Site(position, "entry", 0, 0)
    for number in body.numbers("ret", "exit"):
        yield Site(position, "exit", number, number)
    if falls_off(body.statements):
        yield Site(position, "end", len(body.statements), len(body.statements))


def falls_through(statement: Statement) -> bool:
    """Return whether control can reach the statement after an instruction."""
    return bool(statement.guard) or statement.head.partition(".")[0] not in LEAVES


def falls_off(statements: list[Statement]) -> bool:
    """Return whether control can run off a function's end: its last instruction isn't a jump, or a label follows it."""
    for statement in reversed(statements):
        if statement.kind == "instruction":
            return falls_through(statement)
        if statement.kind == "label":
            return True
    return True


def matches(position: Position, head: str) -> bool:
    """Return whether an opcode position matches an opcode with its modifiers."""
    first, *wanted = position.words
    opcode, *modifiers = head.split(".")
    names = [opcode, *modifiers[:1]] if opcode == "wmma" else [opcode]  # wmma.mma is an mma
    if not any(fnmatchcase(name, first) for name in names):
        return False
    moves = opcode in _SPACED or head.startswith(("wmma.load.", "wmma.store."))
    if moves and not any(modifier.startswith(_SPACES) for modifier in modifiers):
        if "generic" not in wanted and opcode != "wmma":
            return False
        wanted = [word for word in wanted if word != "generic"]
    others = _OTHERS.get(opcode, set())
    if any(m in others and m not in wanted for m in modifiers):
        return False
    return all(
        any(fnmatchcase(modifier, word) or modifier.startswith(word + "::") for modifier in modifiers)
        for word in wanted
    )


def _line_sites(module: Module, statements: list[Statement], position: Position) -> Iterable[Site]:
    """Yield a site for each run of instructions from a matching `.loc` to the next `.loc`, label or brace."""
    wanted, line = position.words
    places = {
        (number, int(line))
        for number, path in module.files.items()
        if fnmatchcase(path, wanted) or fnmatchcase(path, f"*/{wanted}")
    }
    inside, first, last = False, -1, -1
    for number, statement in enumerate([*statements, Statement("}", "", "", 0, 0)]):
        if statement.kind == "instruction":
            first, last = (number if first < 0 else first), number
            continue
        if statement.kind == "directive" and statement.head != ".loc":
            continue
        if inside and first >= 0:
            yield Site(position, "line", first, last)
        first = -1
        inside = statement.head == ".loc" and module.loc(statement) in places
