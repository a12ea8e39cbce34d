"""Define a Triton kernel that reads from scattered addresses."""

import triton
import triton.language as tl


@triton.jit
def gather(x, at, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + tl.load(at + place, place < n), place < n), place < n)
