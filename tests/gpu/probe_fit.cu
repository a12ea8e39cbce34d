// Run by tests/gpu/probe_fit.py with and without probes: `probe_fit block|grid|spin|cluster TIMES`. It prints
// a checksum of the kernels' results.
//
// Each kernel exists in variants with more and more live values. The program chooses the variant with the
// most registers that still fits, so it has no registers left for probes.

#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status = (call);                                                                         \
        if (status != cudaSuccess) {                                                                         \
            fprintf(stderr, "%d: %s\n", __LINE__, cudaGetErrorString(status));                               \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

template <int ALIVE> __device__ unsigned mix(const volatile unsigned *from, unsigned seed) {
    unsigned values[ALIVE], sum = seed;
#pragma unroll
    for (int i = 0; i < ALIVE; i++)
        values[i] = from[i] * seed;
#pragma unroll
    for (int i = 0; i < ALIVE; i++) // all of them are needed after the last one is known
        sum = sum * 31 + (values[ALIVE - 1 - i] ^ (sum >> 3));
    return sum;
}

template <int ALIVE> __global__ void wide(unsigned *out, const unsigned *from) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] += mix<ALIVE>(from, i + 1);
}

// All blocks wait for each other, so all must be resident at once.
template <int ALIVE> __global__ void meet(unsigned *out, const unsigned *from, unsigned *arrived) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned found = mix<ALIVE>(from, i + 1);
    __syncthreads();
    if (!threadIdx.x) {
        unsigned round = atomicAdd(arrived, 1) / gridDim.x;
        while (*(volatile unsigned *)arrived < (round + 1) * gridDim.x)
            __nanosleep(100);
    }
    __syncthreads();
    out[i] += found;
}

template <int ALIVE> __global__ void cluster(unsigned *out, const unsigned *from) {
    __shared__ unsigned mine;
    auto all = cooperative_groups::this_cluster();
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (!threadIdx.x)
        mine = blockIdx.x;
    unsigned found = mix<ALIVE>(from, i + 1);
    all.sync();
    unsigned other = *all.map_shared_rank(&mine, (all.block_rank() + 1) % all.num_blocks());
    all.sync();
    out[i] += found + other;
}

typedef void (*plain)(unsigned *, const unsigned *);
typedef void (*meeting)(unsigned *, const unsigned *, unsigned *);
#define ALL(kernel)                                                                                          \
    {kernel<24>, kernel<28>, kernel<32>, kernel<36>, kernel<40>, kernel<44>, kernel<48>, kernel<52>}
static const plain wides[] = ALL(wide), clusters[] = ALL(cluster);
static const meeting meets[] = ALL(meet);
enum { KERNELS = 8, MOST = 1 << 20, THREADS = 256 };

static int registers_of(const void *kernel) {
    cudaFuncAttributes about;
    OK(cudaFuncGetAttributes(&about, kernel));
    return about.numRegs;
}

// Choose the variant with the most registers, up to `most`.
template <typename KERNEL> static KERNEL choose(const KERNEL *kernels, int most) {
    int best = 0;
    for (int i = 0; i < KERNELS; i++)
        if (registers_of((const void *)kernels[i]) <= most)
            best = i;
    fprintf(stderr, "registers %d of %d\n", registers_of((const void *)kernels[best]), most);
    return kernels[best];
}

int main(int argc, char **argv) {
    const char *part = argv[1];
    unsigned *out, *from, *arrived, words[64], sum = 0;
    int times = atoi(argv[2]), processors, blocks = 0;
    OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    OK(cudaMalloc(&out, MOST * sizeof(*out)));
    OK(cudaMemset(out, 0, MOST * sizeof(*out)));
    OK(cudaMalloc(&from, sizeof(words)));
    OK(cudaMalloc(&arrived, sizeof(*arrived)));
    OK(cudaMemset(arrived, 0, sizeof(*arrived)));
    for (unsigned i = 0; i < 64; i++)
        words[i] = 2654435761u * (i + 1);
    OK(cudaMemcpy(from, words, sizeof(words), cudaMemcpyHostToDevice));
    bool block = !strcmp(part, "block"), grid = !strcmp(part, "grid"), spin = !strcmp(part, "spin");
    plain wide_one = choose(block ? wides : clusters, 64); // with 1024 threads
    meeting meet_one = choose(meets, 48);                  // 5 blocks of 256 threads on a multiprocessor
    if (grid)
        blocks = 65536 / (THREADS * ((registers_of((const void *)meet_one) + 7) / 8 * 8));
    for (int i = 0; i < times; i++) {
        void *args[] = {&out, &from, &arrived};
        if (spin && !i) // it trusts what it is told once
            OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, meet_one, THREADS, 0));
        cudaLaunchAttribute of_cluster = {};
        of_cluster.id = cudaLaunchAttributeClusterDimension;
        of_cluster.val.clusterDim.x = 8, of_cluster.val.clusterDim.y = of_cluster.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = 8 * 16, config.blockDim = 1024, config.attrs = &of_cluster, config.numAttrs = 1;
        if (block)
            OK(cudaLaunchKernel((const void *)wide_one, 64, 1024, args, 0, 0));
        else if (grid)
            OK(cudaLaunchCooperativeKernel((const void *)meet_one, blocks * processors, THREADS, args, 0, 0));
        else if (spin)
            OK(cudaLaunchKernel((const void *)meet_one, blocks * processors, THREADS, args, 0, 0));
        else
            OK(cudaLaunchKernelExC(&config, (const void *)wide_one, args));
        OK(cudaDeviceSynchronize());
        usleep(20000);
    }
    // With probes the number of blocks may differ, so only the first results are summed.
    enum { COMPARED = 1 << 15 };
    static unsigned found[COMPARED];
    OK(cudaMemcpy(found, out, sizeof(found), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < COMPARED; i++)
        sum = sum * 31 + found[i];
    printf("%s %08x\n", part, sum);
    return 0;
}
