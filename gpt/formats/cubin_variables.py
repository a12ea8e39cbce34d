"""Find the variables of a cubin that a second copy of it must share with the first, once both are loaded.

Code gets the address of a variable in global memory from constant bank 4, where the driver puts it, as
`.rela.nv.constant4` says. In a second copy of a cubin, that would be the address of a second copy of the variable. So
`free_addresses` removes these relocations and stores the distance from the start of the variable instead; the loader of
the cubin adds the address of the right variable. The code doesn't change.

Some of the data that compilers add to a program's variables is only read: strings for printf and assert, and tables of
the math library. These aren't shared.

Variables in constant memory, which is bank 3, can't be shared, because they're read through their offset in the bank.
Their values are copied.

For any other reference to a variable, CannotEdit is raised: code that has an address in its instructions, or a constant
that contains the generic address of another one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np

from gpt.formats.code_moves import has_addends, iter_relocations
from gpt.formats.cubin import STT_OBJECT
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.elf import SHF_EXECINSTR

ADDRESS = 2  # R_CUDA_64, the relocation for a 64-bit address
STT_SECTION = 3
ADDRESSES, CONSTANTS = b".nv.constant4", b".nv.constant3"
ONLY_READ = b"$str", b"__unnamed_", b"__cudart_"  # prefixes of variables that are the compiler's own


class Variable(NamedTuple):
    """A variable: its name, its section, and its bytes there."""

    name: str
    section: int
    start: int
    size: int


class Freed(NamedTuple):
    """Eight bytes of a section that contain a distance from the start of a variable, to which its address must be
    added.
    """

    variable: Variable
    section: int
    offset: int


class Constant(NamedTuple):
    """A variable in constant memory. `holds_address` is True if its initial value contains an address, so that it isn't
    completely in the cubin.
    """

    variable: Variable
    holds_address: bool


class _Row(NamedTuple):
    """A relocation. The addend is None if it's in the place itself."""

    offset: int
    type: int
    symbol: int
    addend: int | None


def _rows(table: np.ndarray) -> Iterator[_Row]:
    addends = table["addend"].astype("<i8").tolist() if has_addends(table) else repeat(None, len(table))
    return map(_Row, *(table[key].tolist() for key in ("offset", "type", "symbol")), addends)


class Variables:
    """The variables of a cubin. Raises CannotEdit."""

    def __init__(self, cubin: CubinEditor) -> None:
        self._cubin = cubin
        self._names = {number: name for name, number in cubin.numbers.items()}
        strings = bytes(cubin.content(int(cubin.sections["link"][cubin.table])))
        symbols = cubin.symbols
        found = np.flatnonzero((symbols["info"] & 15 == STT_OBJECT) & (symbols["shndx"] != 0) & (symbols["size"] != 0))
        self._kinds, self._sections, self._starts = (symbols[key].tolist() for key in ("info", "shndx", "value"))
        columns = (symbols[key][found].tolist() for key in ("name", "shndx", "value", "size"))
        self._all = [Variable(_read_name(strings, name), *rest) for name, *rest in zip(*columns, strict=True)]
        self._at = dict(zip(found.tolist(), self._all, strict=True))
        self._ordered = sorted(self._all, key=lambda one: (*_place_of(one), one.size))

    def free_addresses(self, section: int) -> list[Freed]:
        """Remove the relocations in bank 4 that refer to shared variables. `section` has the code of the kernel."""
        self._check_code(section)
        freed: list[Freed] = []
        for number, target, table in list(iter_relocations(self._cubin)):
            if not self._name_of(target).startswith(ADDRESSES):
                continue
            kept = np.ones(len(table), bool)
            for index, one in enumerate(_rows(table)):
                found = self._find(one)
                if found is None or not self._is_shared(found[0]):
                    continue
                variable, distance = found
                if one.type != ADDRESS:
                    raise CannotEdit(f"the address of '{variable.name}' is needed in an unknown form")
                freed.append(self._free(variable, distance, target, one))
                kept[index] = False
            if kept.all():
                continue
            if kept.any():
                self._cubin.replace(number, table[kept].tobytes())
            else:
                self._cubin.remove([number])
        return freed

    def list_constants(self) -> list[Constant]:
        """Return the variables in constant memory."""
        number = self._cubin.numbers.get(CONSTANTS)
        if number is None:
            return []
        patched = sorted(at for _, _, table in iter_relocations(self._cubin, number) for at in table["offset"].tolist())
        return [
            Constant(one, bisect_right(patched, one.start - 8) < bisect_left(patched, one.start + one.size))
            for one in self._all
            if one.section == number
        ]

    def _name_of(self, section: int) -> bytes:
        return self._names.get(section, b"")

    def _is_shared(self, variable: Variable) -> bool:
        name = self._name_of(variable.section)
        if name.startswith(CONSTANTS):
            raise CannotEdit(
                f"it passes on the address of '{variable.name}' in constant memory, of which it has a copy"
            )
        return name.startswith(b".nv.global") and not variable.name.encode("utf-8", "surrogateescape").startswith(
            ONLY_READ
        )

    def _find(self, relocation: _Row) -> tuple[Variable, int] | None:
        """Return the variable to which a relocation refers, and the distance from its start, or None if it doesn't
        refer to a variable.
        """
        number, distance = relocation.symbol, relocation.addend or 0
        if number >= len(self._kinds):
            raise CannotEdit("a symbol beyond the symbol table is used")
        if number in self._at:
            return self._at[number], distance
        if self._kinds[number] & 15 != STT_SECTION:
            return None
        place = self._starts[number] + distance
        section = self._sections[number]
        before = bisect_right(self._ordered, (section, place), key=_place_of)
        one = self._ordered[before - 1] if before else None
        if one and one.section == section and place < one.start + one.size:
            return one, place - one.start
        if self._name_of(section).startswith((b".nv.global", CONSTANTS)):
            raise CannotEdit("it uses a variable without a name")
        return None

    def _free(self, variable: Variable, distance: int, target: int, relocation: _Row) -> Freed:
        offset, content = relocation.offset, self._cubin.editable(target)
        if offset % 8 or not 0 <= offset <= len(content) - 8:
            raise CannotEdit(f"the address of '{variable.name}' is needed at {offset:#x}")
        if relocation.addend is not None:
            struct.pack_into("<q", content, offset, distance)
        return Freed(variable, target, offset)

    def _check_code(self, section: int) -> None:
        """Raise CannotEdit if there are addresses in instructions of the kernel, or of functions that it may call."""
        for target, table in self._iter_code(section):
            for one in _rows(table):
                found = self._find(one)
                if found and self._name_of(found[0].section).startswith((b".nv.global", CONSTANTS)):
                    where = f"{one.offset:#x} of {self._name_of(target).decode('utf-8', 'replace')}"
                    raise CannotEdit(f"an instruction has the address of '{found[0].name}' in it, at {where}")

    def _iter_code(self, section: int) -> Iterator[tuple[int, np.ndarray]]:
        cubin = self._cubin
        kernels = {self._sections[number] for number in cubin.kernels.values()} - {section}
        for _, target, table in iter_relocations(cubin):
            is_code = cubin.sections["flags"][target] & SHF_EXECINSTR
            name = self._name_of(target)
            if target not in kernels and (is_code or name.startswith(b".nv.constant2")):
                yield target, table


def _place_of(variable: Variable) -> tuple[int, int]:
    return variable.section, variable.start


def _read_name(strings: bytes, start: int) -> str:
    end = strings.find(0, start)
    if end < 0:
        raise CannotEdit("a name without an end")
    return strings[start:end].decode("utf-8", "surrogateescape")
