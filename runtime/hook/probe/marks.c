// Events that are put after the launches of a slab, and waits for slabs. This code is used by buffers.c,
// which claims slabs, and by moments.c, which takes them from their streams. slabs.c explains the life cycle
// of a slab, the lock and all waits.

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

enum { SECOND = 1000000000, SOON = 1000000 }; // ns

static pthread_cond_t handed = PTHREAD_COND_INITIALIZER;
static unsigned joining;            // calls of the program in progress that may start capturing streams
static const struct slab *marked;   // the slab that the marking thread is marking
static const struct pool *prepared; // the pool that it gets another slab for
static _Atomic bool marker_calls;   // it's in a call of the driver
uint64_t hook_rounds;

pthread_cond_t hook_news; // uses CLOCK_MONOTONIC, as musl has no pthread_cond_clockwait
bool hook_is_awaited;
uint64_t hook_looks;
_Atomic bool hook_writer_calls;

void hook_write_later(void) { pthread_cond_signal(&hook_news); }

void hook_write_soon(void) {
    hook_is_awaited = true;
    pthread_cond_signal(&hook_news);
}

struct timespec hook_in_ns(int ns) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += ns;
    end.tv_sec += end.tv_nsec / SECOND;
    end.tv_nsec %= SECOND;
    return end;
}

// -- Waiting ---------------------------------------------------------------
//
// A wait is given up after a number of seconds in which only the driver or the program could have ended it.
// The count restarts when a slab makes progress. A second in which one of our threads had work but wasn't
// scheduled isn't counted: on a busy machine that can take long, but it ends.

static void begin_second(struct patience *patience) {
    patience->end = hook_in_ns(SECOND);
    patience->progress = hook_progress;
    patience->looks = hook_looks;
}

struct patience hook_patience_of(unsigned seconds, bool by_clock) {
    struct patience made = {.seconds = seconds, .left = seconds, .by_clock = by_clock};
    begin_second(&made);
    return made;
}

// Return whether our threads did nothing in this second except wait for calls of the driver.
static bool is_up_to_driver(const struct patience *patience) {
    unsigned handed_count = 0, issued = 0, copying = 0;
    for (const struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        handed_count += pool->count[SLAB_HANDED];
        issued += pool->count[SLAB_ISSUED];
        copying += pool->count[SLAB_COPYING];
    }
    bool marker = marker_calls || (!marked && !prepared && (!handed_count || joining));
    bool looked = hook_looks - patience->looks > 1; // at least one pass began in this second
    return marker && (hook_writer_calls || (!copying && (!issued || looked)));
}

static bool is_before(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

bool hook_wait_for_return(struct patience *patience, bool soon) {
    struct timespec end = hook_in_ns(SOON), now;
    if (!soon || is_before(&patience->end, &end))
        end = patience->end;
    hook_write_soon();
    pthread_cond_timedwait(&hook_pools_changed, &hook_pools_lock, &end);
    now = hook_in_ns(0);
    if (is_before(&now, &patience->end))
        return true;
    if (hook_progress != patience->progress && !patience->by_clock)
        patience->left = patience->seconds;
    else if (patience->by_clock || is_up_to_driver(patience))
        patience->left--;
    begin_second(patience);
    return patience->left;
}

// -- Marking ---------------------------------------------------------------
//
// Puts an event into a slab's stream, after its launches. A call of the program that uses the stream does
// this itself; for other streams, the marking thread does.

void hook_send(struct slab *slab) {
    hook_step(slab, SLAB_SEND);
    hook_write_later();
}

// The default stream of another thread can't be named, but the legacy stream waits for it.
CUresult hook_put_event(const struct slab *slab, bool by_name) {
    bool foreign = slab->stream == CU_STREAM_PER_THREAD_HANDLE && !by_name;
    uint64_t stream = foreign ? CU_STREAM_LEGACY_HANDLE : slab->stream;
    int capturing = 0;
    CUresult status = hook_do.is_capturing(stream, &capturing);
    if (!status && capturing)
        status = CUDA_ERROR_NOT_READY;
    return status ? status : hook_do.record(slab->event, stream);
}

static void end_marking(struct slab *slab, CUresult status) {
    if (slab->state != SLAB_MARKING) // it was given up in the meantime
        return;
    slab->refused = status;
    if (status)
        hook_step(slab, SLAB_REFUSE);
    else
        hook_send(slab);
}

void hook_mark(struct slab *slab) {
    hook_step(slab, SLAB_MARK);
    int mode = hook_begin_calls();
    CUresult status = hook_put_event(slab, true);
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

bool hook_is_marking(const struct pool *pool) { return prepared == pool || (marked && marked->pool == pool); }

// Make a context current for calls of the marking thread. After them, end_calls must be called.
static bool begin_calls_in(const struct pool *pool, int *mode) {
    *mode = hook_begin_calls();
    marker_calls = true;
    return hook_is_alive(pool->reference) && !hook_push_context(pool->context);
}

static void end_calls_in(bool pushed, int mode) {
    if (pushed)
        hook_pop_context();
    marker_calls = false;
    hook_end_calls(mode);
}

static void mark_handed(struct slab *slab) {
    int mode;
    marked = slab;
    hook_step(slab, SLAB_MARK);
    bool there = begin_calls_in(slab->pool, &mode);
    CUresult status = there ? hook_put_event(slab, false) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    end_calls_in(there, mode);
    marked = NULL;
    end_marking(slab, status);
}

static struct pool *next_wanting(void) {
    struct pool *pool = hook_pools_end ? NULL : hook_first_pool();
    while (pool && !pool->wanted)
        pool = pool->next;
    return pool;
}

void hook_want_slab(struct pool *pool, uint64_t size) {
    pool->wanted = size;
    pthread_cond_signal(&handed);
}

static void prepare(struct pool *pool) {
    uint64_t size = pool->wanted;
    int mode;
    pool->wanted = 0;
    prepared = pool;
    bool there = begin_calls_in(pool, &mode);
    marker_calls = false;
    hook_end_calls(mode);
    if (there)
        hook_prepare_slab(pool, size, false, &marker_calls);
    mode = hook_begin_calls();
    marker_calls = there;
    end_calls_in(there, mode);
    prepared = NULL;
}

static void *run_marking(void *unused) {
    (void)unused;
    pthread_mutex_lock(&hook_pools_lock);
    for (;;) {
        struct slab *slab = next_handed();
        struct pool *pool = slab ? NULL : next_wanting();
        if (slab)
            mark_handed(slab);
        else if (pool)
            prepare(pool);
        else {
            pthread_cond_wait(&handed, &hook_pools_lock);
            continue;
        }
        pthread_cond_broadcast(&hook_pools_changed);
    }
    return NULL;
}

bool hook_begin_marking(void) {
    static bool begun;
    pthread_mutex_lock(&hook_pools_lock);
    begun = begun || hook_start_thread(run_marking);
    bool done = begun;
    pthread_mutex_unlock(&hook_pools_lock);
    return done;
}

// No capture may begin between our check that a stream isn't being captured and our event: the event would
// never complete, and in the legacy stream it would invalidate the capture. A call about a stream needn't be
// protected from itself.
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

bool hook_mark_next(struct pool *pool, uint64_t stream, uint32_t thread, bool any, uint64_t round) {
    EACH_SLAB (slab, &pool->in_use) {
        if (slab->round >= round || !hook_is_filled(slab) || !(any || slab->full) ||
            !hook_is_of(slab, stream, thread) || !hook_seal(slab, false))
            continue;
        slab->round = round;
        hook_mark(slab);
        return true;
    }
    return false;
}

void hook_mark_stream(struct pool *pool, uint64_t stream, uint32_t thread, bool any, uint64_t round) {
    while (hook_mark_next(pool, stream, thread, any, round))
        continue;
}

bool hook_recall(struct pool *pool, uint64_t stream, uint32_t thread) {
    bool any = false;
    EACH_SLAB (slab, &pool->draining) {
        if (slab->state != SLAB_HANDED || !hook_is_of(slab, stream, thread))
            continue;
        hook_step(slab, SLAB_REFUSE);
        slab->round = hook_rounds;
        any = true;
    }
    bool waits = marked && marked->pool == pool && hook_is_of(marked, stream, thread);
    if (waits)
        pthread_cond_wait(&hook_pools_changed, &hook_pools_lock);
    return waits || any;
}

void hook_drain_others(struct pool *pool, const struct claim *claim, uint64_t round) {
    if (!claim->dependent)
        hook_mark_stream(pool, claim->stream, claim->thread, true, round);
    if (claim->stream != CU_STREAM_PER_THREAD_HANDLE)
        hook_mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, claim->thread, true, round);
    EACH_SLAB (slab, &pool->in_use) {
        if (slab->round >= round || !hook_is_filled(slab) || hook_is_of(slab, claim->stream, claim->thread) ||
            !hook_seal(slab, false))
            continue;
        slab->ended = !hook_has_saves(slab) && !slab->written_late; // no launch was made
        bool sends = slab->recorded || slab->ended;
        if (!sends && slab->stream == CU_STREAM_PER_THREAD_HANDLE) {
            hook_unseal(slab);
            continue;
        }
        slab->round = round;
        if (sends)
            hook_send(slab);
        else
            hook_hand(slab);
    }
}

bool hook_any_issuing(const struct pool *pool) {
    const struct slab_list *lists[] = {&pool->in_use, &pool->draining, &pool->retired};
    for (int i = 0; i < 3; i++)
        EACH_SLAB (slab, lists[i]) {
            if (hook_issuing(slab))
                return true;
        }
    return false;
}

bool hook_may_return(const struct pool *pool) {
    return joining || !TAILQ_EMPTY(&pool->draining) || hook_any_issuing(pool) || pool->count[SLAB_TAKEN] ||
           pool->making;
}
