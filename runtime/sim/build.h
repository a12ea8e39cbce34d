// Compiles PTX to host code, and caches the result.

#ifndef GPT_BUILD_H
#define GPT_BUILD_H

#include "common/cache.h"
#include "sim.h"

// Get the `outline` record of PTX text from the cache or from gpt-asm. With `load`, gpt-asm also checks that
// all kernels can be compiled, in the same request. `made` is then the code of the only kernel, or empty if
// there are several. Call it without the lock.
CUresult sim_find_outline(const char *text, size_t size, bool load, struct gpt_bytes *outline,
                          struct gpt_bytes *made);
void sim_keep_loaded(const struct code *code, const struct gpt_bytes *made); // keep `made` for sim_check_all

// Check that host code can be made for all kernels. A good result is cached and not checked again.
CUresult sim_check_all(const struct code *code);

#endif
