// Traces of other processes.

#ifndef GPT_OTHERS_H
#define GPT_OTHERS_H

#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"

extern uint64_t hook_run; // of gpt-hook: which processes share files; 0 without it

// Says in the tail of a file, whose first chunk has so many bytes, whose it is: from then on others may add
// to it.
void hook_sign(struct tail *tail, uint32_t size);

bool hook_may_stay(const char *path);

// Tells another trace of this one. `how` it began, if that was not by exec.
void hook_name_to(const char *to, const char *how);

// Ends the trace at a path, if a program began it that this process was before exec. False if none did.
bool hook_end_earlier(const char *path);

#endif
