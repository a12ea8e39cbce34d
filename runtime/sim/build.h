// How code is made of PTX, and kept.

#ifndef GPT_BUILD_H
#define GPT_BUILD_H

#include "hook/watch/images.h"
#include "sim.h"

struct bytes {
    char *data; // to be freed
    size_t size;
};

// kept.c
bool sim_get_kept(const char key[65], struct bytes *found);
void sim_keep(const char key[65], const struct bytes *made);

#endif
