// Kernels of random programs (random_programs.py). Each works on items below `count` of its own buffer, in
// whole numbers, and reads and writes so many bytes of global memory in each thread that has an item.

typedef unsigned u32;

#define NUMBER (blockIdx.x * blockDim.x + threadIdx.x)

__device__ u32 total;
__device__ u32 table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
__constant__ u32 factor = 3;
__constant__ u32 untouched[4] = {11, 13, 17, 19};
__managed__ u32 shared_with_host = 7;

extern "C" __global__ void nothing() { atomicAdd(&total, 1u); }

extern "C" __global__ void scale(u32 *items, u32 count, u32 with) {
    u32 i = NUMBER;
    if (i < count)
        items[i] = items[i] * factor + with + untouched[i % 4];
}

struct mixed {
    char a;
    long long b;
    short c[3];
    int4 d;
    char e;
};

extern "C" __global__ void mix(char first, mixed m, u32 *items, u32 count, u32 with) {
    u32 i = NUMBER;
    if (i < count)
        items[i] += first * m.a + (u32)m.b + m.c[i % 3] + m.d.w * with + m.e;
}

template <int N> struct words {
    u32 of[N];
};

#define WITH_WORDS(name, N)                                                                                  \
    extern "C" __global__ void name(u32 *items, u32 count, u32 with, __grid_constant__ const words<N> w) {   \
        u32 i = NUMBER;                                                                                      \
        if (i < count)                                                                                       \
            items[i] = items[i] * with + w.of[i * 37 % N];                                                   \
    }
WITH_WORDS(words_4080, 1020)
WITH_WORDS(words_4000, 1000)
WITH_WORDS(words_32000, 8000)
WITH_WORDS(words_32748, 8187)

extern "C" __global__ void shape(u32 *items, u32 count, u32 with) {
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    u32 i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    if (i < count)
        items[i] ^= with + blockIdx.y * 5 + blockIdx.z * 7 + threadIdx.y * 11 + threadIdx.z * 13;
}

extern __shared__ u32 dynamic[];

extern "C" __global__ void turn(u32 *items, u32 count, u32 with) {
    u32 i = NUMBER;
    dynamic[threadIdx.x] = i < count ? items[i] : 0;
    __syncthreads();
    if (i < count)
        items[i] = dynamic[blockDim.x - 1 - threadIdx.x] + with;
}

extern "C" __global__ void large(u32 *items, u32 count, u32 with) {
    __shared__ u32 room[12 * 1000];
    u32 i = NUMBER;
    for (u32 k = threadIdx.x; k < 12000; k += blockDim.x)
        room[k] = k * with;
    __syncthreads();
    if (i < count)
        items[i] += room[i * 7919 % 12000];
}

__device__ __noinline__ u32 twice(u32 x) { return 2 * x; }
__device__ __noinline__ u32 next(u32 x) { return x + 1; }
__device__ __noinline__ u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
typedef u32 function(u32);
__device__ function *functions[3] = {twice, next, fibonacci};

extern "C" __global__ void call(u32 *items, u32 count, u32 with) {
    u32 i = NUMBER;
    if (i < count)
        items[i] = functions[(i + with) % 3](items[i] % 8);
}

extern "C" __global__ void local(u32 *items, u32 count, u32 with) {
    u32 i = NUMBER, own[64];
    for (u32 k = 0; k < 64; k++)
        own[k * 5 % 64] = k + with;
    if (i < count)
        items[i] += own[(items[i] + i) % 64];
}

extern "C" __global__ void variables(u32 *items, u32 count, u32 with) {
    u32 i = NUMBER;
    if (i < count) {
        items[i] += table[(i + with) % 16] + shared_with_host;
        atomicAdd(&total, with);
    }
}

// A barrier of all blocks, which are resident at once: `gate` is zero before it.
extern "C" __global__ void meet(u32 *items, u32 count, u32 with, u32 *gate) {
    u32 i = NUMBER;
    __syncthreads();
    if (!threadIdx.x) {
        atomicAdd(gate, 1u);
        while (atomicAdd(gate, 0u) < gridDim.x)
            ;
    }
    __syncthreads();
    if (i < count)
        items[i] += with;
}

extern "C" __global__ void say(u32 *items, u32 count, u32 with) {
    u32 i = NUMBER;
    if (i < count)
        items[i] += with;
    if (!i)
        printf("kernel: %u of %u\n", with, count);
}

extern "C" __global__ void early(u32 *items, u32 count, u32 with) {
    u32 i = NUMBER;
    if (i >= count || i % 3 == with % 3)
        return;
    for (u32 k = 0; k < i % 5; k++)
        items[i] = items[i] * 5 + k;
}

// A kernel that faults, in one thread only.
extern "C" __global__ void fail(u32 *items, u32 count, u32 with) {
    if (NUMBER != count / 2)
        return;
    if (with % 5 == 0)
        __trap();
    else if (with % 5 == 1)
        *(volatile u32 *)16 = 1;
    else if (with % 5 == 2)
        *(volatile u32 *)((char *)items + 1) = 1;
    else if (with % 5 == 3)
        ((function *)(void *)12345)(1);
    else
        *(volatile u32 *)(items + (1ull << 34)) = 1;
}
