// Strips the version and the stream variant from a driver function's name, for the hook and the launcher.

#ifndef GPT_SUFFIXES_H
#define GPT_SUFFIXES_H

#include <stdbool.h>
#include <string.h>

// Cut the suffix `_ptsz` or `_ptds`, and `_v2`; return whether `_v2` was there.
static inline bool gpt_cut_suffixes(char *name) {
    size_t size = strlen(name);
    if (size > 5 && (!strcmp(name + size - 5, "_ptsz") || !strcmp(name + size - 5, "_ptds")))
        name[size -= 5] = '\0';
    char *at = strrchr(name, '_');
    if (!at || at[1] != 'v' || at[2] < '0' || at[2] > '9')
        return false;
    *at = '\0';
    return true;
}

#endif
