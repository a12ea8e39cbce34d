// What the probes of a launch saved, as records of the trace.

#ifndef GPT_PARTS_H
#define GPT_PARTS_H

#include "slab.h"

// Writes a buffer of a slab, which begins at `start` in it. Faults of the device are noted in the slab.
void hook_write_parts(struct slab *slab, const struct save *save, const struct woven_map *map, uint64_t start,
                      uint64_t size);

// Bytes of a slab, no more than a stage has; NULL if the device fails. Why its buffers are lost then.
const char *hook_fetch(struct slab *slab, uint64_t start, uint64_t size);
const char *hook_why_lost(CUresult failed);
void hook_forget_stage(void); // the slab is used again

#endif
