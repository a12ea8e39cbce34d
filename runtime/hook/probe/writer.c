// Buffers go into the trace, large ones into a file beside it: NAME.buffers. The thread sleeps while nothing
// is on its way; while something is, it looks every now and then which events have come. It takes no signals.
// Device memory is read through a stage in pinned memory, so that as little as that is pinned.

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/broker.h"
#include "driver_calls.h"
#include "hook/write/errors.h"
#include "hook/write/live.h"
#include "hook/write/record.h"
#include "hook/write/thread.h"
#include "writer.h"

enum {
    INLINE = 64 << 10,
    STAGE = 16 << 20,
    INLINE_LIVE = 448 << 10,
    LOOK = 200000,
    LOOK_MOST = 5000000
}; // bytes; ns between two looks

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static struct slab *first, **last = &first;
static bool begun, late;

// The file beside the trace

static int side_file = -1;
static struct stat side; // what it is, once it is made
static uint64_t side_size;
static char side_path[4200];

static bool is_side(int file) {
    struct stat found;
    return !fstat(file, &found) && found.st_dev == side.st_dev && found.st_ino == side.st_ino;
}

// A file that is there stays as it is, whosever it is: the next number is taken.
static int make_side(void) {
    int file = -1, size = snprintf(side_path, sizeof(side_path) - 16, "%s.buffers", hook_live->path);
    for (int number = 2; file < 0 && number < 1000 && (number == 2 || errno == EEXIST); number++) {
        file = open(side_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file < 0)
            snprintf(side_path + size, 16, ".%d", number);
    }
    return file;
}

// The program may close what it did not open, and get the number for a file of its own: so before each use it
// is seen whose number it is.
static bool open_side(void) {
    bool made = *side_path;
    if (made && side_file >= 0 && is_side(side_file))
        return true;
    if (made && !side.st_ino)
        return false; // it was tried
    side_file = gpt_set_aside(made ? open(side_path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW) : make_side());
    if (!made && side_file >= 0)
        fstat(side_file, &side);
    if (side_file >= 0 && is_side(side_file))
        return true;
    if (side_file >= 0)
        close(side_file); // somebody put another file there
    side_file = -1;
    return false;
}

static bool write_side(uint64_t offset, const char *data, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        ssize_t more = pwrite(side_file, data + done, size - done, (off_t)(offset + done));
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return false;
        done += (uint64_t)more;
    }
    return true;
}

// The stage

static struct {
    const struct slab *slab; // a part of which is there
    uint64_t start, size;
} stage;

// Bytes of a slab, as many as are wanted or fit; NULL if the device fails.
static const char *fetch(struct slab *slab, uint64_t start, uint64_t wanted) {
    uint64_t size = wanted < STAGE ? wanted : STAGE;
    if (stage.slab == slab && start >= stage.start && start + size <= stage.start + stage.size)
        return *slab->stage + (start - stage.start);
    if (!slab->failed && !*slab->stage)
        slab->failed = hook_do.alloc_host((void **)slab->stage, STAGE);
    size = slab->used - start < STAGE ? slab->used - start : STAGE;
    stage.slab = NULL;
    if (slab->failed)
        return NULL;
    slab->failed = hook_do.copy_back(*slab->stage, slab->address + start, size, slab->ours);
    if (!slab->failed)
        slab->failed = hook_do.wait_stream(slab->ours);
    if (slab->failed)
        return NULL;
    stage.slab = slab, stage.start = start, stage.size = size;
    return *slab->stage;
}

// Records

// Why a slab's buffers are.
static const char *why_lost(const struct slab *slab) {
    return slab->failed == CUDA_ERROR_NOT_READY ? "its kernel had not ended when the process did"
                                                : "the device failed";
}

static const char *move_to_side(struct slab *slab, uint64_t start, uint64_t size, uint64_t *offset) {
    static const char full[] = "the file beside the trace cannot be written";
    if (hook_is_followed)
        return "it is too large for a live stream";
    if (!open_side())
        return full;
    *offset = side_size;
    for (uint64_t done = 0; done < size;) {
        uint64_t part = size - done < STAGE ? size - done : STAGE;
        const char *data = fetch(slab, start + done, part);
        if (!data)
            return why_lost(slab);
        if (!write_side(*offset + done, data, part))
            return full;
        done += part;
    }
    side_size += (size + 7) / 8 * 8;
    return NULL;
}

static void write_buffer(struct slab *slab, const struct save *save, const struct woven_map *map,
                         uint64_t start, uint64_t size) {
    uint64_t offset = 0;
    bool small = size <= (hook_is_followed ? INLINE_LIVE : INLINE);
    const char *data = small ? fetch(slab, start, size) : NULL;
    const char *lost = small ? data ? NULL : why_lost(slab) : move_to_side(slab, start, size, &offset);
    const char *name = strrchr(side_path, '/');
    bool beside = !small && !lost;
    HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size,
               .path = hook_str(beside ? name ? name + 1 : side_path : NULL), .offset = {beside, offset},
               .data = {data, size}, .lost = hook_str(lost));
}

static void write_slab(struct slab *slab) {
    uint64_t unused;
    if (!slab->failed)
        slab->failed = hook_do.push_context(slab->context);
    bool pushed = !slab->failed;
    for (struct save *save = slab->saves, *next; save; save = next) {
        const struct woven *woven = save->probed->woven;
        uint64_t at = save->offset;
        for (size_t i = 0; i < woven->map_count && save->id; i++) {
            write_buffer(slab, save, &woven->maps[i], at, save->sizes[i]);
            at += hook_rounded(save->sizes[i]);
        }
        next = save->next;
        free(save);
    }
    slab->saves = slab->last = NULL;
    stage.slab = NULL;
    if (!slab->failed)
        slab->failed = hook_do.clear(slab->address, 0, slab->used, slab->ours);
    if (!slab->failed)
        slab->failed = hook_do.record(slab->done, slab->ours);
    if (pushed)
        hook_do.pop_context(&unused);
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
            CUresult status = slab->failed ? slab->failed : hook_do.query(slab->event);
            if (status == CUDA_ERROR_NOT_READY && !late) {
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

void hook_wait_no_longer(void) {
    pthread_mutex_lock(&lock);
    late = true;
    pthread_mutex_unlock(&lock);
}

void hook_write_later(struct slab *slab) {
    pthread_mutex_lock(&lock);
    slab->later = NULL;
    *last = slab;
    last = &slab->later;
    if (begun || (begun = hook_start_thread(work)))
        pthread_cond_signal(&news);
    pthread_mutex_unlock(&lock);
}
