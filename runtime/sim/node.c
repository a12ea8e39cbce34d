// What the nodes of graphs do: it is made from parameters when they are added, read and replaced.

#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct condition {
    struct object object;
    unsigned value; // that each launch begins with
    bool used;      // by its node, the only one
};

// Operations from parameters

static CUresult make_copy(struct operation *operation, const CUDA_MEMCPY3D *copy) {
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *copy};
    return sim_check_copy(copy, true);
}

static CUresult make_set(struct operation *operation, const CUDA_MEMSET_NODE_PARAMS_v2 *set) {
    if (!set)
        return CUDA_ERROR_INVALID_VALUE;
    memset(operation, 0, sizeof(*operation));
    operation->type = CU_GRAPH_NODE_TYPE_MEMSET;
    memcpy(&operation->set, set, offsetof(CUDA_MEMSET_NODE_PARAMS_v2, ctx)); // some callers have no more
    return sim_check_set(set, true);
}

static CUresult make_host(struct operation *operation, const CUDA_HOST_NODE_PARAMS *host) {
    if (!host || !host->fn)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.type = CU_GRAPH_NODE_TYPE_HOST,
                                    .host = {.function = host->fn, .data = host->userData}};
    return CUDA_SUCCESS;
}

static CUresult make_event(struct operation *operation, int type, void *event) {
    if (!is_kind(event, EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    *operation = (struct operation){.type = type, .event = sim_refer(event)};
    return CUDA_SUCCESS;
}

static CUresult make_kernel(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *params, bool old) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS whole = {0};
    memcpy(&whole, params, old ? offsetof(CUDA_KERNEL_NODE_PARAMS, kern) : sizeof(whole));
    return sim_make_launch(operation, &whole, true);
}

// What any node but one with graphs inside does.
static CUresult make(struct operation *operation, const CUgraphNodeParams *params) {
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return make_kernel(operation, &params->kernel, false);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return make_copy(operation, &params->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return make_set(operation, &params->memset);
    case CU_GRAPH_NODE_TYPE_HOST:
        return make_host(operation, &params->host);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return make_event(operation, params->type, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *operation = (struct operation){.type = params->type};
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

// Adding nodes

static CUresult add(void **node, void *graph, void *const *before, size_t count, CUresult status,
                    struct operation *operation) {
    if (status)
        return status;
    if (!node || !find_graph(graph)) {
        sim_end_operation(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_add_node((struct node **)node, graph, (struct node *const *)before, count, operation);
}

// A node with graphs inside: empty ones, copies of `child`, or `child` itself.
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

// Whether this is the graph of a child node: an H200 adds no memory to it, though to the body of a condition.
static bool is_child(const struct graph *graph) {
    const struct node *owner = find_graph((void *)graph) ? find_node(graph->object.owner) : NULL;
    return owner && owner->operation->type == CU_GRAPH_NODE_TYPE_GRAPH;
}

// The device can always read and write it: less is not supported.
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

// The program is told the address.
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
    if (!params)
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
    CUresult status = make(&operation, params);
    return add(node, graph, before, count, status, &operation);
}

API cuGraphAddNode(void **node, void *graph, void *const *before, size_t count, CUgraphNodeParams *params) {
    return cuGraphAddNode_v2(node, graph, before, NULL, count, params);
}

API cuGraphConditionalHandleCreate(uint64_t *handle, void *graph, void *context, unsigned value,
                                   unsigned flags) {
    LOCKED;
    (void)context;
    if (!handle || !find_graph(graph))
        return CUDA_ERROR_INVALID_VALUE;
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
#define AND_CONTEXT , __attribute__((unused)) void *context

ADDER(KernelNode, const CUDA_KERNEL_NODE_PARAMS *, , make_kernel(&operation, params, true))
ADDER(KernelNode_v2, const CUDA_KERNEL_NODE_PARAMS *, , make_kernel(&operation, params, false))
ADDER(MemcpyNode, const CUDA_MEMCPY3D *, AND_CONTEXT, make_copy(&operation, params))
ADDER(MemsetNode, const CUDA_MEMSET_NODE_PARAMS_v2 *, AND_CONTEXT, make_set(&operation, params))
ADDER(HostNode, const CUDA_HOST_NODE_PARAMS *, , make_host(&operation, params))
ADDER(EventRecordNode, void *, , make_event(&operation, CU_GRAPH_NODE_TYPE_EVENT_RECORD, params))
ADDER(EventWaitNode, void *, , make_event(&operation, CU_GRAPH_NODE_TYPE_WAIT_EVENT, params))

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

// Parameters of nodes

static const struct operation *get(void *node, int type) {
    const struct operation *operation = find_node(node) ? ((struct node *)node)->operation : NULL;
    return operation && operation->type == type ? operation : NULL;
}

static CUresult get_kernel(void *node, CUDA_KERNEL_NODE_PARAMS *params, bool old) {
    const struct operation *operation = get(node, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!operation || !params)
        return CUDA_ERROR_INVALID_VALUE;
    void *function = operation->kernel.function.object;
    bool kernel = is_kind(function, KERNEL) && !old;
    const uint32_t *grid = operation->kernel.grid, *block = operation->kernel.block;
    const CUDA_KERNEL_NODE_PARAMS whole = {kernel ? NULL : function,
                                           grid[0],
                                           grid[1],
                                           grid[2],
                                           block[0],
                                           block[1],
                                           block[2],
                                           operation->kernel.shared,
                                           operation->kernel.packed ? NULL : operation->kernel.arguments,
                                           NULL,
                                           kernel ? function : NULL,
                                           NULL};
    memcpy(params, &whole, old ? offsetof(CUDA_KERNEL_NODE_PARAMS, kern) : sizeof(whole));
    return CUDA_SUCCESS;
}

API cuGraphKernelNodeGetParams_v2(void *node, CUDA_KERNEL_NODE_PARAMS *params) {
    LOCKED;
    return get_kernel(node, params, false);
}

API cuGraphKernelNodeGetParams(void *node, CUDA_KERNEL_NODE_PARAMS *params) {
    LOCKED;
    return get_kernel(node, params, true);
}

API cuGraphMemcpyNodeGetParams(void *node, CUDA_MEMCPY3D *params) {
    LOCKED;
    const struct operation *operation = get(node, CU_GRAPH_NODE_TYPE_MEMCPY);
    if (!operation || !params)
        return CUDA_ERROR_INVALID_VALUE;
    *params = operation->copy;
    return CUDA_SUCCESS;
}

API cuGraphMemsetNodeGetParams(void *node, CUDA_MEMSET_NODE_PARAMS_v2 *params) {
    LOCKED;
    const struct operation *operation = get(node, CU_GRAPH_NODE_TYPE_MEMSET);
    if (!operation || !params)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(params, &operation->set, offsetof(CUDA_MEMSET_NODE_PARAMS_v2, ctx));
    return CUDA_SUCCESS;
}

API cuGraphHostNodeGetParams(void *node, CUDA_HOST_NODE_PARAMS *params) {
    LOCKED;
    const struct operation *operation = get(node, CU_GRAPH_NODE_TYPE_HOST);
    if (!operation || !params)
        return CUDA_ERROR_INVALID_VALUE;
    *params = (CUDA_HOST_NODE_PARAMS){operation->host.function, operation->host.data};
    return CUDA_SUCCESS;
}

API cuGraphMemAllocNodeGetParams(void *node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    LOCKED;
    const struct operation *operation = get(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!operation || !params)
        return CUDA_ERROR_INVALID_VALUE;
    sim_describe_graph_memory(operation->memory, params);
    return CUDA_SUCCESS;
}

API cuGraphMemFreeNodeGetParams(void *node, CUdeviceptr *memory) {
    LOCKED;
    const struct operation *operation = get(node, CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (!operation || !memory)
        return CUDA_ERROR_INVALID_VALUE;
    *memory = operation->memory;
    return CUDA_SUCCESS;
}

// Attributes of kernels: whether all blocks are there at once, and whether they are clusters.

API cuGraphKernelNodeGetAttribute(void *node, int attribute, void *value) {
    LOCKED;
    const struct operation *operation = get(node, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!operation || !value || attribute < 0)
        return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, sizeof(((CUlaunchAttribute *)0)->value));
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        *(int *)value = operation->kernel.cooperative;
    for (int i = 0; i < 3 && attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION; i++)
        ((uint32_t *)value)[i] = operation->kernel.cluster;
    return CUDA_SUCCESS;
}

API cuGraphKernelNodeSetAttribute(void *node, int attribute, const void *value) {
    LOCKED;
    if (!get(node, CU_GRAPH_NODE_TYPE_KERNEL) || !value || attribute < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct operation *operation = ((struct node *)node)->operation;
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        operation->kernel.cooperative = *(const int *)value;
    if (attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
        !sim_is_cluster(value, &operation->kernel.cluster))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return CUDA_SUCCESS;
}

API cuGraphKernelNodeCopyAttributes(void *to, void *from) {
    static const int attributes[] = {CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < 2 && !status; i++) {
        int value[16];
        status = cuGraphKernelNodeGetAttribute(from, attributes[i], value);
        status = status ? status : cuGraphKernelNodeSetAttribute(to, attributes[i], value);
    }
    return status;
}

static CUresult get_event(void *node, int type, void **event) {
    const struct operation *operation = get(node, type);
    if (!operation || !event)
        return CUDA_ERROR_INVALID_VALUE;
    *event = operation->event.object;
    return CUDA_SUCCESS;
}

API cuGraphEventRecordNodeGetEvent(void *node, void **event) {
    LOCKED;
    return get_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

API cuGraphEventWaitNodeGetEvent(void *node, void **event) {
    LOCKED;
    return get_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

// Takes the operation over, for a node of this type.
static CUresult replace(struct node *node, CUresult status, struct operation *operation) {
    if (status)
        return status;
    if (!node || node->operation->type != operation->type) {
        sim_end_operation(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_end_operation(node->operation);
    *node->operation = *operation;
    return CUDA_SUCCESS;
}

#define SETTERS(name, type, exec_more, make_it)                                                              \
    API cuGraph##name(void *node, type params) {                                                             \
        LOCKED;                                                                                              \
        struct operation operation;                                                                          \
        CUresult status = make_it;                                                                           \
        return replace(find_node(node), status, &operation);                                                 \
    }                                                                                                        \
    API cuGraphExec##name(void *exec, void *node, type params exec_more) {                                   \
        LOCKED;                                                                                              \
        struct operation operation;                                                                          \
        CUresult status = make_it;                                                                           \
        return replace(sim_exec_node(exec, node), status, &operation);                                       \
    }

SETTERS(KernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS *, , make_kernel(&operation, params, true))
SETTERS(KernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS *, , make_kernel(&operation, params, false))
SETTERS(MemcpyNodeSetParams, const CUDA_MEMCPY3D *, AND_CONTEXT, make_copy(&operation, params))
SETTERS(MemsetNodeSetParams, const CUDA_MEMSET_NODE_PARAMS_v2 *, AND_CONTEXT, make_set(&operation, params))
SETTERS(HostNodeSetParams, const CUDA_HOST_NODE_PARAMS *, , make_host(&operation, params))
SETTERS(EventRecordNodeSetEvent, void *, , make_event(&operation, CU_GRAPH_NODE_TYPE_EVENT_RECORD, params))
SETTERS(EventWaitNodeSetEvent, void *, , make_event(&operation, CU_GRAPH_NODE_TYPE_WAIT_EVENT, params))
SETTERS(NodeSetParams, CUgraphNodeParams *, , params ? make(&operation, params) : CUDA_ERROR_INVALID_VALUE)
