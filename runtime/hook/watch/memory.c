// Reads memory that the program may free at any time, by having the kernel read it.

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hook/write/write.h"
#include "watch.h"

// A sanitizer looks up symbols before its own set-up is done, and replaces functions of libc.
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

// For a seccomp filter that forbids process_vm_readv, or if the main thread has ended: write the bytes to a
// pipe, which fails where they can't be read.
EARLY static bool peek_by_pipe(const char *from, char *into, size_t size) {
    int ends[2];
    if (syscall(SYS_pipe2, ends, O_CLOEXEC | O_NONBLOCK))
        return false;
    bool good = true;
    for (size_t part; size && good; size -= part, from += part, into += part) {
        part = size < 4096 ? size : 4096; // every pipe holds at least a page
        good = syscall(SYS_write, ends[1], from, part) == (long)part &&
               syscall(SYS_read, ends[0], into, part) == (long)part;
    }
    syscall(SYS_close, ends[0]);
    syscall(SYS_close, ends[1]);
    return good;
}

EARLY bool hook_peek(const void *from, void *into, size_t size) {
    struct iovec here = {into, size}, there = {(void *)from, size};
    int before = errno;
    bool good = process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size;
    if (!good && (errno == EPERM || errno == ENOSYS || errno == ESRCH))
        good = peek_by_pipe(from, into, size);
    errno = before;
    return good;
}

bool hook_peek_text(const char *from, char *into, size_t size) {
    for (size_t at = 0; at < size;) { // up to the end of the page: the next one may be unmapped
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
    while (at < end) { // one byte per page
        char bytes[256];
        struct iovec there[sizeof(bytes)], here = {bytes, 0};
        for (; at < end && here.iov_len < sizeof(bytes); at = (at | 4095) + 1)
            there[here.iov_len++] = (struct iovec){(void *)at, 1};
        if (process_vm_readv(getpid(), &here, 1, there, here.iov_len, 0) == (ssize_t)here.iov_len)
            continue;
        for (size_t i = 0; i < here.iov_len; i++)
            if (!hook_peek(there[i].iov_base, bytes, 1))
                return false;
    }
    return true;
}

// Return whether a range lies between this function's frame and the end of the stack, where the callers'
// frames are. A thread's stack ends at its control block, the first thread's at the data that the kernel put
// there.
static bool is_on_stack(uintptr_t at, size_t size) {
    enum { NEAR = 16 << 10 }; // bytes; a coroutine's stack is somewhere else
    static _Atomic uintptr_t found;
    uintptr_t first = atomic_load_explicit(&found, memory_order_relaxed); // end of the first thread's stack
    if (UNLIKELY(!first))
        atomic_store_explicit(&found, first = getauxval(AT_RANDOM), memory_order_relaxed);
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), thread = pthread_self(), end = first;
    if (thread > here && (thread < end || end < here))
        end = thread;
    return at >= here && at - here < NEAR && size < NEAR && end > here && at + size <= end;
}

// The kernel reads the signal set before it rejects the operation.
static bool has_page(uintptr_t at) {
    enum { NOTHING = -1 };
    return syscall(SYS_rt_sigprocmask, NOTHING, at & ~7ul, NULL, 8) < 0 && errno == EINVAL;
}

bool hook_read_near(const void *from, void *into, size_t size, uintptr_t *there) {
    uintptr_t at = (uintptr_t)from, end;
    bool good = !__builtin_add_overflow(at, size, &end) && at;
    if (!is_on_stack(at, size)) {
        int before = errno;
        for (uintptr_t page = at; good && page < end; page = (page | 4095) + 1) {
            good = (*there && page / 4096 == *there) || has_page(page);
            *there = good ? page / 4096 : 0;
        }
        errno = before;
    }
    if (good)
        memcpy(into, from, size);
    else
        memset(into, 0, size);
    return good;
}

bool hook_read(const void *from, void *into, size_t size) {
    uintptr_t there = 0;
    return hook_read_near(from, into, size, &there);
}

// -- Mappings --------------------------------------------------------------
//
// The process's mappings, from the kernel. The dynamic linker knows more about its libraries, but has locks
// that another thread may hold for long, or that stay locked forever in a forked child.

struct maps {
    int file;
    size_t at, size;
    char text[(16 << 10) - 32]; // a line has a path, 4 KiB at most
};

struct maps *hook_open_maps(void) {
    struct maps *maps = mmap(NULL, sizeof(*maps), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (maps == MAP_FAILED)
        return NULL;
    maps->file = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC);
    if (maps->file >= 0)
        return maps;
    munmap(maps, sizeof(*maps));
    return NULL;
}

void hook_close_maps(struct maps *maps) {
    if (maps) {
        close(maps->file);
        munmap(maps, sizeof(*maps));
    }
}

// Return the next line, without its line feed; NULL at the end.
static char *next_line(struct maps *maps) {
    for (;;) {
        char *line = maps->text + maps->at, *end = memchr(line, '\n', maps->size - maps->at);
        if (end) {
            *end = '\0';
            maps->at = (size_t)(end + 1 - maps->text);
            return line;
        }
        maps->size -= maps->at;
        memmove(maps->text, line, maps->size);
        maps->at = 0;
        ssize_t got = read(maps->file, maps->text + maps->size, sizeof(maps->text) - maps->size);
        if (got <= 0)
            return NULL;
        maps->size += (size_t)got;
    }
}

static uint64_t take_number(char **at, unsigned base) {
    uint64_t number = 0;
    for (;; ++*at) {
        unsigned digit = (unsigned char)**at;
        digit = digit >= 'a' ? digit - 'a' + 10 : digit - '0';
        if (digit >= base)
            return number;
        number = number * base + digit;
    }
}

bool hook_next_mapping(struct maps *maps, struct mapping *mapping) {
    char *at = maps ? next_line(maps) : NULL; // "7f00-7f80 r-xp 1000 08:01 1234    /path"
    if (!at)
        return false;
    mapping->start = take_number(&at, 16), at++;
    mapping->end = take_number(&at, 16), at += strlen(" r-xp ");
    mapping->offset = take_number(&at, 16), at++;
    take_number(&at, 16), at++;
    take_number(&at, 16), at++;
    mapping->inode = take_number(&at, 10);
    mapping->path = at + strspn(at, " ");
    return true;
}
