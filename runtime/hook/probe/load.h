// Loading a kernel with probes beside the one that the program has.

#ifndef GPT_LOAD_H
#define GPT_LOAD_H

#include "probed.h"

// Enters a function that runs as it is: the reason is a text that stays, empty for one that is not counted.
void hook_refuse(const struct looked_up *function, const char *reason);

// Enters the function that a kernel has in the current context, and loads the kernel there.
void hook_enter_function(uint64_t function, uint64_t kernel);

// Loads what the pipeline made, and enters it. The answer is used up.
void hook_load_probed(const struct looked_up *function, const char *name, struct gpt_bytes *answer);
void hook_unload_replaced(void); // what was loaded for probes that others replaced, and nobody uses any more
void hook_bind_missed(void);     // kernels that were launched in the current context before they were there

extern handler hook_before_unload, hook_after_unload;

#endif
