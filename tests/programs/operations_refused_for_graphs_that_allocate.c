// Run by test_operations_refused_for_graphs_that_allocate in tests/runtime/test_sim_graph_memory.py.

#include "graph_memory.h"

int main(void) {
    begin();
    void *graph, *outer, *exec, *alloc, *node, *empty, *clone;
    uint64_t m, got, plain;
    OK(D(cuMemAlloc_v2)(&plain, (size_t)256));
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphCreate)(&outer, 0));
    alloc = alloc_node(graph, &m, 256);
    IS(801, D(cuGraphClone)(&clone, graph));
    IS(801, D(cuGraphAddChildGraphNode)(&node, outer, (void *)0, (size_t)0, graph));
    IS(801, D(cuGraphDestroyNode)(alloc));
    OK(D(cuGraphAddEmptyNode)(&empty, graph, &alloc, (size_t)1));
    IS(801, D(cuGraphRemoveDependencies)(graph, &alloc, &empty, (size_t)1));
    IS(1, D(cuGraphAddMemFreeNode)(&node, graph, (void *)0, (size_t)0, plain));
    IS(1, D(cuGraphAddMemFreeNode)(&node, graph, (void *)0, (size_t)0, m + 4));
    IS(1, D(cuGraphAddMemFreeNode)(&node, graph, (void *)0, (size_t)0, 0ull));
    OK(D(cuGraphAddMemFreeNode)(&node, graph, &empty, (size_t)1, m));
    IS(1, D(cuGraphAddMemFreeNode)(&empty, graph, &node, (size_t)1, m));
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    OK(D(cuGraphMemAllocNodeGetParams)(alloc, &params));
    assert(params.bytesize == 256 && params.dptr == m && params.poolProps.allocType == 1);
    OK(D(cuGraphMemFreeNodeGetParams)(node, &got));
    assert(got == m);
    IS(1, D(cuGraphMemFreeNodeGetParams)(alloc, &got));
    params.bytesize = 0;
    IS(1, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    params.bytesize = 1ull << 45;
    IS(2, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    params = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = 256}; // no location
    IS(1, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    exec = instance(graph, 0);
    IS(801, D(cuGraphInstantiateWithFlags)(&clone, graph, 0ull)); // only one executable graph at a time
    IS(801, D(cuGraphInstantiateWithFlags)(&clone, graph, 1ull));
    OK(D(cuGraphExecUpdate_v2)(exec, graph, (void *)0));
    OK(D(cuGraphExecDestroy)(exec));
    exec = instance(graph, 0);
    params = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 64};
    CUgraphNodeParams both = {.type = 10, .alloc = params};
    OK(D(cuGraphAddNode)(&node, outer, (void *)0, (size_t)0, &both));
    both = (CUgraphNodeParams){.type = 11, .free = {both.alloc.dptr}};
    OK(D(cuGraphAddNode)(&empty, outer, &node, (size_t)1, &both));
    IS(910, D(cuGraphExecUpdate_v2)(exec, outer, (void *)0)); // its memory is at another address
    OK(D(cuGraphLaunch)(instance(outer, 0), (void *)0));
    IS(801, D(cuGraphExecUpdate_v2)(exec, outer, (void *)0)); // it has its own executable graph
    OK(D(cuCtxSynchronize)());
}
