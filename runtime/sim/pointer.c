// Pointer attributes, for device, pinned and registered memory. Advice and prefetches of managed memory do
// nothing: all memory is local.

#include <string.h>

#include "sim.h"

// Return false for an attribute that isn't simulated. Without a range, the address isn't from the driver.
static bool answer(void *value, int attribute, const struct range *range, CUdeviceptr address) {
    bool host = range && (range->type == PINNED || range->type == REGISTERED);
    bool managed = range && range->type == MANAGED;
    uint64_t number;
    size_t size = sizeof(int);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
        struct object *owner =
            range ? (struct object *)range->owner : NULL; // a context, or one of its modules
        while (owner && owner->kind != CONTEXT)
            owner = owner->owner;
        *(void **)value = owner;
        return true;
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        number = !range ? 0 : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        number = range ? address : 0, size = sizeof(CUdeviceptr);
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        number = host || managed ? address : 0, size = sizeof(void *);
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        number = range ? range->serial : 0, size = sizeof(uint64_t);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        number = range ? 0 : (uint64_t)-2;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        number = range ? range->start : 0, size = sizeof(CUdeviceptr);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        number = range ? range->size : 0, size = sizeof(size_t);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        number = range && is_there(range->pool) ? (uint64_t)range->pool.object : 0, size = sizeof(void *);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        number = range ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        number = managed, size = 1;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        number = range != NULL, size = 1;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        number = 0, size = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        number = 0, size = sizeof(uint64_t);
        break;
    default:
        return false;
    }
    memcpy(value, &number, size);
    return true;
}

API cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    LOCKED;
    const struct range *range = sim_range(address, 1);
    // cuPointerGetAttributes answers NULL in this case
    if (range && attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && range->type != PINNED &&
        range->type != REGISTERED && range->type != MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    return value && range && answer(value, attribute, range, address) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}

API cuPointerGetAttributes(unsigned count, const int *attributes, void **values, CUdeviceptr address) {
    LOCKED;
    const struct range *range = sim_range(address, 1);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (!attributes || !values || !values[i] || !answer(values[i], attributes[i], range, address))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// Copy run in stream order, so this attribute needs no effect.
API cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
    LOCKED;
    bool may = value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && sim_range(address, 1);
    return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemHostGetFlags(unsigned *flags, void *address) {
    LOCKED;
    const struct range *range = sim_range((uint64_t)address, 1);
    if (!flags || !range || (range->type != PINNED && range->type != REGISTERED))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags;
    return CUDA_SUCCESS;
}

// Managed memory

static CUresult check(CUdeviceptr address, size_t size) {
    const struct range *range = size ? sim_range(address, size) : NULL;
    return range && range->type == MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Check a location: this device, or a kind of location that cuda.h has.
static CUresult check_place(CUmemLocation location) {
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id)
        return CUDA_ERROR_INVALID_DEVICE;
    return location.type <= CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult advise(CUdeviceptr address, size_t size, int advice) {
    enum { MOST_ADVICE = 6 };
    LOCKED;
    return advice < 1 || advice > MOST_ADVICE ? CUDA_ERROR_INVALID_VALUE : check(address, size);
}

API cuMemAdvise(CUdeviceptr address, size_t size, int advice, CUdevice device) {
    enum { CPU = -1 };
    return device && device != CPU ? CUDA_ERROR_INVALID_DEVICE : advise(address, size, advice);
}

API cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, CUmemLocation location) {
    enum { SET_PREFERRED = 3, SET_ACCESSED = 5, UNSET_ACCESSED = 6 }; // the others need no place
    bool needs = advice == SET_PREFERRED || advice == SET_ACCESSED || advice == UNSET_ACCESSED;
    return needs && check_place(location) ? CUDA_ERROR_INVALID_VALUE : advise(address, size, advice);
}

static CUresult prefetch(CUdeviceptr address, size_t size, void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (stream && stream->capture)
        return sim_refuse_capture(stream);
    CUresult status = stream ? check(address, size) : CUDA_ERROR_INVALID_HANDLE;
    return status ? status : sim_issue(stream, &(struct operation){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

API cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, void *stream) {
    enum { CPU = -1 };
    return device && device != CPU ? CUDA_ERROR_INVALID_DEVICE : prefetch(address, size, stream);
}

API cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags,
                          void *stream) {
    CUresult status = flags ? CUDA_ERROR_INVALID_VALUE : check_place(location);
    return status ? status : prefetch(address, size, stream);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr memory);
API cuStreamAttachMemAsync(void *stream, CUdeviceptr address, size_t size, unsigned flags) {
    enum { GLOBAL = 1, HOST = 2, SINGLE = 4 };
    if ((flags != GLOBAL && flags != HOST && flags != SINGLE) || (flags == SINGLE && !stream))
        return CUDA_ERROR_INVALID_VALUE;
    size_t all = 0;
    CUresult status = cuMemGetAddressRange_v2(NULL, &all, address);
    if (status || (size && size != all)) // all of it, or none
        return CUDA_ERROR_INVALID_VALUE;
    return prefetch(address, all, stream);
}
