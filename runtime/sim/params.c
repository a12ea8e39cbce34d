// The parameters of graph nodes: converts them to operations and back, and replaces them.

#include <string.h>

#include "graph.h"

// Operations from parameters

CUresult sim_make_copy(struct operation *operation, const CUDA_MEMCPY3D *copy) {
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *copy};
    bool empty =
        !copy->WidthInBytes || !copy->Height || !copy->Depth; // a call may copy nothing, a node may not
    return empty ? CUDA_ERROR_INVALID_VALUE : sim_check_copy(copy, true);
}

CUresult sim_make_set(struct operation *operation, const CUDA_MEMSET_NODE_PARAMS_v2 *set) {
    if (!set)
        return CUDA_ERROR_INVALID_VALUE;
    memset(operation, 0, sizeof(*operation));
    operation->type = CU_GRAPH_NODE_TYPE_MEMSET;
    memcpy(&operation->set, set,
           offsetof(CUDA_MEMSET_NODE_PARAMS_v2, ctx)); // some callers have only this part
    return set->height ? sim_check_set(set, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_make_host(struct operation *operation, const CUDA_HOST_NODE_PARAMS *host) {
    if (!host || !host->fn)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.type = CU_GRAPH_NODE_TYPE_HOST,
                                    .host = {.function = host->fn, .data = host->userData}};
    return CUDA_SUCCESS;
}

CUresult sim_make_event(struct operation *operation, int type, void *event) {
    if (!is_kind(event, EVENT))
        return event ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.type = type, .event = sim_refer(event)};
    return CUDA_SUCCESS;
}

CUresult sim_make_kernel_node(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *params, bool old) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS whole = {0};
    memcpy(&whole, params, old ? offsetof(CUDA_KERNEL_NODE_PARAMS, kern) : sizeof(whole));
    return sim_make_launch(operation, &whole, true);
}

// Make the operation of any node that contains no graphs.
CUresult sim_make_node(struct operation *operation, const CUgraphNodeParams *params) {
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return sim_make_kernel_node(operation, &params->kernel, false);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sim_make_copy(operation, &params->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return sim_make_set(operation, &params->memset);
    case CU_GRAPH_NODE_TYPE_HOST:
        return sim_make_host(operation, &params->host);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return sim_make_event(operation, params->type, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *operation = (struct operation){.type = params->type};
        return CUDA_SUCCESS;
    }
    return params->type < 0 || params->type > CU_GRAPH_NODE_TYPE_CONDITIONAL ? CUDA_ERROR_INVALID_VALUE
                                                                             : CUDA_ERROR_NOT_SUPPORTED;
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

// Return the parameters given to cuGraphAddNode. As in get_kernel, a node with packed arguments has none.
static CUresult describe(const struct node *node, CUgraphNodeParams *params) {
    const struct operation *operation = node->operation;
    switch (operation->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return get_kernel((void *)node, &params->kernel, false);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        params->memcpy.copyParams = operation->copy;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        params->memset = operation->set;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_HOST:
        params->host = (CUDA_HOST_NODE_PARAMS){operation->host.function, operation->host.data};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        params->eventWait.event = operation->event.object;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        sim_describe_graph_memory(operation->memory, &params->alloc);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        params->free.dptr = operation->memory;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        params->graph.graph = *node->inner;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

API cuGraphNodeGetParams(void *node, CUgraphNodeParams *params) {
    LOCKED;
    if (!find_node(node) || !params)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams found = {.type = ((struct node *)node)->operation->type};
    CUresult status = describe(node, &found);
    if (!status)
        *params = found;
    return status;
}

// Attributes of kernels: whether all blocks are resident at once, and whether they form clusters.

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
    CUresult status = sim_check_attribute(attribute, value);
    if (status)
        return status;
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

// Give a node of this type another operation, unless `status` is an error.
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

SETTERS(KernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS *, ,
        sim_make_kernel_node(&operation, params, true))
SETTERS(KernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS *, ,
        sim_make_kernel_node(&operation, params, false))
SETTERS(MemcpyNodeSetParams, const CUDA_MEMCPY3D *, AND_CONTEXT, sim_make_copy(&operation, params))
SETTERS(MemsetNodeSetParams, const CUDA_MEMSET_NODE_PARAMS_v2 *, AND_CONTEXT,
        sim_make_set(&operation, params))
SETTERS(HostNodeSetParams, const CUDA_HOST_NODE_PARAMS *, , sim_make_host(&operation, params))
SETTERS(EventRecordNodeSetEvent, void *, ,
        sim_make_event(&operation, CU_GRAPH_NODE_TYPE_EVENT_RECORD, params))
SETTERS(EventWaitNodeSetEvent, void *, , sim_make_event(&operation, CU_GRAPH_NODE_TYPE_WAIT_EVENT, params))
SETTERS(NodeSetParams, CUgraphNodeParams *, ,
        params ? sim_make_node(&operation, params) : CUDA_ERROR_INVALID_VALUE)

API cuGraphNodeSetParams_v2(void *node, CUgraphNodeParams *params) {
    return cuGraphNodeSetParams(node, params);
}
