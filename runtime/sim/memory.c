// Device memory and pinned memory. Device memory is host memory (range.c).

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

static CUresult allocate(uint64_t *memory, size_t size, const void *owner, enum memory type) {
    if (!memory || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > SIZE_MAX - 4096)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct reference is = sim_refer((void *)owner);
    while (type == DEVICE && !sim_take_memory(size))
        if (!sim_wait_for_free())
            return CUDA_ERROR_OUT_OF_MEMORY;
        else if (!is_there(is))
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    void *made = aligned_alloc(512, (size + 511) & ~(size_t)511);
    if (!made || !sim_add_range((uint64_t)made, size, owner, type)) {
        free(made);
        if (type == DEVICE)
            sim_give_memory(size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (uint64_t)made;
    return CUDA_SUCCESS;
}

CUresult sim_allocate(CUdeviceptr *memory, size_t size, void *owner) {
    return allocate(memory, size, owner, DEVICE);
}

CUresult sim_allocate_from(CUdeviceptr *memory, size_t size, void *owner, void *pool) {
    CUresult status = allocate(memory, size, owner, DEVICE);
    if (!status)
        sim_range_from(*memory)->pool = sim_refer(pool);
    return status;
}

CUresult sim_free(CUdeviceptr memory) {
    return sim_free_graph_memory(memory) || sim_drop_range(memory, DEVICE) || sim_drop_range(memory, MANAGED)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAlloc_v2(CUdeviceptr *memory, size_t size) {
    IN_CONTEXT_UNCAPTURED;
    return allocate(memory, size, context, DEVICE);
}

API cuMemAllocManaged(CUdeviceptr *memory, size_t size, unsigned flags) {
    IN_CONTEXT_UNCAPTURED;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(memory, size, context, MANAGED);
}

API cuMemAllocPitch_v2(CUdeviceptr *memory, size_t *pitch, size_t width, size_t height, unsigned item) {
    IN_CONTEXT_UNCAPTURED;
    size_t size;
    if (!pitch || (item != 4 && item != 8 && item != 16) || width > SIZE_MAX - 511)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) & ~(size_t)511;
    if (__builtin_mul_overflow(*pitch, height, &size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate(memory, size, context, DEVICE);
}

// Begin to free memory, or return an error.
static CUresult begin_free(CUdeviceptr memory) {
    CUresult status;
    if (sim_begin_free(memory, &status))
        return status;
    const struct range *range = sim_range_from(memory);
    if (!range || range->type > MANAGED || range->until || is_kind(range->owner, MODULE) ||
        is_kind(range->owner, LIBRARY)) // a module's variable goes with the module
        return CUDA_ERROR_INVALID_VALUE;
    sim_set_until(memory, sim_next_work(), false);
    return CUDA_SUCCESS;
}

static bool lacks_context(void) {
    LOCKED;
    struct context *context;
    return sim_enter(&context) == CUDA_ERROR_INVALID_CONTEXT;
}

API cuMemFree_v2(CUdeviceptr memory) {
    if (!memory && lacks_context())
        return CUDA_SUCCESS;
    IN_CONTEXT_UNCAPTURED;
    CUresult status = memory ? begin_free(memory) : CUDA_SUCCESS;
    if (!status)
        sim_drain(context, false); // pending work may use it
    return status || !memory ? status : sim_free(memory);
}

API cuMemFreeAsync(CUdeviceptr memory, void *handle) {
    IN_CONTEXT;
    struct stream *stream = sim_stream(context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->capture && (entered_ = sim_unsafe()))
        return entered_;
    if (!memory)
        return CUDA_SUCCESS;
    struct operation operation = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = memory};
    CUresult status = !stream->capture           ? sim_implicit(stream)
                      : stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                 : sim_check_free_node(stream->capture->graph, memory);
    if (!status && !stream->capture)
        status = begin_free(memory);
    return status ? status : sim_issue(stream, &operation);
}

enum { DEVICE_MAPPED = 2 }; // a flag of pinned memory: all of it is mapped

// The flags that programs may pass.
enum {
    MEMHOSTALLOC_ALL = 7, // portable, mapped to the device, write-combined
    READ_ONLY = 8,
    MEMHOSTREGISTER_ALL = 11, // the same and read-only, but not I/O memory, since no other device has any
};

API cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    IN_CONTEXT_UNCAPTURED;
    if (memory && !size && !(flags & ~MEMHOSTALLOC_ALL)) {
        *memory = NULL;
        return CUDA_SUCCESS;
    }
    CUresult status = flags & ~MEMHOSTALLOC_ALL ? CUDA_ERROR_INVALID_VALUE
                                                : allocate((uint64_t *)memory, size, context, PINNED);
    if (!status)
        sim_range_from((uint64_t)*memory)->flags = flags | DEVICE_MAPPED;
    return status;
}

API cuMemAllocHost_v2(void **memory, size_t size) { return cuMemHostAlloc(memory, size, 0); }

API cuMemFreeHost(void *memory) {
    IN_CONTEXT_UNCAPTURED;
    sim_drain(context, false);
    return !memory || sim_drop_range((uint64_t)memory, PINNED) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Return whether all these pages are mapped.
static bool is_mapped(uint64_t start, uint64_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = start & -page;
    unsigned char is_in[1024];
    for (uint64_t at = first; at < start + size; at += sizeof(is_in) * page) {
        uint64_t left = start + size - at, most = sizeof(is_in) * page;
        if (mincore((void *)at, left < most ? left : most, is_in))
            return false;
    }
    return true;
}

// Return whether the program may not write some of these bytes. If /proc isn't mounted, assume that it may.
static bool is_read_only(uint64_t start, uint64_t size) {
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long long first, end;
    char line[512], may_write;
    bool found = false, at_start = true;
    while (maps && !found && fgets(line, sizeof(line), maps)) {
        if (at_start && sscanf(line, "%llx-%llx %*c%c", &first, &end, &may_write) == 3)
            found = first < start + size && start < end && may_write != 'w';
        at_start = strchr(line, '\n');
    }
    if (maps)
        fclose(maps);
    return found;
}

API cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
    IN_CONTEXT_UNCAPTURED;
    uint64_t start = (uint64_t)memory;
    if (!memory || !size || size > SIZE_MAX - start || flags & ~MEMHOSTREGISTER_ALL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_mapped(start, size) || (!(flags & READ_ONLY) && is_read_only(start, size)))
        return CUDA_ERROR_INVALID_VALUE;
    const struct range *there = sim_range(start, 1);
    if (there && there->type != REGISTERED)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_overlaps(start, size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!sim_add_range(start, size, context, REGISTERED))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_range_from(start)->flags = flags | DEVICE_MAPPED;
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *memory) {
    IN_CONTEXT_UNCAPTURED;
    sim_drain(context, false);
    return sim_drop_range((uint64_t)memory, REGISTERED) ? CUDA_SUCCESS
           : sim_is_pinned((uint64_t)memory, 1)         ? CUDA_ERROR_INVALID_VALUE
                                                        : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *memory, unsigned flags) {
    IN_CONTEXT;
    if (!device || flags || !sim_is_pinned((uint64_t)memory, 1))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

API cuMemGetInfo_v2(size_t *unused, size_t *total) {
    IN_CONTEXT;
    if (unused)
        *unused = sim_total_memory() - sim_taken_memory();
    if (total)
        *total = sim_total_memory();
    return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr memory) {
    LOCKED;
    if (sim_fault_status)
        return sim_fault_status;
    const struct range *range = sim_range(memory, 1);
    if (!range)
        return CUDA_ERROR_NOT_FOUND;
    if (start)
        *start = range->start;
    if (size)
        *size = range->size;
    return CUDA_SUCCESS;
}
