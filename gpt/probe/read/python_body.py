"""Compile the Python statements of a probe to PTX: assignments and saves, `if` as guards, and `for` by unrolling. See
python.py.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from gpt.base.errors import MalformedError
from gpt.probe.model import EDGES, SKIPPED, Line, Save, Snippet
from gpt.probe.read.python_expr import PRED, TYPES, ExpressionLines, Value, number
from gpt.probe.read.ranges import is_for_ranges, make_range
from gpt.ptx import tree

MAX_TURNS = 64  # iterations of a loop, which is unrolled
MAX_ALL_TURNS = 4096  # iterations of all loops of a probe


class Compiler(ExpressionLines):
    """Compiles one probe: statements become lines of PTX, and names become registers. Errors have the line of the
    statement.
    """

    def function(self, node: ast.FunctionDef) -> Snippet:
        """Return the body of a probe."""
        self._block(node.body, None)
        return Snippet(tuple(self.lines))

    def _block(self, body: list[ast.stmt], guard: tree.Guard | None) -> None:
        for statement in body:
            self.node = statement
            match statement:
                case ast.Pass() | ast.Expr(ast.Constant(str())) | ast.Global():
                    pass
                case ast.Assign([ast.Name(name)], value):
                    self._assign(name, self._value(value), guard)
                case ast.AnnAssign(ast.Name(name), annotation, value) if value:
                    self._assign(name, self._convert(self._value(value), self._type(annotation)), guard)
                case ast.AugAssign(ast.Name(name) as target, op, value):
                    load = ast.copy_location(ast.Name(name, ast.Load()), target)
                    self._assign(name, self._binary(op, self._value(load), self._value(value)), guard)
                case ast.If(test, then, otherwise):
                    self._condition(test, then, otherwise, guard)
                case ast.For(ast.Name(name), ast.Call(ast.Name("range"), arguments, []), inner, []):
                    self._loop(name, arguments, inner, guard)
                case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "save"), values, [])):
                    self._save(name, values, guard)
                case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), edge), [ast.Constant(str(title)), *rest], [])) if (
                    edge in EDGES and len(rest) <= 1
                ):
                    self._range(name, edge, title, rest, guard)
                case _:
                    first = ast.unparse(statement).partition("\n")[0]
                    raise self.fault(statement, f"a probe may not contain '{first}'")

    def _assign(self, name: str, value: Value, guard: tree.Guard | None) -> None:
        if name in self.constants or name in self.maps:
            raise self.fault(self.node, f"'{name}' is not a register")
        if name in self.shared:
            target = tree.Name(self.shared[name].name)
            type_ = TYPES[self.shared[name].type]
        else:
            if name not in self.own:
                if value.type is None and value.number is None:
                    raise self.fault(self.node, f"'{name}': an operand has no type; say one, as nl.u32(...)")
                default = TYPES["f64" if isinstance(value.number, float) else "s64"]
                self.own[name] = Value(self._new(value.type or default, name), value.type or default)
                guard = None  # there's no earlier value that could be kept
            own = self.own[name]
            assert isinstance(own.operand, tree.Name) and own.type
            target, type_ = own.operand, own.type
        value = self._convert(value, type_)
        if self.last and value.operand == tree.Name(self.last):  # let the instruction write its result there
            line = self.lines[-1]
            assert isinstance(line.node, tree.Instruction)
            node = replace(line.node, operands=(target, *line.node.operands[1:]), guard=guard)
            self.lines[-1] = Line(node, line.line)
            self.registers = [register for register in self.registers if register.name != self.last]
            self.last = ""
        elif value.operand != target:
            self._emit("mov.pred" if type_ is PRED else f"mov.b{type_.bits}", target, self._operand(value), guard=guard)

    def _condition(
        self, test: ast.expr, then: list[ast.stmt], otherwise: list[ast.stmt], guard: tree.Guard | None
    ) -> None:
        held = self._predicate(self._value(test))
        outer = tree.Name(guard.register) if guard else None
        if outer:
            inside = self._compute("and.pred", PRED, outer, held)
        elif any(own.operand == held for own in self.own.values()):  # the body may change its value
            inside = self._compute("mov.pred", PRED, held)
        else:
            inside = Value(held, PRED)
        assert isinstance(inside.operand, tree.Name)
        unless: Value | None = None
        if otherwise:  # before the body can change what the test has read
            unless = self._compute("not.pred", PRED, held)
            if outer:
                unless = self._compute("and.pred", PRED, outer, self._operand(unless))
        self._block(then, tree.Guard(inside.operand.name))
        if unless:
            assert isinstance(unless.operand, tree.Name)
            self._block(otherwise, tree.Guard(unless.operand.name))

    def _loop(self, name: str, arguments: list[ast.expr], body: list[ast.stmt], guard: tree.Guard | None) -> None:
        node = self.node
        bounds = [number(argument, self.constants) for argument in arguments]
        if not 1 <= len(bounds) <= 3 or not all(isinstance(bound, int) for bound in bounds) or bounds[2:] == [0]:
            raise self.fault(node, "a loop needs a constant range")
        turns = range(*bounds)  # type: ignore[arg-type]
        if len(turns[: MAX_TURNS + 1]) > MAX_TURNS:
            raise self.fault(node, f"loops more than {MAX_TURNS} times")
        if name in self.constants or name in self.shared or name in self.own:
            raise self.fault(node, f"'{name}' counts a loop and is also used for something else")
        for turn in turns:
            self.turns += 1
            if self.turns > MAX_ALL_TURNS:
                raise self.fault(node, f"loops more than {MAX_ALL_TURNS} times, all in all")
            self.constants[name] = turn
            self._block(body, guard)
        self.constants.pop(name, None)

    def _save(self, name: str, values: list[ast.expr], guard: tree.Guard | None) -> None:
        map_ = self.maps.get(name)
        if map_ is None:
            raise self.fault(self.node, f"saves to '{name}', which is not a map of this file")
        if len(values) != len(map_.fields):
            raise self.fault(self.node, f"saves {len(values)} values, map '{name}' has {len(map_.fields)} fields")
        found = [None if isinstance(value, ast.Constant) and value.value is None else self._value(value)
                 for value in values]  # fmt: skip
        operands = tuple(  # an operand of the program keeps its type
            SKIPPED if value is None else
            self._operand(value if value.operand and not value.type else self._convert(value, TYPES[field.type]))
            for value, field in zip(found, map_.fields, strict=True)
        )  # fmt: skip
        types = tuple(field.type for field in map_.fields)
        self._append(Save(name, operands, types, guard=guard))

    def _range(self, name: str, edge: str, title: str, rest: list[ast.expr], guard: tree.Guard | None) -> None:
        map_ = self.maps.get(name)
        if map_ is None or not is_for_ranges(map_):
            raise self.fault(self.node, f"'{name}' is not a map with a ring for ranges")
        number = self._operand(self._convert(self._value(rest[0]), TYPES["u32"])) if rest else None
        try:
            save = make_range(edge, title, number, guard, f"'{name}'", "")
        except MalformedError as error:
            raise self.fault(self.node, error.fact) from None
        self._append(replace(save, map=name, types=tuple(field.type for field in map_.fields)))
