"""The nodes of a PTX program. str(node) is its text: the tokens from which it was parsed, in order.

Nodes are frozen, and equal if their values are. They have no positions (the scanner's statements do). Expressions are
flat: `a + 4 * b` has three operands and two operators, and a conditional has `?` and `:` among its operators.
`%r1|%p1`, the two results of an instruction, is an expression, too. Brackets can be nested to a depth of
grammar.MAX_NESTING.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_TIGHT = {"+", "-", "|"}


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


# Operands


@dataclass(frozen=True, slots=True)
class Name:
    """A register, variable, label or function. `parts` come after it, such as `.x` in `%tid.x`."""

    name: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name + "".join(self.parts)


@dataclass(frozen=True, slots=True)
class Number:
    """A constant as it's written: `0f3F800000`, `16`, `0xffU`."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class String:
    """A string without its quotes."""

    text: str

    def __str__(self) -> str:
        return f'"{self.text}"'


@dataclass(frozen=True, slots=True)
class Prefixed:
    """An operand after `-`, `+`, `!`, `~` or casts such as `(.s64)`, outermost first."""

    prefixes: tuple[str, ...]
    operand: Operand

    def __str__(self) -> str:
        return "".join(self.prefixes) + str(self.operand)


@dataclass(frozen=True, slots=True)
class Expression:
    """Operands with an operator between each two of them."""

    operands: tuple[Operand, ...]
    operators: tuple[str, ...]

    def __str__(self) -> str:
        text = str(self.operands[0])
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            text += f"{operator}{operand}" if operator in _TIGHT else f" {operator} {operand}"
        return text


@dataclass(frozen=True, slots=True)
class OperandGroup:
    """Operands in parentheses: the results or arguments of a call, or part of an expression."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return f"({_list(self.items)})"


@dataclass(frozen=True, slots=True)
class Vector:
    """Operands in braces."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return f"{{{_list(self.items)}}}"


@dataclass(frozen=True, slots=True)
class Address:
    """Operands in brackets: `[%rd1+8]`; a texture or tensor has several."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return f"[{_list(self.items)}]"


@dataclass(frozen=True, slots=True)
class Apply:
    """A function or mask applied to arguments: `generic(x)` or `0xff(x)`."""

    function: Name | Number
    arguments: OperandGroup

    def __str__(self) -> str:
        return f"{self.function}{self.arguments}"


@dataclass(frozen=True, slots=True)
class Index:
    """An element of an array: `table[3]`, `grid[1][2]`."""

    base: Name
    indexes: tuple[Address, ...]

    def __str__(self) -> str:
        return str(self.base) + "".join(map(str, self.indexes))


@dataclass(frozen=True, slots=True)
class Setting:
    """A property of a sampler: `filter_mode = nearest`."""

    key: Operand
    value: Operand

    def __str__(self) -> str:
        return f"{self.key} = {self.value}"


Operand = Name | Number | String | Prefixed | Expression | OperandGroup | Vector | Address | Apply | Index | Setting

# Declarations


@dataclass(frozen=True, slots=True)
class Specifier:
    """A word in a declaration, with its argument if it has one: `.global`, `.align` `16`, `.const` `[2]`."""

    word: str
    argument: str = ""

    def __str__(self) -> str:
        return self.word + (f" {self.argument}" if self.argument[:1].isdigit() else self.argument)


@dataclass(frozen=True, slots=True)
class Declarator:
    """A name that's declared: `%r<9>` has a count, `x[4][]` has dimensions (None if they're empty), `x = 4` has a
    value.
    """

    name: str
    count: str | None = None
    dimensions: tuple[Operand | None, ...] = ()
    value: Operand | None = None

    def __str__(self) -> str:
        count = "" if self.count is None else f"<{self.count}>"
        dimensions = "".join(f"[{'' if d is None else d}]" for d in self.dimensions)
        return self.name + count + dimensions + ("" if self.value is None else f" = {self.value}")


def _specifiers(specifiers: Iterable[Specifier]) -> str:
    return "".join(f"{specifier} " for specifier in specifiers)


@dataclass(frozen=True, slots=True)
class Declaration:
    """Variables, registers or parameters declared in a module, a function or a scope."""

    specifiers: tuple[Specifier, ...]
    declarators: tuple[Declarator, ...]

    def __str__(self) -> str:
        return f"{_specifiers(self.specifiers)}{_list(self.declarators)}".rstrip() + ";"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or result of a function."""

    specifiers: tuple[Specifier, ...]
    declarator: Declarator

    def __str__(self) -> str:
        return f"{_specifiers(self.specifiers)}{self.declarator}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute after a function's parameters: `.maxntid 256, 1, 1`."""

    word: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.word} {_list(self.values)}".rstrip()


# Statements


@dataclass(frozen=True, slots=True)
class Guard:
    """`@%p1` or `@!%p1`."""

    register: str
    negated: bool = False

    def __str__(self) -> str:
        return f"@{'!' * self.negated}{self.register}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction. `modifiers` include their dots: (`.global`, `.v4`, `.u32`), (`.L1::no_allocate`,)."""

    opcode: str
    modifiers: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None

    @property
    def name(self) -> str:
        """The opcode with its modifiers."""
        return self.opcode + "".join(self.modifiers)

    def __str__(self) -> str:
        guard = f"{self.guard} " if self.guard else ""
        return f"{guard}{self.name} {_list(self.operands)}".rstrip() + ";"


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target."""

    name: str

    def __str__(self) -> str:
        return f"{self.name}:"


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive whose arguments have no structure: `.version 9.0`, `.pragma "nounroll";`, `.loc 1 2 3`.

    `end` is `;` if the directive ends with one.
    """

    word: str
    text: str
    end: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.text}".rstrip() + self.end


@dataclass(frozen=True, slots=True)
class Prototype:
    """`.callprototype`, the signature of indirect calls. The label before it is a statement of its own."""

    returns: tuple[Parameter, ...] | None
    name: str
    params: tuple[Parameter, ...] | None
    attributes: tuple[Attribute | Directive, ...]

    def __str__(self) -> str:
        return f".callprototype {_signature(self)};"


@dataclass(frozen=True, slots=True)
class Scope:
    """Statements in braces: the body of a function, or a part of it with registers of its own."""

    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        return "{\n" + "".join(f"{statement}\n" for statement in self.statements) + "}"


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """An entry or a device function. `kind` is `.entry` or `.func`. Without a `body`, it's only declared.

    `specifiers` come before the kind (`.visible`), and `more` after it (`.attribute(...)`).
    """

    specifiers: tuple[Specifier, ...]
    kind: str
    more: tuple[Specifier, ...]
    returns: tuple[Parameter, ...] | None
    name: str
    params: tuple[Parameter, ...] | None
    attributes: tuple[Attribute | Directive, ...]
    body: Scope | None = None

    def __str__(self) -> str:
        head = f"{_specifiers(self.specifiers)}{self.kind} {_specifiers(self.more)}{_signature(self)}"
        return f"{head};" if self.body is None else f"{head}\n{self.body}"


def _signature(node: FunctionNode | Prototype) -> str:
    returns = "" if node.returns is None else f"({_list(node.returns)}) "
    params = "" if node.params is None else f"({_list(node.params)})"
    return returns + node.name + params + "".join(f" {attribute}" for attribute in node.attributes)


@dataclass(frozen=True, slots=True)
class SectionNode:
    """A debug section: lines of data and labels."""

    name: str
    lines: tuple[Directive | Label, ...]

    def __str__(self) -> str:
        return f".section {self.name} {{\n" + "".join(f"{line}\n" for line in self.lines) + "}"


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """A whole program."""

    items: tuple[Item, ...]

    def __str__(self) -> str:
        return "".join(f"{item}\n" for item in self.items)


Statement = Instruction | Label | Declaration | Directive | Prototype | Scope
Item = FunctionNode | SectionNode | Statement


def is_constant(operand: Operand) -> bool:
    """Return whether an operand is a constant or an expression of constants."""
    match operand:
        case Number() | Name("WARP_SZ", ()):
            return True
        case Prefixed(_, inner):
            return is_constant(inner)
        case Expression(items, _) | OperandGroup(items):
            return bool(items) and all(map(is_constant, items))
    return False
