// The private folder of a live stream. The helper holds a lock on a file in it for as long as it lives, so a
// process that writes a trace there notices when nobody reads it any more. The first one to notice removes
// the folder; if all are killed, the next live stream does.

#ifndef GPT_FOLDER_H
#define GPT_FOLDER_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/own.h"

#define FOLDER_LOCK ".helper"

// Lock the file. The lock is held until the last process that has this descriptor ends. Returns -1 with errno
// set if that fails.
static inline int folder_lock(int folder) {
    int file = gpt_create(folder, FOLDER_LOCK, O_RDWR, 0600);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (file >= 0 &&
        fcntl(file, F_OFD_SETLK, &whole)) { // on a file system without locks we can't watch the helper
        close(file);
        unlinkat(folder, FOLDER_LOCK, 0);
        return -1;
    }
    return file;
}

// Return whether the process that held the lock of this file has ended. If we can't tell, assume that it's
// still running.
static inline bool folder_is_left(int lock) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return !fcntl(lock, F_OFD_GETLK, &whole) && whole.l_type == F_UNLCK;
}

// Return whether a file of this name is ours: the lock, a trace (PID, PID.PID, PID.PID.2), or the file with
// its buffers.
static inline bool folder_has_name(const char *name) {
    return !strcmp(name, FOLDER_LOCK) ||
           (*name >= '0' && *name <= '9' && !name[strspn(name, "0123456789.buffers")]);
}

// Remove the run's files from an open folder. Allocates no memory, as it may run in a signal handler.
static inline void folder_empty(int folder) {
    _Alignas(struct dirent64) char entries[2048];
    bool any = true;
    while (any) { // start over, since removing entries may move the others
        long got;
        any = false;
        lseek(folder, 0, SEEK_SET);
        while ((got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0)
            for (long at = 0; at < got;) {
                const struct dirent64 *entry = (const void *)(entries + at);
                at += entry->d_reclen;
                if (folder_has_name(entry->d_name))
                    any |= !unlinkat(folder, entry->d_name, 0);
            }
    }
}

// Do the same by name, and remove the folder if nothing else is in it.
static inline void folder_remove(const char *path) {
    int folder = gpt_open_temporary(path);
    if (folder >= 0) {
        folder_empty(folder);
        close(folder);
    }
    rmdir(path);
}

#endif
