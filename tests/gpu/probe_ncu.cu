// Kernels whose memory accesses are known exactly. probe_ncu.py lists the instructions, threads and bytes of
// each.

#include <cstdio>
#include <cstdlib>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status_ = (call);                                                                        \
        if (status_) {                                                                                       \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));                                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define KERNEL extern "C" __global__ void

typedef volatile unsigned words; // so that each access is one instruction, where it stands

__device__ unsigned index() { return blockIdx.x * blockDim.x + threadIdx.x; }

KERNEL straight(words *a, words *b, unsigned n) { b[index()] = a[index()] + n; }

KERNEL bounded(words *a, words *b, unsigned n) {
    unsigned i = index();
    if (i < n)
        b[i] = a[i] + 1;
}

// Lane i loads i + 1 times.
KERNEL diverging(words *a, words *b, unsigned n) {
    unsigned i = index(), sum = n;
#pragma unroll 1
    for (unsigned k = 0; k <= threadIdx.x % 32; k++)
        sum += a[i] + k;
    __syncwarp();
    b[i] = sum;
}

// Half of the lanes load, the others store.
KERNEL halves(words *a, words *b, unsigned n) {
    unsigned i = index();
    if (i % 2)
        asm volatile("{ .reg .u32 x; ld.volatile.global.u32 x, [%0]; }" ::"l"(a + i));
    else
        asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(b + i), "r"(n));
}

KERNEL vectors(words *a, words *b, unsigned n) {
    unsigned i = index();
    asm volatile("{ .reg .u32 x, y, z, w; ld.volatile.global.v4.u32 {x, y, z, w}, [%0];"
                 " st.volatile.global.v2.u32 [%1], {x, w}; }" ::"l"(a + 4 * i),
                 "l"(b + 2 * i));
}

KERNEL bytes(words *a, words *b, unsigned n) {
    volatile unsigned char *from = (volatile unsigned char *)a, *to = (volatile unsigned char *)b;
    to[index()] = from[index()];
}

// An atomic with a result, and one without.
KERNEL atomics(words *a, words *b, unsigned n) {
    unsigned i = index(), old;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(a + i), "r"(n));
    asm volatile("red.global.add.u32 [%0], %1;" ::"l"(b + i), "r"(old | 1));
}

KERNEL tiled(words *a, words *b, unsigned n) {
    __shared__ unsigned kept[256];
    volatile unsigned *tile = kept;
    tile[threadIdx.x] = a[index()];
    __syncthreads();
    b[index()] = tile[255 - threadIdx.x] + n;
}

KERNEL strided(words *a, words *b, unsigned n) {
    unsigned sum = 0;
#pragma unroll 1
    for (unsigned i = index(); i < n; i += gridDim.x * blockDim.x)
        sum += a[i];
    b[index()] = sum;
}

KERNEL products(words *a, words *b, unsigned n) {
    float x = (float)a[index()];
#pragma unroll 1
    for (unsigned k = 0; k < 10; k++)
        asm volatile("fma.rn.f32 %0, %0, %0, 0f3F800000;" : "+f"(x));
    b[index()] = (unsigned)x + n;
}

int main() {
    const unsigned blocks = 37, threads = 256, all = blocks * threads;
    unsigned *a, *b, sum = 0, *found = (unsigned *)malloc(16 * all);
    OK(cudaMalloc(&a, 16 * all));
    OK(cudaMalloc(&b, 16 * all));
    void (*kernels[])(words *, words *, unsigned) = {straight, bounded, diverging, halves,  vectors,
                                                     bytes,    atomics, tiled,     strided, products};
    for (auto kernel : kernels) {
        OK(cudaMemset(a, 7, 16 * all));
        OK(cudaMemset(b, 1, 16 * all));
        kernel<<<blocks, threads>>>(a, b, kernel == strided ? 3 * all - 1024 : all - 1000);
        OK(cudaGetLastError());
        OK(cudaMemcpy(found, b, 16 * all, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < 4 * all; i++)
            sum = sum * 31 + found[i];
    }
    printf("sum %u\n", sum);
    return 0;
}
