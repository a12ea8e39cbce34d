// Loading a kernel with probes beside the one that the program has.

#ifndef GPT_LOAD_H
#define GPT_LOAD_H

#include "hook/watch/objects.h"
#include "probed.h"

bool hook_add_probed(struct probed *added); // to the table; false without memory

// What is known of a function that was looked up.
struct looked_up {
    uint64_t handle, module, context;
    struct reference reference;
    uint32_t function; // id in the trace
    bool is_kernel;    // of a library
};

// Enters a function that runs as it is: the reason is a text that stays, empty for one that is not counted.
void hook_refuse(const struct looked_up *function, const char *reason);

void hook_set_property(const struct probed *probed, bool is_kernel, const struct property *property);

// Whether the program has the address of a variable in constant memory, and so may write to it.
_Atomic bool *hook_taken_flag(uint64_t module, const char *name); // NULL without memory
extern handler hook_after_variable, hook_before_unload, hook_after_unload;

// Loads what the pipeline made, and enters it. The answer is used up.
void hook_load_probed(const struct looked_up *function, const char *name, struct gpt_bytes *answer);

#endif
