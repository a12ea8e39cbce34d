// Launches, and the operations of streams and graphs in general.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

static CUresult check_size(const struct function *function, const uint32_t grid[3], const uint32_t block[3],
                           uint32_t shared) {
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!grid[i] || !block[i] || block[i] > (uint32_t)sim_attribute(2 + i) ||
            grid[i] > (uint32_t)sim_attribute(5 + i))
            return CUDA_ERROR_INVALID_VALUE;
        threads *= block[i];
    }
    bool fits =
        threads <= (uint64_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) &&
        shared <= (uint32_t)sim_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Copies the arguments: pointers to them first, then their values.
static bool keep_arguments(struct operation *operation, const struct entry *entry, void **values,
                           void **extra) {
    const char *buffer = NULL;
    size_t size = 0;
    for (; !values && extra && extra[0]; extra += 2) {
        if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_POINTER_HANDLE)
            buffer = extra[1];
        else if (extra[0] == (void *)CU_LAUNCH_PARAM_BUFFER_SIZE_HANDLE)
            size = *(const size_t *)extra[1];
    }
    if (!entry || !entry->count || (!values && !buffer))
        return true;
    size_t end = 0;
    for (size_t i = 0; i < entry->count; i++) {
        size_t stop = entry->parameters[i].offset + entry->parameters[i].size;
        end = stop > end ? stop : end;
    }
    void **kept = calloc(1, entry->count * sizeof(*kept) + end);
    if (!kept)
        return false;
    char *bytes = (char *)(kept + entry->count);
    for (size_t i = 0; i < entry->count; i++) {
        const struct parameter *parameter = &entry->parameters[i];
        kept[i] = bytes + parameter->offset;
        if (values)
            memcpy(kept[i], values[i], parameter->size);
        else if (parameter->offset + parameter->size <= size)
            memcpy(kept[i], buffer + parameter->offset, parameter->size);
    }
    operation->owned = operation->kernel.arguments = kept;
    return true;
}

CUresult sim_make_launch(struct operation *operation, const CUDA_KERNEL_NODE_PARAMS *params, bool keep) {
    struct function *function = params->func ? params->func : params->kern;
    if (!is_kind(function, FUNCTION) && !is_kind(function, KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
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
    bool kept = !keep || keep_arguments(operation, function->entry, params->kernelParams, params->extra);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult launch(const CUDA_KERNEL_NODE_PARAMS *params, void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    struct operation operation;
    CUresult status =
        sim_make_launch(&operation, params, stream->capture); // a launch itself needs no arguments yet
    struct object *function = operation.kernel.function.object;
    if (!status && function->kind == FUNCTION && function->owner->owner != &context->object)
        status = CUDA_ERROR_INVALID_HANDLE; // of another context
    return status ? status : sim_issue(stream, &operation);
}

API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    return launch(
        &(CUDA_KERNEL_NODE_PARAMS){function, gx, gy, gz, bx, by, bz, shared, params, extra, NULL, NULL},
        stream);
}

API cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void *stream, void **params) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}

API cuLaunchKernelEx(const CUlaunchConfig *c, void *function, void **params, void **extra) {
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    return cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                          c->blockDimZ, c->sharedMemBytes, c->hStream, params, extra);
}

// Operations

void sim_end_operation(struct operation *operation) { free(operation->owned); }

bool sim_copy_operation(struct operation *to, const struct operation *from) {
    *to = *from;
    if (!from->owned)
        return true;
    to->owned = to->kernel.arguments = NULL;
    const struct function *function = from->kernel.function.object;
    return !is_there(from->kernel.function) ||
           keep_arguments(to, function->entry, from->kernel.arguments, NULL);
}

// Whether memory has been freed since the operation was issued.
static bool is_wrong(const struct operation *operation) {
    LOCKED;
    return operation->type == CU_GRAPH_NODE_TYPE_MEMSET ? sim_check_set(&operation->set)
                                                        : sim_check_copy(&operation->copy);
}

CUresult sim_run(struct operation *operation) {
    switch (operation->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (is_wrong(operation))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        sim_run_copy(&operation->copy);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        if (is_wrong(operation))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        sim_run_set(&operation->set);
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        sim_in_host_function = true;
        if (operation->host.callback)
            operation->host.callback(operation->host.stream, CUDA_SUCCESS, operation->host.data);
        else
            operation->host.function(operation->host.data);
        sim_in_host_function = false;
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        for (size_t i = 0; i < operation->count; i++) {
            CUresult status = sim_run((struct operation *)operation->owned + i);
            if (status)
                return status;
        }
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE: {
        LOCKED;
        return sim_free(operation->memory);
    }
    }
    return CUDA_SUCCESS;
}
