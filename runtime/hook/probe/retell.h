// Records of the pipeline's answers, into the trace.

#ifndef GPT_RETELL_H
#define GPT_RETELL_H

#include "unpack.h"
#include "woven.h"

uint64_t hook_number_of_map(const struct woven *woven, uint64_t id); // in the trace; 0: it has no such map

// Writes a record of an answer, with its number in the trace. A function of 0 is none; with a number of
// registers other than 0 that of the program's kernel is written after the one with probes.
void hook_retell(struct cursor from, const struct woven *woven, uint32_t number, uint32_t function,
                 unsigned before);

#endif
