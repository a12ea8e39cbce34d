// Run by test_each_launch_allocates in tests/runtime/test_sim_graph_memory.py.

#include "graph_memory.h"

int main(void) {
    begin();
    void *s, *graph, *other, *exec, *frees, *node, *set, *context;
    uint64_t m, value;
    OK(D(cuStreamCreate)(&s, 1));
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuGraphCreate)(&graph, 0));
    node = alloc_node(graph, &m, 256);
    CUDA_MEMSET_NODE_PARAMS_v2 params = {m, 0, 7, 4, 64, 1, context};
    OK(D(cuGraphAddMemsetNode)(&set, graph, &node, (size_t)1, &params, context));
    params.dst = m + 252;
    // Beyond the memory's end.
    IS(1, D(cuGraphAddMemsetNode)(&set, graph, &node, (size_t)1, &params, context));
    exec = instance(graph, 0);
    IS(1, D(cuMemcpyDtoH_v2)(&value, m, (size_t)4)); // not allocated yet
    IS(1, D(cuMemsetD8Async)(m, 0, (size_t)4, s));
    IS(1, D(cuPointerGetAttribute)(&value, 2, m));
    IS(500, D(cuMemGetAddressRange_v2)((void *)0, (void *)0, m));
    IS(1, D(cuMemFreeAsync)(m, s));
    is_attribute(0, 0);
    OK(D(cuGraphLaunch)(exec, s));
    OK(D(cuMemcpyDtoDAsync_v2)(m + 8, m, (size_t)8, s)); // after the launch, in the stream
    IS(1, D(cuGraphLaunch)(exec, s));                    // without a free
    OK(D(cuStreamSynchronize)(s));
    for (int i = 0; i < 4; i++)
        is_attribute(i, 32 * MIB);
    OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
    assert((uint32_t)value == 7);
    OK(D(cuMemFreeAsync)(m, s));
    IS(1, D(cuMemFreeAsync)(m, s));
    OK(D(cuGraphLaunch)(exec, s));
    OK(D(cuStreamSynchronize)(s));
    OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
    OK(D(cuMemFree_v2)(m));
    IS(1, D(cuMemFree_v2)(m));
    IS(1, D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
    is_attribute(0, 32 * MIB); // the device keeps the memory
    OK(D(cuDeviceGraphMemTrim)(0));
    is_attribute(0, 0);
    is_attribute(1, 32 * MIB);
    value = 1;
    IS(1, D(cuDeviceSetGraphMemAttribute)(0, 1, &value));
    value = 0;
    IS(1, D(cuDeviceSetGraphMemAttribute)(0, 0, &value));
    OK(D(cuDeviceSetGraphMemAttribute)(0, 3, &value));
    is_attribute(3, 0);

    // Another graph frees the memory, if it exists.
    OK(D(cuGraphCreate)(&other, 0));
    OK(D(cuGraphAddMemFreeNode)(&node, other, (void *)0, (size_t)0, m));
    frees = instance(other, 0);
    IS(1, D(cuGraphLaunch)(frees, s));
    for (int i = 0; i < 2; i++) {
        OK(D(cuGraphLaunch)(exec, s));
        OK(D(cuGraphLaunch)(frees, s));
    }
    OK(D(cuStreamSynchronize)(s));
    IS(1, D(cuGraphLaunch)(frees, s));
    IS(1, D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));

    // Memory outlives its graph until it's freed.
    OK(D(cuGraphLaunch)(exec, s));
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuStreamSynchronize)(s));
    OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
    assert((uint32_t)value == 7);
    OK(D(cuMemFree_v2)(m));
    IS(1, D(cuMemFree_v2)(m));

    // Freed by the next launch
    OK(D(cuGraphCreate)(&graph, 0));
    alloc_node(graph, &m, 256);
    exec = instance(graph, 1);
    for (int i = 0; i < 3; i++)
        OK(D(cuGraphLaunch)(exec, s));
    OK(D(cuStreamSynchronize)(s));
    OK(D(cuMemcpyDtoH_v2)(&value, m, (size_t)4));
    OK(D(cuDevicePrimaryCtxReset_v2)(0)); // takes all along
}
