// Graph nodes whose parameters differ from those in the driver API: kernels, copies, memsets, conditions. The
// others are in forward.c.

#include "box.h"

// Kernels: struct cudaKernelNodeParams, and the driver's.

struct kernel_node {
    const void *function;
    dim3 grid, block;
    unsigned shared;
    void **arguments, **extra;
};

struct driver_kernel_node {
    void *function;
    dim3 grid, block;
    unsigned shared;
    void **arguments, **extra;
    void *kernel, *context;
};

static int driver_node(struct driver_kernel_node *made, const struct kernel_node *node) {
    void *kernel;
    int status = node ? cudart_kernel(node->function, &kernel) : cudaErrorInvalidValue;
    if (!status)
        *made = (struct driver_kernel_node){
            NULL, node->grid, node->block, node->shared, node->arguments, node->extra, kernel, NULL};
    return status;
}

static int add_kernel(NODE, const struct kernel_node *parameters) {
    struct driver_kernel_node made;
    int status = driver_node(&made, parameters);
    return status ? status
                  : DRIVER(cuGraphAddKernelNode_v2, (NODE, const void *), node, graph, after, count, &made);
}

static int get_kernel(void *node, struct kernel_node *found) {
    struct driver_kernel_node made;
    int status =
        found ? DRIVER(cuGraphKernelNodeGetParams_v2, (void *, void *), node, &made) : cudaErrorInvalidValue;
    if (!status)
        *found = (struct kernel_node){made.kernel ? cudart_symbol(made.kernel) : made.function,
                                      made.grid,
                                      made.block,
                                      made.shared,
                                      made.arguments,
                                      made.extra};
    return status;
}

static int set_kernel(void *node, const struct kernel_node *parameters) {
    struct driver_kernel_node made;
    int status = driver_node(&made, parameters);
    return status ? status : DRIVER(cuGraphKernelNodeSetParams_v2, (void *, const void *), node, &made);
}

static int set_exec_kernel(void *exec, void *node, const struct kernel_node *parameters) {
    struct driver_kernel_node made;
    int status = driver_node(&made, parameters);
    return status
               ? status
               : DRIVER(cuGraphExecKernelNodeSetParams_v2, (void *, void *, const void *), exec, node, &made);
}

DEFINE(cudaGraphAddKernelNode, (NODE, const struct kernel_node *parameters),
       add_kernel(node, graph, after, count, parameters))
DEFINE(cudaGraphKernelNodeGetParams, (void *node, struct kernel_node *found), get_kernel(node, found))
DEFINE(cudaGraphKernelNodeSetParams, (void *node, const struct kernel_node *parameters),
       set_kernel(node, parameters))
DEFINE(cudaGraphExecKernelNodeSetParams, (void *exec, void *node, const struct kernel_node *parameters),
       set_exec_kernel(exec, node, parameters))

// Copies

// Convert the box, and find the context to copy it in.
static int box_here(struct driver_box *made, const struct box *box, void **context) {
    int status = cudart_box(made, box);
    return status ? status : cudart_context(context);
}

static int add_copy(NODE, const struct box *given) {
    struct driver_box box;
    void *context;
    int status = box_here(&box, given, &context);
    return status ? status
                  : DRIVER(cuGraphAddMemcpyNode, (NODE, const struct driver_box *, void *), node, graph,
                           after, count, &box, context);
}

static int set_copy(void *node, const struct box *given) {
    struct driver_box box;
    int status = cudart_box(&box, given);
    return status ? status
                  : DRIVER(cuGraphMemcpyNodeSetParams, (void *, const struct driver_box *), node, &box);
}

static int set_exec_copy(void *exec, void *node, const struct box *given) {
    struct driver_box box;
    void *context;
    int status = box_here(&box, given, &context);
    return status ? status
                  : DRIVER(cuGraphExecMemcpyNodeSetParams,
                           (void *, void *, const struct driver_box *, void *), exec, node, &box, context);
}

static struct pitched memory_of(const struct end *end, size_t width) {
    return (struct pitched){end->type == HOST ? (void *)end->host : (void *)end->device, end->pitch, width,
                            end->height};
}

static int get_copy(void *node, struct box *found) {
    struct driver_box box;
    int status = found ? DRIVER(cuGraphMemcpyNodeGetParams, (void *, struct driver_box *), node, &box)
                       : cudaErrorInvalidValue;
    if (status)
        return status;
    int kind = box.from.type == UNIFIED || box.to.type == UNIFIED
                   ? cudaMemcpyDefault
                   : 2 * (box.from.type == DEVICE) + (box.to.type == DEVICE);
    *found = (struct box){.from = memory_of(&box.from, box.width),
                          .from_at = {box.from.x, box.from.y, box.from.z},
                          .to = memory_of(&box.to, box.width),
                          .to_at = {box.to.x, box.to.y, box.to.z},
                          .extent = {box.width, box.height, box.depth},
                          .kind = kind};
    return status;
}

#define BYTES void *to, const void *from, size_t size, int kind
#define THE_BYTES ((struct box[]){cudart_rows(to, size, from, size, size, 1, kind)})
DEFINE(cudaGraphAddMemcpyNode, (NODE, const struct box *box), add_copy(node, graph, after, count, box))
DEFINE(cudaGraphAddMemcpyNode1D, (NODE, BYTES), add_copy(node, graph, after, count, THE_BYTES))
DEFINE(cudaGraphMemcpyNodeGetParams, (void *node, struct box *found), get_copy(node, found))
DEFINE(cudaGraphMemcpyNodeSetParams, (void *node, const struct box *box), set_copy(node, box))
DEFINE(cudaGraphMemcpyNodeSetParams1D, (void *node, BYTES), set_copy(node, THE_BYTES))
DEFINE(cudaGraphExecMemcpyNodeSetParams, (void *exec, void *node, const struct box *box),
       set_exec_copy(exec, node, box))
DEFINE(cudaGraphExecMemcpyNodeSetParams1D, (void *exec, void *node, BYTES),
       set_exec_copy(exec, node, THE_BYTES))

// Values and conditions: the driver also takes the context.

static int add_memset(NODE, const void *parameters) {
    void *context;
    int status = cudart_context(&context);
    return status ? status
                  : DRIVER(cuGraphAddMemsetNode, (NODE, const void *, void *), node, graph, after, count,
                           parameters, context);
}

static int set_exec_memset(void *exec, void *node, const void *parameters) {
    void *context;
    int status = cudart_context(&context);
    return status ? status
                  : DRIVER(cuGraphExecMemsetNodeSetParams, (void *, void *, const void *, void *), exec, node,
                           parameters, context);
}

static int create_condition(uint64_t *handle, void *graph, unsigned initial, unsigned flags) {
    void *context;
    int status = cudart_context(&context);
    return status ? status
                  : DRIVER(cuGraphConditionalHandleCreate, (uint64_t *, void *, void *, unsigned, unsigned),
                           handle, graph, context, initial, flags);
}

DEFINE(cudaGraphAddMemsetNode, (NODE, const void *parameters),
       add_memset(node, graph, after, count, parameters))
DEFINE(cudaGraphExecMemsetNodeSetParams, (void *exec, void *node, const void *parameters),
       set_exec_memset(exec, node, parameters))
DEFINE(cudaGraphConditionalHandleCreate, (uint64_t *handle, void *graph, unsigned initial, unsigned flags),
       create_condition(handle, graph, initial, flags))
