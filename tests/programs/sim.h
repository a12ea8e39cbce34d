// The beginning of clients of the simulated device: any function by its symbol.

#pragma once

#include "client.h"

#include "abi/cuda.h"
#include <pthread.h>
#define D(name) ((int (*)())dlsym(driver, #name))
#define IS(status, call)                                                                                     \
    do {                                                                                                     \
        int s_ = (call);                                                                                     \
        if (s_ != (status)) {                                                                                \
            fprintf(stderr, "%d: %s: %d, not %d\n", __LINE__, #call, s_, status);                            \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)
#define NAMED(name) ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry " name "(){ret;}\n"
