// Replays of graphs for tests of --node-times. The kernel `spin` keeps the device busy for some ms and
// adds 1 to a counter. Usage: node_times SCENARIO; it prints the counter of each node's place.

#include "abi/cuda.h"
#include "client.h"

#define D(name) ((int (*)())dlsym(driver, #name))
#define WORDS 64

static const char spin_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 at, .param .u32 ms){\n"
    ".reg .u64 %a<6>;\n.reg .u32 %r<3>;\n.reg .pred %p;\n"
    "ld.param.u64 %a0, [at];\nld.param.u32 %r0, [ms];\nmul.wide.u32 %a1, %r0, 1000000;\n"
    "mov.u64 %a2, %globaltimer;\nadd.u64 %a2, %a2, %a1;\n"
    "again:\nmov.u64 %a3, %globaltimer;\nsetp.lt.u64 %p, %a3, %a2;\n@%p bra again;\n"
    "atom.global.add.u32 %r1, [%a0], 1;\nret;\n}\n"
    ".visible .entry other(.param .u64 at, .param .u32 ms){\n"
    ".reg .u64 %a<2>;\n.reg .u32 %r<2>;\n"
    "ld.param.u64 %a0, [at];\natom.global.add.u32 %r1, [%a0], 1;\nret;\n}\n";

static void *streams[2], *spin, *other, *context;
static CUdeviceptr counters;
static void (*leave)(void);
static int (*enter)(const char *);

static void put(void *stream, void *function, unsigned place, unsigned ms) {
    CUdeviceptr at = counters + 4 * place;
    void *params[] = {&at, &ms};
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}
static void put_in(const char *layer, void *stream, void *function, unsigned place, unsigned ms) {
    if (enter)
        enter(layer);
    put(stream, function, place, ms);
    if (enter)
        leave();
}
static void begin_capture(void) { OK(D(cuStreamBeginCapture_v2)(streams[0], 2)); }
static void *end_capture(void) {
    void *graph;
    OK(D(cuStreamEndCapture)(streams[0], &graph));
    return graph;
}
// Two layers of two kernels, of 1, 3, 2 and 6 ms, and a copy.
static void *capture(void) {
    begin_capture();
    put_in("layers.0.attn", streams[0], spin, 0, 1);
    put_in("layers.0.mlp", streams[0], spin, 1, 3);
    put_in("layers.1.attn", streams[0], spin, 2, 2);
    put_in("layers.1.mlp", streams[0], spin, 3, 6);
    OK(D(cuMemcpyDtoDAsync_v2)(counters + 4 * 32, counters, (size_t)16, streams[0]));
    return end_capture();
}
static void *instantiate(void *graph) {
    void *exec;
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    return exec;
}
static void replay(void *exec, int times) {
    for (int i = 0; i < times; i++) {
        OK(D(cuGraphLaunch)(exec, streams[0]));
        OK(D(cuStreamSynchronize)(streams[0]));
    }
}
static void *node_of(void *graph, size_t index) {
    void *nodes[16];
    size_t count = 16;
    OK(D(cuGraphGetNodes)(graph, nodes, &count));
    assert(index < count);
    return nodes[index];
}
static CUDA_KERNEL_NODE_PARAMS params_of(void *function, CUdeviceptr *at, unsigned *ms, void **params) {
    params[0] = at, params[1] = ms;
    return (CUDA_KERNEL_NODE_PARAMS){function, 1, 1, 1, 1, 1, 1, 0, params, NULL, NULL, NULL};
}

static void run_plain(void) {
    void *graph = capture(), *exec = instantiate(graph);
    OK(D(cuGraphDestroy)(graph)); // as PyTorch does
    replay(exec, 10);
    OK(D(cuGraphExecDestroy)(exec));
}
static void run_parameters(void) { // a node changes before and after the second graph is there
    void *graph = capture(), *exec = instantiate(graph), *params[2];
    CUdeviceptr at = counters + 4 * 8;
    unsigned ms = 4;
    CUDA_KERNEL_NODE_PARAMS given = params_of(spin, &at, &ms, params);
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, node_of(graph, 1), &given));
    replay(exec, 6);
    at += 4, given.func = other;
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, node_of(graph, 1), &given));
    replay(exec, 6);
    OK(D(cuGraphNodeSetEnabled)(exec, node_of(graph, 0), 0));
    replay(exec, 6);
}
// A server that captured a decode step for each of three batch sizes, and picks one for each step. A step of
// size n takes n ms in attention and 2 ms in the rest of a layer.
static void run_batches(void) {
    static const unsigned steps[] = {0, 1, 1, 2, 2, 2, 1, 0, 2, 1, 0, 2, 2, 1, 1, 0};
    void *execs[3];
    for (unsigned size = 0; size < 3; size++) {
        begin_capture();
        for (unsigned layer = 0; layer < 2; layer++) {
            put_in(layer ? "layers.1.attn" : "layers.0.attn", streams[0], spin, 2 * size, 1u << size);
            put_in(layer ? "layers.1.mlp" : "layers.0.mlp", streams[0], spin, 2 * size + 1, 2);
        }
        execs[size] = instantiate(end_capture());
    }
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        replay(execs[steps[i]], 1);
}
static void run_destroyed(void) { // while it runs
    for (int i = 0; i < 5; i++) {
        void *graph = capture(), *exec = instantiate(graph);
        OK(D(cuGraphDestroy)(graph));
        OK(D(cuGraphLaunch)(exec, streams[0]));
        OK(D(cuGraphExecDestroy)(exec));
    }
    OK(D(cuStreamSynchronize)(streams[0]));
}
static void run_contexts(void) { // replays while another context is current
    void *exec = instantiate(capture()), *first, *second;
    OK(D(cuCtxGetCurrent)(&first));
    OK(D(cuCtxCreate_v2)(&second, 0, 0));
    replay(exec, 3);
    OK(cuCtxSetCurrent(first));
    replay(exec, 3);
    OK(cuCtxSetCurrent(second));
    void *child = instantiate(capture());
    replay(child, 2);
    OK(cuCtxSetCurrent(first));
    OK(D(cuCtxDestroy_v2)(second));
    replay(exec, 1);
}
static void run_update(void) {
    void *exec = instantiate(capture()), *graph;
    CUgraphExecUpdateResultInfo info;
    for (unsigned i = 0; i < 8; i++) {
        begin_capture();
        put(streams[0], spin, 8, 1), put(streams[0], spin, 9, 1), put(streams[0], other, 10, 0);
        put(streams[0], spin, 11, 2);
        OK(D(cuMemcpyDtoDAsync_v2)(counters + 4 * 32, counters, (size_t)16, streams[0]));
        graph = end_capture();
        OK(D(cuGraphExecUpdate_v2)(exec, graph, &info));
        OK(D(cuGraphDestroy)(graph));
        replay(exec, 1);
    }
    begin_capture(); // another shape: the update fails, and changes nothing
    put(streams[0], spin, 12, 1);
    assert(D(cuGraphExecUpdate_v2)(exec, end_capture(), &info));
    replay(exec, 4);
}
static void run_streams(void) { // each launch of an executable graph waits for the one before
    void *exec = instantiate(capture());
    for (unsigned i = 0; i < 24; i++)
        OK(D(cuGraphLaunch)(exec, streams[i / 3 % 2]));
    OK(D(cuCtxSynchronize)());
}
static void run_captured(void) { // a captured launch becomes a node of another graph
    void *exec = instantiate(capture()), *outer, *node;
    replay(exec, 2);
    OK(D(cuStreamBeginCapture_v2)(streams[1], 2));
    int result = D(cuGraphLaunch)(exec, streams[1]);
    int ended = D(cuStreamEndCapture)(streams[1], &outer);
    printf("captured %d %d ", result, ended);
    replay(exec, 4);
}
static void say(void *text) { puts(text); }
static void run_skipping(void) { // each node depends on all nodes before it
    void *graph, *nodes[4], *params[2];
    OK(D(cuGraphCreate)(&graph, 0));
    for (unsigned i = 0; i < 4; i++) {
        CUdeviceptr at = counters + 4 * i;
        unsigned ms = i + 1;
        CUDA_KERNEL_NODE_PARAMS given = params_of(spin, &at, &ms, params);
        OK(D(cuGraphAddKernelNode_v2)(&nodes[i], graph, nodes, (size_t)i, &given));
    }
    replay(instantiate(graph), 6);
}
static void run_refused(void) { // graphs whose nodes can't be timed, one for each reason
    void *graph, *event, *node, *inner = capture();
    CUdeviceptr memory;
    OK(D(cuEventCreate)(&event, 2));
    begin_capture(); // two branches
    OK(D(cuEventRecord)(event, streams[0]));
    OK(D(cuStreamWaitEvent)(streams[1], event, 0));
    put(streams[0], spin, 0, 1), put(streams[1], spin, 1, 1);
    OK(D(cuEventRecord)(event, streams[1]));
    OK(D(cuStreamWaitEvent)(streams[0], event, 0));
    replay(instantiate(end_capture()), 4);
    begin_capture();
    OK(D(cuMemAllocAsync)(&memory, (size_t)256, streams[0]));
    put(streams[0], spin, 2, 1);
    OK(D(cuMemFreeAsync)(memory, streams[0]));
    replay(instantiate(end_capture()), 4);
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphAddChildGraphNode)(&node, graph, NULL, (size_t)0, inner));
    replay(instantiate(graph), 4);
    begin_capture();
    OK(D(cuLaunchHostFunc)(streams[0], say, "host"));
    replay(instantiate(end_capture()), 4);
    begin_capture();
    OK(D(cuEventRecordWithFlags)(event, streams[0], 1));
    replay(instantiate(end_capture()), 4);
}
static void run_failing(void) { // a kernel that fails does so once, with the same error
    void *params[2], *exec, *graph;
    begin_capture();
    put(streams[0], spin, 0, 1);
    exec = instantiate(graph = end_capture());
    replay(exec, 3);
    CUdeviceptr nowhere = 64;
    unsigned ms = 1;
    CUDA_KERNEL_NODE_PARAMS given = params_of(other, &nowhere, &ms, params);
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, node_of(graph, 0), &given));
    int launched = D(cuGraphLaunch)(exec, streams[0]), waited = D(cuStreamSynchronize)(streams[0]);
    printf("failed %d %d %d\n", launched, waited, (int)D(cuGraphLaunch)(exec, streams[0]));
    exit(0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"plain", run_plain},       {"parameters", run_parameters}, {"update", run_update},
                     {"streams", run_streams},   {"captured", run_captured},     {"refused", run_refused},
                     {"skipping", run_skipping}, {"batches", run_batches},       {"destroyed", run_destroyed},
                     {"contexts", run_contexts}, {"failing", run_failing}};
    unsigned found[WORDS];
    void *module;
    begin();
    enter = dlsym(RTLD_DEFAULT, "gpt_hook_layer"), leave = dlsym(RTLD_DEFAULT, "gpt_hook_layer_end");
    OK(cuModuleLoadData(&module, spin_ptx));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    OK(cuModuleGetFunction(&other, module, "other"));
    OK(D(cuMemAlloc_v2)(&counters, (size_t)sizeof(found)));
    OK(D(cuMemsetD8_v2)(counters, 0, (size_t)sizeof(found)));
    OK(D(cuCtxSynchronize)()); // the streams below don't wait for the default stream
    for (int i = 0; i < 2; i++)
        OK(D(cuStreamCreate)(&streams[i], 1));
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++)
        if (argc > 1 && !strcmp(scenarios[i].name, argv[1]))
            scenarios[i].run();
    OK(D(cuMemcpyDtoH_v2)(found, counters, (size_t)sizeof(found)));
    for (int i = 0; i < 40; i++)
        printf("%u ", found[i]);
    puts("");
    return 0;
}
