// The thread that writes buffers into the trace (parts.c). It sleeps while nothing is on its way; while
// something is, it looks which events have come when more is sent after it, and every now and then. So what a
// graph wrote is most likely copied while its next replay runs, and not when the program is about to launch
// that: there both would want the driver (docs/measured.md). It takes no signals.

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "driver_calls.h"
#include "hook/write/write.h"
#include "probe.h"

enum { SECOND = 1000000000 };                                     // ns
enum { LOOK = 1000000, LOOK_MOST = 5000000, LOOK_SOON = 200000 }; // ns between two looks; if some call waits

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news; // by CLOCK_MONOTONIC; musl has no pthread_cond_clockwait
static struct slab *first, **last = &first;
static bool begun, late, waited_for;

// Of the ticks that a launch was held up, and those that its buffers have taken since.
static void write_times(const struct slab *slab, const struct save *save, uint64_t since) {
    double ns = hook_has_tsc ? 1e9 / (double)hook_tsc_hz() : 1;
    uint64_t kernel = 0, original = 0;
    bool known = !slab->failed && hook_read_benchmark(save, &kernel, &original);
    HOOK_WRITE(times, .launch = save->id, .prologue = (uint64_t)(ns * (double)save->prologue),
               .epilogue = (uint64_t)(ns * (double)(hook_now() - since)), .kernel = {known, kernel},
               .original = {known, original});
}

static void write_buffers(struct slab *slab, const struct save *save) {
    const struct woven *woven = save->probed->woven;
    uint64_t at = save->offset;
    if (hook_settings.memusage)
        hook_add_need(slab, save);
    for (size_t i = 0; i < woven->map_count && save->id; i++) {
        hook_write_parts(slab, save, &woven->maps[i], at, save->sizes[i]);
        at += hook_rounded(save->sizes[i]);
    }
}

static void write_save(struct slab *slab, struct save *save) {
    uint64_t since = hook_now();
    write_buffers(slab, save);
    if (save->id)
        write_times(slab, save, since);
    if (!slab->failed)
        hook_forget_benchmark(save);
}

static void write_replay(struct slab *slab, const struct save *save) {
    struct save node;
    for (size_t at = 0; hook_next_replayed(save, &at, &node);)
        write_buffers(slab, &node);
    hook_end_replay(save->replay);
}

static void write_slab(struct slab *slab) {
    uint64_t unused;
    if (!slab->failed)
        slab->failed = hook_do.push_context(slab->context);
    bool pushed = !slab->failed;
    for (struct save *save = slab->saves, *next; save; save = next) {
        if (save->replay)
            write_replay(slab, save);
        else
            write_save(slab, save);
        next = save->next;
        hook_free_save(save);
    }
    slab->saves = slab->last = NULL;
    hook_forget_stage();
    if (!slab->failed && !slab->copied)
        slab->failed = hook_zero_slab(slab, slab->used);
    if (!slab->failed && !slab->copied)
        slab->failed = hook_do.record(slab->done, slab->ours);
    if (pushed)
        hook_do.pop_context(&unused);
}

static void lose_buffers(const struct save *save) {
    const char *lost = hook_why_lost(CUDA_ERROR_NOT_READY);
    const struct woven *woven = save->probed->woven;
    if (hook_settings.memusage)
        hook_count_unprobed(save->probed->function, lost);
    for (size_t i = 0; i < woven->map_count && save->id; i++)
        HOOK_WRITE(buffer, .launch = save->id, .map = woven->maps[i].number, .size = save->sizes[i],
                   .lost = hook_str(lost));
}

void hook_lose(struct save *save) {
    struct save node;
    if (!save->replay)
        lose_buffers(save);
    for (size_t at = 0; save->replay && hook_next_replayed(save, &at, &node);)
        lose_buffers(&node);
    if (save->replay)
        hook_end_replay(save->replay);
    hook_free_save(save);
}

// The thread

// Of all, or the oldest: events that many slabs wait for are not all asked for with each one that is sent.
// The driver is asked without the lock, as it may have locks of its own. Slabs leave the list here alone.
static struct slab *take_ready(bool all) {
    for (struct slab **at = &first, *slab; (slab = *at); at = &slab->later) {
        CUresult status = slab->failed;
        if (!status) {
            pthread_mutex_unlock(&lock);
            status = hook_do.query(slab->event);
            pthread_mutex_lock(&lock);
        }
        if (status == CUDA_ERROR_NOT_READY && !late) {
            if (!all)
                return NULL;
            continue;
        }
        slab->failed = status;
        *at = slab->later;
        if (last == &slab->later)
            last = at;
        return slab;
    }
    return NULL;
}

static void *work(void *unused) {
    (void)unused;
    uint64_t pause = LOOK, next = 0; // look at all
    bool all = true;
    hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first)
            pthread_cond_wait(&news, &lock);
        struct slab *ready = take_ready(all || late);
        if (!ready) {
            uint64_t now = hook_monotonic();
            if (all)
                next = now + pause, pause = 2 * pause > LOOK_MOST ? LOOK_MOST : 2 * pause;
            if (waited_for && now + LOOK_SOON < next)
                next = now + LOOK_SOON, pause = LOOK_SOON;
            waited_for = false;
            struct timespec end = {(time_t)(next / SECOND), (long)(next % SECOND)};
            all = pthread_cond_timedwait(&news, &lock, &end) != 0;
            continue;
        }
        pthread_mutex_unlock(&lock);
        write_slab(ready);
        hook_slab_back(ready);
        pause = LOOK;
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

void hook_wait_no_longer(void) {
    pthread_mutex_lock(&lock);
    late = true;
    pthread_cond_signal(&news);
    pthread_mutex_unlock(&lock);
}

bool hook_begin_writing(void) {
    pthread_condattr_t clock;
    pthread_mutex_lock(&lock);
    if (!begun) {
        pthread_condattr_init(&clock);
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        pthread_cond_init(&news, &clock);
        pthread_condattr_destroy(&clock);
        begun = hook_start_thread(work);
    }
    pthread_mutex_unlock(&lock);
    return begun;
}

void hook_write_later(struct slab *slab) {
    pthread_mutex_lock(&lock);
    slab->later = NULL;
    *last = slab;
    last = &slab->later;
    pthread_cond_signal(&news);
    pthread_mutex_unlock(&lock);
}

void hook_write_soon(void) {
    pthread_mutex_lock(&lock);
    waited_for = true;
    pthread_cond_signal(&news);
    pthread_mutex_unlock(&lock);
}
