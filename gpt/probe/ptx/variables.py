"""Let a woven kernel use the same variables as the kernels that aren't woven.

A woven kernel is a module of its own, so every variable that it defined would be a second copy of the program's. So the
module doesn't define any in global memory, but has a table with 8 bytes for each variable. The loader looks up the
variables by name in the program's module, and writes their addresses to the table. Wherever the kernel or a function
that it calls names a variable, weaving inserts a register with the address from the table. A table is better than
kernel parameters: device functions can read it too, calls don't change, and it's filled only once. The compiler's
constants, such as strings for printf and assert, work in the same way, because modules keep their names. The table is
in global memory because it's rarely read, and a bank of constant memory would cost 0.1 us per launch, whether it's read
or not (docs/measured.md).

Variables in constant memory stay in the woven module, because reading them through an address would take another
instruction. They have the same initial values as the program's. The program can write to a variable once it has its
address, so from then on, the value is copied. It's always copied if its initial value isn't in the module: if another
module defines the variable, or if it holds the address of a variable, which is 0 here.

Variables in `.shared` and `.local` are new for each launch. The kernel is left alone if it uses textures, samplers or
surfaces, which aren't memory; if it uses a variable that's declared inside a function, which can't be found by name; or
if it calls through a pointer. Such a call would run a function of the program's module, which ptxas doesn't see, and
which may need more registers and stack than ptxas assigns to the kernel. For the same reason, a kernel is left alone if
it takes the address of a function, which other kernels may call. It's also left alone if it passes on the address of a
variable in constant memory: that would be the address of a copy, which isn't kept in sync and disappears with the
kernel.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from gpt.base.patterns import compiled
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.woven import SharedVariable
from gpt.probe.ptx.calls import in_front
from gpt.probe.ptx.edits import ADDRESS, DECLARE, Insertions
from gpt.ptx import tokens
from gpt.ptx.prune import iter_sums
from gpt.ptx.quick import parse_declaration
from gpt.ptx.scan import Item, Module, Statement
from gpt.ptx.types import STORED, integer

_OPAQUE = {".texref", ".samplerref", ".surfref", ".tex"}
_WORD = compiled(r"\.\w+", re.ASCII)
_VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
_BRACES = compiled(r"\{[^{}]*\}")
_OWN = compiled(r"[;{}:\n]\s*\.(?:global|const|tex)\b", re.ASCII)
_OPCODE = compiled(rf"(?:{tokens.GUARD})?+{tokens.OPCODE}{tokens.MODIFIERS}", re.ASCII)
_BEHIND = compiled(r"\s*([+-][^,;\[\](){}]*?)?\s*(?=[],;])", re.ASCII)
_WIDE = compiled(r"\.[busf]64\b", re.ASCII)
_GENERIC = compiled(r"\bcvta\.const\b\S*\s+(%[\w$]+)", re.ASCII)
_DERIVED = compiled(r"\s*(?:@!?%[\w$]+\s+)?(?:add|sub|mov|cvta)\.\S*\s+(%[\w$]+)\s*,(.*)", re.ASCII | re.DOTALL)
_REGISTER = compiled(r"%[\w$]+", re.ASCII)
_BRACKETS = compiled(r"\[[^\[\]]*\]", re.ASCII)
_MOVED = compiled(rf"\bmov\.[bus]64\s+{tokens.NAME}\s*,\s*({tokens.NAME})\s*[;+]", re.ASCII)


class _Declared(NamedTuple):
    """A declaration of a variable. `item` is the statement, which may also declare others."""

    item: Item
    space: str
    size: int | None
    extern: bool


class Variables:
    """The variables of a kernel's module. Raises LeftAlone if the kernel can't be loaded on its own."""

    def __init__(self, module: Module, kernel: str, prefix: str, relocatable: bool) -> None:
        self.module, self.kernel, self.prefix = module, kernel, prefix
        self.table = f"{prefix}variables"
        if relocatable:  # it's linked with modules that have tables of their own
            self.table += "_" + kernel.replace("%", "$")
        found: dict[str, list[_Declared]] = {}
        for name, declared in self._declarations():
            found.setdefault(name, []).append(declared)
            if found[name][0].space != declared.space:
                raise LeftAlone("variables", f"'{name}' is declared twice", kernel)
        shared = [name for name, declared in found.items() if declared[0].space == "global"]
        self._offsets = {name: 8 * number for number, name in enumerate(shared)}
        first = "".join(sorted({re.escape(name[0]) for name in shared}))
        word = rf"[{first}](?<![\w$%.:].)[\w$]*+"  # any word that may be the name of a variable
        self._word = compiled(word, re.ASCII | re.DOTALL) if shared else None
        self._constants = {name: declared for name, declared in found.items() if name not in self._offsets}
        self._shared = {declared.item for name in shared for declared in found[name]}
        self._sizes = {name: next((d.size for d in declared if d.size), None) for name, declared in found.items()}
        self._foreign: set[str] = set()  # constants whose initial values aren't in the module
        self._check()

    @property
    def shared(self) -> tuple[list[SharedVariable], str | None]:
        """All variables, and the table if there's one. Complete only after `share`."""
        found = [SharedVariable(name, "global", self._sizes[name], at, None) for name, at in self._offsets.items()]
        for name in self._constants:
            copy = "always" if name in self._foreign else "taken"
            found.append(SharedVariable(name, "const", self._sizes[name], None, copy))
        return found, self.table if self._offsets else None

    def lines(self, lines: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Make a probe's lines use the table where they take the address of a variable: `mov.u64 REGISTER,
        VARIABLE`.
        """
        return [(text, number) for line, number in lines for text in self._line(line)]

    def _line(self, line: str) -> Iterable[str]:
        if not line.startswith("mov.u64 "):
            return (line,)
        register, _, value = line[8:-1].partition(", ")
        name, sign, offset = value.partition("+")
        return self._load(register, name, sign + offset) if name in self._offsets else (line,)

    def _load(self, register: str, name: str, offset: str) -> Iterator[str]:
        cached = ".nc" if self.module.target >= 32 else ""
        yield f"ld.global{cached}.u64 {register}, [{self.table}+{self._offsets[name]}];"
        if offset:
            yield f"add.s64 {register}, {register}, 0{offset};"

    # What the module declares

    def _declarations(self) -> Iterator[tuple[str, _Declared]]:
        for item in self.module.items:
            if item.kind != "variable":
                continue
            text = self.module.skeleton[item.start : item.end]
            words = set(_WORD.findall(text.partition("=")[0]))
            if opaque := words & _OPAQUE:
                raise LeftAlone("not_alone", f"it uses '{item.name}', a {min(opaque)[1:]}", self.kernel)
            if not words & {".global", ".const"}:
                continue
            count = 1
            while count:
                text, count = _BRACES.subn("0", text)
            space = "global" if ".global" in words else "const"
            node = parse_declaration(text, partial(self.module.where, item.start))
            specifiers = [specifier.word for specifier in node.specifiers]
            for one in node.declarators:
                counts = [integer(str(dimension)) for dimension in one.dimensions]
                yield one.name, _Declared(item, space, _size(specifiers, counts), ".extern" in words)

    def _check(self) -> None:
        module = self.module
        if re.search(r"\.call(?:prototype|targets)\b", module.skeleton):
            raise LeftAlone(
                "not_alone", "it calls through a pointer, so what it needs when loaded alone is not known", self.kernel
            )
        if any(map(self._passes_constant, module.functions)):
            raise LeftAlone(
                "not_alone",
                "it passes on the address of a variable in constant memory, of which it has a copy",
                self.kernel,
            )
        functions = {item.name for item in module.items if item.kind == "func"}
        if name := next((found[1] for found in _MOVED.finditer(module.skeleton) if found[1] in functions), None):
            raise LeftAlone(
                "not_alone", f"it takes the address of function '{name}', which other kernels may call", self.kernel
            )
        for function in module.functions:
            if _OWN.search(module.skeleton, function.body, function.end):
                for statement in module.statements(function):
                    if statement.kind == "directive" and statement.head in (".global", ".const", ".tex"):
                        raise LeftAlone(
                            "not_alone", f"function '{function.name}' has variables of its own", self.kernel
                        )
        for name, declared in self._constants.items():
            if self._sizes[name] is None and all(one.extern for one in declared):
                raise LeftAlone(
                    "variables", f"the size of '{name}', which is defined elsewhere, is not known", self.kernel
                )

    def _passes_constant(self, function: Item) -> bool:
        """Return whether a generic address of constant memory is used for anything but reading, as debug builds do."""
        text = self.module.skeleton[function.body : function.end]
        held = set(_GENERIC.findall(text))
        statements = [_BRACKETS.sub("", part) for part in text.split(";")] if held else []
        before = 0
        while before < len(held):
            before = len(held)
            for statement in statements:
                derived = _DERIVED.match(statement)
                if held.intersection(_REGISTER.findall(derived[2] if derived else statement)):
                    if not derived:
                        return True
                    held.add(derived[1])
        return False

    # Edits

    def share(self, to: Insertions, cut: Mapping[Item, Sequence[Statement]]) -> None:
        """Remove the variables in global memory from the module, and add the table. `cut` has the statements of
        functions that have already been split. Raises LeftAlone.
        """
        module = self.module
        self._foreign = {name for name, declared in self._constants.items() if all(one.extern for one in declared)}
        for item in {self._constants[name][0].item for name in self._foreign}:
            self._define(item, to)
        if not self._offsets:
            return
        first = next(item for item in module.items if item.kind in ("entry", "func"))
        to.add(first.start, DECLARE, [f".visible .global .align 8 .u64 {self.table}[{len(self._offsets)}];"])
        for item in module.items:
            if item in self._shared:
                to.replace(item.start, item.end, "")
            elif item.kind == "variable":
                self._clear(item, to)
            elif item.kind == "section":
                for start, end in iter_sums(module, item, self._offsets):
                    to.replace(start, end, "0")
            elif item.body:
                self._function(item, cut, to)

    def _define(self, item: Item, to: Insertions) -> None:
        """Make a definition from the declaration of a variable that another module defines."""
        found = compiled(r"\.extern\b").search(self.module.skeleton, item.start, item.end)
        if found:
            to.replace(*found.span(), "")

    def _clear(self, item: Item, to: Insertions) -> None:
        """In the initial value of a variable in constant memory, replace addresses by 0."""
        if twice := self._offsets.keys() & set(item.names):
            raise LeftAlone("variables", f"'{min(twice)}' is declared twice", self.kernel)
        text = self.module.skeleton
        done = first = text.find("=", item.start, item.end)
        for _, at, _ in self._references(item.start, item.end):
            if not 0 <= first < at:
                raise LeftAlone("variables", f"'{item.name}' is declared in an unknown way", self.kernel)
            if at < done:
                continue
            start = max(text.rfind(c, first, at) for c in "={,}") + 1
            start += len(text[start:at]) - len(text[start:at].lstrip())
            done = min(i for c in ",};" if (i := text.find(c, at, item.end)) >= 0)
            to.replace(start, start + len(text[start:done].rstrip()), "0")
            self._foreign.update(item.names)

    def _function(self, function: Item, cut: Mapping[Item, Sequence[Statement]], to: Insertions) -> None:
        """Replace the references to variables in the body of a function."""
        module = self.module
        if next(self._references(function.start, function.body), None):
            raise LeftAlone(
                "variables", f"function '{function.name}' uses the name of a variable for something else", self.kernel
            )
        references = list(self._references(function.body, function.end))
        if not references:
            return
        statements = cut.get(function) or module.statements(function)
        ends = [statement.end for statement in statements]
        used: Counter[int] = Counter()  # by the number of the statement
        for reference in references:
            place = bisect_right(ends, reference[1])
            edited = self._reference(function, statements[place], reference)
            if edited:
                start, end, offset = edited
                register = f"%{self.prefix}address_{used[place]}"
                lines = self._load(register, reference[0], offset)
                to.add(in_front(statements, place), ADDRESS, lines)
                to.replace(start, end, register)
                used[place] += 1
        most = max(used.values(), default=0)
        if most:
            to.add(function.body + 1, DECLARE, [f".reg .b64 %{self.prefix}address_<{most}>;"])

    def _reference(
        self, function: Item, statement: Statement, reference: tuple[str, int, int]
    ) -> tuple[int, int, str] | None:
        """Return which part of a statement to replace by a register with the address, and the offset to add to that
        register. Return None if the name isn't an operand.
        """
        text, (name, start, end) = self.module.skeleton, reference
        if statement.kind != "instruction":
            raise LeftAlone(
                "variables", f"function '{function.name}' uses the name of a variable for something else", self.kernel
            )
        opcode = _OPCODE.match(text, statement.start, statement.end)
        assert opcode
        if start < opcode.end():
            return None
        before, after = text[opcode.end() : start], _BEHIND.match(text, end, statement.end)
        in_brackets = before.count("[") > before.count("]")
        whole = in_brackets or _WIDE.search(statement.head)
        if before.rstrip()[-1:] not in ("[", ",") or not after or not whole:
            where = f"line {self.module.line(start)}"
            raise LeftAlone(
                "variables", f"'{statement.head}' uses variable '{name}' in an unknown way ({where})", self.kernel
            )
        return (start, end, "") if in_brackets else (start, max(end, after.end(1)), " ".join((after[1] or "").split()))

    def _references(self, start: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield the references to variables in global memory between two offsets, in order."""
        for found in self._word.finditer(self.module.skeleton, start, end) if self._word else ():
            if found[0] in self._offsets:
                yield found[0], *found.span()


def _size(specifiers: list[str], counts: list[int | None]) -> int | None:
    """Return the size of a variable in bytes, or None if its declaration doesn't say."""
    size = next((STORED[word[1:]] for word in specifiers if word[1:] in STORED), 0)
    for count in (*(_VECTORS.get(word, 1) for word in specifiers), *counts):
        size *= count or 0
    return size if 0 < size < 1 << 64 else None
