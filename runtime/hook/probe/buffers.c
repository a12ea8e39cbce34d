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

enum {
    SLAB = 4 << 20,
    HELD = 64 << 10,
    PATIENCE = 60,
    HASTE = 1,
}; // bytes of an ordinary slab, if four fit, of one of a graph; seconds of a wait, and if the driver may
   // never answer

static pthread_cond_t handed = PTHREAD_COND_INITIALIZER;
static bool ends;                 // the process is ending: no more claims
static bool over;                 // slabs in flight were given up
static bool wait_timed_out;       // a kernel depends on the host: never wait again
static bool uncounted;            // waiting for the count of a launch timed out
static unsigned joining;          // calls of the program in progress that may start capturing streams
static const struct slab *marked; // by the marking thread
static uint64_t rounds;           // walks through slabs in use, each of which looks at a slab once

static struct timespec in_seconds(int seconds) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += seconds;
    return end;
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
static bool put_event(const struct slab *slab, bool by_name) {
    bool foreign = slab->stream == CU_STREAM_PER_THREAD_HANDLE && !by_name;
    uint64_t stream = foreign ? CU_STREAM_LEGACY_HANDLE : slab->stream;
    int capturing = 0;
    return !hook_do.is_capturing(stream, &capturing) && !capturing && !hook_do.record(slab->event, stream);
}

static void end_marking(struct slab *slab, bool done) {
    if (slab->state != SLAB_MARKING) // it was given up meanwhile
        return;
    if (done)
        send(slab);
    else
        hook_step(slab, SLAB_REFUSE);
}

// Within a call about its stream. Drops the lock.
static void mark(struct slab *slab) {
    hook_step(slab, SLAB_MARK);
    int mode = hook_begin_calls();
    bool done = put_event(slab, true);
    hook_end_calls(mode);
    end_marking(slab, done);
}

static void hand(struct slab *slab) {
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
        bool done = hook_is_alive(slab->pool->reference) && !hook_do.push_context(slab->context);
        if (done) {
            done = put_event(slab, false);
            hook_do.pop_context(&context);
        }
        hook_end_calls(mode);
        marked = NULL;
        end_marking(slab, done);
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

// A slab that this thread has taken. Its stream waits until it's clear; NULL or the reason why not.
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

// `makes`: if none is ready. A launch that must not wait can't use it before it's clear, and two that make
// slabs in turn keep each other's from becoming clear.
static struct slab *open_slab(struct pool *pool, const struct claim *claim, bool makes,
                              const struct reason **reason) {
    uint64_t size = size_for(pool, claim->bytes);
    struct slab *slab = hook_ready_slab(pool, claim->bytes, size, claim->copied);
    if (!slab && size > pool->most) {
        *reason = WHY(buffers_over_limit);
        return NULL;
    }
    if (!slab && !makes)
        return NULL;
    if (slab)
        hook_step(slab, SLAB_TAKE);
    else if (!hook_make_room(pool, size)) {
        *reason = WHY(no_buffer);
        return NULL;
    } else if (!(slab = hook_new_slab(pool, size, claim->copied))) {
        *reason = WHY(device_memory);
        return NULL;
    }
    if ((*reason = make_clear(slab, claim))) {
        hook_step(slab, SLAB_PUT_BACK);
        return NULL;
    }
    slab->stream = claim->stream;
    slab->thread = claim->thread;
    slab->used = 0;
    slab->full = slab->ended = false;
    hook_step(slab, SLAB_CLAIM);
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

// Take the slabs of the caller's stream back from the marking thread. True if it had to wait for that.
static bool recall(struct pool *pool, uint64_t stream, uint32_t thread) {
    EACH_SLAB (slab, &pool->draining) {
        if (slab->state != SLAB_HANDED || !is_of(slab, stream, thread))
            continue;
        hook_step(slab, SLAB_REFUSE);
        slab->round = 0;
    }
    bool waits = marked && marked->pool == pool && is_of(marked, stream, thread);
    if (waits)
        pthread_cond_wait(&hook_pools_changed, &hook_pools_lock);
    return waits;
}

// Sends slabs of other streams back, for later launches. True if any is on its way, or may be soon.
static bool drain_others(struct pool *pool, const struct claim *claim, uint64_t round) {
    if (!claim->dependent)
        mark_stream(pool, claim->stream, claim->thread, true, round);
    if (claim->stream != CU_STREAM_PER_THREAD_HANDLE)
        mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, claim->thread, true, round);
    EACH_SLAB (slab, &pool->in_use) {
        if (slab->round >= round || slab->issuing || !is_filled(slab) ||
            slab->stream == CU_STREAM_PER_THREAD_HANDLE || is_of(slab, claim->stream, claim->thread))
            continue;
        slab->round = round;
        hand(slab);
    }
    return joining || !TAILQ_EMPTY(&pool->draining) ||
           pool->issuing; // of which a slab is not sent back, for that moment
}

// Until a slab may have come back; not 0 if the time is over.
static int wait_for_return(const struct timespec *end) {
    hook_write_soon();
    return pthread_cond_timedwait(&hook_pools_changed, &hook_pools_lock, end);
}

// With --complete, until one may have come. False if there is nothing to wait for.
static bool wait_for_slab(struct pool *pool, const struct claim *claim, const struct timespec *end,
                          uint64_t round) {
    if (!drain_others(pool, claim, round) || wait_timed_out)
        return false;
    if (!hook_settings.complete) {
        hook_write_soon(); // for later launches
        return false;
    }
    wait_timed_out |= wait_for_return(end) != 0;
    return true;
}

struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const struct reason **reason) {
    struct slab *slab = NULL;
    struct timespec end = {0};
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(claim->context);
    uint64_t round = ++rounds;
    while (pool && !ends && !(slab = find_open(pool, claim))) {
        if (!claim->dependent)
            mark_stream(pool, claim->stream, claim->thread, false, round);
        bool again = end.tv_sec;
        if ((slab = open_slab(pool, claim, !again || !claim->dependent, reason)) || claim->bytes > pool->most)
            break;
        if (!again)
            end = in_seconds(PATIENCE);
        if (!wait_for_slab(pool, claim, &end, round))
            break;
    }
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
static bool has_ended(const struct pool *pool) {
    uint64_t asked = 0;
    EACH_SLAB (slab, &pool->draining) {
        if (slab->state == SLAB_COPYING || (slab->state == SLAB_ISSUED && slab->ended))
            return true;
        if (slab->state != SLAB_ISSUED || slab->number <= asked)
            continue;
        asked = slab->number;
        int mode = hook_begin_calls();
        bool ended = !hook_do.query(slab->event);
        hook_end_calls(mode);
        if (ended)
            return true;
        next = TAILQ_FIRST(&pool->draining);
    }
    return false;
}

uint64_t hook_wait_for_count(const struct claim *claim, const struct demand *demand) {
    struct timespec end = {0};
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = ends ? NULL : hook_find_pool(claim->context);
    uint64_t round = ++rounds;
    while (pool && !uncounted && !wait_timed_out && !hook_is_counted(demand) &&
           (hook_settings.complete ? drain_others(pool, claim, round) : has_ended(pool))) {
        if (!end.tv_sec)
            end = in_seconds(hook_settings.complete ? PATIENCE : HASTE);
        if (!hook_is_counted(demand)) // the lock was dropped
            uncounted |= wait_for_return(&end) != 0;
    }
    pthread_mutex_unlock(&hook_pools_lock);
    return !pool ? 0 : hook_settings.complete ? pool->most : pool->most / 2; // others wait for nothing
}

uint64_t hook_slab_address(const struct slab *slab) { return slab->address; }

void hook_issue(struct slab *slab, struct save *save) {
    pthread_mutex_lock(&hook_pools_lock);
    bool lost = save && (over || slab->state != SLAB_CLAIMED); // the process ends
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
    hook_step(slab, slab->failed || slab->issuing ? SLAB_RETIRE : SLAB_PUT_BACK);
    pthread_mutex_unlock(&hook_pools_lock);
}

// -- Slabs of graphs -------------------------------------------------------

static struct slab *hold_once(struct pool *pool, uint64_t bytes, uint64_t size,
                              const struct reason **reason) {
    struct slab *slab = hook_ready_slab(pool, bytes, size, false);
    if (slab && slab->size <= 2 * size) { // leave much larger slabs to launches
        hook_step(slab, SLAB_TAKE);
        return slab;
    }
    *reason = WHY(no_buffer);
    if (!hook_make_room(pool, size))
        return NULL;
    *reason = WHY(device_memory);
    return hook_new_slab(pool, size, false);
}

// Return whether memory remains for copying the results of any graph.
static bool leaves_room(const struct pool *pool, uint64_t size, uint64_t bytes, uint64_t replaced) {
    uint64_t others = pool->held > replaced ? pool->held - replaced : 0;
    return others + size + size_for(pool, bytes > pool->largest ? bytes : pool->largest) <= pool->most;
}

// Give a graph at most half of the memory, and leave room to copy the results of any graph: without that, no
// replay would be recorded.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const struct reason **reason) {
    uint64_t size = (bytes + HELD - 1) / HELD * HELD, context = hook_current_context();
    const struct claim any = {.thread = (uint32_t)gettid(), .stream = UINT64_MAX, .dependent = true};
    struct slab *slab = NULL;
    struct timespec end = in_seconds(PATIENCE);
    *reason = WHY(device_buffers);
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(context);
    if (pool && 2 * size > pool->most) {
        *reason = WHY(graph_over_limit);
        pool = NULL;
    } else if (pool && !leaves_room(pool, size, bytes, replaced)) {
        *reason = WHY(graph_buffers);
        pool = NULL;
    }
    if (pool)
        pool->held += size; // other threads see it while we call the driver
    uint64_t round = ++rounds;
    while (pool && !(slab = hold_once(pool, bytes, size, reason)) && wait_for_slab(pool, &any, &end, round))
        continue;
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
        for (uint64_t round = ++rounds;
             recall(pool, stream, thread) || mark_next(pool, stream, thread, true, round);)
            continue;
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
            hand(slab);
    }
    if (pool)
        mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, waited->thread, true, ++rounds);
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

void hook_drain_all(enum moment moment, uint64_t context) {
    struct timespec end = in_seconds(PATIENCE);
    if (!hook_first_pool()) // don't start a trace in a process that doesn't use the driver
        return;
    pthread_mutex_lock(&hook_pools_lock);
    ends |= moment == PROCESS_ENDS;
    bool needed = moment == MEMORY_NEEDED;
    for (struct pool *pool = hook_first_pool(); pool && !(needed && wait_timed_out); pool = pool->next) {
        if (!pool->made || (context && pool->context != context) || !hook_is_alive(pool->reference))
            continue;
        if (needed)
            mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, (uint32_t)gettid(), true, ++rounds);
        EACH_SLAB (slab,
                   &pool->in_use) { // the legacy stream makes others wait for each other: only at an end
            bool named = !needed || slab->stream != CU_STREAM_PER_THREAD_HANDLE;
            if ((!slab->issuing || moment == PROCESS_ENDS) && is_filled(slab) && named)
                hand(slab);
        }
        wait_timed_out |= !wait_for_sent(pool, &end) && needed;
        EACH_SLAB (slab, &pool->draining) {
            if (slab->state == SLAB_HANDED && moment == CONTEXT_ENDS)
                hook_step(slab, SLAB_REFUSE); // no call may be about this context any more
        }
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

// Give up what isn't in the queue of the writer yet.
static void give_up(struct slab *slab, CUresult failed) {
    if (!slab->saves)
        return;
    slab->failed = failed;
    send(slab);
}

void hook_abandon_pending(bool within_driver) {
    struct timespec end = in_seconds(within_driver ? HASTE : PATIENCE);
    CUresult failed = within_driver ? CUDA_ERROR_NOT_READY : CUDA_ERROR_LAUNCH_FAILED;
    pthread_mutex_lock(&hook_pools_lock);
    ends = true;
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        for (struct timespec soon = in_seconds(HASTE); pool->issuing && !within_driver;)
            if (pthread_cond_timedwait(&hook_pools_changed, &hook_pools_lock, &soon))
                break;
        over = true;
        EACH_SLAB (slab, &pool->in_use)
            give_up(slab, failed);
        EACH_SLAB (slab, &pool->draining)
            if (slab->state == SLAB_HANDED || slab->state == SLAB_MARKING)
                give_up(slab, failed);
        hook_wait_no_longer();
        wait_for_sent(pool, &end);
    }
    pthread_mutex_unlock(&hook_pools_lock);
}
