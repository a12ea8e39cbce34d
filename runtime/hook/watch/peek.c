// Memory that the program may have given back, or give back meanwhile: the kernel reads it.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "peek.h"

__attribute__((no_sanitize("address", "thread", "undefined"))) //
bool hook_peek(const void *from, void *into, size_t size) {
    struct iovec here = {into, size}, there = {(void *)from, size};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size;
}

bool hook_peek_text(const char *from, char *into, size_t size) {
    for (size_t at = 0; at < size;) { // to the end of the page: what is after it may not be there
        size_t part = 4096 - ((uintptr_t)from + at) % 4096;
        part = part < size - at ? part : size - at;
        if (!hook_peek(from + at, into + at, part))
            return false;
        if (memchr(into + at, '\0', part))
            return true;
        at += part;
    }
    return false;
}

bool hook_is_readable(const void *start, size_t size) {
    uintptr_t at = (uintptr_t)start, end;
    if (__builtin_add_overflow(at, size, &end))
        return false;
    while (at < end) { // a byte of each page
        char bytes[256];
        struct iovec there[sizeof(bytes)], here = {bytes, 0};
        for (; at < end && here.iov_len < sizeof(bytes); at = (at | 4095) + 1)
            there[here.iov_len++] = (struct iovec){(void *)at, 1};
        if (process_vm_readv(getpid(), &here, 1, there, here.iov_len, 0) != (ssize_t)here.iov_len)
            return false;
    }
    return true;
}
