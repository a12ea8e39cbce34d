// Adding nodes to graphs.

#include <stdlib.h>

#include "graph.h"

struct condition {
    struct object object;
    unsigned value; // the value at the start of each launch
    bool used;      // it has its node, and can have no other
};

// Adding nodes

static bool has_twice(void *const *before, size_t count) {
    for (size_t i = 1; before && i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (before[i] == before[j])
                return true;
    return false;
}

static CUresult add(void **node, void *graph, void *const *before, size_t count, CUresult status,
                    struct operation *operation) {
    if (status)
        return status;
    if (!node || !find_graph(graph) || has_twice(before, count) || sim_uses_freed(graph, operation)) {
        sim_end_operation(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_add_node((struct node **)node, graph, (struct node *const *)before, count, operation);
}

// Add a node with graphs inside: empty ones, copies of `child`, or `child` itself.
static CUresult add_outer(void **node, void *graph, void *const *before, size_t count, int type,
                          size_t inners, struct graph *child, bool move) {
    CUresult status = add(node, graph, before, count, CUDA_SUCCESS, &(struct operation){.type = type});
    if (status)
        return status;
    struct node *made = *node;
    made->inner = calloc(inners, sizeof(*made->inner));
    for (; made->inner && made->inners < inners; made->inners++) {
        struct graph **inner = &made->inner[made->inners];
        if (move)
            sim_give(*inner = child, made);
        else if (!(*inner = child ? sim_copy_graph(child, made) : sim_new(GRAPH, made)))
            break;
    }
    if (made->inners == inners)
        return CUDA_SUCCESS;
    sim_remove_node(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_child(void **node, void *graph, void *const *before, size_t count, void *child,
                          bool move) {
    if (!find_graph(child) || child == graph || sim_has_conditions(child) ||
        (move && ((struct object *)child)->owner))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_has_memory(child) && (!move || is_there(((struct graph *)child)->exec)))
        return CUDA_ERROR_NOT_SUPPORTED; // it cannot be copied, and has one executable graph
    return add_outer(node, graph, before, count, CU_GRAPH_NODE_TYPE_GRAPH, 1, child, move);
}

static CUresult add_conditional(void **node, void *graph, void *const *before, size_t count,
                                CUDA_CONDITIONAL_NODE_PARAMS *params) {
    void *condition = (void *)params->handle;
    size_t most = params->type == CU_GRAPH_COND_TYPE_WHILE ? 1
                  : params->type == CU_GRAPH_COND_TYPE_IF  ? 2
                                                           : 1 << 16;
    if (!is_kind(condition, CONDITION) || params->type < 0 || params->type > CU_GRAPH_COND_TYPE_SWITCH ||
        !params->size || params->size > most || ((struct condition *)condition)->used)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status =
        add_outer(node, graph, before, count, CU_GRAPH_NODE_TYPE_CONDITIONAL, params->size, NULL, false);
    if (status)
        return status;
    struct node *made = *node;
    made->condition = ((struct condition *)condition)->value;
    ((struct condition *)condition)->used = true;
    made->condition_type = params->type;
    params->phGraph_out = (void **)made->inner;
    return CUDA_SUCCESS;
}

// Return whether this graph belongs to a child graph node. An H200 refuses to add memory nodes to such a
// graph, but accepts them in the body of a conditional node.
static bool is_child(const struct graph *graph) {
    const struct node *owner = find_graph((void *)graph) ? find_node(graph->object.owner) : NULL;
    return owner && owner->operation->type == CU_GRAPH_NODE_TYPE_GRAPH;
}

// Check who may access the memory of an allocation node. The device can always read and write it; restricting
// that isn't supported.
static CUresult check_access(const CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    enum { READ_WRITE = 3 };
    if (params->accessDescCount && !params->accessDescs)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < params->accessDescCount; i++) {
        const CUmemAccessDesc *one = &params->accessDescs[i];
        if (one->location.type != CU_MEM_LOCATION_TYPE_DEVICE || one->location.id)
            return CUDA_ERROR_INVALID_DEVICE;
        if (one->flags != READ_WRITE)
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

// Add an allocation node, and set the memory's address in the program's parameters.
static CUresult add_alloc(void **node, void *graph, void *const *before, size_t count,
                          CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    struct context *context;
    struct operation operation;
    CUresult status = sim_enter(&context);
    if (!status && is_child(graph))
        status = CUDA_ERROR_NOT_SUPPORTED;
    if (!status && params)
        status = check_access(params);
    if (!status)
        status = params ? sim_make_graph_memory(&operation, params->bytesize, &params->poolProps, context)
                        : CUDA_ERROR_INVALID_VALUE;
    if (status)
        return status;
    CUdeviceptr memory = operation.memory;
    status = add(node, graph, before, count, CUDA_SUCCESS, &operation);
    if (!status)
        params->dptr = memory;
    return status;
}

static CUresult add_free(void **node, void *graph, void *const *before, size_t count, CUdeviceptr memory) {
    CUresult status = find_graph(graph) ? sim_check_free_node(graph, memory) : CUDA_ERROR_INVALID_VALUE;
    return add(node, graph, before, count, status,
               &(struct operation){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = memory});
}

API cuGraphAddNode_v2(void **node, void *graph, void *const *before, const CUgraphEdgeData *edges,
                      size_t count, CUgraphNodeParams *params) {
    LOCKED;
    (void)edges;
    if (!params || params->reserved0[0] || params->reserved0[1] || params->reserved0[2] || params->reserved2)
        return CUDA_ERROR_INVALID_VALUE;
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return add_child(node, graph, before, count, params->graph.graph, params->graph.ownership);
    if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return add_conditional(node, graph, before, count, &params->conditional);
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return add_alloc(node, graph, before, count, &params->alloc);
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return add_free(node, graph, before, count, params->free.dptr);
    struct operation operation;
    CUresult status = sim_make_node(&operation, params);
    return add(node, graph, before, count, status, &operation);
}

API cuGraphAddNode_v3(void **node, void *graph, void *const *before, const CUgraphEdgeData *edges,
                      size_t count, CUgraphNodeParams *params) {
    return cuGraphAddNode_v2(node, graph, before, edges, count, params);
}

API cuGraphAddNode(void **node, void *graph, void *const *before, size_t count, CUgraphNodeParams *params) {
    return cuGraphAddNode_v2(node, graph, before, NULL, count, params);
}

API cuGraphConditionalHandleCreate(uint64_t *handle, void *graph, void *context, unsigned value,
                                   unsigned flags) {
    LOCKED;
    if (!handle || !find_graph(graph) || flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_kind(context, CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    struct condition *made = sim_new(CONDITION, graph);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->value = flags & 1 ? value : 0;
    *handle = (uint64_t)made;
    return CUDA_SUCCESS;
}

#define ADDER(name, type, more, make_it)                                                                     \
    API cuGraphAdd##name(void **node, void *graph, void *const *before, size_t count, type params more) {    \
        LOCKED;                                                                                              \
        struct operation operation;                                                                          \
        CUresult status = make_it;                                                                           \
        return add(node, graph, before, count, status, &operation);                                          \
    }

ADDER(KernelNode, const CUDA_KERNEL_NODE_PARAMS *, , sim_make_kernel_node(&operation, params, true))
ADDER(KernelNode_v2, const CUDA_KERNEL_NODE_PARAMS *, , sim_make_kernel_node(&operation, params, false))
ADDER(MemcpyNode, const CUDA_MEMCPY3D *, AND_CONTEXT, sim_make_copy(&operation, params))
ADDER(MemsetNode, const CUDA_MEMSET_NODE_PARAMS_v2 *, AND_CONTEXT, sim_make_set(&operation, params))
ADDER(HostNode, const CUDA_HOST_NODE_PARAMS *, , sim_make_host(&operation, params))
ADDER(EventRecordNode, void *, , sim_make_event(&operation, CU_GRAPH_NODE_TYPE_EVENT_RECORD, params))
ADDER(EventWaitNode, void *, , sim_make_event(&operation, CU_GRAPH_NODE_TYPE_WAIT_EVENT, params))

API cuGraphAddEmptyNode(void **node, void *graph, void *const *before, size_t count) {
    LOCKED;
    return add(node, graph, before, count, CUDA_SUCCESS,
               &(struct operation){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

API cuGraphAddMemAllocNode(void **node, void *graph, void *const *before, size_t count,
                           CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    LOCKED;
    return add_alloc(node, graph, before, count, params);
}

API cuGraphAddMemFreeNode(void **node, void *graph, void *const *before, size_t count, CUdeviceptr memory) {
    LOCKED;
    return add_free(node, graph, before, count, memory);
}

API cuGraphAddChildGraphNode(void **node, void *graph, void *const *before, size_t count, void *child) {
    LOCKED;
    return add_child(node, graph, before, count, child, false);
}
