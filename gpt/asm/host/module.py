"""Translate a PTX module to a C file: its variables, its functions, and the tables that abi.h declares."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial

from gpt.asm.host.body import BodyWriter
from gpt.asm.host.consistency import iter_inconsistent
from gpt.asm.host.heads import BLOCK, iter_wrong
from gpt.asm.host.names import WITHOUT_ABI, CVariable, Unsupported, c_function
from gpt.asm.host.needs import Dialect
from gpt.asm.host.opaque import OPAQUE, check_opaque
from gpt.asm.host.opcodes import ABSENT, TABLE
from gpt.asm.host.pragmas import check_pragma
from gpt.asm.host.shared import Shared
from gpt.asm.host.table import Match
from gpt.asm.host.variables import ModuleVariable, declared
from gpt.base.errors import MalformedError
from gpt.base.patterns import compiled
from gpt.ptx import params, tree
from gpt.ptx.attributes import read_attributes
from gpt.ptx.contract import contracted
from gpt.ptx.head import NEWEST, read_head
from gpt.ptx.prune import INDIRECT, Uses, needed, pruned, with_needed
from gpt.ptx.quick import parse_declaration, parse_function
from gpt.ptx.scan import Item, Module, Statement, scan_module

MAX_REGISTERS = 255  # per thread
MAX_SHARED = 48 << 10  # bytes of static shared memory, on each compute capability
_SEVERAL = compiled(r"\.func\s*+(?:\.attribute\s*+\((?:[^()]|\([^()]*+\))*+\)\s*+)?+\([^(),]*+,", re.ASCII)  # results
_HEAD = '#include "atomics.h"\n\n'
_MAX_CONSTANT = 64 << 10  # bytes of a module's variables in constant memory
_SPACES = {".global", ".const", ".shared"}  # where a module's variables may be


def function_address(name: str) -> int:
    """Return the address of a device function. host_address_of in abi.h returns the same."""
    digest = 0xCBF29CE484222325
    for byte in name.encode():
        digest = (digest ^ byte) * 0x100000001B3 % (1 << 64)
    return 0x7E00000000000000 | (digest >> 8 & ~15)


def _check_pointers(variable: ModuleVariable, known: set[str]) -> None:
    """Raise Unsupported if the initial value of a variable contains the address of anything but these."""
    for pointer in variable.pointers:
        if pointer.symbol not in known:
            raise Unsupported(
                f"'{variable.name}' begins with the address of '{pointer.symbol}', which is neither a function nor a "
                "variable in global or constant memory"
            )


class ModuleWriter:
    """Translates a module to C. `faults` has everything that can't be translated, as pairs of location and text."""

    _is_reached = True  # by a kernel

    def __init__(self, data: bytes, name: str) -> None:
        """Scan the module. Raises MalformedError if the text isn't PTX."""
        # Fuse multiplications and additions as ptxas does, so that the results are the same as on a GPU.
        whole = contracted(scan_module(data, name))
        # The targets of an indirect call aren't known, so a module that contains one keeps all of its functions.
        indirect = INDIRECT in whole.skeleton
        self._begin(whole, whole if indirect else pruned(whole, [item.name for item in whole.entries]))

    def _begin(self, whole: Module, module: Module) -> None:
        """Translate `module`, a part of `whole`."""
        head = read_head(whole)
        self.module = module
        self._whole = whole
        self.dialect = Dialect.of(head)
        self.faults: dict[tuple[str, str], None] = {}
        if head.is_newer:
            self.fault(
                self.module.items[0].start,
                "PTX {}.{} is newer than {}.{}, the newest that is known here".format(*head.version, *NEWEST),
            )
        if head.address_size == 32:
            self.fault(self.module.items[2].start, "addresses have 64 bits here")
        self.taken: dict[str, None] = {}  # device functions whose address is taken
        self._sites: list[str] = []
        self._has_targets = False
        self._variables: dict[str, tuple[int, ModuleVariable]] = {}
        self._statements: dict[str, list[Statement]] = {}
        self._bodies: dict[str, BodyWriter] = {}
        self._parameters: dict[str, list[params.Param]] = {}
        self._heads: dict[str, tree.FunctionNode] = {}
        self._aliases: dict[str, str] = {}  # alias -> function
        self._independent = head.texmode_independent
        self._at = 0  # the start of the item that is being translated
        self._first = _first_declarations(module)

    def write(self) -> str:
        """Return the C file; it's unusable if there are faults."""
        functions = self._translate()
        self._check_whole()
        if self.faults:
            return ""
        prototypes = [f"{self.signature(self.head(item.name))};\n" for item in self.module.functions]
        prototypes += [
            f'{self.signature(self.head(name))} __attribute__((alias("{c_function(of)}")));\n'
            for name, of in self._aliases.items()
        ]
        return "".join([_HEAD, *prototypes, "\n", *self._targets(), *functions, *self._tables()])

    def _translate(self) -> list[str]:
        self._declare()
        functions: list[str] = []
        for item in self.module.functions:
            self._try(item.start, partial(self._function, item, functions))
        return functions

    def _function(self, item: Item, functions: list[str]) -> None:
        self._at = item.start
        if self._is_reached and not self.has_abi and self._uses.is_recursive(item.name):
            raise Unsupported(f"function '{item.name}' calls itself, {WITHOUT_ABI}")
        self._bodies[item.name] = BodyWriter(self, item, self.head(item.name))
        functions.append(self._bodies[item.name].write())

    def fault(self, offset: int, text: str) -> None:
        """Record a reason why the module can't be translated."""
        where = f"{self.module.name}:{self.module.line(offset)}"
        self.faults[where, text] = None

    def new_site(self, offset: int, text: str) -> int:
        """Add a site and return its number."""
        self._sites.append(f"{self.module.line(offset)}: {text}")
        return len(self._sites) - 1

    def find(self, instruction: tree.Instruction) -> Match | str:
        """Return the row that matches an instruction, or the reason why there's none."""
        return TABLE.find(instruction.opcode, instruction.modifiers, len(instruction.operands), self.dialect)

    # Names

    def statements(self, item: Item) -> list[Statement]:
        """Return the statements of a function."""
        if item.name not in self._statements:
            self._statements[item.name] = self.module.statements(item)
        return self._statements[item.name]

    def head(self, name: str) -> tree.FunctionNode:
        """Return the head of a function, from its definition, or if it's defined elsewhere, from its last
        declaration.
        """
        if name not in self._heads:
            items = [item for item in self.module.items if item.kind in ("entry", "func") and item.name == name]
            self._heads[name] = parse_function(self.module, next((item for item in items if item.body), items[-1]))
        return self._heads[name]

    def parameters(self, item: Item) -> list[params.Param]:
        """Return the layout of a kernel's parameters."""
        if item.name not in self._parameters:
            found = params.layout(self.head(item.name).params or (), where=self.module.where(item.start))
            self._parameters[item.name] = found
        return self._parameters[item.name]

    def signature(self, head: tree.FunctionNode) -> str:
        """Return the head of a function in C. Results and parameters are pointers to bytes."""
        if head.kind == ".entry":
            return f"static void {c_function(head.name)}(struct host_thread *t, const unsigned char *parameters)"
        count = len(head.returns or ()) + len(head.params or ())
        return f"static void {c_function(head.name)}({', '.join(['struct host_thread *t', *_pointers(count)])})"

    def find_place(self, name: str) -> CVariable | None:
        """Look up a variable of the module, or a function. Raises Unsupported if it's declared later."""
        self._check_order(name)
        if name in self._variables:
            number, variable = self._variables[name]
            return CVariable(variable.space, f"t->variables[{number}]", variable.size, variable.element)
        if place := self.shared.find(name, ""):
            return place
        if name in self._functions:
            if self._is_reached and not self.has_abi:
                raise Unsupported(f"the address of function '{name}', {WITHOUT_ABI}")
            self.taken[name] = None
            return CVariable("function", f"{function_address(name):#x}ull")
        return None

    def is_function(self, name: str) -> bool:
        """Return whether a name belongs to a device function, defined or not. Raises Unsupported if it's declared
        later.
        """
        self._check_order(name)
        return name in self._functions

    def _check_order(self, name: str) -> None:
        if self._first.get(name, 0) > self._at:
            raise Unsupported(_too_early(self.module, name, self._first[name]))

    def is_kernel(self, name: str) -> bool:
        """Return whether a name belongs to a kernel."""
        return any(item.name == name for item in self.module.entries)

    def is_defined(self, name: str) -> bool:
        """Return whether the module contains the body of a function."""
        return name in self._aliases or self.module.find(name) is not None

    def targets(self) -> str:
        """Return the name of the table of functions that indirect calls may reach. The table is written only if this
        was called.
        """
        self._has_targets = True
        return "targets"

    @cached_property
    def has_abi(self) -> bool:
        """True if calls follow the ABI. If any function has several results, ptxas doesn't follow it in the whole
        module.
        """
        functions = (item for item in self._whole.items if item.kind == "func")
        return not any(_SEVERAL.search(self._whole.skeleton, item.start, item.body or item.end) for item in functions)

    @cached_property
    def _uses(self) -> Uses:
        return Uses(self.module)

    @cached_property
    def _functions(self) -> set[str]:
        return {item.name for item in self.module.items if item.kind == "func"}

    @cached_property
    def _addressable(self) -> set[str]:
        """Return the names of everything in the module whose address may be part of a variable's initial value."""
        text = self._whole.skeleton
        return {
            item.name
            for item in self._whole.items
            if item.kind == "func" or (item.kind == "variable" and ".shared" not in text[item.start : item.end])
        }

    @cached_property
    def _first_in_whole(self) -> dict[str, int]:
        return _first_declarations(self._whole)

    # Variables

    def _declare(self) -> None:
        for item in self.module.items:
            self._at = item.start
            if item.kind == "variable":
                node = parse_declaration(self.module.skeleton[item.start : item.end], self._where(item.start))
                if not any(specifier.word == ".shared" for specifier in node.specifiers):
                    for declarator in node.declarators:
                        self._try(item.start, partial(self.declare, node.specifiers, declarator))
            elif item.kind == "alias":
                self._try(item.start, partial(self._alias, item))
        self.shared = Shared(self)
        for _, variable in self._variables.values():
            self._try(
                self.module.items[0].start, partial(_check_pointers, variable, {*self._variables, *self._functions})
            )
            called = any(pointer.symbol in self._functions for pointer in variable.pointers)
            if called and self._is_reached and not self.has_abi:
                self.fault(self.module.items[0].start, f"a function's address in '{variable.name}', {WITHOUT_ABI}")

    def _check_whole(self) -> None:
        """Check what no kernel needs, as ptxas would."""
        for start, text in (*iter_inconsistent(self._whole), *iter_wrong(self._whole, self.dialect)):
            self.faults[f"{self._whole.name}:{self._whole.line(start)}", text] = None
        for item in (one for one in self._whole.items if one.kind == "pragma"):
            try:
                check_pragma(self._whole.text[item.start : item.end], "module", self.dialect.version)
            except Unsupported as error:
                self.faults[f"{self._whole.name}:{self._whole.line(item.start)}", str(error)] = None
        for item in (one for one in self._whole.items if one.kind == "alias"):
            for name in (item.name, self._whole.aliases.get(item.name, "")):
                if self._first_in_whole.get(name, item.end) > item.start:
                    text = f"an alias before '{name}' is declared"
                    self.faults[f"{self._whole.name}:{self._whole.line(item.start)}", text] = None
        if self._whole is not self.module:
            self._check_functions()
        variables = [variable for _, variable in self._variables.values()]
        for item in self._whole.items if self._whole is not self.module else ():
            if item.kind == "variable" and item.name not in self._variables:
                variables += self._judge(item)
        end = 0
        for one in variables:
            if one.space == "const":
                end = -(-end // one.align) * one.align + one.size
        if end > _MAX_CONSTANT:
            self.fault(self.module.items[0].start, f"{end} bytes of constant memory, of {_MAX_CONSTANT} at most")

    def _check_functions(self) -> None:
        """Check the functions that no kernel needs. They may use features that only a GPU has, such as textures."""
        whole = self._whole
        uses = Uses(whole)
        reached = uses.needed(item.name for item in whole.entries)
        variables = (item for item in whole.items if item.kind == "variable")
        lacking = {name for item in variables if self._is_opaque(item) for name in item.names}
        rest = [item for item in whole.functions if item.name not in reached]
        lacking |= {item.name for item in rest if any(_opcode(one) in ABSENT for one in whole.statements(item))}
        if names := [item.name for item in rest if lacking.isdisjoint(uses.needed([item.name]))]:
            other = _UnreachedWriter(whole, with_needed(whole, names))
            other.check()
            self.faults |= other.faults

    def _is_opaque(self, item: Item) -> bool:
        return any(word in self._whole.skeleton[item.start : item.end] for word in OPAQUE)

    def _judge(self, item: Item) -> list[ModuleVariable]:
        """Check variables that no kernel uses, and return them. They may include textures."""
        found = []
        node = parse_declaration(self._whole.skeleton[item.start : item.end], lambda: self._whole.where(item.start))
        words = {specifier.word for specifier in node.specifiers}
        for one in node.declarators:
            try:
                if words & OPAQUE and words & _SPACES:
                    check_opaque(node.specifiers, one, self._independent)
                    continue
                if not words & _SPACES:
                    raise Unsupported(
                        f"variable '{one.name}' outside of functions that isn't in .global, .const or .shared"
                    )
                found.append(declared(node.specifiers, one, one.name))
                _check_pointers(found[-1], self._addressable)
                for pointer in found[-1].pointers:
                    if (first := self._first_in_whole[pointer.symbol]) >= item.start:
                        raise Unsupported(_too_early(self._whole, pointer.symbol, first))
            except Unsupported as error:
                self.faults[f"{self._whole.name}:{self._whole.line(item.start)}", str(error)] = None
        return found

    def _alias(self, item: Item) -> None:
        function = self.module.aliases.get(item.name, "")
        if not self.is_function(item.name) or not self.module.find(function):
            raise Unsupported(f"'{item.name}' is not an alias of a function that is defined here")
        self._aliases[item.name] = function

    def _where(self, offset: int) -> Callable[[], str]:
        return lambda: self.module.where(offset)

    def _try(self, offset: int, action: Callable[[], object]) -> None:
        try:
            action()
        except Unsupported as error:
            self.fault(offset, str(error))
        except MalformedError as error:
            self.fault(offset, error.fact)

    def declare(
        self, specifiers: tuple[tree.Specifier, ...], declarator: tree.Declarator, function: str = ""
    ) -> CVariable:
        """Declare a variable in global or constant memory, of the module or a function. Raises Unsupported."""
        if function and any(specifier.word == ".shared" for specifier in specifiers):
            place = self.shared.find(declarator.name, function)
            if not place:
                raise Unsupported(f"variable '{declarator.name}' in shared memory")
            return place
        name = f"{function}.{declarator.name}" if function else declarator.name
        known = self._variables.get(name)
        words = {specifier.word for specifier in specifiers}
        if not words & _SPACES:
            raise Unsupported(f"variable '{name}' outside of functions that isn't in .global, .const or .shared")
        if function and known:
            raise Unsupported(f"'{name}' is declared twice")
        if not known or known[1].external:
            number = known[0] if known else len(self._variables)
            self._variables[name] = number, declared(specifiers, declarator, name)
        number, variable = self._variables[name]
        for pointer in variable.pointers:
            self._check_order(pointer.symbol)
            if pointer.symbol == name and self._first[name] == self._at:
                raise Unsupported(f"'{name}' begins with its own address")
        return CVariable(variable.space, f"t->variables[{number}]", variable.size, variable.element)

    # Tables

    def _targets(self) -> list[str]:
        """Write the table of device functions that an indirect call may reach."""
        if not self._has_targets:
            return []
        pointed = [one.symbol for _, variable in self._variables.values() for one in variable.pointers]
        # Functions whose address isn't taken here come last. The variables of other kernels may contain their
        # addresses.
        names = [n for n in dict.fromkeys([*self.taken, *pointed, *sorted(self._functions)]) if n in self._functions]
        rows = [f"{{{function_address(n):#x}ull, (void *){c_function(n)}}},\n    " for n in names if self.is_defined(n)]
        return ["static const struct host_target targets[] = {\n    ", *rows, "{0, 0}};\n\n"]

    def _tables(self) -> Iterable[str]:
        rows: list[str] = []
        yield "\nstatic const char *const sites[] = {\n"
        yield from (f"    {quoted(site)},\n" for site in self._sites)
        yield "    0};\n"
        variables = [variable for _, variable in self._variables.values()]
        for number, variable in enumerate(variables):
            yield from self._initial(number, variable)
        yield "static const struct host_variable variables[] = {\n"
        for number, one in enumerate(variables):
            initial = f"i{number}" if one.initial or one.pointers else "0"
            addresses = f"a{number}" if one.pointers else "0"
            yield (
                f"    {{{quoted(one.name)}, {one.size}, {one.align}, {initial}, {addresses}, {len(one.pointers)}, "
                f"HOST_{one.space.upper()}, {int(one.external)}}},\n"
            )
        yield "    {0}};\n"
        for number, item in enumerate(self.module.entries):
            found = "".join(f"{{{param.offset}, {param.size}}}, " for param in self.parameters(item))
            yield f"static const struct host_parameter p{number}[] = {{{found}{{0, 0}}}};\n"
        yield "static const struct host_kernel kernels[] = {\n"
        for number, item in enumerate(self.module.entries):
            self._try(item.start, partial(self._kernel, number, item, rows))
        yield from rows
        yield "    {0}};\n"
        counts = f"{len(self.module.entries)}, {len(variables)}, {len(self._sites)}"
        yield '__attribute__((visibility("default"))) const struct host_module host_module = {\n'
        yield f"    HOST_ABI, {counts}, kernels, variables, sites}};\n"

    def _initial(self, number: int, variable: ModuleVariable) -> Iterable[str]:
        if variable.initial or variable.pointers:
            data = ",".join(map(str, variable.initial)) or "0"
            yield f"static const unsigned char i{number}[{variable.size}] = {{{data}}};\n"
        if variable.pointers:
            yield f"static const struct host_address a{number}[] = {{\n"
            for one in variable.pointers:
                yield (
                    f"    {{{one.offset}, {quoted(one.symbol)}, {one.addend}, {one.size}, {one.shift}, "
                    f"{int(one.generic)}}},\n"
                )
            yield "};\n"

    def _kernel(self, number: int, item: Item, rows: list[str]) -> None:
        head = self.head(item.name)
        needs = self.needs(item.name)
        found = self.parameters(item)
        size = max((param.offset + param.size for param in found), default=0)
        shared, align = self.shared.needs(item.name)
        if shared > MAX_SHARED:
            raise Unsupported(f"{shared} bytes of static shared memory, of {MAX_SHARED} at most: kernel '{item.name}'")
        block = read_attributes(head)
        if size > params.limit(self.dialect.version):
            most = params.limit(self.dialect.version)
            self.fault(item.start, f"{size} bytes of parameters, of {most} at most: kernel '{item.name}'")
        clustered = ".reqnctapercluster" in block or ".explicitcluster" in block
        limits = [math.prod(block[word]) for word in BLOCK if word in block]
        registers = min(max(block.get(".maxnreg", [0])), MAX_REGISTERS)
        required = [*block[".reqntid"], 1, 1][:3] if ".reqntid" in block else [0, 0, 0]
        rows.append(
            f"    {{{quoted(item.name)}, {c_function(item.name)}, p{number}, {len(found)}, {size}, {shared}, {align}, "
            f"{needs['stack']}, {min(limits, default=0)}, {{{', '.join(map(str, required))}}}, 16, {registers}, "
            f"{int(clustered)}}},\n"
        )

    def reached(self, kernel: str) -> set[str]:
        """Return the names of the kernel and everything that it uses, directly or indirectly."""
        found = needed(self.module, [kernel])
        items = (item for item in self.module.items if item.name in found)
        indirect = any(INDIRECT in self.module.skeleton[item.start : item.end] for item in items)
        return found | self._functions if indirect else found

    def needs(self, kernel: str) -> dict[str, int]:
        """Return the resources that a kernel needs, with the same names as the fields of a `kernel` record."""
        reached = self.reached(kernel)
        stack = sum(body.local_size for name, body in self._bodies.items() if name in reached)
        return {"stack": stack, "shared": self.shared.needs(kernel)[0]}


class _UnreachedWriter(ModuleWriter):
    """Translates functions that no kernel needs, only to check them. Like ptxas, it checks their instructions, but
    nothing that concerns the ABI.
    """

    _is_reached = False

    def __init__(self, whole: Module, module: Module) -> None:
        self._begin(whole, module)

    def check(self) -> None:
        """Find the faults."""
        self._translate()


def _too_early(module: Module, name: str, declared: int) -> str:
    return f"'{name}' is declared only in line {module.line(declared)}"


def _first_declarations(module: Module) -> dict[str, int]:
    """Return where each kernel, function and variable is declared first."""
    found: dict[str, int] = {}
    for item in module.items:
        for name in item.names if item.kind in ("entry", "func", "variable") else ():
            found.setdefault(name, item.start)
    return found


def _opcode(statement: Statement) -> str:
    return statement.head.partition(".")[0]


def _pointers(count: int) -> list[str]:
    return [f"unsigned char *p{number}" for number in range(count)]


def quoted(text: str) -> str:
    """Return text as a C string in quotes."""
    escaped = re.sub(r"[\\\"?]", lambda found: "\\" + found[0], text)
    return (
        '"' + re.sub(r"[^ -~]", lambda found: "".join(f"\\{b:03o}" for b in found[0].encode("latin-1")), escaped) + '"'
    )
