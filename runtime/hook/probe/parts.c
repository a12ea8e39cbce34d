// Buffers, as `buffer` records: small ones in the trace, large ones in parts, beside it or, of a live stream,
// in as many records. Of an array of which few units saved anything these are written only; what goes beside
// the trace is packed if that makes it smaller. Only what a log holds is read.
//
// Device memory is read through a stage in pinned memory, so that as little as that is pinned.

#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/write/write.h"
#include "probe.h"

enum {
    INLINE = 64 << 10,
    PART_LIVE = 448 << 10, // a record has to fit into a chunk
    PART = 4 << 20,
    STAGE = 16 << 20,
    NUMBER = 8, // of a unit
}; // bytes

// The stage

static struct {
    const struct slab *slab; // a part of which is there
    uint64_t start, size;
} stage;

void hook_forget_stage(void) { stage.slab = NULL; }

const char *hook_fetch(struct slab *slab, uint64_t start, uint64_t size) {
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

const char *hook_why_lost(CUresult failed) {
    return failed == CUDA_ERROR_NOT_READY ? "it was not read before the process ended" : "the device failed";
}

// Parts

struct part {
    const char *data; // what is to be written
    uint64_t size;
    bool thin; // it is `units` of an array
    uint64_t units;
};

static bool is_zero(const char *data, uint64_t size) { return !*data && !memcmp(data, data + 1, size - 1); }

// How many units saved anything, counted as long as they are few enough to be written alone.
static bool is_thin(const char *data, uint64_t unit, uint64_t count, uint64_t *found) {
    *found = 0;
    for (uint64_t i = 0; i < count; i++)
        if (!is_zero(data + i * unit, unit) && 2 * ++*found * (NUMBER + unit) > count * unit)
            return false;
    return true;
}

// Leaves out units that saved nothing, if that at least halves the part. `number` is that of its first.
static void make_thin(struct part *part, uint64_t unit, uint64_t number) {
    static char *room;     // of the one thread that writes
    if (part->size % unit) // it ends within one
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

struct log {
    uint64_t entries, dropped;
};

// What is in the buffer of a log, of so many bytes.
static struct log read_log(const struct woven_map *map, const char *data, uint64_t size) {
    uint64_t count, room = (size - sizeof(count)) / (NUMBER + map->stride);
    memcpy(&count, data, sizeof(count));
    return (struct log){count < room ? count : room, count < room ? 0 : count - room};
}

void hook_write_parts(struct slab *slab, const struct save *save, const struct woven_map *map, uint64_t start,
                      uint64_t size) {
    static const char full[] = "the file beside the trace cannot be written";
    uint64_t unit = map->log ? 0 : sizeof(uint64_t) + map->capacity * map->stride;
    uint64_t most = hook_folder ? PART_LIVE : PART;
    const char *lost = hook_settings.benchmark ? "--benchmark saves no buffers" : NULL, *data;
    struct log log = {0};
    if (map->log && !lost && (data = hook_fetch(slab, start, sizeof(uint64_t)))) {
        log = read_log(map, data, size);
        size = sizeof(uint64_t) + log.entries * (NUMBER + map->stride);
        hook_count_entries(save->demand, (uint32_t)(map - save->probed->woven->maps),
                           log.entries + log.dropped);
    }
    if (unit && unit <= most)
        most -= most % unit;
    bool packs = true;
    for (uint64_t at = 0, length; at < size && !lost; at += length) {
        length = size - at < most ? size - at : most;
        struct part part = {hook_fetch(slab, start + at, length), length, false, 0};
        if (!part.data) {
            lost = hook_why_lost(slab->failed);
            break;
        }
        if (unit)
            make_thin(&part, unit, at / unit);
        bool beside = !hook_folder && (part.thin ? part.size : size) > INLINE;
        uint64_t packed = 0, offset = 0;
        const void *smaller = beside && packs ? hook_compress(part.data, part.size, &packed) : NULL;
        if (!at) // what does not shrink at its beginning is left as it is
            packs = smaller != NULL;
        if (beside &&
            !hook_put_beside(smaller ? smaller : part.data, smaller ? packed : part.size, &offset)) {
            lost = full;
            break;
        }
        HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size, .at = {at != 0, at},
                   .length = {length != size, length}, .units = {part.thin, part.units},
                   .codec = hook_str(smaller ? "zstd" : NULL),
                   .path = hook_str(beside ? hook_name_beside() : NULL), .offset = {beside, offset},
                   .packed = {smaller != NULL, packed}, .entries = {map->log && !at, log.entries},
                   .dropped = {!at && log.dropped, log.dropped},
                   .data = {beside ? NULL : part.data, part.size});
    }
    if (lost)
        HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size, .lost = hook_str(lost));
}
