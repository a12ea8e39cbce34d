// libc functions that this library defines, except dlsym (intercept.c) and those in processes.c that end a
// process or start a program; and pointers to libc's own.

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "entry.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "say.h"

void *(*hook_real_dlsym)(void *, const char *), *(*hook_real_dlopen)(const char *, int);
int (*hook_real_dlclose)(void *), (*hook_real_ioctl)(int, unsigned long, ...);
void (*(*hook_real_signal)(int, void (*)(int)))(int);
void (*hook_real_quick_exit)(int);
int (*hook_real_execve)(const char *, char *const *, char *const *);
int (*hook_real_execv)(const char *, char *const *), (*hook_real_execvp)(const char *, char *const *);
int (*hook_real_execvpe)(const char *, char *const *, char *const *);
int (*hook_real_fexecve)(int, char *const *, char *const *);
int (*hook_real_execveat)(int, const char *, char *const *, char *const *, int);
int (*hook_real_posix_spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                             const posix_spawnattr_t *, char *const *, char *const *);
int (*hook_real_posix_spawnp)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                              const posix_spawnattr_t *, char *const *, char *const *);
int (*hook_real_system)(const char *);
FILE *(*hook_real_popen)(const char *, const char *);

// A sanitizer looks up symbols and calls these functions before its own set-up is done, so they must work
// without instrumentation.
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

EARLY void hook_find_real(void) {
    hook_linker_setup();
    hook_real_sigaction = hook_next_function("sigaction");
    hook_real_signal = hook_next_function("signal");
    hook_real_ioctl = hook_next_function("ioctl");
    hook_real_quick_exit = hook_next_function("quick_exit");
    hook_real_execve = hook_next_function("execve");
    hook_real_execv = hook_next_function("execv");
    hook_real_execvp = hook_next_function("execvp");
    hook_real_execvpe = hook_next_function("execvpe");
    hook_real_fexecve = hook_next_function("fexecve");
    hook_real_execveat = hook_next_function("execveat");
    hook_real_posix_spawn = hook_next_function("posix_spawn");
    hook_real_posix_spawnp = hook_next_function("posix_spawnp");
    hook_real_system = hook_next_function("system");
    hook_real_popen = hook_next_function("popen");
    hook_real_strerrordesc = hook_next_function("strerrordesc_np");
    hook_real_dlopen = hook_next_function("dlopen");
    hook_real_dlclose = hook_next_function("dlclose");
    hook_real_dlsym = hook_next_function("dlsym"); // another library may define its own, before libc's
    if (!hook_real_dlsym || !hook_real_dlopen || !hook_real_dlclose || !hook_real_ioctl ||
        !hook_real_sigaction || !hook_real_signal)
        abort(); // nothing would work, and no such libc exists
}

void hook_tell_unseen(const char *path, const char *fact) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!hook_this_thread() || atomic_exchange(&hook_watched->unseen, true))
        return;
    HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = hook_str(path), .text = hook_str(fact));
    char line[5120];
    snprintf(line, sizeof(line), "gpt-hook: warning: %s: %s", path, fact);
    if (!atomic_flag_test_and_set(&warned))
        gpt_write_line(line);
}

void hook_see_namespaces(void) {
    char path[4096];
    if (!hook_live || hook_in_vfork || !hook_has_namespaces())
        return;
    int error = errno;
    for (struct linked linked = {0}; hook_next_linked(&linked);)
        if (linked.name_space && hook_is_driver(&linked) && hook_peek_text(linked.name, path, sizeof(path)))
            hook_tell_unseen(path,
                             "loaded by dlmopen, so calls from libraries in its namespace are not recorded");
    errno = error;
}

// Record the library before it's unloaded.
EXPORT int dlclose(void *handle) {
    if (!hook_real_dlclose)
        hook_find_real();
    int error = errno;
    bool recorded =
        hook_live && atomic_load_explicit(&hook_live->pid, memory_order_relaxed) && !hook_in_vfork;
    if (recorded)
        hook_before_close(handle);
    hook_see_namespaces();
    errno = error;
    int status = hook_real_dlclose(handle);
    error = errno;
    if (recorded)
        hook_after_close();
    struct span driver;
    if (hook_forget_driver(&driver))
        hook_unresolve(driver);
    errno = error;
    return status;
}

EARLY EXPORT int sigaction(int signal, const struct sigaction *action, struct sigaction *before) {
    if (!hook_real_sigaction)
        hook_find_real();
    // A vfork child has its own signal dispositions, but our memory.
    if (signal != SIGBUS || !hook_bus_installed || hook_in_vfork)
        return hook_real_sigaction(signal, action, before);
    return hook_bus_exchange(action, before);
}

EARLY EXPORT void (*signal(int signal, void (*handler)(int)))(int) {
    if (!hook_real_signal)
        hook_find_real();
    if (signal != SIGBUS || !hook_bus_installed || hook_in_vfork)
        return hook_real_signal(signal, handler);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigaddset(&action.sa_mask, signal);
    return sigaction(signal, &action, &before) ? SIG_ERR : before.sa_handler;
}

// The third argument is a pointer, a number or missing. If it's missing, the value passed on is meaningless.
EARLY EXPORT int ioctl(int file, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (!hook_real_ioctl)
        hook_find_real();
    return hook_ioctl_wanted && !hook_in_vfork ? hook_record_ioctl(hook_real_ioctl, file, request, argument)
                                               : hook_real_ioctl(file, request, argument);
}
