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

// stages.c
enum sim_stages {
    SIM_MAKE,   // an object of a kernel of PTX
    SIM_UNPACK, // the PTX in a fatbin
};
// Runs a pipeline over an input; says what went wrong.
CUresult sim_run_stages(enum sim_stages which, const char *input, size_t size, const char *kernel,
                        struct bytes *made);

#endif
