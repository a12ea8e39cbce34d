// Graphs with nodes that allocate and free memory.

#pragma once

#include "sim.h"

enum { MIB = 1 << 20 };
static void *alloc_node(void *graph, uint64_t *memory, size_t size) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = size};
    void *node;
    OK(D(cuGraphAddMemAllocNode)(&node, graph, (void *)0, (size_t)0, &params));
    *memory = params.dptr;
    return node;
}
static void is_attribute(int attribute, uint64_t value) {
    uint64_t got = 1;
    OK(D(cuDeviceGetGraphMemAttribute)(0, attribute, &got));
    if (got != value)
        fprintf(stderr, "attribute %d: %ld, not %ld\n", attribute, (long)got, (long)value), abort();
}
static void *instance(void *graph, unsigned long long flags) {
    void *exec;
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, flags));
    return exec;
}
