"""A function of the program: where its positions are, and which snippets are placed there.

A back end derives its own Function. Statements can be of any class. Each has a `kind` (`instruction`, `label` or
something else), a `head`, and a `guard`, which is empty if there's none. The head of an instruction is the opcode of
its face with modifiers, such as `ld.global.v4.u32`. The head of a label is its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpt.probe.face import Face
from gpt.probe.model import Position, Probe, Snippet
from gpt.probe.positions import matches

LEAVES = {"ret", "exit", "trap", "bra", "brx"}  # without a guard, control doesn't fall through


class Site(NamedTuple):
    """A place in a function that matches a position.

    `kind` is entry (before the first statement), exit (a `ret` or `exit`), end (after the last statement, if execution
    runs off the end), instruction, label or line. The site spans the statements from `first` to `last`; for an entry,
    first is 0, and for an end, it's the number of statements. A probe's `before` is inserted before first and its
    `after` after last, with three exceptions: at an exit, both are inserted before it; at an entry, before the first
    statement; at a label, after it.
    """

    position: Position
    kind: str
    first: int
    last: int


class Key(NamedTuple):
    """A probe and one of its positions, as they're named in messages and records."""

    probe: str
    position: str


class Place(NamedTuple):
    """A place for code. `kind` is entry, before, after, label, exit or leave.

    Before and after refer to the statement with this `number`; label means after a label. Exit and leave both mean
    before a statement that leaves the function: exit for the code of a `kernel` position, leave for other code. At the
    end of a function, `number` is the number of statements.
    """

    kind: str
    number: int


class PlacedSnippet(NamedTuple):
    """A snippet at a place, which hasn't been lowered yet. `file` is the number of its file.

    If the place is an instruction, `face` describes its operands, and `values` are the values of the face's slots.
    """

    file: int
    probe: Probe
    when: str
    snippet: Snippet
    key: Key
    site: Site
    face: Face | None
    values: list[str]

    @property
    def place(self) -> Place:
        """The place for its code."""
        site = self.site
        if site.kind in ("instruction", "line"):
            return Place(self.when, site.first if self.when == "before" else site.last)
        if site.kind in ("entry", "label"):
            return Place(site.kind, site.first)
        return Place("exit" if site.position.kind == "kernel" else "leave", site.first)

    @property
    def inverts_guard(self) -> bool:
        """True if the snippet runs where the guard of the instruction is false: after a jump, because only the threads
        that didn't jump get there. A snippet at an exit runs before the instruction, so its guard isn't inverted.
        """
        is_jump = self.face is not None and self.face.instruction.opcode in LEAVES
        return self.when == "after" and self.site.kind == "instruction" and is_jump

    @property
    def replaces(self) -> bool:
        """True if it saves a record that replaces the previous one, in a map with a capacity of 1."""
        return self.site.position.kind == "kernel"


class Block(NamedTuple):
    """Snippets at the same place, with the same face."""

    place: Place
    uses: list[PlacedSnippet]

    @property
    def key(self) -> tuple[object, ...]:
        """A key for the code of the block. If two blocks of a function have the same key, they differ only in what's in
        the slots.
        """
        return (self.uses[0].face, *[(id(use.snippet), use.site.position.kind) for use in self.uses])


class Function(ABC):
    """A function and its statements. `is_kernel` is True for the kernel itself, and False for a function that it calls.

    `uses` are the snippets that the plan has placed in it.
    """

    def __init__(
        self, name: str, is_kernel: bool, statements: Sequence[Any], seen: Iterable[int] | None = None
    ) -> None:
        """Store the statements. Only statements whose numbers are in `seen` can be found; by default, all can."""
        self.name, self.is_kernel, self.statements = name, is_kernel, statements
        self.uses: list[PlacedSnippet] = []
        heads: defaultdict[str, list[int]] = defaultdict(list)
        self.others: defaultdict[str, list[int]] = defaultdict(list)  # statements that aren't instructions, by head
        for number in range(len(statements)) if seen is None else seen:
            statement = statements[number]
            (heads if statement.kind == "instruction" else self.others)[statement.head].append(number)
        self._opcodes: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)
        for head, numbers in heads.items():
            self._opcodes[head.partition(".")[0]][head] = numbers

    @abstractmethod
    def find_face(self, number: int) -> tuple[Face, list[str]]:
        """Return the face of an instruction, and the contents of its slots. Raises MalformedError."""

    def iter_lines(self, path: str, line: int) -> Iterable[tuple[int, int]]:
        """Yield the runs of instructions that were compiled from a source line, as first and last statement. `path` is
        a glob.
        """
        return ()

    def blocks(self) -> list[Block]:
        """Return the snippets that were placed, grouped by place, in the order in which they were placed."""
        found: dict[tuple[Place, Face | None], Block] = {}
        for use in self.uses:
            place = use.place
            found.setdefault((place, use.face), Block(place, [])).uses.append(use)
        return list(found.values())

    def numbers(self, *opcodes: str) -> list[int]:
        """Return the instructions with these opcodes, in order."""
        found = [numbers for opcode in opcodes for numbers in self._opcodes.get(opcode, {}).values()]
        return sorted(number for numbers in found for number in numbers)

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

    def find_sites(self, positions: Iterable[Position]) -> list[Site]:
        """Return the sites of these positions, in the same order.

        `kernel` has sites in the kernel (its entry and its exits) and in other functions (every `exit`, since it ends
        the kernel).
        """
        return [site for position in positions for site in self._sites(position)]

    def _sites(self, position: Position) -> Iterable[Site]:
        match position.kind:
            case "kernel" if not self.is_kernel:
                return (Site(position, "exit", number, number) for number in self.numbers("exit"))
            case "kernel":
                return self._ends(position)
            case "func" if fnmatchcase(self.name, position.words[0]):
                return self._ends(position)
            case "label":
                return (
                    Site(position, "label", number, number)
                    for number, statement in enumerate(self.statements)
                    if statement.kind == "label" and fnmatchcase(statement.head, position.words[0])
                )
            case "line":
                path, line = position.words
                return (Site(position, "line", *run) for run in self.iter_lines(path, int(line)))
            case "opcode":
                return (Site(position, "instruction", number, number) for number in self.find(position))
        return ()

    def _ends(self, position: Position) -> Iterable[Site]:
        """Yield the sites at the start of the function and at its ends."""
        yield Site(position, "entry", 0, 0)
        for number in self.numbers("ret", "exit"):
            yield Site(position, "exit", number, number)
        if self._falls_off():
            yield Site(position, "end", len(self.statements), len(self.statements))

    def falls_through(self, number: int) -> bool:
        """Return whether the statement after an instruction can be executed next."""
        statement = self.statements[number]
        return bool(statement.guard) or statement.head.partition(".")[0] not in LEAVES

    def _falls_off(self) -> bool:
        """Return whether execution can run off the end of the function: if the last instruction isn't a jump, or if a
        label follows it.
        """
        for number in range(len(self.statements) - 1, -1, -1):
            if self.statements[number].kind == "instruction":
                return self.falls_through(number)
            if self.statements[number].kind == "label":
                return True
        return True
