#include <stdatomic.h>

#include "driver_calls.h"
#include "hook/watch/driver.h"

struct probe_calls hook_do;

static bool find_all(void) {
    bool all = true;
#define CALL(member, name, ...)                                                                              \
    hook_do.member = (__typeof__(hook_do.member))(uintptr_t)hook_driver_function(name);                      \
    all &= hook_do.member != NULL;
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
