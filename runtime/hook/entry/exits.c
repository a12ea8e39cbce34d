// The ways in which a process ends by itself; each writes the end of its trace.

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "entry.h"
#include "hook/probe/probe.h"
#include "hook/write/write.h"

static _Atomic int quick_status;

static void end(int status) {
    hook_end_probing();
    hook_see_namespaces();
    hook_finish((unsigned)status & 0xff);
    hook_report();
}

static void at_exit(int status, void *unused) {
    (void)unused;
    end(status);
}

static void at_quick(void *unused) {
    (void)unused;
    end(quick_status);
}

int __cxa_at_quick_exit(void (*)(void *), void *) __attribute__((weak)); // what at_quick_exit calls
#pragma weak on_exit

void hook_exits_setup(void) {
    if (!on_exit || !__cxa_at_quick_exit)
        return;             // not glibc: the trace says so, and ends
    on_exit(at_exit, NULL); // registered before the loader's own handler, so it runs after all destructors
    __cxa_at_quick_exit(at_quick, NULL);
}

EXPORT _Noreturn void _exit(int status) {
    end(status);
    for (;;)
        syscall(SYS_exit_group, status);
}

EXPORT _Noreturn void _Exit(int status) { _exit(status); }

// Handlers do not get the status.
EXPORT _Noreturn void quick_exit(int status) {
    quick_status = status;
    if (!hook_real_quick_exit)
        hook_find_real();
    hook_real_quick_exit(status);
    __builtin_unreachable();
}
