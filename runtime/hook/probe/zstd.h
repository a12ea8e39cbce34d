// Packing by zstd, where that is installed.

#ifndef GPT_ZSTD_H
#define GPT_ZSTD_H

#include <stdint.h>

struct linker { // functions of libc
    void *(*open)(const char *, int);
    int (*close)(void *);
    void *(*symbol)(void *, const char *);
};

// Before the program begins, for no other thread is there that holds a lock of the dynamic linker.
void hook_zstd_setup(const struct linker *linker);

// A frame with the data, which stays until the next; NULL if that is not smaller by an eighth. For one
// thread.
const void *hook_compress(const void *data, uint64_t size, uint64_t *packed);

#endif
