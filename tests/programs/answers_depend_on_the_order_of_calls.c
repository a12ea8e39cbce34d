// Run by test_answers_depend_on_the_order_of_calls in tests/runtime/test_sim_graph_memory.py.

#include "gates.h"
#include "graph_memory.h"

static void are_refused(uint64_t m, void *stream) {
    uint64_t got[2];
    int attribute = 7;
    IS(1, D(cuMemsetD8_v2)(m, 0, (size_t)64));
    IS(1, D(cuMemsetD32Async)(m, 0, (size_t)16, stream));
    IS(1, D(cuMemcpyDtoH_v2)(got, m, (size_t)8));
    IS(1, D(cuMemcpyHtoDAsync_v2)(m + 8, got, (size_t)8, stream));
    IS(1, D(cuMemcpy)((uint64_t)got, m, (size_t)8));
    IS(1, D(cuMemcpyAsync)(m + 8, (uint64_t)got, (size_t)8, stream));
    IS(1, D(cuPointerGetAttribute)(got, attribute, m));
    IS(500, D(cuMemGetAddressRange_v2)((void *)0, (void *)0, m));
    IS(1, D(cuStreamWriteValue32_v2)(stream, m, 1u, 0u));
    IS(1, D(cuMemFreeAsync)(m, stream));
    IS(1, D(cuMemFree_v2)(m));
}
int main(void) {
    begin();
    void *s, *t, *graph, *exec, *nodes[4], *context;
    uint64_t m, plain, used[2], own, pool_memory, all;
    void *pool;
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuStreamCreate)(&s, 1));
    OK(D(cuStreamCreate)(&t, 1));
    OK(D(cuDeviceGetDefaultMemPool)(&pool, 0));
    OK(D(cuMemAlloc_v2)(&plain, (size_t)64));

    // Memory is freed while in use, in another stream, and before it's used.
    OK(D(cuGraphCreate)(&graph, 0));
    alloc_node(graph, &own, 64);
    exec = instance(graph, 0);
    for (int i = 0; i < 6; i++) {
        int of_graph = i % 2;
        if (of_graph) {
            OK(D(cuGraphLaunch)(exec, s));
            m = own;
        } else
            OK(D(cuMemAllocAsync)(&m, (size_t)64, s));
        OK(D(cuStreamSynchronize)(s));
        close_stream(t, 0);
        OK(D(cuMemsetD8Async)(m, i + 1, (size_t)64, t));
        OK(D(cuMemcpyDtoDAsync_v2)(plain, m, (size_t)64, t));
        OK(D(cuStreamWriteValue32_v2)(t, m, 1u, 0u));
        OK(D(cuMemFreeAsync)(m, s));
        OK(D(cuStreamSynchronize)(s)); // it has been freed
        are_refused(m, s);
        open_stream(0);
        OK(D(cuStreamSynchronize)(t));
        OK(D(cuMemcpyDtoH_v2)(used, plain, (size_t)8));
        assert(used[0] == 0x0101010101010101ull * (unsigned)(i + 1));

        if (of_graph) {
            OK(D(cuGraphLaunch)(exec, s));
            m = own;
        } else
            OK(D(cuMemAllocAsync)(&m, (size_t)64, s));
        close_stream(s, 0);
        OK(D(cuMemFreeAsync)(m, s));
        are_refused(m, t); // the memory hasn't been freed
        OK(D(cuMemPoolGetAttribute)(pool, 7, used));
        assert(!used[0]);
        open_stream(0);
        OK(D(cuStreamSynchronize)(s));
    }

    // Memory freed in a stream can be allocated again, but not earlier.
    OK(D(cuMemFree_v2)(plain));
    for (int i = 0; i < 3; i++) {
        OK(D(cuMemAllocAsync)(&all, (size_t)900 * MIB, s));
        OK(D(cuMemFreeAsync)(all, s));
    }
    OK(D(cuMemAlloc_v2)(&all, (size_t)900 * MIB));
    IS(2, D(cuMemAllocAsync)(&m, (size_t)900 * MIB, s));
    OK(D(cuMemFree_v2)(all));

    // Nodes of a graph see the memory that exists when the graph is launched.
    OK(D(cuMemAllocAsync)(&pool_memory, (size_t)64, s));
    OK(D(cuGraphCreate)(&graph, 0));
    CUDA_MEMSET_NODE_PARAMS_v2 params = {pool_memory, 0, 7, 1, 64, 1, context};
    OK(D(cuGraphAddMemsetNode)(&nodes[0], graph, (void *)0, (size_t)0, &params, context));
    exec = instance(graph, 0);
    close_stream(t, 0);
    OK(D(cuGraphLaunch)(exec, t));
    OK(D(cuMemFreeAsync)(pool_memory, s));
    OK(D(cuStreamSynchronize)(s));
    open_stream(0);
    OK(D(cuStreamSynchronize)(t));
    close_stream(s, 0);
    OK(D(cuGraphLaunch)(exec, t)); // its memory no longer exists
    IS(700, D(cuStreamSynchronize)(t));
    open_stream(0);
}
