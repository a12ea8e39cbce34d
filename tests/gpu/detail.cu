// detail REPLAYS NODES SHARED BLOCKS LAUNCHES
//
// Launches a kernel of BLOCKS blocks, with SHARED bytes of dynamic shared memory, LAUNCHES times; then
// launches a graph of NODES such kernels REPLAYS times. It checks the result, and prints the us per launch
// and per graph.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status_ = (call);                                                                        \
        if (status_ != cudaSuccess) {                                                                        \
            printf("%s: %s\n", #call, cudaGetErrorString(status_));                                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

extern __shared__ unsigned own[];

// Each thread adds 1 to its item. The block's data in dynamic shared memory must stay unchanged.
__global__ void add_one(unsigned *items, unsigned *wrong, unsigned words) {
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
        own[i] = i ^ blockIdx.x;
    __syncthreads();
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    items[at] += 1;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
        if (own[i] != (i ^ blockIdx.x))
            atomicAdd(wrong, 1);
}

int main(int argc, char **argv) {
    int replays = atoi(argv[1]), nodes = atoi(argv[2]), shared = atoi(argv[3]), blocks = atoi(argv[4]);
    int launches = atoi(argv[5]);
    unsigned *items, *wrong, last, bad;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaMalloc(&items, blocks * 256 * sizeof(*items)));
    OK(cudaMalloc(&wrong, sizeof(*wrong)));
    OK(cudaMemset(items, 0, blocks * 256 * sizeof(*items)));
    OK(cudaMemset(wrong, 0, sizeof(*wrong)));
    OK(cudaStreamCreate(&stream));
    OK(cudaDeviceSynchronize());
    auto launch = [&] { add_one<<<blocks, 256, shared, stream>>>(items, wrong, shared / 4); };
    auto time = [&](int calls, auto call) {
        call();
        OK(cudaStreamSynchronize(stream));
        auto begin = std::chrono::steady_clock::now();
        for (int i = 1; i < calls; i++)
            call();
        OK(cudaStreamSynchronize(stream));
        std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
        return took.count() / (calls - 1);
    };
    double plain = time(launches, launch);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < nodes; i++)
        launch();
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    double replayed = time(replays, [&] { OK(cudaGraphLaunch(exec, stream)); });
    OK(cudaMemcpy(&last, items + blocks * 256 - 1, sizeof(last), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&bad, wrong, sizeof(bad), cudaMemcpyDeviceToHost));
    if (bad || last != (unsigned)(launches + replays * nodes))
        return printf("wrong: %u words, %u additions of %d\n", bad, last, launches + replays * nodes), 1;
    printf("us a launch %.2f, a graph %.2f\n", plain, replayed);
    return 0;
}
