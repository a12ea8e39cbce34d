// Included before anything else, so that files built on any machine run with glibc 2.28 and later, as the
// wheel's tag manylinux_2_28 promises. A program asks for the newest version of each symbol that glibc had
// where it was linked; here are the older versions, or what those functions are made of.
// tests/runtime/test_portable.py finds symbols that are missing here.

#if !defined(GPT_PORTABLE_H) && !defined(__ASSEMBLER__)
#define GPT_PORTABLE_H

#include <features.h>

// Since glibc 2.38, the headers replace strtol, sscanf and similar functions by those of C23.
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arch_glibc.h"

// 2.32 moved it; the same for one thread as for several.
#define pthread_sigmask sigprocmask

// Since 2.33; before, the headers had wrappers of other functions.
static inline int gpt_stat_at(int folder, const char *path, struct stat *status, int flags) {
    return (int)syscall(SYS_newfstatat, folder, path, status, flags);
}
static inline int gpt_stat_file(int file, struct stat *status) {
    return (int)syscall(SYS_fstat, file, status);
}
#define fstatat(folder, path, status, flags) gpt_stat_at(folder, path, status, flags)
#define stat(path, status) gpt_stat_at(AT_FDCWD, path, status, 0)
#define lstat(path, status) gpt_stat_at(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW)
#define fstat(file, status) gpt_stat_file(file, status)

// Since 2.30 and 2.34. A kernel before 5.9 doesn't know the latter.
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define gettid() ((pid_t)syscall(SYS_gettid))
#define close_range(first, last, flags) syscall(SYS_close_range, first, last, flags)

#endif
