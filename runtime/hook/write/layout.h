// Rows of a trace as they lie in it.

#ifndef GPT_LAYOUT_H
#define GPT_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

// Rows of a trace, by what they have beside time and result. hook_layouts (rows.c) declares them to readers.
enum layout { LAYOUT_PLAIN, LAYOUT_OBJECT, LAYOUT_MEMORY, LAYOUT_LAUNCH, LAYOUT_GPU, LAYOUTS };

struct row {
    _Atomic uint64_t start;    // 0: not used; stored last
    _Atomic uint64_t duration; // 0: has not returned; stored last of what is known then
    uint32_t api;
    int32_t result;
};

struct row_object {
    struct row row;
    uint64_t object, stream;
};

struct row_memory {
    struct row row;
    uint64_t to, from, bytes, stream;
};

struct row_launch {
    struct row row;
    uint64_t stream;
    uint32_t function, shared, grid[3];
    uint16_t block[3];
    uint8_t cluster[3], cooperative;
    uint16_t pad;
};

struct row_gpu {            // of a `gpu_times` record
    _Atomic uint64_t begin; // 0: not used; stored last
    uint64_t duration, call, stream;
    uint32_t api, function, thread;
    uint32_t probed; // 1: it ran with probes
    uint32_t device, pad;
};

#endif
