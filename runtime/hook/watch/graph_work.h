// What nodes of graphs do beside launching kernels: copies, memsets, functions of the host, memory.

#ifndef GPT_GRAPH_WORK_H
#define GPT_GRAPH_WORK_H

#include <stdint.h>

#include "cuda_abi.h"
#include "hook/write/write.h"

#define MAX_OPERATIONS 1024 // different ones of a graph

struct graph_work {
    uint8_t what; // enum in graph_work.c; 0: nothing that counts
    uint64_t bytes, address;
};

struct graph_sums {
    size_t count;
    struct gpt_operation operations[MAX_OPERATIONS];
};

struct graph_work hook_work_of(void *node, int type); // CU_GRAPH_NODE_TYPE_*
struct graph_work hook_work_of_copy(const CUDA_MEMCPY3D *copy);
struct graph_work hook_work_of_set(const CUDA_MEMSET_NODE_PARAMS_v2 *set);
void hook_add_work(struct graph_sums *sums, const struct graph_work *work);

#endif
