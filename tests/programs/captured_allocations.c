// Run by test_captured_allocations in tests/runtime/test_sim_graph_memory.py.

#include "graph_memory.h"

int main(void) {
    begin();
    void *s, *t, *graph, *exec, *nodes[8];
    uint64_t m, second, pool, out;
    size_t count = 8;
    int type, types[] = {10, 2, 1, 11};
    OK(D(cuStreamCreate)(&s, 1));
    OK(D(cuStreamCreate)(&t, 1));
    OK(D(cuMemAlloc_v2)(&out, (size_t)256));
    OK(D(cuMemAllocAsync)(&pool, (size_t)256, s));
    OK(D(cuStreamBeginCapture_v2)(s, 0));
    OK(D(cuMemAllocAsync)(&m, (size_t)256, s));
    OK(D(cuMemsetD32Async)(m, 5, (size_t)64, s));
    OK(D(cuMemcpyDtoDAsync_v2)(out, m, (size_t)256, s));
    IS(1, D(cuMemFreeAsync)(pool, s)); // this memory belongs to no graph
    IS(1, D(cuMemFreeAsync)(m + 4, s));
    OK(D(cuMemFreeAsync)(m, s));
    IS(1, D(cuMemFreeAsync)(m, s));
    OK(D(cuStreamEndCapture)(s, &graph));
    OK(D(cuGraphGetNodes)(graph, nodes, &count));
    assert(count == 4);
    for (int i = 0; i < 4; i++) {
        OK(D(cuGraphNodeGetType)(nodes[i], &type));
        assert(type == types[i]);
    }
    exec = instance(graph, 0);
    for (int i = 0; i < 3; i++) {
        uint32_t got[64] = {0};
        OK(D(cuMemsetD32_v2)(out, 0, (size_t)64));
        OK(D(cuCtxSynchronize)());
        OK(D(cuGraphLaunch)(exec, s));
        OK(D(cuStreamSynchronize)(s));
        OK(D(cuMemcpyDtoH_v2)(got, out, (size_t)256));
        assert(got[0] == 5 && got[63] == 5);
        IS(1, D(cuMemFree_v2)(m));
    }
    OK(D(cuMemFreeAsync)(pool, t));
    IS(1, D(cuMemFreeAsync)(pool, t)); // it has already been freed
    OK(D(cuStreamSynchronize)(t));
    OK(D(cuStreamBeginCapture_v2)(s, 0));
    OK(D(cuMemAllocAsync)(&second, (size_t)256, s));
    IS(900, D(cuMemFreeAsync)(second, t)); // only a launch allocates this memory
    IS(901, D(cuStreamEndCapture)(s, &graph));
}
