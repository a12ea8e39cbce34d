// What the nodes of graphs do. We read a graph's nodes when the program instantiates it, write their totals
// to the trace, and keep the list: when the program changes a node later, new totals are written.
//
// Nodes in the body of a conditional node run an unknown number of times, so they count as 0 launches. The
// driver returns the handle of a body graph only when the program creates the conditional node, so we save it
// then.

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

#define MAX_FUNCTIONS 4096 // different functions in one graph

// A node of an executable graph. The program may change what it does, or disable it.
struct node {
    uint64_t handle;
    uint32_t function; // id of the function that it launches, or 0
    uint32_t inside;   // how many of the following nodes are inside it: in its child graph or bodies
    struct graph_work work;
    struct origin origin;
    bool unconditional, disabled;
};

struct nodes {
    size_t size;          // mapped bytes
    uint32_t count, last; // last: index of the node that was changed last, where the next search begins
    bool device;          // instantiated so that kernels can launch it
    struct node all[];
};

static bool add(struct nodes **nodes, const struct node *node) {
    struct nodes *old = *nodes;
    if (sizeof(*old) + (old->count + 1) * sizeof(struct node) > old->size) {
        struct nodes *more = mremap(old, old->size, 4 * old->size, MREMAP_MAYMOVE);
        if (more == MAP_FAILED) {
            hook_miss_graph();
            return false;
        }
        more->size *= 4;
        *nodes = more;
    }
    (*nodes)->all[(*nodes)->count++] = *node;
    return true;
}

static uint32_t function_of(const CUDA_KERNEL_NODE_PARAMS *params, bool has_kernel) {
    return hook_ask_function((uint64_t)(params->func || !has_kernel ? params->func : params->kern));
}

// Listing the nodes of a graph

struct listing {
    struct nodes *nodes;
    uint32_t around[MAX_GRAPH_DEPTH + 1]; // the last node at each depth
};

static bool list_node(const struct graph_node *found, void *with) {
    struct listing *listing = with;
    const CUDA_KERNEL_NODE_PARAMS *kernel = &found->kernel;
    bool is_kernel = found->type == CU_GRAPH_NODE_TYPE_KERNEL && (kernel->func || kernel->kern);
    if (!add(&listing->nodes, &(struct node){.handle = (uint64_t)found->handle,
                                             .function = is_kernel ? function_of(kernel, true) : 0,
                                             .work = hook_work_of(found->handle, found->type),
                                             .origin = hook_origin_of((uint64_t)found->handle),
                                             .unconditional = found->unconditional}))
        return false;
    listing->around[found->depth] = listing->nodes->count - 1;
    for (unsigned i = 0; i < found->depth; i++)
        listing->nodes->all[listing->around[i]].inside++;
    return true;
}

static struct nodes *map_nodes(size_t size) {
    struct nodes *nodes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED) {
        hook_miss_graph();
        return NULL;
    }
    nodes->size = size;
    return nodes;
}

static struct nodes *nodes_of(void *graph) {
    struct listing listing = {.nodes = hook_this_thread() && hook_can_walk_graphs() ? map_nodes(4096) : NULL};
    if (listing.nodes)
        hook_walk_graph(graph, list_node, &listing);
    return listing.nodes;
}

#define PIECE 512 // nodes per record

// Write which call of the program created each kernel node that a replay launches.
static void write_origins(uint64_t exec, uint64_t at, const struct nodes *nodes) {
    struct found {
        uint64_t functions[PIECE], threads[PIECE], calls[PIECE];
    } *found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) {
        hook_miss_graph();
        return;
    }
    size_t count = 0;
    for (uint32_t i = 0; i <= nodes->count; i++) {
        const struct node *node = &nodes->all[i];
        if (count == PIECE || (i == nodes->count && count)) {
            HOOK_WRITE(graph_nodes, .exec = exec, .at = at, .functions = {found->functions, count},
                       .threads = {found->threads, count}, .calls = {found->calls, count});
            count = 0;
        }
        if (i == nodes->count || !node->function || !node->unconditional || node->disabled)
            continue;
        found->functions[count] = node->function;
        found->threads[count] = node->origin.thread;
        found->calls[count++] = node->origin.call;
    }
    munmap(found, sizeof(*found));
}

// Write the totals of a graph, and the origins of its kernel nodes if `moved`: a node launches another kernel
// than before, or was enabled or disabled.
static void write_nodes(uint64_t exec, const struct nodes *nodes, bool moved) {
    uint64_t at = hook_now();
    struct found {
        uint64_t count, functions[MAX_FUNCTIONS], launches[MAX_FUNCTIONS], unknown;
        struct graph_sums sums;
    } *found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) {
        hook_miss_graph();
        return;
    }
    for (const struct node *node = nodes->all; node < nodes->all + nodes->count; node++) {
        uint64_t i = 0;
        found->unknown += !node->unconditional && !node->disabled && (node->function || node->work.what);
        if (node->work.what && node->unconditional && !node->disabled)
            hook_add_work(&found->sums, &node->work);
        while (i < found->count && found->functions[i] != node->function)
            i++;
        if (!node->function || i == MAX_FUNCTIONS)
            continue;
        found->count += i == found->count;
        found->functions[i] = node->function;
        found->launches[i] += node->unconditional && !node->disabled;
    }
    HOOK_WRITE(graph, .exec = exec, .at = at, .nodes = nodes->count,
               .functions = {found->functions, found->count}, .launches = {found->launches, found->count},
               .operations = {found->sums.operations, found->sums.count},
               .unknown = {found->unknown != 0, found->unknown}, .device = {nodes->device, 1});
    munmap(found, sizeof(*found));
    if (moved)
        write_origins(exec, at, nodes);
}

// Changes to an executable graph

struct change {
    uint64_t node;           // the changed node; 0: all nodes
    uint32_t function;       // its new function; 0: as before
    struct graph_work work;  // its new work; empty: as before
    int disabled;            // -1: as before
    const struct nodes *now; // the graph that replaces all nodes, or those inside the changed node; or NULL
    struct nodes *changed;   // result: a copy of the graph's nodes if anything is different, or NULL
    bool moved;              // result: see write_nodes
};

static struct node *find_node(struct nodes *nodes, uint64_t handle) {
    for (uint32_t i = 0; i < nodes->count; i++) { // most programs change the nodes in order
        nodes->last = (nodes->last + 1) % nodes->count;
        if (nodes->all[nodes->last].handle == handle)
            return &nodes->all[nodes->last];
    }
    return NULL;
}

// Change a node. Returns whether anything is different. The node's origin stays the call that created it,
// unless its new kernel comes from another graph.
static bool change_node(struct node *node, struct change *change, uint32_t function, struct graph_work work,
                        bool disabled, const struct node *now) {
    bool moves = node->function != function || node->disabled != disabled;
    bool different = moves || node->work.what != work.what || node->work.bytes != work.bytes ||
                     node->work.address != work.address;
    if (now && node->function != function)
        node->origin = now->origin;
    change->moved |= moves;
    node->function = function;
    node->work = work;
    node->disabled = disabled;
    return different;
}

static void change_nodes(const struct property *property, void *with) {
    struct change *change = with;
    if (property->what != PROPERTY_NODES)
        return;
    struct nodes *nodes = (struct nodes *)property->value;
    struct node *node = change->node ? find_node(nodes, change->node) : NULL;
    bool different = false;
    if (change->node && !node)
        return;
    if (!change->now)
        different = change_node(node, change, change->function ? change->function : node->function,
                                change->work.what ? change->work : node->work,
                                change->disabled < 0 ? node->disabled : change->disabled, NULL);
    struct node *first = node ? node + 1 : nodes->all;
    uint32_t count = node ? node->inside : nodes->count;
    // the driver only accepts a graph of the same shape, so the nodes are in the same order
    for (uint32_t i = 0; change->now && change->now->count == count && i < count; i++)
        different |= change_node(&first[i], change, change->now->all[i].function, change->now->all[i].work,
                                 first[i].disabled, &change->now->all[i]);
    if (different && (change->changed = map_nodes(nodes->size)))
        memcpy(change->changed, nodes, nodes->size);
}

static void change_exec(uint64_t exec, struct change change) {
    hook_object_each(exec, change_nodes, &change);
    if (change.changed) {
        write_nodes(exec, change.changed, change.moved);
        munmap(change.changed, change.changed->size);
    }
}

// Record that the child graph of a node was replaced by another graph, or the whole graph if `node` is 0.
static void change_to_graph(uint64_t exec, uint64_t node, void *graph) {
    struct nodes *now = nodes_of(graph);
    if (!now)
        return;
    change_exec(exec, (struct change){.node = node, .disabled = -1, .now = now});
    munmap(now, now->size);
}

// cuGraphExecUpdate(exec, graph, ...)
void hook_on_exec_update(struct frame *frame) {
    change_to_graph(frame_arg(frame, 0), 0, (void *)frame_arg(frame, 1));
    hook_time_other_nodes(frame_arg(frame, 0), (void *)frame_arg(frame, 1));
}

// cuGraphExecChildGraphNodeSetParams(exec, node, graph)
void hook_on_exec_child(struct frame *frame) {
    change_to_graph(frame_arg(frame, 0), frame_arg(frame, 1), (void *)frame_arg(frame, 2));
}

static void change_kernel(const struct frame *frame, const CUDA_KERNEL_NODE_PARAMS *params, bool has_kernel) {
    uint32_t function = function_of(params, has_kernel);
    change_exec(frame_arg(frame, 0),
                (struct change){.node = frame_arg(frame, 1), .function = function, .disabled = -1});
    hook_change_timed_node(frame, function, -1);
}

// cuGraphExecKernelNodeSetParams(exec, node, params)
void hook_on_exec_kernel(struct frame *frame) {
    if (frame_arg(frame, 2) && hook_this_thread())
        change_kernel(frame, (const void *)frame_arg(frame, 2),
                      strcmp(frame->slot->symbol, "cuGraphExecKernelNodeSetParams"));
}

static void change_work(const struct frame *frame, struct graph_work work) {
    if (hook_this_thread())
        change_exec(frame_arg(frame, 0),
                    (struct change){.node = frame_arg(frame, 1), .work = work, .disabled = -1});
    hook_change_timed_node(frame, 0, -1);
}

// cuGraphExecMemcpyNodeSetParams(exec, node, params, context)
void hook_on_exec_copy(struct frame *frame) {
    if (frame_arg(frame, 2))
        change_work(frame, hook_work_of_copy((const void *)frame_arg(frame, 2)));
}

// cuGraphExecMemsetNodeSetParams(exec, node, params, context)
void hook_on_exec_set(struct frame *frame) {
    if (frame_arg(frame, 2))
        change_work(frame, hook_work_of_set((const void *)frame_arg(frame, 2)));
}

// cuGraphExecNodeSetParams(exec, node, params)
void hook_on_exec_node(struct frame *frame) {
    const CUgraphNodeParams *params = (const void *)frame_arg(frame, 2);
    if (params && params->type == CU_GRAPH_NODE_TYPE_KERNEL && hook_this_thread())
        change_kernel(frame, &params->kernel, true);
    else if (params && params->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        change_work(frame, hook_work_of_copy(&params->memcpy.copyParams));
    else if (params && params->type == CU_GRAPH_NODE_TYPE_MEMSET)
        change_work(frame, hook_work_of_set(&params->memset));
    else if (params && params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        change_to_graph(frame_arg(frame, 0), frame_arg(frame, 1), params->graph.graph);
}

// cuGraphNodeSetEnabled(exec, node, enabled)
void hook_on_node_enabled(struct frame *frame) {
    if (hook_this_thread())
        change_exec(frame_arg(frame, 0),
                    (struct change){.node = frame_arg(frame, 1), .disabled = !(unsigned)frame_arg(frame, 2)});
    hook_change_timed_node(frame, 0, !(unsigned)frame_arg(frame, 2));
}

static void add_graph(enum object_kind kind, uint64_t handle, uint64_t parent) {
    hook_object_add(&(struct object_facts){.kind = kind, .handle = handle, .parent = parent, .made = true});
}

// Return the flags that a graph is instantiated with. Before CUDA 12, cuGraphInstantiate had no flags.
static uint64_t flags_of(const struct frame *frame) {
    char name[NAME_BYTES];
    slot_name(frame->slot, name);
    if (!strcmp(name, "cuGraphInstantiateWithFlags"))
        return frame_arg(frame, 2);
    const uint64_t *flags =
        (const uint64_t *)frame_arg(frame, 2); // flags are the first member of CUDA_GRAPH_INSTANTIATE_PARAMS
    return !strcmp(name, "cuGraphInstantiateWithParams") && flags ? *flags : 0;
}

// cuGraphInstantiate and its variants: (&exec, graph, ...)
void hook_on_instantiate(struct frame *frame) {
    const uint64_t *exec = (const uint64_t *)frame_arg(frame, 0);
    if (!exec)
        return;
    uint64_t flags = flags_of(frame);
    add_graph(OBJECT_GRAPH_EXEC, *exec, 0);
    struct nodes *nodes = nodes_of((void *)frame_arg(frame, 1));
    if (!nodes)
        return;
    nodes->device = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH; // kernels may launch it
    write_nodes(*exec, nodes, true);
    const struct property saved = {.what = PROPERTY_NODES, .value = (uint64_t)nodes, .size = nodes->size};
    if (!hook_object_set(*exec, &saved))
        munmap(nodes, nodes->size);
    hook_time_nodes(*exec, (void *)frame_arg(frame, 1), flags);
}

// cuGraphCreate: (&graph, ...)
void hook_on_graph(struct frame *frame) {
    const uint64_t *graph = (const uint64_t *)frame_arg(frame, 0);
    if (graph)
        add_graph(OBJECT_GRAPH, *graph, 0);
}

// cuGraphClone(&clone, graph)
void hook_on_clone(struct frame *frame) {
    const uint64_t *clone = (const uint64_t *)frame_arg(frame, 0);
    hook_on_graph(frame);
    if (clone)
        hook_copy_origins(frame, (void *)frame_arg(frame, 1), (void *)*clone);
}

// cuStreamEndCapture(stream, &graph)
void hook_on_captured(struct frame *frame) {
    const uint64_t *graph = (const uint64_t *)frame_arg(frame, 1);
    hook_end_capture();
    if (graph && !hook_object_find(*graph).current) // otherwise the capture went into an existing graph
        add_graph(OBJECT_GRAPH, *graph, 0);
}

// cuGraphAddNode(&node, graph, dependencies, count, params); version 2 has an argument for edge data before
// the count
void hook_on_node(struct frame *frame) {
    bool edges = strstr(frame->slot->symbol, "_v");
    const uint64_t *node = (const uint64_t *)frame_arg(frame, 0);
    const CUgraphNodeParams *params = (const void *)frame_arg(frame, edges ? 5 : 4);
    if (params && params->type == CU_GRAPH_NODE_TYPE_GRAPH)
        hook_on_child_made(frame, params->graph.graph);
    else
        hook_on_node_made(frame);
    if (!node || !params || params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return;
    const CUDA_CONDITIONAL_NODE_PARAMS *conditional = &params->conditional;
    for (unsigned i = 0; conditional->phGraph_out && i < conditional->size && i < MAX_GRAPH_BODIES; i++) {
        uint64_t body = (uint64_t)conditional->phGraph_out[i];
        add_graph(OBJECT_GRAPH, body, frame_arg(frame, 1));
        hook_object_set(
            frame_arg(frame, 1),
            &(struct property){.what = PROPERTY_BODY, .number = *node, .device = (int)i, .value = body});
    }
}

// -- Captured calls --------------------------------------------------------
//
// While a stream is being captured into a graph, its calls become nodes and don't run. The trace says which
// calls these were. We ask the driver whether the call's stream is captured, after the call rather than
// before:
//
//   - a stream joins a capture by the very call that makes it wait for a captured event;
//   - the driver may refuse the call because the capture was invalidated, and then it wasn't captured;
//   - a successful call shows that the stream's handle is valid. Asking about an invalid one would crash.
//
// To save time, we ask only while `hook_captures`, the number of captures in progress, isn't 0. A capture
// that ends with an error, or because its stream was destroyed, stays in that number. From then on we ask
// more often than necessary, but the answers are still right. The legacy stream can't be captured, and asking
// about it while another stream is captured fails, or breaks that capture.

_Atomic uint32_t hook_captures;
static _Atomic bool captured;

bool hook_has_captured(void) { return atomic_load(&captured); }

bool hook_is_captured(uint64_t stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return stream > CU_STREAM_LEGACY_HANDLE && hook_streams_setup() &&
           hook_cu.is_capturing((void *)stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool hook_begin_capture(void) {
    atomic_fetch_add(&hook_captures, 1);
    return !atomic_exchange(&captured, true);
}

void hook_end_capture(void) {
    uint32_t before = atomic_load(&hook_captures);
    while (before && !atomic_compare_exchange_weak(&hook_captures, &before, before - 1))
        ;
}
