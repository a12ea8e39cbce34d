// What was made once is kept: a folder in XDG_CACHE_HOME/gpt has a file for each result, named by the digest
// of what led to it, which begins with the digest of the rest. gpt/asm/cache.py does the same, and says how.
// A file is code that will run: folder and file must be this user's, and writable by nobody else.

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kept.h"

enum { DIGEST = 64, LIMIT = 1 << 28, STALE = 3600 }; // bytes of all files; seconds

static bool is_ours(int file, mode_t type) {
    struct stat status;
    return !fstat(file, &status) && (status.st_mode & S_IFMT) == type && status.st_uid == geteuid() &&
           !(status.st_mode & (S_IWGRP | S_IWOTH));
}

// The folder, which is made if it is missing; -1 if there is none that may be used.
static int open_folder(const char *name) {
    const char *home = secure_getenv("XDG_CACHE_HOME");
    bool set = home && *home == '/';
    char path[PATH_MAX];
    if (!set && !((home = secure_getenv("HOME")) && *home == '/'))
        return -1;
    if (snprintf(path, sizeof(path), "%s%s/gpt/%s", home, set ? "" : "/.cache", name) >= (int)sizeof(path))
        return -1;
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    mkdir(path, 0700);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0 && !is_ours(folder, S_IFDIR)) {
        close(folder);
        folder = -1;
    }
    return folder;
}

static bool read_all(int file, char *to, size_t size) {
    for (ssize_t got; size; to += got, size -= (size_t)got)
        if ((got = read(file, to, size)) <= 0)
            return false;
    return true;
}

static bool write_all(int file, const char *from, size_t size) {
    for (ssize_t put; size; from += put, size -= (size_t)put)
        if ((put = gpt_write_quietly(file, from, size)) <= 0)
            return false;
    return true;
}

bool gpt_get_kept(const char *name, const char key[65], struct gpt_bytes *found) {
    int folder = open_folder(name);
    int file = folder >= 0 ? openat(folder, key, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    struct stat status;
    char digest[65];
    bool whole = false;
    char *data = NULL;
    if (file >= 0 && is_ours(file, S_IFREG) && !fstat(file, &status) && status.st_size > DIGEST &&
        status.st_size <= LIMIT && (data = malloc((size_t)status.st_size)) &&
        read_all(file, data, (size_t)status.st_size)) {
        found->size = found->room = (size_t)status.st_size - DIGEST;
        gpt_sha256(data + DIGEST, found->size, digest);
        whole = !memcmp(digest, data, DIGEST);
        if (whole)
            futimens(file, NULL); // it was used
        else
            unlinkat(folder, key, 0);
    }
    if (whole) {
        memmove(data, data + DIGEST, found->size);
        found->data = data;
    } else
        free(data);
    if (file >= 0)
        close(file);
    if (folder >= 0)
        close(folder);
    return whole;
}

struct kept {
    char name[80];
    time_t used;
    off_t size;
};

static int by_use(const void *one, const void *other) {
    time_t a = ((const struct kept *)one)->used, b = ((const struct kept *)other)->used;
    return (a > b) - (a < b);
}

// If there is too much, deletes what was not used for longest, and what somebody began to write and gave up.
static void shrink(int folder) {
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy >= 0 ? fdopendir(copy) : NULL;
    struct kept *all = NULL;
    size_t count = 0, room = 0;
    off_t total = 0;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        struct stat status;
        if (strlen(entry->d_name) >= sizeof(all->name) ||
            fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode))
            continue;
        if (count == room) {
            struct kept *larger = realloc(all, (2 * room + 64) * sizeof(*all));
            if (!larger)
                break;
            all = larger;
            room = 2 * room + 64;
        }
        strcpy(all[count].name, entry->d_name);
        all[count].used = status.st_mtime;
        all[count++].size = status.st_size;
        total += status.st_size;
    }
    if (entries)
        closedir(entries);
    if (count && total > LIMIT) {
        qsort(all, count, sizeof(*all), by_use);
        time_t fresh = time(NULL) - STALE;
        for (size_t i = 0; i < count; i++)
            if (*all[i].name == '.' ? all[i].used < fresh : total > LIMIT - LIMIT / 8) {
                unlinkat(folder, all[i].name, 0);
                total -= all[i].size;
            }
    }
    free(all);
}

void gpt_keep(const char *cache, const char key[65], const struct gpt_bytes *made) {
    char name[80], digest[65];
    if (made->size > LIMIT / 8)
        return;
    int folder = open_folder(cache);
    static unsigned number;
    snprintf(name, sizeof(name), ".%d.%u", (int)getpid(), __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
    if (folder >= 0)
        unlinkat(folder, name, 0); // of a process that had our number
    int file = folder >= 0 ? openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    gpt_sha256(made->data, made->size, digest);
    if (file >= 0) {
        bool whole = write_all(file, digest, DIGEST) && write_all(file, made->data, made->size);
        if (!whole || renameat(folder, name, folder, key))
            unlinkat(folder, name, 0);
        close(file);
        shrink(folder);
    }
    if (folder >= 0)
        close(folder);
}
