// What launches and the kernel nodes of graphs have in common: the program's parameters, and buffers.

#ifndef GPT_ARGUMENTS_H
#define GPT_ARGUMENTS_H

#include "hook/watch/watch.h"
#include "pool.h"

// Counts a launch. Why it runs without probes, as the user wants only some; NULL: it need not.
const char *hook_left_out(struct probed *probed);

// Bytes of a map's buffer for so many blocks; false if that is more than 64 bits can count.
bool hook_map_bytes(const struct woven_map *map, const uint32_t grid[3], const uint32_t block[3],
                    uint64_t *bytes);

// The save of a launch, with its arguments; NULL without memory or where the parameters are not known.
struct save *hook_new_save(struct probed *probed, const struct launch *launch);
void hook_free_save(struct save *save);
bool hook_size_buffers(struct save *save, const struct launch *launch); // false: they are too large
void hook_point_at_buffers(struct save *save, uint64_t address);        // in the arguments

#endif
