"""Find the code in a cubin that only its unused kernels need.

A kernel or device function is a code section, `.text.NAME`. Two tables show which functions it needs:

- relocations of its code, and of constants that belong to it: calls, and addresses that it takes;
- `.nv.callgraph`: pairs of symbols in four groups, each of which begins with a pair (0, -N): (1) caller and callee, (2)
  functions whose address is taken, each with a prototype, (3) callers through a pointer, each with a prototype, (4)
  which function takes the address of which. We learned this from cubins of our own and from cuobjdump.

Device code that isn't linked with other code has a copy of each function in the section of every kernel.

All code that can be reached from a used kernel through either table is kept, and so is all code that no kernel reaches.
The rest is dead.

`KeptWhole` says why a cubin is left alone: variables shared by all kernels hold addresses of functions, tables
contradict each other, or something isn't understood. That includes Mercury code (sm_100 and later), which is stored
next to the code, and which we have never tried to cut. Tables are read only once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpt.base.errors import MalformedError
from gpt.formats import elf, elftables
from gpt.formats.cubin import STO_CUDA_ENTRY, STT_FUNC, section_headers
from gpt.formats.cubin_layout import find_in_file
from gpt.formats.elf import SHDR_SIZE, SHF_ALLOC, SHF_EXECINSTR, SHT_REL, SHT_RELA, SHT_SYMTAB
from gpt.formats.symbols import SPACE

Span = tuple[int, int]
Data = bytes | bytearray | memoryview

EXECUTABLE = 2  # e_type of linked code
SHT_NULL, SHT_PROGBITS = 0, 1
SHF_INFO_LINK = 0x40
MAX_SECTIONS = 0xFF00  # beyond this, section numbers of symbols are stored elsewhere
NVIDIA_INFO, CALLGRAPH, PROTOTYPE = 0x70000000, 0x70000001, 0x70000002
CALL, ADDRESS_TAKEN, CALL_THROUGH, TAKES_ADDRESS = (1 << 32) - 1, (1 << 32) - 2, (1 << 32) - 3, (1 << 32) - 4
EDGES = {CALL: True, ADDRESS_TAKEN: False, CALL_THROUGH: False, TAKES_ADDRESS: True}  # group -> whether it has edges
NVIDIA = {  # NVIDIA's types of sections that are read here, or that don't affect what can be reached
    NVIDIA_INFO, CALLGRAPH, PROTOTYPE, 0x70000007, 0x70000008, 0x70000009, 0x7000000A, 0x7000000B, 0x70000086,
    *range(0x70000064, 0x70000076),
}  # fmt: skip
GENERIC = set(range(12))  # types of sections in any ELF file

SECTION, SYMBOL = elftables.SECTION.dtype, elftables.SYMBOL.dtype
RELOCATION = {SHT_REL: elftables.REL.dtype, SHT_RELA: elftables.RELA.dtype}


class KeptWhole(Exception):
    """Raised if nothing is cut from a cubin. The message says why."""


@dataclass(frozen=True)
class DeadCode:
    """The dead code in a cubin: its byte ranges, sorted, and how many kernels and device functions are in them.

    `sections` are the numbers of all dead code sections, including sections that are already filled with zeros.
    """

    spans: list[Span]
    kernels: int
    functions: int
    sections: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Return the bytes of code."""
        return sum(end - start for start, end in self.spans)


def find_cut(data: Data, unused: set[str]) -> DeadCode:
    """Find the code that only kernels in `unused` need, except code that's already zeroed. Raises KeptWhole,
    MalformedError.
    """
    return CallGraph(data).cut(unused)


class CallGraph:
    """The tables of a cubin, for any number of cuts. `code` has the numbers of code sections, and `edges` the sections
    that each of them needs.
    """

    def __init__(self, data: Data) -> None:
        self.data = memoryview(data)
        self.sections = np.frombuffer(section_headers(data), SECTION)
        if int.from_bytes(self.data[16:18], "little") != EXECUTABLE:
            raise KeptWhole("relocatable code")
        if len(self.sections) >= MAX_SECTIONS:
            raise KeptWhole(f"{len(self.sections)} sections")
        for type_ in sorted(set(self.sections["type"].tolist())):
            if type_ not in GENERIC and type_ not in NVIDIA:
                raise KeptWhole(f"sections of type {type_:#x} are not understood")
        self.room = SPACE + 2 * len(self.data)  # limit for the bytes of tables, because malicious tables may overlap
        self.is_code = np.zeros(1 << 16, bool)  # by section number
        flags, types = self.sections["flags"], self.sections["type"]
        self.is_code[: len(self.sections)] = (flags & SHF_EXECINSTR != 0) & (types == SHT_PROGBITS)
        self.code = set(np.flatnonzero(self.is_code).tolist())
        self.symbols = self._symbols()
        self.edges: dict[int, set[int]] = {section: set() for section in self.code}
        self._follow_calls()
        self._follow_relocations()

    def cut(self, unused: set[str]) -> DeadCode:
        """Find the code that only kernels in `unused` need. Raises KeptWhole, MalformedError."""
        kernels, reached = self._kernels, self._reached
        going = {section for section, names in kernels.items() if names <= unused}
        stay = self._reach((kernels.keys() - going) | (self.code - reached))
        sections = sorted(reached - stay)
        spans = self._spans(sections)
        gone = {section for section, _ in spans}
        return DeadCode(
            sorted(span for _, span in spans),
            sum(len(kernels[section]) for section in gone & kernels.keys()),
            len(gone - kernels.keys()),
            tuple(sections),
        )

    def _table(self, section: int, dtype: np.dtype) -> np.ndarray:
        row = self.sections[section]
        offset, size = int(row["offset"]), int(row["size"])
        if offset + size > len(self.data):
            raise MalformedError("cubin: section beyond its end")
        self.room -= size
        if self.room < 0:
            raise KeptWhole("tables overlap")
        if size % dtype.itemsize:
            raise KeptWhole(f"a table of {size} bytes does not have a whole number of entries")
        return np.frombuffer(self.data[offset : offset + size], dtype)

    def _symbols(self) -> np.ndarray:
        tables = np.flatnonzero(self.sections["type"] == SHT_SYMTAB).tolist()
        if len(tables) != 1:
            raise KeptWhole(f"{len(tables)} symbol tables")
        self.names = int(self.sections[tables[0]]["link"])
        if self.names >= len(self.sections):
            raise MalformedError("cubin: symbol table without names")
        return self._table(tables[0], SYMBOL)

    @cached_property
    def _kernels(self) -> dict[int, set[str]]:
        """The names of the kernels in each code section that has any."""
        entries = (self.symbols["info"] & 15 == STT_FUNC) & (self.symbols["other"] & STO_CUDA_ENTRY != 0)
        strings = self._table(self.names, np.dtype("u1")).tobytes()
        kernels: dict[int, set[str]] = {}
        room = SPACE + len(self.data)  # limit for the bytes of names, because malicious names may overlap
        for symbol in self.symbols[entries & (self.symbols["shndx"] != 0)]:
            name, section = int(symbol["name"]), int(symbol["shndx"])
            end = strings.find(0, name)
            room -= end - name
            if end < 0 or room < 0:
                raise MalformedError("cubin: symbol without a name" if end < 0 else "cubin: names overlap")
            if section not in self.code:
                raise KeptWhole("a kernel lies outside the code")
            kernels.setdefault(section, set()).add(strings[name:end].decode("utf-8", "surrogateescape"))
        return kernels

    def _sections_of(self, symbols: np.ndarray) -> np.ndarray:
        """Return the number of each symbol's section, or 0 if it's defined elsewhere."""
        if len(symbols) and int(symbols.max()) >= len(self.symbols):
            raise KeptWhole("a symbol beyond the symbol table is used")
        found: np.ndarray = self.symbols["shndx"][symbols]
        return found

    def _connect(self, sources: np.ndarray, targets: np.ndarray) -> None:
        for source, target in sorted(set(zip(sources.tolist(), targets.tolist(), strict=True))):
            if target in self.code:
                if source not in self.code:
                    raise KeptWhole("a section without code calls a function")
                self.edges[source].add(target)

    def _follow_calls(self) -> None:
        graphs = np.flatnonzero(self.sections["type"] == CALLGRAPH).tolist()
        if len(graphs) != 1:
            raise KeptWhole("no call graph" if not graphs else "several call graphs")
        pairs = self._table(graphs[0], np.dtype([("caller", "<u4"), ("callee", "<u4")]))
        marks = np.flatnonzero((pairs["caller"] == 0) & (pairs["callee"] >= TAKES_ADDRESS)).tolist()
        if marks[:1] != [0]:
            raise KeptWhole("the call graph does not begin with a group")
        if len(marks) > len(EDGES):
            raise KeptWhole("the call graph has more groups than are known")
        for start, end in zip(marks, [*marks[1:], len(pairs)], strict=True):
            group = pairs[start + 1 : end]
            if EDGES[int(pairs["callee"][start])]:
                self._connect(self._sections_of(group["caller"]), self._sections_of(group["callee"]))

    def _follow_relocations(self) -> None:
        for section in np.flatnonzero(np.isin(self.sections["type"], list(RELOCATION))).tolist():
            row = self.sections[section]
            place = int(row["info"])
            if not 0 < place < len(self.sections):
                raise KeptWhole("relocations of no section")
            if not self.sections["flags"][place] & SHF_ALLOC:
                continue  # debug information, which kernels don't read
            table = self._table(section, RELOCATION[int(row["type"])])
            targets = self._sections_of(table["symbol"])
            owner = place
            if place not in self.code and self.sections["flags"][place] & SHF_INFO_LINK:
                owner = int(self.sections["info"][place])  # constants that belong to one function
            if owner in self.code:
                self._connect(np.full(len(targets), owner, targets.dtype), targets)
            elif self.is_code[targets].any():
                raise KeptWhole("variables hold addresses of functions")

    @cached_property
    def _reached(self) -> set[int]:
        """The code sections that any kernel needs."""
        return self._reach(set(self._kernels))

    def _reach(self, start: set[int]) -> set[int]:
        """Return these code sections, and all others that they need."""
        reached = set(start)
        pending = deque(reached)
        while pending:
            new = self.edges[pending.popleft()] - reached
            reached |= new
            pending.extend(new)
        return reached

    def _spans(self, going: list[int]) -> list[tuple[int, Span]]:
        """Return the ranges of sections that aren't already filled with zeros.

        Raises KeptWhole if they share bytes with another section.
        """
        ranges = self._ranges
        if any(number not in ranges for number in going):
            raise KeptWhole("sections overlap")
        return [(number, span) for number in going if (span := ranges[number]) is not None]

    @cached_property
    def _ranges(self) -> dict[int, Span | None]:
        """The range of each code section, or None if it's filled with zeros. Sections that share bytes with others are
        left out.
        """
        starts, sizes = self.sections["offset"].tolist(), self.sections["size"].tolist()
        in_file = find_in_file(self.sections)
        taken = [(0, elf.EHDR_SIZE), *self._header_tables()]
        taken += [(starts[section], starts[section] + sizes[section]) for section in np.flatnonzero(in_file).tolist()]
        if max(end for _, end in taken) > len(self.data):
            raise MalformedError("cubin: section beyond its end")
        begins, ends = (np.sort(edges).tolist() for edges in np.array(taken).T)
        found: dict[int, Span | None] = {}
        for number in self.code:
            begin, end = starts[number], starts[number] + sizes[number]
            if begin == end or bisect_left(begins, end) - bisect_right(ends, begin) == 1:
                found[number] = (begin, end) if any(self.data[begin:end]) else None
        return found

    def _header_tables(self) -> list[Span]:
        """Return where the tables of program headers and section headers are."""
        phoff, shoff = struct.unpack_from("<QQ", self.data, 32)
        phentsize, phnum = struct.unpack_from("<HH", self.data, 54)
        tables = [(phoff, phoff + phentsize * phnum), (shoff, shoff + SHDR_SIZE * len(self.sections))]
        return [(start, end) for start, end in tables if start < end]
