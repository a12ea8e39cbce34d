// Run by test_calls_refused_during_an_active_or_invalid_capture in tests/runtime/test_sim_graphs.py.

#include "calls_in_graphs.h"

static void *s, *t, *event, *other, *f, *pool;
static int state(void) {
    int status;
    OK(D(cuStreamIsCapturing)(s, &status));
    return status;
}
#define ENDS(result, after, call)                                                                            \
    do {                                                                                                     \
        void *graph_ = s;                                                                                    \
        OK(D(cuStreamBeginCapture_v2)(s, 0));                                                                \
        IS(result, call);                                                                                    \
        IS(after, state());                                                                                  \
        IS(after == 1 ? 0 : 901, D(cuStreamEndCapture)(s, &graph_));                                         \
        assert((after == 2) == !graph_);                                                                     \
    } while (0)
int main(void) {
    begin();
    void *module, *graph, *exec, *made;
    uint64_t m, memory, id;
    char host[8];
    size_t size;
    unsigned flags;
    int number;
    struct {
        int type, handles, location, place;
        uint64_t rest[10];
    } props = {1, 0, 1, 0, {0}};
    f = kernel("foo");
    OK(cuModuleLoadData(&module, PTX));
    OK(D(cuStreamCreate)(&s, 1));
    OK(D(cuStreamCreate)(&t, 1));
    OK(D(cuEventCreate)(&event, 0));
    OK(D(cuEventCreate)(&other, 0));
    OK(D(cuEventRecord)(other, t));
    OK(D(cuMemAlloc_v2)(&m, (size_t)4096));
    OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    ENDS(900, 2, D(cuMemAlloc_v2)(&memory, (size_t)4));
    ENDS(900, 2, D(cuMemAllocManaged)(&memory, (size_t)4, 1));
    ENDS(900, 2, D(cuMemHostAlloc)(&made, (size_t)4, 0));
    ENDS(900, 2, D(cuMemFree_v2)(0ull));
    ENDS(900, 2, D(cuModuleUnload)(module));
    ENDS(900, 2, D(cuCtxSynchronize)());
    ENDS(900, 2, D(cuStreamSynchronize)(t));
    ENDS(900, 2, D(cuStreamQuery)(t));
    ENDS(900, 2, D(cuEventQuery)(other));
    ENDS(900, 2, D(cuEventSynchronize)(other));
    ENDS(900, 2, D(cuCtxSetLimit)(0, (size_t)2048));
    ENDS(900, 2, D(cuMemPoolCreate)(&made, &props));
    ENDS(900, 2, D(cuMemPoolTrimTo)(pool, (size_t)0));
    ENDS(900, 2, D(cuMemAllocAsync)(&memory, (size_t)4, t));
    ENDS(900, 2, D(cuMemFreeAsync)(m, t));
    ENDS(900, 2, D(cuMemFreeAsync)(0ull, t));
    ENDS(900, 2, D(cuStreamGetFlags)(s, &flags));
    ENDS(900, 2, D(cuStreamGetId)(s, &id));
    ENDS(900, 2, D(cuStreamGetDevice)(s, &number));
    ENDS(900, 2, D(cuMemPrefetchAsync)(m, (size_t)4, 0, s));
    ENDS(900, 2, D(cuGraphLaunch)((void *)0, s));
    ENDS(900, 2, D(cuGraphLaunch)(exec, s));
    ENDS(1, 2, cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s, 0, 0));
    ENDS(1, 2, cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, s, 0, 0));
    ENDS(0, 1, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, t, 0, 0));
    ENDS(0, 1, D(cuMemcpyDtoH_v2)(host, m, (size_t)4)); // the legacy stream doesn't wait for this stream
    ENDS(0, 1, D(cuMemcpyDtoD_v2)(m, m + 64, (size_t)4));
    ENDS(0, 1, D(cuMemsetD8_v2)(m, 0, (size_t)4));
    ENDS(0, 1, D(cuMemGetInfo_v2)(&size, &size));
    ENDS(0, 1, D(cuStreamCreate)(&made, 1));
    ENDS(0, 1, cuModuleLoadData(&made, PTX));
    ENDS(401, 1, D(cuStreamBeginCapture_v2)(s, 0));
    ENDS(1, 1, D(cuMemFreeAsync)(m, s)); // not memory of a graph
    OK(D(cuStreamSynchronize)(t));

    OK(D(cuStreamBeginCapture_v2)(s, 0));
    OK(D(cuEventRecord)(event, s));
    IS(907, D(cuEventQuery)(event));
    IS(2, state());
    IS(901, D(cuStreamWaitEvent)(t, event, 0));
    IS(901, D(cuMemAllocAsync)(&memory, (size_t)4, s));
    IS(901, D(cuMemAllocFromPoolAsync)(&memory, (size_t)4, pool, s));
    IS(901, D(cuMemFreeAsync)(m, s));
    IS(901, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0));
    IS(901, D(cuMemsetD32Async)(m, 0, (size_t)1, s));
    IS(901, D(cuMemcpyDtoDAsync_v2)(m, m + 64, (size_t)4, s));
    IS(901, D(cuMemcpyHtoDAsync_v2)(m, host, (size_t)4, s));
    IS(901, D(cuEventRecord)(event, s));
    IS(901, D(cuStreamWaitEvent)(s, other, 0));
    IS(901, D(cuLaunchHostFunc)(s, call, 1l));
    IS(901, D(cuStreamWriteValue32_v2)(s, m, 1, 0));
    IS(900, D(cuStreamAddCallback)(s, call, 1l, 0));
    IS(900, D(cuGraphLaunch)((void *)0, s));
    IS(900, D(cuGraphUpload)(exec, s));
    IS(900, D(cuStreamSynchronize)(s));
    IS(900, D(cuStreamQuery)(s));
    IS(900, D(cuStreamGetFlags)(s, &flags));
    IS(901, D(cuStreamGetPriority)(s, &number));
    IS(901, D(cuStreamGetCtx)(s, &made));
    IS(901, D(cuStreamUpdateCaptureDependencies)(s, (void *)0, (size_t)0, 1));
    IS(401, D(cuStreamBeginCapture_v2)(s, 0));
    OK(D(cuStreamGetCaptureInfo)(s, &number, &id));
    assert(number == 2);
    OK(D(cuMemcpyDtoH_v2)(host, m, (size_t)4));
    IS(903, D(cuStreamEndCapture)(t, &made) == 401 ? 903 : 0); // t hasn't joined the capture
    made = s;
    IS(901, D(cuStreamEndCapture)(s, &made));
    assert(!made);
    IS(1, D(cuEventSynchronize)(event));
    IS(1, D(cuStreamWaitEvent)(t, event, 0));
    OK(D(cuEventRecord)(event, t));
    OK(D(cuStreamWaitEvent)(s, event, 0));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0));
    OK(D(cuStreamSynchronize)(s));
}
