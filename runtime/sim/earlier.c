// The launch functions from before CUDA 4.0. The program first sets the block size, the amount of shared
// memory and the parameters, each by a call on the function, and then launches it.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { MOST = 4096 }; // bytes of parameters

struct earlier {
    uint32_t block[3], shared;
    size_t size;
    char params[MOST];
};

static struct earlier *find(void *handle) {
    struct function *function = is_kind(handle, FUNCTION) ? handle : NULL;
    if (function && !function->earlier && (function->earlier = calloc(1, sizeof(*function->earlier))))
        *function->earlier = (struct earlier){.block = {1, 1, 1}};
    return function ? function->earlier : NULL;
}

API cuFuncSetBlockShape(void *function, int x, int y, int z) {
    LOCKED;
    struct earlier *earlier = find(function);
    if (!earlier)
        return CUDA_ERROR_INVALID_HANDLE;
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    earlier->block[0] = (uint32_t)x, earlier->block[1] = (uint32_t)y, earlier->block[2] = (uint32_t)z;
    return CUDA_SUCCESS;
}

API cuFuncSetSharedSize(void *function, unsigned bytes) {
    LOCKED;
    struct earlier *earlier = find(function);
    if (!earlier)
        return CUDA_ERROR_INVALID_HANDLE;
    earlier->shared = bytes;
    return CUDA_SUCCESS;
}

API cuParamSetSize(void *function, unsigned bytes) {
    LOCKED;
    struct earlier *earlier = find(function);
    if (!earlier || bytes > MOST)
        return earlier ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    earlier->size = bytes;
    return CUDA_SUCCESS;
}

API cuParamSetv(void *function, int offset, const void *value, unsigned bytes) {
    LOCKED;
    struct earlier *earlier = find(function);
    if (!earlier)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || offset < 0 || offset > MOST || bytes > MOST - (unsigned)offset)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(earlier->params + offset, value, bytes);
    return CUDA_SUCCESS;
}

API cuParamSeti(void *function, int offset, unsigned value) {
    return cuParamSetv(function, offset, &value, sizeof(value));
}

API cuParamSetf(void *function, int offset, float value) {
    return cuParamSetv(function, offset, &value, sizeof(value));
}

API cuLaunchGridAsync(void *function, int width, int height, void *stream) {
    CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            void *, void **, void **);
    struct earlier copy;
    {
        LOCKED;
        const struct earlier *earlier = find(function);
        if (!earlier)
            return CUDA_ERROR_INVALID_HANDLE;
        copy = *earlier;
    }
    void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER_HANDLE, copy.params,
                     (void *)CU_LAUNCH_PARAM_BUFFER_SIZE_HANDLE, &copy.size, NULL};
    return cuLaunchKernel(function, (unsigned)width, (unsigned)height, 1, copy.block[0], copy.block[1],
                          copy.block[2], copy.shared, stream, NULL, extra);
}

API cuLaunchGrid(void *function, int width, int height) {
    return cuLaunchGridAsync(function, width, height, NULL);
}

API cuLaunch(void *function) { return cuLaunchGridAsync(function, 1, 1, NULL); }
