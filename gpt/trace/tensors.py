"""Find which tensor was at an address at a certain time, from `tensor` records or the lines of Neutrino's TensorTrace.

A tensor exists from when it was first seen under a name until its `tensor_end`, or to the end of the trace. Lines have
no ends; there, a tensor exists until another one is seen that covers part of its memory and extends beyond it. If
several tensors have the same address, as views do, the smallest one is used; of several with the same size, the first
one seen.

The result of a call has no name yet while the kernels that compute it are running. So if no tensor is known at an
address, the next one seen there is used, if it's among the next few hundred. Such results are marked as `later`. They
may be wrong, because another tensor may have used the memory in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import GptError, MalformedError
from gpt.formats.paths import is_regular, open_regular
from gpt.stream import records

Addresses = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEVER = (1 << 64) - 1
MOST_LATER = 500  # how many of the next tensors are searched
WORD = "(?:(?!  ).)*"  # up to the next two spaces, so that there aren't thousands of ways to match an odd line
LINE = re.compile(
    r"\[call\]  (?P<time>\d{1,19}(?:\.\d{1,19})?)  "
    rf"(?P<shape>{WORD})  (?P<bytes>\d{{1,19}})  "
    r"(?P<pointer>0[xX][0-9a-fA-F]{1,16}|\d{1,19})  "
    rf"(?P<name>{WORD})  (?P<function>{WORD})  (?P<file>.*):(?P<line>\d{{1,9}})",
    re.ASCII,
)
MOST_LINE = 1 << 16  # characters per line


@dataclass
class NamedTensor:
    """A tensor. It covers `address` to `address + size`. `names` are in the order in which they were first seen.

    `begin` and `end` are time stamps; `end` is None if it isn't known. `function`, `file` and `line` belong to the
    first name.
    """

    id: int
    address: int
    size: int
    dtype: str
    shape: tuple[int, ...]
    begin: int
    function: str | None
    file: str | None
    line: int | None
    end: int | None = None
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first name."""
        return self.names[0]


class TensorIndex(NamedTuple):
    """For each address, the index of its tensor or -1, and whether that tensor was only seen later."""

    tensors: Numbers
    later: Flags


class Tensors:
    """The tensors of a segment, sorted by when they were first seen. Complete once all records have been added.

    `with_ends` says whether the trace has ends for tensors that were freed.
    """

    def __init__(self, with_ends: bool = True) -> None:
        self._with_ends = with_ends
        self._records: list[dict[str, Any]] = []
        self._ends: dict[int, int] = {}
        self._tensors: list[NamedTensor] | None = None
        self._columns: tuple[Addresses, Addresses, Addresses, Addresses] | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Add a `tensor` or `tensor_end` record that has been checked. Raises MalformedError if it's invalid."""
        self._tensors = self._columns = None
        if record["kind"] == "tensor_end":
            self._ends[record["id"]] = record["at"]
        elif record["address"] + record["bytes"] > NEVER:
            raise MalformedError("tensor: it is not in the address space")
        else:
            self._records.append(record)

    @property
    def tensors(self) -> list[NamedTensor]:
        """All tensors. The indexes in `TensorIndex` refer to this list."""
        if self._tensors is None:
            found: dict[tuple[int, int, int], NamedTensor] = {}
            for record in sorted(self._records, key=lambda record: record["at"]):
                key = record["id"], record["address"], record["bytes"]
                if key not in found:
                    found[key] = _tensor(record, self._ends.get(record["id"]))
                if record["name"] not in found[key].names:
                    found[key].names.append(record["name"])
            self._tensors = list(found.values())
        return self._tensors

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a `tensor` record for each name, and a `tensor_end` for each tensor that has ended."""
        ends = self._tabulate()[3].tolist()
        for number, (tensor, end) in enumerate(zip(self.tensors, ends, strict=True), 1):
            for name in tensor.names:
                yield records.make(
                    "tensor", id=number, at=tensor.begin, thread=0, name=name, address=tensor.address,
                    bytes=tensor.size, dtype=tensor.dtype, shape=list(tensor.shape), function=tensor.function,
                    file=tensor.file, line=tensor.line,
                )  # fmt: skip
            if end != NEVER:
                yield records.make("tensor_end", id=number, at=end)

    def find(self, addresses: Addresses, stamps: Addresses | int) -> TensorIndex:
        """Find the tensors at these addresses, each at its own time stamp, or all at the same one."""
        if isinstance(stamps, int):
            return self.at(stamps).find(addresses)
        found = TensorIndex(np.full(len(addresses), -1, np.int64), np.zeros(len(addresses), bool))
        times, which = np.unique(stamps, return_inverse=True)
        order = np.argsort(which, kind="stable")
        for stamp, part in zip(times, np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=True):
            found.tensors[part], found.later[part] = self.at(int(stamp)).find(addresses[part])
        return found

    def at(self, stamp: int) -> MemoryContents:
        """Return the contents of memory at a time stamp."""
        if self._columns is None:
            self._columns = self._tabulate()
        lows, highs, begins, ends = self._columns
        there, time = ends > stamp, np.uint64(stamp)
        now, later = np.flatnonzero(there & (begins <= time)), np.flatnonzero(there & (begins > time))[:MOST_LATER]
        order = np.lexsort((now, highs[now] - lows[now]))  # the best match comes first
        return MemoryContents(lows, highs, np.concatenate([now[order], later]), len(now))

    def _tabulate(self) -> tuple[Addresses, Addresses, Addresses, Addresses]:
        tensors = self.tensors
        lows = np.array([tensor.address for tensor in tensors], np.uint64)
        highs = lows + np.array([tensor.size for tensor in tensors], np.uint64)
        begins = np.array([tensor.begin for tensor in tensors], np.uint64)
        ends = np.array([NEVER if tensor.end is None else tensor.end for tensor in tensors], np.uint64)
        for i in range(0 if self._with_ends else len(tensors)):
            touches = (lows[i + 1 :] < highs[i]) & (highs[i + 1 :] > lows[i])
            beyond = (lows[i + 1 :] < lows[i]) | (highs[i + 1 :] > highs[i])
            if len(others := np.flatnonzero(touches & beyond)):
                ends[i] = begins[i + 1 + others[0]]
        return lows, highs, begins, ends


class MemoryContents:
    """The contents of memory at some moment, as pieces that belong to one tensor each."""

    def __init__(self, lows: Addresses, highs: Addresses, order: Numbers, now: int) -> None:
        """Divide the memory between tensors. Where several overlap, the first one in `order` is used. Tensors from
        index `now` on were only seen later.
        """
        self._edges = np.unique(np.concatenate([lows[order], highs[order]]))
        rank = np.full(len(self._edges), len(order), np.int64)
        first, last = (np.searchsorted(self._edges, sides[order]) for sides in (lows, highs))
        for place in range(len(order) - 1, -1, -1):
            rank[first[place] : last[place]] = place
        self._later = (rank >= now) & (rank < len(order))
        self._owners = np.append(order, -1)[rank]

    def find(self, addresses: Addresses) -> TensorIndex:
        """Find the tensors at these addresses."""
        if not len(self._edges):
            return TensorIndex(np.full(len(addresses), -1, np.int64), np.zeros(len(addresses), bool))
        pieces = np.searchsorted(self._edges, addresses, side="right") - 1
        before = pieces < 0
        return TensorIndex(np.where(before, -1, self._owners[pieces]), self._later[pieces] & ~before)


def _tensor(record: dict[str, Any], end: int | None) -> NamedTensor:
    return NamedTensor(
        id=record["id"],
        address=record["address"],
        size=record["bytes"],
        dtype=record["dtype"],
        shape=tuple(record["shape"]),
        begin=record["at"],
        function=record.get("function"),
        file=record.get("file"),
        line=record.get("line"),
        end=end,
    )


def parse_lines(lines: Iterable[str], zero: int | None = None) -> Tensors:
    """Parse the lines that Neutrino's TensorTrace wrote to `tensor.trace`. Tensors in it have no end.

    Times are line numbers. With `zero`, which is in ns since the epoch, the time of a line is the ns since then,
    provided that it's larger than the number of the line. Lines with the same address, size and shape are about the
    same tensor. TensorTrace also writes other lines, which are skipped.

    Raises MalformedError if no line has this form.
    """
    found, count = Tensors(with_ends=False), 0
    ids: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for count, line in enumerate(lines, 1):
        match = LINE.fullmatch(line.rstrip("\n")) if len(line) < MOST_LINE else None
        if not match:
            continue
        shape = tuple(int(number) for number in re.findall(r"[0-9]{1,19}", match["shape"]))
        digits, base = (match["pointer"][2:], 16) if match["pointer"][1:2] in ("x", "X") else (match["pointer"], 10)
        address, size = int(digits, base), int(match["bytes"])
        if max(shape, default=0) > NEVER or address + size > NEVER:
            continue
        id_ = ids.setdefault((address, size, shape), count)
        at = count if zero is None else max(count, min(_nanoseconds(match["time"]) - zero, NEVER - 1))
        one = {"id": id_, "at": at, "thread": 0, "name": match["name"], "address": address, "bytes": size}
        where = {"function": match["function"], "file": match["file"], "line": int(match["line"])}
        found.add({"kind": "tensor", **one, "dtype": "", "shape": shape, **where})
    if count and not found.tensors:
        raise MalformedError("no line has the form of a tensor.trace")
    return found


def _nanoseconds(time: str) -> int:
    """Convert a time to ns since the epoch. If it has a decimal point, it's in seconds."""
    seconds, point, rest = time.partition(".")
    return int(seconds) * 10**9 + int(rest[:9].ljust(9, "0")) if point else int(seconds)


def read_tensor_records(path: Path, zero: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a `tensor.trace`, if there's one. Time stamps are ns since `zero`, which is in ns since the
    epoch.
    """
    if not is_regular(path, follow=False):
        return
    found = read_lines(path, zero)
    yield from found.records()


def read_lines(path: Path, zero: int | None = None) -> Tensors:
    """Read a `tensor.trace`. Raises GptError for a pickle, because pickles are never read, and MalformedError."""
    try:
        with open_regular(path) as file:
            if path.suffix == ".pkl" or file.read(1) == b"\x80":
                raise GptError(
                    "a pickle can run code, so it is not read: use the tensor.trace next to it, or gpt.tensors",
                    str(path),
                )
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            return parse_lines(lines, zero)
    except OSError as error:
        raise GptError.of(error, path) from None
    except MalformedError as error:
        raise MalformedError(error.fact, str(path)) from None
