// libzstd.so.1, by three functions of its stable interface. Without it nothing is packed.
//
// The program may load one later that is newer, as a conda environment has. The dynamic linker would not: it
// takes what has the wanted name (DT_SONAME) for it. So what is loaded here is a copy in memory under another
// name, which binds its own symbols first. Nothing else finds it. Only if the program is linked to one, that
// is used.

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/broker.h"
#include "probe.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x10u
#endif

enum { LEVEL = 1, MOST_LIBRARY = 16 << 20 };
static const char library[] = "libzstd.so.1", renamed[] = "gptzstd.so.1";

static struct {
    void *(*create)(void);
    size_t (*compress)(void *, void *, size_t, const void *, size_t, int);
    unsigned (*is_error)(size_t);
} zstd;

static bool find_functions(const struct linker *linker, void *handle) {
    if (!handle)
        return false;
    zstd.create = linker->symbol(handle, "ZSTD_createCCtx");
    zstd.compress = linker->symbol(handle, "ZSTD_compressCCtx");
    zstd.is_error = linker->symbol(handle, "ZSTD_isError");
    return zstd.create && zstd.compress && zstd.is_error;
}

// Where the library's name is in its file: its strings are in the first segment, which begins with the file.
static uint64_t find_name(const struct link_map *map) {
    uint64_t strings = 0, name = 0;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB)
            strings = entry->d_un.d_ptr;
        if (entry->d_tag == DT_SONAME)
            name = entry->d_un.d_val;
    }
    return strings > map->l_addr ? strings - map->l_addr + name : 0;
}

// A file without a name that holds another, with its library's name changed; -1 if that cannot be.
static int copy_renamed(const char *path, uint64_t at) {
    struct stat status;
    int from = open(path, O_RDONLY | O_CLOEXEC), to = -1;
    size_t size =
        from >= 0 && !fstat(from, &status) && status.st_size <= MOST_LIBRARY ? (size_t)status.st_size : 0;
    char *data = size ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, from, 0) : MAP_FAILED;
    if (from >= 0)
        close(from);
    if (data == MAP_FAILED)
        return -1;
    if (at && at < size - sizeof(library) && !memcmp(data + at, library, sizeof(library))) {
        memcpy(data + at, renamed, sizeof(renamed));
        to = memfd_create(library, MFD_CLOEXEC | MFD_EXEC);
        to = gpt_set_aside(to < 0 ? memfd_create(library, MFD_CLOEXEC) : to); // before Linux 6.3
        if (to >= 0 && write(to, data, size) != (ssize_t)size) {
            close(to);
            to = -1;
        }
    }
    munmap(data, size);
    return to;
}

// Loads the copy. Its path is not one that a program gives to dlopen: it would get this.
static void *open_copy(const struct linker *linker) {
    char path[64];
    struct link_map *found = linker->open(library, RTLD_LAZY | RTLD_LOCAL);
    if (!found)
        return NULL;
    int file = copy_renamed(found->l_name, find_name(found));
    linker->close(found);
    if (file < 0)
        return NULL;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/fd/%d", getpid(), getpid(), file);
    void *handle = linker->open(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    close(file);
    return handle;
}

void hook_zstd_setup(const struct linker *linker) {
    if (linker->symbol(RTLD_DEFAULT, "__sanitizer_print_stack_trace")) // which ends what binds itself first
        return;
    void *handle = linker->open(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!find_functions(linker, handle ? handle : open_copy(linker)))
        zstd.compress = NULL;
}

const void *hook_compress(const void *data, uint64_t size, uint64_t *packed) {
    static void *state, *room;
    static size_t room_size;
    if (!zstd.compress || (!state && !(state = zstd.create())))
        return NULL;
    if (room_size < size) {
        free(room);
        room = malloc(size);
        room_size = room ? size : 0;
    }
    size_t got = room ? zstd.compress(state, room, size - size / 8, data, size, LEVEL) : 0;
    if (!room || zstd.is_error(got))
        return NULL;
    *packed = got;
    return room;
}
