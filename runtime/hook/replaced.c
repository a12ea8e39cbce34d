// Under `gpt-hook run --replace` the dynamic linker knows a library by the name that the program asked for.
// Which file it loaded in its place, the kernel tells.

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hook.h"

static char *text; // of /proc/self/maps, as it was read last
static size_t size, room;

const char *hook_read_maps(void) {
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size = 0;
    for (ssize_t got = file < 0 ? 0 : 1; got > 0; size += got > 0 ? (size_t)got : 0) {
        if (room - size < 8192) { // the kernel gives whole lines, a page at most
            char *more = mmap(NULL, 2 * room + (256 << 10), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (more == MAP_FAILED)
                break;
            if (text) {
                memcpy(more, text, size);
                munmap(text, room);
            }
            text = more;
            room = 2 * room + (256 << 10);
        }
        got = read(file, text + size, room - size - 1);
    }
    if (file >= 0)
        close(file);
    if (text)
        text[size] = '\0';
    return text ? text : "";
}

// Before the libraries of a scan, one thread at a time.
void hook_begin_replaced(void) {
    const char *folder = getenv("GPT_HOOK_REPLACE");
    size = 0;
    if (folder && *folder)
        hook_read_maps();
}

// The file that is mapped at the address, if it is another one than `path`; its name is in `buffer`.
bool hook_find_replaced(const void *address, const char *path, char *buffer, size_t buffer_size) {
    uintptr_t at = (uintptr_t)address;
    for (char *line = text, *end = text + size; line < end;) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        if (!next)
            return false;
        char *after;
        uintptr_t start = strtoul(line, &after, 16), stop = strtoul(after + 1, NULL, 16);
        char *slash = memchr(line, '/', (size_t)(next - line));
        if (slash && start <= at && at < stop && (size_t)(next - slash) < buffer_size) {
            memcpy(buffer, slash, (size_t)(next - slash));
            buffer[next - slash] = '\0';
            struct stat found, named;
            return !stat(buffer, &found) && !stat(path, &named) &&
                   (found.st_dev != named.st_dev || found.st_ino != named.st_ino);
        }
        line = next + 1;
    }
    return false;
}
