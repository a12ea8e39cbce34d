// The copy of a graph in which nodes are timed, see node_times.c. It's a clone that begins with an event.
// Then there's a stamp (node_stamps.c) before the first node, one after each node, and more at the end. If
// the driver doesn't take our kernel, there are events instead of stamps.
//
// The nodes must run one after another: if two ran at the same time, we couldn't tell how much of the time
// between two events belongs to which. A kernel that may begin before its predecessor ends (programmatic
// dependent launch) waits for it in the copy. Graphs with parallel nodes aren't timed. Neither are graphs
// with memory, conditional or child nodes, which can't be cloned, or with host functions. For such a graph,
// the trace has an `untimed` record with the reason.

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "node_times.h"
#include "watch.h"

static struct {
    CUresult (*edges)(void *, void **, void **, CUgraphEdgeData *, size_t *);
    CUresult (*clone)(void **, void *), (*in_clone)(void **, void *, void *);
    CUresult (*remove)(void *, void *const *, void *const *, const CUgraphEdgeData *, size_t),
        (*add)(void *, void *const *, void *const *, const CUgraphEdgeData *, size_t);
    CUresult (*add_event)(void **, void *, void *const *, size_t, void *);
    CUresult (*instantiate)(void **, void *, unsigned long long), (*upload)(void *, void *);
    CUresult (*destroy_exec)(void *), (*destroy_graph)(void *), (*destroy_event)(void *);
    CUresult (*wait)(void *, void *, unsigned);
} cu;

static bool find_all(void) { // since CUDA 12.3
#define FIND(member, name) (cu.member = (__typeof__(cu.member))(uintptr_t)hook_driver_function(name))
    return FIND(edges, "cuGraphGetEdges_v2") && FIND(clone, "cuGraphClone") &&
           FIND(in_clone, "cuGraphNodeFindInClone") && FIND(remove, "cuGraphRemoveDependencies_v2") &&
           FIND(add, "cuGraphAddDependencies_v2") && FIND(add_event, "cuGraphAddEventRecordNode") &&
           FIND(instantiate, "cuGraphInstantiateWithFlags") && FIND(upload, "cuGraphUpload") &&
           FIND(destroy_exec, "cuGraphExecDestroy") && FIND(destroy_graph, "cuGraphDestroy") &&
           FIND(destroy_event, "cuEventDestroy_v2") && FIND(wait, "cuStreamWaitEvent");
#undef FIND
}

bool hook_node_copies_setup(void) {
    static _Atomic int found;
    return hook_find_once(&found, find_all);
}

void hook_end_timed_graph(struct timed_graph *graph) {
    if (hook_is_alive(graph->of_context)) { // otherwise graph and events were destroyed with it
        int mode = hook_stream_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        if (graph->second)
            cu.destroy_exec(graph->second);
        if (graph->graph)
            cu.destroy_graph(graph->graph);
        for (uint32_t i = 0; i < graph->count + 2; i++)
            if (graph->events[i])
                cu.destroy_event(graph->events[i]);
        if (graph->ran)
            cu.destroy_event(graph->ran);
        hook_stream_mode(mode);
    }
    if (graph->stamps)
        hook_give_stamps(graph->stamps);
    munmap(graph, graph->size);
}

struct collected {
    struct timed_graph *graph; // NULL: only count them
    uint32_t count, room;
    const struct reason *reason;
};

static const struct reason *reason_of(int type) {
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return NULL;
    case CU_GRAPH_NODE_TYPE_HOST:
        return WHY(nodes_host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return WHY(nodes_child);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return WHY(nodes_conditional);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return WHY(nodes_memory);
    default:
        return WHY(nodes_other);
    }
}

static bool collect(const struct graph_node *found, void *with) {
    struct collected *all = with;
    if ((all->reason = reason_of(found->type)))
        return false;
    if (all->graph && all->count < all->room) {
        const CUDA_KERNEL_NODE_PARAMS *kernel = &found->kernel;
        uint64_t handle = (uint64_t)(kernel->func ? kernel->func : kernel->kern);
        all->graph->nodes[all->count] =
            (struct timed_node){.handle = found->handle,
                                .function = handle ? hook_ask_function(handle) : 0,
                                .type = found->type,
                                .origin = hook_origin_of((uint64_t)found->handle)};
    }
    all->count++;
    return true;
}

static int compare_handles(const void *one, const void *two) {
    uintptr_t a = (uintptr_t)((const struct timed_node *)one)->handle,
              b = (uintptr_t)((const struct timed_node *)two)->handle;
    return a < b ? -1 : a > b;
}

static uint32_t index_of(const struct timed_graph *graph, void *handle) {
    const struct timed_node key = {.handle = handle}, *found;
    found = bsearch(&key, graph->nodes, graph->count, sizeof(key), compare_handles);
    return found ? (uint32_t)(found - graph->nodes) : graph->count;
}

// The edges of a graph.
struct edges {
    size_t count, room;
    void **from, **to;
    CUgraphEdgeData *data;
};

static size_t size_of(size_t room) { return room * (2 * sizeof(void *) + sizeof(CUgraphEdgeData)); }

static void drop_edges(struct edges *edges) {
    if (edges->from)
        munmap(edges->from, size_of(edges->room));
}

// Return whether a driver call succeeded. If not, set the reason, with the call's name and status.
static bool try(const struct reason **reason, const char *call, CUresult status) {
    char detail[64];
    if (status == CUDA_SUCCESS)
        return true;
    snprintf(detail, sizeof(detail), "%s: %d", call, status);
    *reason = hook_make_reason("nodes_refused", detail);
    return false;
}

// List the edges of a graph. Other code would ask the driver for their number first. We guess it instead,
// because the driver may refuse that question if edges have data, as in programmatic dependent launches.
static bool list_edges(void *source, size_t nodes, struct edges *edges, const struct reason **why) {
    *edges = (struct edges){.room = 2 * nodes + 16};
    for (;; edges->room *= 2) {
        if (!(edges->from = hook_map_nodes(size_of(edges->room)))) {
            *why = WHY(nodes_refused);
            return false;
        }
        edges->to = edges->from + edges->room;
        edges->data = (CUgraphEdgeData *)(edges->to + edges->room);
        edges->count = edges->room;
        CUresult status = cu.edges(source, edges->from, edges->to, edges->data, &edges->count);
        if (!try(why, "cuGraphGetEdges", status))
            return false;
        if (edges->count < edges->room)
            return true;
        drop_edges(edges);
    }
}

// A node during the topological sort
struct unordered {
    struct timed_node node;
    uint32_t waits;        // how many of its predecessors haven't been placed in the order yet
    uint32_t first, edges; // its outgoing edges: index of the first one in `targets`, and their number
};

// Fill in the edges of all nodes. `targets` gets the index of the node that each edge leads to, sorted by the
// node that it starts from.
static bool enter_edges(struct unordered *nodes, uint32_t *targets, const struct timed_graph *graph,
                        const struct edges *edges) {
    for (size_t i = 0; i < edges->count; i++) {
        uint32_t from = index_of(graph, edges->from[i]), to = index_of(graph, edges->to[i]);
        if (from == graph->count || to == graph->count)
            return false;
        nodes[from].edges++;
        nodes[to].waits++;
        nodes[to].node.early |= edges->data[i].type != 0;
    }
    for (uint32_t i = 0, first = 0; i < graph->count; i++) {
        nodes[i].first = first;
        first += nodes[i].edges;
        nodes[i].edges = 0;
    }
    for (size_t i = 0; i < edges->count; i++) {
        struct unordered *from = &nodes[index_of(graph, edges->from[i])];
        targets[from->first + from->edges++] = index_of(graph, edges->to[i]);
    }
    return true;
}

// Remove the outgoing edges of a node. Returns the index of the node that now has no predecessors left,
// `count` if there's no such node, or `count + 1` if there are several.
static uint32_t follow(struct unordered *nodes, const struct unordered *done, const uint32_t *targets,
                       uint32_t count) {
    uint32_t next = count;
    for (uint32_t i = done->first; i < done->first + done->edges; i++)
        if (!--nodes[targets[i]].waits)
            next = next == count ? targets[i] : count + 1;
    return next;
}

// Sort the nodes into the order in which they run. Exactly one node must be ready after each, or else nodes
// could run in parallel; edges that skip nodes don't matter. Returns why the graph can't be timed, or NULL.
static const struct reason *order(struct timed_graph *graph, void *source) {
    uint32_t count = graph->count, at = count, done = 0;
    const struct reason *why = NULL;
    struct edges edges;
    if (!list_edges(source, count, &edges, &why)) {
        drop_edges(&edges);
        return why;
    }
    size_t size = count * sizeof(struct unordered) + edges.count * sizeof(uint32_t);
    struct unordered *nodes = hook_map_nodes(size);
    uint32_t *targets = (uint32_t *)(nodes + count);
    qsort(graph->nodes, count, sizeof(*graph->nodes), compare_handles);
    for (uint32_t i = 0; nodes && i < count; i++)
        nodes[i].node = graph->nodes[i];
    if (nodes && enter_edges(nodes, targets, graph, &edges)) {
        for (uint32_t i = 0; i < count; i++)
            if (!nodes[i].waits)
                at = at == count ? i : count + 1;
        for (; at < count && done < count; at = follow(nodes, &nodes[at], targets, count))
            graph->nodes[done++] = nodes[at].node;
        why = done < count ? WHY(nodes_parallel) : NULL;
    } else {
        why = WHY(nodes_refused);
    }
    if (nodes)
        munmap(nodes, size);
    drop_edges(&edges);
    return why;
}

// Add an event to a chain of nodes.
static bool add_event(struct timed_graph *graph, uint32_t place, void **last, const struct reason **why) {
    void *event;
    bool good = try(why, "cuEventCreate", hook_cu.create(&graph->events[place], 0)) &&
                try(why, "cuGraphAddEventRecordNode",
                    cu.add_event(&event, graph->graph, last, *last != NULL, graph->events[place]));
    *last = good ? event : *last;
    return good;
}

static bool add_stamp(struct timed_graph *graph, uint32_t place, void **last, const struct reason **why) {
    void *stamp;
    bool good =
        try(why, "cuGraphAddKernelNode", hook_add_stamp(&stamp, graph->graph, last, graph->stamps, place));
    *last = good ? stamp : *last;
    return good;
}

// Clone the source graph and replace its edges by a single chain: an event, a stamp, the first node, a stamp,
// the second node and so on, with more stamps at the end. Returns why that failed, or NULL.
static const struct reason *clone_graph(struct timed_graph *graph, void *source) {
    void *last = NULL;
    const struct reason *why = NULL;
    struct edges edges = {0};
    bool good = try(&why, "cuGraphClone", cu.clone(&graph->graph, source));
    for (uint32_t i = 0; good && i < graph->count; i++)
        good = try(&why, "cuGraphNodeFindInClone",
                   cu.in_clone(&graph->nodes[i].copy, graph->nodes[i].handle, graph->graph));
    good = good && list_edges(graph->graph, graph->count, &edges, &why);
    if (good && edges.count)
        good = try(&why, "cuGraphRemoveDependencies",
                   cu.remove(graph->graph, edges.from, edges.to, edges.data, edges.count));
    drop_edges(&edges);
    uint32_t notes = graph->count + 1 + (graph->stamps ? PAUSES : 1);
    good = good && (!graph->stamps || add_event(graph, 0, &last, &why));
    for (uint32_t i = 0; good && i < notes; i++) {
        void *node = i < graph->count ? graph->nodes[i].copy : NULL;
        good = (graph->stamps ? add_stamp : add_event)(graph, i, &last, &why) &&
               (!node || try(&why, "cuGraphAddDependencies", cu.add(graph->graph, &last, &node, NULL, 1)));
        last = node ? node : last;
    }
    if (good)
        try(&why, "cuEventCreate", hook_cu.create(&graph->ran, CU_EVENT_DISABLE_TIMING));
    return why;
}

struct timed_graph *hook_make_timed_graph(uint64_t exec, void *source, uint64_t flags,
                                          const struct reason **reason) {
    uint64_t context = hook_current_context();
    struct collected all = {.reason = NULL};
    hook_walk_graph(source, collect, &all);
    *reason = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH ? WHY(nodes_device) : all.reason;
    if (*reason || !all.count || !context)
        return NULL;
    size_t nodes = sizeof(struct timed_graph) + all.count * sizeof(struct timed_node);
    size_t size = nodes + (all.count + 2) * sizeof(void *);
    struct timed_graph *graph = hook_map_nodes(size);
    if (!graph)
        return NULL;
    graph->users = 1;
    graph->size = size;
    graph->exec = exec;
    graph->events = (void **)((char *)graph + nodes);
    graph->context = context;
    graph->of_context = hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = context});
    graph->flags = flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    graph->count = all.count;
    graph->stamps = hook_take_stamps(graph->of_context, all.count + 1 + PAUSES);
    graph->due = hook_node_times;
    all = (struct collected){.graph = graph, .room = all.count};
    hook_walk_graph(source, collect, &all);
    if (!(*reason = order(graph, source)) && !(*reason = clone_graph(graph, source)))
        return graph;
    hook_end_timed_graph(graph);
    return NULL;
}

const struct reason *hook_instantiate_copy(struct timed_graph *graph) {
    const struct reason *why = NULL;
    if (!try(&why, "cuGraphInstantiateWithFlags", cu.instantiate(&graph->second, graph->graph, graph->flags)))
        graph->second = NULL;
    return why;
}

void hook_upload_copy(const struct timed_graph *graph, uint64_t stream) {
    cu.upload(graph->second, (void *)stream);
}

void hook_wait_for_copy(const struct timed_graph *graph, uint64_t stream) {
    cu.wait((void *)stream, graph->ran, 0);
}
