// Kernels with probes, by the function or kernel that the program has.

#ifndef GPT_PROBED_H
#define GPT_PROBED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hook/watch/call.h"
#include "hook/write/reference.h"
#include "woven.h"

struct shared_variable { // in constant memory: it is copied
    uint64_t from, to, size;
    _Atomic bool *taken; // the program has its address; NULL: it was copied for good
};

struct probed {
    uint64_t handle; // the program's
    struct reference reference;
    uint32_t function;   // its id in the trace
    const char *refused; // why it runs without probes; NULL if it does not
    uint64_t probed;     // what is launched in its place
    uint64_t context;    // where its variables are; 0: any, it has none
    const struct woven *woven;
    int max_threads; // of a block
    struct shared_variable *variables;
    size_t variable_count;
    uint64_t module; // the program's
    _Atomic uint64_t launches;
    struct probed *next; // of all
};

struct probed *hook_find_probed(uint64_t handle); // NULL: it is not known

// Each that is known, of those that live.
void hook_each_probed(void (*see)(struct probed *probed, void *with), void *with);

#endif
