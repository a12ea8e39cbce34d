// libc's functions that start a program. Before calling the real one, we note a program that will run without
// the hook, so that the report at the end of the run can say why nothing was recorded.
//
// Much of this runs in vfork children, on their parent's stack: it allocates nothing and takes no lock.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/unwatchable.h"
#include "entry.h"
#include "hook/probe/probe.h"
#include "hook/write/write.h"

static const char *find_variable(char *const *environment, const char *name) {
    size_t size = strlen(name);
    for (; environment && *environment; environment++)
        if (!strncmp(*environment, name, size) && (*environment)[size] == '=')
            return *environment + size + 1;
    return NULL;
}

// Return the variable missing from an environment that would load the hook into a program, or NULL.
static const char *find_dropped(char *const *environment) {
    const char *preload = find_variable(environment, "LD_PRELOAD");
    const char *output = find_variable(environment, "GPT_HOOK_OUTPUT");
    if (!preload || !*preload)
        return "without LD_PRELOAD";
    if (!strstr(preload, "libgpthook.so"))
        return "with another LD_PRELOAD";
    return output && *output ? NULL : "without the variables of gpt-hook";
}

static bool is_program(const char *path) {
    struct stat status;
    return !stat(path, &status) && S_ISREG(status.st_mode) && !access(path, X_OK);
}

// Find the program as execvp() does. Returns false if it doesn't exist.
static bool find_program(const char *name, bool search, char path[PATH_MAX]) {
    if (!search || strchr(name, '/'))
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX && is_program(path);
    const char *folders = getenv("PATH");
    if (!folders)
        folders = "/bin:/usr/bin"; // libc's default, as after 'env -i'
    for (;;) {
        size_t size = strcspn(folders, ":");
        if (snprintf(path, PATH_MAX, "%.*s%s%s", (int)(size < PATH_MAX ? size : 0), folders, size ? "/" : "",
                     name) < PATH_MAX &&
            is_program(path))
            return true;
        if (!folders[size])
            return false;
        folders += size + 1;
    }
}

// Note a program that's about to start, or to replace this one. A file that isn't there starts nothing, and
// under a seccomp filter just looking at one may kill the process.
static void note(const char *name, char *const *environment, bool search, bool replaces) {
    char path[PATH_MAX];
    int error = errno;
    if (name && hook_notes_losses() && !hook_may_have_filter() && find_program(name, search, path)) {
        const char *how = find_dropped(environment);
        enum loss loss = how ? LOSS_DROPPED : LOSS_PROGRAM;
        if (!how && (how = gpt_find_unwatchable(path)) &&
            (strstr(how, "set") || strstr(how, "capabilities") || strstr(how, "rights")))
            loss = LOSS_RIGHTS;
        if (how)
            hook_note_loss(loss, name, how);
        if (how && replaces)
            hook_report_loss();
    }
    if (replaces && hook_is_ours()) { // otherwise counts that are only written at the end would be lost
        hook_write_unprobed();
        hook_write_needs();
    }
    errno = error;
}

// Call the real function; fail with `otherwise` if libc doesn't have it.
#define REAL(otherwise, function, ...)                                                                       \
    ({                                                                                                       \
        if (!hook_real_##function)                                                                           \
            hook_find_real();                                                                                \
        errno = hook_real_##function ? errno : ENOSYS;                                                       \
        hook_real_##function ? hook_real_##function(__VA_ARGS__) : (otherwise);                              \
    })

EXPORT int execve(const char *path, char *const *argv, char *const *environment) {
    note(path, environment, false, true);
    return REAL(-1, execve, path, argv, environment);
}

EXPORT int execv(const char *path, char *const *argv) {
    note(path, environ, false, true);
    return REAL(-1, execv, path, argv);
}

EXPORT int execvp(const char *name, char *const *argv) {
    note(name, environ, true, true);
    return REAL(-1, execvp, name, argv);
}

EXPORT int execvpe(const char *name, char *const *argv, char *const *environment) {
    note(name, environment, true, true);
    return REAL(-1, execvpe, name, argv, environment);
}

// With an empty name, or without one, the program is the descriptor itself.
static void note_at(int folder, const char *name, char *const *environment) {
    char path[PATH_MAX];
    bool is_name = name && *name;
    if (is_name && (*name == '/' || folder == AT_FDCWD))
        snprintf(path, sizeof(path), "%s", name);
    else
        snprintf(path, sizeof(path), "/proc/thread-self/fd/%d%s%s", folder, is_name ? "/" : "",
                 is_name ? name : "");
    note(path, environment, false, true);
}

EXPORT int fexecve(int file, char *const *argv, char *const *environment) {
    note_at(file, "", environment);
    return REAL(-1, fexecve, file, argv, environment);
}

EXPORT int execveat(int folder, const char *name, char *const *argv, char *const *environment, int flags) {
    note_at(folder, name, environment);
    return REAL(-1, execveat, folder, name, argv, environment, flags);
}

// Collect the arguments of a function with `...` in an array.
#define ARGUMENTS(first)                                                                                     \
    size_t count = 1;                                                                                        \
    va_list list;                                                                                            \
    va_start(list, first);                                                                                   \
    while (va_arg(list, char *))                                                                             \
        count++;                                                                                             \
    va_end(list);                                                                                            \
    char *argv[count + 1];                                                                                   \
    argv[0] = (char *)first;                                                                                 \
    va_start(list, first);                                                                                   \
    for (size_t i = 1; i <= count; i++)                                                                      \
    argv[i] = va_arg(list, char *)

EXPORT int execl(const char *path, const char *argument, ...) {
    ARGUMENTS(argument);
    va_end(list);
    return execv(path, argv);
}

EXPORT int execlp(const char *name, const char *argument, ...) {
    ARGUMENTS(argument);
    va_end(list);
    return execvp(name, argv);
}

EXPORT int execle(const char *path, const char *argument, ...) {
    ARGUMENTS(argument);
    char *const *environment = va_arg(list, char *const *);
    va_end(list);
    return execve(path, argv, environment);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const *argv, char *const *environment) {
    note(path, environment, false, false);
    return REAL(ENOSYS, posix_spawn, pid, path, actions, attributes, argv, environment);
}

EXPORT int posix_spawnp(pid_t *pid, const char *name, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const *argv, char *const *environment) {
    note(name, environment, true, false);
    return REAL(ENOSYS, posix_spawnp, pid, name, actions, attributes, argv, environment);
}

// These two start a shell, from within libc.
EXPORT int system(const char *command) {
    if (command)
        note("/bin/sh", environ, false, false);
    return REAL(-1, system, command);
}

EXPORT FILE *popen(const char *command, const char *mode) {
    note("/bin/sh", environ, false, false);
    return REAL(NULL, popen, command, mode);
}

// -- Exits -----------------------------------------------------------------
//
// The ways in which a process exits; each one ends its trace.

static _Atomic int quick_status;

static void end(int status) {
    hook_end_probing();
    hook_see_namespaces();
    hook_finish((unsigned)status & 0xff);
    hook_report();
    hook_limit_end();
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
        return;             // not glibc: the trace reports that, and ends
    on_exit(at_exit, NULL); // registered before the loader's own handler, so it runs after all destructors
    __cxa_at_quick_exit(at_quick, NULL);
}

EXPORT _Noreturn void _exit(int status) {
    end(status);
    for (;;)
        syscall(SYS_exit_group, status);
}

EXPORT _Noreturn void _Exit(int status) { _exit(status); }

// Handlers don't get the status, so it's kept here.
EXPORT _Noreturn void quick_exit(int status) {
    quick_status = status;
    if (!hook_real_quick_exit)
        hook_find_real();
    hook_real_quick_exit(status);
    __builtin_unreachable();
}
