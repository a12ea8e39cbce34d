// Graphs, their nodes and executable graphs: graph.c, node.c, params.c, exec.c, and capture.c, which adds
// nodes.

#ifndef GPT_SIM_GRAPH_H
#define GPT_SIM_GRAPH_H

#include "sim.h"

struct graph {
    struct object object; // owns its nodes
    struct node **nodes;  // in the order they were made, sorted when the graph is instantiated
    size_t count, room;
    struct reference exec; // the last executable graph made from it
    unsigned captures;     // how many active captures add nodes to it
};
struct node {
    struct object object; // owns the graph of a child node or the graphs of a conditional node
    struct operation *operation;
    struct node **before; // the nodes that it depends on
    size_t count;
    uint64_t origin;      // serial of the node that it is a copy of
    struct graph **inner; // the graphs that it owns
    size_t inners;
    unsigned condition;
    int condition_type;
    bool disabled;
    int mark; // used while nodes are sorted or numbered
    size_t visited, number;
    struct node *visitor;
};

static inline struct graph *find_graph(void *graph) { return is_kind(graph, GRAPH) ? graph : NULL; }
static inline struct node *find_node(void *node) { return is_kind(node, NODE) ? node : NULL; }
static inline struct graph *graph_of(const struct node *node) { return (struct graph *)node->object.owner; }

// graph.c
// Takes the operation over, even on failure.
CUresult sim_add_node(struct node **made, struct graph *graph, struct node *const *before, size_t count,
                      struct operation *operation);
void sim_remove_node(struct node *node);
struct graph *sim_copy_graph(const struct graph *from, void *owner);
struct node *sim_find_copy(const struct graph *graph,
                           uint64_t origin); // in the graph or in the graphs inside it
void sim_number_nodes(const struct graph *graph);
bool sim_has_conditions(const struct graph *graph);

// params.c: operations from parameters; `old`: those before CUDA 12.0
CUresult sim_make_copy(struct operation *operation, const CUDA_MEMCPY3D *copy);
CUresult sim_make_set(struct operation *operation, const CUDA_MEMSET_NODE_PARAMS_v2 *set);
CUresult sim_make_host(struct operation *operation, const CUDA_HOST_NODE_PARAMS *host);
CUresult sim_make_event(struct operation *operation, int type, void *event);
CUresult sim_make_kernel_node(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *params, bool old);
CUresult sim_make_node(struct operation *operation, const CUgraphNodeParams *params);

// A last parameter that means nothing here.
#define AND_CONTEXT , __attribute__((unused)) void *context

// user.c
bool sim_copy_held(struct graph *to, const struct graph *from);

// exec.c: the node of an executable graph for the node that it was made from
struct node *sim_exec_node(void *exec, void *node);

#endif
