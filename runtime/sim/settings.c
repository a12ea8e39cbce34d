// Settings of contexts, functions and the device that are stored but have no effect here, and functions for
// peers, although this device has no peer.

#include <stdio.h>
#include <string.h>

#include "sim.h"

// Limits

static CUresult check_limit(const void *value, int limit) {
    if (!value || limit < 0 || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    static const struct context fresh;
    return sim_limit(&fresh, limit) ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

API cuCtxGetLimit(size_t *value, int limit) {
    IN_CONTEXT;
    CUresult status = check_limit(value, limit);
    if (!status)
        *value = sim_limit(context, limit);
    return status;
}

API cuCtxSetLimit(int limit, size_t value) {
    IN_CONTEXT_UNCAPTURED;
    CUresult status = check_limit(&value, limit);
    enum { MOST_STACK = 512 << 10, MOST_FETCH = 128 };
    if (!status && ((limit == CU_LIMIT_STACK_SIZE && value > MOST_STACK) ||
                    (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY && value > MOST_FETCH)))
        status = CUDA_ERROR_INVALID_VALUE;
    static const uint64_t least[CU_LIMIT_MAX] = {[CU_LIMIT_PRINTF_FIFO_SIZE] = 512 << 10,
                                                 [CU_LIMIT_MALLOC_HEAP_SIZE] = 4 << 20};
    if (!status)
        context->limits[limit] = value > least[limit] ? value : least[limit];
    return status;
}

// Caches and shared memory

enum { MOST_CACHE_CONFIG = 3, FOUR_BYTE_BANKS = 1, MOST_BANKS = 2 };

API cuCtxGetCacheConfig(int *config) {
    IN_CONTEXT;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

API cuCtxSetCacheConfig(int config) {
    IN_CONTEXT;
    if (config < 0 || config > MOST_CACHE_CONFIG)
        return CUDA_ERROR_INVALID_VALUE;
    context->cache_config = config;
    return CUDA_SUCCESS;
}

API cuCtxGetSharedMemConfig(int *config) {
    IN_CONTEXT;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = FOUR_BYTE_BANKS;
    return CUDA_SUCCESS;
}

API cuCtxSetSharedMemConfig(int config) {
    IN_CONTEXT;
    return config < 0 || config > MOST_BANKS ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuCtxResetPersistingL2Cache(void) {
    IN_CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult set_of_function(void *function, enum kind kind, int config, int most) {
    LOCKED;
    if (!is_kind(function, kind))
        return CUDA_ERROR_INVALID_HANDLE;
    return config < 0 || config > most ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuFuncSetCacheConfig(void *function, int config) {
    return set_of_function(function, FUNCTION, config, MOST_CACHE_CONFIG);
}

API cuFuncSetSharedMemConfig(void *function, int config) {
    return set_of_function(function, FUNCTION, config, MOST_BANKS);
}

API cuKernelSetCacheConfig(void *kernel, int config, CUdevice device) {
    return device ? CUDA_ERROR_INVALID_DEVICE : set_of_function(kernel, KERNEL, config, MOST_CACHE_CONFIG);
}

API cuFuncLoad(void *function) { return set_of_function(function, FUNCTION, 0, 0); }

API cuFuncIsLoaded(int *state, void *function) {
    CUresult status = state ? cuFuncLoad(function) : CUDA_ERROR_INVALID_VALUE;
    if (!status)
        *state = 1;
    return status;
}

// Profilers: none is there

API cuProfilerStart(void) {
    IN_CONTEXT;
    return CUDA_SUCCESS;
}

API cuProfilerStop(void) {
    IN_CONTEXT;
    return CUDA_SUCCESS;
}

// The device, seen from outside

static const char bus_id[] = "0000:00:00.0";

API cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
    if (device || !id || size < (int)sizeof(bus_id))
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    memcpy(id, bus_id, sizeof(bus_id));
    return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    unsigned domain = 0, bus, slot, function = 0;
    if (!device || !id ||
        (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 &&
         (domain = 0, sscanf(id, "%x:%x.%x", &bus, &slot, &function) < 2)))
        return CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return domain | bus | slot | function ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice device) {
    if (device || !supported || type)
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *supported = 0;
    return CUDA_SUCCESS;
}

// Peers

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    if (device || peer || !can)
        return device || peer ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *can = 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
    (void)attribute, (void)device, (void)peer;
    return value ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE; // a device isn't its own peer
}

API cuCtxEnablePeerAccess(void *peer, unsigned flags) {
    IN_CONTEXT;
    if (flags || !is_kind(peer, CONTEXT))
        return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

API cuCtxDisablePeerAccess(void *peer) {
    IN_CONTEXT;
    return is_kind(peer, CONTEXT) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, void *stream);

API cuMemcpyPeer(CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t size) {
    (void)to_context, (void)from_context;
    return cuMemcpyDtoD_v2(to, from, size);
}

API cuMemcpyPeerAsync(CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t size,
                      void *stream) {
    (void)to_context, (void)from_context;
    return cuMemcpyDtoDAsync_v2(to, from, size, stream);
}

API cuMemcpy3DPeer(const CUDA_MEMCPY3D *copy) { return cuMemcpy3D_v2(copy); }

API cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *copy, void *stream) { return cuMemcpy3DAsync_v2(copy, stream); }
