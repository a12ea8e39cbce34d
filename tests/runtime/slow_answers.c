// Built into libgpthook.so with --wrap=hook_find_probe_calls: the answer whether a stream is captured takes a
// while to return, except in the thread that runs main.

#include <sys/syscall.h>
#include <unistd.h>

#include "hook/probe/driver_calls.h"

bool __real_hook_find_probe_calls(void);
static CUresult (*ask)(uint64_t, int *);

static CUresult ask_slowly(uint64_t stream, int *capturing) {
    CUresult status = ask(stream, capturing);
    if (syscall(SYS_gettid) != getpid())
        usleep(20000);
    return status;
}

bool __wrap_hook_find_probe_calls(void) {
    bool found = __real_hook_find_probe_calls();
    if (found && hook_do.is_capturing != ask_slowly) {
        ask = hook_do.is_capturing;
        hook_do.is_capturing = ask_slowly;
    }
    return found;
}
