// --benchmark: the same kernel without probes, launched before the one with them.

#ifndef GPT_BENCHMARK_H
#define GPT_BENCHMARK_H

#include "choice.h"
#include "pool.h"

// Loads it, where the one with probes is loaded, and prepares it for the current context. NULL, or why that
// is not possible.
const char *hook_load_plain(struct probed *probed, const char *name);
const char *hook_bind_plain(const struct probed *probed, struct bound *bound);

// Launches it, between two events, after the L2 cache was flushed, and flushes that again: the launch with
// probes is next. NULL, or why that is not possible.
const char *hook_benchmark(struct frame *frame, struct save *save, const struct choice *choice,
                           uint64_t stream);
void hook_benchmarked(const struct save *save, uint64_t stream); // the launch with probes is in the stream

// The times of both on the GPU, once they have ended; false if they are not known.
bool hook_read_benchmark(const struct save *save, uint64_t *kernel, uint64_t *original);
void hook_forget_benchmark(struct save *save);

#endif
