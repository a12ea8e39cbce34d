// What is mapped, as the kernel says it.

#ifndef GPT_MAPS_H
#define GPT_MAPS_H

#include <stdbool.h>
#include <stdint.h>

struct mapping {
    uint64_t start, end, offset, inode;
    const char *path; // until the next one is read
};
struct maps *hook_open_maps(void); // NULL without memory: nothing is mapped then
bool hook_next_mapping(struct maps *maps, struct mapping *mapping);
void hook_close_maps(struct maps *maps);

#endif
