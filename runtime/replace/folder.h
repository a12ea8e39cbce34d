// The files that replace libraries.

#ifndef GPT_REPLACE_FOLDER_H
#define GPT_REPLACE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "build_id.h"

struct identity {
    dev_t device;
    ino_t inode;
    unsigned size; // bytes of the build id; 0: none
    unsigned char build_id[GPT_BUILD_ID];
};

struct file { // a file in the folder
    const char *path, *name;
    size_t stem; // bytes of the name before a version
    enum { UNREAD, GOOD, BAD } state;
    bool warned, used;
    struct identity identity, original; // its own, and the replaced library's
    const char *asked;                  // the name, with a slash, that it was last loaded for
};

static inline const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Read the identity of a complete shared object. Returns NULL, or why it can't.
const char *replace_identify(const char *path, struct identity *identity);
size_t replace_read_folder(const char *path); // with its subfolders; returns how many files there are
// Find the files whose stem equals the name's. Returns the first; `count` gets their number.
struct file **replace_find_files(const char *name, size_t *count);

#endif
