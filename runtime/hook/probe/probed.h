// Kernels with probes, by the function or kernel that the program has.

#ifndef GPT_PROBED_H
#define GPT_PROBED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hook/watch/watch.h"
#include "woven.h"

struct shared_variable { // in constant memory: it is copied
    uint64_t from, to, size;
    _Atomic bool *taken; // the program has its address
};

// What is known of a function that was looked up.
struct looked_up {
    uint64_t handle, module, context;
    struct reference reference;
    uint32_t function;  // id in the trace
    bool is_kernel;     // of a library
    unsigned order;     // that it was asked for by
    unsigned registers; // most of a thread that it may have with probes; 0: any number
};

// A kernel with probes in a context, where its code is loaded and it has its variables. Once a context is
// gone its handle may be another one's.
struct bound {
    struct bound *next;
    uint64_t context;
    struct reference of_context;
    uint64_t function;   // the CUfunction there
    int max_threads;     // of a block
    const char *refused; // why it does not run there; NULL if it does
    struct shared_variable *variables;
    size_t variable_count;
    uint64_t plain; // with --benchmark: the CUfunction without probes, and its variables
    struct shared_variable *plain_variables;
    size_t plain_variable_count;
};

// The first one of a handle is in the table. Those that hang on it may be launched where it cannot: they have
// fewer registers, and stand in the order of these.
struct probed {
    _Atomic unsigned users; // of what it and those that hang on it have loaded
    _Atomic unsigned order; // that it was asked for by
    uint64_t handle;        // the program's
    struct reference reference;
    uint32_t function; // its id in the trace
    uint64_t kernel; // of a function that a kernel has in a context, that kernel, which has the rest; else 0
    const char *refused; // why it runs without probes; NULL if it does not
    struct looked_up asked;
    char *name;
    uint64_t probed; // what is launched in its place
    const struct woven *woven;
    uint64_t module;              // the program's
    uint64_t loaded;              // ours
    uint64_t plain, plain_loaded; // the same without probes, with --benchmark
    unsigned used;                // registers
    bool is_library;              // is what is loaded
    bool going;                   // its module is being unloaded
    _Atomic(const char *) unfit;  // why it is not launched any more, though it was loaded
    _Atomic(struct bound *) bounds;
    _Atomic(struct probed *) fewer; // the next one
    _Atomic unsigned limit;         // of registers, which the last one that was asked for has; 0: none was
    _Atomic uint64_t missed;        // the context in which it was wanted and was not there
    _Atomic uint64_t launches;
    struct probed *first; // that it hangs on; NULL: none
    struct probed *next;  // of all
};

struct probed *hook_find_probed(uint64_t handle); // NULL: it is not known
struct probed *hook_find_whole(uint64_t handle);  // the same, of the function of a kernel that kernel's

// What it has stays loaded until it is let go, also if other probes are named meanwhile. False: they were,
// and nothing of it may be used but its name in the trace.
bool hook_hold_probed(struct probed *probed);
void hook_hold_again(struct probed *probed); // one that is held
void hook_let_probed_go(struct probed *probed);

// One of those that hang on none, or hang on one, that other probes replaced and nobody uses, of the current
// context; it is not given again. NULL: there are none now.
struct probed *hook_take_replaced(uint64_t context);

// In a context; NULL: it is not there.
struct bound *hook_find_bound(const struct probed *probed, uint64_t context);

// To the table, which has it from then on. False without memory, or if a later one is there.
bool hook_add_probed(struct probed *added);
void hook_add_fewer(struct probed *first, struct probed *added);

uint64_t hook_kernel_function(uint64_t kernel, uint64_t context); // that the program has of a kernel; 0: none

// The kernel that a function of this name is of in the current context; 0: none that is known.
uint64_t hook_find_kernel(uint64_t function, const char *name);

// One that was wanted in this context and is not there; it is not given again. NULL: there is none.
struct probed *hook_take_missed(uint64_t context);
void hook_miss(struct probed *probed, uint64_t context);

// Before a module is unloaded, those of it are marked, and unmarked if that failed. Else each that is gone by
// it is given once; NULL: there are no more.
void hook_mark_going(uint64_t module, bool going);
struct probed *hook_take_gone(void);

#endif
