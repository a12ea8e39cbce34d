"""An interpreter of machine code for tests: what a kernel's words do, lane by lane.

    cubin = load(Path("kernels.cubin").read_bytes())
    memory = GlobalMemory(rng)
    run(cubin, "saxpy", memory, grid=(4, 1, 1), block=(64, 1, 1), parameters=struct.pack("<QQi", ...), rng=rng)

It's a second opinion, so it's pessimistic: registers, shared and local memory begin with garbage; which of two parts of
a warp goes first, which warp, and which block, is random; parts of a warp that are at the same place stay apart unless
the code brings them together; a load outside allocated memory is an error. With `strict`, a value that's read before
it has arrived is garbage, too (timing.py). An instruction, or a bit of one, that nobody wrote down here raises
`Unimplemented`: nothing is guessed.

    decode.py     operands of a word, from our own tables
    integers.py, floats.py, halves.py, conversions.py, matrices.py     arithmetic, on arrays of 32 lanes
    accesses.py   memory
    bulk.py       bulk copies and mbarriers
    lanes.py      votes, shuffles, matches
    machine.py    warps that split and meet, barriers, blocks
    loader.py     a cubin's code, constants and variables
"""
