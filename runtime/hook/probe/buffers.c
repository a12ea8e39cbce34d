// A place in a slab for each launch, and the way of a slab out of its stream. slabs.c explains the life of a
// slab, the lock, and all waits.

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

enum { SLAB = 4 << 20, HELD = 64 << 10 }; // bytes of an ordinary slab, if four fit; of a graph's
enum { HASTE = 1, SECOND = 1000000000, SOON = 1000000 }; // seconds if the driver may never answer; ns

static pthread_cond_t handed = PTHREAD_COND_INITIALIZER;
static bool ends;                 // the process is ending: no more claims
static bool over;                 // slabs in flight were given up
static unsigned joining;          // calls of the program in progress that may start capturing streams
static const struct slab *marked; // by the marking thread
static _Atomic bool marker_calls; // it's in a call of the driver
static uint64_t rounds;           // walks through slabs in use, each of which looks at a slab once

static struct timespec in_ns(int ns) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += ns;
    end.tv_sec += end.tv_nsec / SECOND;
    end.tv_nsec %= SECOND;
    return end;
}

// -- Waiting ---------------------------------------------------------------
//
// A wait is given up once a number of seconds have passed in which only the driver or the program could have
// ended it. The count starts again when a slab goes on. A second in which a thread of ours didn't get to what
// it could do isn't counted: on a busy machine that takes as long as it takes, but it ends.

struct patience {
    unsigned seconds, left;
    bool by_clock;       // for a moment only: our threads may be unable to go on
    struct timespec end; // of this second
    uint64_t progress, looks;
};

static void begin_second(struct patience *patience) {
    patience->end = in_ns(SECOND);
    patience->progress = hook_progress;
    patience->looks = hook_looks;
}

static struct patience patience_of(unsigned seconds, bool by_clock) {
    struct patience made = {.seconds = seconds, .left = seconds, .by_clock = by_clock};
    begin_second(&made);
    return made;
}

// Return whether no thread of ours had anything to do in this second but wait for a driver call.
static bool is_up_to_driver(const struct patience *patience) {
    unsigned handed_count = 0, issued = 0, copying = 0;
    for (const struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        handed_count += pool->count[SLAB_HANDED];
        issued += pool->count[SLAB_ISSUED];
        copying += pool->count[SLAB_COPYING];
    }
    bool marker = marker_calls || (!marked && (!handed_count || joining));
    bool looked = hook_looks - patience->looks > 1; // one of them began in this second
    return marker && (hook_writer_calls || (!copying && (!issued || looked)));
}

static bool is_before(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

// Wait until a slab may have come back, or `soon`. Returns false if it takes too long.
static bool wait_for_return(struct patience *patience, bool soon) {
    struct timespec end = in_ns(SOON), now;
    if (!soon || is_before(&patience->end, &end))
        end = patience->end;
    hook_write_soon();
    pthread_cond_timedwait(&hook_pools_changed, &hook_pools_lock, &end);
    now = in_ns(0);
    if (is_before(&now, &patience->end))
        return true;
    if (hook_progress != patience->progress && !patience->by_clock)
        patience->left = patience->seconds;
    else if (patience->by_clock || is_up_to_driver(patience))
        patience->left--;
    begin_second(patience);
    return patience->left;
}

static bool is_of(const struct slab *slab, uint64_t stream, uint32_t thread) {
    return slab->stream == stream && (stream != CU_STREAM_PER_THREAD_HANDLE || slab->thread == thread);
}

// -- Marking ---------------------------------------------------------------
//
// Putting an event into a slab's stream, behind its launches. A call of the program about this stream does it
// itself; for other streams the marking thread does.

static bool is_filled(const struct slab *slab) {
    return slab->state == SLAB_CLAIMED && (slab->used || slab->saves);
}

static void send(struct slab *slab) {
    hook_step(slab, SLAB_SEND);
    hook_write_later();
}

// The default stream of another thread can't be named; the legacy stream waits for it.
static CUresult put_event(const struct slab *slab, bool by_name) {
    bool foreign = slab->stream == CU_STREAM_PER_THREAD_HANDLE && !by_name;
    uint64_t stream = foreign ? CU_STREAM_LEGACY_HANDLE : slab->stream;
    int capturing = 0;
    CUresult status = hook_do.is_capturing(stream, &capturing);
    if (!status && capturing)
        status = CUDA_ERROR_NOT_READY;
    return status ? status : hook_do.record(slab->event, stream);
}

static void end_marking(struct slab *slab, CUresult status) {
    if (slab->state != SLAB_MARKING) // it was given up meanwhile
        return;
    slab->refused = status;
    if (status)
        hook_step(slab, SLAB_REFUSE);
    else
        send(slab);
}

// Within a call about its stream. Drops the lock.
static void mark(struct slab *slab) {
    hook_step(slab, SLAB_MARK);
    int mode = hook_begin_calls();
    CUresult status = put_event(slab, true);
    hook_end_calls(mode);
    end_marking(slab, status);
}

void hook_hand(struct slab *slab) {
    hook_step(slab, SLAB_HAND);
    pthread_cond_signal(&handed);
}

static struct slab *next_handed(void) {
    for (struct pool *pool = joining ? NULL : hook_first_pool(); pool; pool = pool->next)
        EACH_SLAB (slab, &pool->draining) {
            if (slab->state == SLAB_HANDED)
                return slab;
        }
    return NULL;
}

static void *mark_handed(void *unused) {
    uint64_t context;
    (void)unused;
    pthread_mutex_lock(&hook_pools_lock);
    for (;;) {
        struct slab *slab = next_handed();
        if (!slab) {
            pthread_cond_wait(&handed, &hook_pools_lock);
            continue;
        }
        marked = slab;
        hook_step(slab, SLAB_MARK);
        int mode = hook_begin_calls();
        marker_calls = true;
        CUresult status = CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if (hook_is_alive(slab->pool->reference))
            status = hook_do.push_context(slab->context);
        if (!status) {
            status = put_event(slab, false);
            hook_do.pop_context(&context);
        }
        marker_calls = false;
        hook_end_calls(mode);
        marked = NULL;
        end_marking(slab, status);
        pthread_cond_broadcast(&hook_pools_changed);
    }
    return NULL;
}

bool hook_begin_marking(void) {
    static bool begun;
    pthread_mutex_lock(&hook_pools_lock);
    begun = begun || hook_start_thread(mark_handed);
    bool done = begun;
    pthread_mutex_unlock(&hook_pools_lock);
    return done;
}

// No capture may begin between our check that a stream isn't captured and our event in it: the event would
// never complete, and in the legacy stream it would invalidate the capture. A call about a stream needs no
// protection from itself.
void hook_hold_drains(uint64_t stream) {
    pthread_mutex_lock(&hook_pools_lock);
    joining++;
    while (marked && (marked->stream == stream || marked->stream <= CU_STREAM_PER_THREAD_HANDLE))
        pthread_cond_wait(&hook_pools_changed, &hook_pools_lock);
    pthread_mutex_unlock(&hook_pools_lock);
}

void hook_let_drain(void) {
    pthread_mutex_lock(&hook_pools_lock);
    if (!--joining) {
        pthread_cond_signal(&handed);
        pthread_cond_broadcast(&hook_pools_changed);
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

// -- Claims ----------------------------------------------------------------

static uint64_t size_for(const struct pool *pool, uint64_t bytes) {
    uint64_t size = bytes > SLAB ? (bytes + SLAB - 1) / SLAB * SLAB : SLAB;
    if (pool->most / 4 < SLAB) // several fit
        size = hook_rounded(bytes > pool->most / 4 ? bytes : pool->most / 4);
    return size > pool->most && bytes <= pool->most ? bytes : size;
}

// Make the stream wait until a slab that this thread has taken is clear. Returns NULL, or why that failed.
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
    struct slab *slab = hook_new_slab(pool, size, copied);
    bool again = !slab && hook_free_ready(pool) && hook_make_room(pool, size);
    return again ? hook_new_slab(pool, size, copied) : slab;
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
    if ((*reason = make_clear(slab, claim))) {
        hook_step(slab, SLAB_PUT_BACK);
        return NULL;
    }
    slab->stream = claim->stream;
    slab->thread = claim->thread;
    slab->used = slab->round = 0;
    slab->full = slab->ended = slab->written_late = slab->recorded = false;
    slab->refused = CUDA_SUCCESS;
    hook_step(slab, SLAB_CLAIM);
    hook_write_later(); // it may never get full
    return slab;
}

static struct slab *find_open(struct pool *pool, const struct claim *claim) {
    EACH_SLAB (slab, &pool->in_use) {
        if (!is_of(slab, claim->stream, claim->thread) || slab->copied != claim->copied)
            continue;
        if (!slab->full && slab->used + claim->bytes <= slab->size)
            return slab;
        slab->full = true;
    }
    return NULL;
}

// Mark a slab of the caller's stream: a full one, or any. Each once in a round, as the stream may be
// captured. Returns false if there's none left. Drops the lock.
static bool mark_next(struct pool *pool, uint64_t stream, uint32_t thread, bool any, uint64_t round) {
    EACH_SLAB (slab, &pool->in_use) {
        if (slab->round >= round || slab->issuing || !is_filled(slab) || !(any || slab->full) ||
            !is_of(slab, stream, thread))
            continue;
        slab->round = round;
        mark(slab);
        return true;
    }
    return false;
}

static void mark_stream(struct pool *pool, uint64_t stream, uint32_t thread, bool any, uint64_t round) {
    while (mark_next(pool, stream, thread, any, round))
        continue;
}

// Take the slabs of the caller's stream back from the marking thread. A walk that has begun doesn't hand them
// to it again. Returns true if there were any, or it had to wait for one.
static bool recall(struct pool *pool, uint64_t stream, uint32_t thread) {
    bool any = false;
    EACH_SLAB (slab, &pool->draining) {
        if (slab->state != SLAB_HANDED || !is_of(slab, stream, thread))
            continue;
        hook_step(slab, SLAB_REFUSE);
        slab->round = rounds;
        any = true;
    }
    bool waits = marked && marked->pool == pool && is_of(marked, stream, thread);
    if (waits)
        pthread_cond_wait(&hook_pools_changed, &hook_pools_lock);
    return waits || any;
}

// Send slabs of other streams back, for later launches.
static void drain_others(struct pool *pool, const struct claim *claim, uint64_t round) {
    if (!claim->dependent)
        mark_stream(pool, claim->stream, claim->thread, true, round);
    if (claim->stream != CU_STREAM_PER_THREAD_HANDLE)
        mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, claim->thread, true, round);
    EACH_SLAB (slab, &pool->in_use) {
        if (slab->round >= round || slab->issuing || !is_filled(slab) ||
            is_of(slab, claim->stream, claim->thread))
            continue;
        slab->round = round;
        slab->ended = !slab->saves && !slab->written_late; // no launch was made
        if (slab->recorded || slab->ended)
            send(slab);
        else if (slab->stream != CU_STREAM_PER_THREAD_HANDLE)
            hook_hand(slab);
    }
}

// Return whether a slab is on its way back, or may soon be. A slab isn't sent while a launch is being made
// into it, and another thread may or may not keep the one it has taken.
static bool may_return(const struct pool *pool) {
    return joining || !TAILQ_EMPTY(&pool->draining) || pool->issuing || pool->count[SLAB_TAKEN] ||
           pool->making;
}

// With --complete, a launch that finds no slab waits in line, so that others don't take all that come back.
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

// With --complete, wait until a slab may have come. Returns false if none will, or it takes too long.
static bool wait_for_slab(struct pool *pool, const struct claim *claim, struct waiting *waiting,
                          uint64_t round, const struct reason *reason) {
    drain_others(pool, claim, round);
    if (!hook_settings.complete) {
        hook_write_soon(); // for later launches
        return false;
    }
    if (pool->stuck || reason == WHY(stream_events))
        return false;
    if (!waiting->waits) {
        waiting->waits = true;
        waiting->patience = patience_of(pool->patience, false);
        TAILQ_INSERT_TAIL(&pool->waiting, waiting, link);
    }
    bool first = is_first(pool, waiting);
    bool soon = first && !TAILQ_EMPTY(&pool->ready); // one has come meanwhile, or isn't clear yet
    if (first && !soon && !may_return(pool))
        return false;
    if (wait_for_return(&waiting->patience, soon))
        return true;
    pool->stuck = true; // until a slab comes back; and then it's worth less
    pool->patience = pool->patience > 1 ? pool->patience / 2 : 1;
    return false;
}

struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const struct reason **reason) {
    struct slab *slab = NULL;
    struct waiting waiting = {.waits = false};
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(claim->context);
    uint64_t round = ++rounds;
    while (pool && !ends && !(slab = find_open(pool, claim))) {
        if (!claim->dependent)
            mark_stream(pool, claim->stream, claim->thread, false, round);
        if (is_first(pool, &waiting) && (slab = open_slab(pool, claim, reason)))
            break;
        if (claim->bytes > pool->most || !wait_for_slab(pool, claim, &waiting, round, *reason))
            break;
    }
    if (pool)
        stop_waiting(pool, &waiting);
    if (ends) {
        *reason = WHY(ending);
        slab = NULL;
    }
    if (slab) {
        *offset = slab->used;
        slab->used += hook_rounded(claim->bytes);
        slab->issuing++;
        pool->issuing++;
    }
    pthread_mutex_unlock(&hook_pools_lock);
    return slab;
}

// What a slab has that has ended is being written, and that waits for nothing that the program does.
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
            return true; // else it has come back
        next = TAILQ_FIRST(&pool->draining);
    }
    return false;
}

uint64_t hook_wait_for_count(const struct claim *claim, const struct demand *demand) {
    bool all = hook_settings.complete;
    pthread_mutex_lock(&hook_pools_lock);
    struct patience patience = patience_of(all ? PATIENCE : HASTE, !all);
    struct pool *pool = ends ? NULL : hook_find_pool(claim->context);
    uint64_t round = ++rounds;
    bool waits = pool && !pool->stuck && !pool->uncounted;
    while (waits && !hook_is_counted(demand)) {
        if (all)
            drain_others(pool, claim, round);
        waits = all ? may_return(pool) : has_ended(pool);
        if (!waits || hook_is_counted(demand)) // the lock was dropped
            break;
        waits = wait_for_return(&patience, false) && !ends;
        pool->uncounted |= !patience.left;
    }
    uint64_t most = !pool ? 0 : all ? pool->most : pool->most / 2; // others wait for nothing
    pthread_mutex_unlock(&hook_pools_lock);
    return most;
}

uint64_t hook_slab_address(const struct slab *slab) { return slab->address; }

// Other threads can't put an event into the default stream of this one. With --complete they may wait for its
// slab, so an event follows each launch.
static bool record_own(const struct slab *slab) {
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult status = put_event(slab, true);
    hook_relaxed_mode(mode);
    return !status;
}

void hook_issue(struct slab *slab, struct save *save) {
    bool owned = hook_settings.complete && save && slab->stream == CU_STREAM_PER_THREAD_HANDLE;
    bool recorded = owned && record_own(slab);
    pthread_mutex_lock(&hook_pools_lock);
    slab->recorded = save ? recorded : slab->recorded;
    bool lost = save && (over || slab->state != SLAB_CLAIMED); // the process ends
    slab->written_late |= lost;
    slab->pool->issuing--;
    slab->issuing--;
    slab->issued = hook_now();
    if (!slab->issuing)
        pthread_cond_broadcast(&hook_pools_changed);
    if (save && !lost) {
        *(slab->saves ? &slab->last->next : &slab->saves) = save;
        slab->last = save;
        if (slab->copied && slab->used > slab->size / 2 && !slab->issuing)
            mark(slab); // while the graph runs, not when it is waited for
    }
    pthread_mutex_unlock(&hook_pools_lock);
    if (lost)
        hook_lose(save);
}

void hook_slab_back(struct slab *slab) {
    pthread_mutex_lock(&hook_pools_lock);
    slab->used = 0;
    slab->known_ready = slab->copied; // the copy from it has completed
    slab->pool->stuck = slab->pool->uncounted = false;
    hook_step(slab, slab->failed || slab->issuing || slab->written_late ? SLAB_RETIRE : SLAB_PUT_BACK);
    pthread_mutex_unlock(&hook_pools_lock);
}

// -- Slabs of graphs -------------------------------------------------------

// Return the largest size that leaves memory for copying the results of any graph. `others` are the bytes of
// slabs that graphs hold.
static uint64_t room_for(const struct pool *pool, uint64_t bytes, uint64_t others) {
    uint64_t kept = others + size_for(pool, bytes > pool->largest ? bytes : pool->largest);
    return kept < pool->most ? pool->most - kept : 0;
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

// Give a graph at most half of the memory, and leave room to copy the results of any graph: without that, no
// replay would be recorded.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const struct reason **reason) {
    uint64_t size = (bytes + HELD - 1) / HELD * HELD, context = hook_current_context();
    const struct claim any = {
        .thread = (uint32_t)gettid(), .stream = UINT64_MAX, .dependent = true, .bytes = bytes};
    struct slab *slab = NULL;
    struct waiting waiting = {.waits = false};
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(context);
    uint64_t others = pool && pool->held > replaced ? pool->held - replaced : 0;
    if (pool && 2 * size > pool->most) {
        *reason = WHY(graph_over_limit);
        pool = NULL;
    } else if (pool && size > room_for(pool, bytes, others)) {
        *reason = WHY(graph_buffers);
        pool = NULL;
    }
    if (pool)
        pool->held += size; // other threads see it while we call the driver
    uint64_t round = ++rounds;
    while (pool && !ends) {
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
    pthread_mutex_unlock(&hook_pools_lock);
    return slab;
}

void hook_let_go(struct slab *slab) {
    pthread_mutex_lock(&hook_pools_lock);
    slab->pool->held -= slab->size;
    slab->used = slab->size;
    slab->ended = false;
    send(slab);
    pthread_mutex_unlock(&hook_pools_lock);
}

// While the device is busy, so that no launch waits for memory and until that is ready.
void hook_make_next(const struct slab *like) {
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = ends ? NULL : hook_find_pool(like->context);
    struct slab *made = NULL;
    if (pool && !hook_ready_slab(pool, like->size, UINT64_MAX, like->copied) &&
        pool->bytes + pool->extra + like->size <= pool->most)
        made = hook_new_slab(pool, like->size, like->copied);
    if (made)
        hook_step(made, SLAB_PUT_BACK);
    pthread_mutex_unlock(&hook_pools_lock);
}

// -- Draining --------------------------------------------------------------

bool hook_give_slabs_back(void) {
    uint64_t context = hook_current_context();
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(context);
    bool any = pool && hook_free_memory(pool);
    pthread_mutex_unlock(&hook_pools_lock);
    return any;
}

void hook_drain_stream(uint64_t stream, uint32_t thread, bool ends_now) {
    if (!hook_first_pool())
        return;
    pthread_mutex_lock(&hook_pools_lock);
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) { // a stream may be of any context
        if (!pool->made || !hook_is_alive(pool->reference))
            continue;
        uint64_t round = ++rounds;
        do {
            while (recall(pool, stream, thread))
                round = ++rounds;
        } while (mark_next(pool, stream, thread, true, round));
        EACH_SLAB (slab, &pool->in_use) {
            if (!ends_now || slab->issuing || !is_filled(slab) || !is_of(slab, stream, thread))
                continue;
            slab->failed = CUDA_ERROR_INVALID_HANDLE;
            send(slab);
        }
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

void hook_drain_waited(const struct waited *waited) {
    if (!hook_first_pool())
        return;
    uint64_t context = hook_current_context();
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(context);
    for (struct slab *slab = pool ? TAILQ_FIRST(&pool->in_use) : NULL, *next; slab; slab = next) {
        next = TAILQ_NEXT(slab, link);
        if (slab->issuing || !is_filled(slab))
            continue;
        slab->ended =
            slab->issued < waited->since && (waited->all || is_of(slab, waited->stream, waited->thread));
        if (slab->ended)
            send(slab);
        else if (slab->stream != CU_STREAM_PER_THREAD_HANDLE)
            hook_hand(slab);
    }
    if (pool)
        mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, waited->thread, true, ++rounds);
    pthread_mutex_unlock(&hook_pools_lock);
}

// Wait for everything sent back so far, letting other threads go on. Returns false if it takes too long.
static bool wait_for_sent(const struct pool *pool, struct patience *patience) {
    uint64_t last = pool->sent;
    const struct slab *oldest;
    while ((oldest = TAILQ_FIRST(&pool->draining)) && oldest->number <= last)
        if (!wait_for_return(patience, false))
            return false;
    return true;
}

// Send all slabs of a pool back, unless their stream is captured, and wait for them.
static bool drain_pool(struct pool *pool, enum moment moment, struct patience *patience) {
    bool needed = moment == MEMORY_NEEDED, in_time = true;
    if (needed)
        mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, (uint32_t)gettid(), true, ++rounds);
    // Twice: marking may have begun before, when the stream was captured
    for (int i = 0; i < 2 && in_time; i++) {
        EACH_SLAB (slab, &pool->in_use) {
            // the legacy stream makes others wait for each other: only at an end
            bool named = !needed || slab->stream != CU_STREAM_PER_THREAD_HANDLE;
            if ((slab->issuing && moment != PROCESS_ENDS) || !is_filled(slab))
                continue;
            if (slab->recorded && !slab->issuing)
                send(slab);
            else if (named)
                hook_hand(slab);
        }
        in_time = wait_for_sent(pool, patience);
    }
    // One that the end of the process gave up isn't on its way any more
    while (moment == CONTEXT_ENDS && in_time && marked && marked->pool == pool)
        in_time = wait_for_return(patience, false);
    return in_time;
}

void hook_drain_all(enum moment moment, uint64_t context) {
    if (!hook_first_pool()) // don't start a trace in a process that doesn't use the driver
        return;
    pthread_mutex_lock(&hook_pools_lock);
    struct patience patience = patience_of(PATIENCE, false);
    ends |= moment == PROCESS_ENDS;
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        bool needed = moment == MEMORY_NEEDED;
        if (!pool->made || (context && pool->context != context) || !hook_is_alive(pool->reference) ||
            (needed && pool->stuck))
            continue;
        if (!drain_pool(pool, moment, &patience) && needed)
            pool->stuck = true;
        EACH_SLAB (slab, &pool->draining) {
            if (slab->state == SLAB_HANDED && moment == CONTEXT_ENDS)
                hook_step(slab, SLAB_REFUSE); // no call may be about this context any more
        }
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

// Give up what isn't in the queue of the writer yet.
static void give_up(struct slab *slab) {
    if (!slab->saves)
        return;
    slab->failed = slab->refused ? slab->refused : CUDA_ERROR_NOT_READY;
    send(slab);
}

// The writer doesn't get to these: the driver doesn't answer.
static void lose_sent(struct pool *pool) {
    EACH_SLAB (slab, &pool->draining) {
        struct save *save = slab->state == SLAB_ISSUED ? slab->saves : NULL;
        if (!save)
            continue;
        slab->saves = slab->last = NULL;
        pthread_mutex_unlock(&hook_pools_lock);
        for (struct save *after; save; save = after) {
            after = save->next;
            hook_lose(save);
        }
        pthread_mutex_lock(&hook_pools_lock);
        next = TAILQ_FIRST(&pool->draining);
    }
}

void hook_abandon_pending(bool within_driver) {
    pthread_mutex_lock(&hook_pools_lock);
    struct patience patience = patience_of(within_driver ? HASTE : PATIENCE, within_driver);
    ends = true;
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        for (struct timespec soon = in_ns(SECOND); pool->issuing && !within_driver;)
            if (pthread_cond_timedwait(&hook_pools_changed, &hook_pools_lock, &soon))
                break;
        over = true;
        EACH_SLAB (slab, &pool->in_use)
            give_up(slab);
        EACH_SLAB (slab, &pool->draining)
            if (slab->state == SLAB_HANDED || slab->state == SLAB_MARKING)
                give_up(slab);
        hook_wait_no_longer();
        if (!wait_for_sent(pool, &patience))
            lose_sent(pool);
    }
    pthread_mutex_unlock(&hook_pools_lock);
}
