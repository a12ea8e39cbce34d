// Device memory is host memory. Where an address must be the device's, it is looked for among the
// allocations.
//
// Work may use memory if it was issued before the free was, whichever runs first: so a program gets the same
// answer each time. Calls look at what is there when they are made, kernels when they run, by the number of
// their work. Therefore what was freed is kept as long as older work is pending; and for a while longer, so
// that what accesses it later is found, and harms nobody.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

static struct range *ranges; // by start
static size_t count, room;
static uint64_t serial;
static pthread_rwlock_t change = PTHREAD_RWLOCK_INITIALIZER; // of them: kernels read without sim_lock

// What was freed, the oldest first.
enum { FREED = 256, FREED_BYTES = 64 << 20 };
static struct range *freed;
static size_t freed_count, freed_room, freed_bytes;

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

static bool may_use(const struct range *range, uint64_t number) {
    return !range->until || number < range->until || (number == range->until && range->frees_itself);
}

// Mappings beside each other are one.
static const struct range *range_for(uint64_t start, uint64_t size, uint64_t number) {
    size_t at = find(start);
    const struct range *range = at ? &ranges[at - 1] : NULL;
    if (!range || start - range->start > range->size || !may_use(range, number))
        return NULL;
    uint64_t room_ = range->size - (start - range->start);
    for (; room_ < size && at < count && range->type == MAPPED && ranges[at].type == MAPPED &&
           ranges[at].start == ranges[at - 1].start + ranges[at - 1].size;
         at++)
        room_ += ranges[at].size;
    return size <= room_ ? range : NULL;
}

const struct range *sim_range(uint64_t start, uint64_t size) { return range_for(start, size, UINT64_MAX); }

bool sim_is_pinned(uint64_t start, uint64_t size) {
    const struct range *range = sim_range(start, size);
    return range && (range->type == PINNED || range->type == REGISTERED);
}

static bool add(uint64_t start, size_t size, const void *owner, enum memory type) {
    pthread_rwlock_wrlock(&change);
    if (count == room) {
        size_t more = room ? 2 * room : 64;
        struct range *larger = realloc(ranges, more * sizeof(*ranges));
        if (!larger) {
            pthread_rwlock_unlock(&change);
            return false;
        }
        ranges = larger, room = more;
    }
    size_t at = find(start);
    memmove(ranges + at + 1, ranges + at, (count++ - at) * sizeof(*ranges));
    ranges[at] =
        (struct range){.start = start, .size = size, .serial = ++serial, .owner = owner, .type = type};
    pthread_rwlock_unlock(&change);
    return true;
}

// Gives back the memory of what was freed first, as long as there is too much.
void sim_trim_memory(void) {
    size_t first = 0;
    if (freed_count <= 2 * FREED && freed_bytes <= FREED_BYTES)
        return;
    uint64_t oldest = sim_oldest_work();
    pthread_rwlock_wrlock(&change);
    for (; (freed_count - first > FREED || freed_bytes > FREED_BYTES) && freed[first].until <= oldest;
         first++) {
        freed_bytes -= freed[first].size;
        free((void *)freed[first].start);
    }
    memmove(freed, freed + first, (freed_count -= first) * sizeof(*freed));
    pthread_rwlock_unlock(&change);
}

// With `change` held for writing.
static void retire(struct range range) {
    struct range *larger = sim_grow(freed, freed_count, &freed_room, sizeof(*freed));
    if (!larger)
        return; // its memory stays
    freed = larger;
    range.until = range.until ? range.until : sim_next_work();
    freed[freed_count++] = range;
    freed_bytes += range.size;
}

bool sim_find_memory(uint64_t address, uint64_t size, uint64_t number, uint64_t *start, uint64_t *room_) {
    pthread_rwlock_rdlock(&change);
    const struct range *range = range_for(address, size, number);
    if (range)
        *start = range->start, *room_ = range->size;
    pthread_rwlock_unlock(&change);
    return range;
}

static const struct range *find_freed(uint64_t address) { // the newest
    size_t at = freed_count;
    while (at && address - freed[at - 1].start >= freed[at - 1].size)
        at--;
    return at ? &freed[at - 1] : NULL;
}

bool sim_find_freed(uint64_t address, uint64_t size, uint64_t number) {
    pthread_rwlock_rdlock(&change);
    const struct range *range = find_freed(address);
    bool found = range && number < range->until && size <= range->size - (address - range->start);
    pthread_rwlock_unlock(&change);
    return found;
}

bool sim_is_gone(uint64_t address) {
    size_t at = find(address);
    const struct range *range = at ? &ranges[at - 1] : NULL;
    return range && address - range->start < range->size ? range->until : find_freed(address) != NULL;
}

static void describe_freed(const struct range *range, uint64_t address, char text[256]) {
    snprintf(text, 256, ", %zu bytes into an allocation of %zu bytes that was freed",
             (size_t)(address - range->start), (size_t)range->size);
}

// What is there, or near: ", ..." for a message.
void sim_describe(uint64_t address, char text[256]) {
    enum { NEAR = 1 << 20 };
    LOCKED;
    *text = '\0';
    size_t at = find(address);
    const struct range *below = at ? &ranges[at - 1] : NULL, *above = at < count ? &ranges[at] : NULL;
    bool is_kept = below && below->until && address - below->start < below->size;
    const struct range *gone = is_kept ? below : find_freed(address);
    size_t after = below ? address - below->start - below->size : NEAR;
    size_t before = above ? above->start - address : NEAR;
    if (gone)
        describe_freed(gone, address, text);
    else if (below && address - below->start < below->size)
        snprintf(text, 256, ", at the end of an allocation of %zu bytes", (size_t)below->size);
    else if (after < NEAR && after <= before)
        snprintf(text, 256, ", %zu bytes after an allocation of %zu bytes", after, (size_t)below->size);
    else if (before < NEAR)
        snprintf(text, 256, ", %zu bytes before an allocation of %zu bytes", before, (size_t)above->size);
}

// Returns false if no such range begins there.
static bool drop(uint64_t start, enum memory type) {
    size_t at = find(start);
    if (!at || ranges[at - 1].start != start || ranges[at - 1].type != type)
        return false;
    struct range range = ranges[at - 1];
    pthread_rwlock_wrlock(&change);
    memmove(ranges + at - 1, ranges + at, (count-- - at) * sizeof(*ranges));
    if (type < REGISTERED || type == OF_GRAPH)
        retire(range);
    pthread_rwlock_unlock(&change);
    sim_trim_memory();
    if (type == DEVICE)
        sim_give_memory(range.size);
    return true;
}

// How much of the device's memory is taken. Managed memory may be more than the device has, and pinned memory
// is the host's.

static uint64_t taken;

size_t sim_total_memory(void) {
    static size_t there;
    if (!sim_memory && !there)
        there = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return sim_memory ? sim_memory : there;
}

bool sim_take_memory(uint64_t size) {
    uint64_t total = sim_total_memory();
    bool fits = taken <= total && size <= total - taken;
    taken += fits ? size : 0;
    return fits;
}

void sim_give_memory(uint64_t size) { taken -= size; }

// Waits until memory is free that was freed in the order of a stream. Returns false if there is none.
static bool wait_for_free(void) {
    for (size_t i = 0; i < count; i++)
        if (ranges[i].type == DEVICE && ranges[i].until && sim_wait_for_number(ranges[i].until))
            return true;
    return false;
}

static CUresult allocate(uint64_t *memory, size_t size, const void *owner, enum memory type) {
    if (!memory || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > SIZE_MAX - 4096)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct reference is = sim_refer((void *)owner);
    while (type == DEVICE && !sim_take_memory(size))
        if (!wait_for_free())
            return CUDA_ERROR_OUT_OF_MEMORY;
        else if (!is_there(is))
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    void *made = aligned_alloc(512, (size + 511) & ~(size_t)511);
    if (!made || !add((uint64_t)made, size, owner, type)) {
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
        ranges[find(*memory) - 1].pool = sim_refer(pool);
    return status;
}

uint64_t sim_used(const void *pool) {
    uint64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        bool is = is_there(ranges[i].pool) && ranges[i].pool.object == pool && !ranges[i].until;
        used += is ? ranges[i].size : 0;
    }
    return used;
}

bool sim_map_range(uint64_t start, uint64_t size) { return add(start, size, NULL, MAPPED); }

void sim_unmap_range(uint64_t start) { drop(start, MAPPED); }

void sim_set_until(uint64_t start, uint64_t until, bool frees_itself) {
    struct range *range = &ranges[find(start) - 1];
    pthread_rwlock_wrlock(&change);
    range->until = until;
    range->frees_itself = frees_itself;
    pthread_rwlock_unlock(&change);
}

bool sim_add_graph_memory(uint64_t start, uint64_t size) {
    if (!add(start, size, NULL, OF_GRAPH))
        return false;
    sim_set_until(start, 1, false);
    return true;
}

void sim_begin_graph_memory(uint64_t start, const struct context *context) {
    ranges[find(start) - 1].owner = context;
    sim_set_until(start, 0, false);
}

void sim_remove_graph_memory(uint64_t start) { drop(start, OF_GRAPH); }

void sim_free_all(const void *owner) {
    for (size_t i = count; i--;)
        if (ranges[i].owner == owner && ranges[i].type != OF_GRAPH)
            drop(ranges[i].start, ranges[i].type);
}

CUresult sim_free(CUdeviceptr memory) {
    return sim_free_graph_memory(memory) || drop(memory, DEVICE) || drop(memory, MANAGED)
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

// Whether the program may free memory, which it has then done.
static CUresult begin_free(CUdeviceptr memory) {
    CUresult status;
    if (sim_begin_free(memory, &status))
        return status;
    size_t at = find(memory);
    const struct range *range = at ? &ranges[at - 1] : NULL;
    if (!range || range->start != memory || range->type > MANAGED || range->until)
        return CUDA_ERROR_INVALID_VALUE;
    sim_set_until(memory, sim_next_work(), false);
    return CUDA_SUCCESS;
}

API cuMemFree_v2(CUdeviceptr memory) {
    IN_CONTEXT_UNCAPTURED;
    CUresult status = memory ? begin_free(memory) : CUDA_SUCCESS;
    if (!status)
        sim_drain(context, false); // what may use it
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

enum { DEVICE_MAPPED = 2 }; // of the flags of pinned memory: all of it is

// All flags that there are.
enum {
    MEMHOSTALLOC_ALL = 7,     // portable, of the device's addresses, write-combined
    MEMHOSTREGISTER_ALL = 15, // and for I/O, read-only
};

API cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    IN_CONTEXT_UNCAPTURED;
    CUresult status = flags & ~MEMHOSTALLOC_ALL ? CUDA_ERROR_INVALID_VALUE
                                                : allocate((uint64_t *)memory, size, context, PINNED);
    if (!status)
        ranges[find((uint64_t)*memory) - 1].flags = flags | DEVICE_MAPPED;
    return status;
}

API cuMemAllocHost_v2(void **memory, size_t size) { return cuMemHostAlloc(memory, size, 0); }

API cuMemFreeHost(void *memory) {
    IN_CONTEXT_UNCAPTURED;
    sim_drain(context, false);
    return !memory || drop((uint64_t)memory, PINNED) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
    IN_CONTEXT_UNCAPTURED;
    uint64_t start = (uint64_t)memory;
    if (!memory || !size || size > SIZE_MAX - start || flags & ~MEMHOSTREGISTER_ALL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t at = find(start);
    if ((at && start - ranges[at - 1].start < ranges[at - 1].size) ||
        (at < count && ranges[at].start - start < size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!add(start, size, context, REGISTERED))
        return CUDA_ERROR_OUT_OF_MEMORY;
    ranges[at].flags = flags | DEVICE_MAPPED;
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *memory) {
    IN_CONTEXT_UNCAPTURED;
    sim_drain(context, false);
    return drop((uint64_t)memory, REGISTERED) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *memory, unsigned flags) {
    IN_CONTEXT;
    (void)flags;
    if (!device || !sim_is_pinned((uint64_t)memory, 1))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

API cuMemGetInfo_v2(size_t *unused, size_t *total) {
    IN_CONTEXT;
    if (unused)
        *unused = sim_total_memory() - taken;
    if (total)
        *total = sim_total_memory();
    return CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr memory) {
    LOCKED;
    const struct range *range = sim_range(memory, 1);
    if (!range)
        return CUDA_ERROR_NOT_FOUND;
    if (start)
        *start = range->start;
    if (size)
        *size = range->size;
    return CUDA_SUCCESS;
}
