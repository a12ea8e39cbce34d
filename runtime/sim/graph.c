// Graphs. A graph owns its nodes, a node the graphs inside of it, an executable graph a copy of the graph
// that it was made from: a node of that copy is found by the serial of the one that it is a copy of.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct condition {
    struct object object;
    unsigned value; // that each launch begins with
};

struct exec {
    struct object object;
    struct graph *graph;
    uint64_t flags;
};

_Static_assert(sizeof(struct graph) <= OBJECT_SIZE && sizeof(struct node) <= OBJECT_SIZE, "fit");

void sim_end_graph(struct object *object) { free(((struct graph *)object)->nodes); }

void sim_end_node(struct object *object) {
    struct node *node = (struct node *)object;
    if (node->operation)
        sim_end_operation(node->operation);
    free(node->operation);
    free(node->before);
    free(node->inner);
}

static struct graph *find(void *graph) { return is_kind(graph, GRAPH) ? graph : NULL; }

static struct node *find_node(void *node) { return is_kind(node, NODE) ? node : NULL; }

static struct graph *graph_of(const struct node *node) { return (struct graph *)node->object.owner; }

// Nodes

static bool depend(struct node *node, struct node *on) {
    for (size_t i = 0; i < node->count; i++)
        if (node->before[i] == on)
            return true;
    struct node **larger = realloc(node->before, (node->count + 1) * sizeof(*larger));
    if (!larger)
        return false;
    larger[node->count++] = on;
    node->before = larger;
    return true;
}

CUresult sim_add_node(struct node **made, struct graph *graph, struct node *const *before, size_t count,
                      struct operation *operation) {
    bool valid = !count || before;
    for (size_t i = 0; i < count && valid; i++)
        valid = find_node(before[i]) && graph_of(before[i]) == graph;
    if (!valid) {
        sim_end_operation(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct node **larger = sim_grow(graph->nodes, graph->count, &graph->room, sizeof(*larger));
    graph->nodes = larger ? larger : graph->nodes;
    struct node *node = larger ? sim_new(NODE, graph) : NULL;
    bool whole = node && (node->operation = malloc(sizeof(*node->operation)));
    if (whole)
        *node->operation = *operation;
    else
        sim_end_operation(operation);
    for (size_t i = 0; i < count && whole; i++)
        whole = depend(node, before[i]);
    if (!whole) {
        if (node)
            sim_delete(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph->nodes[graph->count++] = node;
    *made = node;
    return CUDA_SUCCESS;
}

static bool copy_nodes(struct graph *to, const struct graph *from);

static struct graph *copy_graph(const struct graph *from, void *owner) {
    struct graph *made = sim_new(GRAPH, owner);
    if (made && copy_nodes(made, from))
        return made;
    if (made)
        sim_delete(made);
    return NULL;
}

static bool copy_inner(struct node *to, const struct node *from) {
    to->condition = from->condition;
    to->condition_type = from->condition_type;
    to->inner = from->inners ? calloc(from->inners, sizeof(*to->inner)) : NULL;
    for (; to->inner && to->inners < from->inners; to->inners++)
        if (!(to->inner[to->inners] = copy_graph(from->inner[to->inners], to)))
            return false;
    return to->inners == from->inners;
}

static void number_nodes(const struct graph *graph) {
    for (size_t i = 0; i < graph->count; i++)
        graph->nodes[i]->number = i;
}

// Copies the nodes of a graph into an empty one.
static bool copy_nodes(struct graph *to, const struct graph *from) {
    for (size_t i = 0; i < from->count; i++) {
        struct operation operation;
        struct node *made;
        if (!sim_copy_operation(&operation, from->nodes[i]->operation) ||
            sim_add_node(&made, to, NULL, 0, &operation))
            return false;
        made->origin = from->nodes[i]->object.serial;
        made->disabled = from->nodes[i]->disabled;
        if (!copy_inner(made, from->nodes[i]))
            return false;
    }
    number_nodes(from);
    for (size_t i = 0; i < from->count; i++)
        for (size_t j = 0; j < from->nodes[i]->count; j++)
            if (!depend(to->nodes[i], to->nodes[from->nodes[i]->before[j]->number]))
                return false;
    return true;
}

// The copy of a node in a graph or in those inside of it.
static struct node *find_copy(const struct graph *graph, uint64_t origin) {
    for (size_t i = 0; i < graph->count; i++) {
        struct node *node = graph->nodes[i];
        if (node->origin == origin)
            return node;
        for (size_t j = 0; j < node->inners; j++) {
            struct node *inner = find_copy(node->inner[j], origin);
            if (inner)
                return inner;
        }
    }
    return NULL;
}

// Operations from parameters

static CUresult make_copy(struct operation *operation, const CUDA_MEMCPY3D *copy) {
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    *operation = (struct operation){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *copy};
    return sim_check_copy(copy);
}

static CUresult make_set(struct operation *operation, const CUDA_MEMSET_NODE_PARAMS_v2 *set) {
    if (!set)
        return CUDA_ERROR_INVALID_VALUE;
    memset(operation, 0, sizeof(*operation));
    operation->type = CU_GRAPH_NODE_TYPE_MEMSET;
    memcpy(&operation->set, set, offsetof(CUDA_MEMSET_NODE_PARAMS_v2, ctx)); // some callers have no more
    return sim_check_set(set);
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

// Graphs

API cuGraphCreate(void **graph, unsigned flags) {
    LOCKED;
    if (!sim_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    return (*graph = sim_new(GRAPH, NULL)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphDestroy(void *graph) {
    LOCKED;
    if (!find(graph) || ((struct object *)graph)->owner) // one that is inside of a node goes with it
        return CUDA_ERROR_INVALID_VALUE;
    sim_delete(graph);
    return CUDA_SUCCESS;
}

static bool has_conditions(const struct graph *graph) {
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->operation->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
            return true;
    return false;
}

API cuGraphClone(void **clone, void *graph) {
    LOCKED;
    if (!clone || !find(graph) || has_conditions(graph))
        return CUDA_ERROR_INVALID_VALUE;
    return (*clone = copy_graph(graph, NULL)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphNodeFindInClone(void **node, void *original, void *clone) {
    LOCKED;
    if (!node || !find_node(original) || !find(clone))
        return CUDA_ERROR_INVALID_VALUE;
    *node = find_copy(clone, ((struct object *)original)->serial);
    return *node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Adding nodes

static CUresult add(void **node, void *graph, void *const *before, size_t count, CUresult status,
                    struct operation *operation) {
    if (status)
        return status;
    if (!node || !find(graph)) {
        sim_end_operation(operation);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_add_node((struct node **)node, graph, (struct node *const *)before, count, operation);
}

static void remove_node(struct node *node) {
    struct graph *graph = graph_of(node);
    number_nodes(graph);
    memmove(&graph->nodes[node->number], &graph->nodes[node->number + 1],
            (--graph->count - node->number) * sizeof(*graph->nodes));
    for (size_t i = 0; i < graph->count; i++) {
        struct node *other = graph->nodes[i];
        for (size_t j = other->count; j--;)
            if (other->before[j] == node)
                other->before[j] = other->before[--other->count];
    }
    sim_delete(node);
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
        else if (!(*inner = child ? copy_graph(child, made) : sim_new(GRAPH, made)))
            break;
    }
    if (made->inners == inners)
        return CUDA_SUCCESS;
    remove_node(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_child(void **node, void *graph, void *const *before, size_t count, void *child,
                          bool move) {
    if (!find(child) || child == graph || has_conditions(child) || (move && ((struct object *)child)->owner))
        return CUDA_ERROR_INVALID_VALUE;
    return add_outer(node, graph, before, count, CU_GRAPH_NODE_TYPE_GRAPH, 1, child, move);
}

static CUresult add_conditional(void **node, void *graph, void *const *before, size_t count,
                                CUDA_CONDITIONAL_NODE_PARAMS *params) {
    void *condition = (void *)params->handle;
    size_t most = params->type == CU_GRAPH_COND_TYPE_WHILE ? 1
                  : params->type == CU_GRAPH_COND_TYPE_IF  ? 2
                                                           : 1 << 16;
    if (!is_kind(condition, CONDITION) || params->type < 0 || params->type > CU_GRAPH_COND_TYPE_SWITCH ||
        !params->size || params->size > most)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status =
        add_outer(node, graph, before, count, CU_GRAPH_NODE_TYPE_CONDITIONAL, params->size, NULL, false);
    if (status)
        return status;
    struct node *made = *node;
    made->condition = ((struct condition *)condition)->value;
    made->condition_type = params->type;
    params->phGraph_out = (void **)made->inner;
    return CUDA_SUCCESS;
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
    if (!handle || !find(graph))
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

API cuGraphAddChildGraphNode(void **node, void *graph, void *const *before, size_t count, void *child) {
    LOCKED;
    return add_child(node, graph, before, count, child, false);
}

API cuGraphDestroyNode(void *node) {
    LOCKED;
    if (!find_node(node))
        return CUDA_ERROR_INVALID_VALUE;
    remove_node(node);
    return CUDA_SUCCESS;
}

// Reading graphs

API cuGraphNodeGetType(void *node, int *type) {
    LOCKED;
    if (!find_node(node) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = ((struct node *)node)->operation->type;
    return CUDA_SUCCESS;
}

// What all lists do: `nodes` NULL asks for their number; places that are too many become NULL.
struct list {
    void **nodes, **others;
    size_t room, count;
};

static void put(struct list *list, void *node, void *other) {
    if (list->nodes && list->count < list->room) {
        list->nodes[list->count] = node;
        if (list->others)
            list->others[list->count] = other;
    }
    list->count++;
}

static CUresult end_list(const struct list *list, size_t *count, CUgraphEdgeData *edges) {
    for (size_t i = list->count; list->nodes && i < list->room; i++)
        list->nodes[i] = NULL;
    *count = list->nodes && list->room < list->count ? list->room : list->count;
    if (list->nodes && edges)
        memset(edges, 0, *count * sizeof(*edges));
    return CUDA_SUCCESS;
}

static CUresult list_nodes(void *handle, void **nodes, size_t *count, bool roots) {
    struct graph *graph = find(handle);
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {nodes, NULL, *count, 0};
    for (size_t i = 0; i < graph->count; i++)
        if (!roots || !graph->nodes[i]->count)
            put(&list, graph->nodes[i], NULL);
    return end_list(&list, count, NULL);
}

API cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    LOCKED;
    return list_nodes(graph, nodes, count, false);
}

API cuGraphGetRootNodes(void *graph, void **nodes, size_t *count) {
    LOCKED;
    return list_nodes(graph, nodes, count, true);
}

API cuGraphGetEdges_v2(void *handle, void **from, void **to, CUgraphEdgeData *edges, size_t *count) {
    LOCKED;
    struct graph *graph = find(handle);
    if (!graph || !count || !from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {from, to, *count, 0};
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->count; j++)
            put(&list, graph->nodes[i]->before[j], graph->nodes[i]);
    return end_list(&list, count, edges);
}

API cuGraphGetEdges(void *graph, void **from, void **to, size_t *count) {
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

API cuGraphNodeGetDependencies_v2(void *handle, void **nodes, CUgraphEdgeData *edges, size_t *count) {
    LOCKED;
    struct node *node = find_node(handle);
    if (!node || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {nodes, NULL, *count, 0};
    for (size_t i = 0; i < node->count; i++)
        put(&list, node->before[i], NULL);
    return end_list(&list, count, edges);
}

API cuGraphNodeGetDependencies(void *node, void **nodes, size_t *count) {
    return cuGraphNodeGetDependencies_v2(node, nodes, NULL, count);
}

API cuGraphNodeGetDependentNodes_v2(void *handle, void **nodes, CUgraphEdgeData *edges, size_t *count) {
    LOCKED;
    struct node *node = find_node(handle);
    if (!node || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {nodes, NULL, *count, 0};
    const struct graph *graph = graph_of(node);
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->count; j++)
            if (graph->nodes[i]->before[j] == node)
                put(&list, graph->nodes[i], NULL);
    return end_list(&list, count, edges);
}

API cuGraphNodeGetDependentNodes(void *node, void **nodes, size_t *count) {
    return cuGraphNodeGetDependentNodes_v2(node, nodes, NULL, count);
}

API cuGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const CUgraphEdgeData *edges,
                              size_t count) {
    LOCKED;
    (void)edges;
    for (size_t i = 0; i < count; i++) {
        struct node *first = find_node(from[i]), *second = find_node(to[i]);
        if (!first || !second || first == second || graph_of(first) != graph || graph_of(second) != graph)
            return CUDA_ERROR_INVALID_VALUE;
        if (!depend(second, first))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

API cuGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t count) {
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

API cuGraphRemoveDependencies_v2(void *graph, void *const *from, void *const *to,
                                 const CUgraphEdgeData *edges, size_t count) {
    LOCKED;
    (void)edges;
    for (size_t i = 0; i < count; i++) {
        struct node *node = find_node(to[i]);
        size_t at = 0;
        while (node && at < node->count && node->before[at] != from[i])
            at++;
        if (!node || graph_of(node) != graph || at == node->count)
            return CUDA_ERROR_INVALID_VALUE;
        node->before[at] = node->before[--node->count];
    }
    return CUDA_SUCCESS;
}

API cuGraphRemoveDependencies(void *graph, void *const *from, void *const *to, size_t count) {
    return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

API cuGraphChildGraphNodeGetGraph(void *handle, void **graph) {
    LOCKED;
    struct node *node = find_node(handle);
    if (!node || !graph || node->operation->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->inner[0];
    return CUDA_SUCCESS;
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
                                           operation->kernel.arguments,
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

// The node of an executable graph for the node that it was made from.
static struct node *node_of(void *exec, void *node) {
    return is_kind(exec, EXEC) && find_node(node)
               ? find_copy(((struct exec *)exec)->graph, ((struct object *)node)->serial)
               : NULL;
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
        return replace(node_of(exec, node), status, &operation);                                             \
    }

SETTERS(KernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS *, , make_kernel(&operation, params, true))
SETTERS(KernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS *, , make_kernel(&operation, params, false))
SETTERS(MemcpyNodeSetParams, const CUDA_MEMCPY3D *, AND_CONTEXT, make_copy(&operation, params))
SETTERS(MemsetNodeSetParams, const CUDA_MEMSET_NODE_PARAMS_v2 *, AND_CONTEXT, make_set(&operation, params))
SETTERS(HostNodeSetParams, const CUDA_HOST_NODE_PARAMS *, , make_host(&operation, params))
SETTERS(EventRecordNodeSetEvent, void *, , make_event(&operation, CU_GRAPH_NODE_TYPE_EVENT_RECORD, params))
SETTERS(EventWaitNodeSetEvent, void *, , make_event(&operation, CU_GRAPH_NODE_TYPE_WAIT_EVENT, params))
SETTERS(NodeSetParams, CUgraphNodeParams *, , params ? make(&operation, params) : CUDA_ERROR_INVALID_VALUE)

// Executable graphs

// Appends a node and all that it depends on to `order`, each once, what it depends on first. Gives false for
// a circle.
static bool visit(struct node *root, struct node **order, size_t *count) {
    enum { NEW, OPEN, DONE };
    for (struct node *node = root, *next; node; node = next) {
        next = NULL;
        node->mark = OPEN;
        while (node->visited < node->count && !next) {
            struct node *before = node->before[node->visited++];
            if (before->mark == OPEN)
                return false;
            if (before->mark == NEW) {
                before->visitor = node;
                next = before;
            }
        }
        if (!next) {
            node->mark = DONE;
            order[(*count)++] = node;
            next = node->visitor;
        }
    }
    return true;
}

// Orders the nodes so that each comes after those that it depends on.
static CUresult sort(struct graph *graph, void **error) {
    struct node **order = calloc(graph->count + 1, sizeof(*order));
    if (!order)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < graph->count; i++) {
        graph->nodes[i]->mark = 0;
        graph->nodes[i]->visited = 0;
        graph->nodes[i]->visitor = NULL;
    }
    CUresult status = CUDA_SUCCESS;
    size_t count = 0;
    for (size_t i = 0; i < graph->count && !status; i++)
        if (!graph->nodes[i]->mark && !visit(graph->nodes[i], order, &count)) {
            *error = graph->nodes[i];
            status = CUDA_ERROR_INVALID_VALUE;
        }
    if (!status && count)
        memcpy(graph->nodes, order, count * sizeof(*order));
    free(order);
    for (size_t i = 0; i < graph->count && !status; i++)
        for (size_t j = 0; j < graph->nodes[i]->inners && !status; j++)
            status = sort(graph->nodes[i]->inner[j], error);
    return status;
}

static CUresult instantiate(void **exec, void *graph, uint64_t flags, void **error) {
    IN_CONTEXT;
    if (!exec || !find(graph))
        return CUDA_ERROR_INVALID_VALUE;
    void *wrong = NULL;
    CUresult status = sort(graph, &wrong);
    if (error)
        *error = wrong;
    if (status)
        return status;
    struct exec *made = sim_new(EXEC, context);
    if (!made || !(made->graph = copy_graph(graph, made))) {
        if (made)
            sim_delete(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->flags = flags;
    *exec = made;
    return CUDA_SUCCESS;
}

API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    return instantiate(exec, graph, flags, NULL);
}

API cuGraphInstantiateWithParams(void **exec, void *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = instantiate(exec, graph, params->flags, &params->hErrNode_out);
    params->result_out = !status ? 0 : params->hErrNode_out ? 2 : 1; // an invalid structure, another error
    return status;
}

API cuGraphInstantiate_v2(void **exec, void *graph, void **error, char *log, size_t size) {
    if (log && size)
        *log = 0;
    return instantiate(exec, graph, 0, error);
}

API cuGraphInstantiate(void **exec, void *graph, void **error, char *log, size_t size) {
    return cuGraphInstantiate_v2(exec, graph, error, log, size);
}

API cuGraphExecGetFlags(void *exec, uint64_t *flags) {
    LOCKED;
    if (!is_kind(exec, EXEC) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ((struct exec *)exec)->flags;
    return CUDA_SUCCESS;
}

API cuGraphExecDestroy(void *exec) {
    LOCKED;
    if (!is_kind(exec, EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    sim_delete(exec);
    return CUDA_SUCCESS;
}

API cuGraphNodeSetEnabled(void *exec, void *handle, unsigned enabled) {
    LOCKED;
    struct node *node = node_of(exec, handle);
    if (!node || node->operation->type > CU_GRAPH_NODE_TYPE_MEMSET)
        return CUDA_ERROR_INVALID_VALUE;
    node->disabled = !enabled;
    return CUDA_SUCCESS;
}

API cuGraphNodeGetEnabled(void *exec, void *handle, unsigned *enabled) {
    LOCKED;
    struct node *node = node_of(exec, handle);
    if (!node || !enabled)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !node->disabled;
    return CUDA_SUCCESS;
}

// Whether two graphs have the same form, as a CU_GRAPH_EXEC_UPDATE_*, and where they have not.
static int compare(const struct graph *graph, const struct graph *with, void **error, void **from) {
    if (graph->count != with->count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    number_nodes(graph);
    number_nodes(with);
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i], *other = with->nodes[i];
        *error = with->nodes[i];
        if (node->operation->type != other->operation->type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (node->count != other->count || node->inners != other->inners)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        for (size_t j = 0; j < node->count; j++)
            if (node->before[j]->number != other->before[j]->number) {
                *from = other->before[j];
                return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
            }
        for (size_t j = 0; j < node->inners; j++) {
            int result = compare(node->inner[j], other->inner[j], error, from);
            if (result)
                return result;
        }
    }
    *error = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static bool take_operations(struct graph *graph, const struct graph *from) {
    for (size_t i = 0; i < graph->count; i++) {
        struct operation operation;
        if (!sim_copy_operation(&operation, from->nodes[i]->operation))
            return false;
        sim_end_operation(graph->nodes[i]->operation);
        *graph->nodes[i]->operation = operation;
        graph->nodes[i]->condition = from->nodes[i]->condition;
        for (size_t j = 0; j < graph->nodes[i]->inners; j++)
            if (!take_operations(graph->nodes[i]->inner[j], from->nodes[i]->inner[j]))
                return false;
    }
    return true;
}

API cuGraphExecUpdate_v2(void *exec, void *graph, CUgraphExecUpdateResultInfo *info) {
    LOCKED;
    if (!is_kind(exec, EXEC) || !find(graph) || !info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){0};
    struct graph *updated = ((struct exec *)exec)->graph;
    info->result = sort(graph, &info->errorNode)
                       ? CU_GRAPH_EXEC_UPDATE_ERROR
                       : compare(updated, graph, &info->errorNode, &info->errorFromNode);
    if (info->result)
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    return take_operations(updated, graph) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphExecUpdate(void *exec, void *graph, void **error, int *result) {
    CUgraphExecUpdateResultInfo info = {0};
    CUresult status = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error)
        *error = info.errorNode;
    if (result)
        *result = info.result;
    return status;
}

API cuGraphExecChildGraphNodeSetParams(void *exec, void *handle, void *child) {
    LOCKED;
    struct node *node = node_of(exec, handle);
    void *error, *from;
    if (!node || node->operation->type != CU_GRAPH_NODE_TYPE_GRAPH || !find(child) ||
        compare(node->inner[0], child, &error, &from))
        return CUDA_ERROR_INVALID_VALUE;
    return take_operations(node->inner[0], child) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Launches

struct operations {
    struct operation *all; // or NULL: only count them
    size_t count;
};

// What the nodes do, in order. No kernel runs that could set a condition: each has the value that it begins
// with, and a loop whose condition holds is run once.
static void flatten(const struct graph *graph, struct operations *list) {
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        if (node->operation->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            size_t body =
                node->condition_type == CU_GRAPH_COND_TYPE_SWITCH ? node->condition : !node->condition;
            if (body < node->inners)
                flatten(node->inner[body], list);
        } else if (node->operation->type == CU_GRAPH_NODE_TYPE_GRAPH)
            flatten(node->inner[0], list);
        else if (!node->disabled) {
            if (list->all) {
                list->all[list->count] = *node->operation;
                list->all[list->count].owned = NULL;
            }
            list->count++;
        }
    }
}

// What waits for events inside a graph waits before it begins, and its events are reached when it ends.
static CUresult launch(struct stream *stream, struct operation *all, size_t count) {
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < count && !status; i++)
        if (all[i].type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && is_there(all[i].event))
            status = sim_wait_event(stream, all[i].event.object);
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .owned = all, .count = count};
    if (status)
        sim_end_operation(&operation);
    else
        status = sim_issue(stream, &operation);
    for (size_t i = 0; i < count && !status; i++)
        if (all[i].type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && is_there(all[i].event))
            sim_record(all[i].event.object, stream);
    return status;
}

API cuGraphLaunch(void *exec, void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!is_kind(exec, EXEC) || !stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) // becomes a child node
        return sim_capture_graph(stream, ((struct exec *)exec)->graph);
    struct operations list = {0};
    flatten(((struct exec *)exec)->graph, &list);
    if (!(list.all = calloc(list.count + 1, sizeof(*list.all))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t count = list.count;
    list.count = 0;
    flatten(((struct exec *)exec)->graph, &list);
    return launch(stream, list.all, count);
}

API cuGraphUpload(void *exec, void *stream) {
    IN_CONTEXT;
    return is_kind(exec, EXEC) && sim_stream(context, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_add_child(struct node **node, struct graph *graph, struct node *const *before, size_t count,
                       struct graph *child) {
    void *made;
    CUresult status =
        add_outer(&made, graph, (void *const *)before, count, CU_GRAPH_NODE_TYPE_GRAPH, 1, child, false);
    *node = status ? NULL : made;
    return status;
}
