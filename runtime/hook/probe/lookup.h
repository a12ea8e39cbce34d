// Look-ups: each asks for its kernel with probes.

#ifndef GPT_LOOKUP_H
#define GPT_LOOKUP_H

#include "hook/watch/watch.h"

extern handler hook_after_function, hook_after_kernel_function, hook_after_functions, hook_after_kernels;
void hook_finish_lookups(void); // loads what has come meanwhile, without waiting
void hook_end_burst(void);      // of look-ups that wait together

#endif
