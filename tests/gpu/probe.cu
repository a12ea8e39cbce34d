// Launches in all forms that CUDA runtime programs use, and prints the kernels' results.

#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status_ = (call);                                                                        \
        if (status_) {                                                                                       \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));                                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

__device__ unsigned total;
__constant__ unsigned factor;

// Each of n threads reads and writes 4 bytes of items. The atomic on total reads and writes 4 bytes more.
__global__ void scale(unsigned *items, unsigned added, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    items[i] = items[i] * factor + added;
    atomicAdd(&total, 1);
}

// Needs 64 KiB of dynamic shared memory, which must be allowed by an attribute of the kernel.
__global__ void reversed(unsigned *items) {
    extern __shared__ unsigned shared[];
    for (unsigned i = threadIdx.x; i < 16384; i += blockDim.x)
        shared[i] = items[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 16384; i += blockDim.x)
        items[i] = shared[16383 - i];
}

__global__ void in_turns(unsigned *items, unsigned turns) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    for (unsigned turn = 0; turn < turns; turn++) {
        unsigned next = items[(i + 1) % n];
        cooperative_groups::this_grid().sync();
        items[i] = next + 1;
        cooperative_groups::this_grid().sync();
    }
}

static unsigned long long hash(const unsigned *items, size_t count) {
    std::vector<unsigned> found(count);
    OK(cudaMemcpy(found.data(), items, 4 * count, cudaMemcpyDeviceToHost));
    unsigned long long sum = 1469598103934665603ull;
    for (unsigned item : found)
        sum = (sum ^ item) * 1099511628211ull;
    return sum;
}

static const unsigned N = 1 << 16;

static void work(unsigned long long *result) {
    unsigned *items;
    cudaStream_t stream;
    OK(cudaMalloc(&items, 4 * N));
    OK(cudaMemset(items, 1, 4 * N));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < 100; i++) {
        scale<<<N / 256 + 1, 256, 0, stream>>>(items, i, N);
        if (i % 25 == 24)
            OK(cudaStreamSynchronize(stream));
    }
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceSynchronize());
    *result = hash(items, N);
    OK(cudaFree(items));
}

int main() {
    unsigned *items, three = 3, counted;
    OK(cudaMalloc(&items, 4 * N));
    OK(cudaMemset(items, 1, 4 * N));
    OK(cudaMemcpyToSymbol(factor, &three, 4));
    scale<<<N / 256 + 1, 256>>>(items, 5, N);
    printf("scale %llx\n", hash(items, N));
    for (unsigned by = 4; by < 8; by++) {
        OK(cudaMemcpyToSymbolAsync(factor, &by, 4, 0, cudaMemcpyHostToDevice));
        scale<<<N / 256 + 1, 256>>>(items, by, N);
    }
    printf("constants %llx\n", hash(items, N));

    OK(cudaFuncSetAttribute(reversed, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    reversed<<<1, 1024, 65536>>>(items);
    printf("shared %llx\n", hash(items, N));
    reversed<<<1, 1024, 1 << 20>>>(items);
    printf("too much shared memory: %s\n", cudaGetErrorName(cudaGetLastError()));

    int blocks = 0, processors = 0;
    unsigned turns = 10;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, in_turns, 256, 0));
    OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    void *arguments[] = {&items, &turns};
    OK(cudaLaunchCooperativeKernel((void *)in_turns, dim3(blocks * processors < 64 ? 1 : 64), dim3(256),
                                   arguments, 0, 0));
    printf("cooperative %llx\n", hash(items, N));

    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    scale<<<N / 256 + 1, 256, 0, stream>>>(items, 9, N);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    printf("graph %llx\n", hash(items, N));

    unsigned long long results[8];
    std::vector<std::thread> threads;
    for (auto &result : results)
        threads.emplace_back(work, &result);
    for (auto &thread : threads)
        thread.join();
    for (auto result : results)
        printf("thread %llx\n", result);
    OK(cudaMemcpyFromSymbol(&counted, total, 4));
    printf("total %u\n", counted);
    return 0;
}
