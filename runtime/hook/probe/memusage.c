// Sums by function, under a lock: nobody measures time with --memusage.

#include <pthread.h>
#include <stdlib.h>

#include "hook/write/write.h"
#include "probe.h"

enum { BUCKETS = 1 << 12 };

struct need {
    struct need *next;
    uint32_t function;
    uint64_t launches, bytes, most;
    uint64_t written_launches, written_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct need *buckets[BUCKETS];

bool hook_needed_bytes(const struct woven *woven, const uint32_t grid[3], const uint32_t block[3],
                       uint64_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < woven->map_count; i++) {
        struct woven_map map = woven->maps[i];
        uint64_t size;
        map.capacity = map.wanted > map.capacity ? map.wanted : map.capacity;
        if (!hook_map_bytes(&map, grid, block, &size) || (*bytes += size) >> 62)
            return false;
    }
    return true;
}

void hook_count_need(uint32_t function, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    struct need **bucket = &buckets[function % BUCKETS], *need = *bucket;
    while (need && need->function != function)
        need = need->next;
    if (!need && (need = calloc(1, sizeof(*need)))) {
        need->function = function;
        need->next = *bucket;
        *bucket = need;
    }
    if (need) {
        need->launches++;
        need->bytes += bytes;
        need->most = bytes > need->most ? bytes : need->most;
    }
    pthread_mutex_unlock(&lock);
}

void hook_add_need(struct slab *slab, const struct save *save) {
    const struct woven *woven = save->probed->woven;
    uint64_t at = save->offset, needed = save->needed;
    for (size_t i = 0; i < woven->map_count; i++) {
        const struct woven_map *map = &woven->maps[i];
        const char *count = map->log ? hook_fetch(slab, at, sizeof(uint64_t)) : NULL;
        if (map->log && !count) {
            hook_count_unprobed(save->probed->function, hook_why_lost(slab->failed));
            return;
        }
        if (count)
            needed += *(const uint64_t *)count * (sizeof(uint64_t) + map->stride);
        at += hook_rounded(save->sizes[i]);
    }
    hook_count_need(save->probed->function, needed);
}

void hook_write_needs(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct need *need = buckets[i]; need; need = need->next)
            if (need->launches > need->written_launches &&
                HOOK_WRITE(memusage, .function = need->function,
                           .launches = need->launches - need->written_launches,
                           .bytes = need->bytes - need->written_bytes, .most = need->most)) {
                need->written_launches = need->launches;
                need->written_bytes = need->bytes;
            }
    pthread_mutex_unlock(&lock);
}
