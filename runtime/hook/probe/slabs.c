// Slabs: pieces of device memory that hold the buffers of launches.
//
// A slab belongs to one stream while launches in that stream take places in it, or to an executable graph.
// Once it's full, or the program has waited for the GPU, an event is enqueued on the stream behind the
// last launch. When the event has completed, a thread of ours (drain.c) copies the contents to the trace,
// clears the slab and gives it back. So the program never waits, and no operation of ours is inserted between
// two launches that overlap: in such a stream, a full slab is kept until a launch comes that doesn't depend
// on its predecessor.
//
// States
//
// clang-format off
//
//     BARE      no device memory, only the structure and its two events. These are never freed, so an
//               old pointer or event still leads to a slab, though perhaps to another use of it
//     TAKEN     one thread owns it and calls the driver for it: to allocate, free, or make a stream wait
//     READY     free; its bytes are zero once `cleared` has completed (`known_ready`: it has)
//     CLAIMED   a stream's launches take places in it while it's open, that is, until it's `full`
//     HANDED    the marking thread (marks.c) is to put an event into its stream
//     MARKING   a thread is doing that
//     ISSUED    its event is in the stream, or its launches are known to have ended
//     COPYING   the writer thread reads and clears it
//     HELD      an executable graph's; nodes write there at each replay
//     RETIRED   the device failed, or a launch may still write there: never used again
//
//                      TAKE          CLAIM           HAND           MARK          SEND          COPY
//     (new) -> BARE -------> TAKEN -------> CLAIMED ------> HANDED ------> MARKING ----> ISSUED ----> COPYING
//               ^    FREED   |  ^              ^    REFUSE    |    REFUSE    |             ^            |  |
//               +------------+  | TAKE         +--------------+--------------+             |            |  |
//                   PUT_BACK |  |                                             SEND         |            |  |
//                            +-> READY        TAKEN -> HELD -------------------------------+            |  |
//                                  ^          PUT_BACK                                                  |  |
//                                  +--------------------------------------------------------------------+  |
//                                                                                 RETIRED <----- RETIRE ---+
//
// clang-format on
//
// Shortcuts aren't drawn: from CLAIMED and HANDED to MARKING within a call about the stream, and to ISSUED if
// the launches have ended or are given up. `next_state` below is the complete table. Only hook_step changes a
// state; it also moves the slab to the list of its pool that the state belongs to. With GPT_CHECKED it
// asserts that the table allows the step; without, a slab that does something impossible is retired.
//
// Locks
//
// hook_pools_lock guards all pools and slabs. Nothing is called under it: not the driver, which may wait for
// another thread of the program that waits for us, and nothing that writes a record. A thread that needs the
// driver moves the slab to a state in which no other thread touches it (TAKEN, MARKING, COPYING) and drops
// the lock with hook_begin_calls. After hook_end_calls, everything else may have changed. A slab may be sent
// while it's MARKING, when the process ends, so marking checks the state again. In COPYING only the writer
// touches `saves`; in HELD only the owner of the graph touches the slab, under the graph's lock.
//
// A launch needs no lock, unless it has to open a slab (buffers.c). One compare-and-swap takes a place in an
// open slab. Once the launch is in the stream, a second one puts it on the list `arrived`, and a subtraction
// gives the place back. To move a claimed slab on, a thread first seals it under the lock. That fails while a
// launch has a place but isn't in the stream yet, because the event must come after all launches. So a sealed
// slab changes no more, and what's known about its launches, such as `issued`, has to be read after the seal.
// At the end of the process, sealing doesn't fail. A launch that arrives when its slab has left CLAIMED finds
// the list closed and is lost. A slab that's claimed again is opened again. A thread that waits until a place
// is given back counts itself in hook_waits before it looks at places, and the launch looks at hook_waits
// after giving the place back. So one of them sees the other, and a launch only pays for a wake-up if a
// thread waits.
//
// Lock order: the lock of a graph (struct prepared), then hook_pools_lock. saves.c has its own lock, and no
// thread holds both.
//
// Waits
//
// Without --complete no launch waits for the GPU. None of these waits holds a lock:
//
//   - hook_hold_drains, in a call that may begin a capture: until the marking thread has left this stream and
//     the legacy one, into which it puts one event. hook_drain_stream does so, too, before a stream ends.
//   - --complete: until a slab comes back, first come, first served. If later launches could take that
//     slab, the first one might wait forever.
//   - Counts of logs: without --complete a second at most, and only while a slab is left whose event has
//     completed. Reading that depends on nobody.
//   - The program's allocation failed: until slabs in flight are back.
//   - A context or the process ends: until the slabs of that context are back, or all.
//   - Making a pool or scratch memory, and the limit of memory: while another thread calls the driver for
//     that, in a stream of ours.
//
// A kernel may depend on the program's next call, so the middle four are given up after a minute in which
// only the driver could make progress (marks.c counts the seconds). Time in which our own threads have work
// doesn't count, since a busy machine may take long. A launch that gave up marks the pool `stuck`: no other
// launch waits before a slab comes back, and after that only half as long.
//
// On an H200, cuEventRecord and cuStreamQuery block while the stream's queue is full (1,021 launches behind a
// kernel that waits for the host), and so would a thread that the kernel waits for. So a call of the program
// only puts events into the stream that it's about. A call that waited for a stream needs none, as the
// launches before it have ended. For other streams, the marking thread puts the event there, and nobody waits
// for that thread without a time limit except as described above. cuStreamIsCapturing and cuEventQuery don't
// block.
//
// Usually, a launch makes only two driver calls: one for the current context, which the driver keeps for each
// thread, and the launch itself. A slab costs one event in its stream, and one wait of that stream if the
// slab isn't known to be clear yet.
//
// Two limits remain. A call that begins a capture waits while the marking thread is blocked in its stream or
// in the legacy one, for as long as a launch into that stream would take at that point. That wait isn't cut
// short, because an event that enters the legacy stream later invalidates the capture. And if one of our
// threads is ready to run during a driver call but isn't scheduled, that looks like a slow driver. After 60
// seconds without any CPU time for the thread, the launch is counted as running without probes, so nothing is
// lost silently.
//
// Slabs made ahead
//
// A new slab takes some ten driver calls, and its stream waits until it's cleared, on an H200 with 4 MB of
// zeros from the host. So when a launch takes the last ready slab, the marking thread makes the next one, if
// there's memory for it. A launch that comes too early makes its own.
//
// Moments
//
//   - Capture: a stream that is captured takes no event of ours (the slab stays claimed), and launches take
//     no place. No capture may begin between that check and our event.
//   - Replay: nodes write to a slab that the graph holds. After the replay, the data is copied to a slab
//     for the stream, which needn't be clear. That slab counts as full when it's half full: the next replay
//     probably needs as much, and the slab is read while that replay runs.
//   - A stream is destroyed: we put an event into it first. If the stream takes no event, its launches are
//     reported as lost and the slab is retired, because a later stream may get the same handle.
//   - A context is destroyed: its slabs are drained first. What's left fails in the writer or is reported as
//     lost at the end, since nothing refers to the pool any more.
//   - Another thread's default stream can't be named. The legacy stream waits for it, but it also makes all
//     other blocking streams wait for each other, so we use it only at an end. With --complete, the thread
//     itself puts an event after each of its launches there, because it may not launch anything again.
//   - No device memory: ready slabs are freed, then claims fail with a reason. If a call of the program finds
//     none, it is repeated without our memory.
//   - Fork: the child probes nothing (hook_probing), so it uses none of this.
//   - Exit: no more claims. Slabs are sent even while launches into them are being made. Such launches are
//     reported as lost (hook_lose), because their slab's event may come first. So are launches whose slab
//     isn't read in time.
//   - SIGKILL: the thread that writes buffers also writes the records of their launches. Launches that it
//     hadn't reached show only in the counts of launches with probes (hook_count_probed).

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

static const unsigned char next_state[SLAB_STATES][SLAB_EVENTS] = {
    [SLAB_BARE] = {[SLAB_TAKE] = SLAB_TAKEN},
    [SLAB_TAKEN] = {[SLAB_CLAIM] = SLAB_CLAIMED,
                    [SLAB_HOLD] = SLAB_HELD,
                    [SLAB_PUT_BACK] = SLAB_READY,
                    [SLAB_FREED] = SLAB_BARE},
    [SLAB_READY] = {[SLAB_TAKE] = SLAB_TAKEN},
    [SLAB_CLAIMED] = {[SLAB_HAND] = SLAB_HANDED, [SLAB_MARK] = SLAB_MARKING, [SLAB_SEND] = SLAB_ISSUED},
    [SLAB_HANDED] = {[SLAB_MARK] = SLAB_MARKING, [SLAB_SEND] = SLAB_ISSUED, [SLAB_REFUSE] = SLAB_CLAIMED},
    [SLAB_MARKING] = {[SLAB_SEND] = SLAB_ISSUED, [SLAB_REFUSE] = SLAB_CLAIMED},
    [SLAB_ISSUED] = {[SLAB_COPY] = SLAB_COPYING},
    [SLAB_COPYING] = {[SLAB_PUT_BACK] = SLAB_READY, [SLAB_RETIRE] = SLAB_RETIRED},
    [SLAB_HELD] = {[SLAB_SEND] = SLAB_ISSUED},
};

enum { ZEROS = 1 << 20, MOST_COPIED = 16 << 20 }; // bytes

pthread_mutex_t hook_pools_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t hook_pools_changed = PTHREAD_COND_INITIALIZER;
unsigned hook_slabs_issued;
bool hook_pools_end, hook_slabs_given_up;
_Atomic unsigned hook_waits;
_Atomic uint64_t hook_progress;
static struct pool *pools;

static struct slab_list *list_of(struct slab *slab) {
    struct pool *pool = slab->pool;
    switch (slab->state) {
    case SLAB_BARE:
        return &pool->bare;
    case SLAB_READY:
        return &pool->ready;
    case SLAB_CLAIMED:
        return &pool->in_use;
    case SLAB_HANDED:
    case SLAB_MARKING:
    case SLAB_ISSUED:
    case SLAB_COPYING:
        return &pool->draining;
    case SLAB_RETIRED:
        return &pool->retired;
    default:
        return NULL;
    }
}

void hook_step(struct slab *slab, enum slab_event event) {
    unsigned char next = next_state[slab->state][event];
#ifdef GPT_CHECKED
    assert(next);
    assert(slab->state != SLAB_CLAIMED || !(slab->places & PLACES_OPEN));
#endif
    struct slab_list *from = list_of(slab), *to;
    hook_progress += event == SLAB_SEND || event == SLAB_COPY || slab->state == SLAB_COPYING;
    hook_slabs_issued -= slab->state == SLAB_ISSUED;
    if (slab->state == SLAB_CLAIMED)
        hook_collect(slab);
    slab->pool->count[slab->state]--;
    slab->state = next ? next : SLAB_RETIRED;
    slab->pool->count[slab->state]++;
    hook_slabs_issued += slab->state == SLAB_ISSUED;
    to = list_of(slab);
    if (from && from != to)
        TAILQ_REMOVE(from, slab, link);
    if (to == &slab->pool->draining && from != to)
        slab->number = ++slab->pool->sent;
    if (to == &slab->pool->in_use && from != to)
        TAILQ_INSERT_HEAD(to, slab, link);
    else if (to && from != to)
        TAILQ_INSERT_TAIL(to, slab, link);
    if (slab->state == SLAB_CLAIMED && !hook_slabs_given_up)
        slab->arrived = NULL;
    hook_unseal(slab);
    pthread_cond_broadcast(&hook_pools_changed);
}

void hook_unseal(struct slab *slab) {
    if (slab->state == SLAB_CLAIMED && !slab->full && !hook_pools_end)
        atomic_fetch_or(&slab->places, PLACES_OPEN);
}

void hook_collect(struct slab *slab) {
    struct save *arrived = atomic_exchange(&slab->arrived, ARRIVED_CLOSED), *newest = arrived, *oldest = NULL;
    if (!arrived || arrived == ARRIVED_CLOSED)
        return;
    for (struct save *before; arrived; arrived = before) {
        before = arrived->next;
        arrived->next = oldest;
        oldest = arrived;
    }
    *(slab->saves ? &slab->last->next : &slab->saves) = oldest;
    slab->last = newest;
}

bool hook_seal(struct slab *slab, bool even_then) {
    uint64_t places = slab->places;
    while (even_then || !(places & PLACES_ISSUING))
        if (atomic_compare_exchange_weak(&slab->places, &places, places & ~(uint64_t)PLACES_OPEN))
            return true;
    return false;
}

int hook_begin_calls(void) {
    pthread_mutex_unlock(&hook_pools_lock);
    return hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
}

void hook_end_calls(int mode) {
    hook_relaxed_mode(mode);
    pthread_mutex_lock(&hook_pools_lock);
}

void hook_wake_claims(void) {
    pthread_mutex_lock(&hook_pools_lock);
    pthread_cond_broadcast(&hook_pools_changed);
    pthread_mutex_unlock(&hook_pools_lock);
}

// -- Pools -----------------------------------------------------------------

struct pool *hook_first_pool(void) { return __atomic_load_n(&pools, __ATOMIC_ACQUIRE); }

static struct pool *find(uint64_t context) {
    struct pool *pool = pools;
    while (pool && (pool->context != context || !hook_is_alive(pool->reference)))
        pool = pool->next;
    return pool;
}

struct pool *hook_find_pool(uint64_t context) {
    struct pool *pool = find(context);
    return pool && pool->made ? pool : NULL;
}

static uint64_t most_bytes(void) {
    size_t free_bytes = 0, total = 0;
    if (hook_settings.memory)
        return hook_settings.memory;
    return hook_do.free_memory(&free_bytes, &total) ? 0 : free_bytes / 10;
}

// The memory comes from a driver pool of our own, so that the program's pools aren't affected.
static bool begin_memory(struct pool *pool) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    uint64_t all = UINT64_MAX;
    pool->most = most_bytes();
    if (hook_do.get_device(&pool->device))
        return false;
    props.location.id = pool->device;
    return !hook_do.create_pool(&pool->memory, &props) &&
           !hook_do.set_pool(pool->memory, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
}

static void unlink_pool(struct pool *pool) {
    struct pool **at = &pools;
    while (*at != pool)
        at = &(*at)->next;
    __atomic_store_n(at, pool->next, __ATOMIC_RELEASE);
}

// If one thread is creating a pool, others wait, because creating their own would take as long.
struct pool *hook_make_pool(uint64_t context) {
    struct pool *pool, *made = context ? calloc(1, sizeof(*made)) : NULL;
    if (!made)
        return NULL;
    TAILQ_INIT(&made->bare);
    TAILQ_INIT(&made->retired);
    TAILQ_INIT(&made->ready);
    TAILQ_INIT(&made->in_use);
    TAILQ_INIT(&made->draining);
    TAILQ_INIT(&made->waiting);
    made->patience = PATIENCE;
    made->context = context;
    made->reference = hook_object_add(&(struct object_facts){.kind = OBJECT_CONTEXT, .handle = context});
    pthread_mutex_lock(&hook_pools_lock);
    while ((pool = find(context)) && !pool->made)
        pthread_cond_wait(&hook_pools_changed, &hook_pools_lock);
    if (pool) {
        free(made);
    } else {
        made->next = pools;
        __atomic_store_n(&pools, made, __ATOMIC_RELEASE);
        int mode = hook_begin_calls();
        bool good = !hook_do.create_stream(&made->stream, CU_STREAM_NON_BLOCKING) && begin_memory(made);
        hook_end_calls(mode);
        made->made = good;
        if (!good) {
            unlink_pool(made);
            free(made);
        }
        pool = good ? made : NULL;
        pthread_cond_broadcast(&hook_pools_changed);
    }
    pthread_mutex_unlock(&hook_pools_lock);
    return pool;
}

// -- Memory ----------------------------------------------------------------
//
// The driver is slow to map memory, and does so within a launch of the program. So we make it map as much
// again as is in use, and keep it: a large piece is allocated and freed first. Until it's freed, it counts as
// `extra`.

static uint64_t reserve(struct pool *pool, uint64_t before, uint64_t size) {
    uint64_t wanted = 2 * before + size < pool->most ? 2 * before + size : pool->most;
    if (pool->bytes <= pool->reserved || pool->extra)
        return 0;
    pool->reserved = wanted > pool->bytes ? wanted : pool->bytes;
    pool->extra = pool->reserved - pool->bytes;
    return pool->extra ? pool->extra + size : 0;
}

// The slab must be TAKEN.
static void free_memory(struct slab *slab) {
    int mode = hook_begin_calls();
    hook_do.free(slab->address, slab->ours);
    hook_end_calls(mode);
    slab->pool->bytes -= slab->size;
    hook_step(slab, SLAB_FREED);
}

char *hook_make_zeros(void) {
    void *zeros;
    if (hook_do.alloc_host(&zeros, ZEROS))
        return NULL;
    return memset(zeros, 0, ZEROS);
}

// Copy zeros from the host, which needs no kernel: after about six kernels in a second stream (a memset is
// one), all graphs of the process start later (docs/measured.md). Large slabs are set by a kernel: with that
// much to write, its start-up time doesn't matter.
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

// Allocate and clear a slab. Returns false if there's no memory for it.
static bool fill_slab(struct slab *slab, uint64_t size, bool copied) {
    uint64_t stream = slab->ours;
    if ((!slab->event && hook_do.create_event(&slab->event, CU_EVENT_DISABLE_TIMING)) ||
        (!slab->cleared && hook_do.create_event(&slab->cleared, CU_EVENT_DISABLE_TIMING)) ||
        hook_do.alloc(&slab->address, size, slab->pool->memory, stream))
        return false;
    if ((copied || !hook_zero_slab(slab, size)) && !hook_do.record(slab->cleared, stream))
        return true;
    hook_do.free(slab->address, stream);
    return false;
}

struct slab *hook_new_slab(struct pool *pool, uint64_t size, bool copied, _Atomic bool *calls) {
    struct slab *slab = TAILQ_FIRST(&pool->bare);
    if (!slab && (slab = calloc(1, sizeof(*slab)))) {
        *slab = (struct slab){.state = SLAB_BARE,
                              .arrived = ARRIVED_CLOSED,
                              .pool = pool,
                              .context = pool->context,
                              .ours = pool->stream,
                              .stage = &pool->stage,
                              .zeros = &pool->zeros};
        TAILQ_INSERT_TAIL(&pool->bare, slab, link);
        pool->count[SLAB_BARE]++;
    }
    if (!slab)
        return NULL;
    hook_step(slab, SLAB_TAKE);
    slab->size = size;
    slab->copied = copied;
    slab->known_ready = slab->ended = false;
    pool->bytes += size;
    uint64_t extra = reserve(pool, pool->bytes - size, size), address;
    int mode = hook_begin_calls();
    if (calls)
        *calls = true;
    bool reserved = extra && !hook_do.alloc(&address, extra, pool->memory, pool->stream);
    if (reserved)
        hook_do.free(address, pool->stream);
    bool good = fill_slab(slab, size, copied);
    if (calls)
        *calls = false;
    hook_end_calls(mode);
    if (extra) {
        pool->extra = 0;
        pool->reserved = reserved ? pool->reserved : pool->bytes;
        pthread_cond_broadcast(&hook_pools_changed);
    }
    if (good)
        return slab;
    pool->bytes -= size;
    hook_step(slab, SLAB_FREED);
    return NULL;
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

void hook_prepare_slab(struct pool *pool, uint64_t size, bool copied, _Atomic bool *calls) {
    struct slab *made = NULL;
    if (!hook_ready_slab(pool, size, UINT64_MAX, copied) && pool->bytes + pool->extra + size <= pool->most)
        made = hook_new_slab(pool, size, copied, calls);
    if (made)
        hook_step(made, SLAB_PUT_BACK);
}

bool hook_make_room(struct pool *pool, uint64_t size) {
    while (size <= pool->most) {
        struct slab *slab = TAILQ_FIRST(&pool->ready);
        if (pool->bytes + pool->extra + size <= pool->most)
            return true;
        if (pool->extra && pool->bytes + size <= pool->most) {
            pthread_cond_wait(&hook_pools_changed, &hook_pools_lock);
        } else if (slab) {
            hook_step(slab, SLAB_TAKE);
            free_memory(slab);
        } else
            break;
    }
    return false;
}

bool hook_free_ready(struct pool *pool) {
    bool any = !TAILQ_EMPTY(&pool->ready);
    for (struct slab *slab; (slab = TAILQ_FIRST(&pool->ready));) {
        hook_step(slab, SLAB_TAKE);
        free_memory(slab);
    }
    return any;
}

bool hook_free_memory(struct pool *pool) {
    bool any = pool->reserved > pool->bytes;
    any |= hook_free_ready(pool);
    if (any) {
        int mode = hook_begin_calls();
        hook_do.wait_stream(
            pool->stream); // this stream runs no kernels; afterwards the driver's pool has the memory again
        hook_do.trim_pool(pool->memory, 0);
        hook_end_calls(mode);
        pool->reserved = pool->bytes;
    }
    return any;
}

bool hook_add_scratch(struct pool *pool, uint64_t size) {
    pthread_mutex_lock(&hook_pools_lock);
    bool room = !pool->scratch_size && hook_make_room(pool, size);
    while (pool->scratch_size && !pool->scratch) // another thread is making it
        pthread_cond_wait(&hook_pools_changed, &hook_pools_lock);
    if (room && !pool->scratch_size) {
        uint64_t address = 0;
        pool->making = true;
        pool->scratch_size = size;
        pool->bytes += size;
        int mode = hook_begin_calls();
        bool good = !hook_do.alloc(&address, size, pool->memory, pool->stream);
        if (good)
            hook_do.wait_stream(pool->stream); // other streams will use it
        hook_end_calls(mode);
        pool->bytes -= good ? 0 : size;
        pool->scratch_size = good ? size : 0;
        pool->making = false;
        __atomic_store_n(&pool->scratch, address, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&hook_pools_changed);
    }
    bool made = pool->scratch;
    pthread_mutex_unlock(&hook_pools_lock);
    return made;
}

struct pool *hook_pool_here(void) {
    uint64_t context = hook_current_context();
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(context);
    pthread_mutex_unlock(&hook_pools_lock);
    return pool;
}
