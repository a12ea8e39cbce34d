"""A function of the program: where positions are in it, and which snippets are placed there.

A back end derives its own Function. A statement can be of any class; it has a `kind` (`instruction`, `label` or
something else), a `head`, and a `guard`, empty if it has none. An instruction's head is the opcode of its face with
modifiers, such as `ld.global.v4.u32`; a label's head is its name.
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
    """A place in a function that a position matches.

    `kind` is entry (before the first statement), exit (a `ret` or `exit`), end (after the last statement, if control
    runs off the end), instruction, label or line. `first` to `last` are the numbers of the statements that the site
    spans; an entry has first 0, an end the number of statements. A probe's `before` goes before first and its `after`
    after last, with three exceptions: at an exit, both go before it; at an entry, both go before the first statement;
    at a label, both go after it.
    """

    position: Position
    kind: str
    first: int
    last: int


class Key(NamedTuple):
    """A probe and one of its positions, named as in messages and records."""

    probe: str
    position: str


class Place(NamedTuple):
    """A place for code. `kind` is entry; before or after the statement with this `number`; label (after the label); or,
    before a statement that leaves the function, exit for the code of a `kernel` position and leave for other code. At
    the end of a function, `number` is the number of statements.
    """

    kind: str
    number: int


class PlacedSnippet(NamedTuple):
    """A snippet at a place, not lowered yet. `file` is its file's number.

    If there's an instruction, `face` is its face, and `values` fill the slots.
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
        """True if the code runs where the instruction's guard doesn't hold: after a jump, only threads that didn't jump
        are left. A snippet at the exit of a kernel or function runs before the instruction and keeps the guard.
        """
        is_jump = self.face is not None and self.face.instruction.opcode in LEAVES
        return self.when == "after" and self.site.kind == "instruction" and is_jump

    @property
    def replaces(self) -> bool:
        """True if it saves a record that replaces the previous one in a map of capacity 1."""
        return self.site.position.kind == "kernel"


class Block(NamedTuple):
    """Snippets that share a place and its face."""

    place: Place
    uses: list[PlacedSnippet]

    @property
    def key(self) -> tuple[object, ...]:
        """A key for the block's code: blocks of a function with equal keys differ only in the values of their slots."""
        return (self.uses[0].face, *[(id(use.snippet), use.site.position.kind) for use in self.uses])


class Function(ABC):
    """A function with its statements; `is_kernel` says that it's the kernel, not a function that the kernel calls.

    `uses` are the snippets that the plan places in it.
    """

    def __init__(
        self, name: str, is_kernel: bool, statements: Sequence[Any], seen: Iterable[int] | None = None
    ) -> None:
        """Take the statements; only those numbered in `seen`, by default all, can be found."""
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
        """Return the face of an instruction, and what its slots hold. Raises MalformedError."""

    def iter_lines(self, path: str, line: int) -> Iterable[tuple[int, int]]:
        """Yield the runs of instructions compiled from a source line, each as its first and last statement. The file's
        path is a glob.
        """
        return ()

    def blocks(self) -> list[Block]:
        """Return the placed snippets grouped by place, in the order in which they were placed."""
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
        """Return the sites of the positions, in the order of the positions.

        `kernel` has sites in the kernel (its entry and exits) and in other functions (each `exit`, which ends the
        kernel).
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
        """Yield the sites at the start and the ends of the function."""
        yield Site(position, "entry", 0, 0)
        for number in self.numbers("ret", "exit"):
            yield Site(position, "exit", number, number)
        if self._falls_off():
            yield Site(position, "end", len(self.statements), len(self.statements))

    def falls_through(self, number: int) -> bool:
        """Return whether control can reach the statement after an instruction."""
        statement = self.statements[number]
        return bool(statement.guard) or statement.head.partition(".")[0] not in LEAVES

    def _falls_off(self) -> bool:
        """Return whether control can run off the end: the last instruction isn't a jump, or a label follows it."""
        for number in range(len(self.statements) - 1, -1, -1):
            if self.statements[number].kind == "instruction":
                return self.falls_through(number)
            if self.statements[number].kind == "label":
                return True
        return True
