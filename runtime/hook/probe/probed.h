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
    _Atomic bool *taken; // the program has its address
};

struct probed {
    uint64_t handle; // the program's
    struct reference reference;
    uint32_t function;           // its id in the trace
    const char *refused;         // why it runs without probes; NULL if it does not
    uint64_t probed;             // what is launched in its place
    uint64_t context;            // where its variables are; 0: any, it has none
    struct reference of_context; // until a reset, after which the handle is another one's
    const struct woven *woven;
    int max_threads; // of a block
    struct shared_variable *variables;
    size_t variable_count;
    uint64_t module; // the program's
    uint64_t loaded; // ours; 0: none, or another one's
    bool is_library; // is what that is
    bool going;      // its module is being unloaded
    _Atomic uint64_t launches;
    struct probed *next; // of all
};

struct probed *hook_find_probed(uint64_t handle); // NULL: it is not known

// Before a module is unloaded, those of it are marked, and unmarked if that failed. Else each that is gone by
// it is given once; NULL: there are no more.
void hook_mark_going(uint64_t module, bool going);
struct probed *hook_take_gone(uint64_t module);

#endif
