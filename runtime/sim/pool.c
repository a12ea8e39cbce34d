// Memory pools. A pool only counts its memory, which is allocated like any other. Unlike on a GPU, the memory
// can be used as soon as the call returns, and not only in stream order.

#include <string.h>

#include "sim.h"

struct pool {
    struct object object;
    CUmemLocation location;
    size_t most;        // bytes, 0: any number
    uint64_t threshold; // bytes that it may keep; we keep nothing
    int reuse[3];       // by CU_MEMPOOL_ATTR_REUSE_*
    uint64_t high;      // the most bytes that were used
};

_Static_assert(sizeof(struct pool) <= OBJECT_SIZE, "fit");

static struct pool *default_pools[2], *current_pools[2]; // the device's, the host's

static struct pool *find(void *pool) { return is_kind(pool, POOL) ? pool : NULL; }

// Return 0 for the device, 1 for the host, -1 for an unknown location.
static int place_of(const CUmemLocation *location) {
    return !location || (location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id) ? -1
           : location->type == CU_MEM_LOCATION_TYPE_DEVICE                              ? 0
           : location->type == CU_MEM_LOCATION_TYPE_HOST                                ? 1
                                                                                        : -1;
}

static struct pool *add(const CUmemLocation *location, size_t most) {
    struct pool *made = sim_new(POOL, NULL);
    if (made) {
        made->location = *location;
        made->most = most;
        for (int i = 0; i < 3; i++)
            made->reuse[i] = 1;
    }
    return made;
}

static CUresult get_default(void **pool, const CUmemLocation *location) {
    int place = place_of(location);
    if (!pool || place < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!default_pools[place])
        default_pools[place] = add(location, 0);
    return (*pool = default_pools[place]) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_current(void **pool, const CUmemLocation *location) {
    int place = place_of(location);
    CUresult status = get_default(pool, location);
    if (!status && place >= 0 && current_pools[place])
        *pool = current_pools[place];
    return status;
}

static CUresult set_current(const CUmemLocation *location, void *pool) {
    int place = place_of(location);
    if (place < 0 || !find(pool) || place_of(&find(pool)->location) != place)
        return CUDA_ERROR_INVALID_VALUE;
    current_pools[place] = pool;
    return CUDA_SUCCESS;
}

static const CUmemLocation device_location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

API cuDeviceGetDefaultMemPool(void **pool, CUdevice device) {
    LOCKED;
    return device ? CUDA_ERROR_INVALID_DEVICE : get_default(pool, &device_location);
}

API cuDeviceGetMemPool(void **pool, CUdevice device) {
    LOCKED;
    return device ? CUDA_ERROR_INVALID_DEVICE : get_current(pool, &device_location);
}

API cuDeviceSetMemPool(CUdevice device, void *pool) {
    LOCKED;
    return device ? CUDA_ERROR_INVALID_DEVICE : set_current(&device_location, pool);
}

// Managed memory uses the pool of the location that it prefers.

API cuMemGetDefaultMemPool(void **pool, const CUmemLocation *location, int type) {
    LOCKED;
    return type == CU_MEM_ALLOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE : get_default(pool, location);
}

API cuMemGetMemPool(void **pool, const CUmemLocation *location, int type) {
    LOCKED;
    return type == CU_MEM_ALLOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE : get_current(pool, location);
}

API cuMemSetMemPool(const CUmemLocation *location, int type, void *pool) {
    LOCKED;
    return type == CU_MEM_ALLOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE : set_current(location, pool);
}

API cuMemPoolCreate(void **pool, const CUmemPoolProps *props) {
    LOCKED;
    if (!pool || !props || props->allocType == CU_MEM_ALLOCATION_TYPE_INVALID ||
        place_of(&props->location) < 0 ||
        memcmp(props->reserved, (char[sizeof(props->reserved)]){0}, sizeof(props->reserved)))
        return CUDA_ERROR_INVALID_VALUE;
    if (props->handleTypes)
        return CUDA_ERROR_NOT_SUPPORTED; // handles for other processes
    CUresult unsafe = sim_unsafe();
    if (unsafe)
        return unsafe;
    return (*pool = add(&props->location, props->maxSize)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Memory allocated from it stays valid.
API cuMemPoolDestroy(void *pool) {
    LOCKED;
    if (!find(pool) || pool == default_pools[0] || pool == default_pools[1])
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 2; i++)
        if (current_pools[i] == pool)
            current_pools[i] = NULL;
    sim_delete(pool);
    return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(void *pool, size_t size) {
    LOCKED;
    (void)size;
    return find(pool) ? sim_unsafe() : CUDA_ERROR_INVALID_VALUE;
}

API cuMemPoolSetAttribute(void *handle, int attribute, void *value) {
    LOCKED;
    struct pool *pool = find(handle);
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - 1] = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(const uint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const uint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE;
        pool->high = sim_used(pool);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

API cuMemPoolGetAttribute(void *handle, int attribute, void *value) {
    LOCKED;
    const struct pool *pool = find(handle);
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = sim_used(pool);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(uint64_t *)value = pool->high;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

API cuMemPoolSetAccess(void *pool, const CUmemAccessDesc *access, size_t count) {
    LOCKED;
    for (size_t i = 0; i < count; i++)
        if (!access)
            return CUDA_ERROR_INVALID_VALUE;
        else if (place_of(&access[i].location) < 0 || access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            return CUDA_ERROR_INVALID_DEVICE; // the device keeps access to its own
        else if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_NOT_SUPPORTED;
    return find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemPoolGetAccess(int *flags, void *pool, const CUmemLocation *location) {
    LOCKED;
    if (!flags || !find(pool) || place_of(location) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

// Allocate in a stream that's being captured, which adds an allocation node.
static CUresult capture(CUdeviceptr *memory, size_t size, struct context *context, struct stream *stream) {
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    static const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct operation operation;
    CUresult status = sim_make_graph_memory(&operation, size, &props, context);
    if (status)
        return status;
    *memory = operation.memory;
    return sim_issue(stream, &operation);
}

static CUresult allocate(CUdeviceptr *memory, size_t size, void *handle, void *stream_handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, stream_handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult status = handle ? CUDA_SUCCESS : get_current(&handle, &device_location);
    struct pool *pool = find(handle);
    if (status || !pool || !memory)
        return status ? status : CUDA_ERROR_INVALID_VALUE;
    if (!size && !(stream->capture && stream->capture->invalid)) {
        *memory = 0;
        return stream->capture ? CUDA_SUCCESS : sim_unsafe();
    }
    if (stream->capture)
        return capture(memory, size, context, stream);
    if ((status = sim_unsafe()) || (status = sim_implicit(stream)))
        return status;
    uint64_t used = sim_used(pool);
    if (pool->most && (size > pool->most || used > pool->most - size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    status = sim_allocate_from(memory, size, context, pool);
    if (!status && used + size > pool->high)
        pool->high = used + size;
    return status;
}

API cuMemAllocAsync(CUdeviceptr *memory, size_t size, void *stream) {
    return allocate(memory, size, NULL, stream);
}

API cuMemAllocFromPoolAsync(CUdeviceptr *memory, size_t size, void *pool, void *stream) {
    return pool ? allocate(memory, size, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}
