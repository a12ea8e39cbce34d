// Calls of all kinds with arguments drawn at random from good and wrong ones, the same for the same seed. It
// prints what each call returned, or -1 for a crash, and continues. Calls named in the second argument are
// left out.

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static sigjmp_buf back;
static void crashed(int signal) { siglongjmp(back, 1); }

static uint64_t state;
static unsigned draw(unsigned limit) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % limit;
}

typedef uint64_t word;
enum {
    GOOD_STREAM,
    GOOD_FUNCTION,
    GOOD_MEMORY,
    GOOD_HOST,
    GOOD_CONFIG,
    GOOD_COPY2,
    GOOD_COPY3,
    GOOD_PARAMS,
    GOOD_GRAPH,
    GOOD_EXEC,
    GOOD_EVENT,
    GOOD_OUT,
    GOOD_MODULE,
    GOOD_NODE,
    GOOD_KERNEL_PARAMS,
    GOOD_INNER,
    GOODS
};
static word good[GOODS];

static const struct {
    const char *name;
    int count;
    int kinds[11]; // a good argument, or -1 - N for the number N
} calls[] = {
#define N(n) (-1 - (n))
#ifdef GRAPHS // graphs are never run, because the device must not see what wrong arguments did to them
    {"cuGraphInstantiate_v2", 5, {GOOD_OUT, GOOD_GRAPH, GOOD_OUT, GOOD_HOST, N(0)}},
    {"cuGraphExecUpdate_v2", 3, {GOOD_EXEC, GOOD_GRAPH, GOOD_OUT}},
    {"cuGraphExecChildGraphNodeSetParams", 3, {GOOD_EXEC, GOOD_NODE, GOOD_INNER}},
    {"cuGraphExecKernelNodeSetParams_v2", 3, {GOOD_EXEC, GOOD_NODE, GOOD_KERNEL_PARAMS}},
    {"cuGraphKernelNodeSetParams_v2", 2, {GOOD_NODE, GOOD_KERNEL_PARAMS}},
    {"cuGraphKernelNodeGetParams_v2", 2, {GOOD_NODE, GOOD_OUT}},
    {"cuGraphNodeSetEnabled", 3, {GOOD_EXEC, GOOD_NODE, N(1)}},
    {"cuGraphAddKernelNode_v2", 5, {GOOD_OUT, GOOD_INNER, N(0), N(0), GOOD_KERNEL_PARAMS}},
    {"cuGraphAddChildGraphNode", 5, {GOOD_OUT, GOOD_INNER, N(0), N(0), GOOD_GRAPH}},
    {"cuGraphClone", 2, {GOOD_OUT, GOOD_GRAPH}},
    {"cuGraphInstantiateWithFlags", 3, {GOOD_OUT, GOOD_GRAPH, N(0)}},
    {"cuGraphInstantiateWithParams", 3, {GOOD_OUT, GOOD_GRAPH, GOOD_OUT}},
#else
    {"cuLaunchKernel",
     11,
     {GOOD_FUNCTION, N(1), N(1), N(1), N(32), N(1), N(1), N(0), GOOD_STREAM, GOOD_PARAMS, N(0)}},
    {"cuLaunchCooperativeKernel",
     10,
     {GOOD_FUNCTION, N(1), N(1), N(1), N(32), N(1), N(1), N(0), GOOD_STREAM, GOOD_PARAMS}},
    {"cuLaunchKernelEx", 4, {GOOD_CONFIG, GOOD_FUNCTION, GOOD_PARAMS, N(0)}},
    {"cuMemcpy2D_v2", 1, {GOOD_COPY2}},
    {"cuMemcpy2DAsync_v2", 2, {GOOD_COPY2, GOOD_STREAM}},
    {"cuMemcpy3D_v2", 1, {GOOD_COPY3}},
    {"cuMemcpy3DAsync_v2", 2, {GOOD_COPY3, GOOD_STREAM}},
    {"cuMemcpyHtoDAsync_v2", 4, {GOOD_MEMORY, GOOD_HOST, N(64), GOOD_STREAM}},
    {"cuMemcpyDtoHAsync_v2", 4, {GOOD_HOST, GOOD_MEMORY, N(64), GOOD_STREAM}},
    {"cuMemsetD8Async", 4, {GOOD_MEMORY, N(7), N(64), GOOD_STREAM}},
    {"cuMemsetD32Async", 4, {GOOD_MEMORY, N(7), N(16), GOOD_STREAM}},
    {"cuMemAllocAsync", 3, {GOOD_OUT, N(256), GOOD_STREAM}},
    {"cuEventRecord", 2, {GOOD_EVENT, GOOD_STREAM}},
    {"cuStreamWaitEvent", 3, {GOOD_STREAM, GOOD_EVENT, N(0)}},
    {"cuStreamSynchronize", 1, {GOOD_STREAM}},
    {"cuGraphLaunch", 2, {GOOD_EXEC, GOOD_STREAM}},
    {"cuGraphInstantiateWithFlags", 3, {GOOD_OUT, GOOD_GRAPH, N(0)}},
    {"cuGraphInstantiateWithParams", 3, {GOOD_OUT, GOOD_GRAPH, GOOD_OUT}},
    {"cuModuleGetFunction", 3, {GOOD_OUT, GOOD_MODULE, GOOD_HOST}},
    {"cuModuleGetGlobal_v2", 4, {GOOD_OUT, GOOD_OUT, GOOD_MODULE, GOOD_HOST}},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 4, {GOOD_OUT, GOOD_FUNCTION, N(64), N(0)}},
    {"cuFuncGetAttribute", 3, {GOOD_OUT, N(4), GOOD_FUNCTION}},
    {"cuFuncSetAttribute", 3, {GOOD_FUNCTION, N(9), N(50)}},
#endif
};

static word zeros[512],
    outs[64]; // at the same address each time, because an address is an argument, too
static word wrong(void) {
    static word hidden;
    if (!hidden)
        hidden =
            (word)mmap((void *)(1ul << 40), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    const word all[] = {0, 4, 0x7fffffff, hidden, hidden + 4092, (word)zeros, 1ull << 63, -8ull};
    return all[draw(sizeof(all) / sizeof(*all))];
}

int main(int argc, char **argv) {
    begin();
    for (int signal = 1; signal < 32; signal++)
        if (signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE)
            sigaction(signal, &(struct sigaction){.sa_handler = crashed, .sa_flags = SA_NODEFER}, NULL);
    void *function = kernel("foo"), *stream, *event, *graph, *exec, *module;
    static char host[4096] = "foo";
    uint64_t memory;
    void *params[1] = {&memory};
    OK(D(cuModuleLoadData)(&module, PTX));
    OK(D(cuStreamCreate)(&stream, 0));
    OK(D(cuEventCreate)(&event, 0));
    OK(D(cuMemAlloc_v2)(&memory, (size_t)4096));
    OK(D(cuStreamBeginCapture_v2)(stream, 2));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, (uint64_t)0));
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    CUDA_MEMCPY2D copy2 = {.srcMemoryType = 2,
                           .srcDevice = memory,
                           .srcPitch = 64,
                           .dstMemoryType = 2,
                           .dstDevice = memory + 2048,
                           .dstPitch = 64,
                           .WidthInBytes = 8,
                           .Height = 2};
    CUDA_MEMCPY3D copy3 = {.srcMemoryType = 2,
                           .srcDevice = memory,
                           .srcPitch = 64,
                           .srcHeight = 2,
                           .dstMemoryType = 2,
                           .dstDevice = memory + 2048,
                           .dstPitch = 64,
                           .dstHeight = 2,
                           .WidthInBytes = 8,
                           .Height = 2,
                           .Depth = 1};
    void *inner, *node;
    size_t nodes = 1;
    OK(D(cuGraphGetNodes)(graph, &node, &nodes));
    OK(D(cuGraphCreate)(&inner, 0));
    CUDA_KERNEL_NODE_PARAMS kernel_params = {.func = function,
                                             .gridDimX = 1,
                                             .gridDimY = 1,
                                             .gridDimZ = 1,
                                             .blockDimX = 32,
                                             .blockDimY = 1,
                                             .blockDimZ = 1,
                                             .kernelParams = params};
    const word all[GOODS] = {(word)stream, (word)function, memory,       (word)host,  (word)&config,
                             (word)&copy2, (word)&copy3,   (word)params, (word)graph, (word)exec,
                             (word)event,  (word)outs,     (word)module, (word)node,  (word)&kernel_params,
                             (word)inner};
    memcpy(good, all, sizeof(good));
    for (unsigned number = 0; number < CALLS; number++) {
        state = ((word)atoi(argv[1]) << 32) + number;
        unsigned which = draw(sizeof(calls) / sizeof(*calls)), many = draw(4);
        word a[11] = {0};
        for (int i = 0; i < calls[which].count; i++)
            a[i] =
                calls[which].kinds[i] < 0 ? (word)(-1 - calls[which].kinds[i]) : good[calls[which].kinds[i]];
        for (unsigned i = 0; i < many; i++) {
            unsigned at = draw(calls[which].count); // a grid of 2^31 blocks is valid, but takes long
            a[at] = calls[which].kinds[at] < 0 ? (word[]){0, 4, -1ull}[draw(3)] : wrong();
        }
        char text[16];
        snprintf(text, sizeof(text), ",%u,", number);
        if (strstr(argv[2], text))
            continue;
        int (*call)(word, word, word, word, word, word, word, word, word, word, word) =
            dlsym(driver, calls[which].name);
        memset(outs, 0, sizeof(outs)), memset(zeros, 0, sizeof(zeros));
        volatile int status = -1;
        if (!sigsetjmp(back, 1))
            status = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
        printf("%u %s %d\n", number, calls[which].name, status), fflush(stdout);
        if (status < 0)
            _exit(0); // locks may be held
    }
    _exit(0);
}
