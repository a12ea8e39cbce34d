// The names of a process's files: NAME, or if another process was the first there, names of its own.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/own.h"
#include "template.h"
#include "write.h"

const char *hook_keep_variable(const char *name) {
    const char *value = getenv(name);
    return value ? strdup(value) : NULL;
}

const char *hook_template;

size_t hook_expand_name(char *path, size_t size) { return gpt_expand_name(hook_template, path, size); }

// The names of this process where NAME is taken: NAME.PID, NAME.PID.2, ... from number 1 on, one for each
// program that it was.
static void name_number(char *path, size_t length, unsigned number) {
    int size = snprintf(path + length, 32, ".%d", getpid());
    if (number > 1)
        snprintf(path + length + size, 32 - (size_t)size, ".%u", number);
}

static bool is_taken(char *path, size_t length, unsigned number) {
    struct stat found;
    name_number(path, length, number);
    return !lstat(path, &found);
}

// How many of them are taken, without a look at each.
static unsigned count_names(char *path, size_t length) {
    unsigned low = 0, high = 1;
    for (; is_taken(path, length, high); high *= 2)
        low = high;
    while (high - low > 1) {
        unsigned middle = low + (high - low) / 2;
        *(is_taken(path, length, middle) ? &low : &high) = middle;
    }
    return low;
}

// Creates the file: NAME, or if this process is not the first there, one of its own names.
int hook_create_file(bool *first) {
    char *path = hook_live->path;
    size_t size = sizeof(hook_live->path) - 32, length = hook_expand_name(path, size);
    int file = gpt_create(AT_FDCWD, path, O_RDWR, 0600);
    *first = file >= 0;
    if (file < 0 && errno == EEXIST && !hook_may_stay(path)) {
        hook_turn_off(path, "another run of gpt-hook writes to it, or it is not a trace");
        return -1;
    }
    if (file < 0 && errno == EEXIST) // another process may be taking them too
        for (unsigned number = count_names(path, length) + 1, tries = 0;
             file < 0 && (!tries || errno == EEXIST) && tries < 1000; number++, tries++) {
            name_number(path, length, number);
            file = gpt_create(AT_FDCWD, path, O_RDWR, 0600);
        }
    return file;
}

// The folder of a live stream has the traces of processes that are there: the helper removes others, and
// their names come again.
static void end_in_folder(char *path) {
    _Alignas(struct dirent64) static char entries[4096];
    char *name = strrchr(path, '/') + 1, own[64];
    size_t length = strlen(name);
    if (length >= sizeof(own))
        return;
    strcpy(own, name);
    *name = '\0';
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (long got; folder >= 0 && (got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0;)
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            at += entry->d_reclen;
            if (!strncmp(entry->d_name, own, length) && (entry->d_name[length] & ~'.') == 0 &&
                strlen(entry->d_name) < length + 32) {
                strcpy(name, entry->d_name);
                hook_end_earlier(path);
            }
        }
    if (folder >= 0)
        close(folder);
}

// A program that this process was before exec may have left its trace without end: the last one that it
// began.
void hook_end_predecessor(void) {
    char path[sizeof(hook_live->path)];
    size_t length = hook_expand_name(path, sizeof(path) - 64);
    if (hook_folder) {
        end_in_folder(path);
        return;
    }
    unsigned number = count_names(path, length);
    if (number)
        name_number(path, length, number);
    else
        path[length] = '\0';
    if (!hook_end_earlier(path) && number) { // that of an earlier process
        path[length] = '\0';
        hook_end_earlier(path);
    }
}
