// Run by test_memory_of_graphs in tests/runtime/test_sim_memory.py.

#include "sim.h"

static _Atomic int destroyed;
static void destroy(void *data) { destroyed += *(int *)data; }
static void expect(int sum) {
    while (destroyed < sum)
        usleep(1000);
    assert(destroyed == sum);
}
int main(void) {
    begin();
    int one = 1, ten = 10, value[16] = {1}, got[16];
    void *graph, *clone, *exec, *first, *second, *stream, *nodes[5];
    OK(D(cuUserObjectCreate)(&first, &one, destroy, 1, 1));
    OK(D(cuUserObjectCreate)(&second, &ten, destroy, 3, 1));
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphRetainUserObject)(graph, first, 1, 1)); // the program's own reference
    OK(D(cuGraphRetainUserObject)(graph, second, 2, 0));
    IS(1, D(cuGraphReleaseUserObject)(graph, second, 3));
    OK(D(cuGraphReleaseUserObject)(graph, second, 1));
    OK(D(cuUserObjectRelease)(second, 3)); // the graph has a reference
    OK(D(cuGraphClone)(&clone, graph));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuGraphDestroy)(clone));
    assert(!destroyed);
    OK(D(cuGraphExecDestroy)(exec));
    expect(11);
    IS(1, D(cuUserObjectRetain)(first, 1));

    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 256},
                               read;
    CUDA_MEMSET_NODE_PARAMS_v2 set = {.value = 3, .elementSize = 1, .width = 256, .height = 1};
    CUDA_KERNEL_NODE_PARAMS launch = {kernel("foo"), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0};
    uint64_t memory;
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphAddMemAllocNode)(&nodes[0], graph, 0, (size_t)0, &params));
    set.dst = params.dptr;
    OK(D(cuGraphAddMemsetNode)(&nodes[1], graph, nodes, (size_t)1, &set, 0));
    OK(D(cuGraphAddMemFreeNode)(&nodes[2], graph, nodes + 1, (size_t)1, params.dptr));
    OK(D(cuGraphAddKernelNode_v2)(&nodes[3], graph, 0, (size_t)0, &launch));
    OK(D(cuGraphAddKernelNode_v2)(&nodes[4], graph, 0, (size_t)0, &launch));
    OK(D(cuGraphMemAllocNodeGetParams)(nodes[0], &read));
    assert(read.bytesize == 256 && read.dptr == params.dptr);
    OK(D(cuGraphMemFreeNodeGetParams)(nodes[2], &memory));
    assert(memory == params.dptr);
    OK(D(cuGraphKernelNodeSetAttribute)(nodes[3], 2, value)); // cooperative
    OK(D(cuGraphKernelNodeCopyAttributes)(nodes[4], nodes[3]));
    OK(D(cuGraphKernelNodeGetAttribute)(nodes[4], 2, got));
    assert(got[0] == 1);
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    OK(D(cuStreamCreate)(&stream, 1));
    for (int i = 0; i < 3; i++) // the memory exists each time
        OK(D(cuGraphLaunch)(exec, stream));
    OK(D(cuStreamSynchronize)(stream));
}
