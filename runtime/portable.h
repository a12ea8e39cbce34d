// Included before anything else, so that files built on any machine run with glibc 2.28 and later, as the
// wheel's tag manylinux_2_28 promises. A program asks for the newest version of each symbol that glibc had
// where it was linked; here are the older versions, or what those functions are made of.
// tests/runtime/test_portable.py finds symbols that are missing here.

#if !defined(GPT_PORTABLE_H) && !defined(__ASSEMBLER__)
#define GPT_PORTABLE_H

#include <features.h>

// Since 2.38 the headers replace strtol, sscanf and their like by functions of C23.
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// 2.34 moved these from libpthread and libdl to libc; we link to both, which are empty there.
#if defined(__GLIBC__) && defined(__x86_64__)
#define GPT_OLD(function, version) __asm__(".symver " #function ", " #function "@GLIBC_" #version)
GPT_OLD(pthread_condattr_setclock, 2.3.3);
GPT_OLD(pthread_create, 2.2.5);
GPT_OLD(pthread_detach, 2.2.5);
GPT_OLD(pthread_key_create, 2.2.5);
GPT_OLD(pthread_once, 2.2.5);
GPT_OLD(pthread_rwlock_rdlock, 2.2.5);
GPT_OLD(pthread_rwlock_unlock, 2.2.5);
GPT_OLD(pthread_rwlock_wrlock, 2.2.5);
GPT_OLD(pthread_setspecific, 2.2.5);
GPT_OLD(sem_init, 2.2.5);
GPT_OLD(sem_post, 2.2.5);
GPT_OLD(sem_wait, 2.2.5);
#ifndef GPT_OWN_DLFCN // the hook defines some of them, which would become these versions
GPT_OLD(dladdr, 2.2.5);
GPT_OLD(dlclose, 2.2.5);
GPT_OLD(dlerror, 2.2.5);
GPT_OLD(dlopen, 2.2.5);
GPT_OLD(dlsym, 2.2.5);
#endif
#undef GPT_OLD
#endif

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
