"""Edit a cubin: replace the contents of sections, remove sections, and lay out the file again.

A cubin is full of indexes and offsets. Symbols, `.nv.info`, relocations and the call graph refer to sections and
symbols by index; section headers and segments refer to bytes by file offset. So an edit keeps all indexes (a removed
section becomes an empty header of type 0), and `build` recomputes all file offsets (cubin_layout.py). A cubin without
edits is reproduced byte for byte.

    cubin = CubinEditor(data)
    kernel = KernelEditor(cubin, "_Z3onePf")     # kernel_edit.py
    at = kernel.append(code)                      # .text grows; offset of the new code
    parameter = add_parameter(kernel)             # kernel_params.py
    kernel.set_registers(kernel.registers + 2)
    new = cubin.build()

The editors raise CannotEdit or MalformedError if they don't understand a part of the file, or if it's outside the file.
Contents are copied only when they're edited.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property

import numpy as np

from gpt.base.errors import GptError
from gpt.formats import elftables
from gpt.formats.cubin import STO_CUDA_ENTRY, STT_FUNC, Data, section_headers
from gpt.formats.cubin_layout import SECTION, CannotEdit, Layout
from gpt.formats.elf import SHT_SYMTAB
from gpt.formats.nvinfo import COUNTS, PAIR, iter_attributes
from gpt.formats.symbols import SPACE

SYMBOL = elftables.SYMBOL.dtype
MAX_SECTIONS = 0xFF00  # beyond this, section numbers of symbols are stored elsewhere


class CubinEditor:
    """A cubin that's being edited. You may change the section headers in `sections`, except their offsets and sizes."""

    def __init__(self, data: Data) -> None:
        self.data = memoryview(data)
        self.original = np.frombuffer(section_headers(data), SECTION)
        if len(self.original) >= MAX_SECTIONS:
            raise CannotEdit(f"{len(self.original)} sections")
        self.sections = self.original.copy()
        self._layout = Layout(self.data, self.original)
        self.in_file = self._layout.in_file
        self._contents: dict[int, bytes | bytearray] = {}
        self._torn = ""

    def fork(self) -> CubinEditor:
        """Return another editor for the same file. Raises ValueError if this one has edits."""
        if any(content != bytes(self._layout.content(number)) for number, content in self._contents.items()):
            raise ValueError("can't fork an edited cubin")
        other = copy(self)
        other.sections, other._contents = self.original.copy(), {}
        other.__dict__.pop("symbols", None)  # a view of the edited bytes
        return other

    def content(self, number: int) -> Data:
        """Return the bytes of a section, with edits. Empty if it has no bytes in the file."""
        if number in self._contents:
            return self._contents[number]
        return self._layout.content(number)

    def editable(self, number: int) -> bytearray:
        """Return the bytes of a section, to be changed in place or extended. It must have bytes in the file."""
        content = self._contents.get(number)
        if not isinstance(content, bytearray):
            content = bytearray(self.content(number))
            self.replace(number, content)
        return content

    def replace(self, number: int, content: bytes | bytearray) -> None:
        """Replace the bytes of a section by any number of bytes. It must have bytes in the file."""
        if not self.in_file[number]:
            raise CannotEdit(f"section {number} has no bytes in the file")
        self._contents[number] = content

    def remove(self, numbers: Collection[int]) -> None:
        """Remove sections. Their indexes remain, with empty headers."""
        self.sections[list(numbers)] = np.zeros(1, SECTION)
        self._contents |= dict.fromkeys(numbers, b"")

    @cached_property
    def table(self) -> int:
        """The number of the symbol table."""
        tables = np.flatnonzero(self.original["type"] == SHT_SYMTAB).tolist()
        if len(tables) != 1:
            raise CannotEdit(f"{len(tables)} symbol tables")
        if not 0 < int(self.original["link"][tables[0]]) < len(self.original):
            raise CannotEdit("a symbol table without names")
        return int(tables[0])

    @cached_property
    def symbols(self) -> np.ndarray:
        """The symbol table, to change in place."""
        return table_of(self.editable(self.table), SYMBOL)

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        """Map the name of each section to its index. If several sections share a name, it's the index of the first."""
        (shstrndx,) = struct.unpack_from("<H", self.data, 62)
        if shstrndx >= len(self.original):
            raise CannotEdit("the section names are missing")
        return self._numbers(shstrndx, range(len(self.original)), self.original["name"])

    @cached_property
    def info_pairs(self) -> dict[tuple[int, int], list[int]]:
        """Map an attribute and the index of a function's symbol to the offsets of the count in the module's `.nv.info`.
        ptxas 12.4 writes some counts twice.
        """
        number = self.numbers.get(b".nv.info")
        found: dict[tuple[int, int], list[int]] = {}
        values: dict[tuple[int, int], int] = {}
        for entry in iter_attributes(self.content(number)) if number is not None else ():
            if entry.kind in COUNTS and len(entry.payload) == PAIR.size:
                symbol, value = PAIR.unpack_from(entry.payload)
                if values.setdefault((entry.kind, symbol), value) != value:
                    raise CannotEdit(f"attribute {entry.kind:#x} has two values for one function")
                found.setdefault((entry.kind, symbol), []).append(entry.end - 4)
        return found

    def find_pair(self, kind: int, symbol: int) -> int | None:
        """Return a count in the module's `.nv.info`, or None if it isn't there."""
        places = self.info_pairs.get((kind, symbol))
        if not places:
            return None
        (value,) = struct.unpack_from("<I", self.content(self.numbers[b".nv.info"]), places[0])
        return int(value)

    def write_pair(self, kind: int, symbol: int, value: int) -> None:
        """Change a count in the module's `.nv.info`. Raises KeyError if it isn't there."""
        for at in self.info_pairs[kind, symbol]:
            struct.pack_into("<I", self.editable(self.numbers[b".nv.info"]), at, value)

    @cached_property
    def kernels(self) -> dict[bytes, int]:
        """The symbol number of each kernel, by name."""
        symbols = self.symbols
        found = (symbols["info"] & 15 == STT_FUNC) & (symbols["other"] & STO_CUDA_ENTRY != 0) & (symbols["shndx"] != 0)
        numbers = np.flatnonzero(found)
        self._check_sharing(symbols["shndx"][numbers])
        return self._numbers(int(self.original["link"][self.table]), numbers.tolist(), symbols["name"][numbers])

    def _check_sharing(self, sections: np.ndarray) -> None:
        """Raise CannotEdit if reading each kernel in these sections would take far more time than the file is long."""
        sizes = np.where(self.in_file, self.original["size"], 0)
        code = sum(sizes[sections[sections < len(sizes)]].tolist())
        if code > len(self.data) or sum(sizes.tolist()) > SPACE + 2 * len(self.data):
            raise CannotEdit("kernels share their bytes")

    @cached_property
    def undefined(self) -> dict[bytes, int]:
        """Map the names of symbols that another file or the driver defines to their indexes."""
        symbols = self.symbols
        numbers = np.flatnonzero((symbols["shndx"] == 0) & (symbols["name"] != 0))
        return self._numbers(int(self.original["link"][self.table]), numbers.tolist(), symbols["name"][numbers])

    def _numbers(self, strings: int, numbers: Iterable[int], starts: np.ndarray) -> dict[bytes, int]:
        names = bytes(self.content(strings))
        room = SPACE + 2 * len(self.data)  # malicious names may share bytes
        out: dict[bytes, int] = {}
        seen: set[int] = set()
        for number, start in zip(numbers, starts.tolist(), strict=True):
            if start in seen:  # such as the empty headers of removed sections
                continue
            seen.add(start)
            end = names.find(0, start)
            room -= end - start
            if end < 0 or room < 0:
                raise CannotEdit("a name without an end" if end < 0 else "names overlap")
            out.setdefault(names[start:end], number)
        return out

    @contextmanager
    def whole_edit(self) -> Iterator[None]:
        """Edit several tables together. If that fails in between, the old contents are lost, and `build` raises
        CannotEdit.
        """
        try:
            yield
        except GptError as error:
            self._torn = error.fact
            raise

    def build(self, *, tight: bool = False) -> bytes:
        """Return the edited cubin. With `tight`, bytes to which nothing refers are left out."""
        if self._torn:
            raise CannotEdit(f"an edit failed halfway: {self._torn}")
        return self._layout.build(self.sections, self._contents, tight)


def table_of(content: Data, dtype: np.dtype) -> np.ndarray:
    """Return the entries of a table. Raises CannotEdit if the last one is incomplete."""
    if len(content) % dtype.itemsize:
        raise CannotEdit("a table ends within an entry")
    return np.frombuffer(content, dtype)
