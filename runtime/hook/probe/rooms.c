// Reads logs after a launch. gpt/stream/rooms.py explains their layout, and gpt-stream(5), Rooms, specifies
// it.
//
// In a trace, the arenas follow each other, each cut off after the bytes that were claimed. So reading a log
// means joining parts of arenas. Along the way, the entries in the records are counted.

#include <stdlib.h>
#include <string.h>

#include "probe.h"

enum {
    DROPPED = 8,    // offset of an arena's second counter
    UNIT = 16,      // records are a multiple of this
    SIZE_BITS = 16, // a record's size is in the lowest bits of its second word
};

static uint64_t arena_bytes(const struct woven_map *map, uint8_t number) {
    unsigned arenas = 1u << (number >> 5);
    return (map->capacity / ROOM_ARENAS * ROOM_SECTOR << (number & 31)) * (ROOM_ARENAS / arenas);
}

static uint64_t counter(const struct rooms *log, unsigned arena, unsigned offset) {
    uint64_t count;
    memcpy(&count, log->head + (size_t)arena * ROOM_APART + offset, sizeof(count));
    return count;
}

uint64_t hook_rooms_claimed(const char *head) {
    uint64_t bytes = 0, claimed;
    for (unsigned i = 0; i < ROOM_ARENAS; i++) {
        memcpy(&claimed, head + (size_t)i * ROOM_APART, sizeof(claimed));
        bytes += claimed;
    }
    return bytes;
}

bool hook_open_rooms(struct rooms *log, fetch_part *fetch, struct slab *slab, const struct save *save,
                     const struct woven_map *map, uint64_t start) {
    uint8_t number = save->numbers[map - save->probed->woven->maps];
    const char *head = fetch(slab, start, ROOM_HEAD);
    if (!head)
        return false;
    *log = (struct rooms){
        .fetch = fetch, .slab = slab, .start = start, .arena = arena_bytes(map, number), .size = ROOM_HEAD};
    memcpy(log->head, head, ROOM_HEAD);
    uint64_t most = 0;
    for (unsigned i = 0; i < ROOM_ARENAS; i++) {
        uint64_t claimed = counter(log, i, 0), used = claimed < log->arena ? claimed : log->arena;
        most = claimed > most ? claimed : most;
        if (i >> (number >> 5)) // the kernel has fewer arenas
            used = 0;
        log->dropped += counter(log, i, DROPPED);
        log->size += used -= used % ROOM_SECTOR;
        log->ends[i] = log->size;
        memcpy(log->head + (size_t)i * ROOM_APART, &used, sizeof(used));
    }
    log->needed = (most + ROOM_SECTOR - 1) / ROOM_SECTOR << (number >> 5);
    log->next = log->room_end = ROOM_HEAD;
    log->first = UINT64_MAX;
    return true;
}

// Count the entries of the records in a part of the log. Both ends of the part are multiples of ROOM_SECTOR,
// and it contains only whole records and heads of rooms. The program may have overwritten anything, so no
// size is trusted.
static void count_entries(struct rooms *log, const char *data, uint64_t at, uint64_t end) {
    unsigned arena = 0;
    while (log->next < end) {
        while (arena < ROOM_ARENAS && log->ends[arena] <= log->next)
            arena++;
        if (arena == ROOM_ARENAS || log->next < at)
            return;
        uint32_t words[2];
        memcpy(words, data + (log->next - at), sizeof(words));
        bool opens = log->next == log->room_end;
        uint64_t limit = opens ? log->ends[arena] : log->room_end;
        uint64_t size = opens ? words[0] : (uint64_t)UNIT * (words[1] & ((1u << SIZE_BITS) - 1));
        if (!words[0] || !size || size % UNIT || size > limit - log->next) { // nothing more in it
            log->next = limit;
            log->room_end = limit;
        } else if (opens) {
            uint64_t unit;
            memcpy(&unit, data + (log->next - at) + 2 * sizeof(*words), sizeof(unit));
            log->first = unit < log->first ? unit : log->first;
            log->last = unit > log->last ? unit : log->last;
            log->room_end = log->next + size;
            log->next += size < ROOM_SECTOR ? size : ROOM_SECTOR;
        } else {
            log->entries += (unsigned)__builtin_popcount(words[0]);
            log->next += size;
        }
    }
}

const char *hook_read_rooms(struct rooms *log, uint64_t at, uint64_t length) {
    static char *room; // only one thread writes
    if (!room && !(room = malloc(PACK_MOST)))
        return NULL;
    uint64_t done = 0;
    if (!at) {
        memcpy(room, log->head, ROOM_HEAD);
        done = ROOM_HEAD;
    }
    for (unsigned i = 0; i < ROOM_ARENAS && done < length; i++) {
        uint64_t begin = i ? log->ends[i - 1] : ROOM_HEAD, here = at + done;
        if (here < begin || here >= log->ends[i])
            continue;
        uint64_t size = log->ends[i] - here < length - done ? log->ends[i] - here : length - done;
        const char *data =
            log->fetch(log->slab, log->start + ROOM_HEAD + i * log->arena + (here - begin), size);
        if (!data)
            return NULL;
        memcpy(room + done, data, size);
        done += size;
    }
    count_entries(log, room, at, at + length);
    return room;
}
