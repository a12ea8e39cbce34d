// Each form of a launch, once, for tests/runtime/test_launch_forms.py: `launch_forms PTX`.
//
// LINKED, HANDLE or ADDRESS says how it gets the driver's functions: from the linker, from dlsym, or from
// cuGetProcAddress. It prints how many kernels it launched directly, and how many ran in graphs.

#include "sim.h"

#include <stdbool.h>

#define FUNCTIONS(X)                                                                                         \
    X(cuLaunchKernel)                                                                                        \
    X(cuLaunchKernel_ptsz)                                                                                   \
    X(cuLaunchKernelEx)                                                                                      \
    X(cuLaunchKernelEx_ptsz)                                                                                 \
    X(cuLaunchCooperativeKernel)                                                                             \
    X(cuLaunchCooperativeKernel_ptsz)                                                                        \
    X(cuGraphCreate)                                                                                         \
    X(cuGraphAddKernelNode_v2)                                                                               \
    X(cuGraphInstantiateWithFlags)                                                                           \
    X(cuGraphLaunch)                                                                                         \
    X(cuGraphLaunch_ptsz)                                                                                    \
    X(cuStreamBeginCapture_v2)                                                                               \
    X(cuStreamEndCapture)                                                                                    \
    X(cuStreamCreate)                                                                                        \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemcpyHtoD_v2)                                                                                       \
    X(cuMemcpyDtoH_v2)                                                                                       \
    X(cuCtxSynchronize)

// client.h declares a variable with the name of cuLaunchKernel, found by dlsym.
#define GOT(name) got_##name
#ifdef LINKED
#define DECLARE(name) extern int GOT(name)() __asm__(#name);
#define SET(name)
#else
#define DECLARE(name) static int (*GOT(name))();
#define SET(name) assert((GOT(name) = (int (*)())find(#name)));
#endif
FUNCTIONS(DECLARE)

#ifdef ADDRESS
static void *find(const char *symbol) {
    static int (*get)(const char *, void **, int, uint64_t, void *);
    char name[64];
    void *found = NULL;
    size_t length = strlen(symbol);
    bool per_thread = length > 5 && !strcmp(symbol + length - 5, "_ptsz");
    get = get ? get : dlsym(driver, "cuGetProcAddress_v2");
    snprintf(name, sizeof(name), "%.*s", (int)(length - (per_thread ? 5 : 0)), symbol);
    if (!per_thread && !strcmp(name + length - 3, "_v2"))
        name[length - 3] = 0;
    OK(get(name, &found, 12080, per_thread ? 2 : 1, NULL));
    return found;
}
#elif !defined(LINKED)
static void *find(const char *symbol) { return dlsym(driver, symbol); }
#endif

enum { BLOCKS = 6, THREADS = 70, WORDS = BLOCKS * THREADS, COUNT = 400, BY = 3, ADDED = 5 };

static unsigned want[WORDS], launched, replayed;
static uint64_t items;
static unsigned added = ADDED, count = COUNT;

static void expect(unsigned *counter, int status, const char *form) {
    unsigned found[WORDS];
    if (status) {
        fprintf(stderr, "%s: %d\n", form, status);
        exit(1);
    }
    OK(GOT(cuCtxSynchronize)());
    for (unsigned i = 0; i < COUNT; i++)
        want[i] = BY * want[i] + ADDED;
    OK(GOT(cuMemcpyDtoH_v2)(found, items, sizeof(found)));
    if (memcmp(found, want, sizeof(want))) {
        fprintf(stderr, "%s: wrong results\n", form);
        exit(1);
    }
    ++*counter;
}

#define LAUNCH(call) expect(&launched, GOT(call), #call)
#define REPLAY(call) expect(&replayed, GOT(call), #call)
#define GRID BLOCKS, 1, 1, THREADS, 1, 1, 0

static void *load(const char *path) {
    static char text[1 << 16];
    void *module, *function;
    FILE *file = fopen(path, "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    fclose(file);
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&function, module, "scale"));
    return function;
}

static void replay_each(void *graph, void *stream) {
    void *exec;
    OK(GOT(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    REPLAY(cuGraphLaunch(exec, stream));
    REPLAY(cuGraphLaunch_ptsz(exec, NULL));
}

int main(int argc, char **argv) {
    assert(argc == 2);
    begin();
    FUNCTIONS(SET)
    void *function = load(argv[1]), *stream, *graph, *node;
    struct {
        uint64_t items;
        unsigned added, count;
    } packed;
    size_t size = sizeof(packed);
    void *params[] = {&items, &added, &count}, *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
    OK(GOT(cuMemAlloc_v2)(&items, sizeof(want)));
    packed.items = items, packed.added = added, packed.count = count;
    for (unsigned i = 0; i < WORDS; i++)
        want[i] = i;
    OK(GOT(cuMemcpyHtoD_v2)(items, want, sizeof(want)));
    OK(GOT(cuCtxSynchronize)());
    OK(GOT(cuStreamCreate)(&stream, 1));

    LAUNCH(cuLaunchKernel(function, GRID, stream, params, NULL));
    LAUNCH(cuLaunchKernel(function, GRID, NULL, NULL, extra));
    LAUNCH(cuLaunchKernel_ptsz(function, GRID, NULL, params, NULL));
    LAUNCH(cuLaunchKernel_ptsz(function, GRID, NULL, NULL, extra));
    LAUNCH(cuLaunchCooperativeKernel(function, GRID, stream, params));
    LAUNCH(cuLaunchCooperativeKernel_ptsz(function, GRID, NULL, params));

    CUlaunchAttribute attributes[2] = {{.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1},
                                       {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}};
    memcpy(&attributes[1].value.clusterDim, (unsigned[]){1, 1, 1}, 12); // larger ones need a GPU
    for (unsigned i = 0; i < 3; i++) {                                  // plain, cooperative, in clusters
        CUlaunchConfig config = {GRID, stream, i ? &attributes[i - 1] : NULL, i != 0};
        LAUNCH(cuLaunchKernelEx(&config, function, params, NULL));
        LAUNCH(cuLaunchKernelEx(&config, function, NULL, extra));
        config.hStream = NULL;
        LAUNCH(cuLaunchKernelEx_ptsz(&config, function, params, NULL));
        LAUNCH(cuLaunchKernelEx_ptsz(&config, function, NULL, extra));
    }

    for (int packs = 0; packs < 2; packs++) {
        CUDA_KERNEL_NODE_PARAMS of_node = {.func = function,
                                           .gridDimX = BLOCKS,
                                           .gridDimY = 1,
                                           .gridDimZ = 1,
                                           .blockDimX = THREADS,
                                           .blockDimY = 1,
                                           .blockDimZ = 1,
                                           .kernelParams = packs ? NULL : params,
                                           .extra = packs ? extra : NULL};
        OK(GOT(cuGraphCreate)(&graph, 0));
        OK(GOT(cuGraphAddKernelNode_v2)(&node, graph, NULL, 0ul, &of_node));
        replay_each(graph, stream);
    }
    for (int form = 0; form < 4; form++) { // captured
        CUlaunchConfig config = {GRID, stream, NULL, 0};
        OK(GOT(cuStreamBeginCapture_v2)(stream, 2));
        if (form < 2)
            OK(GOT(cuLaunchKernel)(function, GRID, stream, form ? NULL : params, form ? extra : NULL));
        else if (form == 2)
            OK(GOT(cuLaunchKernelEx)(&config, function, params, NULL));
        else
            OK(GOT(cuLaunchCooperativeKernel)(function, GRID, stream, params));
        OK(GOT(cuStreamEndCapture)(stream, &graph));
        replay_each(graph, stream);
    }
    printf("%u %u\n", launched, replayed);
    return 0;
}
