// Places for launches in slabs, and slabs for executable graphs. slabs.c explains the life cycle of a slab,
// the lock, and all waits.

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

enum { SLAB = 4 << 20, HELD = 64 << 10 }; // bytes of an ordinary slab if four fit, and of a graph's
enum { UNCOUNTED_WAIT = 1 };              // seconds that a launch waits for the counts of an earlier one

static uint64_t size_for(const struct pool *pool, uint64_t bytes) {
    uint64_t size = bytes > SLAB ? (bytes + SLAB - 1) / SLAB * SLAB : SLAB;
    if (pool->most / 4 < SLAB) // several fit
        size = hook_rounded(bytes > pool->most / 4 ? bytes : pool->most / 4);
    return size > pool->most && bytes <= pool->most ? bytes : size;
}

// Make the stream wait until a slab that this thread has taken is clear. Returns NULL, or the reason if that
// failed.
static const struct reason *make_clear(struct slab *slab, const struct claim *claim) {
    const struct reason *reason = NULL;
    if (slab->known_ready)
        return NULL;
    int mode = hook_begin_calls();
    slab->known_ready = !hook_do.query(slab->cleared);
    if (!slab->known_ready && claim->dependent)
        reason = WHY(dependent_buffer);
    else if (!slab->known_ready && hook_do.wait_event(claim->stream, slab->cleared, 0))
        reason = WHY(stream_events);
    hook_end_calls(mode);
    return reason;
}

static struct slab *make_slab(struct pool *pool, uint64_t size, bool copied) {
    struct slab *slab = hook_new_slab(pool, size, copied, NULL);
    bool again = !slab && hook_free_ready(pool) && hook_make_room(pool, size);
    return again ? hook_new_slab(pool, size, copied, NULL) : slab;
}

// -- Places ----------------------------------------------------------------
//
// A launch takes a place in an open slab with one compare-and-swap of `places`. The slab then belongs to this
// stream until the launch is in the stream: before that, hook_seal fails, except at the end of the process.
//
// Most launches do that without the lock, in the slab of the stream's last launch. That slab may belong to
// another stream by now, so `places` contains a hash of the stream. One in two million pairs of streams
// shares a hash. So a launch that has taken a place checks the slab's stream, and gives the place back if
// it's another stream's.

enum { RECENT = 64 };

static _Atomic(struct slab *) recent[RECENT];

static uint64_t hash_of(const struct claim *claim) {
    const uint64_t factor = 0x9e3779b97f4a7c15u;
    uint64_t thread = claim->stream == CU_STREAM_PER_THREAD_HANDLE ? claim->thread : 0;
    return ((claim->context ^ thread << 1 ^ claim->copied) * factor ^ claim->stream) * factor;
}

static _Atomic(struct slab *) *recent_of(const struct claim *claim) {
    return &recent[hash_of(claim) / (UINT64_MAX / RECENT + 1)];
}

// Return the part of `places` that distinguishes streams.
static uint64_t mark_of(const struct claim *claim) {
    uint64_t below = 1ull << PLACES_LEFT, from = 1ull << PLACES_STREAM;
    return (hash_of(claim) >> 16) % below / from * from;
}

static bool take_place(struct slab *slab, const struct claim *claim, uint64_t *offset) {
    uint64_t places = slab->places, size = claim->bytes / PLACE, of = mark_of(claim) | PLACES_OPEN;
    do {
        uint64_t issuing = places & PLACES_ISSUING, low = places % (1ull << PLACES_LEFT);
        if (low - issuing != of || places >> PLACES_LEFT < size || issuing == PLACES_ISSUING)
            return false;
    } while (!atomic_compare_exchange_weak(&slab->places, &places, places - (size << PLACES_LEFT) + 1));
    *offset = slab->size - (places >> PLACES_LEFT) * PLACE;
    return true;
}

static bool is_for(const struct slab *slab, const struct claim *claim) {
    return hook_is_of(slab, claim->stream, claim->thread) && slab->copied == claim->copied;
}

static struct slab *claim_recent(const struct claim *claim, uint64_t *offset) {
    struct slab *slab = atomic_load_explicit(recent_of(claim), memory_order_acquire);
    if (!slab || !take_place(slab, claim, offset))
        return NULL;
    if (slab->context == claim->context && is_for(slab, claim) && hook_is_alive(slab->pool->reference))
        return slab;
    hook_issue(slab, NULL);
    return NULL;
}

static struct slab *open_slab(struct pool *pool, const struct claim *claim, const struct reason **reason) {
    uint64_t size = size_for(pool, claim->bytes);
    struct slab *slab = hook_ready_slab(pool, claim->bytes, size, claim->copied);
    if (!slab && size > pool->most) {
        *reason = WHY(buffers_over_limit);
        return NULL;
    }
    if (slab)
        hook_step(slab, SLAB_TAKE);
    else if (!hook_make_room(pool, size)) {
        *reason = WHY(no_buffer);
        return NULL;
    } else if (!(slab = make_slab(pool, size, claim->copied))) {
        *reason = WHY(device_memory);
        return NULL;
    }
    *reason = make_clear(slab, claim);
    if (hook_pools_end)
        *reason = WHY(ending);
    if (*reason) {
        hook_step(slab, SLAB_PUT_BACK);
        return NULL;
    }
    slab->stream = claim->stream;
    slab->thread = claim->thread;
    slab->round = 0;
    slab->full = slab->ended = slab->written_late = slab->recorded = false;
    slab->refused = CUDA_SUCCESS;
    slab->places =
        ((slab->size - claim->bytes) / PLACE << PLACES_LEFT | mark_of(claim)) + 1; // the caller's place
    hook_step(slab, SLAB_CLAIM);
    hook_write_later(); // the slab may never fill up
    if (!claim->copied && !hook_ready_slab(pool, size, UINT64_MAX, false))
        hook_want_slab(pool, size);
    return slab;
}

static struct slab *find_open(struct pool *pool, const struct claim *claim, uint64_t *offset) {
    EACH_SLAB (slab, &pool->in_use) {
        if (!is_for(slab, claim))
            continue;
        if (take_place(slab, claim, offset))
            return slab;
        slab->full = true;
        atomic_fetch_and(&slab->places, ~(uint64_t)PLACES_OPEN);
    }
    return NULL;
}

// With --complete, launches that find no slab wait in a queue. Otherwise, later launches might take all slabs
// that become free.
struct waiting {
    TAILQ_ENTRY(waiting) link;
    bool waits;
    struct patience patience;
};

static bool is_first(const struct pool *pool, const struct waiting *waiting) {
    const struct waiting *first = TAILQ_FIRST(&pool->waiting);
    return !first || first == waiting || pool->stuck;
}

static void stop_waiting(struct pool *pool, struct waiting *waiting) {
    if (!waiting->waits)
        return;
    TAILQ_REMOVE(&pool->waiting, waiting, link);
    pthread_cond_broadcast(&hook_pools_changed);
}

// Launches take places in slabs, and give them back, without the lock. So if a launch was what kept a slab
// from being drained, the slab may be ready a moment later, without any event that wakes us. A change of its
// `places` shows that.
static uint64_t sum_places(const struct pool *pool) {
    uint64_t sum = 0;
    EACH_SLAB (slab, &pool->in_use)
        sum += slab->places;
    return sum;
}

// With --complete, wait until a slab may have become free. Returns false if none is going to, or if it takes
// too long.
static bool wait_for_slab(struct pool *pool, const struct claim *claim, struct waiting *waiting,
                          uint64_t round, const struct reason *reason) {
    uint64_t places = sum_places(pool);
    hook_drain_others(pool, claim, round);
    if (!hook_settings.complete) {
        hook_write_soon(); // for later launches
        return false;
    }
    if (pool->stuck || reason == WHY(stream_events))
        return false;
    if (!waiting->waits) {
        waiting->waits = true;
        waiting->patience = hook_patience_of(pool->patience, false);
        TAILQ_INSERT_TAIL(&pool->waiting, waiting, link);
    }
    bool first = is_first(pool, waiting);
    // A slab has become free in the meantime, or is still being cleared.
    bool soon = first && !TAILQ_EMPTY(&pool->ready);
    if (first && !soon && !hook_may_return(pool)) {
        if (sum_places(pool) == places)
            return false;
        soon = true;
    }
    if (hook_wait_for_return(&waiting->patience, soon))
        return true;
    pool->stuck = true; // until a slab becomes free; later waits are half as long
    pool->patience = pool->patience > 1 ? pool->patience / 2 : 1;
    return false;
}

static struct slab *claim_locked(const struct claim *claim, uint64_t *offset, const struct reason **reason) {
    HOOK_HOLD_SIGNALS;
    struct slab *slab = NULL;
    struct waiting waiting = {.waits = false};
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    hook_waits++;
    struct pool *pool = hook_find_pool(claim->context);
    if (pool) // others may be first
        *reason = claim->bytes > pool->most ? WHY(buffers_over_limit) : WHY(no_buffer);
    uint64_t round = ++hook_rounds;
    while (pool && !hook_pools_end && !(slab = find_open(pool, claim, offset))) {
        if (!claim->dependent)
            hook_mark_stream(pool, claim->stream, claim->thread, false, round);
        *offset = 0;
        if (is_first(pool, &waiting) && (slab = open_slab(pool, claim, reason)))
            break;
        if (hook_pools_end || claim->bytes > pool->most ||
            !wait_for_slab(pool, claim, &waiting, round, *reason))
            break;
    }
    if (pool)
        stop_waiting(pool, &waiting);
    if (hook_pools_end)
        *reason = WHY(ending);
    if (slab)
        atomic_store_explicit(recent_of(claim), slab, memory_order_release);
    hook_waits--;
    pthread_mutex_unlock(&hook_pools_lock);
    return slab;
}

struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const struct reason **reason) {
    struct slab *slab = claim_recent(claim, offset);
    return slab ? slab : claim_locked(claim, offset, reason);
}

// Return whether a slab whose launches have ended is being written, which doesn't depend on the program.
static bool is_being_read(const struct slab *slab) {
    return slab->state == SLAB_COPYING || (slab->state == SLAB_ISSUED && slab->ended);
}

static bool has_ended(const struct pool *pool) {
    uint64_t asked = 0;
    EACH_SLAB (slab, &pool->draining) {
        if (is_being_read(slab))
            return true;
        if (slab->state != SLAB_ISSUED || slab->number <= asked)
            continue;
        asked = slab->number;
        int mode = hook_begin_calls();
        bool ended = !hook_do.query(slab->event);
        hook_end_calls(mode);
        if (slab->number == asked && (is_being_read(slab) || (ended && slab->state == SLAB_ISSUED)))
            return true; // otherwise the slab has become free
        next = TAILQ_FIRST(&pool->draining);
    }
    return false;
}

uint64_t hook_wait_for_count(const struct claim *claim, const struct demand *demand) {
    bool all = hook_settings.complete;
    pthread_mutex_lock(&hook_pools_lock);
    hook_waits++;
    struct patience patience = hook_patience_of(all ? PATIENCE : UNCOUNTED_WAIT, !all);
    struct pool *pool = hook_pools_end ? NULL : hook_find_pool(claim->context);
    uint64_t round = ++hook_rounds;
    bool waits = pool && !pool->stuck && !pool->uncounted;
    while (waits && !hook_is_counted(demand)) {
        uint64_t places = sum_places(pool);
        if (all)
            hook_drain_others(pool, claim, round);
        bool returns = all && hook_may_return(pool), soon = all && !returns && sum_places(pool) != places;
        waits = all ? returns || soon : has_ended(pool);
        if (!waits || hook_is_counted(demand)) // the lock was dropped
            break;
        waits = hook_wait_for_return(&patience, soon) && !hook_pools_end;
        pool->uncounted |= !patience.left;
    }
    uint64_t most = !pool ? 0 : all ? pool->most : pool->most / 2; // without --complete, half
    hook_waits--;
    pthread_mutex_unlock(&hook_pools_lock);
    return most;
}

uint64_t hook_slab_address(const struct slab *slab) { return slab->address; }

// Other threads can't put an event into this thread's default stream. With --complete, they may wait for the
// slab, so an event is recorded after each launch.
static bool record_own(const struct slab *slab) {
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult status = hook_put_event(slab, true);
    hook_relaxed_mode(mode);
    return !status;
}

// Record that a launch is in the stream. Returns false if its slab has left the stream in the meantime,
// because the process is ending.
static bool arrive(struct slab *slab, struct save *save) {
    uint64_t now = hook_now(), issued = slab->issued;
    while (issued < now && !atomic_compare_exchange_weak(&slab->issued, &issued, now))
        continue;
    save->next = slab->arrived;
    do {
        if (save->next == ARRIVED_CLOSED)
            return false;
    } while (!atomic_compare_exchange_weak(&slab->arrived, &save->next, save));
    return true;
}

static void issue_locked(struct slab *slab, struct save *save, bool recorded) {
    HOOK_HOLD_SIGNALS;
    pthread_mutex_lock(&hook_pools_lock);
    bool lost = save && !arrive(slab, save);
    slab->recorded = recorded;
    slab->written_late |= lost;
    atomic_fetch_sub(&slab->places, 1);
    pthread_cond_broadcast(&hook_pools_changed);
    if (save && !lost && slab->copied && hook_used(slab) > slab->size / 2 && hook_seal(slab, false))
        hook_mark(slab); // while the graph runs, not when it's waited for
    pthread_mutex_unlock(&hook_pools_lock);
    if (lost)
        hook_lose(save);
}

void hook_issue(struct slab *slab, struct save *save) {
    bool owned = hook_settings.complete && save && slab->stream == CU_STREAM_PER_THREAD_HANDLE;
    if (owned || (save && (slab->copied || !arrive(slab, save))))
        issue_locked(slab, save, owned && record_own(slab));
    else if ((atomic_fetch_sub(&slab->places, 1) & PLACES_ISSUING) == 1 && hook_waits) {
        HOOK_HOLD_SIGNALS;
        hook_wake_claims();
    }
}

// -- Slabs of graphs -------------------------------------------------------

// Return the largest size that leaves enough memory for copying the results of any graph. `others` is the
// number of bytes that graphs hold in other slabs.
static uint64_t room_for(const struct pool *pool, uint64_t bytes, uint64_t others) {
    uint64_t reserved = others + size_for(pool, bytes > pool->largest ? bytes : pool->largest);
    return reserved < pool->most ? pool->most - reserved : 0;
}

static struct slab *ready_for_graph(const struct pool *pool, uint64_t bytes, uint64_t size, uint64_t most) {
    struct slab *slab = hook_ready_slab(pool, bytes, size, false);
    if (!slab || slab->size > most)
        return NULL;
    hook_step(slab, SLAB_TAKE);
    return slab;
}

static struct slab *hold_once(struct pool *pool, uint64_t bytes, uint64_t size, uint64_t others,
                              const struct reason **reason) {
    uint64_t most = room_for(pool, bytes, others);
    struct slab *slab = ready_for_graph(pool, bytes, size, most < 2 * size ? most : 2 * size);
    *reason = WHY(no_buffer);
    if (slab || !hook_make_room(pool, size))
        return slab;
    *reason = WHY(device_memory);
    slab = make_slab(pool, size, false);
    return slab ? slab
                : ready_for_graph(pool, bytes, size, most); // leave larger ones to launches if possible
}

// Give a graph at most half of the memory, and leave enough to copy the results of any graph. Without that,
// no replay would be recorded.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const struct reason **reason) {
    uint64_t size = (bytes + HELD - 1) / HELD * HELD, context = hook_current_context();
    const struct claim any = {
        .thread = (uint32_t)gettid(), .stream = UINT64_MAX, .dependent = true, .bytes = bytes};
    struct slab *slab = NULL;
    struct waiting waiting = {.waits = false};
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    hook_waits++;
    struct pool *pool = hook_find_pool(context);
    uint64_t others = pool && pool->held > replaced ? pool->held - replaced : 0;
    if (pool && 2 * size > pool->most) // no room to round up
        size = bytes;
    if (pool && 2 * size > pool->most) {
        *reason = WHY(graph_over_limit);
        pool = NULL;
    } else if (pool && size > room_for(pool, bytes, others)) {
        *reason = WHY(graph_buffers);
        pool = NULL;
    }
    if (pool) {
        pool->held += size; // other threads must see it while we call the driver
        *reason = WHY(no_buffer);
    }
    uint64_t round = ++hook_rounds;
    while (pool && !hook_pools_end) {
        others = pool->held - size > replaced ? pool->held - size - replaced : 0;
        if (is_first(pool, &waiting) && (slab = hold_once(pool, bytes, size, others, reason)))
            break;
        if (!wait_for_slab(pool, &any, &waiting, round, *reason))
            break;
    }
    if (pool)
        stop_waiting(pool, &waiting);
    if (slab) {
        pool->largest = bytes > pool->largest ? bytes : pool->largest;
        pool->held += slab->size - size;
        hook_step(slab, SLAB_HOLD);
    } else if (pool)
        pool->held -= size;
    if (hook_pools_end)
        *reason = WHY(ending);
    hook_waits--;
    pthread_mutex_unlock(&hook_pools_lock);
    return slab;
}

void hook_let_go(struct slab *slab) {
    pthread_mutex_lock(&hook_pools_lock);
    slab->pool->held -= slab->size;
    slab->ended = false;
    hook_send(slab);
    pthread_mutex_unlock(&hook_pools_lock);
}

// Called while the device is busy, so that no launch has to wait until memory has been allocated and cleared.
void hook_make_next(const struct slab *like) {
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_pools_end ? NULL : hook_find_pool(like->context);
    if (pool)
        hook_prepare_slab(pool, like->size, like->copied, NULL);
    pthread_mutex_unlock(&hook_pools_lock);
}
