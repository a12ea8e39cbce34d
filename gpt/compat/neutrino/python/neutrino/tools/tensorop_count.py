# Neutrino Generated Code for Reading Trace
import struct
from typing import NamedTuple


class TraceHeader(NamedTuple):
    gridDimX: int
    gridDimY: int
    gridDimZ: int
    blockDimX: int
    blockDimY: int
    blockDimZ: int
    sharedMemBytes: int
    numProbes: int


class TraceSection(NamedTuple):
    size: int  # bytes of a unit: a thread, a warp
    offset: int


class tensorop_count(NamedTuple):
    operations: int


def parse(path: str):
    with open(path, "rb") as f:
        header = TraceHeader(*struct.unpack("<8I", f.read(32)))
        sections = [TraceSection(*struct.unpack("<QQ", f.read(16))) for _ in range(header.numProbes)]
        gridSize = header.gridDimX * header.gridDimY * header.gridDimZ
        blockSize = header.blockDimX * header.blockDimY * header.blockDimZ
        records = {}

        # Read tensorop_count
        f.seek(sections[0].offset)
        record = struct.Struct("<Q")
        whole, units = blockSize, blockSize  # per block; partial warps come after the whole ones
        blocks = [[] for _ in range(gridSize)]
        for count in (whole, units - whole):
            for block in blocks:
                for _ in range(count):
                    unit = f.read(sections[0].size)
                    block.append(tensorop_count(*record.unpack_from(unit)))
        records["tensorop_count"] = blocks
    return header, sections, records["tensorop_count"]


# END OF GENERATED CODE

import sys

header, sections, records = parse(sys.argv[1])
count = 0  # warps: all threads of a warp have counted the same operations
for block in records:
    for first in range(0, len(block), 32):
        count += max(thread.operations for thread in block[first : first + 32])
print(f"tensorop_count:{count}")
