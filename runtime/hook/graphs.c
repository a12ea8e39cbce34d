// What a graph launches: its kernel nodes, read when it is instantiated. Those that were captured from a
// stream were launches too, but they ran as often as the graph is launched.

#include <errno.h>
#include <sys/mman.h>

#include "cuda_abi.h"
#include "hook.h"

#define MAX_FUNCTIONS 4096 // different ones
#define MAX_DEPTH 16       // of graphs in graphs

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

static void add(struct found *found, void *node) {
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
    found->launches[i]++;
}

static void walk(struct found *found, void *graph, int depth) {
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
                add(found, nodes[i]);
            else if (type == CU_GRAPH_NODE_TYPE_GRAPH && cu.child(nodes[i], &inner) == CUDA_SUCCESS)
                walk(found, inner, depth + 1);
        }
    munmap(nodes, size);
}

static void write_graph(uint64_t exec, const struct found *found) {
    HOOK_WRITE(graph, .exec = exec, .at = hook_now(), .nodes = found->nodes,
               .functions = {found->functions, found->count}, .launches = {found->launches, found->count});
}

void hook_on_instantiate(struct frame *frame) {
    const uint64_t *exec = (const uint64_t *)frame->args[0];
    if (!exec || !hook_this_thread() || !find_functions())
        return;
    struct found *found =
        mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        return;
    walk(found, (void *)frame->args[1], 0);
    write_graph(*exec, found);
    munmap(found, sizeof(*found));
}
