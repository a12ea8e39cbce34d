"""Probes in Python: a file in Neutrino's DSL, with control flow, compiled from its syntax tree and never executed.

    from neutrino import probe, Map
    import neutrino.language as nl

    CALLBACK = "block_sched.py"

    @Map(level="warp", type="array", size=16, cap=1)
    class block_sched:
        start: nl.u64
        elapsed: nl.u32
        cuid: nl.u32

    start: nl.u64 = 0                 # a register that the probes share

    @probe(pos="kernel", level="warp", before=True)
    def begin():
        start = nl.clock()

    @probe(pos="kernel", level="warp")
    def end():
        block_sched.save(start, nl.clock() - start, nl.cuid())

The result is the objects of model.py with PTX in the snippets; the verifier treats them like a TOML file's. `if`
becomes a guard on assignments and saves, not a branch; `for` over a constant range is unrolled. Values are converted as
in C: to the wider type, to unsigned, to float. `nl.u32(x)` converts a value, or sets the type of an operand such as
`nl.out`. A name that's assigned but not declared is local to the probe.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

from gpt.base.errors import GptError, MalformedError
from gpt.probe.model import EDGES, LEVELS, MAP_TYPES, Map, Probe, ProbeFile, Register, layout
from gpt.probe.positions import parse_positions
from gpt.probe.read.maps import OPTIONS, default_capacity, make_map, parse_capacity, parse_number, parse_sample
from gpt.probe.read.python_body import Compiler
from gpt.probe.read.python_expr import TYPES, number
from gpt.probe.read.ranges import number_ranges
from gpt.ptx.types import SPECIAL
from gpt.stream.rooms import RANGE_FIELDS

_MAP = {"level", "size", "cap", *OPTIONS}
_PROBE = {"pos", "position", "level", "before", "no_pred", "sample"}


def compile_python(source: str, path: str) -> ProbeFile:
    """Parse a probe file in Python. Raises MalformedError, GptError with file and line."""
    try:
        with warnings.catch_warnings():  # Python warns of unknown escapes, for example
            warnings.simplefilter("ignore")
            module = ast.parse(source)
        return _File(source, path).read(module)
    except SyntaxError as error:
        raise MalformedError(f"Python: {error.msg}", f"{path}:{error.lineno or 1}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        fact = "nested too deep" if isinstance(error, RecursionError | MemoryError) else str(error)
        raise MalformedError(f"Python: {fact}", f"{path}:1") from None


class _File:
    """Compiles the module level of a file: maps, shared registers, constants and probes."""

    def __init__(self, source: str, path: str) -> None:
        self.source, self.path = source, path
        self.maps: dict[str, Map] = {}
        self.probes: list[Probe] = []
        self.shared: dict[str, Register] = {}  # by their names in Python
        self.registers: list[Register] = []
        self.constants: dict[str, int | float] = {}
        self.callback: str | None = None

    def fault(self, node: ast.AST, fact: str) -> MalformedError:
        return MalformedError(fact, f"{self.path}:{getattr(node, 'lineno', 1)}")

    def read(self, module: ast.Module) -> ProbeFile:
        functions = []
        self.check_names(module)
        for node in module.body:
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant(str())):
                    pass
                case ast.ClassDef():
                    self.map(node)
                case ast.FunctionDef():
                    functions.append(node)
                case ast.AnnAssign(ast.Name(name), _, value):
                    self.register(node, name, value)
                case ast.Assign([ast.Name("CALLBACK" | "callback")], ast.Constant(str(text))):
                    self.callback = text
                case ast.Assign([ast.Name(name)], value) if (found := number(value, self.constants)) is not None:
                    self.constants[name] = found
                case _:
                    raise self.fault(node, f"a probe file may not contain '{_first_line(node)}'")
        for function in functions:  # last, because they may refer to anything else
            self.probe(function)
        if not self.probes:
            raise GptError("no probe in it", self.path)
        registers = (*self.shared.values(), *self.registers)
        maps, probes = number_ranges(self.probes, [*self.maps.values()], self.path)
        return ProbeFile(self.path, tuple(probes), tuple(maps), registers, self.callback, self.source)

    def check_names(self, module: ast.Module) -> None:
        """Raise an error for `x.clock()` if x wasn't imported."""
        nodes = list(ast.walk(module))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        known = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
        methods = ("save", *EDGES)
        for node in nodes:
            match node:
                case ast.Attribute(ast.Name(base), name) if name not in methods and base not in known:
                    raise self.fault(node, f"'{base}' is not imported")

    def register(self, node: ast.AnnAssign, name: str, value: ast.expr | None) -> None:
        type_ = self.type(node.annotation)
        initial = 0 if value is None else number(value, self.constants)
        if initial is None:
            raise self.fault(node, f"register '{name}': '{_first_line(value)}' is not a constant")
        if name in self.shared:
            raise self.fault(node, f"register '{name}' is declared twice")
        try:
            text = TYPES[type_].constant(initial)
        except ValueError as error:
            raise self.fault(node, f"register '{name}': {error}") from None
        register = f"%${name}" if f"%{name}" in SPECIAL else f"%{name}"  # a name such as `clock` is allowed
        self.shared[name] = Register(register, type_, text, node.lineno)

    def type(self, node: ast.expr) -> str:
        match node:
            case ast.Attribute(ast.Name(), name) | ast.Name(name) if name in TYPES:
                return TYPES[name].name
        raise self.fault(node, f"'{_first_line(node)}' is not a type, as nl.u64")

    def options(self, node: ast.ClassDef | ast.FunctionDef, name: str, known: set[str]) -> dict[str, Any]:
        """Return the arguments of the decorator. There must be exactly one."""
        match node.decorator_list:
            case [ast.Call(ast.Name(called) | ast.Attribute(_, called), [], keywords)] if called == name:
                found: dict[str, Any] = {}
                for keyword in keywords:
                    if keyword.arg not in known:
                        raise self.fault(keyword, f"{name}: unknown option '{keyword.arg}'")
                    constant = self.constant(keyword.value)
                    if constant is None:
                        raise self.fault(keyword, f"{name}: '{keyword.arg}' is not a constant")
                    found[keyword.arg] = constant
                return found
        raise self.fault(node, f"'{node.name}' needs @{name}(...), alone")

    def constant(self, value: ast.expr) -> Any:
        """Return the value of a constant, or of a list of constants. Return None for anything else."""
        match value:
            case ast.Constant(constant):
                return constant
            case ast.List(items) | ast.Tuple(items) if all(isinstance(item, ast.Constant) for item in items):
                return [item.value for item in items if isinstance(item, ast.Constant)]
        return number(value, self.constants)

    def map(self, node: ast.ClassDef) -> None:
        options = self.options(node, "Map", _MAP)
        what, where = f"map '{node.name}'", f"{self.path}:{node.lineno}"
        fields: list[tuple[str, str]] = []
        for line in node.body:
            match line:
                case ast.AnnAssign(ast.Name(name), annotation, None):
                    fields.append((name, self.type(annotation)))
                case ast.Pass() | ast.Expr(ast.Constant(str())):
                    pass
                case _:
                    raise self.fault(line, f"{what}: '{_first_line(line)}' is not a field, as 'start: nl.u64'")
        if not fields and "ring" not in options:
            raise self.fault(node, f"{what}: no fields")
        fields = fields or list(RANGE_FIELDS)
        if node.name in self.maps or len({name for name, _ in fields}) < len(fields):
            raise GptError(f"{what}: two with the same name", where)
        if options.get("type", "array") not in MAP_TYPES:
            raise GptError(f"{what}: type is not one of {', '.join(MAP_TYPES)}", where)
        size = options.pop("size", layout(fields)[1])
        capacity = parse_capacity(
            options.pop("cap", default_capacity(options.get("type"), "ring" in options)), what, where
        )
        number_of = parse_number(size)
        if number_of is None:
            raise MalformedError(f"{what}: size '{size}' is not a number", where)
        level = options.pop("level", "thread")
        self.maps[node.name] = make_map(
            node.name, what, where, fields, level=level, size=number_of, capacity=capacity, **options
        )

    def probe(self, node: ast.FunctionDef) -> None:
        options = self.options(node, "probe", _PROBE)
        what, where = f"probe '{node.name}'", f"{self.path}:{node.lineno}"
        arguments = node.args
        if arguments.args or arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
            raise self.fault(node, f"{what} takes no arguments")
        if any(probe.name == node.name for probe in self.probes):
            raise GptError(f"{what}: two with the same name", where)
        level = options.get("level", "thread")
        if level not in LEVELS:
            raise GptError(f"{what}: level '{level}' is not one of {', '.join(LEVELS)}", where)
        text = options.get("pos", options.get("position"))
        if not isinstance(text, str):
            raise self.fault(node, f'{what}: needs pos="..."')
        try:
            positions = parse_positions(text)
        except MalformedError as error:
            raise self.fault(node, f"{what}: {error.fact}") from None
        for key in ("before", "no_pred"):
            if not isinstance(options.get(key, False), bool):
                raise self.fault(node, f"{what}: '{key}' is neither True nor False")
        fault: Callable[[ast.AST, str], GptError] = lambda at, fact: self.fault(at, f"{what}: {fact}")  # noqa: E731
        compiler = Compiler(node.name, self.shared, self.constants, self.maps, fault)
        snippet = compiler.function(node)
        self.registers += compiler.registers
        before, after = (snippet, None) if options.get("before") else (None, snippet)
        sample = parse_sample(options.get("sample"), what, where)
        self.probes.append(
            Probe(node.name, positions, level, before, after, options.get("no_pred", False), sample, node.lineno)
        )


def _first_line(node: ast.AST | None) -> str:
    return ast.unparse(node).partition("\n")[0] if node else ""
