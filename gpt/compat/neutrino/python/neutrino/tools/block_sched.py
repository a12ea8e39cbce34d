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


class block_sched(NamedTuple):
    begin: int
    elapsed: int
    smid: int


def parse(path: str):
    with open(path, "rb") as f:
        header = TraceHeader(*struct.unpack("<8I", f.read(32)))
        sections = [TraceSection(*struct.unpack("<QQ", f.read(16))) for _ in range(header.numProbes)]
        gridSize = header.gridDimX * header.gridDimY * header.gridDimZ
        blockSize = header.blockDimX * header.blockDimY * header.blockDimZ
        records = {}

        # Read block_sched
        f.seek(sections[0].offset)
        record = struct.Struct("<QII")
        whole, units = blockSize // 32, (blockSize + 31) // 32  # per block; partial warps come after the whole ones
        blocks = [[] for _ in range(gridSize)]
        for count in (whole, units - whole):
            for block in blocks:
                for _ in range(count):
                    unit = f.read(sections[0].size)
                    block.append(block_sched(*record.unpack_from(unit)))
        records["block_sched"] = blocks
    return header, sections, records["block_sched"]


# END OF GENERATED CODE

import sys
from collections import defaultdict
from heapq import heappop, heappush

header, sections, records = parse(sys.argv[1])
blocks = defaultdict(list)  # begin and end of each SM's blocks, on its clock
for warps in records:
    if warps:
        end = max(warp.begin + warp.elapsed for warp in warps)
        blocks[warps[0].smid].append((min(warp.begin for warp in warps), end))

# A block takes the slot of the first block to end, or a new slot if no block has ended.
running = scheduling = places = 0
for spans in blocks.values():
    ends = []
    for begin, end in sorted(spans):
        if ends and ends[0] <= begin:
            scheduling += begin - heappop(ends)
        heappush(ends, end)
        running += end - begin
    places += len(ends)
count = max(places, 1)
print(f"No.block:{len(records)} Running:{running // count} Scheduling:{scheduling // count}(cycle)")
