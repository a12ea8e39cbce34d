// Old variants of functions whose newer variants have the same parameters.

#include "sim.h"

#define OLD(name, suffix, parameters, ...)                                                                   \
    CUresult name##suffix parameters;                                                                        \
    API name parameters { return name##suffix(__VA_ARGS__); }

OLD(cuCtxCreate, _v2, (void **context, unsigned flags, CUdevice device), context, flags, device)
OLD(cuCtxDestroy, _v2, (void *context), context)
OLD(cuCtxPushCurrent, _v2, (void *context), context)
OLD(cuCtxPopCurrent, _v2, (void **context), context)
OLD(cuDeviceGetUuid, _v2, (CUuuid * uuid, CUdevice device), uuid, device)
OLD(cuDevicePrimaryCtxRelease, _v2, (CUdevice device), device)
OLD(cuDevicePrimaryCtxReset, _v2, (CUdevice device), device)
OLD(cuDevicePrimaryCtxSetFlags, _v2, (CUdevice device, unsigned flags), device, flags)
OLD(cuEventDestroy, _v2, (void *event), event)
OLD(cuEventElapsedTime, _v2, (float *ms, void *start, void *end), ms, start, end)
OLD(cuMemHostRegister, _v2, (void *memory, size_t size, unsigned flags), memory, size, flags)
OLD(cuStreamDestroy, _v2, (void *stream), stream)
OLD(cuLinkCreate, _v2, (unsigned count, int *options, void **values, void **state), count, options, values,
    state)
OLD(cuLinkAddData, _v2,
    (void *state, int type, void *data, size_t size, const char *name, unsigned count, int *options,
     void **values),
    state, type, data, size, name, count, options, values)
OLD(cuLinkAddFile, _v2,
    (void *state, int type, const char *path, unsigned count, int *options, void **values), state, type, path,
    count, options, values)
