"""A snippet at a site, as PTX: helpers become operands, SAVE stores, registers and labels get names of their own.

Where the site's instruction has a guard, each instruction of the snippet that does something gets it too, and runs
where both hold. What a snippet computes only for itself needs no guard: a register that is written under one would
be live from the kernel's entry on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpt.probe.code import Code, Condition
from gpt.probe.model import COUNTS, HELPERS, OPERANDS, SIZES, Line, Probe, ProbeFile, Save, Snippet, names_of
from gpt.probe.operands import Bound, Descriptor, Partial
from gpt.probe.saves import Placed, save
from gpt.probe.types import SPECIAL, type_of_name, types_of
from gpt.ptx import tree

TIMES = {"CLOCK": "%clock64", "TIME": "%globaltimer"}  # read where they stand, and each time anew
_WORD = re.compile(r"\W", re.ASCII)
Types = Callable[[str], str | None]  # of the program's registers


class Misfit(Exception):
    """Why a snippet cannot be at a site, which is then left alone."""


@dataclass(frozen=True)
class Site:
    """Where a snippet goes: the instruction there and what it means, and when the probe runs.

    `overwrite` says that a record saved here takes the place of an earlier one in a map of capacity 1.
    """

    instruction: tree.Instruction | None = None
    bound: Bound | None = None
    guard: tree.Guard | None = None
    sampled: Condition | None = None
    overwrite: bool = False
    no_pred: bool = False

    @property
    def condition(self) -> Condition | None:
        """The guard, as a condition."""
        return Condition(self.guard.register, self.guard.negated) if self.guard else None


class Names:
    """What the registers of a probe file are called in the program."""

    def __init__(self, file: ProbeFile, prefix: str) -> None:
        self.types = {register.name: register.type for register in file.registers}
        for map_ in file.maps:  # what SAVEs of parts of a record keep for the last one
            for number, field in enumerate(map_.fields):
                self.types[part_name(map_.name, number)] = f"b{max(16, field.size * 8)}"
        self.names: dict[str, str] = {}
        taken: set[str] = set()
        for name in self.types:
            plain = f"%{prefix}{_WORD.sub('_', name.removeprefix('%'))}"
            while plain in taken:
                plain += "_"
            taken.add(plain)
            self.names[name] = plain
        self.initial = {r.name: r.initial for r in file.registers if r.initial is not None}
        self.own = _own_registers(file)
        self.zeros: set[str] = set()  # registers that hold 0 wherever they are read


def part_name(map_: str, number: int) -> str:
    """The register for a field of a record that several SAVEs make."""
    return f"{map_}[{number}]"


def _own_registers(file: ProbeFile) -> dict[tuple[str, str], set[str]]:
    """For each snippet the registers that are nobody else's, and written before they are read."""
    users: dict[str, set[tuple[str, str]]] = {}
    first: dict[tuple[str, str], set[str]] = {}
    for probe in file.probes:
        for when, snippet in probe.snippets:
            seen: set[str] = set()
            straight = True
            written = first.setdefault((probe.name, when), set())
            for line in snippet.lines:
                node = line.node
                straight &= not isinstance(node, tree.Label)
                for name in names_of(node):
                    users.setdefault(name, set()).add((probe.name, when))
                if isinstance(node, tree.Instruction) and node.operands and straight and not node.guard:
                    reads = {name for operand in node.operands[1:] for name in names_of(operand)}
                    written |= set(names_of(node.operands[0])) - reads - seen
                    straight &= node.opcode != "bra"
                seen |= set(names_of(node))
    with_initial = {register.name for register in file.registers if register.initial is not None}
    return {key: {name for name in names if users[name] == {key}} - with_initial for key, names in first.items()}


class Lowering:
    """One snippet at one site. `run` gives the lines to put before the instruction, and those of the snippet.

    `code` is of this place, `outer` of the function, for what is kept from before the instruction. `base` gives the
    register with the address of a map's buffer; `used` collects the registers of the file, `shared` those of them
    that outlive the snippet. A line is a text and its line in the probe file.
    """

    def __init__(
        self,
        code: Code,
        outer: Code,
        names: Names,
        maps: dict[str, Placed],
        base: Callable[[Placed], str],
        types: Types,
        label: str,
        used: set[str],
        shared: set[str],
    ) -> None:
        self.code, self.outer = code, outer
        self.names, self.maps, self.base, self.types = names, maps, base, types
        self.label, self.used, self.shared = label, used, shared
        self.values: dict[str, str] = {}  # helpers that are at hand
        self.copies: dict[str, str] = {}  # registers as they were before the instruction
        self.parts: dict[str, str] = {}
        self.labels: dict[str, int] = {}
        self.site = Site()

    def run(
        self, probe: Probe, when: str, snippet: Snippet, site: Site
    ) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Raises Misfit."""
        self.site, self.own = site, self.names.own.get((probe.name, when), set())
        code = self.code
        if when == "after" and site.instruction:
            self._keep(snippet, site.instruction)
        before = [(text, snippet.lines[0].line if snippet.lines else probe.line) for text in self.outer.take()]
        guard = None if site.no_pred else self._condition(site.guard)
        self.condition = code.both(site.sampled, guard)
        for helper in sorted(snippet.helpers - TIMES.keys() - {"OUT", "IN1", "IN2", "IN3", "IN4", "PRED"}):
            self.values[helper] = self._helper(helper)
        done: list[tuple[str, int]] = []
        for number, line in enumerate(snippet.lines):
            match line.node:
                case tree.Label(name):
                    code.lines.append(f"{self._label(name)}:")
                    code.forget()
                case Save():
                    self._save(line.node, snippet.lines[number + 1 :])
                case tree.Instruction():
                    self._instruction(line.node)
            done += [(text, line.line) for text in code.take()]
        return before, done

    # Before the instruction

    def _keep(self, snippet: Snippet, instruction: tree.Instruction) -> None:
        """Copies what the instruction overwrites and the snippet asks for as it was before."""
        bound = self.site.bound
        if not bound or not instruction.operands:
            return
        first = instruction.operands[0]
        written = set() if isinstance(first, tree.Address) else set(names_of(first))
        asked: set[str] = set()
        for helper in snippet.helpers & (OPERANDS - {"OUT"}):
            for source in self._sources(helper, bound):
                asked |= set(names_of(source))
        if instruction.guard:
            asked.add(instruction.guard.register)
        for name in sorted(written & asked):
            type_ = self._type(name)
            kind = "pred" if type_ == "pred" else f"b{SIZES[type_] * 8}"
            self.copies[name] = self.outer.make(kind, f"mov.{kind}", name)

    def _sources(self, helper: str, bound: Bound) -> list[tree.Operand]:
        match helper:
            case "ADDR":
                return [bound.address] if bound.address else []
            case "BYTES":
                found = bound.bytes.read if isinstance(bound.bytes, Partial) else bound.bytes
                return [] if found is None or isinstance(found, int) else [found]
            case "FLOPS":
                return [bound.flops.register] if isinstance(bound.flops, Descriptor) else []
        operand = bound.operand(helper)
        return [operand] if operand else []

    def _condition(self, guard: tree.Guard | None) -> Condition | None:
        return Condition(self.copies.get(guard.register, guard.register), guard.negated) if guard else None

    # Helpers

    def _helper(self, name: str) -> str:
        """A register or constant with the value of a helper that has a type."""
        code, bound = self.code, self.site.bound
        match name:
            case "SMID" | "LANEID":
                return code.special(f"%{name.lower()}")
            case "WARPID":
                return code.warp()
            case "BLOCK":
                return code.block()
            case "ACTIVE":
                return code.make("b32", "popc.b32", code.group(self.condition)[1])
            case "ADDR" if bound and bound.address:
                return self._address(bound.address)
            case "BYTES" if bound and bound.bytes is not None:
                return self._bytes(bound.bytes)
            case "FLOPS" if bound and bound.flops is not None:
                return str(bound.flops) if isinstance(bound.flops, int) else self._described(bound.flops)
        raise Misfit(f"has no {name}")

    def _bytes(self, count: int | tree.Operand | Partial) -> str:
        """A constant, or a register of 32 bits."""
        if isinstance(count, int):
            return str(count)
        if not isinstance(count, Partial):
            return self._sized(count, "u32")
        names = list(names_of(count.read))
        if not names or self.types(names[0]) != "pred":
            return self._sized(count.read, "u32")
        ignored = str(count.read).replace(names[0], self.copies.get(names[0], names[0]))
        return self.code.make("b32", "selp.u32", 0, self._bytes(count.size), ignored)

    def _described(self, flops: Descriptor) -> str:
        """2 * M * N * k, with M in 16s in bits 24 to 28 and N in 8s in bits 17 to 22."""
        code, value = self.code, self._sized(flops.register, "u32")
        rows = code.make("b32", "bfe.u32", value, 24, 5)
        columns = code.make("b32", "bfe.u32", value, 17, 6)
        return code.make("b32", "mul.lo.u32", code.make("b32", "mul.lo.u32", rows, columns), 2 * 16 * 8 * flops.k)

    def _address(self, address: tree.Address) -> str:
        """The address in brackets, 64 bits; of a tensor map's access, the map's."""
        code, operand = self.code, next(iter(address.items), None)
        first, rest = operand, ""
        if isinstance(operand, tree.Expression):
            first = operand.operands[0]
            rest = str(replace(operand, operands=(tree.Number("0"), *operand.operands[1:])))
        if not isinstance(first, tree.Name) or first.parts:
            if isinstance(first, tree.Number):
                return code.make("b64", "mov.u64", operand)
            raise Misfit(f"has the address '{address}'")
        type_ = self.types(first.name)
        name = self.copies.get(first.name, first.name)
        if type_ is None:  # a variable
            name, type_ = code.make("b64", "mov.u64", name), "b64"
        if SIZES[type_] == 4:
            low = code.make("b32", "add.u32", name, rest) if rest else name
            return code.make("b64", "cvt.u64.u32", low if rest else code.make("b32", "mov.b32", low))
        return code.make("b64", "add.s64" if rest else "mov.b64", name, *[rest] * bool(rest))

    def _type(self, name: str) -> str:
        type_ = self.types(name)
        if type_ is None or (SIZES[type_] == 0 and type_ != "pred"):
            raise Misfit(f"has '{name}', which is no register of a plain type")
        return type_

    # Operands

    def _operand(self, operand: tree.Operand, wanted: str | None, plain: bool) -> str:
        """An operand of a snippet's instruction. `plain` ones take special registers: mov and cvt."""
        match operand:
            case tree.Name("PRED", ()):
                return self.code.positive(self._condition(self.site.guard))
            case tree.Name(name, ()) if name in TIMES:
                return TIMES[name] if plain else self.code.make("b64", "mov.u64", TIMES[name])
            case tree.Name(name, ()) if name in self.values:
                value = self.values[name]
                wide = name in COUNTS and wanted in ("u64", "s64", "b64") and value.startswith("%")
                return self.code.make("b64", "cvt.u64.u32", value) if wide else value
            case tree.Name(name, parts) if name in HELPERS:
                bound, element = self.site.bound, "".join(parts)
                source = bound.operand(name, element) if bound else None
                if bound is None or source is None:
                    raise Misfit(f"has no {operand}")
                return self._sized(source, wanted, fresh=name == "OUT", cut=bound.width(name, element) is not None)
            case tree.Name(name, parts) if name in SPECIAL and not plain:
                type_ = SPECIAL[name]
                return self.code.make(f"b{SIZES[type_] * 8}", f"mov.{type_}", operand)
            case tree.Name(name, parts):
                return self._register(name) + "".join(parts)
            case tree.Prefixed(prefixes, inner):
                return "".join(prefixes) + self._operand(inner, wanted, plain)
            case tree.Expression(operands, operators) if set(operators) == {"|"}:
                return "|".join(self._operand(part, wanted, plain) for part in operands)
            case tree.Vector(items):
                part = f"b{SIZES[wanted] * 8 // len(items)}" if wanted else None
                return "{" + ", ".join(self._operand(item, part, plain) for item in items) + "}"
        return str(operand)

    def _register(self, name: str) -> str:
        found = self.names.names.get(name)
        if found is None:
            return name
        self.used.add(name)
        if name not in self.own:
            self.shared.add(name)
        return found

    def _sized(self, operand: tree.Operand, wanted: str | None, fresh: bool = False, cut: bool = True) -> str:
        """An operand of the program as one of `wanted`'s size. Its register may be of any type of its size.

        With `cut` a longer one is cut off: the opcode uses no more of it, as `ld.u8` of 32 bits.
        """
        code = self.code
        match operand:
            case tree.Name("_"):
                raise Misfit("has '_' where the probe reads")
            case tree.Name(name) if name in SPECIAL:
                type_ = SPECIAL[name]
                value = code.make(f"b{SIZES[type_] * 8}", f"mov.{type_}", operand)
            case tree.Name(name, ()) if name.startswith("%") or self.types(name):
                type_ = self._type(name)
                value = name if fresh else self.copies.get(name, name)
                if type_ == "pred":
                    if wanted not in (None, "pred"):
                        raise Misfit(f"has predicate '{name}', where .{wanted} is wanted")
                    return value
                if wanted == "pred":
                    raise Misfit(f"has '{name}', where a predicate is wanted")
                bits = SIZES[type_] * 8
                value = code.make(f"b{bits}", f"mov.b{bits}", value)
            case tree.Address():
                type_, value = "b64", self._address(operand)
            case tree.Name() | tree.Expression():
                type_, value = "b64", code.make("b64", "mov.u64", operand)
            case tree.Vector(items) if wanted:
                return self._packed(items, SIZES[wanted] * 8, fresh)
            case _:
                return str(operand)
        bits, to = SIZES[type_] * 8, max(16, SIZES[wanted] * 8) if wanted else 0
        if wanted is None or to == bits:
            return value
        if to < bits and not cut:
            raise Misfit(f"has '{operand}' of {bits} bits, where {to} are wanted")
        kind = "s" if wanted[0] == "s" else "u"
        return code.make(f"b{to}", f"cvt.{kind}{to}.{kind}{bits}", value)

    def _packed(self, items: tuple[tree.Operand, ...], bits: int, fresh: bool) -> str:
        """A vector as one register of so many bits."""
        each = bits // len(items)
        if each * len(items) != bits or each not in (16, 32):
            raise Misfit(f"has a vector of {len(items)}, where {bits} bits are wanted")
        parts = []
        for item in items:
            if isinstance(item, tree.Name) and item.name != "_" and SIZES[self._type(item.name)] * 8 != each:
                raise Misfit(f"has '{item}' in a vector, where {each} bits are wanted")
            part = self._sized(item, f"b{each}", fresh)
            parts.append(part if part.startswith("%") else self.code.make(f"b{each}", f"mov.b{each}", part))
        return self.code.make(f"b{bits}", f"mov.b{bits}", "{" + ", ".join(parts) + "}")

    # Statements

    def _label(self, name: str) -> str:
        number = self.labels.setdefault(name, len(self.labels))
        return f"{self.label}_{number}_{_WORD.sub('_', name)}"

    def _guard(self, guard: tree.Guard | None) -> Condition | None:
        if guard is None:
            return None
        if guard.register != "PRED":
            return Condition(self._register(guard.register), guard.negated)
        found = self._condition(self.site.guard)
        if found is None:
            return Condition(self.code.positive(None), guard.negated)
        return Condition(found.register, found.negated != guard.negated)

    def _instruction(self, node: tree.Instruction) -> None:
        condition = self.code.both(self.condition, self._guard(node.guard))
        if node.opcode == "bra":
            self.code.put(f"{node.name} {self._label(str(node.operands[0]))}", condition)
            self.code.forget()
            return
        wanted = types_of(node)
        plain = node.opcode in ("mov", "cvt")
        values = [self._operand(o, w, plain) for o, w in zip(node.operands[1:], wanted[1:], strict=True)]
        target = self._operand(node.operands[0], wanted[0], True)
        if not node.guard and set(names_of(node.operands[0])) <= self.own:
            condition = None
        self.code.put(f"{node.name} {', '.join([target, *values])}", condition)

    def _save(self, node: Save, rest: tuple[Line, ...]) -> None:
        placed = self.maps.get(node.map)
        if placed is None:
            raise Misfit(f"finds no map '{node.map}'")
        condition = self.code.both(self.condition, self._guard(node.guard))
        fields = placed.map.fields
        types = [field.type for field in fields[node.first :]][: len(node.values)]
        if len(types) < len(node.values) or (node.last and node.first + len(types) < len(fields)):
            raise Misfit(f"has not as many values as map '{node.map}' has fields")  # only where nobody verified
        if placed.map.type == "total":
            types = [self._added(value, type_) for value, type_ in zip(node.values, types, strict=True)]
        idle = self.names.zeros if placed.map.type == "total" and node.last else ()
        values = [
            "" if isinstance(value, tree.Name) and value.name in idle else self._value(value, type_)
            for value, type_ in zip(node.values, types, strict=True)
        ]
        if not node.last:
            ends_here = any(isinstance(line.node, Save) and line.node.last for line in rest)
            for number, value in enumerate(values, node.first):
                self._part(part_name(node.map, number), value, condition, ends_here)
            return
        parts = [part_name(node.map, number) for number in range(node.first)]
        before = [self.parts[part] if part in self.parts else self._register(part) for part in parts]
        save(
            self.code,
            placed,
            self.base(placed),
            before + values,
            [field.size for field in fields[: node.first]] + [SIZES[type_] for type_ in types],
            condition,
            overwrite=self.site.overwrite and placed.map.capacity == 1,
        )

    def _added(self, value: tree.Operand, type_: str) -> str:
        """The type of what is added to a field: a register of 32 bits may be added to 64."""
        if not isinstance(value, tree.Name) or value.name in COUNTS:
            return type_
        given = type_of_name(value, self.names.types)
        return given if given == "u32" and type_ == "u64" else type_

    def _part(self, part: str, value: str, condition: Condition | None, ends_here: bool) -> None:
        """Keeps a value for the SAVE that completes the record: in this snippet, or in another."""
        type_ = self.names.types[part]
        if ends_here:
            self.parts[part] = self.code.make(type_, f"mov.{type_}", value)
        else:
            self.code.put(f"mov.{type_} {self._register(part)}, {value}", condition)

    def _value(self, value: tree.Operand, type_: str) -> str:
        """What a field of this type takes: a register, or a constant in one."""
        text = self._operand(value, type_, False)
        if text.startswith("%"):
            return text
        bits = max(16, SIZES[type_] * 8)
        kind = f"f{bits}" if type_ in ("f32", "f64") else f"b{bits}"
        return self.code.make(f"b{bits}", f"mov.{kind}", text)
