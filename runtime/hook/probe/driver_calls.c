#include <pthread.h>
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
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static _Atomic int found; // 0: not looked for, 1: all there, -1: not
    if (!found) {
        pthread_mutex_lock(&lock); // threads may be the first at once
        if (!found)
            found = find_all() ? 1 : -1;
        pthread_mutex_unlock(&lock);
    }
    return found > 0;
}

int hook_relaxed_mode(int mode) {
    hook_do.exchange_mode(&mode);
    return mode;
}
