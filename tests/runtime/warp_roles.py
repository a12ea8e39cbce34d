"""Launch the kernel of warp_roles.ptx twice, and check its sums: `python -m tests.runtime.warp_roles BLOCKS TILES`."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from tests.runtime.driving import Memory, begin, function, launch, load, ok, synchronize

WARPS, TILE = 3, 32  # warps per block, numbers per tile
PTX = Path(__file__).with_suffix(".ptx")


def main(blocks: int, count: int) -> None:
    """Run the kernel."""
    begin()
    kernel = function(load(PTX.read_bytes()), "roles")
    tiles, sums = Memory(TILE * blocks * count), Memory(2 * blocks)
    tiles.write([*range(tiles.count)])
    for turn in (1, 2):
        ok(launch(kernel, blocks, 32 * WARPS, tiles, sums, ctypes.c_uint32(count)))
        ok(synchronize())
        each = TILE * count
        assert sums.read() == [
            turn * sum(range(block * each, (block + 1) * each)) % (1 << 32) for block in range(blocks) for _ in "12"
        ]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
