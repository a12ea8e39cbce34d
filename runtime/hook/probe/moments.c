// The moments at which slabs leave their streams: the program has waited for the GPU, captures or destroys a
// stream, runs out of memory, destroys a context, or ends. slabs.c explains what happens at each of them.

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

// HASTE is how many seconds to wait if the driver may never answer. SECOND is one second in ns.
enum { HASTE = 1, SECOND = 1000000000 };

bool hook_give_slabs_back(void) {
    uint64_t context = hook_current_context();
    pthread_mutex_lock(&hook_pools_lock);
    struct pool *pool = hook_find_pool(context);
    if (pool)
        pool->wanted = 0; // the program needs the memory
    bool any = pool && hook_free_memory(pool);
    pthread_mutex_unlock(&hook_pools_lock);
    return any;
}

void hook_drain_stream(uint64_t stream, uint32_t thread, bool ends_now) {
    if (!hook_first_pool())
        return;
    pthread_mutex_lock(&hook_pools_lock);
    for (struct pool *pool = hook_first_pool(); pool;
         pool = pool->next) { // a stream may belong to any context
        if (!pool->made || !hook_is_alive(pool->reference))
            continue;
        uint64_t round = ++hook_rounds;
        do {
            while (hook_recall(pool, stream, thread))
                round = ++hook_rounds;
        } while (hook_mark_next(pool, stream, thread, true, round));
        EACH_SLAB (slab, &pool->in_use) {
            if (!ends_now || !hook_is_filled(slab) || !hook_is_of(slab, stream, thread) ||
                !hook_seal(slab, false))
                continue;
            slab->failed = CUDA_ERROR_INVALID_HANDLE;
            hook_send(slab);
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
        bool waited_for = waited->all || hook_is_of(slab, waited->stream, waited->thread),
             foreign = slab->stream == CU_STREAM_PER_THREAD_HANDLE;
        if (!hook_is_filled(slab) || (!waited_for && foreign) || !hook_seal(slab, false))
            continue;
        slab->ended = waited_for && slab->issued < waited->since; // sealed: no launch can come in between
        if (slab->ended)
            hook_send(slab);
        else if (foreign)
            hook_unseal(slab);
        else
            hook_hand(slab);
    }
    if (pool)
        hook_mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, waited->thread, true, ++hook_rounds);
    pthread_mutex_unlock(&hook_pools_lock);
}

// Wait for everything that has been sent, while other threads can continue. Returns false if that takes too
// long.
static bool wait_for_sent(const struct pool *pool, struct patience *patience) {
    uint64_t last = pool->sent;
    const struct slab *oldest;
    while ((oldest = TAILQ_FIRST(&pool->draining)) && oldest->number <= last)
        if (!hook_wait_for_return(patience, false))
            return false;
    return true;
}

// Send all slabs of a pool and wait for them, unless their stream is being captured.
static bool drain_pool(struct pool *pool, enum moment moment, struct patience *patience) {
    bool needed = moment == MEMORY_NEEDED, in_time = true;
    if (needed)
        hook_mark_stream(pool, CU_STREAM_PER_THREAD_HANDLE, (uint32_t)gettid(), true, ++hook_rounds);
    // Try twice: marking may have begun while the stream was being captured.
    for (int i = 0; i < 2 && in_time; i++) {
        EACH_SLAB (slab, &pool->in_use) {
            // The legacy stream makes other streams wait for each other, so it's used only when a context or
            // the process ends.
            bool named = !needed || slab->stream != CU_STREAM_PER_THREAD_HANDLE;
            if (!hook_is_filled(slab) || (!slab->recorded && !named) ||
                !hook_seal(slab, moment == PROCESS_ENDS))
                continue;
            if (slab->recorded && !hook_issuing(slab))
                hook_send(slab);
            else
                hook_hand(slab);
        }
        in_time = wait_for_sent(pool, patience);
    }
    // A slab that was given up when the process ended isn't waiting to be drained any more.
    while (moment == CONTEXT_ENDS && in_time && hook_is_marking(pool))
        in_time = hook_wait_for_return(patience, false);
    return in_time;
}

static void end_claims(void) {
    hook_pools_end = true;
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next)
        EACH_SLAB (slab, &pool->in_use)
            hook_seal(slab, true);
}

void hook_drain_all(enum moment moment, uint64_t context) {
    if (!hook_first_pool()) // don't start a trace in a process that doesn't use the driver
        return;
    pthread_mutex_lock(&hook_pools_lock);
    struct patience patience = hook_patience_of(PATIENCE, false);
    if (moment == PROCESS_ENDS)
        end_claims();
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        bool needed = moment == MEMORY_NEEDED;
        if (!pool->made || (context && pool->context != context) || !hook_is_alive(pool->reference) ||
            (needed && pool->stuck))
            continue;
        if (moment == CONTEXT_ENDS)
            pool->wanted = 0;
        if (!drain_pool(pool, moment, &patience) && needed)
            pool->stuck = true;
        EACH_SLAB (slab, &pool->draining) {
            if (slab->state == SLAB_HANDED && moment == CONTEXT_ENDS)
                hook_step(slab, SLAB_REFUSE); // no call may use this context any more
        }
    }
    pthread_mutex_unlock(&hook_pools_lock);
}

// Give up slabs that haven't been queued for the writer.
static void give_up(struct slab *slab) {
    hook_collect(slab);
    if (!slab->saves)
        return;
    slab->failed = slab->refused ? slab->refused : CUDA_ERROR_NOT_READY;
    hook_send(slab);
}

// The writer can't process these any more, because the driver doesn't answer.
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
    struct patience patience = hook_patience_of(within_driver ? HASTE : PATIENCE, within_driver);
    end_claims();
    hook_waits++;
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        for (struct timespec soon = hook_in_ns(SECOND); !within_driver && hook_any_issuing(pool);)
            if (pthread_cond_timedwait(&hook_pools_changed, &hook_pools_lock, &soon))
                break;
        hook_slabs_given_up = true;
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
