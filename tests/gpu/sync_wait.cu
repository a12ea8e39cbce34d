// Run by tests/gpu/sync_wait.py with and without probes: `sync_wait CLOCKS`. It prints a checksum of the
// kernels' results.
//
// Warp w of a block reaches the barrier w * CLOCKS after warp 0. In a cluster, the second block's warps
// arrive after all warps of the first block.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status = (call);                                                                         \
        if (status != cudaSuccess) {                                                                         \
            fprintf(stderr, "%d: %s\n", __LINE__, cudaGetErrorString(status));                               \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS, BLOCKS = 8, TURNS = 8, TIMES = 3;

__device__ void spin(long long clocks) {
    long long start = clock64();
    while (clock64() - start < clocks)
        ;
}

__device__ unsigned warp() { return threadIdx.x / 32; }

#define KERNEL(name) __global__ void name(unsigned *out, unsigned clocks)
#define SUM out[blockIdx.x * THREADS + threadIdx.x]

KERNEL(bar_sync) {
    spin(warp() * clocks);
    asm volatile("bar.sync 0;" ::: "memory");
    SUM += 1;
}

KERNEL(counted) {
    spin(warp() * clocks);
    asm volatile("bar.sync 2, %0;" ::"r"(blockDim.x) : "memory");
    SUM += 2;
}

KERNEL(barrier_sync) { // not aligned: lanes may come apart
    spin(warp() * clocks);
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(THREADS) : "memory");
    SUM += 3;
}

KERNEL(bar_red) {
    unsigned odd;
    spin(warp() * clocks);
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.cta.red.popc.u32 %0, 0, p; }"
                 : "=r"(odd)
                 : "r"(threadIdx.x & 1)
                 : "memory");
    SUM += odd;
}

KERNEL(shared) { // what comes next depends on the barrier
    __shared__ unsigned values[THREADS];
    values[threadIdx.x] = threadIdx.x;
    spin(warp() * clocks);
    __syncthreads();
    SUM += values[THREADS - 1 - threadIdx.x];
}

KERNEL(masked) { // ptxas knows which lanes are active after the barrier
    unsigned before = __activemask();
    spin(warp() * clocks);
    asm volatile("bar.sync 0;" ::: "memory");
    SUM += before + __activemask();
}

KERNEL(turns) { // warps are late in turn
    for (unsigned i = 0; i < TURNS; i++) {
        if (warp() == i % WARPS)
            spin(clocks);
        __syncthreads();
    }
    SUM += 5;
}

KERNEL(rolled) { // the same barrier each time
#pragma unroll 1
    for (unsigned i = 0; i < TURNS; i++) {
        if (warp() == i % WARPS)
            spin(clocks);
        __syncthreads();
    }
    SUM += 7;
}

KERNEL(crowded) { // 28 other warps come to the barriers, too, without a delay
#pragma unroll 2
    for (unsigned i = 0; i < TURNS; i++) {
        if (warp() == i % WARPS)
            spin(clocks);
        __syncthreads();
    }
    if (warp() < WARPS)
        SUM += 8;
}

__global__ void __cluster_dims__(2, 1, 1) cluster(unsigned *out, unsigned clocks) {
    spin((blockIdx.x % 2 * WARPS + warp()) * clocks);
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    SUM += 6;
}

int main(int count, char **args) {
    unsigned clocks = count > 1 ? atoi(args[1]) : 10000, *out, found[BLOCKS * THREADS], sum = 0;
    OK(cudaMalloc(&out, sizeof(found)));
    OK(cudaMemset(out, 0, sizeof(found)));
    for (auto kernel :
         {bar_sync, counted, barrier_sync, bar_red, shared, masked, turns, rolled, crowded, cluster})
        for (unsigned i = 0; i < TIMES; i++) {
            kernel<<<BLOCKS, kernel == crowded ? 1024 : THREADS>>>(out, clocks);
            OK(cudaGetLastError());
            OK(cudaDeviceSynchronize());
        }
    OK(cudaMemcpy(found, out, sizeof(found), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < BLOCKS * THREADS; i++)
        sum = sum * 31 + found[i];
    printf("%u\n", sum);
}
