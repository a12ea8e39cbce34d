"""Triton kernels, compiled for sm_80 without a GPU and run on the simulated device, compared with numpy. This is a
script.
"""

from __future__ import annotations

from ctypes import byref, c_char, c_float, c_int32, c_size_t, c_uint64

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.runtime.driving import begin, cu, function, launch, load, ok, synchronize

random = np.random.default_rng(1)


@triton.jit
def product(a, b, c, m, n, k, size_m: tl.constexpr, size_n: tl.constexpr, size_k: tl.constexpr):
    """Compute c = a b in tiles, of which the last ones are incomplete."""
    rows = tl.program_id(0) * size_m + tl.arange(0, size_m)
    columns = tl.program_id(1) * size_n + tl.arange(0, size_n)
    inner = tl.arange(0, size_k)
    total = tl.zeros((size_m, size_n), dtype=tl.float32)
    for start in range(0, k, size_k):
        left, right = start + inner[None, :], start + inner[:, None]
        x = tl.load(a + rows[:, None] * k + left, mask=(rows[:, None] < m) & (left < k), other=0.0)
        y = tl.load(b + right * n + columns[None, :], mask=(right < k) & (columns[None, :] < n), other=0.0)
        total = tl.dot(x, y, total)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=mask)


@triton.jit
def softmax(to, of, count, size: tl.constexpr):
    """Compute the softmax of each row."""
    row, at = tl.program_id(0), tl.arange(0, size)
    x = tl.load(of + row * count + at, mask=at < count, other=-float("inf"))
    x = tl.exp(x - tl.max(x, 0))
    tl.store(to + row * count + at, x / tl.sum(x, 0), mask=at < count)


@triton.jit
def normalize(to, of, weights, biases, count, size: tl.constexpr):
    """Compute the layer norm of each row."""
    row, at = tl.program_id(0), tl.arange(0, size)
    mask = at < count
    x = tl.load(of + row * count + at, mask=mask, other=0.0).to(tl.float32)
    x = tl.where(mask, x - tl.sum(x, 0) / count, 0.0)
    x /= tl.sqrt(tl.sum(x * x, 0) / count + 1e-5)
    x = x * tl.load(weights + at, mask=mask) + tl.load(biases + at, mask=mask)
    tl.store(to + row * count + at, x, mask=mask)


@triton.jit
def attention(q, k, v, to, scale, count, rows: tl.constexpr, columns: tl.constexpr, width: tl.constexpr):
    """Compute attention to all earlier rows, with a running maximum."""
    head = tl.program_id(1) * count * width
    at, inner = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    x = tl.load(q + head + at[:, None] * width + inner[None, :])
    most, total = tl.full([rows], -1e30, tl.float32), tl.zeros([rows], tl.float32)
    found = tl.zeros([rows, width], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * rows, columns):
        other = start + tl.arange(0, columns)
        y = tl.load(k + head + other[None, :] * width + inner[:, None])
        scores = tl.where(at[:, None] >= other[None, :], tl.dot(x, y) * scale, -1e30)
        more = tl.maximum(most, tl.max(scores, 1))
        parts, fade = tl.exp(scores - more[:, None]), tl.exp(most - more)
        z = tl.load(v + head + other[:, None] * width + inner[None, :])
        found = tl.dot(parts.to(z.dtype), z, found * fade[:, None])
        most, total = more, total * fade + tl.sum(parts, 1)
    tl.store(to + head + at[:, None] * width + inner[None, :], found / total[:, None])


TYPES = {"float16": "*fp16", "float32": "*fp32"}


class Buffer(c_uint64):
    """Device memory with an array in it."""

    def __init__(self, array: np.ndarray) -> None:
        c_uint64.__init__(self)
        self.array = np.ascontiguousarray(array)
        self.bytes = (c_char * array.nbytes).from_buffer(self.array)
        ok(cu.cuMemAlloc_v2(byref(self), c_size_t(array.nbytes)))
        ok(cu.cuMemcpyHtoD_v2(self, self.bytes, c_size_t(array.nbytes)))

    def read(self) -> np.ndarray:
        """Return its contents, after all work."""
        ok(cu.cuMemcpyDtoH_v2(self.bytes, self, c_size_t(self.array.nbytes)))
        return self.array


def run(kernel, grid: tuple[int, ...], arguments: list, **constants: int) -> None:
    """Compile a kernel for these arguments, and run it."""
    words = {Buffer: lambda value: TYPES[value.array.dtype.name], float: lambda _: "fp32", int: lambda _: "i32"}
    kinds = [words[type(value)](value) for value in arguments]
    signature = dict(zip(kernel.arg_names, [*kinds, *["constexpr"] * len(constants)], strict=True))
    aligned = {(number,): [["tt.divisibility", 16]] for number, kind in enumerate(kinds) if kind[0] == "*"}
    made = triton.compile(ASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", 80, 32))
    module = load(made.asm["ptx"].encode() + b"\0")
    plain = {float: c_float, int: c_int32}
    values = [plain[type(value)](value) if type(value) in plain else value for value in arguments]
    shared, threads = made.metadata.shared, 32 * made.metadata.num_warps
    entry = function(module, made.metadata.name)
    ok(cu.cuFuncSetAttribute(entry, 8, shared))
    ok(launch(entry, grid, threads, *values, 0, 0, shared=shared))  # without Triton's own buffers
    ok(synchronize())


def same(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Check that arrays are the same to the precision of the type."""
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def normal(*shape: int, dtype: type = np.float16) -> np.ndarray:
    """Return random numbers."""
    return random.standard_normal(shape).astype(dtype)


def main() -> None:
    """Run all kernels."""
    begin()
    for m, n, k, sizes in (100, 72, 50, (64, 64, 32)), (130, 128, 96, (128, 128, 32)):
        a, b, c = Buffer(normal(m, k)), Buffer(normal(k, n)), Buffer(np.zeros((m, n), np.float32))
        names = dict(zip(("size_m", "size_n", "size_k"), sizes, strict=True))
        run(product, (-(-m // sizes[0]), -(-n // sizes[1])), [a, b, c, m, n, k], **names)
        same(c.read(), a.array.astype(np.float64) @ b.array.astype(np.float64), 1e-4)

    for count, size in (781, 1024), (8000, 8192):
        x, y = Buffer(normal(3, count, dtype=np.float32)), Buffer(np.zeros((3, count), np.float32))
        run(softmax, (3,), [y, x, count], size=size)
        powers = np.exp(x.array.astype(np.float64))
        same(y.read(), powers / powers.sum(1, keepdims=True), 1e-6)

    x, y, weights, biases = (Buffer(normal(*shape)) for shape in ((3, 1500), (3, 1500), (1500,), (1500,)))
    run(normalize, (3,), [y, x, weights, biases, 1500], size=2048)
    z = x.array.astype(np.float64)
    z = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5)
    same(y.read(), z * weights.array + biases.array, 4e-3)

    q, k, v, to = (Buffer(normal(2, 256, 64)) for _ in range(4))
    run(attention, (2, 2), [q, k, v, to, 0.125, 256], rows=128, columns=64, width=64)
    q, k, v = (one.array.astype(np.float64) for one in (q, k, v))
    scores = np.where(np.tri(256) > 0, np.exp(q @ k.swapaxes(1, 2) / 8), 0)
    same(to.read(), scores / scores.sum(-1, keepdims=True) @ v, 4e-3)


if __name__ == "__main__":
    main()
