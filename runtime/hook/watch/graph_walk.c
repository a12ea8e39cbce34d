// Visits the nodes of a graph, of its child graphs, and of the bodies of its conditional nodes.

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

struct walk {
    CUresult (*nodes)(void *, void **, size_t *), (*type)(void *, int *), (*child)(void *, void **);
    CUresult (*kernel)(void *, CUDA_KERNEL_NODE_PARAMS *);
    bool (*see)(const struct graph_node *node, void *with);
    void *with;
};

static bool find_functions(struct walk *cu) {
#define FIND(member, name) (cu->member = (__typeof__(cu->member))(uintptr_t)hook_driver_function(name))
    return FIND(nodes, "cuGraphGetNodes") && FIND(type, "cuGraphNodeGetType") &&
           FIND(child, "cuGraphChildGraphNodeGetGraph") && FIND(kernel, "cuGraphKernelNodeGetParams_v2");
}

void hook_miss_graph(void) {
    static _Atomic bool warned;
    if (!atomic_exchange(&warned, true))
        hook_say("memory", hook_describe_error(ENOMEM), "what some graphs launch is not recorded");
}

struct bodies { // the body graphs of a conditional node
    uint64_t node;
    unsigned count;
    void *graphs[MAX_GRAPH_BODIES];
};

static void see_body(const struct property *property, void *with) {
    struct bodies *bodies = with;
    if (property->what == PROPERTY_BODY && property->number == bodies->node &&
        bodies->count < MAX_GRAPH_BODIES)
        bodies->graphs[bodies->count++] = (void *)property->value;
}

static bool walk(const struct walk *walker, void *graph, unsigned depth, bool unconditional);

static bool walk_bodies(const struct walk *walker, void *graph, void *node, unsigned depth) {
    struct bodies bodies = {.node = (uint64_t)node};
    bool more = true;
    hook_object_each((uint64_t)graph, see_body, &bodies);
    for (unsigned i = 0; more && i < bodies.count; i++)
        more = walk(walker, bodies.graphs[i], depth, false);
    return more;
}

static bool walk_node(const struct walk *walker, void *graph, void *handle, unsigned depth,
                      bool unconditional) {
    struct graph_node node = {.handle = handle, .type = -1, .depth = depth, .unconditional = unconditional};
    void *inner;
    walker->type(handle, &node.type);
    if (node.type == CU_GRAPH_NODE_TYPE_KERNEL && walker->kernel(handle, &node.kernel) != CUDA_SUCCESS)
        node.kernel = (CUDA_KERNEL_NODE_PARAMS){0};
    if (!walker->see(&node, walker->with))
        return false;
    if (node.type == CU_GRAPH_NODE_TYPE_GRAPH && walker->child(handle, &inner) == CUDA_SUCCESS)
        return walk(walker, inner, depth + 1, unconditional);
    return node.type != CU_GRAPH_NODE_TYPE_CONDITIONAL || walk_bodies(walker, graph, handle, depth + 1);
}

static bool walk(const struct walk *walker, void *graph, unsigned depth, bool unconditional) {
    size_t count = 0;
    if (depth > MAX_GRAPH_DEPTH || walker->nodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return true;
    size_t size = count * sizeof(void *);
    void **nodes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED) {
        hook_miss_graph();
        return true;
    }
    bool more = true;
    if (walker->nodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count && more; i++)
            more = walk_node(walker, graph, nodes[i], depth, unconditional);
    munmap(nodes, size);
    return more;
}

void hook_walk_graph(void *graph, bool (*see)(const struct graph_node *node, void *with), void *with) {
    struct walk walker = {.see = see, .with = with};
    if (find_functions(&walker))
        walk(&walker, graph, 0, true);
}

bool hook_can_walk_graphs(void) {
    struct walk needed;
    return find_functions(&needed);
}
