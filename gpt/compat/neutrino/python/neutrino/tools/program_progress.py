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


class program_progress(NamedTuple):
    clock: int
    steps: int
    smid: int


def parse(path: str):
    with open(path, "rb") as f:
        header = TraceHeader(*struct.unpack("<8I", f.read(32)))
        sections = [TraceSection(*struct.unpack("<QQ", f.read(16))) for _ in range(header.numProbes)]
        gridSize = header.gridDimX * header.gridDimY * header.gridDimZ
        blockSize = header.blockDimX * header.blockDimY * header.blockDimZ
        records = {}

        # Read program_progress
        f.seek(sections[0].offset)
        record = struct.Struct("<QII")
        whole, units = blockSize // 32, (blockSize + 31) // 32  # per block; partial warps come after the whole ones
        blocks = [[] for _ in range(gridSize)]
        for count in (whole, units - whole):
            for block in blocks:
                for _ in range(count):
                    unit = f.read(sections[0].size)
                    block.append([program_progress(*record.unpack_from(unit, at)) for at in range(0, len(unit), 16)])
        records["program_progress"] = blocks
    return header, sections, records["program_progress"]


# END OF GENERATED CODE

import sys

header, sections, records = parse(sys.argv[1])
for number, block in enumerate(records):
    for warp, found in enumerate(block):
        steps = [record for record in found if record.steps]  # the others weren't saved
        if steps:
            clocks = steps[-1].clock - steps[0].clock
            print(f"program_progress: block:{number} warp:{warp} steps:{len(steps)} clocks:{clocks}")
