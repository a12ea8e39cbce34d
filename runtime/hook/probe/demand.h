// Remembers how many entries launches claimed in their logs, so that the next launch of the same kernel gets
// logs that are large enough.

#ifndef GPT_DEMAND_H
#define GPT_DEMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"

// One for each kernel, grid and block, shared by their launches and never freed.
struct demand;

// NULL if the kernel has no log that grows, or without memory. `first`: no launch asked for it before.
struct demand *hook_find_demand(const struct save *save, const uint32_t block[3], bool *first);
bool hook_is_counted(const struct demand *demand); // whether any launch has been

// What a launch claimed in the log of this map. The lock of ours.h must be free.
void hook_count_entries(struct demand *demand, uint32_t map, uint64_t entries);

// Entries that a log has room for at a step of its growth (gpt-stream(5), PROBE BUFFERS).
uint64_t hook_log_capacity(const struct woven_map *map, unsigned step);

// Sizes the logs of a launch by what earlier launches claimed, while all its buffers fit into `most` bytes. A
// log never gets smaller than its map says. Returns false if no buffer got smaller than before.
bool hook_size_logs(struct save *save, uint64_t most);

#endif
