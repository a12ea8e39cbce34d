// Makes code from PTX, and caches it.

#ifndef GPT_BUILD_H
#define GPT_BUILD_H

#include "common/cache.h"
#include "sim.h"

// Find the `outline` record of PTX text, in the cache or by asking gpt-asm. `load` means that the text will
// be checked, so gpt-asm is asked for that at the same time; `made` is then the code of its only kernel, or
// empty if there are several and all are good. Call it without the lock.
CUresult sim_find_outline(const char *text, size_t size, bool load, struct gpt_bytes *outline,
                          struct gpt_bytes *made);
void sim_keep_loaded(const struct code *code, const struct gpt_bytes *made); // keep `made` for sim_check_all

// Check that host code can be made for all kernels. A good result is cached and not checked again.
CUresult sim_check_all(const struct code *code);

#endif
