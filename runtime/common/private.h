// Folders whose contents nobody but this user, or root, can have put there.

#ifndef GPT_PRIVATE_H
#define GPT_PRIVATE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Why a folder isn't used. `reason` is empty where that's no fault of anybody: it's missing, or can't be
// made.
struct gpt_distrust {
    char where[PATH_MAX];
    char reason[128];
};

// Opens the folder `path`, which is absolute, for reading. With `make`, it and its parents are made with mode
// 0700 where they aren't there. Returns -1 where that fails, or where the folder can't be trusted.
int gpt_open_private(const char *path, bool make, struct gpt_distrust *why);

// Return whether an open file has this type, belongs to this user, and is writable by nobody else.
bool gpt_is_private(int file, mode_t type);

#endif
