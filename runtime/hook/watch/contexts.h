// Handlers of the functions that make and end contexts.

#ifndef GPT_CONTEXTS_H
#define GPT_CONTEXTS_H

#include "call.h"

uint64_t hook_current_context(void); // of this thread, or 0
extern handler hook_on_context_retained, hook_on_context_made, hook_on_context_destroyed,
    hook_on_context_reset, hook_on_context_released, hook_before_context_gone;

#endif
