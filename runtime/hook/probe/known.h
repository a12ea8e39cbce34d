// Functions that were looked up. Where gpt-hook ctl may name other probes, they can be asked for again.

#ifndef GPT_KNOWN_H
#define GPT_KNOWN_H

#include "probed.h"

// A look-up has found it; it was asked for by its order if `asked`.
void hook_know(const struct looked_up *function, const char *name, bool asked);
void hook_ask_known(void); // for those of the current context that the last order was not used for

// Whether the last order is about a function, or the function of a kernel; true of one that no look-up named.
bool hook_is_meant(uint64_t handle);

struct known_counts {
    uint64_t probed, pending, refused;
    char others[512]; // names that the order doesn't mean, as many as fit
};
void hook_count_known(struct known_counts *counts);

#endif
