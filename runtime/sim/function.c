// Names and attributes of kernels and functions.

#include <stdlib.h>

#include "sim.h"

// Find a function or a kernel. A kernel isn't a function: an H200 launches it, but refuses it here.
static struct function *find(void *handle, enum kind kind) {
    if (sim_strict && handle && !is_kind(handle, FUNCTION) && !is_kind(handle, KERNEL)) {
        sim_say("the program uses a function that was unloaded: a real driver may crash here");
        abort();
    }
    return is_kind(handle, kind) ? handle : NULL;
}

static CUresult get_name(const char **name, const struct function *function) {
    if (!function || !name)
        return name ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}

API cuFuncGetName(const char **name, void *function) {
    LOCKED;
    return get_name(name, find(function, FUNCTION));
}

API cuKernelGetName(const char **name, void *kernel) {
    LOCKED;
    return get_name(name, find(kernel, KERNEL));
}

int sim_function_attribute(const struct function *function, int attribute) {
    if (function->set >> attribute & 1)
        return function->attributes[attribute];
    if (is_there(function->kernel))
        return sim_function_attribute(function->kernel.object, attribute);
    struct entry *entry = function->entry;
    if (entry &&
        attribute == CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES) // counts the whole module, like the bank of a cubin
        return (int)sim_constant_size(((struct library *)function->object.owner)->code);
    if (entry)
        return entry->attributes[attribute];
    return attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK           ? sim_attribute(1)
           : attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? sim_attribute(8)
                                                                          : 0;
}

static CUresult get_attribute(int *value, int attribute, const struct function *function) {
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = sim_function_attribute(function, attribute);
    return CUDA_SUCCESS;
}

static CUresult set_attribute(struct function *function, int attribute, int value) {
    enum { MOST_CLUSTER_POLICY = 2 };
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    bool may =
        attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ? value >= 0 && value <= sim_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) -
                                         sim_function_attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        : attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ? value >= -1 && value <= 100
        : attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            ? value >= 0 && value <= MOST_CLUSTER_POLICY
            : value >= 0 && attribute >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH &&
                  attribute < CU_FUNC_ATTRIBUTE_MAX;
    if (!may)
        return CUDA_ERROR_INVALID_VALUE;
    function->attributes[attribute] = value;
    function->set |= 1u << attribute;
    return CUDA_SUCCESS;
}

API cuFuncGetAttribute(int *value, int attribute, void *function) {
    LOCKED;
    return get_attribute(value, attribute, find(function, FUNCTION));
}

API cuFuncSetAttribute(void *function, int attribute, int value) {
    LOCKED;
    return set_attribute(find(function, FUNCTION), attribute, value);
}

API cuKernelGetAttribute(int *value, int attribute, void *kernel, CUdevice device) {
    LOCKED;
    return device ? CUDA_ERROR_INVALID_DEVICE : get_attribute(value, attribute, find(kernel, KERNEL));
}

API cuKernelSetAttribute(int attribute, int value, void *kernel, CUdevice device) {
    LOCKED;
    return device ? CUDA_ERROR_INVALID_DEVICE : set_attribute(find(kernel, KERNEL), attribute, value);
}

static CUresult get_parameter(const struct function *function, size_t index, size_t *offset, size_t *size) {
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!offset || !function->entry || index >= function->entry->count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = function->entry->parameters[index].offset;
    if (size)
        *size = function->entry->parameters[index].size;
    return CUDA_SUCCESS;
}

static CUresult count_parameters(const struct function *function, size_t *count) {
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!count || !function->entry)
        return CUDA_ERROR_INVALID_VALUE;
    *count = function->entry->count;
    return CUDA_SUCCESS;
}

API cuFuncGetParamCount(void *function, size_t *count) {
    LOCKED;
    return count_parameters(find(function, FUNCTION), count);
}

API cuKernelGetParamCount(void *kernel, size_t *count) {
    LOCKED;
    return count_parameters(find(kernel, KERNEL), count);
}

API cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    LOCKED;
    return get_parameter(find(function, FUNCTION), index, offset, size);
}

API cuKernelGetParamInfo(void *kernel, size_t index, size_t *offset, size_t *size) {
    LOCKED;
    return get_parameter(find(kernel, KERNEL), index, offset, size);
}
