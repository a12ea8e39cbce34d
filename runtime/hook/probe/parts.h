// What the probes of a launch saved, as records of the trace.

#ifndef GPT_PARTS_H
#define GPT_PARTS_H

#include "slab.h"

// Writes a buffer of a slab, which begins at `start` in it. Faults of the device are noted in the slab.
void hook_write_parts(struct slab *slab, const struct save *save, const struct woven_map *map, uint64_t start,
                      uint64_t size);
void hook_forget_stage(void); // the slab is used again

#endif
