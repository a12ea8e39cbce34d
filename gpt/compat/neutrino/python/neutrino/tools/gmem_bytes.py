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


class gmem_bytes(NamedTuple):
    sync_bytes: int
    async_bytes: int


def parse(path: str):
    with open(path, "rb") as f:
        header = TraceHeader(*struct.unpack("<8I", f.read(32)))
        sections = [TraceSection(*struct.unpack("<QQ", f.read(16))) for _ in range(header.numProbes)]
        gridSize = header.gridDimX * header.gridDimY * header.gridDimZ
        blockSize = header.blockDimX * header.blockDimY * header.blockDimZ
        records = {}

        # Read gmem_bytes
        f.seek(sections[0].offset)
        record = struct.Struct("<II")
        whole, units = blockSize, blockSize  # per block; partial warps come after the whole ones
        blocks = [[] for _ in range(gridSize)]
        for count in (whole, units - whole):
            for block in blocks:
                for _ in range(count):
                    unit = f.read(sections[0].size)
                    block.append(gmem_bytes(*record.unpack_from(unit)))
        records["gmem_bytes"] = blocks
    return header, sections, records["gmem_bytes"]


# END OF GENERATED CODE

import sys

header, sections, records = parse(sys.argv[1])
print(f"gmem_bytes:{sum(thread.sync_bytes + thread.async_bytes for block in records for thread in block)}")
