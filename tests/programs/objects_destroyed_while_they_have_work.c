// Run by test_objects_destroyed_while_they_have_work in tests/runtime/test_sim_streams.py.

#include "gates.h"

static int done;
static void *open_later(void *number) {
    usleep(2000);
    open_stream((long)number);
    return 0;
}
static void count(void *unused) { __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST); }
static void behind(void (*destroy)(void), void *stream) {
    pthread_t thread;
    int before = done;
    close_stream(stream, 0);
    OK(D(cuLaunchHostFunc)(stream, count, (void *)0));
    pthread_create(&thread, 0, open_later, (void *)0);
    destroy();
    assert(done == before + 1); // it waited
    pthread_join(thread, 0);
}
static uint64_t memory;
static void *module, *context;
static void free_memory(void) { OK(D(cuMemFree_v2)(memory)); }
static void unload(void) { OK(D(cuModuleUnload)(module)); }
static void destroy(void) { OK(D(cuCtxDestroy_v2)(context)); }
static void reset(void) { OK(D(cuDevicePrimaryCtxReset_v2)(0)); }
int main(void) {
    begin();
    void *stream, *again, *graph, *exec, *event;
    OK(D(cuStreamCreate)(&stream, 1));
    close_stream(stream, 0);
    OK(D(cuLaunchHostFunc)(stream, count, (void *)0));
    OK(D(cuEventCreate)(&event, 0));
    OK(D(cuEventRecord)(event, stream));
    OK(D(cuStreamDestroy_v2)(stream)); // returns at once; the stream's work is still done
    OK(D(cuStreamCreate)(&again, 1));
    assert(again == stream);
    OK(D(cuStreamQuery)(again));
    assert(!done);
    open_stream(0);
    OK(D(cuEventSynchronize)(event));
    OK(D(cuCtxSynchronize)());
    assert(done == 1);

    OK(D(cuMemAlloc_v2)(&memory, (size_t)1));
    behind(free_memory, again);
    OK(cuModuleLoadData(&module, PTX));
    behind(unload, again);

    // A launched executable graph runs as it was when launched.
    CUDA_HOST_NODE_PARAMS params = {count, 0};
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphAddHostNode)(&stream, graph, (void *)0, (size_t)0, &params));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    close_stream(again, 0);
    OK(D(cuGraphLaunch)(exec, again));
    OK(D(cuGraphLaunch)(exec, again));
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuGraphDestroy)(graph));
    int before = done;
    open_stream(0);
    OK(D(cuStreamSynchronize)(again));
    assert(done == before + 2);

    // Memory freed in stream order: it must not be used from the call on, whenever that is carried out.
    OK(D(cuCtxCreate_v2)(&context, 0, 0));
    OK(D(cuStreamCreate)(&again, 1));
    close_stream(again, 0);
    OK(D(cuMemAllocAsync)(&memory, (size_t)100, again));
    OK(D(cuMemsetD8Async)(memory, 1, (size_t)100, again));
    OK(D(cuMemFreeAsync)(memory, again));
    uint64_t start;
    size_t size;
    for (int i = 0; i < 2; i++) {
        IS(500, D(cuMemGetAddressRange_v2)(&start, &size, memory));
        IS(1, D(cuMemsetD8Async)(memory, 1, (size_t)100, again));
        open_stream(0);
        OK(D(cuStreamSynchronize)(again));
    }
    OK(D(cuCtxDestroy_v2)(context));
    OK(D(cuCtxCreate_v2)(&context, 0, 0));
    OK(D(cuStreamCreate)(&again, 1));
    behind(destroy, again);
    OK(D(cuStreamCreate)(&again, 1));
    behind(reset, again);
}
