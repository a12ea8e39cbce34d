"""Draws when a kernel accesses which pages of global memory. Prints the path of the picture.

    dmat.py RESULT.bin|FILE.dmat

Of a `.bin` of the tool dmat it leaves a `.dmat` beside it: u64 pages, u64 clocks, the pages (u64 each), then for each
clock u64 clock, u64 n, n times u64 page, u32 count. A page is its address.
"""

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

PAGE, WARP_RECORD = 4096, np.dtype([("clock", "<u8"), ("address", "<u8")])
ACCESSES = np.dtype([("page", "<u8"), ("count", "<u4")])
COLUMNS, ROWS = 1200, 800  # cells of the picture, at most


def read_result(path):
    """Clocks and pages of all accesses."""
    with open(path, "rb") as file:
        header = struct.unpack("<8I", file.read(32))
        offset = struct.unpack("<QQ", file.read(16))[1]
    records = np.fromfile(path, WARP_RECORD, offset=offset)
    records = records[records["address"] != 0]  # a thread has room for as many as the one with most
    assert header[7] == 1
    clocks = records["clock"] - (records["clock"].min() if len(records) else 0)
    return clocks, records["address"] // PAGE, np.ones(len(records), np.uint64)


def read_dmat(path):
    """The same of a `.dmat`."""
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


def write_dmat(path, clocks, pages):
    """Counts the accesses of each clock to each page."""
    names, numbers = np.unique(pages, return_inverse=True)
    pairs = np.stack([clocks, numbers.astype(np.uint64)], axis=1) if len(clocks) else np.zeros((0, 2), np.uint64)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    edges = np.flatnonzero(np.r_[True, pairs[1:, 0] != pairs[:-1, 0]]) if len(pairs) else []
    with open(path, "wb") as file:
        file.write(struct.pack("<QQ", len(names), len(edges)) + (names * PAGE).astype("<u8").tobytes())
        for begin, end in zip(edges, [*edges[1:], len(pairs)], strict=True):
            rows = np.zeros(end - begin, ACCESSES)
            rows["page"] = names[pairs[begin:end, 1].astype(np.int64)] * PAGE
            rows["count"] = counts[begin:end]
            file.write(struct.pack("<QQ", int(pairs[begin, 0]), len(rows)) + rows.tobytes())


def draw(path, clocks, pages, weights):
    """The density: pages that are accessed, in order of their addresses, over time."""
    names, numbers = np.unique(pages, return_inverse=True)
    last = int(clocks.max()) + 1 if len(clocks) else 1
    bins = [min(COLUMNS, last), min(ROWS, max(1, len(names)))]
    area = [[0, last], [0, max(1, len(names))]]
    density = np.histogram2d(clocks.astype(float), numbers.astype(float), bins, area, weights=weights.astype(float))[0]
    figure, axes = pyplot.subplots(figsize=(10, 6), layout="constrained")
    shown = axes.imshow(np.log1p(density.T), origin="lower", aspect="auto", extent=(0, last, 0, max(1, len(names))))
    axes.set(xlabel="clocks", ylabel=f"pages of {PAGE} bytes, in order", title="accesses to global memory")
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
        write_dmat(source.with_suffix(".dmat"), clocks, pages)
    draw(picture, clocks, pages, weights)
    print(picture)


main()
