// Time stamps. rdtsc takes half the time of clock_gettime; it serves where it ticks evenly through every
// state of the processor, which CPUID says. The header of a trace and its `clock` records pair it with
// CLOCK_MONOTONIC.

#include <cpuid.h>
#include <time.h>

#include "write.h"

bool hook_has_tsc;

static struct {
    uint64_t tsc, monotonic;
} first;

uint64_t hook_monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void hook_clock_setup(void) {
    unsigned a, b, c, d;
    hook_has_tsc = __get_cpuid(0x80000007, &a, &b, &c, &d) && d & 1 << 8;
    first.monotonic = hook_monotonic();
    first.tsc = hook_now();
}

uint64_t hook_tsc_hz(void) {
    if (!hook_has_tsc)
        return 0;
    // The library was loaded well before its process reaches the driver; else wait for 2 ms of difference,
    // which is good for five digits. The clock records of the trace have the rest.
    uint64_t ns;
    do
        ns = hook_monotonic() - first.monotonic;
    while (ns < 2000000);
    uint64_t ticks = hook_now() - first.tsc;
    return (uint64_t)((double)ticks * 1e9 / (double)ns);
}
