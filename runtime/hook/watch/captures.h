// Streams that the program captures: work that goes into them becomes a graph, and does not run.

#ifndef GPT_CAPTURES_H
#define GPT_CAPTURES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic uint32_t hook_captures; // that may be under way

static inline bool hook_is_capturing(void) {
    return atomic_load_explicit(&hook_captures, memory_order_relaxed) != 0;
}

bool hook_has_captured(void); // any stream was, at some time

// Whether a stream is captured, which a call that has just returned well was about.
bool hook_is_captured(uint64_t stream);

bool hook_begin_capture(void); // whether it is the first
void hook_end_capture(void);

#endif
