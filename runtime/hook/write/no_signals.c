// Sections in which a thread must not be interrupted, because it holds a lock or has written only half of a
// record or table. A signal handler of the program may leave by siglongjmp, and then nobody would finish the
// work. Faults still get through: our own code causes them, and file.c handles some.

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "write.h"

static __thread __attribute__((tls_model("initial-exec"))) bool held;
static __thread __attribute__((tls_model("initial-exec"))) struct held_signals outer; // while it is

struct held_signals hook_hold_signals(void) {
    struct held_signals before = {.nested = held};
    if (before.nested)
        return before;
    sigset_t mask;
    sigfillset(&mask);
    static const int faults[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    for (unsigned i = 0; i < sizeof(faults) / sizeof(*faults); i++)
        sigdelset(&mask, faults[i]);
    pthread_sigmask(SIG_SETMASK, &mask, &before.signals);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.cancel);
    outer = before;
    held = true;
    return before;
}

void hook_release_signals(const struct held_signals *before) {
    if (before->nested)
        return;
    held = false;
    pthread_setcancelstate(before->cancel, NULL);
    pthread_sigmask(SIG_SETMASK, &before->signals, NULL);
}

void hook_wait_with_signals(struct pollfd *file, uint64_t ms) {
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    struct held_signals before = outer; // a handler that calls the driver blocks them itself
    bool was_held = held;
    held = false;
    if (was_held)
        pthread_setcancelstate(before.cancel, NULL);
    // A raw syscall, because driver functions aren't cancellation points.
    syscall(SYS_ppoll, file, file ? 1 : 0, &time, was_held ? &before.signals : NULL, NSIG / 8);
    if (was_held)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    held = was_held;
    outer = before;
}
