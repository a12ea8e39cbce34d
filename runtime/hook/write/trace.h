// A trace: its beginning, its end, and what ends it before.

#ifndef GPT_TRACE_H
#define GPT_TRACE_H

#include <stdbool.h>
#include <stddef.h>

bool hook_trace_setup(void (*more)(void)); // writes what else belongs to the beginning and the end
void *hook_process_memory(size_t size);    // zero, and zero again in a forked child; NULL if there is none
bool hook_is_ours(void);                   // whether there is a trace, and this process began it
void hook_finish(unsigned status);         // ends the trace; what comes later is not recorded

#endif
