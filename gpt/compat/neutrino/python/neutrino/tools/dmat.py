"""Draws when a kernel accesses which pages of global memory. Prints the path of the picture.

    dmat.py RESULT.bin|FILE.dmat

From a `.bin` of the tool dmat it makes a `.dmat` next to it: u64 pages, u64 clocks, the pages (u64 each), then for each
clock u64 clock, u64 n, n times u64 page, u32 count. A page is its address.

Each SM has its own clock; clocks in a result of the tool count from the first access on their SM. `event.log` has the
share of the accesses that was kept, and the picture repeats it.
"""

import re
import struct
import sys
from pathlib import Path

try:
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError as error:
    sys.exit(f"dmat: error: {error}: the picture needs numpy and matplotlib (--python names a Python that has them)")

PAGE = 4096
RECORD = np.dtype([("clock", "<u8"), ("address", "<u8")])
ACCESSES = np.dtype([("page", "<u8"), ("count", "<u4")])
COLUMNS, ROWS = 1200, 800  # cells of the picture, at most
BATCH = 4 << 20  # accesses processed at once
CLOCKS = 1 << 20  # clocks written at once


def iter_batches(path, offset):
    """Yield the accesses. All threads have equally many records, so some are empty and left out."""
    records = np.memmap(path, RECORD, "r", offset, ((path.stat().st_size - offset) // RECORD.itemsize,))
    for at in range(0, len(records), BATCH):
        batch = records[at : at + BATCH]
        yield batch[batch["address"] != 0]


def read_result(path):
    """Return clocks, pages and counts: each page once at each clock, clock by clock."""
    with open(path, "rb") as file:
        header = struct.unpack("<8I", file.read(32))
        offset = struct.unpack("<QQ", file.read(16))[1]
    assert header[7] == 1
    if path.stat().st_size < offset + RECORD.itemsize:
        return [np.zeros(0, np.uint64)] * 3
    first, names = np.iinfo(np.uint64).max, np.zeros(0, np.uint64)
    for batch in iter_batches(path, offset):
        first = batch["clock"].min(initial=first)
        names = np.union1d(names, np.unique(batch["address"] // PAGE))
    keys = [np.zeros(0, np.uint64)]
    for batch in iter_batches(path, offset):
        rank = np.searchsorted(names, batch["address"] // PAGE).astype(np.uint64)
        keys.append((batch["clock"] - first) * np.uint64(len(names)) + rank)
    found = np.concatenate(keys)
    del keys
    found.sort()
    starts = np.flatnonzero(np.r_[True, found[1:] != found[:-1]][: len(found)])
    counts = np.diff(np.r_[starts, len(found)]).astype(np.uint64)
    clocks, ranks = np.divmod(found[starts], np.uint64(max(1, len(names))))
    return clocks, names[ranks.astype(np.int64)], counts


def read_dmat(path):
    """Yield the accesses of a `.dmat`."""
    data = Path(path).read_bytes()
    pages, count = struct.unpack_from("<QQ", data)
    at, found = 16 + 8 * pages, []
    for _ in range(count):
        clock, number = struct.unpack_from("<QQ", data, at)
        rows = np.frombuffer(data, ACCESSES, number, at + 16)
        found.append((np.full(number, clock, np.uint64), rows["page"] // PAGE, rows["count"]))
        at += 16 + ACCESSES.itemsize * number
    return [
        np.concatenate(parts) if parts else np.zeros(0)
        for parts in (zip(*found, strict=True) if found else [[], [], []])
    ]


def write_dmat(path, clocks, pages, counts):
    """Write what `read_result` returns."""
    names = np.unique(pages)
    edges = np.flatnonzero(np.r_[True, clocks[1:] != clocks[:-1]][: len(clocks)])
    ends = np.r_[edges[1:], len(clocks)][: len(edges)]
    rows = np.zeros(len(clocks), ACCESSES)
    rows["page"], rows["count"] = pages * PAGE, counts
    words = rows.view("<u4").reshape(-1, 3)  # a file of 4-byte numbers: 4 per clock, 3 per row
    with open(path, "wb") as file:
        file.write(struct.pack("<QQ", len(names), len(edges)) + (names * PAGE).astype("<u8").tobytes())
        for at in range(0, len(edges), CLOCKS):
            begin, end = edges[at : at + CLOCKS], ends[at : at + CLOCKS]
            data = np.zeros(4 * len(begin) + 3 * int(end[-1] - begin[0]), "<u4")
            heads = 4 * np.arange(len(begin)) + 3 * (begin - begin[0])
            head = np.stack([clocks[begin], (end - begin).astype(np.uint64)], axis=1).astype("<u8").view("<u4")
            data[heads[:, None] + np.arange(4)] = head
            of = np.repeat(np.arange(len(begin)), end - begin)
            places = 4 * (of + 1) + 3 * np.arange(len(of))
            data[places[:, None] + np.arange(3)] = words[begin[0] : end[-1]]
            file.write(data.tobytes())


def find_lost(path):
    """Return how many accesses of a result were dropped for lack of room, according to the log in its folder."""
    log, lost = path.absolute().parent.parent / "event.log", 0
    for line in log.read_text(errors="replace").splitlines() if log.is_file() else []:
        if re.match(r"\[exec\] \d+ param", line):
            lost = 0
        elif match := re.match(r"\[exec\] dropped \S+: (\d+) records", line):
            lost = int(match[1])
        elif re.match(rf"\[exec\] save (.*/)?{re.escape(path.stem)}\.bin size", line):
            return lost
    return 0


def kept_share(kept, lost):
    """Say what share of the accesses is drawn."""
    share = min(100 * kept / (kept + lost), 99.9)
    return f"{share:.{1 if share >= 0.1 else 4}f} % of {kept + lost:,} accesses were kept"


def draw(path, clocks, pages, weights, lost):
    """Draw the density: the accessed pages, sorted by address, over time."""
    names, numbers = np.unique(pages, return_inverse=True)
    last = int(clocks.max()) + 1 if len(clocks) else 1
    bins = [min(COLUMNS, last), min(ROWS, max(1, len(names)))]
    area = [[0, last], [0, max(1, len(names))]]
    density = np.histogram2d(clocks.astype(float), numbers.astype(float), bins, area, weights=weights.astype(float))[0]
    figure, axes = pyplot.subplots(figsize=(10, 6), layout="constrained")
    shown = axes.imshow(np.log1p(density.T), origin="lower", aspect="auto", extent=(0, last, 0, max(1, len(names))))
    title = "accesses to global memory"
    title += f"\n{kept_share(int(weights.sum()), lost)}" if lost else ""
    axes.set(xlabel="clocks", ylabel=f"pages of {PAGE} bytes, in order", title=title)
    figure.colorbar(shown, label="log(1 + accesses)")
    figure.savefig(path, dpi=120)


def main():
    """Reads, draws, prints."""
    source = Path(sys.argv[1])
    picture = source.with_suffix(".png")
    if source.suffix == ".dmat":
        clocks, pages, weights = read_dmat(source)
    else:
        clocks, pages, weights = read_result(source)
        write_dmat(source.with_suffix(".dmat"), clocks, pages, weights)
    draw(picture, clocks, pages, weights, find_lost(source))
    print(picture)


main()
