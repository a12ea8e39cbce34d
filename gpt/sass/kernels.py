"""The kernels of a cubin as code: their instructions, registers and jump tables, and other facts that belong to code.

Everything is read with `gpt.formats.kernel_edit`, which also writes it later.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpt.base.errors import MalformedError
from gpt.formats.code_moves import has_addends, iter_relocations
from gpt.formats.cubin import STT_FUNC
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.elf import SHF_EXECINSTR
from gpt.formats.kernel_edit import MAXREG_COUNT, KernelEditor
from gpt.formats.nvinfo import iter_attributes
from gpt.sass.code import Code, Instruction
from gpt.sass.flow import Flights, in_flight_before
from gpt.sass.graph import Graph, make_graph
from gpt.sass.jump_tables import read_jump_tables
from gpt.sass.live import Live, live_before
from gpt.sass.masks import EVERY_REGISTER, STARTS
from gpt.sass.stalls import find_longest, iter_late
from gpt.sass.tables import Table
from gpt.sass.words import SIZE, bits, opcode_of

RESERVED = 2  # registers in a kernel's count that the hardware reserves
EXITS, BARRIERS = 0x1C, 0x4C  # attributes of `.nv.info.K`: offsets of EXITs, u32 each; the number of barriers
FRAME, STACK = 0x11, 0x12  # attributes of the module by symbol: bytes of its own frame; of everything it calls, too
_USETMAXREG = 0x9C8  # the number is in the word, at bit 32
_ENDS = {b"__assertfail"}  # functions that end the kernel
_NO_CODE = {*_ENDS, b".nv.reservedSmem.offset0"}  # undefined symbols whose code never returns
_LDC, _MOV, _RZ = 0xB82, 0x802, 255  # LDC R, c[BANK][R+offset] and MOV R, number
_ADDRESSES = 4  # the bank that has functions' addresses
_SOMEWHERE = -1  # in that bank
_GENERAL = (1 << 255) - 1
_UNIFORM = EVERY_REGISTER & (1 << STARTS.P) - (1 << STARTS.UR)


@dataclass(frozen=True)
class Kernel:
    """A kernel's code. Its instructions only name registers below `registers`."""

    name: str
    code: Code
    registers: int
    jump_tables: Mapping[int, frozenset[int]]  # offset of an indirect branch -> offsets of its targets
    elsewhere: int = EVERY_REGISTER  # registers named by code in other sections that it may call
    returns: bool = True  # code outside that it calls may return
    base: Kernel | None = field(default=None, repr=False)  # this kernel with its original control parts
    changed: Mapping[int, int] = field(default_factory=dict, repr=False)  # the words that differ from the base's
    _variants: dict[frozenset[tuple[int, int]], Kernel] = field(default_factory=dict, repr=False, compare=False)
    _late: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict, repr=False, compare=False)

    def with_controls(self, changed: Mapping[int, int]) -> Kernel:
        """Return the same kernel with other control parts for some words. The same changes return the same object,
        whose analyses are cached.
        """
        base = self.base or self
        changed = {**self.changed, **changed}
        key = frozenset(changed.items())
        found = base._variants.get(key)
        if found is None:
            code = base.code.with_controls(changed)
            found = base._variants[key] = replace(base, code=code, base=base, changed=changed, _variants={}, _late={})
        return found

    @cached_property
    def jump_targets(self) -> frozenset[int]:
        """All offsets that indirect branches lead to."""
        return frozenset().union(*self.jump_tables.values())

    @cached_property
    def graph(self) -> Graph:
        """The control flow of the code. Raises UnboundedError."""
        return self.base.graph if self.base else make_graph(self.code, self.jump_tables)

    @cached_property
    def live(self) -> Live:
        """The registers that are live before each instruction. Raises UnboundedError."""
        return self.base.live if self.base else live_before(self.code, self.graph)

    @cached_property
    def flight(self) -> Flights:
        """The state of the scoreboards before each instruction; None if it's unreachable. Raises UnboundedError."""
        return in_flight_before(self.code, self.graph)

    def find_late(self, index: int) -> tuple[tuple[int, int], ...]:
        """Return the results that may be missing after a branch that replaces an instruction (stalls.py)."""
        found = self._late.get(index)
        if found is None:
            found = self._late[index] = tuple(iter_late(self.code, self.graph, index, self._longest))
        return found

    @cached_property
    def _longest(self) -> int:
        return self.base._longest if self.base else find_longest(self.code)

    @cached_property
    def named(self) -> int:
        """The registers that are named by the kernel's instructions, reachable or not, and by the functions that it
        calls.
        """
        if self.base:
            return self.base.named
        found = self.elsewhere if self.graph.calls_out else 0
        for _, masks in self.code.distinct:
            found |= masks.reads | masks.writes
        return found

    @cached_property
    def steady(self) -> int:
        """Uniform registers that only fixed-latency instructions read and write.

        A part of a warp therefore never leaves one of them in flight, even if the hardware switches to another part.
        """
        if self.base:
            return self.base.steady
        found = self.named & _UNIFORM & ~(self.elsewhere if self.graph.calls_out else 0)
        for opcode, masks in self.code.distinct:
            if opcode.variable:
                found &= ~(masks.reads | masks.writes)
        return found

    @cached_property
    def kept(self) -> int:
        """The number of registers that it has throughout: fewer than `registers` if warps give some back.

        USETMAXREG does that (PTX: setmaxnreg). Its number of remaining registers includes the two that the hardware
        reserves.
        """
        words = [self.code.words[index] for index in self.code.find({"USETMAXREG"})]
        counts = [bits(word, 32, 32) - RESERVED if opcode_of(word) == _USETMAXREG else 0 for word in words]
        return max(0, min([self.registers, *counts]))

    @cached_property
    def has_usual_entry(self) -> bool:
        """True if it begins by loading the stack pointer, and nothing jumps back there."""
        first = self.code[0]
        loads = first.name == self.code.table.arch.entry and first.writes.R == 1 << 1
        return loads and first.guard.always and 0 not in self.code.targets | self.jump_targets


def read_kernel(cubin: CubinEditor, name: str, table: Table, like: Code | None = None) -> Kernel:
    """Read a kernel. Raises MalformedError, CannotEdit if the cubin isn't understood, and UnknownOpcodeError.

    If its code hardly differs from `like`, this takes less time.
    """
    editor = KernelEditor(cubin, name)
    registers = max(0, editor.registers - RESERVED)
    code = Code(editor.code, table, like)
    if like:
        code.borrow(like)
    tables = read_jump_tables(editor.info)
    elsewhere, returns = EVERY_REGISTER, True
    if code.find({"CALL"}):
        returns = not _calls_only_ends(cubin, code, code.targets.union(*tables.values()))
        elsewhere = _named_elsewhere(cubin, table) if returns else 0  # this takes time
    return Kernel(name, code, registers, tables, elsewhere, returns)


def _calls_only_ends(cubin: CubinEditor, code: Code, targets: Collection[int]) -> bool:
    """Return whether every function that the kernel calls in other sections ends the kernel.

    ptxas loads such a function's address from constant bank 4, right before the call.
    """
    ends = {cubin.undefined[end] for end in _ENDS if end in cubin.undefined}
    number = cubin.numbers.get(b".nv.constant4")
    tables = [table for _, _, table in iter_relocations(cubin, number)] if number is not None else []
    places: set[int] = set()
    code_symbols: set[int] = set()
    for table in tables:
        code_symbols |= _find_code(cubin, table["symbol"])
        if ends:
            rows = zip(table["offset"].tolist(), table["symbol"].tolist(), strict=True)
            places.update(offset for offset, symbol in rows if symbol in ends)
    if not code_symbols - ends:
        places.add(_SOMEWHERE)
    outside = [index for index in code.find({"CALL"}) if code[index].target is None]
    return all(_find_address(code, index, targets) in places for index in outside)


def _find_code(cubin: CubinEditor, numbers: np.ndarray) -> set[int]:
    """Return which symbols may be code. Numbers beyond the symbol table may be."""
    beyond = numbers >= len(cubin.symbols)
    symbols = cubin.symbols[np.where(beyond, 0, numbers)]
    found: list[int] = numbers[beyond | (symbols["shndx"] == 0) | (symbols["info"] & 15 == STT_FUNC)].tolist()
    return set(found)


def _find_address(code: Code, index: int, targets: Collection[int]) -> int | None:
    """Return the offset of a CALL's address in constant bank 4, or None if it may come from elsewhere."""
    load = _find_writer(code, index, code.masks[index].reads & _GENERAL, targets)
    if load is None or load.opcode != _LDC or bits(load.word, 54, 5) != _ADDRESSES:
        return None
    offset, register = 4 * bits(load.word, 40, 14), bits(load.word, 24, 8)
    if register == _RZ:
        return offset
    move = _find_writer(code, load.index, 1 << register, targets)
    return offset + bits(move.word, 32, 32) if move is not None and move.opcode == _MOV else _SOMEWHERE


def _find_writer(code: Code, index: int, mask: int, targets: Collection[int]) -> Instruction | None:
    """Return the instruction that certainly wrote all these registers last, or None if there may be others."""
    for before in range(index - 1, -1, -1):
        one = code[before]
        if SIZE * (before + 1) in targets or one.name == "CALL":
            return None
        if one.masks.writes & mask:
            return one if not mask & one.masks.keeps else None
    return None


def _named_elsewhere(cubin: CubinEditor, table: Table) -> int:
    """Return the registers named by functions in separate sections, which any kernel may call.

    If the kernel may call another file or the driver (printf), these are all registers. __assertfail never returns, so
    it does no harm.
    """
    if cubin.undefined.keys() - _NO_CODE:
        return EVERY_REGISTER
    symbols, found = cubin.symbols, 0
    kernels = {int(symbols["shndx"][number]) for number in cubin.kernels.values()}
    functions = symbols[(symbols["info"] & 15) == STT_FUNC]["shndx"]
    for section in {int(number) for number in functions} - kernels - {0}:
        if section < len(cubin.sections) and cubin.sections["flags"][section] & SHF_EXECINSTR:
            for masks in Code(cubin.content(section), table).masks:
                found |= masks.reads | masks.writes
    return found


class Relocation(NamedTuple):
    """A place in a kernel's code that the driver fills in: an offset, and the symbol and number that go there."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Facts:
    """The numbers that the file has for a kernel's code."""

    registers: int  # the number in the file: the highest register + 3
    in_section: int  # the same number in the section's header, up to ELF ABI 7; 0 if it isn't there
    bound: int | None  # the file's limit on it, if there is one
    exits: tuple[int, ...]  # offsets of EXITs
    barriers: int
    frame: int
    stack: int
    flags: int  # the section's flags
    relocations: tuple[Relocation, ...]  # in order


def read_facts(cubin: CubinEditor, name: str) -> Facts:
    """Read what the file says about a kernel's code. Raises MalformedError, and CannotEdit if it isn't understood."""
    editor = KernelEditor(cubin, name)
    exits: tuple[int, ...] = ()
    barriers = 0
    bound = None
    for entry in iter_attributes(editor.info):
        if entry.kind == EXITS:
            if len(entry.payload) % 4:
                raise MalformedError("cubin: a list of exits ends within an entry")
            exits = struct.unpack(f"<{len(entry.payload) // 4}I", entry.payload)
        elif entry.kind == BARRIERS:
            barriers = entry.value
        elif entry.kind == MAXREG_COUNT:
            bound = entry.value
    frame, stack = (cubin.find_pair(kind, editor.symbol) or 0 for kind in (FRAME, STACK))
    flags, info = (int(cubin.sections[field][editor.section]) for field in ("flags", "info"))
    relocations = tuple(sorted(_iter_relocations(cubin, editor.section)))
    return Facts(editor.registers, info >> 24, bound, exits, barriers, frame, stack, flags, relocations)


def _iter_relocations(cubin: CubinEditor, section: int) -> Iterator[Relocation]:
    for _, _, table in iter_relocations(cubin, section):
        addends = table["addend"] if has_addends(table) else [0] * len(table)
        for one, addend in zip(table, addends, strict=True):
            yield Relocation(int(one["offset"]), int(one["type"]), int(one["symbol"]), int(addend))
