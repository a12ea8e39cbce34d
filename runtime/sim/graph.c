// Graphs. A graph owns its nodes, a node owns the graphs inside it (a child graph or the bodies of a
// conditional node), and an executable graph owns a copy of its source graph. Each node of the copy stores
// the serial number of its original, because programs pass the original node to change the copy.

#include <stdlib.h>
#include <string.h>

#include "graph.h"

_Static_assert(sizeof(struct graph) <= OBJECT_SIZE && sizeof(struct node) <= OBJECT_SIZE, "fit");

static void end_graph(struct object *object) { free(((struct graph *)object)->nodes); }

AT_END(GRAPH, end_graph)

static void end_node(struct object *object) {
    struct node *node = (struct node *)object;
    if (node->operation)
        sim_end_operation(node->operation);
    free(node->operation);
    free(node->before);
    free(node->inner);
}

AT_END(NODE, end_node)

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

struct graph *sim_copy_graph(const struct graph *from, void *owner) {
    struct graph *made = sim_new(GRAPH, owner);
    if (made && copy_nodes(made, from) && sim_copy_held(made, from))
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
        if (!(to->inner[to->inners] = sim_copy_graph(from->inner[to->inners], to)))
            return false;
    return to->inners == from->inners;
}

void sim_number_nodes(const struct graph *graph) {
    for (size_t i = 0; i < graph->count; i++)
        graph->nodes[i]->number = i;
}

// Copy the nodes of a graph into an empty one.
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
    sim_number_nodes(from);
    for (size_t i = 0; i < from->count; i++)
        for (size_t j = 0; j < from->nodes[i]->count; j++)
            if (!depend(to->nodes[i], to->nodes[from->nodes[i]->before[j]->number]))
                return false;
    return true;
}

// Find the copy of a node in a graph or in the graphs inside it.
struct node *sim_find_copy(const struct graph *graph, uint64_t origin) {
    for (size_t i = 0; i < graph->count; i++) {
        struct node *node = graph->nodes[i];
        if (node->origin == origin)
            return node;
        for (size_t j = 0; j < node->inners; j++) {
            struct node *inner = sim_find_copy(node->inner[j], origin);
            if (inner)
                return inner;
        }
    }
    return NULL;
}

// Graphs

API cuGraphCreate(void **graph, unsigned flags) {
    LOCKED;
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    return (*graph = sim_new(GRAPH, NULL)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Return whether a graph, or one inside it, gets nodes from an active capture.
static bool is_captured(const struct graph *graph) {
    bool found = graph->captures;
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->inners; j++)
            found |= is_captured(graph->nodes[i]->inner[j]);
    return found;
}

API cuGraphDestroy(void *graph) {
    LOCKED;
    if (!find_graph(graph) ||
        ((struct object *)graph)->owner) // a graph inside a node is deleted with the node
        return CUDA_ERROR_INVALID_VALUE;
    if (is_captured(graph))
        return CUDA_ERROR_ILLEGAL_STATE;
    sim_delete(graph);
    return CUDA_SUCCESS;
}

bool sim_has_conditions(const struct graph *graph) {
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->operation->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
            return true;
    return false;
}

API cuGraphClone(void **clone, void *graph) {
    LOCKED;
    if (!clone || !find_graph(graph) || sim_has_conditions(graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_has_memory(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    return (*clone = sim_copy_graph(graph, NULL)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuGraphNodeFindInClone(void **node, void *original, void *clone) {
    LOCKED;
    if (!node || !find_node(original) || !find_graph(clone))
        return CUDA_ERROR_INVALID_VALUE;
    *node = sim_find_copy(clone, ((struct object *)original)->serial);
    return *node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_remove_node(struct node *node) {
    struct graph *graph = graph_of(node);
    sim_number_nodes(graph);
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

API cuGraphDestroyNode(void *node) {
    LOCKED;
    if (!find_node(node))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_has_memory(graph_of(node)))
        return CUDA_ERROR_NOT_SUPPORTED;
    bool inner = false;
    for (size_t i = 0; i < ((struct node *)node)->inners; i++)
        inner |= is_captured(((struct node *)node)->inner[i]);
    if (inner || graph_of(node)->captures)
        return CUDA_ERROR_ILLEGAL_STATE;
    sim_remove_node(node);
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

// A list to fill in for a program. If `nodes` is NULL, the program only wants the number of entries; if the
// program's array is longer than the list, the rest is set to NULL.
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
    struct graph *graph = find_graph(handle);
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
    struct graph *graph = find_graph(handle);
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
    if (count && (!from || !to))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct node *first = find_node(from[i]), *second = find_node(to[i]);
        if (!first || !second || first == second || graph_of(first) != graph || graph_of(second) != graph)
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t j = 0; j < second->count; j++)
            if (second->before[j] == first)
                return CUDA_ERROR_INVALID_VALUE; // there already is such an edge
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
    if (count && (!from || !to))
        return CUDA_ERROR_INVALID_VALUE;
    if (count && find_graph(graph) && sim_has_memory(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
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
