// Finds out if the process may have got a seccomp filter since it started. A filter may kill a process that
// opens a file, so then the hook opens none.

#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/broker.h"
#include "write.h"

// A filter that was there when this program started, as in a container, let the dynamic linker open files, so
// we may open some too. A process without privileges has to set no_new_privs before it can add one. If it was
// set from the start, or if the process has CAP_SYS_ADMIN, only the number of filters tells whether there are
// more. That number is in /proc/self/status since Linux 5.9, which we keep open, because opening it at the
// end is what a new filter may kill the process for.
static bool inherits_filter;

static struct {
    int file;
    pid_t pid; // the process that opened the file, or 0
    struct stat status;
    long filters;
} known;

// Return the number of filters of the main thread, or -1.
static long count_filters(void) {
    static char text[128 << 10]; // it lists the groups, up to 65,536
    static const char key[] = "\nSeccomp_filters:";
    ssize_t size = pread(known.file, text, sizeof(text) - 1, 0);
    text[size > 0 ? size : 0] = '\0';
    const char *found = strstr(text, key);
    return found ? strtol(found + strlen(key), NULL, 10) : -1;
}

void hook_filters_setup(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (!prctl(PR_GET_SECCOMP))
        return;
    syscall(SYS_capget, &head, sets);
    inherits_filter = !prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) && !(sets[0].effective & 1u << CAP_SYS_ADMIN);
    if (inherits_filter)
        return;
    known.file = gpt_set_aside(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
    if (known.file >= 0 && !fstat(known.file, &known.status) && (known.filters = count_filters()) > 0)
        known.pid = getpid();
    else if (known.file >= 0)
        close(known.file);
}

// A thread may have a filter of its own, so the number says nothing about other threads than the main one.
// The program may have closed our descriptor, and used the number again.
static bool has_known_filters(void) {
    struct stat status;
    return known.pid == getpid() && known.pid == syscall(SYS_gettid) && !fstat(known.file, &status) &&
           status.st_dev == known.status.st_dev && status.st_ino == known.status.st_ino &&
           count_filters() == known.filters;
}

bool hook_may_have_filter(void) {
    return prctl(PR_GET_SECCOMP) &&
           (inherits_filter ? prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0 : !has_known_filters());
}
