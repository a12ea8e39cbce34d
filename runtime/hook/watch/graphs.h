// Handlers of the functions that make graphs; and the nodes of a graph.

#ifndef GPT_GRAPHS_H
#define GPT_GRAPHS_H

#include "call.h"
#include "cuda_abi.h"

extern handler hook_on_instantiate, hook_on_exec_update, hook_on_graph, hook_on_captured, hook_on_node;
extern handler hook_on_exec_kernel, hook_on_exec_child, hook_on_exec_node, hook_on_node_enabled;
extern handler hook_on_exec_copy, hook_on_exec_set;

struct graph_node {
    void *handle;
    int type;
    unsigned depth;                 // how many nodes it is inside of
    bool sure;                      // it runs once; else it is in the body of a conditional node
    CUDA_KERNEL_NODE_PARAMS kernel; // of a kernel node; all zero if the driver does not say
};

// Shows each node of a graph, and after it those of the graphs inside of it, until `see` returns false.
void hook_walk_graph(void *graph, bool (*see)(const struct graph_node *node, void *with), void *with);

#endif
