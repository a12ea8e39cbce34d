// A slab belongs to a stream while launches of that stream take places in it. When the slab is full, or the
// program waits for the GPU, we record an event in the stream. Once the event has completed, a thread
// (drain.c) copies the slab's contents to the trace, clears the slab and gives it back. So nothing waits, and
// nothing of ours comes between two launches that overlap: the event is put off until the next launch that
// doesn't depend on its predecessor. Buffers of graphs are copied to slabs of their own, which aren't
// cleared. Such a slab counts as full when it is half full: the next replay most likely needs as much.

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

enum {
    SLAB = 4 << 20,
    HELD = 64 << 10,
    PATIENCE = 60,
    HASTE = 1,
}; // bytes of an ordinary slab, if four fit, of one of a graph; seconds of a wait, and if the driver may
   // never answer

static pthread_cond_t returned = PTHREAD_COND_INITIALIZER;
static bool ends;           // the process is ending: no more claims
static bool wait_timed_out; // a kernel depends on the host: never wait again
static bool uncounted;      // waiting for the count of a launch timed out
static unsigned joining;    // calls of the program in progress that may start capturing streams

static struct timespec in_seconds(int seconds) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += seconds;
    return end;
}

// Takes a ready slab out of its list.
static void take(struct slab *slab, int state) {
    TAILQ_REMOVE(&slab->pool->ready, slab, link);
    slab->state = state;
}

// Queue a slab to be written once its event has completed.
static void send_back(struct slab *slab) {
    if (slab->state != SLAB_HELD)
        TAILQ_REMOVE(&slab->pool->in_use, slab, link);
    slab->state = SLAB_DRAINING;
    slab->number = ++slab->pool->sent;
    TAILQ_INSERT_TAIL(&slab->pool->draining, slab, link);
    hook_write_later(slab);
}

static bool is_of(const struct slab *slab, uint64_t stream, uint32_t thread) {
    return slab->stream == stream && (stream != CU_STREAM_PER_THREAD_HANDLE || slab->thread == thread);
}

// Sends a slab back whose launches are all in its stream. It stays as it is if that is not possible now. The
// default stream of another thread cannot be named: at the end, the legacy stream waits for it. When the
// process ends, what another thread is launching is left out.
static void drain(struct slab *slab, uint32_t thread, enum moment moment) {
    int capturing = 0;
    uint64_t stream = slab->stream;
    if (stream == CU_STREAM_PER_THREAD_HANDLE && slab->thread != thread) {
        if (moment == ON_THE_WAY)
            return;
        stream = CU_STREAM_LEGACY_HANDLE;
    }
    if ((slab->issuing && moment != PROCESS_ENDS) || !slab->used ||
        hook_do.is_capturing(stream, &capturing) || capturing || hook_do.record(slab->event, stream))
        return;
    send_back(slab);
}

void hook_slab_back(struct slab *slab) {
    pthread_mutex_lock(&hook_pools_lock);
    slab->used = 0;
    slab->state = slab->failed ? SLAB_DEAD : SLAB_READY;
    slab->known_ready = slab->copied; // the copy from it has completed
    TAILQ_REMOVE(&slab->pool->draining, slab, link);
    if (!slab->failed)
        TAILQ_INSERT_TAIL(&slab->pool->ready, slab, link);
    pthread_cond_broadcast(&returned);
    pthread_mutex_unlock(&hook_pools_lock);
}

static uint64_t size_for(const struct pool *pool, uint64_t bytes) {
    uint64_t size = bytes > SLAB ? (bytes + SLAB - 1) / SLAB * SLAB : SLAB;
    if (pool->most / 4 < SLAB) // several fit
        size = hook_rounded(bytes > pool->most / 4 ? bytes : pool->most / 4);
    return size > pool->most && bytes <= pool->most ? bytes : size;
}

static struct slab *open_slab(struct pool *pool, const struct claim *claim, const struct reason **reason) {
    uint64_t size = size_for(pool, claim->bytes);
    struct slab *slab = hook_ready_slab(pool, claim->bytes, size, claim->copied);
    if (!slab && size > pool->most) {
        *reason = WHY(buffers_over_limit);
        return NULL;
    }
    if (!slab && !hook_has_room(pool, size)) {
        *reason = WHY(no_buffer);
        return NULL;
    }
    if (!slab && !(slab = hook_new_slab(pool, size, claim->copied))) {
        *reason = WHY(device_memory);
        return NULL;
    }
    if (!slab->known_ready && !hook_do.query(slab->cleared))
        slab->known_ready = true;
    if (!slab->known_ready && claim->dependent) {
        *reason = WHY(dependent_buffer);
        return NULL;
    }
    if (!slab->known_ready && hook_do.wait_event(claim->stream, slab->cleared, 0)) {
        *reason = WHY(stream_events);
        return NULL;
    }
    take(slab, SLAB_OPEN);
    TAILQ_INSERT_HEAD(&pool->in_use, slab, link);
    slab->stream = claim->stream;
    slab->thread = claim->thread;
    slab->used = 0;
    return slab;
}

static struct slab *claim_once(struct pool *pool, const struct claim *claim, const struct reason **reason) {
    EACH_SLAB (slab, &pool->in_use) {
        if (!is_of(slab, claim->stream, claim->thread) || slab->copied != claim->copied)
            continue;
        if (slab->state == SLAB_OPEN && slab->used + claim->bytes <= slab->size)
            return slab;
        if (slab->state == SLAB_OPEN)
            slab->state = SLAB_FULL;
        if (slab->state == SLAB_FULL && !claim->dependent)
            drain(slab, claim->thread, ON_THE_WAY);
    }
    return open_slab(pool, claim, reason);
}

// Sends slabs of other streams back, for later launches. True if any is on its way, or may be soon.
static bool drain_others(struct pool *pool, const struct claim *claim) {
    EACH_SLAB (slab, &pool->in_use) {
        if (!joining && (!claim->dependent || !is_of(slab, claim->stream, claim->thread)))
            drain(slab, claim->thread, ON_THE_WAY);
    }
    return joining || !TAILQ_EMPTY(&pool->draining) ||
           pool->issuing; // of which a slab is not sent back, for that moment
}

// Until a slab may have come back; not 0 if the time is over.
static int wait_for_return(const struct timespec *end) {
    hook_write_soon();
    return pthread_cond_timedwait(&returned, &hook_pools_lock, end);
}

// With --complete, until one may have come. False if there is nothing to wait for.
static bool wait_for_slab(struct pool *pool, const struct claim *claim, const struct timespec *end) {
    if (!drain_others(pool, claim) || wait_timed_out)
        return false;
    if (!hook_settings.complete) {
        hook_write_soon(); // for later launches
        return false;
    }
    wait_timed_out = wait_for_return(end) != 0;
    return true;
}

struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const struct reason **reason) {
    struct slab *slab = NULL;
    struct timespec end = in_seconds(PATIENCE);
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    struct pool *pool = ends ? NULL : hook_find_pool(claim->context);
    if (ends)
        *reason = WHY(ending);
    while (pool && !(slab = claim_once(pool, claim, reason)) && claim->bytes <= pool->most &&
           wait_for_slab(pool, claim, &end))
        continue;
    if (slab) {
        *offset = slab->used;
        slab->used += hook_rounded(claim->bytes);
        slab->issuing++;
        pool->issuing++;
    }
    hook_relaxed_mode(mode);
    pthread_mutex_unlock(&hook_pools_lock);
    return slab;
}

// What a slab has that has ended is being written, and that waits for nothing that the program does.
static bool has_ended(const struct pool *pool) {
    EACH_SLAB (slab, &pool->draining) {
        if (!hook_do.query(slab->event))
            return true;
    }
    return false;
}

uint64_t hook_wait_for_count(const struct claim *claim, const struct demand *demand) {
    struct timespec end = in_seconds(hook_settings.complete ? PATIENCE : HASTE);
    pthread_mutex_lock(&hook_pools_lock);
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    struct pool *pool = ends ? NULL : hook_find_pool(claim->context);
    while (pool && !uncounted && !wait_timed_out && !hook_is_counted(demand) &&
           (hook_settings.complete ? drain_others(pool, claim) : has_ended(pool)))
        uncounted = wait_for_return(&end) != 0;
    hook_relaxed_mode(mode);
    pthread_mutex_unlock(&hook_pools_lock);
    return !pool ? 0 : hook_settings.complete ? pool->most : pool->most / 2; // others wait for nothing
}

void hook_wake_claims(void) {
    pthread_mutex_lock(&hook_pools_lock);
    pthread_cond_broadcast(&returned);
    pthread_mutex_unlock(&hook_pools_lock);
}

static struct slab *hold_once(struct pool *pool, uint64_t bytes, uint64_t size,
                              const struct reason **reason) {
    struct slab *slab = hook_ready_slab(pool, bytes, size, false);
    if (slab && slab->size <= 2 * size) // leave much larger slabs to launches
        return slab;
    *reason = WHY(no_buffer);
    if (!hook_has_room(pool, size))
        return NULL;
    *reason = WHY(device_memory);
    return hook_new_slab(pool, size, false);
}

// Return whether memory remains for copying the results of any graph.
static bool leaves_room(const struct pool *pool, uint64_t size, uint64_t bytes, uint64_t replaced) {
    uint64_t others = pool->held > replaced ? pool->held - replaced : 0;
    return others + size + size_for(pool, bytes > pool->largest ? bytes : pool->largest) <= pool->most;
}

static void hold(struct slab *slab, uint64_t bytes) {
    struct pool *pool = slab->pool;
    take(slab, SLAB_HELD);
    pool->held += slab->size;
    pool->largest = bytes > pool->largest ? bytes : pool->largest;
}

// Give a graph at most half of the memory, and leave room to copy the results of any graph: without that, no
// replay would be recorded.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const struct reason **reason) {
    uint64_t size = (bytes + HELD - 1) / HELD * HELD;
    const struct claim any = {.thread = (uint32_t)gettid()};
    struct slab *slab = NULL;
    struct timespec end = in_seconds(PATIENCE);
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(hook_current_context());
    if (pool && 2 * size > pool->most) {
        *reason = WHY(graph_over_limit);
        pool = NULL;
    } else if (pool && !leaves_room(pool, size, bytes, replaced)) {
        *reason = WHY(graph_buffers);
        pool = NULL;
    }
    while (pool && !(slab = hold_once(pool, bytes, size, reason)) && wait_for_slab(pool, &any, &end))
        continue;
    if (slab)
        hold(slab, bytes);
    pthread_mutex_unlock(&hook_pools_lock);
    return slab;
}

void hook_let_go(struct slab *slab) {
    pthread_mutex_lock(&hook_pools_lock);
    slab->pool->held -= slab->size;
    slab->used = slab->size;
    send_back(slab);
    pthread_mutex_unlock(&hook_pools_lock);
}

bool hook_give_slabs_back(void) {
    bool any = false;
    uint64_t context = hook_current_context();
    pthread_mutex_lock(&hook_pools_lock);
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        if (pool->context != context || !hook_is_alive(pool->reference))
            continue;
        any |= hook_free_memory(pool);
    }
    hook_relaxed_mode(mode);
    pthread_mutex_unlock(&hook_pools_lock);
    return any;
}

// While the device is busy, so that no launch waits for memory and until that is ready.
void hook_make_next(const struct slab *like) {
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = ends ? NULL : hook_find_pool(like->context);
    if (pool && !hook_ready_slab(pool, like->size, UINT64_MAX, like->copied) &&
        pool->bytes + like->size <= pool->most)
        hook_new_slab(pool, like->size, like->copied);
    pthread_mutex_unlock(&hook_pools_lock);
}

uint64_t hook_slab_address(const struct slab *slab) { return slab->address; }

void hook_issue(struct slab *slab, struct save *save) {
    pthread_mutex_lock(&hook_pools_lock);
    if (save && slab->state != SLAB_OPEN && slab->state != SLAB_FULL) { // the process ends
        pthread_mutex_unlock(&hook_pools_lock);
        hook_lose(save);
        save = NULL;
        pthread_mutex_lock(&hook_pools_lock);
    }
    slab->pool->issuing--;
    if (!--slab->issuing)
        pthread_cond_broadcast(&returned);
    if (save) {
        *(slab->saves ? &slab->last->next : &slab->saves) = save;
        slab->last = save;
        if (slab->copied && slab->used > slab->size / 2) // while the graph runs, not when it is waited for
            drain(slab, slab->thread, ON_THE_WAY);
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

// Draining

// A stream of UINT64_MAX means all. The pool's context is current meanwhile.
static bool drain_pool(struct pool *pool, uint64_t stream, uint32_t thread, enum moment moment) {
    uint64_t unused;
    if (!hook_is_alive(pool->reference) || hook_do.push_context(pool->context))
        return false;
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    EACH_SLAB (slab, &pool->in_use) {
        if (stream == UINT64_MAX || is_of(slab, stream, thread))
            drain(slab, thread, moment);
    }
    hook_relaxed_mode(mode);
    hook_do.pop_context(&unused);
    return true;
}

// No capture may begin between our check that a stream isn't captured and our event in it: the event would
// never complete, and in the legacy stream it would invalidate the capture. The stream that a call is about
// needs no protection: only that call could begin a capture of it.
void hook_hold_drains(void) {
    pthread_mutex_lock(&hook_pools_lock);
    joining++;
    pthread_mutex_unlock(&hook_pools_lock);
}

void hook_let_drain(void) {
    pthread_mutex_lock(&hook_pools_lock);
    if (!--joining)
        pthread_cond_broadcast(&returned);
    pthread_mutex_unlock(&hook_pools_lock);
}

void hook_drain(uint64_t stream, uint32_t thread) {
    if (!hook_first_pool())
        return;
    uint64_t context = hook_current_context();
    pthread_mutex_lock(&hook_pools_lock);
    bool all = stream == UINT64_MAX;
    for (struct pool *pool = hook_first_pool(); pool && !(all && joining); pool = pool->next)
        if ((pool->context == context || !all) && !TAILQ_EMPTY(&pool->in_use)) // a stream may be of any
            drain_pool(pool, stream, thread, ON_THE_WAY);
    pthread_mutex_unlock(&hook_pools_lock);
}

// Wait for everything sent back so far, letting other threads go on. Returns false on timeout.
static bool wait_for_sent(const struct pool *pool, const struct timespec *end) {
    uint64_t last = pool->sent;
    const struct slab *oldest;
    int status = 0;
    while ((oldest = TAILQ_FIRST(&pool->draining)) && oldest->number <= last && !status)
        status = wait_for_return(end);
    return !oldest || oldest->number > last;
}

void hook_drain_all(enum moment moment) {
    struct timespec end = in_seconds(PATIENCE);
    if (!hook_first_pool()) // don't start a trace in a process that doesn't use the driver
        return;
    struct thread *thread = hook_this_thread();
    pthread_mutex_lock(&hook_pools_lock);
    ends |= moment == PROCESS_ENDS;
    bool needed = moment == MEMORY_NEEDED;
    for (struct pool *pool = hook_first_pool(); pool && !(needed && wait_timed_out); pool = pool->next) {
        while (joining && !pthread_cond_timedwait(&returned, &hook_pools_lock, &end))
            continue;
        if ((needed && pool->context != hook_current_context()) ||
            !drain_pool(pool, UINT64_MAX, thread ? thread->tid : 0, moment))
            continue;
        wait_timed_out |= !wait_for_sent(pool, &end) && needed;
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

void hook_abandon_pending(bool within_driver) {
    struct timespec end = in_seconds(within_driver ? HASTE : PATIENCE);
    pthread_mutex_lock(&hook_pools_lock);
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        for (struct timespec soon = in_seconds(HASTE); pool->issuing && !within_driver;)
            if (pthread_cond_timedwait(&returned, &hook_pools_lock, &soon))
                break;
        EACH_SLAB (slab, &pool->in_use) {
            if (!slab->saves)
                continue;
            slab->failed = within_driver ? CUDA_ERROR_NOT_READY : CUDA_ERROR_LAUNCH_FAILED;
            send_back(slab);
        }
        hook_wait_no_longer();
        wait_for_sent(pool, &end);
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

// -- Slabs -----------------------------------------------------------------
//
// It comes from a pool of the driver that is ours alone: the program's pools are as they would be.

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
    if (slab->cleared)
        hook_do.destroy_event(slab->cleared);
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

// Copy zeros from the host, which needs no kernel: after about six kernels in a second stream (a memset is
// one) all graphs of the process start later from then on (docs/measured.md). Large slabs are set by a
// kernel: with that much to write, the start of a kernel doesn't matter.
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
        hook_do.create_event(&slab->cleared, CU_EVENT_DISABLE_TIMING) ||
        hook_do.alloc(&slab->address, size, pool->memory, pool->stream) ||
        (!copied && hook_zero_slab(slab, size)) || hook_do.record(slab->cleared, pool->stream)) {
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

// -- Demand of logs --------------------------------------------------------
//
// The list is under a lock of its own, under which nothing is called: a launch looks its demand up, the
// thread that writes adds to it by atomics.

enum { BUCKETS = 1 << 10, MOST_STEPS = 160 };    // the last step is 2^40 times the capacity
static const uint64_t MOST_ENTRIES = 1ull << 44; // more than any device has room for

struct key {
    uint32_t kernel, maps, grid[3], block[3]; // kernel: its number in the trace
};

struct demand {
    struct demand *next;
    struct key key;
    _Atomic bool counted;
    _Atomic uint64_t entries[]; // most that a launch claimed, by map
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct demand *buckets[BUCKETS];

static struct demand **bucket_of(const struct key *key) {
    const uint32_t *words = (const uint32_t *)key;
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof(*key) / sizeof(*words); i++)
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
    return &buckets[(hash >> 32) % BUCKETS];
}

static bool has_growing_log(const struct woven *woven) {
    bool found = false;
    for (size_t i = 0; i < woven->map_count; i++)
        found |= woven->maps[i].grows;
    return found;
}

struct demand *hook_find_demand(const struct save *save, const uint32_t block[3], bool *first) {
    const struct woven *woven = save->probed->woven;
    struct key key = {.kernel = woven->number, .maps = (uint32_t)woven->map_count};
    *first = false;
    if (!has_growing_log(woven))
        return NULL;
    memcpy(key.grid, save->grid, sizeof(key.grid));
    memcpy(key.block, block, sizeof(key.block));
    pthread_mutex_lock(&lock);
    struct demand **bucket = bucket_of(&key), *found = *bucket;
    while (found && memcmp(&found->key, &key, sizeof(key)))
        found = found->next;
    if (!found && (found = calloc(1, sizeof(*found) + woven->map_count * sizeof(*found->entries)))) {
        *first = true;
        found->key = key;
        found->next = *bucket;
        *bucket = found;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool hook_is_counted(const struct demand *demand) { return atomic_load(&demand->counted); }

void hook_count_entries(struct demand *demand, uint32_t map, uint64_t entries) {
    if (!demand)
        return;
    uint64_t before = atomic_load(&demand->entries[map]);
    if (entries > before) // only the thread that writes does this
        atomic_store(&demand->entries[map], entries);
    if (!atomic_exchange(&demand->counted, true))
        hook_wake_claims();
}

uint64_t hook_log_capacity(const struct woven_map *map, unsigned step) {
    unsigned __int128 entries = map->capacity + (unsigned __int128)(step % 4) * (map->capacity / 4);
    entries <<= step / 4;
    return entries < MOST_ENTRIES ? (uint64_t)entries : MOST_ENTRIES;
}

// Steps that what a launch claimed needs; none if it fitted. The next one may claim a little more.
static unsigned steps_for(const struct woven_map *map, uint64_t claimed) {
    unsigned step = 0;
    if (map->grows && claimed > map->capacity)
        while (step < MOST_STEPS && hook_log_capacity(map, step) / 9 * 8 < claimed)
            step++;
    return step;
}

static void size_log(struct save *save, size_t at, unsigned step, const uint32_t block[3]) {
    struct woven_map map = save->probed->woven->maps[at];
    map.capacity = hook_log_capacity(&map, step);
    if (!hook_map_bytes(&map, save->grid, block, &save->sizes[at]))
        save->sizes[at] = UINT64_MAX / MOST_MAPS / 2;
    save->steps[at] = (uint8_t)step;
}

bool hook_size_logs(struct save *save, uint64_t most) {
    const struct woven *woven = save->probed->woven;
    uint64_t before = save->bytes;
    unsigned less = 0, largest = 0;
    do {
        save->bytes = largest = 0;
        for (size_t i = 0; i < woven->map_count; i++) {
            unsigned step = steps_for(&woven->maps[i], atomic_load(&save->demand->entries[i]));
            largest = step > largest ? step : largest;
            if (woven->maps[i].grows)
                size_log(save, i, step > less ? step - less : 0, save->demand->key.block);
            save->bytes += hook_rounded(save->sizes[i]);
        }
    } while (save->bytes > most && less++ < largest);
    return save->bytes < before;
}
