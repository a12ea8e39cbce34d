// What is said at the end of launches with probes and without.

#ifndef GPT_COVERAGE_H
#define GPT_COVERAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void hook_add_reason(const char *reason, size_t size, uint64_t launches);
void hook_add_gpu_time(bool probed, uint64_t duration); // of a kernel, as of time stamps
uint64_t hook_count_reason(const char *start);          // launches without probes for a reason that starts so
void hook_say_coverage(uint64_t probed, uint64_t unprobed, uint64_t launches); // the latter: all there were

#endif
