"""Find where calls came from: the stacks of `gpt-hook --stacks` and of samples, with the names of functions.

A frame is a file and a return address in it. The function is the symbol that contains the call before this address.
It's read from the current file, so if that was replaced or stripped, the name is wrong or missing.
"""

from __future__ import annotations

import os
import re
import stat
import weakref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.formats.elf import PT_LOAD, SHT_DYNSYM, SHT_SYMTAB, Elf, Section, parse_elf
from gpt.formats.source import Source

Column = npt.NDArray[np.uint64]

SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
MOST_SYMBOLS = 256 << 20  # bytes of a symbol table
MOST_NAME = 4096  # bytes
# Libraries that only pass on what their callers ask for.
BETWEEN = ("libcuda.so", "libcudart.so", "libcudart-", "libffi.so", "_ctypes.")

# Python files that aren't the program's own: packages, the standard library, and what `exec` runs.
INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<")


class CallFrame(NamedTuple):
    """A caller. `offset` is the return address, as an offset in the file at `path`; if `path` is None, it's the address
    itself.

    `function` is a mangled name. A Python frame has the path of its source, the name of its function, and the line if
    it's known; its `offset` is 0.
    """

    path: str | None
    offset: int
    function: str | None = None
    line: int | None = None
    is_python: bool = False


class Sites:
    """The stacks of a segment, and the calls that came from them."""

    def __init__(self) -> None:
        self._stacks: dict[int, list[CallFrame]] = {}
        self._calls: list[tuple[int, int, int, int]] = []
        self._table: npt.NDArray[np.uint64] | None = None
        self._symbols: dict[str, Symbols | None] = {}

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._calls)

    def add(self, record: dict[str, Any]) -> None:
        """Add a checked `stack` or `call_site` record."""
        if record["kind"] == "stack":
            self._stacks[record["id"]] = [_make_frame(one) for one in record["frames"]]
        else:
            self._calls.append((record["start"], record["thread"], record["stack"], record.get("python", 0)))
            self._table = None

    def find(self, threads: Column, starts: Column, python: bool = False) -> Column:
        """Return the id of the stack from which each call came, or of its Python frames, given the thread and the start
        in its row. It's 0 if there's no stack.
        """
        if self._table is None:
            self._table = np.array(sorted(self._calls), np.uint64).reshape(-1, 4).T.copy()
        known, whose, stacks = self._table[[0, 1, 3 if python else 2]]
        found = np.zeros(len(starts), np.uint64)
        first, last = (np.searchsorted(known, starts, side=side) for side in ("left", "right"))
        for step in range(int((last - first).max(initial=0))):  # several threads may have calls at the same time
            at = np.minimum(first + step, len(known) - 1)
            found = np.where((first + step < last) & (whose[at] == threads), stacks[at], found)
        return found

    def frames(self, stack: int) -> list[CallFrame]:
        """Return the frames of a stack with their functions, innermost first, or nothing if no record describes the
        stack.
        """
        return [self._name(frame) for frame in self._stacks.get(stack, [])]

    def asker(self, stack: int) -> CallFrame | None:
        """Return the innermost frame that isn't in one of the libraries in BETWEEN. If there's none, return the
        innermost frame.
        """
        frames = self._stacks.get(stack, [])
        chosen = (frame for frame in frames if not os.path.basename(frame.path or "").startswith(BETWEEN))
        found = next(chosen, frames[0] if frames else None)
        return found and self._name(found)

    def python_caller(self, stack: int) -> CallFrame | None:
        """Return the innermost Python frame that isn't in an installed package. If there's none, return the innermost
        Python frame.
        """
        frames = self._stacks.get(stack, [])
        own = (frame for frame in frames if not INSTALLED.search(frame.path or ""))
        return next(own, frames[0] if frames else None)

    def _name(self, frame: CallFrame) -> CallFrame:
        if frame.path is None or frame.is_python:
            return frame
        if frame.path not in self._symbols:
            self._symbols[frame.path] = read_symbols(frame.path)
        symbols = self._symbols[frame.path]
        return frame._replace(function=symbols.find(frame.offset - 1) if symbols else None)


def _make_frame(found: dict[str, Any]) -> CallFrame:
    function = found.get("function")
    return CallFrame(found.get("path"), found["offset"], function, found.get("line"), function is not None)


class Symbols:
    """The functions of a library."""

    def __init__(self, source: Source, elf: Elf) -> None:
        """Read the symbol tables. Raises MalformedError if they're invalid."""
        self._source = source
        self._loaded = [one for one in elf.segments if one.type == PT_LOAD]
        tables = [section for section in elf.sections if section.type in (SHT_SYMTAB, SHT_DYNSYM)]
        found = [_read_table(source, elf, section) for section in sorted(tables, key=lambda section: section.type)]
        rows = np.concatenate(found) if found else np.empty((0, 3), np.uint64)
        order = np.argsort(rows[:, 0], kind="stable")
        self._starts, self._sizes, self._names = (rows[order, column] for column in range(3))

    def find(self, offset: int) -> str | None:
        """Return the name of the function at a file offset."""
        address = next((s.vaddr + offset - s.offset for s in self._loaded if 0 <= offset - s.offset < s.filesz), None)
        if address is None or not 0 <= address < 1 << 64:
            return None
        at = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        for place in range(at, max(at - 16, -1), -1):  # a symbol without a size, or one inside the function, may follow
            if address - int(self._starts[place]) < int(self._sizes[place]):
                name = int(self._names[place])
                return self._read_name(name, min(MOST_NAME, self._source.size - name))
        return None

    def _read_name(self, offset: int, size: int) -> str | None:
        return self._source.pread(offset, size).split(b"\0")[0].decode("utf-8", "backslashreplace") or None


def _read_table(source: Source, elf: Elf, section: Section) -> Column:
    """Return the address and size of each function, and the file offset of its name."""
    if not section.in_file or section.size > MOST_SYMBOLS or not 0 <= section.link < len(elf.sections):
        return np.empty((0, 3), np.uint64)
    names = elf.sections[section.link]
    size = min(section.size, source.size - section.offset) // SYMBOL.itemsize * SYMBOL.itemsize
    rows = np.frombuffer(source.pread(section.offset, max(0, size)), SYMBOL)
    good = np.isin(rows["info"] & 15, FUNCTIONS) & (rows["section"] != 0) & (rows["size"] != 0)
    good &= rows["name"] < names.size
    places = rows["name"][good].astype(np.uint64) + np.uint64(names.offset)
    return np.stack([rows["value"][good], rows["size"][good], places], axis=1)


def read_symbols(path: str) -> Symbols | None:
    """Read the functions in a file. Return None if it can't be read, or isn't an ELF file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise MalformedError("not a file")
        source = Source(path, descriptor)
        symbols = Symbols(source, parse_elf(source))
    except (MalformedError, OSError):
        os.close(descriptor)
        return None
    weakref.finalize(symbols, os.close, descriptor)
    return symbols
