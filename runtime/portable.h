// Included before anything else, so that files built on any machine run with glibc 2.28 and later, as the
// wheel's tag manylinux_2_28 promises. By default, a program needs the newest version of each symbol in the
// glibc that it was linked with. This header selects older versions, or implements a function through others.
// tests/runtime/test_portable.py finds symbols that are missing here.

#if !defined(GPT_PORTABLE_H) && !defined(__ASSEMBLER__)
#define GPT_PORTABLE_H

#include <features.h>

// Since glibc 2.38, the headers replace strtol, sscanf and similar functions by their C23 variants.
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

// glibc 2.32 moved pthread_sigmask. On Linux, sigprocmask does the same, also with several threads.
#define pthread_sigmask sigprocmask

// glibc has stat, fstat and lstat as functions since 2.33; before that, its headers wrapped other functions.
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

// glibc has gettid since 2.30 and close_range since 2.34. Kernels before 5.9 don't have close_range.
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define gettid() ((pid_t)syscall(SYS_gettid))
#define close_range(first, last, flags) syscall(SYS_close_range, first, last, flags)

#endif
