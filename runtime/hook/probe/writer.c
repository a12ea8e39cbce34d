// Buffers go into the trace, large ones into a file beside it: NAME.buffers. The thread sleeps while nothing
// is on its way; while something is, it looks every now and then which events have come. It takes no signals,
// and makes no calls but these looks.

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"
#include "hook/write/live.h"
#include "hook/write/record.h"
#include "hook/write/thread.h"
#include "writer.h"

enum { INLINE = 64 << 10, LOOK = 200000, LOOK_MOST = 5000000 }; // bytes; ns between two looks

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static struct slab *first, **last = &first;
static bool begun;

// The file beside the trace

static int side_file = -1;
static uint64_t side_size;
static char side_path[4200];

static bool open_side(void) {
    if (side_file >= 0)
        return true;
    if (*side_path)
        return false; // it was tried
    snprintf(side_path, sizeof(side_path), "%s.buffers", hook_live->path);
    unlink(side_path); // of an earlier trace of this name
    side_file = open(side_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    return side_file >= 0;
}

static bool write_side(const char *data, uint64_t size, uint64_t *offset) {
    if (!open_side())
        return false;
    *offset = side_size;
    for (uint64_t done = 0; done < size;) {
        ssize_t more = pwrite(side_file, data + done, size - done, (off_t)(side_size + done));
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return false;
        done += (uint64_t)more;
    }
    side_size += (size + 7) / 8 * 8;
    return true;
}

// Records

static void write_buffer(const struct save *save, const struct woven_map *map, const char *data,
                         uint64_t size, const char *lost) {
    const char *name = strrchr(side_path, '/');
    uint64_t offset = 0;
    bool small = size <= INLINE, beside = !lost && !small && write_side(data, size, &offset);
    if (!lost && !small && !beside)
        lost = "the file beside the trace cannot be written";
    name = strrchr(side_path, '/');
    HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size,
               .path = hook_str(beside ? name ? name + 1 : side_path : NULL), .offset = {beside, offset},
               .data = {!lost && small ? data : NULL, size}, .lost = hook_str(lost));
}

static void write_slab(struct slab *slab) {
    for (struct save *save = slab->saves, *next; save; save = next) {
        const struct woven *woven = save->probed->woven;
        uint64_t at = save->offset;
        for (size_t i = 0; i < woven->map_count && save->id; i++) {
            write_buffer(save, &woven->maps[i], (const char *)slab->host + at, save->sizes[i],
                         slab->failed ? "the device failed" : NULL);
            at += (save->sizes[i] + 255) / 256 * 256;
        }
        next = save->next;
        free(save);
    }
    slab->saves = slab->last = NULL;
}

// The thread

static void *work(void *unused) {
    (void)unused;
    long pause = LOOK;
    hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first)
            pthread_cond_wait(&news, &lock);
        struct slab *ready = NULL;
        for (struct slab **at = &first; *at && !ready;) {
            struct slab *slab = *at;
            CUresult status = slab->failed ? slab->failed : hook_do.query(slab->done);
            if (status == CUDA_ERROR_NOT_READY) {
                at = &slab->later;
                continue;
            }
            slab->failed = status;
            *at = slab->later;
            if (last == &slab->later)
                last = at;
            ready = slab;
        }
        pthread_mutex_unlock(&lock);
        if (ready) {
            write_slab(ready);
            hook_slab_back(ready);
            pause = LOOK;
        } else {
            nanosleep(&(struct timespec){0, pause}, NULL);
            pause = 2 * pause > LOOK_MOST ? LOOK_MOST : 2 * pause;
        }
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

static bool begin(void) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    begun = !pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (begun)
        pthread_detach(thread);
    return begun;
}

void hook_write_later(struct slab *slab, uint64_t context) {
    (void)context;
    pthread_mutex_lock(&lock);
    slab->later = NULL;
    *last = slab;
    last = &slab->later;
    if (begun || begin())
        pthread_cond_signal(&news);
    pthread_mutex_unlock(&lock);
}
