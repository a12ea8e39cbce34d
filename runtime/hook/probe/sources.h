// Images of modules and libraries that the program loaded, as long as these live.

#ifndef GPT_SOURCES_H
#define GPT_SOURCES_H

#include "hook/watch/call.h"
#include "hook/watch/modules.h"

struct source {
    struct image image;
    char digest[65];     // empty if it cannot be read any more
    const char *refused; // why no kernel of it is probed; NULL if nothing is known against it
};

// That of a function or kernel. False: where it comes from is not known.
bool hook_find_source(uint64_t function, struct source *source);

extern handler hook_after_load_image, hook_after_load_file;

#endif
