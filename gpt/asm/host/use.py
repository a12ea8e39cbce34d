"""Translate one instruction of a function: check its operands, convert them to C, and fill in its row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from gpt.asm.host.fragments import check_fragment, takes_no_halves
from gpt.asm.host.names import (
    SPECIAL,
    SPECIAL_NEEDS,
    CRegister,
    CVariable,
    Unsupported,
    constant,
    evaluate,
    evaluate_float,
    literal,
)
from gpt.asm.host.needs import parse_rules
from gpt.asm.host.parts import FunctionCode
from gpt.asm.host.table import TYPES, Match, PtxType, Slot
from gpt.ptx import tree
from gpt.ptx.types import BYTES, FLOAT, PACKED, takes, takes_constant

ADDRESS = TYPES["u64"]
_TAKE_SPECIAL = {"mov", "cvt"}
_NARROWED = {"%tid", "%ntid", "%ctaid", "%nctaid", "%gridid"}  # were once narrower, so `mov` may truncate them
_ON_SHARED = {"mapa", "getctarank"}
_TAKE_VARIABLES = {"mov", "cvta", *_ON_SHARED}
_DISCARD = {"atom", "elect", "lop3", "match", "mbarrier", "setp"}  # their first result may be `_`
_TAKE_NO_CONSTANT = {"movmatrix", "stackrestore"}
_ADDRESSES = {f"{kind}{size}" for kind in "bus" for size in (8, 16, 32, 64)}  # types of registers that may be addresses
_ZERO = tree.Number("0")
_TAKE_BRACES = {"ld", "ldu", "st", "mov"}  # accept braces around a single register, as Triton writes them


class InstructionUse:
    """An instruction, with its row and its function."""

    def __init__(self, body: FunctionCode, instruction: tree.Instruction, match: Match) -> None:
        self.body = body
        self.instruction = instruction
        self.operands = instruction.operands
        self.match = match
        self.words = match.words
        self._site: int | None = None

    @property
    def site(self) -> int:
        """The index of the instruction's site. The site is created on first use."""
        if self._site is None:
            self._site = self.body.new_site()
        return self._site

    def write(self) -> str:
        """Return the instruction as C statements. Raises Unsupported."""
        row = self.match.row
        self._check_operands()
        if callable(row.code):
            text: str = row.code(self)
            return text
        names: dict[str, Any] = dict(self.words)
        names["thread"] = "t"
        if "{site}" in row.code:
            names["site"] = self.site
        operands = list(self.operands)
        written = _parts(operands.pop(0)) if row.written else []
        for slot, operand in zip(row.read, operands, strict=True):
            if f"{{{slot.name}}}" in row.code:
                names[slot.name] = self._read(slot, operand)
        if row.written and ";" not in row.code:
            if len(written) != 1:
                raise Unsupported("more than one result")
            type_ = self.match.type_of(row.written[0])
            return self.assign(written[0], type_, f"({row.code.format_map(names)})")
        if len(written) > len(row.written):
            raise Unsupported("more results than it has")
        before, after = [], []
        for slot, operand in zip_longest(row.written, written):
            names[slot.name] = variable = f"{slot.name}_"
            type_ = self.match.type_of(slot)
            if slot.count is None:
                before.append(f"{type_} {variable};")
                after += [self.assign(operand, type_, variable)] if operand else []
                continue
            items = self.vector(operand, slot.count) if operand else ()
            before.append(f"{type_} {variable}[{len(items) or slot.count}];")
            after += [self.assign(item, type_, f"{variable}[{number}]") for number, item in enumerate(items)]
        return " ".join(["{", *before, row.code.format_map(names), *after, "}"])

    def _check_operands(self) -> None:
        """Raise Unsupported for operands that don't fit the types in the row, as strictly as ptxas."""
        row, operands = self.match.row, list(self.operands)
        opcode = self.instruction.opcode
        for place in BYTES.get(opcode, ()) if opcode != "lop3" else ():
            if tree.is_constant(operands[place]) and not 0 <= evaluate(operands[place]) < 256:
                raise Unsupported(f"'{operands[place]}' is not from 0 to 255")
        written = _parts(operands.pop(0)) if row.written and operands else []
        if written == [tree.Name("_")] * 2:
            raise Unsupported("'_|_' where a register is expected")
        discards = opcode in _DISCARD and not {".any", ".pending_count"} & {*self.instruction.modifiers}
        if written[:1] == [tree.Name("_")] and not discards:
            raise Unsupported("'_' where a register is expected")
        for slot, operand in [*zip(row.written, written, strict=False), *zip(row.read, operands, strict=False)]:
            if slot.type == "address" and not isinstance(operand, tree.Address | tree.Index):
                raise Unsupported(f"address '{operand}' without brackets")
            if slot.type != "address" and isinstance(operand, tree.Address):
                raise Unsupported(f"'{operand}' where a register or constant is expected")
            if isinstance(operand, tree.Address) and ".local" not in self.instruction.modifiers:
                _refuse_number(operand)
            if (slot.type == "number" or slot.type.isdecimal()) and slot.type not in ("number", str(evaluate(operand))):
                raise Unsupported(f"'{operand}' where {slot.type} is expected")
            type_ = self.match.find_type(slot)
            exact = opcode == "redux" or (slot.type[0] in "us" and opcode not in ("cvt", "slct"))
            exact &= opcode not in ("dp4a", "dp2a") or slot.name not in "ab"
            exact |= slot.type == "b32" and (
                opcode == "wmma" or (opcode == "mma" and takes_no_halves(self.instruction))
            )
            if slot.count is not None and len(self.vector(operand)) == 1 and not isinstance(operand, tree.Vector):
                raise Unsupported(f"'{operand}' where a vector in braces is expected")
            if not type_:
                continue
            if isinstance(operand, tree.Vector):
                if slot.count is None and not self.words.get("V") and opcode not in _TAKE_BRACES:
                    raise Unsupported(f"'{operand}' where one register is expected")
                self._check_vector(operand, type_, exact)
            else:
                self.check(operand, type_, exact)
            # The code doesn't use all operands, such as cache policies. The state of an mbarrier may be dropped.
            discarded = opcode == "mbarrier" and operand is self.operands[0] and operand == tree.Name("_")
            unused = exact or not callable(row.code) or opcode == "createpolicy"
            if slot in row.read and unused and slot.count is None and not discarded:
                self._read(slot, operand)

    def _check_vector(self, vector: tree.Vector, type_: PtxType, exact: bool) -> None:
        """Raise Unsupported for elements that don't fit each other, or the type of the vector.

        If one of them is a register with an untyped `.b`, all elements count as untyped. `_` and constants have the
        type of the others.
        """
        opcode = self.instruction.opcode
        packs = opcode == "mov" and not self.words.get("V")
        if packs:
            type_ = TYPES.get(f"b{type_.bits // max(len(vector.items), 1)}", type_)
        self.refuse_sums(vector.items)
        declared = [name for item in vector.items if (name := self._declared(item))]
        constants = [number for item in vector.items if (number := _number(item))]
        if not declared and not constants and tree.Name("_") in vector.items:
            raise Unsupported(f"'{vector}' has no element that is a register")
        if len({TYPES[name].bits for name in declared}) > 1:
            raise Unsupported(f"'{vector}' has elements of several sizes")
        kinds = {_kind(name) for name in declared}
        kinds |= {"float" if FLOAT.fullmatch(one) else "integer" for one in constants}
        plain = next((name for name in declared if name[0] == "b" and name not in PACKED), "")
        if len(kinds) > 1 and not plain:
            raise Unsupported(f"'{vector}' has elements of several types")
        # after a constant, ptxas accepts registers of any size
        unchecked = opcode in ("atom", "red") or (constants and not self._declared(vector.items[0]))
        for name in () if unchecked else [plain] if plain else declared:
            same_size = type_.is_float and name[0] in "us" and TYPES[name].bits == type_.bits
            too_large = packs and TYPES[name].bits > type_.bits  # elsewhere, .b8 accepts all registers
            if too_large or (not self._takes(type_, name, exact) and not (same_size and self.words.get("V"))):
                raise Unsupported(f"'{vector}' has elements of .{name} where .{type_.name} is expected")
        if opcode == "mma" or (opcode == "wmma" and ".mma" in self.instruction.modifiers):
            check_fragment(self.instruction, vector, type_.name, declared, constants, self.body.code.dialect.target)
        for number in () if declared else constants:
            if not takes_constant(type_.name, number):
                raise Unsupported(f"'{number}' where .{type_.name} is expected")

    def refuse_sums(self, operands: Sequence[tree.Operand]) -> None:
        """Raise Unsupported for operands such as `%r1+4`, where ptxas rejects them."""
        for operand in operands:
            first = operand.operands[0] if isinstance(operand, tree.Expression) else None
            if isinstance(first, tree.Name) and self.body.find_register(first.name, first.parts):
                raise Unsupported(f"'{operand}' where a register or constant is expected")

    def _declared(self, item: tree.Operand) -> str:
        """Return the type with which an element of a vector is declared. It's empty for `_` and constants."""
        if not isinstance(item, tree.Name):
            return ""
        name = item.name + "".join(item.parts)
        if name in SPECIAL:
            return SPECIAL[name][0]
        if found := self.body.find_register(item.name, item.parts):
            return found.declared
        if self.body.find_place(item.name):
            raise Unsupported(f"'{item}' is a variable: 'mov' its address to a register first")
        return ""

    def check(self, operand: tree.Operand, type_: PtxType, exact: bool = False) -> None:
        """Raise Unsupported for a register, special register, variable or constant that doesn't fit a type.

        `exact` is True if the type is named in the table, and not by a word of the instruction. In this case, ptxas
        doesn't accept registers of type .f16x2 as untyped bits, or 128-bit registers for smaller types.
        """
        opcode = self.instruction.opcode
        if opcode in _ON_SHARED and (place := self.place(operand)) and place.space != "shared":
            raise Unsupported(f"'{operand}' is in .{place.space}, not .shared")
        match operand:
            case tree.Name(name, parts) if special := SPECIAL.get(name + "".join(parts)):
                types = [word for word in self.words.values() if isinstance(word, PtxType)]
                bits = TYPES[special[0]].bits
                cut = opcode == "mov" and type_.bits < bits and name not in _NARROWED
                if opcode == "cvt" and not _are_integers(types):
                    raise Unsupported(f"'{operand}' is converted to a float: 'mov' it to a register first")
                fits = type_.name == special[0] or (_are_integers(types) and type_.bits <= bits and not cut)
                if opcode not in _TAKE_SPECIAL or ".pack" in self.instruction.modifiers or not fits:
                    raise Unsupported(f"'{operand}' where .{type_.name} is expected: 'mov' it to a register first")
                for rule in parse_rules(SPECIAL_NEEDS.get(name, "")):
                    if said := rule.broken((), self.body.code.dialect):
                        raise Unsupported(said.replace("this form", f"'{operand}'", 1))
            case tree.Name("WARP_SZ", ()):  # an integer constant
                if re.fullmatch(r"v\w+[24]", opcode):  # video instructions on pairs and fours
                    raise Unsupported(f"'{operand}' where a register or number is expected")
                self.check(tree.Number("32"), type_)
            case tree.Name(name, ()) if f"{name}.x" in SPECIAL:
                if opcode != "mov" or not self.words.get("V"):
                    raise Unsupported(f"'{operand}', a vector, where one .{type_.name} is expected")
            case tree.Name(name, parts):
                found = self.body.find_register(name, parts) or self.body.find_register(name)
                if found and found.width == 1 and not self._takes(type_, found.declared, exact):
                    raise Unsupported(f"'{operand}' is a register of .{found.declared} where .{type_.name} is expected")
                if not found:
                    self._check_variable(operand, type_)
            case tree.Index():
                self._check_variable(operand, type_)
            case tree.Number(text) | tree.Prefixed(_, tree.Number(text)):
                if not self._takes_constant(type_, text):
                    raise Unsupported(f"'{operand}' where .{type_.name} is expected")
            case _ if tree.is_constant(operand):
                if type_.is_float:
                    evaluate_float(operand, type_)
                elif not self._takes_constant(type_, "1"):
                    raise Unsupported(f"'{operand}' where .{type_.name} is expected")
            case tree.Expression((tree.Name(name, parts), *_), _):
                found = self.body.find_register(name, parts)
                if not found:
                    self._check_variable(operand, type_)
                else:
                    self._check_sum(operand, found, type_, exact)

    def _check_sum(self, operand: tree.Operand, found: CRegister, type_: PtxType, exact: bool) -> None:
        """Raise Unsupported for a register plus a constant, where ptxas does: for registers of type .f16, and for sizes
        as in `check`.
        """
        fits = type_.is_float or takes_constant(type_.name, "1")
        video = self.instruction.opcode[0] == "v" and self.instruction.opcode != "vote"
        fits &= found.declared != "f16" and not video
        fits &= not (type_.is_float and (found.declared[0] in "us" or found.declared == "f16x2"))
        if not fits or (exact and not self._takes(type_, found.declared, exact)):
            raise Unsupported(
                f"'{operand}', a sum with a register of .{found.declared}, where .{type_.name} is expected"
            )

    def _takes_constant(self, type_: PtxType, text: str) -> bool:
        """Return True if ptxas accepts a constant as an operand of this type."""
        plain = type_.name == "pred" and not {".bf16", ".bf16x2"}.isdisjoint(self.instruction.modifiers)
        return not plain and self.instruction.opcode not in _TAKE_NO_CONSTANT and takes_constant(type_.name, text)

    def _check_variable(self, operand: tree.Operand, type_: PtxType) -> None:
        """Raise Unsupported for the address of a variable, where ptxas rejects it."""
        opcode = self.instruction.opcode
        if not self.place(operand) or (opcode in _TAKE_VARIABLES and type_.name != "pred" and not type_.is_float):
            return
        if opcode in _TAKE_VARIABLES:
            raise Unsupported(f"'{operand}' is a variable, whose address isn't a .{type_.name}")
        raise Unsupported(f"'{operand}' is a variable: 'mov' its address to a register first")

    def _takes(self, type_: PtxType, declared: str, strict: bool = False) -> bool:
        """Return True if ptxas accepts a register as an operand of this type; see `check`."""
        opcode = self.instruction.opcode
        if strict and declared != type_.name and (declared in PACKED or TYPES[declared].bits > max(type_.bits, 64)):
            return False
        if opcode == "isspacep" and declared in ("b32", "u32", "s32") and type_.name == "u64":
            return True
        # with these modifiers, no opcode accepts larger registers
        exact = not {".bf16", ".async"}.isdisjoint(self.instruction.modifiers)
        exact |= opcode == "cvt" and len(self.operands) > 2 and ".pack" not in self.instruction.modifiers
        return takes("" if exact else opcode, type_.name, declared)

    def _read(self, slot: Slot, operand: tree.Operand) -> str:
        type_ = self.match.type_of(slot)
        if slot.count is None:
            return self.value(operand, type_)
        items = ", ".join(self.value(item, type_) for item in self.vector(operand, slot.count))
        return f"(({type_}[]){{{items}}})"

    def vector(self, operand: tree.Operand, count: int = 0) -> Sequence[tree.Operand]:
        """Return the elements of a vector. There must be `count` of them, unless that's 0. A scalar is its own
        element.
        """
        items = operand.items if isinstance(operand, tree.Vector) else (operand,)
        if isinstance(operand, tree.Name) and not operand.parts:
            special = f"{operand.name}.x" in SPECIAL  # a vector of four elements
            found = None if special else self.body.find_register(operand.name)
            width = 4 if special else found.width if found else 1
            if width > 1:
                items = tuple(tree.Name(operand.name, (f".{part}",)) for part in "xyzw"[:width])
        if count and len(items) != count:
            raise Unsupported(f"a vector of {len(items)}, not {count}")
        return items

    def value(self, operand: tree.Operand, type_: PtxType) -> str:
        """Return an operand as a C expression of a type. Raises Unsupported."""
        match operand:
            case tree.Number(text):
                return constant(text, type_)
            case tree.Prefixed(("!",), tree.Name(name, ())) if type_.name == "pred":
                return f"!{self.register(name).name}"
            case tree.Prefixed(("-",), tree.Number(text)) if type_.is_float:
                return f"(-{constant(text, type_)})"
            case tree.Name(name, parts):
                return self._name(name, parts, type_)
            case tree.Expression((tree.Name(name, ()), *_), (("+" | "-"), *_)) if self.body.find_place(name):
                return f"({type_})({self.address_of(operand)})"
            case tree.Expression((tree.Name(name, parts), *rest), ("+", *signs)) if self.body.find_register(
                name, parts
            ):
                return self._sum(self.register(name, parts), tree.Expression((_ZERO, *rest), ("+", *signs)), type_)
            case tree.Index(base, _) if self.body.find_place(base.name):
                return f"({type_})({self.address_of(operand)})"
            case _ if type_.is_float:
                return literal(evaluate_float(operand, type_), type_)
            case _ if type_.name == "pred":
                return str(int(evaluate(operand) != 0))
            case _:
                return literal(evaluate(operand), type_)

    def _sum(self, register: CRegister, added: tree.Expression, type_: PtxType) -> str:
        """Return a register plus a constant. ptxas accepts such operands, although they aren't in the PTX manual.

        Like the code that ptxas generates, this adds in at least 32 bits.
        """
        if register.type.is_float or register.type.name == "pred":
            raise Unsupported(f"a constant added to a register of .{register.declared}")
        if register.type.bits < 64 <= type_.bits:
            raise Unsupported(f"a constant added to a register of .{register.declared} where .{type_.name} is expected")
        sum_ = register.type if register.type.bits > 32 else TYPES["u32"]
        return convert(f"({sum_})({register.name} + {literal(evaluate(added), sum_)})", sum_, type_)

    def _name(self, name: str, parts: tuple[str, ...], type_: PtxType) -> str:
        if special := SPECIAL.get(name + "".join(parts)):
            return convert(special[1], TYPES[special[0]], type_)
        if name == "WARP_SZ":
            return literal(32, type_)
        if not parts and self.body.find_place(name):
            return f"({type_})({self.address_of(tree.Name(name))})"
        register = self.register(name, parts)
        return convert(register.name, register.type, type_)

    def register(self, name: str, parts: tuple[str, ...] = ()) -> CRegister:
        """Look up a register or a component of one. Raises Unsupported if it isn't declared."""
        found = self.body.find_register(name, parts)
        if not found and self.body.code.is_kernel(name):
            raise Unsupported(
                f"kernel '{name}' for cudaLaunchDevice: kernels cannot launch kernels here, see gpt-sim(7)"
            )
        if not found:
            raise Unsupported(f"'{name}{''.join(parts)}' is not a declared register")
        if found.width > 1:
            raise Unsupported(f"'{name}' is a vector")
        return found

    def assign(self, operand: tree.Operand, type_: PtxType, value: str) -> str:
        """Return a statement that assigns a value of a type to a register. For `_`, the value is only evaluated."""
        if operand == tree.Name("_"):
            return f"(void)({value});"
        if not isinstance(operand, tree.Name):
            raise Unsupported(f"'{operand}' as a result")
        register = self.register(operand.name, operand.parts)
        if register.type != type_:
            value = convert(f"({type_}){value if value[0] == '(' else f'({value})'}", type_, register.type)
        return f"{register.name} = {value};"

    def base(self, operand: tree.Operand) -> str:
        """Return the name at the beginning of an address or operand, or "" if there's no name."""
        first = operand.operands[0] if isinstance(operand, tree.Expression) else operand
        first = first.base if isinstance(first, tree.Index) else first
        return first.name if isinstance(first, tree.Name) else ""

    def place(self, operand: tree.Operand) -> CVariable | None:
        """Return the variable that an address or operand names, or None."""
        name = self.base(operand)
        return self.body.find_place(name) if name else None

    def address_of(self, operand: tree.Operand, least: int = 0) -> str:
        """Return an address (the operand inside the brackets) as a C expression of 64 bits.

        Raises Unsupported, also for a register of fewer than `least` bits.
        """
        match operand:
            case tree.Name(name, ()) if place := self.body.find_place(name):
                return place.address
            case tree.Name(_, (_, *_)):
                raise Unsupported(f"'{operand}', a part of a vector, as an address")
            case tree.Name(name, parts):
                found = self.body.find_register(name, parts)
                if found and (found.declared not in _ADDRESSES or found.type.bits < least):
                    raise Unsupported(f"'{operand}' of type .{found.declared} as an address")
                return self.value(operand, ADDRESS)
            case tree.Expression((tree.Name() as base, *rest), (("+" | "-") as sign, *signs)):
                if sign == "-":
                    raise Unsupported(f"'{base}-': PTX has '{base}+-' for that")
                offset = evaluate(tree.Expression((_ZERO, *rest), (sign, *signs)))
                return f"{self.address_of(base, least)} + {literal(offset, ADDRESS)}"
            case tree.Index(base, (tree.Address((index,)),)) if place := self.body.find_place(base.name):
                if not place.element:
                    raise Unsupported(f"'{base}' is not an array")
                return f"{place.address} + {self._subscript(index, place.element)}"
        return literal(evaluate(operand), ADDRESS)

    def _subscript(self, index: tree.Operand, size: int) -> str:
        """Return the offset of an array element of `size` bytes. A register that's an index is unsigned. The offset is
        computed with the width of the register, but at least 32 bits.
        """
        match index:
            case tree.Name(name, parts):
                added = 0
            case tree.Expression((tree.Name(name, parts), tree.Number() as number), ("+",)):
                added = evaluate(number)
            case _:
                return literal(evaluate(index) * size, ADDRESS)
        register = self.register(name, parts)
        wide = TYPES[f"u{max(register.type.bits, 32)}"]
        return f"({ADDRESS})({wide})((({wide}){register.name} + {literal(added, wide)}) * {size}u)"


def convert(value: str, given: PtxType, wanted: PtxType) -> str:
    """Convert an expression in C to another type. The bits of floats are kept; integers are truncated or extended."""
    if str(given) == str(wanted):
        return value
    if "pred" in (given.name, wanted.name):
        raise Unsupported(f"a predicate and .{given.name if wanted.name == 'pred' else wanted.name}")
    if given.is_float and wanted.is_float:
        raise Unsupported(f".{given.name} as .{wanted.name}")
    if wanted.is_float:
        return f"as_{wanted.name}({value})"
    return f"({wanted})bits_{given.name}({value})" if given.is_float else f"({wanted}){value}"


def _refuse_number(address: tree.Address) -> None:
    """Raise Unsupported for an address that begins with a number."""
    first = address.items[0] if address.items else None
    first = first.operands[0] if isinstance(first, tree.Expression) else first
    if isinstance(first, tree.Number | tree.Prefixed | tree.OperandGroup):
        raise Unsupported(f"'{address}' without a register or variable: only .local has such addresses")


def _number(item: tree.Operand) -> str:
    """Return the text of a constant without its sign, or of a constant with a kind. Return "" for everything else."""
    item = item.operand if isinstance(item, tree.Prefixed) else item
    if isinstance(item, tree.Expression | tree.OperandGroup) and tree.is_constant(item):
        item = item.operands[0] if isinstance(item, tree.Expression) else item.items[0]
        return _number(item)
    return "32" if item == tree.Name("WARP_SZ") else item.text if isinstance(item, tree.Number) else ""


def _kind(declared: str) -> str:
    """Return the kind of a type. All registers in a vector must have the same kind."""
    if declared in PACKED or declared == "pred":
        return declared
    return "float" if declared[0] == "f" else "integer"


def _are_integers(types: Sequence[PtxType]) -> bool:
    return bool(types) and all(type_.name[1:].isdecimal() and type_.name[0] in "bus" for type_ in types)


def _parts(operand: tree.Operand) -> list[tree.Operand]:
    """Split `p|q` into two operands. Other operands are returned as they are."""
    if isinstance(operand, tree.Expression) and set(operand.operators) == {"|"}:
        return list(operand.operands)
    return [operand]
