// Graph nodes that call host functions, and a record of the calls.

#pragma once

#include "sim.h"

static int calls[100], called;
static void call(void *number) { calls[called++] = (int)(long)number; }
static void *add_call(void *graph, void **before, size_t count, long number) {
    CUDA_HOST_NODE_PARAMS params = {call, (void *)number};
    void *node;
    OK(D(cuGraphAddHostNode)(&node, graph, before, count, &params));
    return node;
}
static void expect(const char *numbers) {
    char text[200] = "";
    OK(D(cuStreamSynchronize)((void *)0));
    for (int i = 0; i < called; i++)
        sprintf(text + strlen(text), "%d ", calls[i]);
    called = 0;
    if (strcmp(text, numbers))
        fprintf(stderr, "%s, not %s\n", text, numbers), abort();
}
