// Where the nodes of graphs come from: the call that created each node, or was captured and became the node.
// A trace has the ranges that were open during that call and its stack, so replays can be attributed to them.
//
// After a captured call, we ask the driver for the last node of its stream: the call added it. A clone or a
// child graph has its nodes in the order of the original, as executable graphs do (graphs.c), and gets the
// same origins.
//
// The driver reuses the handles of destroyed nodes, so a new node replaces the origin of an old one. A call
// that was captured without adding a node, such as an empty memset, finds the node of an earlier call of the
// same capture, whose origin stays.

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

static CUresult (*get_capture)(void *, int *, uint64_t *, void **, void *const **, const void **, size_t *);
static CUresult (*get_capture_v2)(void *, int *, uint64_t *, void **, void *const **, size_t *);

static bool find_all(void) {
    get_capture = (__typeof__(get_capture))(uintptr_t)hook_driver_function("cuStreamGetCaptureInfo_v3");
    get_capture_v2 = (__typeof__(get_capture_v2))(uintptr_t)hook_driver_function("cuStreamGetCaptureInfo_v2");
    return get_capture || get_capture_v2;
}

static struct kept_origin *place_of(uint64_t node) {
    _Atomic uint64_t *place = node ? hook_find_in_map(&hook_watched->nodes, node) : NULL;
    if (!place)
        return NULL;
    uint64_t at = atomic_load_explicit(place, memory_order_acquire);
    if (!at) {
        uint64_t next = atomic_fetch_add(&hook_watched->origins_used, 1) + 1;
        if (next < MAP_ENTRIES && atomic_compare_exchange_strong(place, &at, next))
            at = next;
    }
    return at ? &hook_watched->origins[at] : NULL;
}

static void set_origin(uint64_t node, struct origin origin, uint64_t capture) {
    static _Atomic bool warned;
    struct kept_origin *entry = place_of(node);
    if (!entry && node && !atomic_exchange(&warned, true))
        hook_say("graphs", "over 262,143 nodes", "where the others were created is not recorded");
    if (!entry || (capture && entry->capture == capture))
        return;
    entry->capture = capture;
    entry->origin = origin;
}

struct origin hook_origin_of(uint64_t node) {
    struct kept_origin *entry = place_of(node);
    return entry ? entry->origin : (struct origin){0};
}

static struct origin origin_of(const struct frame *frame) {
    return (struct origin){frame->start, frame->thread ? (uint32_t)frame->thread->tid : 0};
}

// Lists of nodes

struct list {
    size_t count, room;
    uint64_t *nodes; // or NULL
};

static bool list_node(const struct graph_node *node, void *with) {
    struct list *list = with;
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 512, size = sizeof(*list->nodes);
        uint64_t *more =
            list->nodes ? mremap(list->nodes, list->room * size, room * size, MREMAP_MAYMOVE)
                        : mmap(NULL, room * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) {
            hook_miss_graph();
            return false;
        }
        list->nodes = more;
        list->room = room;
    }
    list->nodes[list->count++] = (uint64_t)node->handle;
    return true;
}

static struct list list_nodes(void *graph) {
    struct list list = {0};
    hook_walk_graph(graph, list_node, &list);
    return list;
}

static void drop(struct list *list) {
    if (list->nodes)
        munmap(list->nodes, list->room * sizeof(*list->nodes));
}

static void *child_of(uint64_t node) {
    static CUresult (*get)(void *, void **);
    void *child = NULL;
    get = (__typeof__(get))(uintptr_t)hook_driver_function("cuGraphChildGraphNodeGetGraph");
    return get && get((void *)node, &child) == CUDA_SUCCESS ? child : NULL;
}

// Give a copy the origins of a graph; nodes that we never saw being created get the origin of the copying.
void hook_copy_origins(const struct frame *frame, void *graph, void *made) {
    if (!frame->thread)
        return;
    struct origin otherwise = origin_of(frame);
    struct list from = list_nodes(graph), to = list_nodes(made);
    for (size_t i = 0; i < to.count; i++) {
        struct origin origin = from.count == to.count ? hook_origin_of(from.nodes[i]) : (struct origin){0};
        set_origin(to.nodes[i], origin.call ? origin : otherwise, 0);
    }
    drop(&from);
    drop(&to);
}

// Calls

void hook_keep_captured(struct frame *frame) {
    static _Atomic int found;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t capture = 0;
    void *const *nodes = NULL, *stream = (void *)hook_stream_of(frame);
    size_t count = 0;
    const void *edges;
    if (!hook_find_once(&found, find_all) ||
        (get_capture ? get_capture(stream, &status, &capture, NULL, &nodes, &edges, &count)
                     : get_capture_v2(stream, &status, &capture, NULL, &nodes, &count)) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE || count != 1 || !nodes)
        return;
    set_origin((uint64_t)nodes[0], origin_of(frame), capture);
}

// cuGraphAddKernelNode(&node, graph, dependencies, count, params), and its variants
void hook_on_node_made(struct frame *frame) {
    const uint64_t *node = (const uint64_t *)frame_arg(frame, 0);
    if (node && frame->thread)
        set_origin(*node, origin_of(frame), 0);
}

void hook_on_child_made(struct frame *frame, void *graph) {
    const uint64_t *node = (const uint64_t *)frame_arg(frame, 0);
    void *child = node && frame->thread ? child_of(*node) : NULL;
    hook_on_node_made(frame);
    if (child)
        hook_copy_origins(frame, graph, child);
}

// cuGraphAddChildGraphNode(&node, graph, dependencies, count, child)
void hook_on_child(struct frame *frame) { hook_on_child_made(frame, (void *)frame_arg(frame, 4)); }
