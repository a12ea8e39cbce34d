#include <stdatomic.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"

// Stands for functions that the driver lacks, or that we haven't looked up yet: they fail, but no member is
// ever NULL.
static CUresult absent(void) { return CUDA_ERROR_NOT_FOUND; }

struct probe_calls hook_do = {
#define CALL(member, name, ...) .member = (__typeof__(hook_do.member))(uintptr_t)absent,
    PROBE_CALLS(CALL)
#undef CALL
};

static bool find_all(void) {
    bool all = true;
    void *found;
#define CALL(member, name, ...)                                                                              \
    if ((found = hook_driver_function(name)))                                                                \
        hook_do.member = (__typeof__(hook_do.member))(uintptr_t)found;                                       \
    all &= found != NULL;
    PROBE_CALLS(CALL)
#undef CALL
    return all;
}

bool hook_find_probe_calls(void) {
    static _Atomic int found;
    return hook_find_once(&found, find_all);
}

int hook_relaxed_mode(int mode) {
    hook_do.exchange_mode(&mode);
    return mode;
}
