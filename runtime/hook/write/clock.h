// Time stamps, ticks of the time stamp counter where it is fit for that, else CLOCK_MONOTONIC.

#ifndef GPT_CLOCK_H
#define GPT_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "compiler.h"

extern bool hook_has_tsc;
void hook_clock_setup(void);
uint64_t hook_monotonic(void);
uint64_t hook_tsc_hz(void); // 0: stamps are ns

static inline uint64_t hook_now(void) {
    return LIKELY(hook_has_tsc) ? __builtin_ia32_rdtsc() : hook_monotonic();
}

#endif
