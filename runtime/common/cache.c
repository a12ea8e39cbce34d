// Keeps results for later processes: each folder in XDG_CACHE_HOME/gpt has one file per result. The hook
// keeps probed kernels, gpt-hook probes, the simulated device host code, and gpt-asm (gpt/base/cache.py
// calls this) cubins.
//
// Any number of processes use a folder at once, without locks. A file is named by its key, the digest of
// everything that determines the result. It's written under another name and renamed, so it's complete or
// absent. It begins with the digest of key and result, so a file that was truncated, altered, or moved to
// another key is detected and made again. A process measures the folder before it has written a sixteenth of
// the limit. If there's too much in it, the least recently used files are deleted, down to 7/8 of the limit.
// Reading a file marks it as used.
//
// A result is code that will run, and files are deleted here, so the folder has to be this user's alone
// (private.c has the rules), and each file is reached from the open folder. Only files with names that we
// give are counted or deleted: keys, and .gpt-RANDOM.part. A cache that can't be used only costs time.

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../say.h"
#include "cache.h"
#include "own.h"

enum { DIGEST = 64, LIMIT = 1 << 28, STALE = 3600 }; // bytes; bytes of all files; seconds

static bool is_hex(const char *text, size_t size) { return strspn(text, "0123456789abcdef") >= size; }

static bool is_key(const char *name) { return strlen(name) == DIGEST && is_hex(name, DIGEST); }

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

bool gpt_get_from(const char *path, const char *key, off_t limit, struct gpt_bytes *found,
                  struct gpt_distrust *why) {
    *why->reason = '\0';
    int folder = is_key(key) ? gpt_open_private(path, false, why) : -1;
    int file = folder >= 0 ? openat(folder, key, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    struct stat status;
    char stored_digest[DIGEST], digest[DIGEST + 1];
    bool whole = false;
    char *data = NULL;
    if (file >= 0 && gpt_is_private(file, S_IFREG) && !fstat(file, &status) && status.st_size <= limit) {
        size_t size = (size_t)status.st_size;
        if (size >= DIGEST && (data = malloc(size + 1)) && read_all(file, data, size)) {
            memcpy(stored_digest, data, DIGEST);
            memcpy(data, key, DIGEST);
            gpt_sha256(data, size, digest);
            whole = !memcmp(digest, stored_digest, DIGEST);
        }
        if (whole) {
            futimens(file, NULL); // it was used
            found->size = found->room = size - DIGEST;
            found->data = memmove(data, data + DIGEST, found->size);
        } else if (data || size < DIGEST)
            unlinkat(folder, key, 0);
    }
    if (!whole)
        free(data);
    if (file >= 0)
        close(file);
    if (folder >= 0)
        close(folder);
    return whole;
}

struct cached_file {
    char name[DIGEST + 1];
    struct timespec used;
    off_t size;
};

static int by_use(const void *one, const void *other) {
    struct timespec a = ((const struct cached_file *)one)->used,
                    b = ((const struct cached_file *)other)->used;
    if (a.tv_sec != b.tv_sec)
        return a.tv_sec > b.tv_sec ? 1 : -1;
    return (a.tv_nsec > b.tv_nsec) - (a.tv_nsec < b.tv_nsec);
}

// If the folder is too large, delete the least recently used files, along with temporary files that were
// abandoned. Returns how many bytes are left in use.
static off_t shrink(int folder, off_t limit) {
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy >= 0 ? fdopendir(copy) : NULL;
    struct cached_file *all = NULL;
    size_t count = 0, room = 0;
    off_t total = 0;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        struct stat status;
        if (!(is_key(entry->d_name) || gpt_is_part(entry->d_name)) ||
            !gpt_is_own(folder, entry->d_name, &status))
            continue;
        if (count == room) {
            struct cached_file *larger = realloc(all, (2 * room + 64) * sizeof(*all));
            if (!larger)
                break;
            all = larger;
            room = 2 * room + 64;
        }
        strcpy(all[count].name, entry->d_name);
        all[count].used = status.st_mtim;
        all[count++].size = status.st_size;
        total += status.st_size;
    }
    if (entries)
        closedir(entries);
    if (count && total > limit) {
        qsort(all, count, sizeof(*all), by_use);
        time_t fresh = time(NULL) - STALE;
        for (size_t i = 0; i < count; i++)
            if (gpt_is_part(all[i].name) ? all[i].used.tv_sec < fresh : total > limit - limit / 8) {
                unlinkat(folder, all[i].name, 0);
                total -= all[i].size;
            }
    }
    free(all);
    return total;
}

static bool write_result(int folder, const char *key, const struct gpt_bytes *made) {
    char part[GPT_PART_BYTES], digest[DIGEST + 1], *all = malloc(DIGEST + made->size);
    int file = all ? gpt_create_part(folder, part, 0600) : -1;
    bool good = file >= 0;
    if (good) {
        memcpy(all, key, DIGEST);
        memcpy(all + DIGEST, made->data, made->size);
        gpt_sha256(all, DIGEST + made->size, digest);
        good = write_all(file, digest, DIGEST) && write_all(file, made->data, made->size);
        good = good && !renameat(folder, part, folder, key);
        if (!good)
            unlinkat(folder, part, 0);
        close(file);
    }
    free(all);
    return good;
}

void gpt_keep_in(const char *path, const char *key, const struct gpt_bytes *made, off_t limit, long *room,
                 struct gpt_distrust *why) {
    *why->reason = '\0';
    off_t size = (off_t)made->size + DIGEST;
    int folder = is_key(key) && size <= limit / 8 ? gpt_open_private(path, true, why) : -1;
    if (folder < 0)
        return;
    if (write_result(folder, key, made) && __atomic_sub_fetch(room, size, __ATOMIC_RELAXED) < 0) {
        off_t left = limit - shrink(folder, limit);
        __atomic_store_n(room, left < limit / 16 ? left : limit / 16, __ATOMIC_RELAXED);
    }
    close(folder);
}

// By name, in the user's cache

static char *name_folder(const char *name, char path[PATH_MAX]) {
    const char *home = secure_getenv("XDG_CACHE_HOME");
    bool set = home && *home == '/';
    if (!set && !((home = secure_getenv("HOME")) && *home == '/'))
        return NULL;
    return snprintf(path, PATH_MAX, "%s%s/gpt/%s", home, set ? "" : "/.cache", name) < PATH_MAX ? path : NULL;
}

static void say(const struct gpt_distrust *why) {
    static _Atomic bool stored_digest;
    char line[PATH_MAX + 512];
    if (!*why->reason || getenv(GPT_CACHE_SAID) || atomic_exchange(&stored_digest, true))
        return;
    snprintf(line, sizeof(line),
             "gpt-hook: warning: %s: %s; no code is cached: set XDG_CACHE_HOME to a folder of your own",
             why->where, why->reason);
    gpt_write_line(line);
}

struct room { // for paths, which are too large for small stacks
    char path[PATH_MAX];
    struct gpt_distrust why;
};

bool gpt_get_cached(const char *name, const char key[65], struct gpt_bytes *found) {
    struct room *room = calloc(1, sizeof(*room));
    bool got =
        room && name_folder(name, room->path) && gpt_get_from(room->path, key, LIMIT, found, &room->why);
    if (room && !got)
        say(&room->why);
    free(room);
    return got;
}

void gpt_cache(const char *name, const char key[65], const struct gpt_bytes *made) {
    static long left; // one folder per process
    struct room *room = calloc(1, sizeof(*room));
    if (room && name_folder(name, room->path)) {
        gpt_keep_in(room->path, key, made, LIMIT, &left, &room->why);
        say(&room->why);
    }
    free(room);
}

bool gpt_warn_of_cache(void) {
    static const char *const names[] = {"probed", "probes", "sim", "asm", "ptx"};
    struct room *room = calloc(1, sizeof(*room));
    for (size_t i = 0; room && !*room->why.reason && i < sizeof(names) / sizeof(*names); i++) {
        int folder = name_folder(names[i], room->path) ? gpt_open_private(room->path, false, &room->why) : -1;
        if (folder >= 0)
            close(folder);
    }
    bool any = room && *room->why.reason;
    if (any)
        say(&room->why);
    free(room);
    return any;
}
