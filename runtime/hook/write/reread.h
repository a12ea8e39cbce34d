#ifndef GPT_REREAD_H
#define GPT_REREAD_H

#include <stdint.h>

struct trace_totals {
    uint64_t calls, launches, processes, bytes, probed, unprobed;
    uint64_t needed, most, needing; // of --memusage: bytes of all and of one launch, and how many these are
    uint64_t logs, full;            // of launches, and how many of them were too small
    uint64_t entries, dropped;      // in all of them, and what did not fit
    int fault;                      // errno, if the first file can't be opened
};

// Adds up the trace at a path and those of the processes that it names. Once in a process: the memory is its
// own.
const struct trace_totals *hook_reread(const char *path);

#endif
