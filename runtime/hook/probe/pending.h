// Kernels whose probes are being made: each is asked for once, whoever looks it up.

#ifndef GPT_PENDING_H
#define GPT_PENDING_H

#include "load.h"

// Asks for a kernel with probes, unless that has been done. What the cache has is loaded at once.
void hook_ask_for(const struct looked_up *function, const char *name);
void hook_ask_later(const struct looked_up *function, const char *name); // and loads nothing yet
void hook_await(uint64_t handle); // until it is loaded, as long as --wait allows

#endif
