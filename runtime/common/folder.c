// The private folder with the supervisor's socket: gpt-broker.BOOT.XXXXXX in TMPDIR, or in /tmp. Not in
// XDG_RUNTIME_DIR, which is removed when its user logs out, even if programs are still running. The
// supervisor locks its folder, so the next run can tell (and remove) a folder whose supervisor was killed,
// and systemd-tmpfiles, which removes old files, skips a locked one. BOOT identifies the kernel that holds
// the lock, because several machines may share a TMPDIR.

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker.h"
#include "own.h"

enum { RANDOM = 6 }; // characters

// Remove only the socket: a folder with other files is kept.
static void empty_folder(int folder) {
    struct stat status;
    if (!fstatat(folder, GPT_SOCKET, &status, AT_SYMLINK_NOFOLLOW) && S_ISSOCK(status.st_mode))
        unlinkat(folder, GPT_SOCKET, 0);
}

void gpt_make_prefix(const char *kind, char prefix[64]) {
    char boot[9] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || fscanf(file, "%8[0-9a-f]", boot) != 1)
        strcpy(boot, "unknown");
    if (file)
        fclose(file);
    snprintf(prefix, 64, "%s.%s.", kind, boot);
}

static bool has_prefix(const char *name, const char *prefix) {
    size_t size = strlen(prefix);
    bool good = !strncmp(name, prefix, size) && strlen(name) == size + RANDOM;
    for (size_t i = size; good && name[i]; i++)
        good = isalnum((unsigned char)name[i]);
    return good;
}

void gpt_remove_stale(const char *parent, const char *prefix, bool (*is_stale)(int), void (*empty)(int)) {
    DIR *entries = opendir(parent);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        int folder = -1, flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        if (has_prefix(entry->d_name, prefix))
            folder = openat(dirfd(entries), entry->d_name, flags);
        if (folder >= 0 && gpt_owns_folder(folder, geteuid()) && is_stale(folder)) {
            empty(folder);
            unlinkat(dirfd(entries), entry->d_name, AT_REMOVEDIR);
        }
        if (folder >= 0)
            close(folder);
    }
    if (entries)
        closedir(entries);
}

static bool is_unlocked(int folder) { return !flock(folder, LOCK_EX | LOCK_NB); }

// Make a folder and lock it. Until it's locked, another run may take it for a stale one and remove it.
static int make_in(const char *parent, char path[PATH_MAX]) {
    enum { TRIES = 8 };
    char real[PATH_MAX], prefix[64];
    if (!realpath(parent, real) || strlen(real) > PATH_MAX - 128)
        return -1;
    gpt_make_prefix("gpt-broker", prefix);
    gpt_remove_stale(real, prefix, is_unlocked, empty_folder);
    for (int i = 0; i < TRIES; i++) {
        struct stat status;
        int folder = gpt_make_temporary(real, prefix, path);
        if (folder < 0)
            return -1;
        if (gpt_owns_folder(folder, geteuid()) && !flock(folder, LOCK_EX) && !fstat(folder, &status) &&
            status.st_nlink)
            return folder;
        close(folder);
        rmdir(path);
    }
    return -1;
}

int gpt_make_folder(char path[PATH_MAX]) {
    mode_t mask = umask(S_IRWXG | S_IRWXO);
    int folder = make_in(gpt_temporary_parent(), path);
    if (folder < 0)
        folder = make_in("/tmp", path);
    umask(mask);
    return folder;
}

int gpt_listen(int folder) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" GPT_SOCKET, folder);
    if (file >= 0 && !setsockopt(file, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)) &&
        !bind(file, (void *)&address, sizeof(address)) && !fchmodat(folder, GPT_SOCKET, 0600, 0) &&
        !listen(file, SOMAXCONN))
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

void gpt_remove_folder(int folder, const char *path) {
    empty_folder(folder);
    rmdir(path);
    close(folder);
}
