"""CUDA programs with known results: `python -m tests.asm.host.programs OBJECT` runs SOURCE's kernels on the available
driver and reports errors.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
import zlib
from pathlib import Path

from tests.asm.host.driver import Driver

SOURCE = r"""
extern "C" {
__device__ unsigned long long weigh(const unsigned char *p, int n);
__constant__ unsigned table[256];
__device__ int counter = 40;
__device__ int *where = &counter;
typedef int (*function)(int, int);
__device__ int plus(int a, int b) { return a + b; }
__device__ int minus(int a, int b) { return a - b; }
__device__ int times(int a, int b) { return a * b; }
__device__ function functions[3] = {plus, minus, times};
struct Shape { __device__ virtual int area(int x) = 0; };
struct Square : Shape { __device__ int area(int x) override { return x * x; } };
struct Strip : Shape { int w; __device__ int area(int x) override { return x * w; } };
struct Big { int a[7]; char c; double d; };
__device__ __noinline__ Big shift(Big b, int by) {
    for (int i = 0; i < 7; i++) b.a[i] += by;
    b.c++; b.d /= 2;
    return b;
}
__device__ __noinline__ int ackermann(int m, int n) {
    return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

// Block sums: shared memory, shuffles, an atomic.
__global__ void sum(const int *in, int n, unsigned long long *out) {
    __shared__ long long part[32];
    long long own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += in[i];
    for (int d = 16; d; d /= 2) own += __shfl_down_sync(~0u, own, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < 32) {
        own = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        for (int d = 16; d; d /= 2) own += __shfl_xor_sync(~0u, own, d);
        if (threadIdx.x == 0) atomicAdd(out, (unsigned long long)own);
    }
}
// A bitonic sort in dynamic shared memory, by one block.
__global__ void sort(unsigned *data, int n) {
    extern __shared__ unsigned tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = data[i];
    for (int k = 2; k <= n; k *= 2)
        for (int j = k / 2; j; j /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += blockDim.x) {
                int o = i ^ j;
                if (o > i && (tile[i] > tile[o]) == !(i & k)) { unsigned x = tile[i]; tile[i] = tile[o]; tile[o] = x; }
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) data[i] = tile[i];
}
// A matrix product by tiles; whole numbers, so that any order of sums gives the same.
__global__ void product(const float *a, const float *b, float *c, int n) {
    __shared__ float x[16][17], y[16][17];
    int row = blockIdx.x / (n / 16) * 16 + threadIdx.x / 16, column = blockIdx.x % (n / 16) * 16 + threadIdx.x % 16;
    float total = 0;
    for (int k = 0; k < n; k += 16) {
        x[threadIdx.x / 16][threadIdx.x % 16] = a[row * n + k + threadIdx.x % 16];
        y[threadIdx.x / 16][threadIdx.x % 16] = b[(k + threadIdx.x / 16) * n + column];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 16; i++) total += x[threadIdx.x / 16][i] * y[i][threadIdx.x % 16];
        __syncthreads();
    }
    c[row * n + column] = total;
}
// One result each, of what a compiler does with a language.
__global__ void language(int *out, int n, Big big) {
    int i = threadIdx.x, *at = out + 12 * i;
    unsigned long long wide = 0x9e3779b97f4a7c15ull * (i + n);
    at[0] = ackermann(2, i % 4);
    at[1] = functions[i % 3](i, n);
    Square square; Strip strip; strip.w = 3;
    Shape *shapes[2] = {&square, &strip};
    at[2] = shapes[(i + n) & 1]->area(i);
    Big moved = shift(big, i);
    at[3] = moved.a[i % 7] * 100 + moved.c + (int)moved.d;
    switch (i % 9) {
    case 0: at[4] = 11; break; case 1: at[4] = n; break; case 2: at[4] = 7 * i; break; case 3: at[4] = -1; break;
    case 4: at[4] = i ^ n; break; case 5: at[4] = ~i; break; case 6: at[4] = i << 3; break; default: at[4] = 5;
    }
    at[5] = (int)(wide / (unsigned long long)(i + 3) % 1000003);
    unsigned char bytes[40];
    for (int k = 0; k < 40; k++) bytes[k] = (unsigned char)(wide >> k % 8 * 8) ^ k;
    at[6] = (int)weigh(bytes, 20 + i % 20);
    at[7] = (int)(((unsigned __int128)wide * wide) >> 70);
    at[8] = __popc(i) + __clz(n + i) * 10 + __brev(i) % 7 + __ffs(i) * 100 + __byte_perm(i, n, 0x1604);
    at[9] = *where + (i == 0 ? 0 : 0);
    double root = sqrt((double)i * 16.0);
    at[10] = (int)root + (int)(1.5f * i) + (int)rintf(i / 2.0f);
    at[11] = __ballot_sync(__activemask(), i % 3 == 0);
    if (i % 5 == 0) return;
    atomicAdd(&counter, 0);
}
__device__ __noinline__ unsigned long long weigh(const unsigned char *p, int n) {
    unsigned crc = ~0u;
    for (int k = 0; k < n; k++) crc = table[(crc ^ p[k]) & 255] ^ crc >> 8;
    return ~crc;
}
// Locks: between lanes of a warp, warps and blocks.
__global__ void locked(unsigned *lock, unsigned *out) {
    for (bool done = false; !done;)
        if (atomicCAS(lock, 0u, 1u) == 0) {
            out[0] = out[0] * 3 + 1; out[1]++;
            __threadfence();
            atomicExch(lock, 0u);
            done = true;
        }
}
}
"""


def crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        table.append(value)
    return table


def wrap(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def language(i: int, n: int) -> list[int]:
    """Return the result of a thread of the kernel with that name."""
    wide = 0x9E3779B97F4A7C15 * (i + n) % (1 << 64)
    chosen = [11, n, 7 * i, -1, i ^ n, ~i, i << 3, 5, 5]
    content = bytes((wide >> k % 8 * 8 & 255) ^ k for k in range(40))
    reversed_ = int(f"{i:032b}"[::-1], 2)
    bytes_ = (n << 32 | i).to_bytes(8, "little")
    permuted = int.from_bytes(bytes(bytes_[0x1604 >> 4 * k & 7] for k in range(4)), "little")
    return [
        2 * (i % 4) + 3,  # ackermann(2, n)
        (i + n, i - n, i * n)[i % 3],
        (i * i, 3 * i)[(i + n) & 1],
        (i % 7 + 1 + i) * 100 + 6 + 4,
        chosen[i % 9],
        wide // (i + 3) % 1000003,
        zlib.crc32(content[: 20 + i % 20]),
        wide * wide >> 70,
        i.bit_count() + (32 - (n + i).bit_length()) * 10 + reversed_ % 7 + ((i & -i).bit_length() * 100) + permuted,
        40,
        int((i * 16.0) ** 0.5) + int(1.5 * i) + round(i / 2),
        sum(1 << lane for lane in range(32) if (i // 32 * 32 + lane) % 3 == 0),
    ]


def check(name: str, found: object, wanted: object) -> None:
    if found != wanted:
        sys.exit(f"{name}: {str(found)[:300]}, not {str(wanted)[:300]}")


def main(image: str) -> None:
    driver = Driver()
    module = driver.load(Path(image).read_bytes())
    chance = random.Random(7)

    def run(name: str, *rest: object, **more: int) -> None:
        driver.launch(driver.function(module, name), *rest, **more)

    values = [chance.randrange(-(1 << 31), 1 << 31) for _ in range(5000)]
    given, out = driver.allocate(struct.pack("<5000i", *values)), driver.allocate(8)
    run("sum", 3, 192, given, ctypes.c_int(5000), out)
    check("sum", struct.unpack("<q", driver.read(out, 8))[0], sum(values))

    words = [chance.getrandbits(32) for _ in range(1024)]
    given = driver.allocate(struct.pack("<1024I", *words))
    run("sort", 1, 96, given, ctypes.c_int(1024), shared=4096)
    check("sort", list(struct.unpack("<1024I", driver.read(given, 4096))), sorted(words))

    n = 48
    a, b = ([float(chance.randrange(-9, 10)) for _ in range(n * n)] for _ in range(2))
    places = [driver.allocate(struct.pack(f"<{n * n}f", *one)) for one in (a, b)]
    out = driver.allocate(4 * n * n)
    run("product", (n // 16) ** 2, 256, *places, out, ctypes.c_int(n))
    wanted = [sum(a[r * n + k] * b[k * n + c] for k in range(n)) for r in range(n) for c in range(n)]
    check("product", list(struct.unpack(f"<{n * n}f", driver.read(out, 4 * n * n))), wanted)

    table, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call("cuModuleGetGlobal_v2", ctypes.byref(table), ctypes.byref(size), module, b"table")
    driver.call("cuMemcpyHtoD_v2", table, struct.pack("<256I", *crc_table()), ctypes.c_size_t(1024))
    big = (ctypes.c_char * 40).from_buffer_copy(struct.pack("<7ib3xd", *range(1, 8), 5, 8.0))
    out = driver.allocate(4 * 12 * 64)
    run("language", 1, 64, out, ctypes.c_int(5), big)
    found = struct.unpack("<768i", driver.read(out, 4 * 768))
    for i in range(64):
        check(f"language, thread {i}", list(found[12 * i : 12 * i + 12]), list(map(wrap, language(i, 5))))

    lock, out = driver.allocate(4), driver.allocate(8)
    run("locked", 4, 64, lock, out)
    driver.wait()
    total = 0
    for _ in range(256):
        total = (total * 3 + 1) % (1 << 32)
    check("locked", struct.unpack("<2I", driver.read(out, 8)), (total, 256))


if __name__ == "__main__":
    main(sys.argv[1])
