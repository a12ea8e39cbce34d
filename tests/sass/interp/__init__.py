"""An interpreter of machine code for tests. It executes a kernel's words, lane by lane.

    cubin = load(Path("kernels.cubin").read_bytes())
    memory = GlobalMemory(rng)
    run(cubin, "saxpy", memory, grid=(4, 1, 1), block=(64, 1, 1), parameters=struct.pack("<QQi", ...), rng=rng)

It's a second opinion, so it's pessimistic. Registers, shared and local memory start with garbage. The order of
divergent parts of a warp, of warps, and of blocks is random. Parts of a warp that reach the same place stay separate
unless the code joins them. A load outside allocated memory is an error. With `strict`, a value that's read before it
has arrived is garbage, too (timing.py). An instruction or bit that isn't described here raises `Unimplemented`: nothing
is guessed.

    decode.py     operands of a word, from our own tables
    integers.py, floats.py, halves.py, conversions.py, matrices.py     arithmetic, on arrays of 32 lanes
    accesses.py   memory
    bulk.py       bulk copies and mbarriers
    lanes.py      votes, shuffles, matches
    machine.py    warps that split and meet, barriers, blocks
    loader.py     a cubin's code, constants and variables
"""
