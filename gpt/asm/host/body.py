"""Translate a PTX function to a C function.

Registers become locals, declared at the top and initialized to zero; labels stay labels. If several scopes declare a
name, each gets a different C name. A backward branch counts down the thread's budget. A basic block adds its number of
instructions to the clock once, so an instruction that reads the clock ends the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpt.asm.host.heads import check_attributes
from gpt.asm.host.names import CLabel, CRegister, CVariable, Unsupported
from gpt.asm.host.parts import ModuleCode
from gpt.asm.host.pragmas import check_pragma
from gpt.asm.host.table import TYPES
from gpt.asm.host.use import InstructionUse
from gpt.asm.host.variables import LINKING, check_declaration, element_of, shape_of, size_of, type_of
from gpt.base.errors import MalformedError
from gpt.ptx import tree
from gpt.ptx.parse import parse_statement
from gpt.ptx.quick import parse_declaration, parse_instruction
from gpt.ptx.scan import Item, Statement
from gpt.ptx.types import STORED, integer

MAX_SHOWN = 160  # characters of an instruction in a message
ENDS = {"bra", "ret", "exit", "call", "brx", "trap"}  # end a basic block
_COUNTED = re.compile(r"(.*?)(0|[1-9]\d{0,8})")
_STATES = {".local": "local", ".param": "param", ".shared": "shared"}
_OF_PARAMETERS = {"param", "align", "ptr", "global", "const", "local", "shared", "v2", "v4"}  # words, and types
_WIDTHS = {".v2": 2, ".v4": 4}
_NOT_PASSED = {"u8", "s8", "u16", "s16", "pred"}  # types that a function's parameter can't have
_BEFORE_STATES = (".align", ".attribute", ".extern", ".const", ".global")  # other words that can begin a declaration


@dataclass
class CScope:
    """A scope in braces: its registers, variables, labels and named lists. `counted` are declared like `%r<9>`."""

    outer: CScope | None = None
    plain: dict[str, CRegister] = field(default_factory=dict)
    counted: dict[str, tuple[int, CRegister]] = field(default_factory=dict)
    places: dict[str, CVariable] = field(default_factory=dict)
    labels: dict[str, CLabel] = field(default_factory=dict)
    lists: dict[str, tree.Statement] = field(default_factory=dict)  # .branchtargets, .calltargets, .callprototype
    begins: dict[str, int] = field(default_factory=dict)  # the statements that declare them, except parameters

    def has(self, name: str) -> bool:
        """Return whether the scope declares a name, except as one of several registers."""
        return any(name in known for known in (self.plain, self.places, self.labels, self.lists))

    def outwards(self) -> Iterator[CScope]:
        """Yield this scope and the ones around it, innermost first."""
        scope: CScope | None = self
        while scope:
            yield scope
            scope = scope.outer


class BodyWriter:
    """The body of a function during its translation to C."""

    def __init__(self, code: ModuleCode, item: Item, head: tree.FunctionNode) -> None:
        self.code = code
        self.item = item
        self.head = head
        self.is_kernel = head.kind == ".entry"
        self._scope = self._whole = CScope()
        self._used = 0  # number of names made so far
        self._registers: dict[str, str] = {}  # types of the registers in use, by name
        self._arrays: list[str] = []
        self._lines: list[str] = []
        self._counter: int | None = None  # the line that counts this basic block
        self._count = 0
        self.local_size = self._frame_size = 0  # bytes of .local, and of all variables
        self.index = 0  # index of the statement that is being written
        self._statement: Statement | None = None
        self._text = ""

    def write(self) -> str:
        """Return the function in C. Faults go to `code.fault`."""
        module = self.code.module
        statements = self.code.statements(self.item)
        scopes = self._declare(statements)
        for self.index, statement in enumerate(statements):
            self._scope = scopes[self.index]
            self._statement, self._text = statement, ""
            try:
                if statement.kind == "label":
                    self._end_block()
                    self._lines.append(f"{self._scope.labels[statement.head].name}:;")
                elif statement.kind == "instruction":
                    self._text = module.skeleton[statement.start : statement.end]
                    self._instruction(parse_instruction(self._text))
            except Unsupported as error:
                self.code.fault(statement.start, f"{error}: '{_shown(self._text) or statement.head}'")
            except MalformedError as error:
                self.code.fault(statement.start, error.fact)
        self._end_block()
        self._scope = self._whole
        return self._assemble()

    def _assemble(self) -> str:
        enter, leave = self._enter(), self._leave()
        by_type: dict[str, list[str]] = {}
        for name, type_ in self._registers.items():
            by_type.setdefault(type_, []).append(f"{name} = 0")
        declared = [f"{type_} {', '.join(names)};" for type_, names in by_type.items()]
        size = self._frame_size + 16 * len(self._registers)
        check = f"host_enter(t, {self.code.new_site(self.item.start, self.head.name)}, {size});"
        lines = [*declared, "bool cc = 0;", *self._arrays, *enter, check, *self._lines, *leave]
        return f"{self.code.signature(self.head)} {{\n" + "".join(f"    {line}\n" for line in lines) + "}\n"

    def new_site(self) -> int:
        """Make a site for the current instruction."""
        assert self._statement
        return self.code.new_site(self._statement.start, _shown(self._text).rstrip(";"))

    # Names

    def find_register(self, name: str, parts: tuple[str, ...] = ()) -> CRegister | None:
        """Look up a register in this scope; None if it isn't declared, or if a variable of a nearer scope hides it."""
        found = self._nearest(name)
        return self._component(found, parts) if isinstance(found, CRegister) else None

    def _nearest(self, name: str) -> CRegister | CVariable | None:
        """Return the register or variable that the nearest scope declares before this statement."""
        for scope in self._scope.outwards():
            found: CRegister | CVariable | None = scope.plain.get(name) or scope.places.get(name)
            declared = name
            if not found and (number := _COUNTED.fullmatch(name)) and number[1] in scope.counted:
                count, one = scope.counted[number[1]]
                found = replace(one, name=f"{one.name}_{number[2]}") if int(number[2]) < count else None
                declared = number[1]
            if found and scope.begins.get(declared, 0) <= self.index:
                return found
        return None

    def _component(self, register: CRegister, parts: tuple[str, ...]) -> CRegister | None:
        """Return the component `.x` of a vector, or without parts the vector itself, which has no C variable."""
        if register.width > 1:
            places = {part: number for number, pair in enumerate(("xr", "yg", "zb", "wa")) for part in pair}
            if len(parts) != 1 or places.get(parts[0][1:], 4) >= register.width:
                return None if parts else register
            register = replace(register, name=f"{register.name}_{places[parts[0][1:]]}", width=1)
        elif parts:
            return None
        self._registers[register.name] = str(register.type)
        return register

    def find_place(self, name: str) -> CVariable | None:
        """Look up a variable, parameter or function in this scope; None if a register hides it."""
        found = self._nearest(name) or self.code.find_place(name)
        return found if isinstance(found, CVariable) else None

    def find_list(self, name: str) -> tree.Statement | None:
        """Look up a list that `NAME: .branchtargets` or the like declares."""
        scopes = (scope for scope in self._scope.outwards() if name in scope.lists)
        return next((scope.lists[name] for scope in scopes if scope.begins[name] <= self.index), None)

    def find_label(self, name: str) -> CLabel | None:
        """Look up a label in this scope."""
        return next((scope.labels[name] for scope in self._scope.outwards() if name in scope.labels), None)

    def new_name(self, prefix: str, name: str) -> str:
        """Return a C name for a PTX name. It ends in a unique number, because the components of a vector `a` are `a_0`
        and `a_1`, and something else may have that name.
        """
        self._used += 1
        plain = re.sub(r"\W", "", name, flags=re.ASCII)
        return f"{prefix}{plain}__{self._used}"

    # Declarations

    def _declare(self, statements: list[Statement]) -> list[CScope]:
        """Return the scope of each statement, filled with the declarations in it."""
        scope = self._scope
        for number, parameter in enumerate([*(self.head.returns or ()), *(self.head.params or ())]):
            self._declare_parameter(scope, number, parameter)
        scopes: list[CScope] = []
        for index, statement in enumerate(statements):
            self.index = index
            if statement.kind == "{":
                scope = CScope(scope)
            scopes.append(scope)
            if statement.kind == "}":
                scope = scope.outer or scope
            elif statement.kind == "label":
                if scope.has(statement.head):
                    self.code.fault(statement.start, f"label '{statement.head}' is defined twice")
                scope.labels[statement.head] = CLabel(self.new_name("L_", statement.head), index)
            elif statement.kind == "directive":
                try:
                    self._directive(scope, statement)
                except Unsupported as error:
                    self.code.fault(statement.start, str(error))
        return scopes

    def _directive(self, scope: CScope, statement: Statement) -> None:
        module = self.code.module
        word = statement.head
        if word in (".branchtargets", ".calltargets", ".callprototype"):
            label, listed = parse_statement(module, statement)
            assert isinstance(label, tree.Label)
            if scope.has(label.name):
                raise Unsupported(f"'{label.name}' is declared twice")
            if isinstance(listed, tree.Prototype):
                for said in check_attributes("func", listed, self.code.dialect):
                    raise Unsupported(f"{said}: prototype '{label.name}'")
            if isinstance(listed, tree.Directive) and word == ".calltargets":
                for name in map(str.strip, listed.text.split(",")):
                    if not self.code.is_function(name):
                        raise Unsupported(f"'{name}' as a target of calls: it isn't a function")
            scope.lists[label.name] = listed
            scope.begins[label.name] = self.index
        elif word == ".reg" or word in _STATES or word in _BEFORE_STATES:
            text = module.skeleton[statement.start : statement.end]
            node = parse_declaration(text, lambda: module.where(statement.start))
            words = [specifier.word for specifier in node.specifiers]
            if strange := LINKING.intersection(words):
                raise Unsupported(f"'{min(strange)}' in a function")
            for declarator in node.declarators:
                if word == ".reg":
                    self._declare_register(scope, node.specifiers, declarator)
                else:
                    self._declare_variable(scope, node.specifiers, words, declarator)
        elif word == ".pragma":
            text = module.text[statement.start : statement.end]
            check_pragma(text, "kernel" if self.is_kernel else "function", self.code.dialect.version)
        elif word != ".loc":
            raise Unsupported(f"'{word}' in a function")

    def _declare_register(
        self, scope: CScope, specifiers: tuple[tree.Specifier, ...], declarator: tree.Declarator
    ) -> None:
        check_declaration(specifiers, declarator)
        if declarator.dimensions:
            raise Unsupported(f"register '{declarator.name}' as an array")
        words = [specifier.word for specifier in specifiers]
        width = next((_WIDTHS[word] for word in words if word in _WIDTHS), 1)
        declared = type_of(words, declarator)
        if self._is_declared(scope, declarator):
            raise Unsupported(f"'{declarator.name}' is declared twice")
        scope.begins[declarator.name] = self.index
        type_ = TYPES[declared]
        type_ = type_ if type_.is_float or type_.name == "pred" else type_.unsigned
        if declarator.count is None:
            scope.plain[declarator.name] = CRegister(self.new_name("v_", declarator.name), type_, declared, width)
        else:
            register = CRegister(self.new_name("n_", declarator.name), type_, declared, width)
            scope.counted[declarator.name] = integer(declarator.count) or 0, register

    def _is_declared(self, scope: CScope, declarator: tree.Declarator) -> bool:
        """Return whether a scope has a register of this name, or for `%r<9>` any of these names."""
        name = declarator.name
        if declarator.count is not None:
            count = integer(declarator.count) or 0
            numbers = (_COUNTED.fullmatch(one) for one in scope.plain if one.startswith(name))
            return name in scope.counted or any(n and n[1] == name and int(n[2]) < count for n in numbers)
        number = _COUNTED.fullmatch(name)
        counted = number and number[1] in scope.counted and int(number[2]) < scope.counted[number[1]][0]
        return scope.has(name) or bool(counted)

    def _declare_variable(
        self, scope: CScope, specifiers: tuple[tree.Specifier, ...], words: list[str], declarator: tree.Declarator
    ) -> None:
        state = next((_STATES[word] for word in words if word in _STATES), "")
        if scope.has(declarator.name):
            raise Unsupported(f"'{declarator.name}' is declared twice")
        scope.begins[declarator.name] = self.index
        if state not in ("local", "param"):  # a variable of the module, visible here only
            scope.places[declarator.name] = self.code.declare(specifiers, declarator, self.item.name)
            return
        size, align = size_of(specifiers, declarator)
        name = self.new_name("m_", declarator.name)
        self._arrays.append(f"unsigned char {name}[{size or 1}] __attribute__((aligned({max(align, 16)}))) = {{0}};")
        self._frame_size += -(-size // 16) * 16
        self.local_size += size if state == "local" else 0
        element = element_of(specifiers, declarator)
        scope.places[declarator.name] = CVariable(
            state, f"host_offset(t, {name})", size, element, name, shape_of(specifiers, declarator)
        )

    def _declare_parameter(self, scope: CScope, number: int, parameter: tree.Parameter) -> None:
        """Declare a parameter or a result; in C, results are the first parameters after the thread."""
        name = parameter.declarator.name
        words = [specifier.word[1:] for specifier in parameter.specifiers]
        element = element_of(parameter.specifiers, parameter.declarator)
        if scope.has(name):
            raise Unsupported(f"parameter '{name}' is declared twice")
        if words[-1] not in STORED and not self.is_kernel:
            raise Unsupported(f"'.{words[-1]}' after the type of parameter '{name}': only kernels have that")
        small = _NOT_PASSED.intersection(words) if not parameter.declarator.dimensions else set()
        if small and not self.is_kernel and not {"v2", "v4"}.intersection(words) and self.code.has_abi:
            raise Unsupported(f"parameter '{name}' of type .{min(small)}: functions have .b8, .b16 or more")
        if "reg" not in words and not self.is_kernel and number < len(self.head.returns or ()) > 1:
            raise Unsupported(f"result '{name}' in .param: several results are in .reg")
        if self.is_kernel:
            strange = [word for word in words if word not in _OF_PARAMETERS and word not in STORED]
            if strange or "param" not in words:
                raise Unsupported(f"parameter '{name}' with '.{(strange or words)[0]}'")
            check_declaration(parameter.specifiers, parameter.declarator)
            own = self.code.parameters(self.item)[number]
            pointer = f"parameters + {own.offset}"
            scope.places[name] = CVariable("param", f"{own.offset}ull", own.size, element, pointer)
        elif "reg" in words:
            self._declare_register(scope, parameter.specifiers, parameter.declarator)
        else:
            size = size_of(parameter.specifiers, parameter.declarator)[0]
            shape = shape_of(parameter.specifiers, parameter.declarator)
            scope.places[name] = CVariable("param", f"host_offset(t, p{number})", size, element, f"p{number}", shape)

    def _enter(self) -> list[str]:
        """Return the statements at the start, which load parameters that are registers."""
        params = self._in_registers(self.head.params, len(self.head.returns or ()))
        return [f"{register.name} = {place};" for place, register in params]

    def _leave(self) -> list[str]:
        """Return the statements at the end, which store results that are registers."""
        results = self._in_registers(self.head.returns, 0)
        return ["leave:;", *(f"{place} = {register.name};" for place, register in results)]

    def _in_registers(self, parameters: tuple[tree.Parameter, ...] | None, first: int) -> list[tuple[str, CRegister]]:
        """Return (place in a C parameter, register) for each parameter that's a register; vectors are split up."""
        found = []
        for number, parameter in enumerate(parameters or ()):
            if any(specifier.word == ".reg" for specifier in parameter.specifiers):
                name = parameter.declarator.name
                register = self.find_register(name)
                if not register:
                    raise Unsupported(f"parameter '{parameter}'")
                for index, part in enumerate("xyzw"[: register.width]):
                    one = self.find_register(name, (f".{part}",)) if register.width > 1 else register
                    assert one
                    found.append((f"(({one.type} *)p{first + number})[{index}]", one))
        return found

    def use_stack(self) -> None:
        """Declare the locals of HOST_ALLOCATE."""
        line = "unsigned char *top = 0, *low = 0, *high = 0;"
        if line not in self._arrays:
            self._arrays.append(line)

    # Statements

    def _instruction(self, instruction: tree.Instruction) -> None:
        if self._counter is None:
            self._counter = len(self._lines)
            self._lines.append("")
        self._count += 1
        match = self.code.find(instruction)
        if isinstance(match, str):
            raise Unsupported(match)
        text = InstructionUse(self, instruction, match).write()
        if instruction.guard:
            register = self.find_register(instruction.guard.register)
            if not register or register.type.name != "pred":
                raise Unsupported(f"'{instruction.guard.register}' is not a predicate")
            text = f"if ({'!' * instruction.guard.negated}{register.name}) {{ {text} }}"
        self._lines.append(text)
        if instruction.opcode in ENDS or "%clock" in self._text:
            self._end_block()

    def _end_block(self) -> None:
        if self._counter is not None:
            self._lines[self._counter] = f"*t->clock += {self._count};"
        self._counter, self._count = None, 0


def _shown(text: str) -> str:
    """Shorten an instruction for a message: some name hundreds of registers."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 20]}...{text[-17:]}"
