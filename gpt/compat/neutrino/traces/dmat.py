"""Read a `.dmat`, which counts accesses by page and clock, as the records of a trace with one launch; and make one.

    u64  pages, clocks
    u64  the pages
    then for each clock: u64 clock, u64 n, n times u64 page, u32 accesses

A page is an address whose lowest bits are zero; in early files of gpt-neutrino it's an index into the list of pages.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt.base.errors import GptError, MalformedError, TruncatedError
from gpt.base.outputs import replacing
from gpt.formats.paths import open_regular, read_at_most
from gpt.stream import records

HEAD, ROW = struct.Struct("<2Q"), np.dtype([("page", "<u8"), ("count", "<u4")])
ENTRY = np.dtype([("unit", "<u8"), ("address", "<u8"), ("clock", "<u8"), ("count", "<u4"), ("pad", "<u4")])
FIELDS = [
    {"name": "address", "type": "u64", "offset": 0},
    {"name": "clock", "type": "u64", "offset": 8},
    {"name": "count", "type": "u32", "offset": 16},
]
MOST = 1 << 30  # bytes of a file: reading it takes four times as many
PAGE = 4096  # bytes
CLOCKS = 1 << 20  # clocks written at once

Record = dict[str, Any]


def read_dmat(path: Path) -> Iterator[Record]:
    """Yield the records. Raises TruncatedError after the complete clocks, MalformedError, OSError."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size > MOST:
            raise GptError(f"larger than {MOST >> 30} GiB: read the .bin that it was made from", str(path))
        data = read_at_most(file, MOST)
    try:
        entries, fault = _parse(data)
    except MalformedError as error:
        raise type(error)(error.fact, str(path)) from None
    inner = struct.pack("<Q", len(entries)) + entries.tobytes()
    name = path.stem
    yield records.make("header", version="1.0", tool="neutrino", argv=[], host="", pid=0,
                       realtime=status.st_mtime_ns, monotonic=status.st_ino % (1 << 40), via=[])  # fmt: skip
    yield records.make("function", id=1, name=name)
    yield records.make("map", id=1, name="dmat", type="log", level="thread", capacity=max(1, len(entries)), stride=24,
                       fields=FIELDS)  # fmt: skip
    yield records.make("kernel", id=1, name=name, function=1, maps=[1])
    yield records.make("probed", id=1, kernel=1, function=1, thread=0, start=status.st_ino % (1 << 40), device=0,
                       stream=0, grid=[1, 1, 1], block=[1, 1, 1], shared=0)  # fmt: skip
    yield records.make("buffer", launch=1, map=1, size=len(inner), data=inner)
    yield records.make("end", records=0, status=0)
    if fault:
        raise TruncatedError(fault, str(path))


def _parse(data: bytes) -> tuple[npt.NDArray[np.void], str | None]:
    """Return the entries of all complete clocks, and an error if the file is truncated."""
    if len(data) < HEAD.size:
        raise TruncatedError(f"{len(data)} bytes of a header of {HEAD.size}")
    pages, clocks = HEAD.unpack_from(data)
    at = HEAD.size + 8 * pages
    if at > len(data):
        raise TruncatedError(f"{len(data)} bytes; its {pages} pages end at {at}")
    known, view, rows = np.frombuffer(data, "<u8", pages, HEAD.size), memoryview(data), []
    counts, stamps, fault = array("Q"), array("Q"), None
    for _ in range(clocks):
        clock, number = HEAD.unpack_from(data, at) if at + HEAD.size <= len(data) else (0, MOST)
        end = at + HEAD.size + ROW.itemsize * number
        if end > len(data):
            fault = f"{len(data)} bytes; {len(stamps)} of {clocks} clocks are there"
            break
        rows.append(view[at + HEAD.size : end])
        counts.append(number)
        stamps.append(clock)
        at = end
    found = np.frombuffer(b"".join(rows), ROW)
    page = found["page"]
    if len(page) and int(page.max()) < pages and not np.isin(page, known).all():
        page = known[page.astype(np.int64)]
    entries = np.zeros(len(found), ENTRY)
    entries["address"], entries["count"] = page, found["count"]
    entries["clock"] = np.repeat(np.array(stamps), np.array(counts).astype(np.int64))
    return entries, fault


def write_dmat(result: Path) -> None:
    """Make a `.dmat` from a result of the tool dmat, and next to it. Raises GptError, OSError."""
    import gpt.trace

    slots = gpt.trace.open(result).launches[0].saved("dmat").slots
    names = np.unique(slots["address"] // np.uint64(PAGE))
    rank = np.searchsorted(names, slots["address"] // np.uint64(PAGE)).astype(np.uint64)
    found = (slots["clock"] - slots["clock"].min(initial=1 << 63)) * np.uint64(len(names)) + rank
    found.sort()
    starts = np.flatnonzero(np.concatenate([np.ones(1, bool), found[1:] != found[:-1]])[: len(found)])
    counts = np.diff(np.append(starts, len(found)))
    clocks, ranks = np.divmod(found[starts], np.uint64(max(1, len(names))))
    rows = np.zeros(len(starts), ROW)
    rows["page"], rows["count"] = names[ranks.astype(np.int64)] * np.uint64(PAGE), counts
    with replacing(result.with_suffix(".dmat")) as file:
        opens = np.flatnonzero(np.concatenate([np.ones(1, bool), clocks[1:] != clocks[:-1]])[: len(clocks)])
        ends = np.append(opens[1:], len(clocks))[: len(opens)]
        file.write(HEAD.pack(len(names), len(opens)) + (names * np.uint64(PAGE)).astype("<u8").tobytes())
        for at in range(0, len(opens), CLOCKS):
            file.write(_pack(clocks, rows, opens[at : at + CLOCKS], ends[at : at + CLOCKS]))


def _pack(clocks: Any, rows: Any, begin: Any, end: Any) -> bytes:
    """Return the bytes of some clocks, given where the rows of each begin and end: 4 words per clock and 3 per row."""
    data = np.zeros(4 * len(begin) + 3 * int(end[-1] - begin[0]), "<u4")
    heads = 4 * np.arange(len(begin)) + 3 * (begin - begin[0])
    head = np.stack([clocks[begin], (end - begin).astype(np.uint64)], axis=1).astype("<u8").view("<u4")
    data[heads[:, None] + np.arange(4)] = head
    of = np.repeat(np.arange(len(begin)), end - begin)
    places = 4 * (of + 1) + 3 * np.arange(len(of))
    data[places[:, None] + np.arange(3)] = rows[begin[0] : end[-1]].view("<u4").reshape(-1, 3)
    return data.tobytes()
