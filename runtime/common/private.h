// Opens folders whose contents can only come from this user or root.

#ifndef GPT_PRIVATE_H
#define GPT_PRIVATE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// The reason why a folder isn't used. `reason` is empty if this is no security problem: the folder doesn't
// exist, or can't be made.
struct gpt_distrust {
    char where[PATH_MAX];
    char reason[128];
};

// Open the folder with this absolute path for reading. If `make` is set, missing folders on the path are
// made, with mode 0700. Returns -1 if that fails, or if the folder can't be trusted.
int gpt_open_private(const char *path, bool make, struct gpt_distrust *why);

// Return whether an open file has this type, belongs to this user, and can't be written by anybody else.
bool gpt_is_private(int file, mode_t type);

#endif
