#include "hook/write/write.h"
#include "watch.h"

struct watched *hook_watched;

bool hook_watched_setup(void) {
    hook_watched = hook_process_memory(sizeof(*hook_watched));
    return hook_watched;
}

_Atomic uint64_t *hook_find_in_map(struct map *map, uint64_t key) {
    uint64_t at = (key * 0x9e3779b97f4a7c15u) >> 40;
    for (unsigned tries = 0; tries < 256; tries++, at++) {
        uint64_t found = atomic_load_explicit(&map->keys[at % MAP_ENTRIES], memory_order_acquire);
        if (!found &&
            (atomic_compare_exchange_strong(&map->keys[at % MAP_ENTRIES], &found, key) || found == key))
            return &map->values[at % MAP_ENTRIES];
        if (found == key)
            return &map->values[at % MAP_ENTRIES];
    }
    return NULL;
}
