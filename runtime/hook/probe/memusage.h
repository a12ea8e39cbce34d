// --memusage: what the buffers of launches would need, by function.

#ifndef GPT_MEMUSAGE_H
#define GPT_MEMUSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"

// Bytes that the buffers of a launch would need where records are counted only, but for the entries of logs.
bool hook_needed_bytes(const struct woven *woven, const uint32_t grid[3], const uint32_t block[3],
                       uint64_t *bytes);

void hook_count_need(uint32_t function, uint64_t bytes);        // of a launch
void hook_add_need(struct slab *slab, const struct save *save); // of one with probes, which has ended
void hook_write_needs(void);                                    // records of what was counted since

#endif
