// The shared libraries of the process, including closed ones, as `library` records; and the file offset of an
// address.
//
// We look for libraries when the trace begins, when an address is in none that we know, before one is closed,
// and at the end. We never take a lock of the dynamic linker, because a program may hold it and wait for the
// calling thread.

#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "arch_elf.h"
#include "build_id.h"
#include "hook/write/write.h"
#include "watch.h"

// A library slimmed by gpt-patch has up to a thousand segments, and up to a thousand extra sections.
#define MAX_SECTIONS 4096
#define MAX_HEADERS 1024

// Return the size of the file's sections with GPU code. Section headers are only in the file.
static uint64_t gpu_bytes(int file) {
    Elf64_Ehdr head;
    if (pread(file, &head, sizeof(head), 0) != sizeof(head) || memcmp(head.e_ident, ELFMAG, SELFMAG) ||
        head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shnum > MAX_SECTIONS ||
        head.e_shstrndx >= head.e_shnum)
        return 0;
    static Elf64_Shdr sections[64], strings; // one thread at a time, whose stack may be small
    static char names[16 << 10];
    off_t table = (off_t)head.e_shoff;
    if (pread(file, &strings, sizeof(strings), table + head.e_shstrndx * (off_t)sizeof(strings)) !=
        sizeof(strings))
        return 0;
    size_t size = strings.sh_size < sizeof(names) - 1 ? strings.sh_size : sizeof(names) - 1;
    if (pread(file, names, size, (off_t)strings.sh_offset) != (ssize_t)size)
        return 0;
    names[size] = '\0';
    uint64_t bytes = 0;
    for (int first = 0; first < head.e_shnum; first += 64) {
        int count = head.e_shnum - first < 64 ? head.e_shnum - first : 64;
        ssize_t part = count * (ssize_t)sizeof(*sections);
        if (pread(file, sections, (size_t)part, table + first * (off_t)sizeof(*sections)) != part)
            return 0;
        for (const Elf64_Shdr *section = sections; section < sections + count; section++)
            if (section->sh_name < size && (!strcmp(names + section->sh_name, ".nv_fatbin") ||
                                            !strcmp(names + section->sh_name, "__nv_relfatbin")))
                bytes += section->sh_size;
    }
    return bytes;
}

// A lock for the list of libraries. It's only held briefly, and never while waiting for another thread.
static void take_turn(void) {
    while (atomic_exchange(&hook_watched->scanning, 1))
        sched_yield();
}

static void end_turn(void) { atomic_store(&hook_watched->scanning, 0); }

static struct linked loaded[MAX_LIBRARIES];
static size_t loaded_count;

// The library being examined, one at a time.
static struct {
    const struct mapping *first; // the mapping of the start of the file
    const char *path;            // the file's path
    int file;
    Elf64_Phdr headers[MAX_HEADERS];
    unsigned count;
    uint64_t address, dynamic;
    unsigned char notes[4096];
} seen;

// Read from an offset in the file: from memory if it's mapped together with the start of the file, because
// the file may have changed.
static bool read_part(uint64_t offset, void *into, size_t size) {
    uint64_t room = seen.first->end - seen.first->start;
    if (offset <= room && size <= room - offset)
        return hook_peek((void *)(seen.first->start + offset), into, size);
    return seen.file >= 0 && pread(seen.file, into, size, (off_t)offset) == (ssize_t)size;
}

static void find_build_id(char hex[2 * GPT_BUILD_ID + 1]) {
    static const char digits[] = "0123456789abcdef";
    *hex = '\0';
    for (const Elf64_Phdr *segment = seen.headers; segment < seen.headers + seen.count && !*hex; segment++) {
        size_t room = segment->p_filesz < sizeof(seen.notes) ? segment->p_filesz : sizeof(seen.notes);
        if (segment->p_type != PT_NOTE || !read_part(segment->p_offset, seen.notes, room))
            continue;
        const unsigned char *id;
        size_t size = gpt_find_build_id(seen.notes, room, segment->p_align, &id);
        for (size_t i = 0; i < size; i++) {
            *hex++ = digits[id[i] >> 4];
            *hex++ = digits[id[i] & 15];
        }
        *hex = '\0';
        hex -= 2 * size;
    }
}

static void record_library(const struct library *library) {
    struct stat status;
    if (seen.file < 0 || fstat(seen.file, &status) || !S_ISREG(status.st_mode))
        return;
    char build_id[2 * GPT_BUILD_ID + 1];
    find_build_id(build_id);
    uint64_t gpu = gpu_bytes(seen.file);
    HOOK_WRITE(library, .path = hook_str(library->path), .type = GPT_STR("elf"),
               .size = (uint64_t)status.st_size, .build_id = hook_str(*build_id ? build_id : NULL),
               .machine = GPT_STR(ARCH_NAME), .gpu = {gpu != 0, gpu},
               .replaces = hook_str(library->replaces));
}

static void set_segments(struct library *library, uint64_t mapping) {
    unsigned count = 0;
    library->end = 0;
    for (const Elf64_Phdr *segment = seen.headers; segment < seen.headers + seen.count; segment++) {
        if (segment->p_type != PT_LOAD)
            continue;
        uint64_t start = seen.address + segment->p_vaddr, end = start + segment->p_memsz;
        library->end = end > library->end ? end : library->end;
        if (count == MAX_SEGMENTS)
            continue;
        library->segments[count].start = start;
        library->segments[count].offset = segment->p_offset;
        library->segments[count++].end = start + segment->p_filesz;
    }
    library->count = count;
    library->dynamic = seen.dynamic;
    library->mapping = mapping;
}

static const char *keep_path(const char *path) {
    struct watched *watched = hook_watched;
    size_t length = strlen(path) + 1;
    if (watched->paths_used + length > PATH_BYTES)
        return NULL;
    char *copy = memcpy(watched->paths + watched->paths_used, path, length);
    watched->paths_used += (uint32_t)length;
    return copy;
}

// Read the program headers; return the dynamic linker's entry for this library, or NULL.
static const struct linked *find_loaded(void) {
    Elf64_Ehdr head;
    seen.count = 0;
    if (!read_part(0, &head, sizeof(head)) || memcmp(head.e_ident, ELFMAG, SELFMAG) ||
        head.e_phentsize != sizeof(*seen.headers) || !head.e_phnum || head.e_phnum > MAX_HEADERS ||
        !read_part(head.e_phoff, seen.headers, head.e_phnum * sizeof(*seen.headers)))
        return NULL;
    seen.count = head.e_phnum;
    const Elf64_Phdr *first = NULL, *dynamic = NULL;
    for (const Elf64_Phdr *segment = seen.headers; segment < seen.headers + seen.count; segment++) {
        if (segment->p_type == PT_LOAD && !first)
            first = segment;
        if (segment->p_type == PT_DYNAMIC)
            dynamic = segment;
    }
    if (!first || !dynamic)
        return NULL;
    seen.address = seen.first->start - (first->p_vaddr & -4096ul);
    seen.dynamic = seen.address + dynamic->p_vaddr;
    for (const struct linked *one = loaded; one < loaded + loaded_count; one++)
        if (one->address == seen.address && one->dynamic == seen.dynamic)
            return one;
    return NULL;
}

static bool same_file(const char *one, const char *two) {
    struct stat first, second;
    return !stat(one, &first) && !stat(two, &second) && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

// Add the library that begins at a mapping, if there is one. The program may know it by the name of a link,
// or of a file that it replaces (--replace).
static struct library *add_library(const struct mapping *first, uint64_t mapping) {
    struct watched *watched = hook_watched;
    static char name[4096], whole[4096];
    struct library *library = NULL;
    seen.first = first;
    seen.file = open(first->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const struct linked *found = find_loaded();
    if (!found)
        goto done;
    const char *path = first->path, *replaces = NULL, *folder = getenv("GPT_HOOK_REPLACE");
    bool named = hook_peek_text(found->name, name, sizeof(name)) && strchr(name, '/');
    if (named && strncmp(name, "/proc/", 6)) // the name of a descriptor may soon stand for another file
        path = *name == '/' ? name : realpath(name, whole);
    if (!path)
        path = first->path;
    if (folder && *folder && path != first->path && !same_file(path, first->path) && seen.file >= 0)
        replaces = path, path = first->path;
    uint32_t count = atomic_load(&watched->libraries);
    for (uint32_t i = 0; i < count && !library; i++)
        if (!strcmp(watched->library[i].path, path))
            library = &watched->library[i];
    if (library) { // the library was loaded again at another address
        set_segments(library, mapping);
        goto done;
    }
    const char *copy = count < MAX_LIBRARIES ? keep_path(path) : NULL;
    if (!copy)
        goto done;
    library = &watched->library[count];
    library->path = copy;
    library->replaces = replaces ? keep_path(replaces) : NULL;
    set_segments(library, mapping);
    atomic_store(&watched->libraries, count + 1);
    if (seen.file < 0) // "(deleted)"
        seen.file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    record_library(library);
done:
    if (seen.file >= 0)
        close(seen.file);
    return library;
}

static struct library *find_known(uint64_t mapping) {
    for (uint32_t i = 0; i < atomic_load(&hook_watched->libraries); i++)
        if (hook_watched->library[i].count && hook_watched->library[i].mapping == mapping)
            return &hook_watched->library[i];
    return NULL;
}

// Return a number for the start of a library.
static uint64_t digest(const struct mapping *mapping) {
    uint64_t value = 14695981039346656037u ^ mapping->inode;
    value = value * 1099511628211u ^ mapping->start;
    for (const char *c = mapping->path; *c; c++)
        value = (value ^ (unsigned char)*c) * 1099511628211u;
    return value;
}

// Read the linker's list; return whether it has changed since the last scan.
static bool list_loaded(void) {
    uint64_t number = 14695981039346656037u, before = hook_watched->linked;
    loaded_count = 0;
    for (struct linked linked = {0}; loaded_count < MAX_LIBRARIES && hook_next_linked(&linked);) {
        loaded[loaded_count++] = linked;
        number = (number ^ linked.address) * 1099511628211u;
        number = (number ^ linked.dynamic) * 1099511628211u;
    }
    hook_watched->linked = number;
    return number != before;
}

static void scan(bool last) {
    struct watched *watched = hook_watched;
    static bool there[MAX_LIBRARIES];
    bool changed = list_loaded();
    if (!atomic_exchange(&watched->unmapped, false) && !changed)
        return; // don't open files: a seccomp filter may forbid it
    if (last && hook_may_have_filter()) {
        HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = GPT_STR("libraries"),
                   .text = GPT_STR("the process has a seccomp filter, so libraries that it opened last "
                                   "weren't recorded"));
        return;
    }
    memset(there, 0, sizeof(there));
    uint64_t inode = 0, end = 0; // the previous library's
    struct maps *maps = hook_open_maps();
    for (struct mapping mapping; hook_next_mapping(maps, &mapping);) {
        if (*mapping.path != '/' || mapping.offset || (mapping.inode == inode && mapping.start < end))
            continue;
        uint64_t number = digest(&mapping);
        struct library *library = find_known(number);
        if (!library && !(library = add_library(&mapping, number)))
            continue;
        there[library - watched->library] = true;
        inode = mapping.inode, end = library->end;
    }
    for (uint32_t i = 0; maps && i < atomic_load(&watched->libraries); i++)
        if (!there[i])
            watched->library[i].count = 0;
    hook_close_maps(maps);
}

static void scan_once(bool last) {
    HOOK_HOLD_SIGNALS;
    if (!hook_this_thread())
        return;
    take_turn();
    scan(last);
    end_turn();
}

void hook_scan_libraries(void) { scan_once(false); }

void hook_scan_at_end(void) { scan_once(true); }

static bool is_known(uint64_t dynamic) {
    bool known = false;
    HOOK_HOLD_SIGNALS;
    take_turn();
    for (uint32_t i = 0; i < atomic_load(&hook_watched->libraries) && !known; i++)
        known = hook_watched->library[i].count && hook_watched->library[i].dynamic == dynamic;
    end_turn();
    return known;
}

// Record a library that is about to be closed. The handle of dlopen points into the linker's list.
void hook_before_close(const void *handle) {
    struct link_map map;
    if (atomic_load(&hook_watched->unmapped) || !hook_peek(handle, &map, sizeof(map)) ||
        !is_known((uintptr_t)map.l_ld))
        hook_scan_libraries();
}

static _Atomic uint64_t generation; // changes when a library is closed

uint64_t hook_unwind_generation(void) { return atomic_load_explicit(&generation, memory_order_relaxed); }

void hook_after_close(void) {
    atomic_store(&hook_watched->unmapped, true);
    atomic_fetch_add(&generation, 1);
}

static const char *find_library(uint64_t at, uint64_t *offset) {
    const char *path = NULL;
    HOOK_HOLD_SIGNALS;
    take_turn();
    for (uint32_t i = atomic_load(&hook_watched->libraries); i-- > 0 && !path;) {
        const struct library *library = &hook_watched->library[i];
        for (unsigned j = 0; j < library->count && !path; j++)
            if (at >= library->segments[j].start && at < library->segments[j].end) {
                *offset = at - library->segments[j].start + library->segments[j].offset;
                path = library->path;
            }
    }
    end_turn();
    return path;
}

const char *hook_find_library(const void *address) {
    uint64_t offset;
    const char *path = atomic_load(&hook_watched->unmapped) ? NULL : find_library((uint64_t)address, &offset);
    if (path)
        return path;
    hook_scan_libraries();
    return find_library((uint64_t)address, &offset);
}

// Return the file that's mapped at an address, and the offset in it.
const char *hook_find_file(const void *address, uint64_t *offset, char *buffer, size_t size) {
    uint64_t at = (uint64_t)address;
    const char *path = atomic_load(&hook_watched->unmapped) ? NULL : find_library(at, offset);
    if (path)
        return path;
    uint64_t from = 0;
    bool mapped = false;
    struct maps *maps = hook_open_maps();
    for (struct mapping mapping; !mapped && hook_next_mapping(maps, &mapping);)
        if (at >= mapping.start && at < mapping.end) {
            if (*mapping.path != '/' || strlen(mapping.path) >= size)
                break;
            strcpy(buffer, mapping.path);
            from = at - mapping.start + mapping.offset;
            mapped = true;
        }
    hook_close_maps(maps);
    if (!mapped) // no file
        return NULL;
    hook_scan_libraries();
    if ((path = find_library(at, offset)))
        return path;
    *offset = from; // the address is in a file that the program mapped itself
    bool is_lasting =
        !strstr(buffer, " (deleted)") && strncmp(buffer, "/dev/", 5) && strncmp(buffer, "/memfd:", 7);
    return is_lasting ? buffer : NULL;
}
