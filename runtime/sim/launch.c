// Launches, and the operations of streams and graphs in general.

#include <stdlib.h>
#include <string.h>

#include "queue.h"
#include "run.h"

static CUresult refuse_size(const struct function *function, const char *fact, uint64_t given,
                            uint64_t most) {
    sim_say_once("kernel '%.512s': %s: %llu given, %llu allowed", function->name, fact,
                 (unsigned long long)given, (unsigned long long)most);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_size(const struct function *function, const uint32_t grid[3], const uint32_t block[3],
                           uint32_t shared) {
    const struct host_kernel *kernel = function->entry ? function->entry->kernel : NULL;
    uint64_t fixed = kernel ? kernel->shared_size : 0;
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        uint32_t most_block = (uint32_t)sim_attribute(2 + i), most_grid = (uint32_t)sim_attribute(5 + i);
        if (!grid[i] || grid[i] > most_grid)
            return refuse_size(function, "blocks in a dimension of the grid", grid[i], most_grid);
        if (!block[i] || block[i] > most_block)
            return refuse_size(function, "threads in a dimension of the block", block[i], most_block);
        threads *= block[i];
    }
    const uint32_t *required = kernel ? kernel->required : NULL;
    if (required && required[0] && memcmp(required, block, sizeof(kernel->required)))
        return refuse_size(function, "threads of a block, by .reqntid", threads,
                           (uint64_t)required[0] * required[1] * required[2]);
    uint64_t most = (uint64_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    if (threads > most)
        return refuse_size(function, "threads of a block, by the device or .maxntid (__launch_bounds__)",
                           threads, most);
    most = (uint64_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    uint64_t all = (uint64_t)sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (shared > most || fixed + shared > all)
        return refuse_size(function, "bytes of dynamic shared memory (cuFuncSetAttribute allows more)",
                           shared, most < all - fixed ? most : all - fixed);
    return CUDA_SUCCESS;
}

// Copy the arguments: pointers to them first, then their values.
static CUresult keep_arguments(struct operation *operation, const struct entry *entry, void **values,
                               void **extra) {
    const char *buffer = NULL;
    size_t size = 0;
    operation->kernel.packed = extra != NULL;
    bool wrong = false;
    for (; extra && extra[0]; extra += 2) {
        if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_POINTER_HANDLE)
            buffer = extra[1];
        else if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_SIZE_HANDLE)
            size = *(const size_t *)extra[1];
        else
            wrong = true;
    }
    if (sim_runs && (wrong || (size && !buffer)))
        return CUDA_ERROR_INVALID_VALUE;
    size_t end = 0;
    for (size_t i = 0; entry && i < entry->count; i++) {
        size_t stop = entry->parameters[i].offset + entry->parameters[i].size;
        end = stop > end ? stop : end;
    }
    if (sim_runs && size > end)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES; // what an H200 answers
    if (!end)
        return CUDA_SUCCESS;
    if (!values && !buffer)
        return sim_runs ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (!values && end > size && sim_runs)
        return CUDA_ERROR_INVALID_VALUE;
    void **copies = calloc(1, entry->count * sizeof(*copies) + end);
    if (!copies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *bytes = (char *)(copies + entry->count);
    for (size_t i = 0; i < entry->count; i++) {
        const struct parameter *parameter = &entry->parameters[i];
        copies[i] = bytes + parameter->offset;
        if (values)
            memcpy(copies[i], values[i], parameter->size);
        else if (parameter->offset + parameter->size <= size)
            memcpy(copies[i], buffer + parameter->offset, parameter->size);
    }
    operation->owned = operation->kernel.arguments = copies;
    return CUDA_SUCCESS;
}

// Read cluster dimensions. If kernels run, clusters of more than one block are rejected.
bool sim_is_cluster(const void *value, bool *cluster) {
    uint32_t dimensions[3];
    memcpy(dimensions, value, sizeof(dimensions));
    uint64_t blocks = (uint64_t)dimensions[0] * dimensions[1] * dimensions[2];
    if (!blocks && (dimensions[0] || dimensions[1] || dimensions[2]))
        return false;
    if (blocks > 1 && sim_runs) {
        sim_say("cluster of %llu blocks: only clusters of one block are simulated, see gpt-sim(7)",
                (unsigned long long)blocks);
        return false;
    }
    *cluster = blocks;
    return true;
}

// Check the cluster dimensions that the program set as attributes of the function.
static CUresult check_cluster(const struct function *function) {
    uint32_t dimensions[3];
    bool cluster;
    for (int i = 0; i < 3; i++)
        dimensions[i] =
            (uint32_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + i);
    return sim_is_cluster(dimensions, &cluster) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

CUresult sim_make_launch(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *params, bool keep) {
    struct function *function = params->func ? params->func : params->kern;
    if (!is_kind(function, FUNCTION) && !is_kind(function, KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    if (params->kernelParams && params->extra && params->extra[0])
        return CUDA_ERROR_INVALID_VALUE; // NVIDIA's manual of cuLaunchKernel
    const uint32_t grid[3] = {params->gridDimX, params->gridDimY, params->gridDimZ};
    const uint32_t block[3] = {params->blockDimX, params->blockDimY, params->blockDimZ};
    CUresult status = check_size(function, grid, block, params->sharedMemBytes);
    if (status)
        return status;
    *operation = (struct operation){.type = CU_GRAPH_NODE_TYPE_KERNEL,
                                    .kernel = {.function = sim_refer(function),
                                               .grid = {grid[0], grid[1], grid[2]},
                                               .block = {block[0], block[1], block[2]},
                                               .shared = params->sharedMemBytes}};
    status = check_cluster(function);
    if (!status && keep)
        status = keep_arguments(operation, function->entry, params->kernelParams, params->extra);
    return status;
}

// Find the code of a function and the variables that it uses.
static CUresult find_code(struct run *run, struct code **code, struct context *context,
                          const struct function *function) {
    struct library *module;
    CUresult status = sim_module_in(&module, context, function);
    if (status)
        return status;
    const char *missing;
    *run = (struct run){.context = context,
                        .name = function->entry->name,
                        .module = function->entry->module,
                        .kernel = function->entry->kernel};
    status =
        sim_bind_variables(&run->variables, &module->variables, module->code, module, run->module, &missing);
    if (status == CUDA_ERROR_INVALID_IMAGE)
        sim_say("kernel '%.512s': variable '%.512s' is not in the module", run->name, missing);
    run->constant = module->variables.constant;
    run->constant_size = module->variables.constant_size;
    *code = module->code;
    return status;
}

// Make sure that the function has host code. This may release the lock, so pointers to objects that were
// looked up before may be invalid afterwards.
static CUresult make(struct function *function) {
    if (!function->entry)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (function->entry->state == MADE)
        return CUDA_SUCCESS;
    return sim_make_kernel(((struct library *)function->object.owner)->code, function->entry);
}

static CUresult make_first(void *function) {
    IN_CONTEXT;
    return is_kind(function, FUNCTION) || is_kind(function, KERNEL) ? make(function)
                                                                    : CUDA_ERROR_INVALID_HANDLE;
}

// Return whether not all blocks can be resident at once.
static bool is_too_large(const struct operation *operation) {
    const uint32_t *grid = operation->kernel.grid, *block = operation->kernel.block;
    const struct function *function = operation->kernel.function.object;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    uint64_t most = sim_resident_blocks(function, threads, operation->kernel.shared) * sim_processors();
    return (uint64_t)grid[0] * grid[1] > most || (uint64_t)grid[0] * grid[1] * grid[2] > most;
}

static CUresult launch(const CUDA_KERNEL_NODE_PARAMS *params, void *handle, bool cooperative, bool cluster) {
    CUresult made = sim_runs ? make_first(params->func) : CUDA_SUCCESS;
    if (made)
        return made;
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    struct operation operation;
    CUresult status = sim_make_launch(&operation, params, stream->capture || sim_runs);
    if (status) {
        if (stream->capture)
            stream->capture->invalid = true;
        return status;
    }
    struct object *function = operation.kernel.function.object;
    if (function->kind == FUNCTION && function->owner->owner != stream->object.owner)
        status = CUDA_ERROR_INVALID_HANDLE; // it belongs to another context
    if (status)
        sim_end_operation(&operation);
    operation.kernel.cooperative = cooperative;
    operation.kernel.cluster = cluster;
    if (!status && cooperative && sim_runs && is_too_large(&operation)) {
        sim_end_operation(&operation);
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    return status ? status : sim_issue(stream, &operation);
}

API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    return launch(
        &(CUDA_KERNEL_NODE_PARAMS){function, gx, gy, gz, bx, by, bz, shared, params, extra, NULL, NULL},
        stream, false, false);
}

API cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void *stream, void **params) {
    return launch(
        &(CUDA_KERNEL_NODE_PARAMS){function, gx, gy, gz, bx, by, bz, shared, params, NULL, NULL, NULL},
        stream, true, false);
}

// Check an attribute of a launch, with the same results as on an H200.
CUresult sim_check_attribute(int id, const void *at) {
    enum { MOST_POLICY = 4, MOST_WINDOW = 128 << 20 };
    const int value = *(const int *)at;
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: {
        struct {
            void *start;
            size_t size;
            float share;
        } window;
        memcpy(&window, at, sizeof(window));
        return window.size > MOST_WINDOW || !(window.share >= 0 && window.share <= 1)
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    }
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        return value < 0 || value > MOST_POLICY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        return value < 0 || value > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        return value < 0 || value > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return value < -1 || value > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: {
        void *event;
        memcpy(&event, at, sizeof(event));
        return is_kind(event, EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    }
    return id < 0 || id > CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING ? CUDA_ERROR_INVALID_VALUE
                                                                             : CUDA_SUCCESS;
}

API cuLaunchKernelEx(const CUlaunchConfig *c, void *function, void **params, void **extra) {
    if (!c || (c->numAttrs && !c->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    bool cooperative = false, cluster = false;
    for (uint32_t i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttribute *at = &c->attrs[i];
        CUresult status = sim_check_attribute((int)at->id, &at->value);
        if (status)
            return status;
        cooperative |= at->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && at->value.cooperative;
        if (at->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && !sim_is_cluster(&at->value, &cluster))
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    return launch(&(CUDA_KERNEL_NODE_PARAMS){function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                                             c->blockDimY, c->blockDimZ, c->sharedMemBytes, params, extra,
                                             NULL, NULL},
                  c->hStream, cooperative, cluster);
}

// Operations

static void end_operation(struct operation *operation) {
    for (size_t i = 0; operation->type == CU_GRAPH_NODE_TYPE_GRAPH && i < operation->count; i++)
        end_operation((struct operation *)operation->owned + i);
    if (operation->type == CU_GRAPH_NODE_TYPE_GRAPH && operation->held)
        sim_delete(operation->held);
    sim_release_graph_memory(operation);
    free(operation->owned);
}

static bool copy_operation(struct operation *to, const struct operation *from) {
    *to = *from;
    sim_hold_graph_memory(to);
    if (!from->owned)
        return true;
    to->owned = to->kernel.arguments = NULL;
    const struct function *function = from->kernel.function.object;
    return !is_there(from->kernel.function) ||
           !keep_arguments(to, function->entry, from->kernel.arguments, NULL);
}

static CUresult run_kernel(struct context *context, const struct operation *operation, uint64_t number) {
    enum { MOST = 32764 };
    _Alignas(128) unsigned char parameters[MOST + 4] = {0};
    struct function *function = operation->kernel.function.object;
    struct run run;
    struct code *code;
    LOCKED;
    if (!is_there(operation->kernel.function))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = make(function);
    if (!status && !is_there(operation->kernel.function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (status || (status = find_code(&run, &code, context, function)))
        return status;
    const struct entry *entry = function->entry;
    for (size_t i = 0; i < entry->count && operation->kernel.arguments; i++) {
        const struct parameter *to = &entry->parameters[i];
        if (to->size <= MOST && to->offset <= MOST - to->size)
            memcpy(parameters + to->offset, operation->kernel.arguments[i], to->size);
    }
    run.number = number;
    run.parameters = parameters;
    run.blocks = 1;
    for (int i = 0; i < 3; i++) {
        run.blocks *= run.grid[i] = operation->kernel.grid[i];
        run.block[i] = operation->kernel.block[i];
    }
    run.dynamic = operation->kernel.shared;
    run.most =
        sim_resident_blocks(function, (uint64_t)run.block[0] * run.block[1] * run.block[2], run.dynamic);
    run.most += !run.most; // attributes were changed since the launch
    run.cooperative = operation->kernel.cooperative;
    run.cluster = operation->kernel.cluster || run.kernel->cluster;
    run.workspace[0] = sizeof(run.workspace);
    run.workspace[1] = 0;
    code->references++;
    status = sim_run_blocks(&run);
    sim_release_code(code);
    return status;
}

static CUresult run(struct context *context, struct operation *operation, uint64_t number) {
    if (operation->wrong)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    switch (operation->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return sim_runs ? run_kernel(context, operation, number) : CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (!operation->by_caller)
            sim_run_copy(&operation->copy);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        sim_run_set(&operation->set);
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        sim_begin_callback(context);
        if (operation->host.callback)
            operation->host.callback(operation->host.stream, CUDA_SUCCESS, operation->host.data);
        else
            operation->host.function(operation->host.data);
        sim_end_callback();
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        for (size_t i = 0; i < operation->count; i++) {
            CUresult status = run(context, (struct operation *)operation->owned + i, number);
            if (status)
                return status;
        }
        break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
        LOCKED;
        if (is_there(operation->event))
            ((struct event *)operation->event.object)->reached = sim_now();
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: {
        LOCKED;
        return sim_free(operation->memory);
    }
    }
    return CUDA_SUCCESS;
}

__attribute__((constructor)) static void set_up(void) {
    sim_run = run;
    sim_end_operation = end_operation;
    sim_copy_operation = copy_operation;
}
