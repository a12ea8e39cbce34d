// What the program is told of how many blocks fit.

#ifndef GPT_OCCUPANCY_H
#define GPT_OCCUPANCY_H

#include "probed.h"

extern const char UNFIT_OCCUPANCY[];

// Compares a kernel that was just loaded with what was said of the program's own: NULL, or UNFIT_OCCUPANCY.
const char *hook_compare_occupancy(struct probed *probed, const struct bound *bound);

extern handler hook_after_blocks, hook_after_block_size, hook_after_shared, hook_after_clusters;

#endif
