"""The simulated device under many threads that use most of its features at once, and resources that launched graphs
keep.
"""

import pytest

from tests.runtime import simulated

KERNELS = r"""
static uint32_t *word(T, uint64_t address) { return global(t, 3, address, 4); }
VARIABLES()
KERNEL(add) { // 1 to each word: by a warp, by shared memory, from the heap
    ARGUMENT(uint64_t, to, 0);
    uint32_t ones = 1;
    MEET(UINT32_MAX, sum, &ones);
    SHARED(TID) = ones / HOST_WARP;
    BARRIER();
    uint64_t one = t->services->allocate(t, 0, 4);
    *word(t, one) = SHARED((TID + 1) % t->ntid[0]);
    __atomic_fetch_add(word(t, to + 4 * (CTAID * t->ntid[0] + TID)), *word(t, one), __ATOMIC_RELAXED);
    t->services->release(t, 0, one);
}
KERNEL(grid) { // all blocks wait for each other
    ARGUMENT(uint64_t, count, 0);
    __atomic_fetch_add(word(t, count), 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(word(t, count), __ATOMIC_ACQUIRE) % t->nctaid[0])
        BRANCH();
}
MODULE(HAS(add, 1, .shared_size = 256), HAS(grid, 1))
"""

CLIENT = r"""
enum { THREADS = 5, ROUNDS = 3, BLOCK = 64, WORDS = 4 * BLOCK, SIZE = 4 * WORDS };
static void *context, *shared;
static const char *path;

static void *function_of(void *module, const char *name) {
    void *found;
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}
static void *load(void) {
    void *module;
    OK(D(cuModuleLoad)(&module, path));
    return module;
}
static void add(void *function, uint64_t memory, void *stream) {
    OK(cuLaunchKernel(function, WORDS / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, (void *[]){&memory}, 0));
}
static void expect(const uint32_t *words, uint32_t value) {
    for (int i = 0; i < WORDS; i++)
        if (words[i] != value)
            fprintf(stderr, "word %d: %u, not %u\n", i, words[i], value), abort();
}
static void begin_first(int argc, char **argv) {
    path = argv[1];
    begin();
    OK(D(cuCtxGetCurrent)(&context));
    shared = load();
}
"""

GRAPHS = r"""
static _Atomic int calls, destroyed, may_go;
static void called(void *data) { calls++; }
static void destroy(void *data) { destroyed++; }
static void wait_to_go(void *data) {
    while (!may_go)
        usleep(100);
}

// Launched graphs may be changed and destroyed before they run: a launch runs the graph as it was.
int main(int argc, char **argv) {
    begin_first(argc, argv);
    uint64_t memory[2];
    void *graph, *exec, *node, *user, *stream;
    size_t count = 1;
    uint32_t words[WORDS];
    OK(D(cuStreamCreate)(&stream, 1));
    for (int i = 0; i < 2; i++) {
        OK(D(cuMemAlloc_v2)(&memory[i], (size_t)SIZE));
        OK(D(cuMemsetD32_v2)(memory[i], 0, (size_t)WORDS));
    }
    OK(D(cuCtxSynchronize)());
    OK(D(cuStreamBeginCapture_v2)(stream, 2));
    add(function_of(shared, "add"), memory[0], stream);
    OK(D(cuLaunchHostFunc)(stream, called, (void *)0));
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuUserObjectCreate)(&user, (void *)0, destroy, 1, 1));
    OK(D(cuGraphRetainUserObject)(graph, user, 1, 1));
    OK(D(cuGraphGetRootNodes)(graph, &node, &count));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    OK(D(cuLaunchHostFunc)(stream, wait_to_go, (void *)0));
    OK(D(cuGraphLaunch)(exec, stream));
    CUDA_KERNEL_NODE_PARAMS params = {.func = function_of(shared, "add"), .gridDimX = WORDS / BLOCK, .gridDimY = 1,
        .gridDimZ = 1, .blockDimX = BLOCK, .blockDimY = 1, .blockDimZ = 1, .kernelParams = (void *[]){&memory[1]}};
    OK(D(cuGraphExecKernelNodeSetParams_v2)(exec, node, &params));
    for (int i = 0; i < 2; i++)
        OK(D(cuGraphLaunch)(exec, stream));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuGraphExecDestroy)(exec));
    for (int i = 0; i < 100; i++) // overwriting unneeded memory
        memset(malloc(i), 1, i);
    usleep(1000);
    assert(!destroyed && !calls);
    may_go = 1;
    OK(D(cuStreamSynchronize)(stream));
    for (int i = 0; i < 2; i++) {
        OK(D(cuMemcpyDtoH_v2)(words, memory[i], (size_t)SIZE));
        expect(words, 1 + i);
    }
    while (!destroyed)
        usleep(100);
    assert(calls == 3 && destroyed == 1);
}
"""

THREADS = r"""
static void called(void *data) { ++*(int *)data; }
static void copies(void *module, void **streams) {
    uint64_t memory;
    uint32_t *words;
    void *event;
    OK(D(cuMemAlloc_v2)(&memory, (size_t)SIZE));
    OK(D(cuMemHostAlloc)(&words, (size_t)SIZE, 0));
    OK(D(cuEventCreate)(&event, 0));
    OK(D(cuMemsetD32Async)(memory, 5, (size_t)WORDS, streams[0]));
    for (int i = 0; i < 3; i++)
        add(function_of(module, "add"), memory, streams[0]);
    OK(D(cuEventRecord)(event, streams[0]));
    OK(D(cuStreamWaitEvent)(streams[1], event, 0));
    OK(D(cuEventDestroy_v2)(event));
    OK(D(cuMemcpyDtoHAsync_v2)(words, memory, (size_t)SIZE, streams[1]));
    int status = D(cuStreamQuery)(streams[1]);
    assert(!status || status == 600);
    OK(D(cuStreamSynchronize)(streams[1]));
    expect(words, 8);
    OK(D(cuMemFree_v2)(memory));
    OK(D(cuMemFreeHost)(words));
}
static void graphs(void *module, void **streams) {
    uint64_t memory;
    int calls = 0;
    void *graph, *exec;
    uint32_t words[WORDS], count = 0;
    OK(D(cuMemAllocAsync)(&memory, (size_t)SIZE + 4, streams[0]));
    OK(D(cuMemsetD32Async)(memory, 0, (size_t)WORDS + 1, streams[0]));
    OK(D(cuStreamBeginCapture_v2)(streams[0], 2));
    add(function_of(module, "add"), memory, streams[0]);
    OK(D(cuLaunchHostFunc)(streams[0], called, &calls));
    OK(D(cuStreamEndCapture)(streams[0], &graph));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    OK(D(cuGraphDestroy)(graph));
    for (int i = 0; i < 3; i++)
        OK(D(cuGraphLaunch)(exec, streams[0]));
    OK(D(cuGraphExecDestroy)(exec));
    uint64_t counter = memory + SIZE;
    void *arguments[] = {&counter}, *grid = function_of(module, "grid");
    OK(D(cuLaunchCooperativeKernel)(grid, 8, 1, 1, 1, 1, 1, 0, streams[0], arguments));
    OK(D(cuMemcpyDtoHAsync_v2)(words, memory, (size_t)SIZE, streams[0])); // waits: it is pageable
    OK(D(cuMemcpyDtoHAsync_v2)(&count, counter, (size_t)4, streams[0]));
    expect(words, 3);
    assert(calls == 3 && count == 8);
    OK(D(cuMemFreeAsync)(memory, streams[0]));
}
static void *work(void *number) {
    void *streams[2], *module, *own;
    size_t all, unused;
    OK(cuCtxSetCurrent(context));
    for (int round = (int)(long)number, end = round + ROUNDS; round < end; round++) {
        if (round % 3 == 0)
            OK(D(cuCtxCreate_v2)(&own, 0, 0));
        module = round % 3 == 1 ? shared : load();
        for (int i = 0; i < 2; i++)
            OK(D(cuStreamCreate)(&streams[i], !i)); // captured work is apart from the default stream
        copies(module, streams);
        graphs(module, streams);
        copies(module, (void *[]){0, (void *)2}); // the default streams
        OK(D(cuMemGetInfo_v2)(&unused, &all));
        for (int i = 0; i < 2; i++)
            OK(D(cuStreamDestroy_v2)(streams[i]));
        if (module != shared)
            OK(D(cuModuleUnload)(module));
        if (round % 3 == 0)
            OK(D(cuCtxDestroy_v2)(own));
    }
    return 0;
}
int main(int argc, char **argv) {
    begin_first(argc, argv);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        assert(!pthread_create(&threads[i], 0, work, (void *)i));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
}
"""


@pytest.mark.parametrize("source", [GRAPHS, THREADS], ids=["graphs", "threads"])
def test_nothing_is_used_twice_or_too_late(play, tmp_path, source):
    made = simulated.compile_kernels(tmp_path / "kernels.so", KERNELS)
    play(CLIENT + source, str(made), GPT_SIM_RUN="all")
