"""Drop unused kernels from a cubin: remove their sections and everything that refers to them, but change no numbers.

Code that's filled with zeros (gpt/patch/trim.py) still takes memory when a cubin is loaded. Here, the sections of a
dropped function (`.text`, `.nv.info`, `.nv.constant0`, `.nv.shared`, relocations, and others with its name) become
empty headers of type 0, and the bytes after them move up. All other sections and symbols keep their numbers, so nothing
that refers to them by number has to be changed. The symbol of a dropped function becomes a copy of symbol 0. Its
entries are removed from the tables that list functions:

- `.nv.info` of the module: attributes {u8 4, u8 kind, u16 8, u32 symbol, u32 value} of the kinds in OF_SYMBOL;
- `.nv.callgraph` and `.nv.prototype`: pairs {u32 symbol, u32 other}; in the former, either may be the function;
- relocations of debug information.

Names of dropped functions are replaced by zeros, which compress to nothing. Then CubinEditor lays out the file again.
`KeptWhole` is raised if a cubin isn't laid out like the cubins that we know; in that case, its code is zeroed instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from gpt.base.errors import MalformedError
from gpt.formats.callgraph import (
    CALLGRAPH,
    EDGES,
    NVIDIA_INFO,
    PROTOTYPE,
    RELOCATION,
    SECTION,
    SHF_INFO_LINK,
    SHT_NULL,
    SYMBOL,
    TAKES_ADDRESS,
    CallGraph,
    Data,
    KeptWhole,
)
from gpt.formats.cubin import STT_FUNC, parse_cubin, section_headers
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_layout import CannotEdit, find_in_file
from gpt.formats.elf import SHF_ALLOC, SHT_SYMTAB
from gpt.formats.nvinfo import PAIR as SYMBOL_AND_VALUE
from gpt.formats.nvinfo import SIZED, iter_attributes

OF_SYMBOL = {0x11, 0x12, 0x23, 0x2F}  # frame size, minimum and maximum stack size, registers
SHT_STRTAB = 3
PAIR = np.dtype([("first", "<u4"), ("second", "<u4")])


def without(data: Data, code: Iterable[int]) -> bytes:
    """Return the cubin without the functions in these code sections. Raises KeptWhole.

    The sections must come from find_cut for the same cubin, which has checked that all tables are inside it.
    """
    try:
        return _Dropping(_Lists(data), set(code)).build()
    except CannotEdit as error:
        raise KeptWhole(error.fact) from None


def drop_kernels(data: Data, unused: set[str]) -> bytes:
    """Return a cubin without these kernels, and without what only they need. Raises KeptWhole and MalformedError."""
    return Dropper(data).drop(unused)


class Dropper:
    """Drops kernels from one cubin, any number of times. Its tables are read once. Raises KeptWhole and
    MalformedError.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._graph = CallGraph(data)

    def drop(self, unused: set[str]) -> bytes:
        """Do the work of drop_kernels."""
        dead = self._graph.cut(unused)
        if not dead.sections:
            return bytes(self._data)
        try:
            left = _Dropping(self._lists, set(dead.sections)).build()
        except CannotEdit as error:
            raise KeptWhole(error.fact) from None
        if fault := self._original.find_fault(left, dead.sections):
            raise KeptWhole(fault)
        return left

    @cached_property
    def _lists(self) -> _Lists:
        return _Lists(self._data)

    @cached_property
    def _original(self) -> _Original:
        return _Original(self._data)


def find_fault(before: Data, after: Data, code: Iterable[int]) -> str | None:
    """Check the output of `without`. Return what's wrong with it, or None.

    Every section that remains must have the same header, except for its offset and size, and the same bytes unless it
    lists functions. Everything that's missing must belong to `code`. Every kernel and function that remains must have
    its name and its size.
    """
    return _Original(before).find_fault(after, code)


class _Original:
    """A cubin with which its parts are compared."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._sections = sections = np.frombuffer(section_headers(data), SECTION)
        self._in_file = find_in_file(sections)
        types, flags = sections["type"], sections["flags"]
        self._lists = np.isin(types, (SHT_NULL, SHT_SYMTAB, SHT_STRTAB, CALLGRAPH, PROTOTYPE))  # change in any case
        self._lists |= (types == NVIDIA_INFO) & (flags & SHF_INFO_LINK == 0)
        for number in np.flatnonzero(np.isin(types, list(RELOCATION))).tolist():
            self._lists[number] |= not flags[sections["info"][number]] & SHF_ALLOC

    def find_fault(self, after: Data, code: Iterable[int]) -> str | None:
        """Do the work of find_fault."""
        old, new = self._sections, np.frombuffer(section_headers(after), SECTION)
        if len(old) != len(new):
            return "sections are missing"
        missing = (old["type"] != SHT_NULL) & (new["type"] == SHT_NULL)
        gone = np.flatnonzero(missing).tolist()
        owners = dict(zip(gone, old["info"][missing].tolist(), strict=True))
        cut = set(code)
        for number, owner in owners.items():
            if number not in cut and owner not in cut and owners.get(owner) not in cut:
                return f"section {number} is missing, but isn't part of the dropped code"
        if not cut <= set(gone):
            return "a dropped code section is still in it"
        changed = np.zeros(len(old), bool)
        for name in SECTION.names or ():
            if name not in ("offset", "size"):
                changed |= old[name] != new[name]
        for number in np.flatnonzero(~missing & (changed | ~self._lists)).tolist():
            if changed[number]:
                return f"the header of section {number} changed"
            a, b = old[number], new[number]
            if a["size"] != b["size"] or (self._in_file[number] and _bytes(self._data, a) != _bytes(after, b)):
                return f"section {number} changed"
        (table,) = np.flatnonzero(old["type"] == SHT_SYMTAB).tolist()
        symbols = np.frombuffer(_bytes(self._data, old[table]), SYMBOL)
        left = np.frombuffer(_bytes(after, new[table]), SYMBOL)
        if (
            len(symbols) != len(left)
            or ((symbols != left) & (~np.isin(symbols["shndx"], gone) | (left["info"] != 0))).any()
        ):
            return "the symbol table changed"
        try:
            was, now = self._names, parse_cubin(after)
        except MalformedError as error:
            return error.fact
        names = [symbol["name"] for symbol in now.kernels + now.functions]
        kept = symbols[(symbols == left) & (symbols["info"] & 15 == STT_FUNC) & (symbols["shndx"] != 0)]
        return "names of functions changed" if len(names) != len(kept) or not set(names) <= was else None

    @cached_property
    def _names(self) -> set[str]:
        was = parse_cubin(self._data)
        return {symbol["name"] for symbol in was.kernels + was.functions}


def _bytes(data: Data, row: np.void) -> bytes:
    return bytes(memoryview(data)[int(row["offset"]) : int(row["offset"]) + int(row["size"])])


class _Lists:
    """The tables of a cubin that list functions, and what's known about them before anything is dropped."""

    def __init__(self, data: Data) -> None:
        self.cubin = CubinEditor(data)
        sections = self.cubin.original
        is_list = (sections["type"] == NVIDIA_INFO) & (sections["flags"] & SHF_INFO_LINK == 0)
        is_list |= np.isin(sections["type"], [CALLGRAPH, PROTOTYPE, *RELOCATION])
        self.numbers: list[int] = np.flatnonzero(is_list).tolist()
        self._entries: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def entries_of(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the size of each entry in a `.nv.info`, and its symbol, or -1 if it has none."""
        found = self._entries.get(number)
        if found is None:
            entries = list(self._iter_entries(self.cubin.content(number), len(self.cubin.symbols)))
            table = np.array(entries, np.int64).reshape(-1, 2)
            found = self._entries[number] = table[:, 0], table[:, 1]
        return found

    def _iter_entries(self, content: Data, symbols: int) -> Iterator[tuple[int, int]]:
        try:
            for entry in list(iter_attributes(content)):
                symbol = -1
                if entry.form == SIZED:
                    if entry.kind not in OF_SYMBOL or len(entry.payload) != SYMBOL_AND_VALUE.size:
                        raise KeptWhole(f"attribute {entry.kind:#x} of the module is not understood")
                    symbol, _ = SYMBOL_AND_VALUE.unpack(entry.payload)
                    if symbol >= symbols:
                        raise KeptWhole("a symbol beyond the symbol table is used")
                yield entry.end - entry.at, symbol
        except MalformedError:
            raise KeptWhole("attributes of the module end within an entry") from None


class _Dropping:
    """Drops code sections from a cubin."""

    def __init__(self, lists: _Lists, code: set[int]) -> None:
        self.lists = lists
        self.cubin = lists.cubin.fork()
        self.sections = self.cubin.sections
        self.gone = self._owned(code)
        self.symbols = self.cubin.symbols
        self.lost = np.isin(self.symbols["shndx"], sorted(self.gone)) & (self.symbols["shndx"] != 0)

    def build(self) -> bytes:
        """Do the work of without."""
        self._edit_lists()
        self._edit_names()
        self.symbols[self.lost] = np.zeros(1, SYMBOL)
        self.cubin.remove(self.gone)
        return self.cubin.build(tight=True)

    def _owned(self, code: set[int]) -> set[int]:
        """Return the code sections, the sections that belong to them, and the relocations of all these."""
        gone = set(code)
        for _ in range(2):
            linked = np.isin(self.sections["info"], sorted(gone)) & (self.sections["info"] != 0)
            linked &= self.sections["flags"] & SHF_INFO_LINK != 0
            gone |= set(np.flatnonzero(linked).tolist())
        return gone

    def _edit_lists(self) -> None:
        """Remove the dropped functions from tables that list functions."""
        for number in self.lists.numbers:
            if number in self.gone:
                continue
            row = self.sections[number]
            type_, content = int(row["type"]), self.cubin.content(number)
            size = len(content)
            if type_ == NVIDIA_INFO:
                content = self._attributes(number, content)
            elif type_ in (CALLGRAPH, PROTOTYPE):
                content = self._pairs(content, type_ == CALLGRAPH)
            else:
                entries = _entries(content, RELOCATION[type_])
                if len(entries) and int(entries["symbol"].max()) >= len(self.symbols):
                    raise KeptWhole("a symbol beyond the symbol table is used")
                lost = self.lost[entries["symbol"]]
                if lost.any() and self.sections["flags"][int(row["info"])] & SHF_ALLOC:
                    raise KeptWhole("a kept section refers to a dropped one")
                content = entries[~lost].tobytes()
            if len(content) != size:
                self.cubin.replace(number, bytes(content))

    def _attributes(self, number: int, content: Data) -> bytes:
        sizes, symbols = self.lists.entries_of(number)
        stays = (symbols < 0) | ~self.lost[symbols]
        left: bytes = np.frombuffer(content, np.uint8)[np.repeat(stays, sizes)].tobytes()
        return left

    def _pairs(self, content: Data, graph: bool) -> bytes:
        pairs = _entries(content, PAIR)
        lost = self._is_lost(pairs["first"])
        if graph:
            marks = (pairs["first"] == 0) & (pairs["second"] >= TAKES_ADDRESS)
            group = pairs["second"][marks][np.cumsum(marks) - 1]  # find_cut checked that the first pair begins one
            lost |= np.isin(group, [mark for mark, edges in EDGES.items() if edges]) & self._is_lost(pairs["second"])
            lost &= ~marks
        out: bytes = pairs[~lost].tobytes()
        return out

    def _is_lost(self, numbers: np.ndarray) -> np.ndarray:
        """Return which of these symbol numbers are dropped. Numbers may be out of range."""
        lost: np.ndarray = (numbers < len(self.lost)) & self.lost[np.minimum(numbers, len(self.lost) - 1)]
        return lost

    def _edit_names(self) -> None:
        """Replace names that no remaining section or symbol has by zeros."""
        stay = np.ones(len(self.sections), bool)
        stay[sorted(self.gone)] = False
        (shstrndx,) = struct.unpack_from("<H", self.cubin.data, 62)
        table = self.cubin.table
        used: dict[int, list[int]] = {shstrndx: self.sections["name"][stay].tolist()}
        used.setdefault(int(self.sections["link"][table]), []).extend(self.symbols["name"][~self.lost].tolist())
        for number, starts in used.items():
            if not 0 < number < len(self.sections):
                raise KeptWhole("the section names are missing")
            others = np.flatnonzero(stay & (self.sections["link"] == number)).tolist()
            if set(others) - {table}:
                raise KeptWhole("another section shares a string table with the symbols or section names")
            self.cubin.replace(number, _only(bytes(self.cubin.content(number)), starts))


def _entries(content: Data, dtype: np.dtype) -> np.ndarray:
    if len(content) % dtype.itemsize:
        raise KeptWhole("a table ends within an entry")
    return np.frombuffer(content, dtype)


def _only(names: bytes, starts: list[int]) -> bytes:
    """Return a string table with only the strings at these offsets. Everything else is replaced by zeros."""
    out = bytearray(len(names))
    room = 2 * len(names) + (1 << 16)  # strings may share their ends
    for start in set(starts):
        end = names.find(0, start)
        room -= end - start
        if end < 0 or room < 0:
            raise KeptWhole("names overlap")
        out[start:end] = names[start:end]
    return bytes(out)
