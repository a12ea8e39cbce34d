// A slab belongs to a stream while launches of that take places in it. When it is full, or the program waits
// for the GPU, an event goes into the stream. When that has come a thread (writer.c) copies what is in the
// slab, writes it into the trace, clears the slab and gives it back. So nothing waits, and nothing of ours
// comes between two launches that overlap: the event is put off until the next launch that does not depend on
// its predecessor. What graphs wrote is copied to slabs of their own, which are not cleared. One
// that is half full counts as full: the next replay most likely needs as much.

#include <pthread.h>
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
static bool ends;        // the process: nothing is claimed any more
static bool in_vain;     // a wait in a call: some kernel waits for what the program does next
static bool uncounted;   // a wait for the count of a launch was in vain
static unsigned joining; // calls of the program by which streams come to be captured

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

// What is in a slab is to be written, once its event has come.
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
    slab->known_ready = slab->copied; // what was read of it has come
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

static struct slab *open_slab(struct pool *pool, const struct claim *claim, const char **reason) {
    uint64_t size = size_for(pool, claim->bytes);
    struct slab *slab = hook_ready_slab(pool, claim->bytes, size, claim->copied);
    if (!slab && size > pool->most) {
        *reason = "its buffers are larger than --max-memory";
        return NULL;
    }
    if (!slab && !hook_has_room(pool, size)) {
        *reason = "no buffer was free within --max-memory";
        return NULL;
    }
    if (!slab && !(slab = hook_new_slab(pool, size, claim->copied))) {
        *reason = "the device has no memory for its buffers";
        return NULL;
    }
    if (!slab->known_ready && !hook_do.query(slab->done))
        slab->known_ready = true;
    if (!slab->known_ready && claim->dependent) {
        *reason = "no clear buffer was there for a launch that depends on its predecessor";
        return NULL;
    }
    if (!slab->known_ready && hook_do.wait_event(claim->stream, slab->done, 0)) {
        *reason = "its stream takes no event";
        return NULL;
    }
    take(slab, SLAB_OPEN);
    TAILQ_INSERT_HEAD(&pool->in_use, slab, link);
    slab->stream = claim->stream;
    slab->thread = claim->thread;
    slab->used = 0;
    return slab;
}

static struct slab *claim_once(struct pool *pool, const struct claim *claim, const char **reason) {
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
    if (!drain_others(pool, claim) || in_vain)
        return false;
    if (!hook_settings.complete) {
        hook_write_soon(); // for later launches
        return false;
    }
    in_vain = wait_for_return(end) != 0;
    return true;
}

struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const char **reason) {
    struct slab *slab = NULL;
    struct timespec end = in_seconds(PATIENCE);
    *reason = "the device takes no buffers";
    pthread_mutex_lock(&hook_pools_lock);
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    struct pool *pool = ends ? NULL : hook_find_pool(claim->context);
    if (ends)
        *reason = "the process was about to end";
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
    while (pool && !uncounted && !in_vain && !hook_is_counted(demand) &&
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

static struct slab *hold_once(struct pool *pool, uint64_t bytes, uint64_t size, const char **reason) {
    struct slab *slab = hook_ready_slab(pool, bytes, size, false);
    if (slab && slab->size <= 2 * size) // what is much larger is left to launches
        return slab;
    *reason = "no buffer was free within --max-memory";
    if (!hook_has_room(pool, size))
        return NULL;
    *reason = "the device has no memory for its buffers";
    return hook_new_slab(pool, size, false);
}

// For what is copied out of any graph.
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

// Half of the memory at most for a graph, and room is left for what is copied out of any: graphs that have
// all of it would have no replay recorded.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const char **reason) {
    uint64_t size = (bytes + HELD - 1) / HELD * HELD;
    const struct claim any = {.thread = (uint32_t)gettid()};
    struct slab *slab = NULL;
    struct timespec end = in_seconds(PATIENCE);
    *reason = "the device takes no buffers";
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(hook_current_context());
    if (pool && 2 * size > pool->most) {
        *reason = "the buffers of its graph are larger than half of --max-memory";
        pool = NULL;
    } else if (pool && !leaves_room(pool, size, bytes, replaced)) {
        *reason = "other graphs have the buffers that there are within --max-memory";
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

// A stream of UINT64_MAX stands for all. Another context than that of the thread is its for a moment.
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

// Between the look whether a stream is captured and our event in it no capture may begin: such an event never
// comes, and one in the legacy stream would spoil the capture. Of the stream that a call is about only that
// call could begin one.
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

// Until what was sent back by now is there: meanwhile other threads go on. False if the time is over.
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
    if (!hook_first_pool()) // nor is there a trace in a process that does not use the driver
        return;
    struct thread *thread = hook_this_thread();
    pthread_mutex_lock(&hook_pools_lock);
    ends |= moment == PROCESS_ENDS;
    bool needed = moment == MEMORY_NEEDED;
    for (struct pool *pool = hook_first_pool(); pool && !(needed && in_vain); pool = pool->next) {
        while (joining && !pthread_cond_timedwait(&returned, &hook_pools_lock, &end))
            continue;
        if ((needed && pool->context != hook_current_context()) ||
            !drain_pool(pool, UINT64_MAX, thread ? thread->tid : 0, moment))
            continue;
        in_vain |= !wait_for_sent(pool, &end) && needed;
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

void hook_lose_rest(bool within_driver) {
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
