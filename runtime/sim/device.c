// Initialization, the device, contexts.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

struct context {
    struct handle handle;
    int references;
};

bool sim_initialized;
static struct context primary = {{CONTEXT}, 0};
static __thread struct context *current[64];
static __thread unsigned depth; // of current

// Tells gpt-hook whom it watches.
__attribute__((visibility("default"))) int gpt_sim_version(void) { return 1; }

struct context *sim_context(void) { return depth ? current[depth - 1] : NULL; }

void sim_arch(int *major, int *minor) {
    const char *text = getenv("GPT_SIM_ARCH"); // 8.6
    if (!text || sscanf(text, "%d.%d", major, minor) != 2)
        *major = 9, *minor = 0;
}

API cuInit(unsigned flags) {
    sim_initialized = true;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count) {
    if (!sim_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = 1;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
    if (!sim_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (ordinal)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int size, CUdevice device) {
    if (device || size < 1)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)size, "GPT simulated device");
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "GPT simulated 0", 16);
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return CUDA_SUCCESS;
}

// By CUdevice_attribute; those that are not here are 0: what they ask for is not there.
static const int attributes[200] = {
    [1] = 1024,       [2] = 1024,  [3] = 1024,   [4] = 64,          // threads a block; a block's dimensions
    [5] = 2147483647, [6] = 65535, [7] = 65535,                     // a grid's
    [8] = 49152,      [9] = 65536, [10] = 32,    [11] = 2147483647, // shared, constant, warp, pitch
    [12] = 65536,     [13] = 1000, [14] = 512,   [16] = 1,          // registers, kHz, alignment, processors
    [31] = 1,         [41] = 1,    [39] = 2048,  [81] = 49152,      // kernels at once, one address space
    [82] = 65536,     [83] = 1,    [97] = 49152,
};

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    int major, minor;
    sim_arch(&major, &minor);
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        *value = major;
    else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        *value = minor;
    else
        *value = attribute > 0 && attribute < 200 ? attributes[attribute] : 0;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRetain(void **context, CUdevice device) {
    if (!sim_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    __atomic_fetch_add(&primary.references, 1, __ATOMIC_RELAXED);
    *context = &primary;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (__atomic_fetch_sub(&primary.references, 1, __ATOMIC_RELAXED) > 0)
        return CUDA_SUCCESS;
    __atomic_fetch_add(&primary.references, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_INVALID_CONTEXT;
}

API cuDevicePrimaryCtxReset_v2(CUdevice device) { return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    (void)flags;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = __atomic_load_n(&primary.references, __ATOMIC_RELAXED) > 0;
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(void *context) {
    if (context && !is_kind(context, CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context && !depth)
        depth = 1;
    if (context)
        current[depth - 1] = context;
    else if (depth)
        depth--;
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(void **context) {
    *context = sim_context();
    return sim_initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

API cuCtxPushCurrent_v2(void *context) {
    if (!is_kind(context, CONTEXT) || depth == 64)
        return CUDA_ERROR_INVALID_CONTEXT;
    current[depth++] = context;
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(void **context) {
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = current[depth];
    return CUDA_SUCCESS;
}

API cuCtxCreate_v2(void **context, unsigned flags, CUdevice device) {
    (void)flags;
    if (!sim_initialized || device)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_INITIALIZED;
    struct context *made = calloc(1, sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->handle.kind = CONTEXT;
    *context = made;
    return cuCtxPushCurrent_v2(made);
}

API cuCtxCreate_v4(void **context, void *params, unsigned flags, CUdevice device) {
    (void)params;
    return cuCtxCreate_v2(context, flags, device);
}

API cuCtxDestroy_v2(void *context) {
    if (!is_kind(context, CONTEXT) || context == &primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sim_context() == context)
        depth--;
    ((struct context *)context)->handle.kind = 0;
    free(context);
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device) {
    if (!sim_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = 0;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize(void) { return sim_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

API cuCtxGetApiVersion(void *context, unsigned *version) {
    (void)context;
    *version = 13000;
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least)
        *least = 0;
    if (greatest)
        *greatest = 0;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult status;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static int find_error(CUresult status) {
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].status == status)
            return (int)i;
    return -1;
}

API cuGetErrorName(CUresult status, const char **name) {
    int i = find_error(status);
    *name = i < 0 ? NULL : errors[i].name;
    return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuGetErrorString(CUresult status, const char **text) {
    int i = find_error(status);
    *text = i < 0 ? NULL : errors[i].text;
    return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
