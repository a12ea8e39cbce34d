// A program that captures, builds graphs by hand, changes and replays them, and counts what it expects to
// have run. It prints lines `WHAT NUMBER BYTES`: launches by kernel, copies by direction, memsets.

#include "abi/cuda.h"
#define D(name) ((int (*)())dlsym(driver, #name))
#define TEXT                                                                                                 \
    ".version 7.0\n.target sm_70\n.address_size 64\n"                                                        \
    ".visible .entry one(){ret;}\n.visible .entry two(){ret;}\n.visible .entry body(){ret;}\n"

enum { ONE, TWO, BODY, HTOD, DTOH, DTOD, SET, WHATS };
static const char *const names[WHATS] = {"one", "two", "body", "HtoD", "DtoH", "DtoD", "set"};
static struct tally {
    long count[WHATS], bytes[WHATS];
} ran;
static void *f[3], *stream, *other, *event;
static CUdeviceptr p, q;
static char *host;

static void add_to(struct tally *tally, const struct tally *more, long times) {
    for (int i = 0; i < WHATS; i++)
        tally->count[i] += times * more->count[i], tally->bytes[i] += times * more->bytes[i];
}
static void start(int kernel, void *into, struct tally *tally) {
    OK(cuLaunchKernel(f[kernel], 1, 1, 1, 1, 1, 1, 0, into, 0, 0));
    tally->count[kernel]++;
}
static void count(struct tally *tally, int what, long bytes) {
    tally->count[what]++, tally->bytes[what] += bytes;
}
static void all(void *into, struct tally *tally) { // make one call of each kind
    start(ONE, into, tally), start(ONE, into, tally), start(TWO, into, tally);
    OK(D(cuMemcpyHtoDAsync_v2)(p, host, (size_t)400, into));
    count(tally, HTOD, 400);
    OK(D(cuMemcpyDtoDAsync_v2)(q, p, (size_t)300, into));
    count(tally, DTOD, 300);
    OK(D(cuMemcpyDtoHAsync_v2)(host + 2048, q, (size_t)20, into));
    count(tally, DTOH, 20);
    OK(D(cuMemsetD32Async)(p, 1, (size_t)25, into));
    count(tally, SET, 100);
    OK(D(cuMemsetD2D8Async)(p, (size_t)64, 1, (size_t)7, (size_t)3, into));
    count(tally, SET, 21);
}
static void replay(void *exec, const struct tally *inside, int times) {
    for (int i = 0; i < times; i++)
        OK(D(cuGraphLaunch)(exec, stream));
    OK(D(cuStreamSynchronize)(stream));
    add_to(&ran, inside, times);
}
static void *instantiate(void *graph) {
    void *exec;
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    return exec;
}
static void *ended(void) {
    void *graph;
    OK(D(cuStreamEndCapture)(stream, &graph));
    return graph;
}
static void *kernel_node(void *graph, int kernel) {
    CUDA_KERNEL_NODE_PARAMS params = {f[kernel], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    void *node;
    OK(D(cuGraphAddKernelNode_v2)(&node, graph, (void *)0, (size_t)0, &params));
    return node;
}
static CUDA_MEMCPY3D copy_of(size_t bytes) {
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = host,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = p,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .Depth = 1};
}

static void captured(void) { // in each mode; another stream joins, and an independent one continues
    for (int mode = 0; mode < 3; mode++) {
        struct tally inside = {0};
        OK(D(cuStreamBeginCapture_v2)(stream, mode));
        all(stream, &inside);
        OK(D(cuEventRecord)(event, stream));
        OK(D(cuStreamWaitEvent)(other, event, 0));
        start(TWO, other, &inside);
        OK(D(cuEventRecord)(event, other));
        OK(D(cuStreamWaitEvent)(stream, event, 0));
        void *graph = ended();
        all(other, &ran); // this stream is free again
        all(NULL, &ran);
        void *exec = instantiate(graph);
        OK(D(cuCtxSynchronize)());
        replay(exec, &inside, 2 + mode);
        if (mode) { // never launched
            struct tally none = {0};
            OK(D(cuStreamBeginCapture_v2)(stream, mode));
            all(stream, &none);
            ended();
        }
    }
}
static void invalidated(void) { // neither captured nor refused calls ever run
    struct tally none = {0};
    void *graph = NULL;
    OK(D(cuStreamBeginCapture_v2)(stream, 0));
    all(stream, &none);
    assert(D(cuStreamSynchronize)(stream)); // refused, which ends the capture
    assert(cuLaunchKernel(f[0], 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
    assert(D(cuMemcpyDtoDAsync_v2)(q, p, (size_t)300, stream));
    assert(D(cuStreamEndCapture)(stream, &graph));
    all(stream, &ran);
    OK(D(cuStreamSynchronize)(stream));
}
static void legacy(void) { // the legacy stream is never captured; in relaxed mode, its calls run as usual
    struct tally inside = {0};
    OK(D(cuStreamBeginCapture_v2)(stream, 2));
    all(stream, &inside);
    all(NULL, &ran);
    OK(D(cuMemcpyHtoD_v2)(p, host, (size_t)50));
    count(&ran, HTOD, 50);
    replay(instantiate(ended()), &inside, 1);
}
static void by_hand(void) { // and changed: nodes put out, other kernels, other copies, an update
    struct tally inside = {0};
    void *graph, *child, *nodes[6];
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphCreate)(&child, 0));
    nodes[0] = kernel_node(graph, ONE), nodes[1] = kernel_node(graph, TWO), kernel_node(child, TWO);
    CUDA_MEMCPY3D copy = copy_of(80), larger = copy_of(1000);
    CUDA_MEMSET_NODE_PARAMS_v2 set = {.dst = q, .elementSize = 4, .width = 10, .height = 1}, wide = set;
    void *context;
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuGraphAddMemcpyNode)(&nodes[2], graph, (void *)0, (size_t)0, &copy, context));
    OK(D(cuGraphAddMemsetNode)(&nodes[3], graph, (void *)0, (size_t)0, &set, context));
    OK(D(cuGraphAddChildGraphNode)(&nodes[4], graph, (void *)0, (size_t)0, child));
    void *exec = instantiate(graph);
    inside.count[ONE] = 1, inside.count[TWO] = 2, count(&inside, HTOD, 80), count(&inside, SET, 40);
    replay(exec, &inside, 2);
    struct tally before = inside;
    CUDA_KERNEL_NODE_PARAMS params = {f[BODY], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, nodes[0], &params));
    inside.count[ONE] = 0, inside.count[BODY] = 1;
    replay(exec, &inside, 1);
    OK(D(cuGraphExecMemcpyNodeSetParams)(exec, nodes[2], &larger, context));
    inside.bytes[HTOD] = 1000;
    wide.width = 11;
    OK(D(cuGraphExecMemsetNodeSetParams)(exec, nodes[3], &wide, context));
    inside.bytes[SET] = 44;
    replay(exec, &inside, 3);
    OK(D(cuGraphNodeSetEnabled)(exec, nodes[1], 0));
    OK(D(cuGraphNodeSetEnabled)(exec, nodes[2], 0));
    inside.count[TWO] = 1, inside.count[HTOD] = 0, inside.bytes[HTOD] = 0;
    replay(exec, &inside, 2);
    OK(D(cuGraphNodeSetEnabled)(exec, nodes[2], 1));
    inside.count[HTOD] = 1, inside.bytes[HTOD] = 1000;
    replay(exec, &inside, 1);
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                              .memcpy = {.copyCtx = context, .copyParams = copy}};
    OK(D(cuGraphExecNodeSetParams)(exec, nodes[2], &node));
    inside.bytes[HTOD] = 80;
    replay(exec, &inside, 1);
    OK(D(cuGraphNodeSetEnabled)(exec, nodes[1], 1));
    struct {
        int result;
        void *node, *from;
    } info;
    OK(D(cuGraphExecUpdate_v2)(exec, graph, &info)); // restores the initial graph
    replay(exec, &before, 5);
}
static void conditional(void) { // the body runs as often as the device says: it is not counted here
    struct tally inside = {0};
    void *graph, *node;
    OK(D(cuGraphCreate)(&graph, 0));
    kernel_node(graph, ONE), inside.count[ONE]++;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                .conditional = {.type = 0, .size = 1}};
    OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, current_context(), 1, 1));
    OK(D(cuGraphAddNode_v2)(&node, graph, (void *)0, (void *)0, (size_t)0, &params));
    kernel_node(params.conditional.phGraph_out[0], BODY);
    CUDA_MEMCPY3D copy = copy_of(80);
    void *context;
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuGraphAddMemcpyNode)(&node, params.conditional.phGraph_out[0], (void *)0, (size_t)0, &copy,
                               context));
    replay(instantiate(graph), &inside, 4);
}
static void
memory(void) { // an allocation of 1 MiB that is there while the graph runs, and a function of the host
    CUdeviceptr mine;
    OK(D(cuStreamBeginCapture_v2)(stream, 0));
    OK(D(cuMemAllocAsync)(&mine, (size_t)1 << 20, stream));
    OK(D(cuMemsetD8Async)(mine, 1, (size_t)1 << 20, stream));
    OK(D(cuMemFreeAsync)(mine, stream));
    OK(D(cuLaunchHostFunc)(stream, (void *)srand, (void *)1));
    struct tally inside = {0};
    count(&inside, SET, 1 << 20);
    replay(instantiate(ended()), &inside, 3);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"captured", captured}, {"invalidated", invalidated}, {"legacy", legacy},
                 {"by_hand", by_hand},   {"conditional", conditional}, {"memory", memory}};
    begin();
    void *module;
    OK(cuModuleLoadData(&module, TEXT));
    for (int i = 0; i < 3; i++)
        OK(cuModuleGetFunction(&f[i], module, names[i]));
    OK(D(cuMemAlloc_v2)(&p, (size_t)4096));
    OK(D(cuMemAlloc_v2)(&q, (size_t)4096));
    OK(D(cuMemAllocHost_v2)((void **)&host, (size_t)4096));
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuStreamCreate)(&other, 1));
    OK(D(cuEventCreate)(&event, 2));
    for (unsigned i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        for (int j = 1; j < argc; j++)
            if (!strcmp(argv[j], parts[i].name))
                parts[i].run();
    OK(D(cuCtxSynchronize)());
    for (int i = 0; i < WHATS; i++)
        printf("%s %ld %ld\n", names[i], ran.count[i], ran.bytes[i]);
    return 0;
}
