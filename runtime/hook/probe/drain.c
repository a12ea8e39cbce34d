// The thread that writes buffers to the trace. It sleeps while no launch has a buffer. While slabs are
// waiting for their events, it checks which events have completed whenever another slab is sent to it, and at
// intervals. So a graph's data is usually copied while the graph's next replay runs, and not when the program
// is about to launch that replay: at that point both would need the driver (docs/measured.md). It takes no
// signals.
//
// A slab that isn't full and that the program doesn't wait for would stay on the device, and be lost if the
// process is killed. So the writer also looks at slabs in use, and hands those with launches older than OLD
// to the marking thread. A buffer is in the trace's files within 200 ms of the end of its launch, unless
// others are queued before it, or it's in the driver's per-thread default stream, which only its own
// thread can name.

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver_calls.h"
#include "hook/write/write.h"
#include "probe.h"

enum { SECOND = 1000000000, BEHIND = 200000000 };                 // ns
enum { LOOK = 1000000, LOOK_MOST = 5000000, LOOK_SOON = 200000 }; // ns between two looks; if some call waits
// In ns: the age from which a launch counts as old, and the time between two checks for old launches.
enum { OLD = 50000000, LOOK_OLD = 25000000 };

// Guarded by hook_pools_lock
static bool begun, late;

// Write how many ticks the launch was delayed, and how many ticks have passed since its buffers were claimed.
static void write_times(const struct slab *slab, const struct save *save, uint64_t since) {
    double ns = hook_has_tsc ? 1e9 / (double)hook_tsc_hz() : 1;
    uint64_t kernel = 0, original = 0;
    bool known = !slab->failed && hook_read_benchmark(save, &kernel, &original);
    HOOK_WRITE(times, .launch = save->id, .prologue = (uint64_t)(ns * (double)save->prologue),
               .epilogue = (uint64_t)(ns * (double)(hook_now() - since)), .kernel = {known, kernel},
               .original = {known, original});
}

// When the writer last started to work after a pause, or 0. If that was long ago and more slabs are waiting,
// the writer can't keep up with the program.
static uint64_t busy_since;
static bool more_wait;

static bool is_behind(void) { return more_wait && hook_monotonic() - busy_since > BEHIND; }

static void write_buffers(struct slab *slab, const struct save *save) {
    const struct woven *woven = save->probed->woven;
    const uint64_t *sums = save->sums;
    uint64_t at = save->offset;
    if (hook_settings.memusage)
        hook_add_need(slab, save);
    for (size_t i = 0; i < woven->map_count && save->id; i++) {
        if (save->reduced && woven->maps[i].reducible)
            sums += hook_write_sums(save, &woven->maps[i], sums);
        else
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

// As many launches are written at once as are reduced together. The save of a node ends before its arguments.
enum { AT_ONCE = 64 };

static void write_replay(struct slab *slab, const struct save *save) {
    static struct save nodes[AT_ONCE];
    struct save *all[AT_ONCE];
    size_t at = 0, count = 0;
    bool more = true;
    while (more || count) {
        while (more && count < AT_ONCE && (more = hook_next_replayed(save, &at, &nodes[count])))
            count++;
        for (size_t i = 0; i < count; i++)
            all[i] = &nodes[i];
        size_t done = count ? hook_reduce(slab, all, count) : 0;
        for (size_t i = 0; i < done; i++)
            write_buffers(slab, &nodes[i]);
        memmove(nodes, nodes + done, (count -= done) * sizeof(*nodes));
    }
    hook_end_replay(save->replay);
}

// Write launches up to the next launch of a graph. Returns the save after them.
static struct save *write_saves(struct slab *slab, struct save *first) {
    struct save *all[AT_ONCE], *next = first;
    size_t count = 0;
    for (; next && !next->replay && count < AT_ONCE; next = next->next) {
        hook_write_launch(next);
        all[count++] = next;
    }
    size_t done = hook_reduce(slab, all, count);
    next = all[done - 1]->next;
    for (size_t i = 0; i < done; i++) {
        write_save(slab, all[i]);
        hook_free_save(all[i]);
    }
    return next;
}

static void write_slab(struct slab *slab) {
    hook_writer_calls = true;
    if (!slab->failed)
        slab->failed = hook_push_context(slab->context);
    hook_writer_calls = false;
    bool pushed = !slab->failed;
    for (struct save *save = slab->saves, *next; save; save = next) {
        if (!save->replay) {
            next = write_saves(slab, save);
            continue;
        }
        write_replay(slab, save);
        next = save->next;
        hook_free_save(save);
    }
    slab->saves = slab->last = NULL;
    slab->seen = 0;
    hook_forget_stage();
    hook_writer_calls = true;
    if (!slab->failed && !slab->copied)
        slab->failed = hook_zero_slab(slab, hook_used(slab));
    if (!slab->failed && !slab->copied)
        slab->failed = hook_do.record(slab->cleared, slab->ours);
    if (pushed)
        hook_pop_context();
    hook_writer_calls = false;
}

static void lose_buffers(struct save *save) {
    const struct reason *lost = hook_why_lost(CUDA_ERROR_NOT_READY);
    const struct woven *woven = save->probed->woven;
    if (hook_settings.memusage)
        hook_count_unprobed(save->probed->function, lost);
    for (size_t i = 0; i < woven->map_count && save->id; i++)
        HOOK_WRITE(buffer, .launch = save->id, .map = woven->maps[i].number, .size = save->sizes[i],
                   .lost = hook_str(lost->code));
}

void hook_lose(struct save *save) {
    struct save node;
    if (!save->replay) {
        hook_write_launch(save);
        lose_buffers(save);
    }
    for (size_t at = 0; save->replay && hook_next_replayed(save, &at, &node);)
        lose_buffers(&node);
    if (save->replay)
        hook_end_replay(save->replay);
    hook_free_save(save);
}

// The thread

// Take the next slab whose event has completed, or if `all` is false, only check the oldest slab of each
// context: if many slabs are waiting for events, we don't query all of them each time one is queued. While we
// query, other threads add slabs to the list, but only this thread removes them.
static struct slab *take_ready(bool all) {
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        EACH_SLAB (slab, &pool->draining) {
            if (slab->state != SLAB_ISSUED)
                continue;
            CUresult status = slab->failed;
            if (!status && !hook_is_alive(pool->reference)) {
                status = CUDA_ERROR_CONTEXT_IS_DESTROYED;
            } else if (!status && !slab->ended) {
                int mode = hook_begin_calls();
                hook_writer_calls = true;
                status = hook_do.query(slab->event);
                hook_writer_calls = false;
                hook_end_calls(mode);
                next = TAILQ_NEXT(slab, link);
            }
            if (status == CUDA_ERROR_NOT_READY && !late) {
                if (!all)
                    break;
                continue;
            }
            slab->failed = status;
            hook_step(slab, SLAB_COPY);
            return slab;
        }
    }
    return NULL;
}

static void put_back(struct slab *slab) {
    pthread_mutex_lock(&hook_pools_lock);
    atomic_fetch_and(&slab->places, PLACES_ISSUING);
    slab->known_ready = slab->copied; // the copy from it has completed
    slab->pool->stuck = slab->pool->uncounted = false;
    hook_step(slab, slab->failed || hook_issuing(slab) || slab->written_late ? SLAB_RETIRE : SLAB_PUT_BACK);
    pthread_mutex_unlock(&hook_pools_lock);
}

static struct timespec in_time(uint64_t ns) {
    return (struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)};
}

// Make sure that slabs with old launches are sent here, even if they're still in use. Returns when to check
// again, or 0 if it's enough to check when a slab is claimed.
static uint64_t hand_old(void) {
    static uint64_t next_look;
    uint64_t now = hook_monotonic();
    bool any = false;
    if (now < next_look)
        return next_look;
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next) {
        EACH_SLAB (slab, &pool->in_use) {
            bool named = slab->recorded || slab->stream != CU_STREAM_PER_THREAD_HANDLE;
            if (!named || !hook_is_alive(pool->reference))
                continue;
            any = true; // nobody tells us about a launch in a slab that's open already
            if (!hook_has_saves(slab))
                continue;
            slab->seen = slab->seen ? slab->seen : now;
            if (now - slab->seen < OLD || !hook_seal(slab, false))
                continue;
            if (slab->recorded)
                hook_step(slab, SLAB_SEND);
            else
                hook_hand(slab);
        }
    }
    next_look = any ? now + LOOK_OLD : 0;
    return next_look;
}

static void *work(void *unused) {
    (void)unused;
    uint64_t pause = LOOK, next = 0; // look at all
    bool all = true;
    pthread_mutex_lock(&hook_pools_lock);
    for (;;) {
        for (uint64_t then = hand_old(); !hook_slabs_issued; then = hand_old()) {
            struct timespec end = in_time(then);
            if (then)
                pthread_cond_timedwait(&hook_news, &hook_pools_lock, &end);
            else
                pthread_cond_wait(&hook_news, &hook_pools_lock);
        }
        struct slab *ready = take_ready(all || late);
        more_wait = hook_slabs_issued;
        if (!ready) {
            busy_since = 0;
            uint64_t now = hook_monotonic();
            hook_looks += all;
            if (all)
                next = now + pause, pause = 2 * pause > LOOK_MOST ? LOOK_MOST : 2 * pause;
            if (hook_is_awaited && now + LOOK_SOON < next)
                next = now + LOOK_SOON, pause = LOOK_SOON;
            hook_is_awaited = false;
            struct timespec end = in_time(next);
            all = pthread_cond_timedwait(&hook_news, &hook_pools_lock, &end) != 0;
            continue;
        }
        busy_since = busy_since ? busy_since : hook_monotonic();
        int mode = hook_begin_calls();
        write_slab(ready);
        put_back(ready);
        hook_end_calls(mode);
        pause = LOOK;
    }
    return NULL;
}

bool hook_begin_writing(void) {
    pthread_condattr_t clock;
    pthread_mutex_lock(&hook_pools_lock);
    if (!begun) {
        pthread_condattr_init(&clock);
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        pthread_cond_init(&hook_news, &clock);
        pthread_condattr_destroy(&clock);
        begun = hook_start_thread(work);
    }
    bool done = begun;
    pthread_mutex_unlock(&hook_pools_lock);
    return done;
}

void hook_wait_no_longer(void) {
    late = true;
    hook_progress++; // from here on, the writer can continue by itself
    pthread_cond_signal(&hook_news);
}

// -- Buffers as records ----------------------------------------------------
//
// Buffers become `buffer` records. Small ones go into the trace. Large ones are written in parts to the file
// next to the trace or, for a live stream, as several records. For a sparse array, only units that saved
// something are written. Except in a live stream, data is packed (pack.c), with zstd unless the writer lags
// behind. Only the used part of a log is read.
//
// Device memory is read through a pinned staging buffer, so that little memory is pinned.

enum {
    INLINE = 64 << 10,
    LEAST_PACKED = 512,    // below this size, the record's additional keys take as much as packing saves
    PART_LIVE = 448 << 10, // a record has to fit into a chunk
    PART = PACK_MOST,
    STAGE = 16 << 20,
    NUMBER = 8, // bytes of a unit's number
}; // bytes

// The stage

static struct {
    const struct slab *slab; // the slab that this is a part of
    uint64_t start, size;
} stage;

void hook_forget_stage(void) { stage.slab = NULL; }

static CUresult fetch(struct slab *slab, uint64_t start, uint64_t size) {
    CUresult status = *slab->stage ? CUDA_SUCCESS : hook_do.alloc_host((void **)slab->stage, STAGE);
    if (!status)
        status = hook_do.copy_back(*slab->stage, slab->address + start, size, slab->ours);
    return status ? status : hook_do.wait_stream(slab->ours);
}

const char *hook_fetch(struct slab *slab, uint64_t start, uint64_t size) {
    if (stage.slab == slab && start >= stage.start && start + size <= stage.start + stage.size)
        return *slab->stage + (start - stage.start);
    return hook_fetch_only(slab, start, hook_used(slab) - start < STAGE ? hook_used(slab) - start : STAGE);
}

const char *hook_fetch_only(struct slab *slab, uint64_t start, uint64_t size) {
    stage.slab = NULL;
    if (!slab->failed) {
        hook_writer_calls = true;
        slab->failed = fetch(slab, start, size);
        hook_writer_calls = false;
        hook_progress++;
    }
    if (slab->failed)
        return NULL;
    stage.slab = slab, stage.start = start, stage.size = size;
    return *slab->stage;
}

const struct reason *hook_why_lost(CUresult failed) {
    return failed == CUDA_ERROR_NOT_READY        ? WHY(not_read)
           : failed == CUDA_ERROR_INVALID_HANDLE ? WHY(stream_destroyed)
                                                 : WHY(device_failed);
}

void hook_add_need(struct slab *slab, const struct save *save) {
    const struct woven *woven = save->probed->woven;
    uint64_t at = save->offset, needed = save->needed;
    for (size_t i = 0; i < woven->map_count; i++) {
        const struct woven_map *map = &woven->maps[i];
        const char *head = map->log ? hook_fetch(slab, at, ROOM_HEAD) : NULL;
        if (map->log && !head) {
            hook_count_unprobed(save->probed->function, hook_why_lost(slab->failed));
            return;
        }
        if (head)
            needed += hook_rooms_claimed(head);
        at += hook_rounded(save->sizes[i]);
    }
    hook_count_need(save->probed->function, needed);
}

// Parts

struct part {
    const char *data; // to write
    uint64_t size;
    bool thin; // `units` units of a sparse array
    uint64_t units;
};

static bool is_zero(const char *data, uint64_t size) { return !*data && !memcmp(data, data + 1, size - 1); }

// Return how many units saved anything. Stop counting when there are too many to be written individually.
static bool is_thin(const char *data, uint64_t unit, uint64_t count, uint64_t *found) {
    *found = 0;
    for (uint64_t i = 0; i < count; i++)
        if (!is_zero(data + i * unit, unit) && 2 * ++*found * (NUMBER + unit) > count * unit)
            return false;
    return true;
}

// Drop units that saved nothing, if that makes the part at most half as large. `number` is the index of its
// first unit.
static void make_thin(struct part *part, uint64_t unit, uint64_t number) {
    static char *room;     // only one thread writes
    if (part->size % unit) // the part ends within a unit
        unit = part->size;
    uint64_t count = part->size / unit, units;
    if (!is_thin(part->data, unit, count, &units) || (!room && !(room = malloc(PART / 2))))
        return;
    char *to = room;
    for (uint64_t i = 0; i < count; i++)
        if (!is_zero(part->data + i * unit, unit)) {
            uint64_t which = number + i;
            memcpy(to, &which, NUMBER);
            memcpy(to + NUMBER, part->data + i * unit, unit);
            to += NUMBER + unit;
        }
    *part = (struct part){room, (uint64_t)(to - room), true, units};
}

void hook_write_parts(struct slab *slab, const struct save *save, const struct woven_map *map, uint64_t start,
                      uint64_t size) {
    uint64_t unit = map->log ? 0 : hook_unit_bytes(map);
    uint64_t most = hook_folder ? PART_LIVE : PART;
    const struct reason *lost = hook_settings.benchmark ? WHY(not_saved)
                                : hook_limit_reached()  ? WHY(max_disk)
                                                        : NULL;
    struct rooms log = {0};
    if (map->log && !lost && !hook_open_rooms(&log, hook_fetch_only, slab, save, map, start))
        lost = hook_why_lost(slab->failed);
    if (map->log && !lost) {
        size = log.size;
        hook_count_sectors(save->demand, (uint32_t)(map - save->probed->woven->maps), log.needed);
    }
    if (unit && unit <= most)
        most -= most % unit;
    uint64_t record = unit ? unit : ROOM_SECTOR;
    bool packs = !hook_folder && size >= LEAST_PACKED;
    for (uint64_t at = 0, length; at < size && !lost; at += length) {
        length = size - at < most ? size - at : most;
        struct part part = {map->log ? hook_read_rooms(&log, at, length)
                                     : hook_fetch(slab, start + at, length),
                            length, false, 0};
        if (!part.data) {
            lost = hook_why_lost(slab->failed);
            break;
        }
        if (unit)
            make_thin(&part, unit, at / unit);
        bool beside = !hook_folder && (part.thin ? part.size : size) > INLINE;
        uint64_t offset = 0, row = hook_pack_row(part.thin ? NUMBER + unit : record);
        bool quick = packs && is_behind();
        struct packing packed = {part.data, part.size, NULL, 0};
        if (packs && part.size)
            hook_pack(part.data, part.size, row, quick, &packed);
        if (!at) // data whose beginning doesn't shrink isn't packed
            packs = packed.codec;
        if (beside && !hook_put_beside(packed.data, packed.size, &offset)) {
            lost = hook_limit_reached() ? WHY(max_disk) : WHY(side_file);
            break;
        }
        bool counted = map->log && at + length == size;
        bool some = counted && log.dropped && log.entries;
        uint64_t units = hook_units(map, save->block_size), blocks[2] = {0};
        for (int i = 0; some && i < 2; i++)
            blocks[i] = (i ? log.last : log.first) / (units ? units : 1);
        HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size, .at = {at != 0, at},
                   .length = {length != size, length}, .units = {part.thin, part.units},
                   .codec = hook_str(packed.codec), .row = {packed.row, packed.row}, .quick = {quick, quick},
                   .path = hook_str(beside ? hook_name_beside() : NULL), .offset = {beside, offset},
                   .packed = {beside && packed.codec, packed.size}, .entries = {counted, log.entries},
                   .dropped = {!at && log.dropped, log.dropped}, .blocks = {some ? blocks : NULL, 2},
                   .data = {beside ? NULL : packed.data, packed.size});
    }
    if (lost)
        HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size,
                   .lost = hook_str(lost->code));
}
