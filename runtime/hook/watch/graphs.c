// What a graph launches: its kernel nodes, read when it is instantiated or updated. Those that were captured
// from a stream were launches too, but they ran as often as the graph is launched. What is in the body of a
// conditional node runs as often as nobody knows: it is launched 0 times. The driver names a body when its
// node is made, and never again.

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "call.h"
#include "cuda_abi.h"
#include "driver.h"
#include "graphs.h"
#include "hook/write/clock.h"
#include "hook/write/record.h"
#include "hook/write/thread.h"
#include "modules.h"
#include "objects.h"

#define MAX_FUNCTIONS 4096 // different ones
#define MAX_DEPTH 16       // of graphs in graphs
#define MAX_BODIES 64      // of a conditional node

static struct {
    CUresult (*nodes)(void *, void **, size_t *), (*type)(void *, int *), (*child)(void *, void **);
    CUresult (*kernel)(void *, CUDA_KERNEL_NODE_PARAMS *);
} cu;

static bool find_functions(void) {
#define FIND(member, name) (cu.member = (__typeof__(cu.member))(uintptr_t)hook_driver_function(name))
    return FIND(nodes, "cuGraphGetNodes") && FIND(type, "cuGraphNodeGetType") &&
           FIND(child, "cuGraphChildGraphNodeGetGraph") && FIND(kernel, "cuGraphKernelNodeGetParams_v2");
}

struct found {
    uint64_t nodes, count, functions[MAX_FUNCTIONS], launches[MAX_FUNCTIONS];
};

static void add(struct found *found, void *node, bool sure) {
    CUDA_KERNEL_NODE_PARAMS params = {0};
    if (cu.kernel(node, &params) != CUDA_SUCCESS)
        return;
    uint32_t function = hook_ask_function((uint64_t)(params.func ? params.func : params.kern));
    uint64_t i = 0;
    while (i < found->count && found->functions[i] != function)
        i++;
    if (!function || i == MAX_FUNCTIONS)
        return;
    found->count += i == found->count;
    found->functions[i] = function;
    found->launches[i] += sure;
}

struct bodies { // of a node
    uint64_t node;
    unsigned count;
    void *graphs[MAX_BODIES];
};

static void see_body(const struct property *property, void *with) {
    struct bodies *bodies = with;
    if (property->what == PROPERTY_BODY && property->number == bodies->node && bodies->count < MAX_BODIES)
        bodies->graphs[bodies->count++] = (void *)property->value;
}

static void walk(struct found *found, void *graph, int depth, bool sure);

static void walk_bodies(struct found *found, void *graph, void *node, int depth) {
    struct bodies bodies = {.node = (uint64_t)node};
    hook_object_each((uint64_t)graph, see_body, &bodies);
    for (unsigned i = 0; i < bodies.count; i++)
        walk(found, bodies.graphs[i], depth, false);
}

static void walk(struct found *found, void *graph, int depth, bool sure) {
    size_t count = 0;
    if (depth > MAX_DEPTH || cu.nodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return;
    size_t size = count * sizeof(void *);
    void **nodes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *inner;
    if (nodes == MAP_FAILED)
        return;
    if (cu.nodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++) {
            int type = -1;
            found->nodes++;
            cu.type(nodes[i], &type);
            if (type == CU_GRAPH_NODE_TYPE_KERNEL)
                add(found, nodes[i], sure);
            else if (type == CU_GRAPH_NODE_TYPE_GRAPH && cu.child(nodes[i], &inner) == CUDA_SUCCESS)
                walk(found, inner, depth + 1, sure);
            else if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
                walk_bodies(found, graph, nodes[i], depth + 1);
        }
    munmap(nodes, size);
}

static void write_graph(uint64_t exec, void *graph) {
    if (!hook_this_thread() || !find_functions())
        return;
    struct found *found =
        mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        return;
    walk(found, graph, 0, true);
    HOOK_WRITE(graph, .exec = exec, .at = hook_now(), .nodes = found->nodes,
               .functions = {found->functions, found->count}, .launches = {found->launches, found->count});
    munmap(found, sizeof(*found));
}

static void add_graph(enum object_kind kind, uint64_t handle, uint64_t parent) {
    hook_object_add(&(struct object_facts){.kind = kind, .handle = handle, .parent = parent, .made = true});
}

// cuGraphInstantiate and its like: (&exec, graph, ...)
void hook_on_instantiate(struct frame *frame) {
    const uint64_t *exec = (const uint64_t *)frame->args[0];
    if (!exec)
        return;
    add_graph(OBJECT_GRAPH_EXEC, *exec, 0);
    write_graph(*exec, (void *)frame->args[1]);
}

// cuGraphExecUpdate(exec, graph, ...)
void hook_on_exec_update(struct frame *frame) { write_graph(frame->args[0], (void *)frame->args[1]); }

// cuGraphCreate, cuGraphClone: (&graph, ...)
void hook_on_graph(struct frame *frame) {
    const uint64_t *graph = (const uint64_t *)frame->args[0];
    if (graph)
        add_graph(OBJECT_GRAPH, *graph, 0);
}

// cuStreamEndCapture(stream, &graph)
void hook_on_captured(struct frame *frame) {
    const uint64_t *graph = (const uint64_t *)frame->args[1];
    if (graph && !hook_object_find(*graph).current) // else it was captured into one that was there
        add_graph(OBJECT_GRAPH, *graph, 0);
}

// cuGraphAddNode(&node, graph, dependencies, count, params), since version 2 with edges before the count
void hook_on_node(struct frame *frame) {
    bool edges = !strncmp(frame->slot->symbol, "cuGraphAddNode_v2", strlen("cuGraphAddNode_v2"));
    const uint64_t *node = (const uint64_t *)frame->args[0];
    const CUgraphNodeParams *params = (const void *)frame->args[edges ? 5 : 4];
    if (!node || !params || params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return;
    const CUDA_CONDITIONAL_NODE_PARAMS *conditional = &params->conditional;
    for (unsigned i = 0; conditional->phGraph_out && i < conditional->size && i < MAX_BODIES; i++) {
        uint64_t body = (uint64_t)conditional->phGraph_out[i];
        add_graph(OBJECT_GRAPH, body, frame->args[1]);
        hook_object_set(
            frame->args[1],
            &(struct property){.what = PROPERTY_BODY, .number = *node, .device = (int)i, .value = body});
    }
}
