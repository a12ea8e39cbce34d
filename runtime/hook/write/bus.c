// Mappings of trace files, and what happens when somebody truncates one: the next store to it would kill the
// program with SIGBUS. A handler puts memory in its place, and the hook is off. No call pays for it, and
// nothing is lost when the process is killed, which a copy in memory could not promise.
//
// The handler is there from the first mapping on. The program does not see it: what sigaction and signal
// return to it and take from it is the disposition that it would have, and a signal that is not about a
// mapping of ours is handled as that says.

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "write.h"

static struct sigaction dispositions[2]; // of the program
static _Atomic unsigned current;
_Atomic bool hook_bus_installed;
int (*hook_real_sigaction)(int, const struct sigaction *, struct sigaction *);

// Mappings

unsigned char *hook_map(int file, size_t size, off_t at) {
    unsigned char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, at);
    if (start == MAP_FAILED)
        return NULL;
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        unsigned char *none = NULL;
        if (!atomic_load_explicit(&hook_live->mappings[i].start, memory_order_relaxed) &&
            atomic_compare_exchange_strong(&hook_live->mappings[i].start, &none, start)) {
            atomic_store(&hook_live->mappings[i].size, size);
            break;
        }
    }
    return start;
}

void hook_unmap(unsigned char *start, size_t size) {
    for (unsigned i = 0; i < MAX_MAPPINGS; i++)
        if (atomic_load_explicit(&hook_live->mappings[i].start, memory_order_relaxed) == start) {
            atomic_store(&hook_live->mappings[i].size, 0);
            atomic_store(&hook_live->mappings[i].start, NULL);
            break;
        }
    munmap(start, size);
}

static bool replace_mapping(const void *address) {
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        unsigned char *start = atomic_load(&hook_live->mappings[i].start);
        size_t size = atomic_load(&hook_live->mappings[i].size);
        if (start && (uintptr_t)address - (uintptr_t)start < size)
            return mmap(start, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                        0) != MAP_FAILED;
    }
    return false;
}

// The signal

static void handle(int signal, siginfo_t *info, void *context) {
    int error = errno;
    if (info->si_code > 0 && replace_mapping(info->si_addr)) {
        hook_turn_off(hook_live->path, "was truncated");
        errno = error;
        return;
    }
    unsigned now = atomic_load(&current);
    struct sigaction theirs = dispositions[now];
    if (theirs.sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    if (theirs.sa_handler == SIG_DFL || theirs.sa_handler == SIG_IGN) {
        hook_real_sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        if (info->si_code <= 0) // else the fault comes again
            syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGBUS, info);
        return;
    }
    if (theirs.sa_flags & (int)SA_RESETHAND)
        dispositions[now].sa_handler = SIG_DFL;
    errno = error;
    theirs.sa_sigaction(signal, info, context);
}

static bool install(const struct sigaction *theirs, struct sigaction *before) {
    struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (theirs && theirs->sa_handler != SIG_DFL && theirs->sa_handler != SIG_IGN) {
        ours.sa_mask = theirs->sa_mask;
        ours.sa_flags = SA_SIGINFO | (theirs->sa_flags & (SA_ONSTACK | SA_RESTART | SA_NODEFER));
    }
    return !hook_real_sigaction(SIGBUS, &ours, before);
}

// Called by the thread that begins a trace.
void hook_bus_setup(void) {
    struct sigaction theirs;
    if (atomic_load(&hook_bus_installed) || hook_real_sigaction(SIGBUS, NULL, &theirs))
        return;
    dispositions[0] = theirs;
    atomic_store(&hook_bus_installed, install(&theirs, NULL));
}

int hook_bus_exchange(const struct sigaction *action, struct sigaction *before) {
    unsigned now = atomic_load(&current);
    struct sigaction old = dispositions[now];
    if (action) {
        struct sigaction theirs = *action;
        dispositions[!now] = theirs;
        atomic_store(&current, !now);
        if (!install(&theirs, NULL))
            return -1;
    }
    if (before)
        *before = old;
    return 0;
}
