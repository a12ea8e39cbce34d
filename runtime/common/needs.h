// How much memory the probes' buffers needed in an earlier run, which was recorded with --memusage.

#ifndef GPT_NEEDS_H
#define GPT_NEEDS_H

#include <stddef.h>
#include <stdint.h>

struct gpt_need {
    const char *kernel; // not terminated
    size_t length;
    uint64_t most; // bytes that the kernel's largest launch needed
};

struct gpt_needs {
    struct gpt_need *all; // sorted by the kernels' names, each of which occurs once
    size_t count;
    char *data; // the names
};

// Read a trace. Returns NULL, or a constant text that says why it couldn't be read.
const char *gpt_read_needs(const char *path, struct gpt_needs *needs);

// Return how much the kernel's largest launch needed, or 0 if that isn't known.
uint64_t gpt_find_need(const struct gpt_needs *needs, const char *kernel);

#endif
