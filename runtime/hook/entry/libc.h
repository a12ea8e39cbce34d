// libc's own functions for those that this library defines. All are found when it is set up, or
// before, if a sanitizer or another library calls one earlier: dlsym takes a lock, which a program may hold
// while it waits for the thread that calls.

#ifndef GPT_LIBC_H
#define GPT_LIBC_H

extern void *(*hook_real_dlsym)(void *, const char *), *(*hook_real_dlopen)(const char *, int);
extern int (*hook_real_dlclose)(void *), (*hook_real_ioctl)(int, unsigned long, ...);
extern void (*(*hook_real_signal)(int, void (*)(int)))(int);
extern void (*hook_real_quick_exit)(int);
void hook_find_real(void);

#endif
