// Device memory is host memory. Where an address must be the device's, it is looked for among the
// allocations.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct range {
    uint64_t start, size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges; // by start
static size_t count, room;

static size_t find(uint64_t address) { // the first range that begins above
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool sim_is_device(uint64_t start, uint64_t size) {
    pthread_mutex_lock(&lock);
    size_t at = find(start);
    bool inside = at && start - ranges[at - 1].start <= ranges[at - 1].size &&
                  size <= ranges[at - 1].size - (start - ranges[at - 1].start);
    pthread_mutex_unlock(&lock);
    return inside;
}

static CUresult allocate(CUdeviceptr *memory, size_t size) {
    if (!sim_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!memory || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > SIZE_MAX - 512)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *made = aligned_alloc(512, (size + 511) & ~(size_t)511);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    if (count == room) {
        size_t more = room ? 2 * room : 64;
        struct range *larger = realloc(ranges, more * sizeof(*ranges));
        if (!larger) {
            pthread_mutex_unlock(&lock);
            free(made);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        ranges = larger, room = more;
    }
    size_t at = find((uint64_t)made);
    memmove(ranges + at + 1, ranges + at, (count++ - at) * sizeof(*ranges));
    ranges[at] = (struct range){(uint64_t)made, size};
    pthread_mutex_unlock(&lock);
    *memory = (CUdeviceptr)made;
    return CUDA_SUCCESS;
}

API cuMemAlloc_v2(CUdeviceptr *memory, size_t size) { return allocate(memory, size); }

API cuMemAllocAsync(CUdeviceptr *memory, size_t size, void *stream) {
    (void)stream;
    return allocate(memory, size);
}

API cuMemAllocManaged(CUdeviceptr *memory, size_t size, unsigned flags) {
    (void)flags;
    return allocate(memory, size);
}

API cuMemAllocPitch_v2(CUdeviceptr *memory, size_t *pitch, size_t width, size_t height, unsigned item) {
    (void)item;
    *pitch = (width + 511) & ~(size_t)511;
    size_t size;
    if (__builtin_mul_overflow(*pitch, height, &size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate(memory, size);
}

API cuMemFree_v2(CUdeviceptr memory) {
    if (!memory)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    size_t at = find(memory);
    bool known = at && ranges[at - 1].start == memory;
    if (known)
        memmove(ranges + at - 1, ranges + at, (count-- - at) * sizeof(*ranges));
    pthread_mutex_unlock(&lock);
    if (!known)
        return CUDA_ERROR_INVALID_VALUE;
    free((void *)memory);
    return CUDA_SUCCESS;
}

API cuMemFreeAsync(CUdeviceptr memory, void *stream) {
    (void)stream;
    return cuMemFree_v2(memory);
}

API cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    (void)flags;
    *memory = malloc(size);
    return *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemAllocHost_v2(void **memory, size_t size) { return cuMemHostAlloc(memory, size, 0); }

API cuMemFreeHost(void *memory) {
    free(memory);
    return CUDA_SUCCESS;
}

API cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
    (void)memory, (void)size, (void)flags;
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *memory) {
    (void)memory;
    return CUDA_SUCCESS;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *memory, unsigned flags) {
    (void)flags;
    *device = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

API cuMemGetInfo_v2(size_t *unused, size_t *total) {
    CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
    cuDeviceTotalMem_v2(total, 0);
    *unused = *total / 2;
    return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr memory) {
    pthread_mutex_lock(&lock);
    size_t at = find(memory);
    bool known = at && memory - ranges[at - 1].start < ranges[at - 1].size;
    if (known && start)
        *start = ranges[at - 1].start;
    if (known && size)
        *size = ranges[at - 1].size;
    pthread_mutex_unlock(&lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult copy(uint64_t to, bool to_device, uint64_t from, bool from_device, size_t size) {
    if (!sim_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!size)
        return CUDA_SUCCESS;
    if ((to_device && !sim_is_device(to, size)) || (from_device && !sim_is_device(from, size)) || !to ||
        !from)
        return CUDA_ERROR_INVALID_VALUE;
    memmove((void *)to, (const void *)from, size);
    return CUDA_SUCCESS;
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    return copy(to, true, (uint64_t)from, false, size);
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    return copy((uint64_t)to, false, from, true, size);
}

API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
    return copy(to, true, from, true, size);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream) {
    (void)stream;
    return copy(to, true, (uint64_t)from, false, size);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream) {
    (void)stream;
    return copy((uint64_t)to, false, from, true, size);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    (void)stream;
    return copy(to, true, from, true, size);
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, false, from, false, size); }

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    (void)stream;
    return copy(to, false, from, false, size);
}

static char *row(uint32_t type, const void *host, CUdeviceptr device, size_t pitch, size_t x, size_t y) {
    return (char *)(type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)host : device) + pitch * y + x;
}

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) {
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < c->Height && !status; i++)
        status = copy((uint64_t)row(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c->dstXInBytes,
                                    c->dstY + i),
                      c->dstMemoryType == 2,
                      (uint64_t)row(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c->srcXInBytes,
                                    c->srcY + i),
                      c->srcMemoryType == 2, c->WidthInBytes);
    return status;
}

API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return cuMemcpy2D_v2(c); }

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, void *stream) {
    (void)stream;
    return cuMemcpy2D_v2(c);
}

static CUresult set(CUdeviceptr to, uint32_t value, size_t item, size_t items) {
    size_t size;
    if (__builtin_mul_overflow(item, items, &size) || to % item || !sim_is_device(to, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (item == 1)
        memset((void *)to, (int)value, size);
    else
        for (size_t i = 0; i < items; i++)
            memcpy((char *)to + item * i, &value, item);
    return CUDA_SUCCESS;
}

API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t items) { return set(to, value, 1, items); }

API cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t items) { return set(to, value, 2, items); }

API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t items) { return set(to, value, 4, items); }

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t items, void *stream) {
    (void)stream;
    return set(to, value, 1, items);
}

API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t items, void *stream) {
    (void)stream;
    return set(to, value, 2, items);
}

API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t items, void *stream) {
    (void)stream;
    return set(to, value, 4, items);
}
