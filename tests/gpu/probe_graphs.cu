// CUDA graphs in all forms that programs of the CUDA runtime use. `forms` prints the kernels' results.
// `replay NODES TIMES` launches a graph of NODES small kernels TIMES times, and prints on standard error how
// long that took and how much device memory was free meanwhile.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        cudaError_t status_ = (call);                                                                        \
        if (status_) {                                                                                       \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));                                 \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

__constant__ unsigned factor = 3;

// Each of n threads reads and writes 4 bytes of items.
__global__ void scale(unsigned *items, unsigned added, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        items[i] = items[i] * factor + added;
}

static const unsigned COUNT = 1 << 14;
static unsigned *items, count = COUNT, added = 5;
static cudaStream_t streams[2];

static void say(const char *what) {
    std::vector<unsigned> found(COUNT);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(found.data(), items, COUNT * 4, cudaMemcpyDeviceToHost));
    unsigned sum = 0;
    for (unsigned i = 0; i < COUNT; i++)
        sum = sum * 31 + found[i];
    printf("%s %08x\n", what, sum);
}

static void put(cudaStream_t stream) { scale<<<COUNT / 128, 128, 0, stream>>>(items, added, count); }

static cudaGraph_t captured(int kernels) {
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal));
    for (int i = 0; i < kernels; i++)
        put(streams[0]);
    OK(cudaStreamEndCapture(streams[0], &graph));
    return graph;
}

static cudaGraphExec_t instantiated(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void replay(cudaGraphExec_t exec, int times) {
    for (int i = 0; i < times; i++)
        OK(cudaGraphLaunch(exec, streams[i % 2]));
}

static cudaKernelNodeParams params_of(void **values) {
    values[0] = &items, values[1] = &added, values[2] = &count;
    cudaKernelNodeParams params = {};
    params.func = (void *)scale, params.gridDim = dim3(COUNT / 128), params.blockDim = dim3(128);
    params.kernelParams = values;
    return params;
}

static cudaGraphNode_t add(cudaGraph_t graph, const cudaGraphNode_t *after) {
    void *values[3];
    cudaKernelNodeParams params = params_of(values);
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, after, after ? 1 : 0, &params));
    return node;
}

static void check_node(cudaGraphNode_t node) {
    cudaKernelNodeParams params;
    OK(cudaGraphKernelNodeGetParams(node, &params));
    if (params.func != (void *)scale || *(unsigned **)params.kernelParams[0] != items ||
        params.blockDim.x != 128)
        printf("a node is not as the program made it\n");
}

// Makes 3 + 12 + 12 + 12 + 6 + 30 + 6 + 6 + 12 = 99 launches of `scale`; 10 to 24 of them have blocks that do
// nothing.
static void forms() {
    cudaGraph_t graph = captured(3), outer, clone;
    cudaGraphNode_t nodes[3], node;
    size_t room = 3;
    void *values[3];
    for (int i = 0; i < 3; i++)
        put(streams[0]);
    OK(cudaStreamSynchronize(streams[0]));
    cudaGraphExec_t exec = instantiated(graph);
    replay(exec, 4); // 12
    say("captured");
    OK(cudaGraphGetNodes(graph, nodes, &room));
    for (int i = 0; i < 3; i++)
        check_node(nodes[i]);
    OK(cudaGraphCreate(&outer, 0));
    OK(cudaGraphAddChildGraphNode(&node, outer, NULL, 0, graph));
    add(outer, &node);
    OK(cudaGraphClone(&clone, outer));
    cudaGraphExec_t inside = instantiated(outer), cloned = instantiated(clone);
    replay(inside, 3); // 12
    OK(cudaDeviceSynchronize());
    replay(cloned, 3); // 12
    say("inside");
    cudaKernelNodeParams params = params_of(values);
    unsigned more = 9;
    values[1] = &more;
    OK(cudaGraphExecKernelNodeSetParams(exec, nodes[1], &params));
    replay(exec, 2); // 6
    say("set");
    params.gridDim.x *= 4; // most of these blocks do nothing
    for (int i = 0; i < 10; i++) {
        more = i;
        OK(cudaGraphExecKernelNodeSetParams(exec, nodes[i % 3], &params));
        OK(cudaGraphLaunch(exec, streams[i % 2])); // 30
    }
    check_node(nodes[0]);
    say("larger");
    OK(cudaGraphKernelNodeSetParams(nodes[0], &params));
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphExecUpdate(exec, graph, &info));
    replay(exec, 2); // 6
    say("updated");
    OK(cudaGraphDestroy(graph));
    graph = captured(3);
    OK(cudaGraphExecUpdate(exec, graph, &info));
    replay(exec, 2); // 6
    say("updated from another");
    for (unsigned by = 4; by < 8; by++) {
        OK(cudaMemcpyToSymbolAsync(factor, &by, 4, 0, cudaMemcpyHostToDevice, streams[0]));
        OK(cudaStreamSynchronize(streams[0]));
        OK(cudaGraphLaunch(exec, streams[0])); // 12
        OK(cudaStreamSynchronize(streams[0]));
    }
    say("constants");
}

// Makes 40 * 3 + 20 * 5 = 220 launches in streams that are destroyed while the kernels run. Nothing waits for
// them before the program ends.
static void ended(void) {
    cudaGraph_t graph = captured(3);
    cudaGraphExec_t exec = instantiated(graph);
    cudaStream_t stream;
    cudaEvent_t before;
    OK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
    for (int i = 0; i < 40; i++) {
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        OK(cudaGraphLaunch(exec, stream)); // after the one before it, whatever stream that was in
        OK(cudaStreamDestroy(stream));
    }
    say("in streams that end");
    for (int i = 0; i < 20; i++) {
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        OK(cudaStreamWaitEvent(stream, before, 0));
        OK(cudaGraphLaunch(exec, stream)); // 60
        put(stream);
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        put(stream);
        OK(cudaStreamEndCapture(stream, &graph));
        cudaGraphExec_t one = instantiated(graph);
        OK(cudaGraphLaunch(one, stream));
        OK(cudaEventRecord(before, stream));
        OK(cudaStreamDestroy(stream));
    }
    say("captured in streams that end");
}

static void replays(int nodes, int times) {
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    size_t free_bytes, total;
    OK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeGlobal));
    for (int i = 0; i < nodes; i++)
        scale<<<1, 32, 0, streams[0]>>>(items, added, 32);
    OK(cudaStreamEndCapture(streams[0], &graph));
    exec = instantiated(graph);
    OK(cudaGraphLaunch(exec, streams[0]));
    OK(cudaStreamSynchronize(streams[0]));
    auto start = std::chrono::steady_clock::now();
    for (int i = 1; i < times; i++) {
        if (i == times / 5 || i == times / 2) {
            OK(cudaMemGetInfo(&free_bytes, &total));
            fprintf(stderr, "free MB %zu\n", free_bytes >> 20);
        }
        OK(cudaGraphLaunch(exec, streams[0]));
    }
    OK(cudaStreamSynchronize(streams[0]));
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    OK(cudaMemGetInfo(&free_bytes, &total));
    fprintf(stderr, "free MB %zu\nseconds %.3f\n", free_bytes >> 20, took.count());
    say("replayed");
}

int main(int argc, char **argv) {
    OK(cudaMalloc(&items, COUNT * 4));
    OK(cudaMemset(items, 1, COUNT * 4));
    for (cudaStream_t &stream : streams)
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    if (argc == 4 && !strcmp(argv[1], "replay"))
        replays(atoi(argv[2]), atoi(argv[3]));
    else {
        forms();
        ended();
    }
    return 0;
}
