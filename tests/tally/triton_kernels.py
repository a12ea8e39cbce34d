"""Triton kernels, compiled to PTX without a GPU: `python triton_kernels.py ARCH FOLDER`, with triton importable.

They're like the kernels that people write: tiles, masks, loops over blocks, tensor cores, reductions and scans,
atomics, random numbers, various numbers of pipeline stages and warps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def copy_unmasked(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, eviction_policy="evict_last"), cache_modifier=".cs")


@triton.jit
def softmax(out, x, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, at < n, other=-float("inf"))
    top = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * stride + at, top / tl.sum(top, 0), at < n)


@triton.jit
def layer_norm(x, y, weight, bias, mean_out, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, at < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / n
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.where(at < n, tl.load(x + row * stride + at, at < n, other=0.0).to(tl.float32) - mean, 0.0)
        square += value * value
    scale = 1 / tl.sqrt(tl.sum(square, 0) / n + eps)
    tl.store(mean_out + row, mean)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * stride + at, at < n, other=0.0).to(tl.float32)
        result = (value - mean) * scale * tl.load(weight + at, at < n) + tl.load(bias + at, at < n)
        tl.store(y + row * stride + at, result, at < n)


@triton.jit
def matmul(a, b, c, m, n, k, sam, sbk, scm, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, INT: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    at_a = a + rows[:, None] * sam + inner[None, :]
    at_b = b + inner[:, None] * sbk + columns[None, :]
    total = tl.zeros([M, N], tl.int32 if INT else tl.float32)
    for start in range(0, k, K):
        left = tl.load(at_a, (rows[:, None] < m) & (start + inner[None, :] < k), other=0.0)
        right = tl.load(at_b, (columns[None, :] < n) & (start + inner[:, None] < k), other=0.0)
        total = tl.dot(left, right, total, out_dtype=total.dtype)
        at_a += K
        at_b += K * sbk
    where = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * scm + columns[None, :], total.to(c.dtype.element_ty), where)


@triton.jit
def matmul_persistent(a, b, c, m, n, k, PROGRAMS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    across = tl.cdiv(n, N)
    for tile in range(tl.program_id(0), tl.cdiv(m, M) * across, PROGRAMS):
        rows = tile // across * M + tl.arange(0, M)
        columns = tile % across * N + tl.arange(0, N)
        total = tl.zeros([M, N], tl.float32)
        for step in range(tl.cdiv(k, K)):
            inner = step * K + tl.arange(0, K)
            left = tl.load(a + rows[:, None] * k + inner[None, :])
            total = tl.dot(left, tl.load(b + inner[:, None] * n + columns[None, :]), total)
        tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit
def matmul_descriptor(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [m, k], [k, 1], [M, K])
    right = tl.make_tensor_descriptor(b, [n, k], [k, 1], [N, K])
    out = tl.make_tensor_descriptor(c, [m, n], [n, 1], [M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros([M, N], tl.float32)
    for start in range(0, k, K):
        total = tl.dot(left.load([row, start]), right.load([column, start]).T, total)
    out.store([row, column], total.to(tl.float16))


@triton.jit
def attention(q, k, v, out, length, scale, BLOCK: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr):
    base = tl.program_id(1) * length * WIDTH
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, WIDTH)
    query = tl.load(q + base + rows[:, None] * WIDTH + inner[None, :], rows[:, None] < length, other=0.0)
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BLOCK if CAUSAL else length, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        key = tl.load(k + base + columns[None, :] * WIDTH + inner[:, None], columns[None, :] < length, other=0.0)
        score = tl.dot(query, key) * scale
        if CAUSAL:
            score = tl.where(rows[:, None] >= columns[None, :], score, -float("inf"))
        above = tl.maximum(top, tl.max(score, 1))
        part = tl.exp2(score - above[:, None])
        shrink = tl.exp2(top - above)
        value = tl.load(v + base + columns[:, None] * WIDTH + inner[None, :], columns[:, None] < length, other=0.0)
        total = total * shrink[:, None] + tl.dot(part.to(tl.float16), value)
        weight = weight * shrink + tl.sum(part, 1)
        top = above
    result = (total / weight[:, None]).to(tl.float16)
    tl.store(out + base + rows[:, None] * WIDTH + inner[None, :], result, rows[:, None] < length)


@triton.jit
def reduce_rows(x, out, index, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, at < n, other=0.0)
    tl.store(out + row, tl.sum(value * value, 0) + tl.min(value, 0) + tl.xor_sum((value > 0).to(tl.int32), 0))
    tl.store(index + row, tl.argmax(value, 0))


@triton.jit
def reduce_columns(x, out, M: tl.constexpr, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + tl.arange(0, N), tl.sum(value, 0))
    tl.store(out + N + tl.arange(0, M), tl.max(value, 1))


@triton.jit
def combine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def scans(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.cumsum(first, 0) + tl.cumprod(second, 0))
    _, state = tl.associative_scan((first, second), 0, combine)
    tl.store(y + at, state)


@triton.jit
def atomics(counts, sums, locks, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0.0)
    where = value.to(tl.int32) & 63
    tl.atomic_add(counts + where, 1, at < n, sem="relaxed")
    tl.atomic_max(counts + 64 + where, where, at < n)
    tl.atomic_add(sums + where, value, at < n, scope="cta")
    while tl.atomic_cas(locks, 0, 1) == 1:
        pass
    tl.store(sums + 64, tl.sum(value, 0) + tl.load(sums + 64))
    tl.atomic_xchg(locks, 0)


@triton.jit
def dropout(x, out, seed, p, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, at) > p
    noise = tl.randn(seed + 1, at)
    tl.store(out + at, tl.where(keep, tl.load(x + at, at < n) / (1 - p), noise), at < n)


@triton.jit
def histogram(x, out, BINS: tl.constexpr, BLOCK: tl.constexpr):
    found = tl.histogram(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), BINS)
    tl.atomic_add(out + tl.arange(0, BINS), found)


@triton.jit
def sort_and_gather(x, out, index, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.sort(tl.load(x + at), descending=True)
    tl.store(out + at, tl.gather(value, tl.load(index + at), 0))


@triton.jit
def transpose(x, out, m, n, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    value = tl.load(x + rows[:, None] * n + columns[None, :], (rows[:, None] < m) & (columns[None, :] < n))
    tl.store(out + columns[:, None] * m + rows[None, :], value.T, (columns[:, None] < n) & (rows[None, :] < m))


@triton.jit
def math(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, at < n), tl.load(y + at, at < n)
    c = tl.sin(a) + tl.cos(b) + tl.log(tl.abs(a) + 1) * tl.rsqrt(b) + tl.erf(a) + tl.floor(b) + tl.sigmoid(a)
    c = tl.fma(a, b, c) + tl.math.div_rn(a, b) + tl.clamp(a, -1.0, 1.0) + tl.umulhi(at, at).to(tl.float32)
    tl.store(out + at, c + (at // n + at % n).to(tl.float32), at < n)


@triton.jit
def convert(x, half, brain, eighth, whole, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(half + at, value.to(tl.float16))
    tl.store(brain + at, value.to(tl.bfloat16))
    tl.store(eighth + at, value.to(tl.float8e5))
    tl.store(whole + at, value.to(tl.int8))


@triton.jit
def interleave(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    both = tl.interleave(tl.load(x + at), tl.load(y + at))
    tl.store(out + tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK), both)
    even, odd = tl.split(tl.reshape(both, [BLOCK, 2]))
    tl.store(x + at, even - odd)


@triton.jit(noinline=True)
def slow_power(x, n):
    result = x
    for _ in range(n):
        result = result * x + 1
    return result


@triton.jit
def calls(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scale = slow_power(tl.load(x), n)
    tl.store(out + at, tl.load(x + at, at < n) * scale + slow_power(2.0, n + 1), at < n)


@triton.jit
def assembly(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    mixed = tl.inline_asm_elementwise(
        "{ .reg .b32 t; shl.b32 t, $1, 3; xor.b32 $0, t, $1; }", "=r,r", [value], tl.int32, is_pure=True, pack=1
    )
    tl.store(out + at, mixed)
    tl.debug_barrier()
    if tl.load(x) == 77:
        tl.device_print("seen", value)


@triton.jit
def early(x, out, n, limit, BLOCK: tl.constexpr):
    if tl.program_id(0) * BLOCK >= n:
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0)
    step = 0
    while (tl.max(value, 0) > limit) & (step < 64):
        value = tl.where(value > limit, value // 2, value)
        step += 1
    tl.store(out + at, value, at < n)


@triton.jit
def cross_entropy(logits, labels, loss, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top, total = -float("inf"), 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * n + at, at < n, other=-float("inf")).to(tl.float32)
        above = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - above) + tl.sum(tl.exp(value - above), 0)
        top = above
    chosen = tl.load(logits + row * n + tl.load(labels + row)).to(tl.float32)
    tl.store(loss + row, tl.log(total) + top - chosen)


P32, P16, PB16, P8, PI, PI8 = "*fp32", "*fp16", "*bf16", "*fp8e5", "*i32", "*i8"
MATMUL = {"m": "i32", "n": "i32", "k": "i32", "sam": "i32", "sbk": "i32", "scm": "i32"}
TILE = {"M": 64, "N": 64, "K": 32, "INT": False}
THREE = {"m": "i32", "n": "i32", "k": "i32"}
HEADS = {"q": P16, "k": P16, "v": P16, "out": P16, "length": "i32", "scale": "fp32"}
JOBS = {  # name -> kernel, types, constants, options, oldest target
    "add": (add, {"x": P32, "y": P32, "out": P32, "n": "i32"}, {"BLOCK": 1024}, {}, 75),
    "add_half": (add, {"x": P16, "y": P16, "out": P16, "n": "i64"}, {"BLOCK": 4096}, {"num_warps": 8}, 75),
    "copy": (copy_unmasked, {"x": P32, "out": P32}, {"BLOCK": 2048}, {}, 75),
    "softmax": (softmax, {"out": P32, "x": P32, "stride": "i32", "n": "i32"}, {"BLOCK": 1024}, {}, 75),
    "softmax_wide": (
        softmax,
        {"out": P16, "x": P16, "stride": "i32", "n": "i32"},
        {"BLOCK": 8192},
        {"num_warps": 16},
        75,
    ),
    "layer_norm": (
        layer_norm,
        {"x": P16, "y": P16, "weight": P32, "bias": P32, "mean_out": P32, "stride": "i32", "n": "i32", "eps": "fp32"},
        {"BLOCK": 1024},
        {},
        75,
    ),
    "matmul_half": (matmul, {"a": P16, "b": P16, "c": P16, **MATMUL}, TILE, {"num_stages": 3}, 75),
    "matmul_brain": (
        matmul,
        {"a": PB16, "b": PB16, "c": P32, **MATMUL},
        TILE | {"M": 128, "N": 128},
        {"num_warps": 8},
        80,
    ),
    "matmul_single": (matmul, {"a": P32, "b": P32, "c": P32, **MATMUL}, TILE, {"num_stages": 4}, 75),
    "matmul_bytes": (matmul, {"a": PI8, "b": PI8, "c": PI, **MATMUL}, TILE | {"INT": True}, {}, 80),
    "matmul_eighth": (matmul, {"a": P8, "b": P8, "c": P32, **MATMUL}, TILE, {}, 90),
    "matmul_persistent": (
        matmul_persistent,
        {"a": P16, "b": P16, "c": P16, **THREE},
        {"PROGRAMS": 132, "M": 128, "N": 128, "K": 64},
        {"num_warps": 8, "num_stages": 3},
        80,
    ),
    "matmul_descriptor": (
        matmul_descriptor,
        {"a": P16, "b": P16, "c": P16, **THREE},
        {"M": 128, "N": 128, "K": 64},
        {"num_warps": 4},
        90,
    ),
    "attention": (attention, HEADS, {"BLOCK": 64, "WIDTH": 64, "CAUSAL": False}, {"num_stages": 2}, 80),
    "attention_causal": (attention, HEADS, {"BLOCK": 128, "WIDTH": 128, "CAUSAL": True}, {"num_warps": 8}, 80),
    "reduce_rows": (reduce_rows, {"x": P32, "out": P32, "index": PI, "n": "i32"}, {"BLOCK": 2048}, {}, 75),
    "reduce_columns": (reduce_columns, {"x": P32, "out": P32}, {"M": 64, "N": 128}, {}, 75),
    "scans": (scans, {"x": P32, "y": P32, "out": P32}, {"BLOCK": 512}, {}, 75),
    "atomics": (atomics, {"counts": PI, "sums": P32, "locks": PI, "x": P32, "n": "i32"}, {"BLOCK": 256}, {}, 75),
    "dropout": (dropout, {"x": P32, "out": P32, "seed": "i32", "p": "fp32", "n": "i32"}, {"BLOCK": 1024}, {}, 75),
    "histogram": (histogram, {"x": PI, "out": PI}, {"BINS": 128, "BLOCK": 1024}, {}, 75),
    "sort_and_gather": (sort_and_gather, {"x": P32, "out": P32, "index": PI}, {"N": 256}, {}, 75),
    "transpose": (transpose, {"x": P16, "out": P16, "m": "i32", "n": "i32"}, {"B": 64}, {}, 75),
    "math": (math, {"x": P32, "y": P32, "out": P32, "n": "i32"}, {"BLOCK": 512}, {"num_warps": 2}, 75),
    "convert": (convert, {"x": P32, "half": P16, "brain": PB16, "eighth": P8, "whole": PI8}, {"BLOCK": 1024}, {}, 80),
    "interleave": (interleave, {"x": P32, "y": P32, "out": P32}, {"BLOCK": 512}, {}, 75),
    "calls": (calls, {"x": P32, "out": P32, "n": "i32"}, {"BLOCK": 256}, {}, 75),
    "assembly": (assembly, {"x": PI, "out": PI}, {"BLOCK": 256}, {"num_warps": 1}, 75),
    "early": (early, {"x": PI, "out": PI, "n": "i32", "limit": "i32"}, {"BLOCK": 512}, {}, 75),
    "cross_entropy": (
        cross_entropy,
        {"logits": PB16, "labels": "*i64", "loss": P32, "n": "i32"},
        {"BLOCK": 4096},
        {"num_warps": 8},
        80,
    ),
}


def main(arch: int, folder: Path) -> None:
    for name, (kernel, types, constants, options, oldest) in JOBS.items():
        if arch < oldest:
            continue
        names = list(kernel.arg_names)
        aligned = {(names.index(key),): [["tt.divisibility", 16]] for key, type_ in types.items() if type_[0] == "*"}
        signature = types | dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, signature, constants, aligned)
        made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        (folder / f"{name}.ptx").write_text(made.asm["ptx"])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
