// Remembers how many entries launches claimed in their logs, so that the next launch of the same kernel gets
// logs that are large enough.
//
// The list has its own lock, under which nothing is called. A launch looks up its demand; the thread that
// writes adds to it with atomics.

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

enum { BUCKETS = 1 << 10, MOST_STEPS = 160 };    // the last step is 2^40 times the capacity
static const uint64_t MOST_ENTRIES = 1ull << 44; // more than any device has room for

struct key {
    uint32_t kernel, maps, grid[3], block[3]; // kernel: its number in the trace
};

struct demand {
    struct demand *next;
    struct key key;
    _Atomic bool counted;
    _Atomic uint64_t entries[]; // most that a launch claimed, by map
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct demand *buckets[BUCKETS];

static struct demand **bucket_of(const struct key *key) {
    const uint32_t *words = (const uint32_t *)key;
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof(*key) / sizeof(*words); i++)
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
    return &buckets[(hash >> 32) % BUCKETS];
}

bool hook_has_growing_log(const struct woven *woven) {
    bool found = false;
    for (size_t i = 0; i < woven->map_count; i++)
        found |= woven->maps[i].grows;
    return found;
}

struct demand *hook_find_demand(const struct save *save, const uint32_t block[3], bool *first) {
    const struct woven *woven = save->probed->woven;
    struct key key = {.kernel = woven->number, .maps = (uint32_t)woven->map_count};
    *first = false;
    if (!hook_has_growing_log(woven))
        return NULL;
    memcpy(key.grid, save->grid, sizeof(key.grid));
    memcpy(key.block, block, sizeof(key.block));
    pthread_mutex_lock(&lock);
    struct demand **bucket = bucket_of(&key), *found = *bucket;
    while (found && memcmp(&found->key, &key, sizeof(key)))
        found = found->next;
    if (!found && (found = calloc(1, sizeof(*found) + woven->map_count * sizeof(*found->entries)))) {
        *first = true;
        found->key = key;
        found->next = *bucket;
        *bucket = found;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool hook_is_counted(const struct demand *demand) { return atomic_load(&demand->counted); }

void hook_count_entries(struct demand *demand, uint32_t map, uint64_t entries) {
    if (!demand)
        return;
    uint64_t before = atomic_load(&demand->entries[map]);
    if (entries > before) // only the thread that writes does this
        atomic_store(&demand->entries[map], entries);
    if (!atomic_exchange(&demand->counted, true))
        hook_wake_claims();
}

uint64_t hook_log_capacity(const struct woven_map *map, unsigned step) {
    unsigned __int128 entries = map->capacity + (unsigned __int128)(step % 4) * (map->capacity / 4);
    entries <<= step / 4;
    return entries < MOST_ENTRIES ? (uint64_t)entries : MOST_ENTRIES;
}

// Return the steps that a launch's claim needs, or 0 if it fitted. The next launch may claim a little more.
static unsigned steps_for(const struct woven_map *map, uint64_t claimed) {
    unsigned step = 0;
    if (map->grows && claimed > map->capacity)
        while (step < MOST_STEPS && hook_log_capacity(map, step) / 9 * 8 < claimed)
            step++;
    return step;
}

static void size_log(struct save *save, size_t at, unsigned step, const uint32_t block[3]) {
    struct woven_map map = save->probed->woven->maps[at];
    map.capacity = hook_log_capacity(&map, step);
    if (!hook_map_bytes(&map, save->grid, block, &save->sizes[at]))
        save->sizes[at] = UINT64_MAX / MOST_MAPS / 2;
    save->steps[at] = (uint8_t)step;
}

bool hook_size_logs(struct save *save, uint64_t most) {
    const struct woven *woven = save->probed->woven;
    uint64_t before = save->bytes;
    unsigned less = 0, largest = 0;
    do {
        save->bytes = largest = 0;
        for (size_t i = 0; i < woven->map_count; i++) {
            unsigned step = steps_for(&woven->maps[i], atomic_load(&save->demand->entries[i]));
            largest = step > largest ? step : largest;
            if (woven->maps[i].grows)
                size_log(save, i, step > less ? step - less : 0, save->demand->key.block);
            save->bytes += hook_rounded(save->sizes[i]);
        }
    } while (save->bytes > most && less++ < largest);
    return save->bytes < before;
}
