// It comes from a pool of the driver that is ours alone: the program's pools are as they would be.

#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "probe.h"

enum { ZEROS = 1 << 20, MOST_COPIED = 16 << 20 }; // bytes

static uint64_t most_bytes(void) {
    size_t free_bytes = 0, total = 0;
    if (hook_settings.memory)
        return hook_settings.memory;
    return hook_do.free_memory(&free_bytes, &total) ? 0 : free_bytes / 10;
}

bool hook_begin_memory(struct pool *pool) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    uint64_t all = UINT64_MAX;
    pool->most = most_bytes();
    return !hook_do.get_device(&props.location.id) && !hook_do.create_pool(&pool->memory, &props) &&
           !hook_do.set_pool(pool->memory, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
}

// The driver takes its time to map memory, within a launch of the program. So it maps as much again as is in
// use, and keeps it.
static void reserve(struct pool *pool, uint64_t size) {
    uint64_t wanted = 2 * pool->bytes + size < pool->most ? 2 * pool->bytes + size : pool->most, address;
    if (pool->bytes + size <= pool->reserved)
        return;
    pool->reserved = pool->bytes + size;
    if (wanted > pool->reserved &&
        !hook_do.alloc(&address, wanted - pool->bytes, pool->memory, pool->stream)) {
        hook_do.free(address, pool->stream);
        pool->reserved = wanted;
    }
}

static void free_slab(struct slab *slab) {
    struct pool *pool = slab->pool;
    pool->bytes -= slab->size;
    if (slab->address)
        hook_do.free(slab->address, pool->stream);
    if (slab->event)
        hook_do.destroy_event(slab->event);
    if (slab->done)
        hook_do.destroy_event(slab->done);
    free(slab);
}

static void free_ready_slab(struct slab *slab) {
    TAILQ_REMOVE(&slab->pool->ready, slab, link);
    free_slab(slab);
}

char *hook_make_zeros(void) {
    void *zeros;
    if (hook_do.alloc_host(&zeros, ZEROS))
        return NULL;
    return memset(zeros, 0, ZEROS);
}

// By copies from the host, which no kernel makes: after some six kernels in a second stream, and a memset is
// one, those of all graphs of the process begin later for good (docs/measured.md). What is large is set:
// where that much is written a kernel's begin is not what counts.
CUresult hook_zero_slab(const struct slab *slab, uint64_t bytes) {
    const char *zeros = __atomic_load_n(slab->zeros, __ATOMIC_ACQUIRE);
    CUresult status = CUDA_SUCCESS;
    if (!zeros || bytes > MOST_COPIED)
        return hook_do.clear(slab->address, 0, bytes, slab->ours);
    for (uint64_t at = 0; at < bytes && !status; at += ZEROS)
        status =
            hook_do.copy_to(slab->address + at, zeros, bytes - at < ZEROS ? bytes - at : ZEROS, slab->ours);
    return status;
}

struct slab *hook_new_slab(struct pool *pool, uint64_t size, bool copied) {
    struct slab *slab = calloc(1, sizeof(*slab));
    if (!slab)
        return NULL;
    slab->size = size;
    slab->pool = pool;
    slab->copied = copied;
    slab->context = pool->context, slab->ours = pool->stream, slab->stage = &pool->stage,
    slab->zeros = &pool->zeros;
    reserve(pool, size);
    pool->bytes += size;
    if (hook_do.create_event(&slab->event, CU_EVENT_DISABLE_TIMING) ||
        hook_do.create_event(&slab->done, CU_EVENT_DISABLE_TIMING) ||
        hook_do.alloc(&slab->address, size, pool->memory, pool->stream) ||
        (!copied && hook_zero_slab(slab, size)) || hook_do.record(slab->done, pool->stream)) {
        free_slab(slab);
        return NULL;
    }
    TAILQ_INSERT_TAIL(&pool->ready, slab, link);
    return slab;
}

struct slab *hook_ready_slab(const struct pool *pool, uint64_t bytes, uint64_t enough, bool copied) {
    struct slab *best = NULL, *slab;
    TAILQ_FOREACH (slab, &pool->ready, link) {
        if (slab->copied != copied || slab->size < bytes)
            continue;
        if (slab->size <= enough)
            return slab;
        if (!best || slab->size < best->size)
            best = slab;
    }
    return best;
}

bool hook_has_room(struct pool *pool, uint64_t size) {
    while (pool->bytes + size > pool->most && !TAILQ_EMPTY(&pool->ready))
        free_ready_slab(TAILQ_FIRST(&pool->ready));
    return pool->bytes + size <= pool->most;
}

bool hook_free_memory(struct pool *pool) {
    bool any = pool->reserved > pool->bytes || !TAILQ_EMPTY(&pool->ready);
    while (!TAILQ_EMPTY(&pool->ready))
        free_ready_slab(TAILQ_FIRST(&pool->ready));
    if (any) {
        hook_do.wait_stream(pool->stream); // no kernel is in it: then the driver's pool has the memory again
        hook_do.trim_pool(pool->memory, 0);
        pool->reserved = pool->bytes;
    }
    return any;
}
