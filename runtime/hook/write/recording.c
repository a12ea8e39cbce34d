// Whether calls are recorded, and the `recording` records that say so. A trace that has none was recorded all
// the time.

#include <stdlib.h>
#include <time.h>

#include "write.h"

_Atomic bool hook_recording = true;
struct periods hook_periods;

void hook_recording_setup(void) {
    atomic_store(&hook_recording, !getenv("GPT_HOOK_DISABLED"));
    hook_periods.count = atomic_load(&hook_recording);
}

void hook_begin_recording(void) {
    hook_periods = (struct periods){.count = atomic_load(&hook_recording)};
    if (!atomic_load(&hook_recording))
        HOOK_WRITE(recording, .on = false, .at = hook_now());
}

// With the clock, as days may be between two of them.
void hook_write_recording(bool on) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    hook_periods.count += on;
    hook_periods.since = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    HOOK_WRITE(recording, .on = on, .at = hook_now());
    if (hook_has_tsc)
        HOOK_WRITE(clock, .monotonic = hook_monotonic(), .tsc = hook_now());
}
