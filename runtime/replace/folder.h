// The files that stand for libraries.

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
    unsigned size; // of the build id; 0: none
    unsigned char build_id[GPT_BUILD_ID];
};

struct file { // of the folder
    const char *path, *name;
    size_t stem; // bytes of the name that stand before a version
    enum { UNREAD, GOOD, BAD } state;
    bool warned, used;
    struct identity identity, original; // its own; that of the library that it stands for
    const char *asked;                  // the name with a slash that it was last loaded for
};

static inline const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The identity of a shared object that is whole; returns why not otherwise.
const char *replace_identify(const char *path, struct identity *identity);
size_t replace_read_folder(const char *path); // with its subfolders; returns how many files there are
// The files whose stem is that of the name: the first of them and, in `count`, how many.
struct file **replace_find_files(const char *name, size_t *count);

#endif
