// Files that we create and recognize: see own.h.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "broker.h"
#include "own.h"

// Read the start of a small file in /proc; an empty text if that fails.
static void read_text(const char *path, char text[64]) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, 63);
    text[got > 0 ? got : 0] = '\0';
    if (file >= 0)
        close(file);
}

bool gpt_is_user(uid_t user, uid_t meant) {
    char map[64], overflow[64];
    unsigned count = 0;
    if (user != meant)
        return false;
    // Only in the first user namespace does every user have a distinct number.
    read_text("/proc/thread-self/uid_map", map);
    if (sscanf(map, "%*u %*u %u", &count) == 1 && count == UINT_MAX)
        return true;
    read_text("/proc/sys/kernel/overflowuid", overflow);
    return user != (*overflow ? strtoul(overflow, NULL, 10) : 65534);
}

int gpt_create(int folder, const char *name, int access, mode_t mode) {
    int file;
    do
        file = openat(folder, name, access | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, mode);
    while (file < 0 && errno == EINTR);
    struct stat status;
    mode_t owner = mode & S_IRWXU; // a umask such as 777 would keep other processes of this user out
    if (file >= 0 && !fstat(file, &status) && (status.st_mode & owner) != owner)
        fchmod(file, (status.st_mode & 07777) | owner);
    return file;
}

int gpt_create_part(int folder, char name[GPT_PART_BYTES], mode_t mode) {
    uint64_t number[2]; // process ids are reused
    if (getrandom(number, sizeof(number), 0) != sizeof(number))
        return -1;
    snprintf(name, GPT_PART_BYTES, ".gpt-%016lx%016lx.part", number[0], number[1]);
    return gpt_create(folder, name, O_WRONLY, mode);
}

bool gpt_is_part(const char *name) {
    return strlen(name) == GPT_PART_BYTES - 1 && !strncmp(name, ".gpt-", 5) &&
           strspn(name + 5, "0123456789abcdef") == 32 && !strcmp(name + 37, ".part");
}

const char *gpt_temporary_parent(void) {
    const char *parent = getenv("TMPDIR");
    return parent && *parent == '/' ? parent : "/tmp";
}

static bool is_empty(int folder) {
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), names = 0;
    DIR *entries = copy >= 0 ? fdopendir(copy) : NULL;
    while (entries && names < 3 && readdir(entries))
        names++;
    if (entries)
        closedir(entries);
    else if (copy >= 0)
        close(copy);
    return names == 2; // . and ..
}

// If users have no distinct numbers, the owner proves nothing. In that case only the parent's owner may be
// able to rename in it.
static bool is_ours(int folder) {
    struct stat status, above;
    return !fstat(folder, &status) && !(status.st_mode & (S_IRWXG | S_IRWXO)) &&
           (gpt_is_user(status.st_uid, geteuid()) ||
            (status.st_uid == geteuid() && !fstatat(folder, "..", &above, 0) &&
             (above.st_mode & S_ISVTX || !(above.st_mode & (S_IWGRP | S_IWOTH)))));
}

int gpt_make_temporary(const char *parent, const char *prefix, char path[PATH_MAX]) {
    int size = snprintf(path, PATH_MAX, "%s/%sXXXXXX", strcmp(parent, "/") ? parent : "", prefix);
    errno = size < PATH_MAX ? 0 : ENAMETOOLONG;
    int folder =
        size < PATH_MAX && mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (folder >= 0 && !(is_ours(folder) && is_empty(folder))) {
        close(folder);
        folder = -1;
        errno = EACCES;
    }
    return folder;
}

int gpt_open_temporary(const char *path) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0 && !is_ours(folder)) {
        close(folder);
        folder = -1;
        errno = EACCES;
    }
    return folder;
}

bool gpt_is_own(int folder, const char *name, struct stat *status) {
    struct stat found;
    status = status ? status : &found;
    return !fstatat(folder, name, status, AT_SYMLINK_NOFOLLOW) && S_ISREG(status->st_mode) &&
           gpt_is_user(status->st_uid, geteuid());
}
