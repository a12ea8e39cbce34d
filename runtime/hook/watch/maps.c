// What is mapped into the process. The kernel says it, at any time: the dynamic linker, which knows more of
// its libraries, has locks that another thread may hold for long, or that stay taken for ever in a forked
// child.

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "watch.h"

struct maps {
    int file;
    size_t at, size;
    char text[(16 << 10) - 32]; // a line has a path, 4 KiB at most
};

struct maps *hook_open_maps(void) {
    struct maps *maps = mmap(NULL, sizeof(*maps), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (maps == MAP_FAILED)
        return NULL;
    maps->file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
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

// The next line, without its line feed; NULL at the end.
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
