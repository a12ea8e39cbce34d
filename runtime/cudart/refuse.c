// Defines every function, so that programs link. A function that has no other definition returns
// cudaErrorNotSupported, and prints a message once.

#include <stdio.h>

#include "cudart.h"
#include "say.h"

static int refuse(const char *name, bool *warned) {
    if (cudart_is_forked())
        return cudart_end(cudaErrorInitializationError);
    if (!__atomic_exchange_n(warned, true, __ATOMIC_RELAXED)) {
        char line[256];
        snprintf(line, sizeof(line), "libcudart.so.13: error: %s: not in this library: see gpt-sim(7)", name);
        gpt_write_line(line);
    }
    return cudart_end(cudaErrorNotSupported);
}

#define X(name)                                                                                              \
    __attribute__((weak)) API name(void) {                                                                   \
        static bool warned;                                                                                  \
        return refuse(#name, &warned);                                                                       \
    }
#include "names.h"
