// The body of a condition isn't a host call: it sets a byte.

#pragma once

#include "sim.h"

static uint64_t marks;
static void add_mark(void *body, long number) {
    CUDA_MEMSET_NODE_PARAMS_v2 params = {marks + number, 0, 1, 1, 1, 1, 0};
    void *node, *context;
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuGraphAddMemsetNode)(&node, body, (void *)0, (size_t)0, &params, context));
}
static void expect_marks(const char *expected) {
    char got[64], text[256] = "";
    OK(D(cuMemcpyDtoH_v2)(got, marks, sizeof(got)));
    for (int i = 0; i < 64; i++)
        if (got[i])
            sprintf(text + strlen(text), "%d ", i);
    if (strcmp(text, expected))
        fprintf(stderr, "'%s', not '%s'\n", text, expected), abort();
    OK(D(cuMemsetD8_v2)(marks, 0, sizeof(got)));
}
static void begin_marks(void) {
    OK(D(cuMemAlloc_v2)(&marks, (size_t)64));
    OK(D(cuMemsetD8_v2)(marks, 0, (size_t)64));
}
