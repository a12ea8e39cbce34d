// Three-dimensional boxes of memory: the runtime's structure for copies, cudaMemcpy3DParms, and the driver's.

#ifndef GPT_CUDART_BOX_H
#define GPT_CUDART_BOX_H

#include "cudart.h"

struct pitched {
    void *memory;
    size_t pitch, width, height;
};

struct extent {
    size_t width, height, depth;
};

struct position {
    size_t x, y, z;
};

struct box {
    void *from_array;
    struct position from_at;
    struct pitched from;
    void *to_array;
    struct position to_at;
    struct pitched to;
    struct extent extent;
    int kind;
};

struct end {
    size_t x, y, z, level;
    int type;
    const void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
};

struct driver_box {
    struct end from, to;
    size_t width, height, depth;
};

enum { HOST = 1, DEVICE = 2, UNIFIED = 4 }; // CUmemorytype

// memory.c
int cudart_box(struct driver_box *made, const struct box *box); // converts the program's box to the driver's
struct box cudart_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                       size_t height, int kind);

#endif
