// libc's own functions for those that this library defines. All are found when it is set up, or
// before, if a sanitizer or another library calls one earlier: dlsym takes a lock, which a program may hold
// while it waits for the thread that calls.

#ifndef GPT_LIBC_H
#define GPT_LIBC_H

#include <spawn.h>
#include <stdio.h>

extern void *(*hook_real_dlsym)(void *, const char *), *(*hook_real_dlopen)(const char *, int);
extern int (*hook_real_dlclose)(void *), (*hook_real_ioctl)(int, unsigned long, ...);
extern void (*(*hook_real_signal)(int, void (*)(int)))(int);
extern void (*hook_real_quick_exit)(int);

// Functions that start a program (starts.c); NULL where libc has none.
extern int (*hook_real_execve)(const char *, char *const *, char *const *);
extern int (*hook_real_execv)(const char *, char *const *), (*hook_real_execvp)(const char *, char *const *);
extern int (*hook_real_execvpe)(const char *, char *const *, char *const *);
extern int (*hook_real_fexecve)(int, char *const *, char *const *);
extern int (*hook_real_execveat)(int, const char *, char *const *, char *const *, int);
extern int (*hook_real_posix_spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                                    const posix_spawnattr_t *, char *const *, char *const *);
extern int (*hook_real_posix_spawnp)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                                     const posix_spawnattr_t *, char *const *, char *const *);
extern int (*hook_real_system)(const char *);
extern FILE *(*hook_real_popen)(const char *, const char *);

void hook_find_real(void);

#endif
