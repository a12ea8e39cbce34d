// What is known of each driver function.

#ifndef GPT_DECODE_H
#define GPT_DECODE_H

#include "hook/watch/watch.h"

struct known {
    const char *name; // without version and stream suffix
    const char *type, *op;
    uint8_t layout, special, values[4];
    // They run whether or not the call is recorded, or anything is.
    handler *before;    // may change the arguments and the function, or answer in place of the driver
    handler *on_return; // after a call that returned CUDA_SUCCESS
    // The same, of what is probed: they run if something is to be, or may be named later.
    handler *probe_before, *probe_after; // after any call
    bool first;                          // the latter is: before on_return, and what else looks at the call
    bool late;                           // both run from when something has been probed
    bool allocates;                      // and is made again if it found no memory while we had some
    bool v2; // the function of this name without suffix is an older one with other arguments
};
void hook_describe(struct slot *slot, const char *symbol); // fills in all but the real function
void hook_describe_named(struct slot *slot);               // if nobody did
unsigned hook_find_flags(struct slot *slot);               // for what is probed now; gives hook_changes()
void hook_decode_setup(void);                              // reads GPT_HOOK_CALLS
void hook_announce(struct slot *slot);                     // writes its `api` record
uint32_t hook_captured_id(struct slot *slot);              // the id of the one for calls that were captured
const char *hook_type(const struct slot *slot);
struct slot *hook_named_slot(const char *symbol); // of a function in names.h, or NULL
bool hook_is_old(const char *name);               // whether the function without suffix is an older one

#endif
