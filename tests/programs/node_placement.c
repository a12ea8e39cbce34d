// Run by test_node_placement_restrictions in tests/runtime/test_sim_graph_memory.py.

#include "graph_memory.h"

static int add(void *graph, CUgraphNodeParams *params) {
    void *node;
    return D(cuGraphAddNode)(&node, graph, (void *)0, (size_t)0, params);
}
int main(void) {
    begin();
    void *s, *graph, *child, *inner, *node, *exec, *context;
    uint64_t m, handle;
    OK(D(cuStreamCreate)(&s, 1));
    OK(D(cuCtxGetCurrent)(&context));
    // The body of a condition can contain such a node, but the graph then can't be made executable.
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphConditionalHandleCreate)(&handle, graph, context, 1, 1));
    CUgraphNodeParams condition = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                   .conditional = {.handle = handle, .size = 1, .ctx = context}};
    OK(add(graph, &condition));
    alloc_node(condition.conditional.phGraph_out[0], &m, 256);
    IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, (unsigned long long)0));
    IS(1, add(graph, &condition)); // a handle can have only one node
    // A child graph can't get such nodes, but may have them if it's moved.
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 64};
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphCreate)(&child, 0));
    OK(D(cuGraphAddChildGraphNode)(&node, graph, (void *)0, (size_t)0, child));
    OK(D(cuGraphChildGraphNodeGetGraph)(node, &inner));
    IS(801, D(cuGraphAddMemAllocNode)(&node, inner, (void *)0, (size_t)0, &params));
    alloc_node(child, &m, 256);
    CUgraphNodeParams moved = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child, .ownership = 1}};
    exec = instance(child, 0);
    IS(801, add(graph, &moved));
    OK(D(cuGraphExecDestroy)(exec));
    OK(add(graph, &moved));
    exec = instance(graph, 0);
    OK(D(cuGraphLaunch)(exec, s));
    OK(D(cuMemsetD8_v2)(m, 0, (size_t)256));
    OK(D(cuMemFreeAsync)(m, s));
    IS(1, D(cuMemsetD8_v2)(m, 0, (size_t)256)); // even if the free hasn't run yet
    IS(1, D(cuMemcpyDtoH_v2)(&handle, m, (size_t)8));
    // flags
    unsigned long long flags;
    OK(D(cuGraphCreate)(&graph, 0));
    node = alloc_node(graph, &m, 256);
    IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, 2ull)); // upload, without a stream
    IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, 4ull)); // launchable by the device
    IS(1, D(cuGraphInstantiateWithFlags)(&exec, graph, 16ull));
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = 2, .hUploadStream = s};
    OK(D(cuGraphInstantiateWithParams)(&exec, graph, &how));
    OK(D(cuGraphExecGetFlags)(exec, &flags));
    assert(!flags);
    // access
    CUmemAccessDesc access = {{1, 0}, 3};
    params.accessDescs = &access, params.accessDescCount = 1;
    OK(D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    access.flags = 1;
    IS(801, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    access.flags = 3, access.location.id = 7;
    IS(101, D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    size_t pitch;
    IS(1, D(cuMemAllocPitch_v2)(&m, &pitch, (size_t)100, (size_t)3, 5));
    return 0;
}
