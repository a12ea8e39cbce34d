// A kernel with probes in it, as the pipeline made it: the image, and what its records say.

#ifndef GPT_WOVEN_H
#define GPT_WOVEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/broker.h"

enum { MOST_MAPS = 64 };

struct woven_map {
    uint64_t id; // in the answer
    uint64_t capacity, stride;
    enum { LEVEL_THREAD, LEVEL_WARP, LEVEL_BLOCK } level;
    uint64_t wanted; // capacity of one that is counted only
    bool log;
    bool keeps_last; // if the lowest bit of its address is set
    bool grows;      // a log, if the lowest bits of its address say so
    uint32_t number; // in the trace
};

struct woven_param {
    uint64_t offset, size;
    uint32_t map; // index of it, of an added one
};

struct woven_variable {
    const char *name;
    uint64_t size, offset; // 0 bytes: not known
    bool constant, always;
};

struct woven {
    struct gpt_bytes answer; // what the image is a part of
    uint64_t chosen;         // id of its ptx record
    const void *image;
    size_t image_size;
    const void *plain; // the image without probes; NULL: it is not there
    size_t plain_size;
    struct woven_param *params, *added;
    struct woven_map *maps;
    struct woven_variable *variables;
    size_t param_count, added_count, map_count, variable_count;
    size_t param_bytes;  // of its own parameters
    uint32_t cluster[3]; // blocks that each of a launch's grid stands for
    const char *table;   // NULL: it has none
    char *fault;         // why no probes are in it; NULL if they are
    uint32_t number;     // of the kernel in the trace
};

// Whether the pipeline would say the same again. What is wrong may be so now only: a compiler was killed,
// say.
bool hook_is_lasting(const struct gpt_bytes *answer);

// Reads an answer, which becomes part of the result. NULL without memory.
struct woven *hook_read_woven(struct gpt_bytes *answer, const char *kernel);

// Its records, into the trace. The registers are those of the program's kernel; 0: they are not known.
void hook_write_woven(struct woven *woven, uint32_t function, unsigned registers);
void hook_free_woven(struct woven *woven);

#endif
