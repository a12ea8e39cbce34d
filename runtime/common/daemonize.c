// gpt-hook's helper processes: see daemonize.h.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonize.h"

void gpt_hold_standard(void) {
    int file = 0;
    while (file >= 0 && file <= STDERR_FILENO)
        file = open("/", O_PATH | O_CLOEXEC);
    close(file);
}

bool gpt_start_apart(void (*work)(pid_t root, int root_file)) {
    pid_t root = getpid();
    int root_file = (int)syscall(SYS_pidfd_open, root, 0);
    if (root_file < 0)
        return false;
    volatile pid_t helper = -1;
    pid_t middle = vfork(); // avoids a second copy of the address space, and lets us see `helper`
    if (!middle) {
        setsid();
        if (!(helper = fork()))
            work(root, root_file);
        _exit(0);
    }
    close(root_file);
    // If SIGCHLD is ignored, waitpid() fails after the child has ended.
    return middle > 0 && (waitpid(middle, NULL, 0) == middle || errno == ECHILD) && helper > 0;
}

static int by_number(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

void gpt_let_go(bool messages, const int *files, size_t count) {
    int numbers[8], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < (messages ? STDERR_FILENO : 3); i++)
        dup2(null, i);
    unsigned next = 3;
    memcpy(numbers, files, count * sizeof(*numbers));
    qsort(numbers, count, sizeof(*numbers), by_number);
    for (size_t i = 0; i < count; next = (unsigned)numbers[i++] + 1)
        if ((unsigned)numbers[i] > next)
            close_range(next, (unsigned)numbers[i] - 1, 0);
    close_range(next, ~0u, 0);
    struct rlimit most;
    if (!getrlimit(RLIMIT_NOFILE, &most)) {
        most.rlim_cur = most.rlim_max;
        setrlimit(RLIMIT_NOFILE, &most);
    }
    if (chdir("/"))
        _exit(1);
}

static bool was_started_with(const char *pid, const char *entry, size_t size) {
    static char text[1 << 20];
    char path[64];
    snprintf(path, sizeof(path), "/proc/%.20s/environ", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t got = 0;
    for (ssize_t more; file >= 0 && got < sizeof(text); got += (size_t)more)
        if ((more = read(file, text + got, sizeof(text) - got)) <= 0)
            break;
    bool unknown = file < 0 && (errno == EMFILE || errno == ENFILE);
    if (file >= 0)
        close(file);
    return unknown || memmem(text, got, entry, size);
}

bool gpt_anybody_with(const char *name, const char *value) {
    char entry[PATH_MAX + 64];
    size_t size = (size_t)snprintf(entry, sizeof(entry), "%s=%s", name, value) + 1;
    DIR *processes = opendir("/proc");
    bool found = !processes;
    for (struct dirent *process; processes && !found && (process = readdir(processes));)
        found = process->d_name[0] >= '1' && process->d_name[0] <= '9' &&
                was_started_with(process->d_name, entry, size);
    if (processes)
        closedir(processes);
    return found;
}
