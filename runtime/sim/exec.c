// Executable graphs. Each has a copy of its source graph, with the nodes sorted into an order in which they
// can run.

#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct exec {
    struct object object;
    struct graph *graph;
    uint64_t flags;
    struct event *ran;      // recorded after the last launch; the next one waits for it
    struct reference where; // the stream of the last launch
};

// Find the node of an executable graph that was copied from `node`.
struct node *sim_exec_node(void *exec, void *node) {
    return is_kind(exec, EXEC) && find_node(node)
               ? sim_find_copy(((struct exec *)exec)->graph, ((struct object *)node)->serial)
               : NULL;
}

// Append a node to `order`, after those nodes that it depends on and that aren't there yet. Returns false if
// there's a cycle.
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

// Sort the nodes so that each comes after its dependencies.
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

// Return whether a graph has only node types that cuda.h allows. Fewer are allowed in the bodies of
// conditional nodes; `body` says that this graph is one.
static bool is_allowed(const struct graph *graph, bool body) {
    enum {
        ALLOWED = 1 << CU_GRAPH_NODE_TYPE_KERNEL | 1 << CU_GRAPH_NODE_TYPE_MEMCPY |
        1 << CU_GRAPH_NODE_TYPE_MEMSET | 1 << CU_GRAPH_NODE_TYPE_GRAPH | 1 << CU_GRAPH_NODE_TYPE_EMPTY |
        1 << CU_GRAPH_NODE_TYPE_CONDITIONAL
    };
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        int type = node->operation->type;
        if (body && !(ALLOWED >> type & 1))
            return false;
        for (size_t j = 0; j < node->inners; j++)
            if (!is_allowed(node->inner[j], body || type == CU_GRAPH_NODE_TYPE_CONDITIONAL))
                return false;
    }
    return true;
}

// Return whether a device may launch a graph: it has work, all of it by the device.
static bool is_for_device(const struct graph *graph) {
    enum {
        ALLOWED = 1 << CU_GRAPH_NODE_TYPE_KERNEL | 1 << CU_GRAPH_NODE_TYPE_MEMCPY |
        1 << CU_GRAPH_NODE_TYPE_MEMSET | 1 << CU_GRAPH_NODE_TYPE_GRAPH
    };
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        if (!(ALLOWED >> node->operation->type & 1) || (node->inners && !is_for_device(node->inner[0])))
            return false;
    }
    return true;
}

static CUresult instantiate(void **exec, void *graph, uint64_t flags, void **error) {
    IN_CONTEXT;
    enum { UPLOAD = 2, DEVICE_LAUNCH = 4, ALL = 15 };
    if (!exec || !find_graph(graph) || flags & ~(uint64_t)ALL || !is_allowed(graph, false) ||
        (flags & DEVICE_LAUNCH && !is_for_device(graph)))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_there(((struct graph *)graph)->exec) && (sim_has_memory(graph) || sim_has_conditions(graph)))
        return CUDA_ERROR_NOT_SUPPORTED; // its memory and conditions can only belong to one executable graph
    void *wrong = NULL;
    CUresult status = sort(graph, &wrong);
    if (error)
        *error = wrong;
    if (status)
        return status;
    struct exec *made = sim_new(EXEC, context);
    if (!made || !(made->graph = sim_copy_graph(graph, made)) || !(made->ran = sim_new(EVENT, made))) {
        if (made)
            sim_delete(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->flags = flags & ~(uint64_t)UPLOAD;
    ((struct graph *)graph)->exec = sim_refer(made);
    *exec = made;
    return CUDA_SUCCESS;
}

API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    enum { UPLOAD = 2 }; // uploads to a stream, which this call has no parameter for
    return flags & UPLOAD ? CUDA_ERROR_INVALID_VALUE : instantiate(exec, graph, flags, NULL);
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
    struct node *node = sim_exec_node(exec, handle);
    if (!node || node->operation->type > CU_GRAPH_NODE_TYPE_MEMSET)
        return CUDA_ERROR_INVALID_VALUE;
    node->disabled = !enabled;
    return CUDA_SUCCESS;
}

API cuGraphNodeGetEnabled(void *exec, void *handle, unsigned *enabled) {
    LOCKED;
    struct node *node = sim_exec_node(exec, handle);
    if (!node || !enabled)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !node->disabled;
    return CUDA_SUCCESS;
}

// Check whether an executable graph can be updated from a graph. Returns a CU_GRAPH_EXEC_UPDATE_* result; if
// the graphs differ, `error` and `from` are the nodes where they do.
static int compare(const struct graph *graph, const struct graph *with, void **error, void **from) {
    if (graph->count != with->count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    sim_number_nodes(graph);
    sim_number_nodes(with);
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

API cuGraphExecUpdate_v2(void *exec, void *graph, CUgraphExecUpdateResultInfo *result) {
    LOCKED;
    CUgraphExecUpdateResultInfo unused, *info = result ? result : &unused;
    *info = (CUgraphExecUpdateResultInfo){0};
    if (!is_kind(exec, EXEC) || !find_graph(graph))
        return CUDA_ERROR_INVALID_VALUE;
    const struct reference own = ((struct graph *)graph)->exec;
    bool other =
        sim_has_memory(graph) && !(is_there(own) && own.object == exec); // the memory belongs to another one
    if (other && is_there(own))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct graph *updated = ((struct exec *)exec)->graph;
    info->result = sort(graph, &info->errorNode)
                       ? CU_GRAPH_EXEC_UPDATE_ERROR
                       : compare(updated, graph, &info->errorNode, &info->errorFromNode);
    if (!info->result && other)
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
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
    struct node *node = sim_exec_node(exec, handle);
    void *error, *from;
    if (!node || node->operation->type != CU_GRAPH_NODE_TYPE_GRAPH || !find_graph(child) ||
        compare(node->inner[0], child, &error, &from))
        return CUDA_ERROR_INVALID_VALUE;
    return take_operations(node->inner[0], child) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Launches

struct operations {
    struct operation *all; // or NULL: only count them
    size_t count;
    struct graph *held; // keeps references to the user objects of all nested graphs
    bool failed;        // out of memory
    bool endless;
};

// List the operations of a graph and the graphs inside it, in the order in which they run. Kernels can't set
// the conditions of conditional nodes on this device, so each condition keeps its initial value. A loop whose
// condition is true would never end, and is reported as an error. With GPT_SIM_RUN=none, kernels don't run,
// and such a loop runs once.
static void flatten(const struct graph *graph, struct operations *list) {
    if (list->all && !sim_copy_held(list->held, graph))
        list->failed = true;
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        if (node->operation->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            list->endless |= sim_runs && node->condition_type == CU_GRAPH_COND_TYPE_WHILE && node->condition;
            size_t body =
                node->condition_type == CU_GRAPH_COND_TYPE_SWITCH ? node->condition : !node->condition;
            if (body < node->inners)
                flatten(node->inner[body], list);
        } else if (node->operation->type == CU_GRAPH_NODE_TYPE_GRAPH)
            flatten(node->inner[0], list);
        else if (!node->disabled) {
            if (list->all && !sim_copy_operation(&list->all[list->count], node->operation))
                list->failed = true; // the graph may be changed or gone when it runs
            list->count++;
        }
    }
}

// Return whether a copy or memset accesses memory that isn't allocated now.
static bool lacks_memory(const struct operation *operation) {
    return operation->type == CU_GRAPH_NODE_TYPE_MEMCPY   ? sim_check_copy(&operation->copy, false)
           : operation->type == CU_GRAPH_NODE_TYPE_MEMSET ? sim_check_set(&operation->set, false)
                                                          : CUDA_SUCCESS;
}

// Launch a graph, and free the list when it has run. Launches of the same executable graph run one after
// another.
//
// To the stream, a graph is a single operation, which simplifies events inside it. If a node waits for an
// event, the whole graph waits for it before it begins. If a node records an event, work that waits for the
// event waits for the end of the graph. Only the event's time shows when the node recorded it.
static CUresult launch(struct exec *exec, struct stream *stream, const struct operations *list) {
    CUresult status = list->failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (!status && !(is_there(exec->where) && exec->where.object == stream))
        status = sim_wait_event(stream, exec->ran);
    struct operation *all = list->all;
    for (size_t i = 0; i < list->count && !status; i++)
        if (all[i].type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && is_there(all[i].event))
            status = sim_wait_event(stream, all[i].event.object);
    struct operation operation = {
        .type = CU_GRAPH_NODE_TYPE_GRAPH, .owned = all, .count = list->count, .held = list->held};
    if (!status)
        status =
            sim_check_launch(all, list->count, exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    if (status)
        sim_end_operation(&operation);
    else
        status = sim_issue(stream, &operation);
    exec->where = sim_refer(stream);
    if (!status) {
        sim_note_launch(all, list->count, lacks_memory);
        sim_record(exec->ran, stream);
    }
    for (size_t i = 0; i < list->count && !status; i++)
        if (all[i].type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && is_there(all[i].event))
            sim_record(all[i].event.object, stream);
    return status;
}

static CUresult list_operations(struct exec *exec, struct operations *list) {
    flatten(exec->graph, list);
    if (list->endless) {
        sim_say(
            "a loop in a graph never ends: its condition is true, and no kernel can set it, see gpt-sim(7)");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!(list->all = calloc(list->count + 1, sizeof(*list->all))) || !(list->held = sim_new(GRAPH, NULL))) {
        free(list->all);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    list->count = 0;
    flatten(exec->graph, list);
    return CUDA_SUCCESS;
}

// Prepare an executable graph for a stream that it may be launched on.
static CUresult prepare(struct context *context, struct exec *exec, void *handle, struct stream **stream,
                        struct operations *list) {
    *stream = sim_stream(context, handle);
    if (*stream && (*stream)->capture)
        return sim_refuse_capture(*stream);
    return !is_kind(exec, EXEC) ? CUDA_ERROR_INVALID_VALUE
           : *stream            ? list_operations(exec, list)
                                : CUDA_ERROR_INVALID_HANDLE;
}

API cuGraphLaunch(void *exec, void *handle) {
    IN_CONTEXT;
    struct stream *stream;
    struct operations list = {0};
    CUresult status = prepare(context, exec, handle, &stream, &list);
    return status ? status : launch(exec, stream, &list);
}

API cuGraphUpload(void *exec, void *handle) {
    IN_CONTEXT;
    struct stream *stream;
    struct operations list = {0};
    CUresult status = prepare(context, exec, handle, &stream, &list);
    if (status)
        return status;
    struct operation all = {
        .type = CU_GRAPH_NODE_TYPE_GRAPH, .owned = list.all, .count = list.count, .held = list.held};
    status = list.failed ? CUDA_ERROR_OUT_OF_MEMORY : sim_reserve_graph_memory(list.all, list.count);
    sim_end_operation(&all);
    return status;
}
