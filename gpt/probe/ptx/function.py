"""A function of a PTX module, with what weaving has found out about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from gpt.base.errors import MalformedError
from gpt.probe.face import Face
from gpt.probe.lower.emit import Emitter
from gpt.probe.plan.function import Function
from gpt.probe.ptx.template import Shapes
from gpt.ptx.parse import parse_statement
from gpt.ptx.registers import Registers
from gpt.ptx.scan import Item, Module, Statement


class PtxFunction(Function):
    """A function into which probes are woven.

    `code` computes values that are kept throughout the function. `used` are the registers of each file that probes in
    the function use; the `shared` ones outlive a snippet. A `stateful` function gets the state as a parameter.
    """

    code: Emitter
    stateful: bool
    used: dict[int, set[str]]
    shared: dict[int, set[str]]

    def __init__(self, module: Module, item: Item, shapes: Shapes) -> None:
        self.statements: Sequence[Statement]
        super().__init__(item.name, item.kind == "entry", module.statements(item))
        self.module, self.item, self._shapes = module, item, shapes
        self.types = Registers(module, map(self.statements.__getitem__, self.others[".reg"]))
        self._faces: dict[int, tuple[Face, list[str]]] = {}

    def begin(self, code: Emitter) -> None:
        """Discard what lowering has found out about the probes."""
        self.code, self.stateful, self.used, self.shared = code, False, {}, {}

    def find_face(self, number: int) -> tuple[Face, list[str]]:
        """Return the face of an instruction, which here is the instruction itself with slots."""
        found = self._faces.get(number)
        if found is None:
            statement = self.statements[number]
            try:
                found = self._shapes.find(self.module.source(statement), self.types)
            except MalformedError:
                parse_statement(self.module, statement)  # raises an error with the program's text and line
                raise
            self._faces[number] = found
        return found

    def iter_lines(self, path: str, line: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of instructions that begin at a matching `.loc` and end at the next `.loc`, label or brace."""
        places = {
            (number, line)
            for number, file in self.module.files.items()
            if fnmatchcase(file, path) or fnmatchcase(file, f"*/{path}")
        }
        inside, first, last = False, -1, -1
        for number, statement in enumerate([*self.statements, Statement("}", "", "", 0, 0)]):
            if statement.kind == "instruction":
                first, last = (number if first < 0 else first), number
                continue
            if statement.kind == "directive" and statement.head != ".loc":
                continue
            if inside and first >= 0:
                yield first, last
            first = -1
            inside = statement.head == ".loc" and self.module.loc(statement) in places
