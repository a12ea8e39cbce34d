// Packs what probes saved: as columns, and then with zstd.
//
// Consecutive records are very similar: a count of 1, clocks that differ by little, one of a few SMs. So each
// 32-bit word is replaced by its difference from the same word of the previous record. Then come the lowest
// bytes of all first words, then their second bytes, and so on. Most of these planes consist of zeros, and
// are left out. gpt-stream(5), Columns, specifies the exact form. This takes hardly longer than copying the
// bytes, and leaves only a fraction of them to zstd (docs/measured.md).
//
// Only the writer thread packs. It allocates twice PACK_MOST for the first buffer, and nothing after that.

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
#include <sys/syscall.h>
#include <unistd.h>

#include "common/own.h"
#include "probe.h"

enum {
    TILE = 16 << 10,   // bytes that are rearranged at once, so that they stay in the first cache
    MOST_ROW = 256,    // bytes; larger records are rather unlike each other
    LEAST_ROWS = 4,    // fewer save nothing
    LEAST_ZSTD = 4096, // bytes; in smaller data, the tables in a frame cost more than they save
    PLANES = 4,        // bytes of a word
};

static bool is_worth(uint64_t packed, uint64_t size) { return packed <= size - size / 8; }

// -- Columns ---------------------------------------------------------------

// Return how a word differs from the previous one. The sign is in the lowest bit, so that the upper bytes of
// small differences are zero, whatever their sign.
static inline uint32_t difference(const unsigned char *word, uint64_t row) {
    uint32_t now, before;
    memcpy(&now, word, sizeof(now));
    memcpy(&before, word - row, sizeof(before));
    return (now - before) << 1 ^ -((now - before) >> 31);
}

// Rearrange the words `w` of some rows. `to` says where the byte of the first of these rows belongs in each
// plane; it's NULL for planes that are left out.
static void write_planes(const unsigned char *word, uint64_t row, uint64_t rows,
                         unsigned char *const to[PLANES]) {
    for (unsigned plane = 0; plane < PLANES; plane++)
        for (uint64_t i = 0; to[plane] && i < rows; i++)
            to[plane][i] = (unsigned char)(difference(word + i * row, row) >> 8 * plane);
}

// Return the size of the data as columns, or 0 if columns wouldn't save anything.
static uint64_t make_columns(const unsigned char *data, uint64_t size, uint64_t row, unsigned char *out) {
    uint32_t bits[MOST_ROW / 4] = {0}; // bits set in any difference of a word
    unsigned char *planes[MOST_ROW] = {NULL};
    uint64_t rows = size / row, rest = size % row, made = row + (row + 7) / 8;
    if (rows < LEAST_ROWS)
        return 0;
    for (uint64_t at = row; at < rows * row; at += row)
        for (uint64_t w = 0; w < row / 4; w++)
            bits[w] |= difference(data + at + 4 * w, row);
    memset(out + row, 0, (row + 7) / 8);
    for (uint64_t plane = 0; plane < row; plane++) {
        if (!(bits[plane / 4] >> 8 * (plane % 4) & 0xff))
            continue;
        if (!is_worth(made + rows - 1 + rest, size))
            return 0;
        out[row + plane / 8] |= (unsigned char)(1 << plane % 8);
        planes[plane] = out + made;
        made += rows - 1;
    }
    memcpy(out, data, row);
    memcpy(out + made, data + rows * row, rest);
    for (uint64_t from = 1, count; from < rows; from += count) {
        count = rows - from < TILE / row ? rows - from : TILE / row;
        for (uint64_t w = 0; w < row / 4; w++) {
            write_planes(data + from * row + 4 * w, row, count, planes + 4 * w);
            for (uint64_t plane = 4 * w; plane < 4 * w + PLANES; plane++)
                planes[plane] += planes[plane] ? count : 0;
        }
    }
    return made + rest;
}

// -- libzstd.so.1 ----------------------------------------------------------
//
// Three functions of its stable interface. Without zstd, there are only columns.
//
// The program may later load a newer libzstd, from a conda environment, for example. The dynamic linker would
// give it ours instead, because the name (DT_SONAME) matches. So we load a copy in memory under another name,
// which binds its own symbols first and which nothing else finds. Only if the program itself is linked to
// libzstd do we use that one.

#ifndef MFD_EXEC
#define MFD_EXEC 0x10u
#endif

enum { LEVEL = 1, MOST_LIBRARY = 16 << 20 }; // bytes
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

// Return where the library's name is in its file. The strings are in the first segment, which begins with the
// file.
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

// Return an unnamed copy of a file in which the name of the library is different, or -1 if that's impossible.
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
        if (to >= 0 && gpt_write_quietly(to, data, size) != (ssize_t)size) {
            close(to);
            to = -1;
        }
    }
    munmap(data, size);
    return to;
}

// Load the copy under a path that programs never pass to dlopen. Otherwise, the program could get our copy.
static void *open_copy(const struct linker *linker) {
    char path[64];
    struct link_map *found = linker->open(library, RTLD_LAZY | RTLD_LOCAL);
    if (!found)
        return NULL;
    int file = copy_renamed(found->l_name, find_name(found));
    linker->close(found);
    if (file < 0)
        return NULL;
    snprintf(path, sizeof(path), "/proc/%d/task/%ld/fd/%d", getpid(), syscall(SYS_gettid), file);
    void *handle = linker->open(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    close(file);
    return handle;
}

void hook_zstd_setup(const struct linker *linker) {
    if (linker->symbol(RTLD_DEFAULT, "__sanitizer_print_stack_trace")) // sanitizers forbid that
        return;
    void *handle = linker->open(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!find_functions(linker, handle ? handle : open_copy(linker)))
        zstd.compress = NULL;
}

static uint64_t make_frame(const void *data, uint64_t size, void *out) {
    static void *state;
    if (!zstd.compress || (!state && !(state = zstd.create())))
        return 0;
    size_t made = zstd.compress(state, out, size - size / 8, data, size, LEVEL);
    return zstd.is_error(made) ? 0 : made;
}

// -- Both ------------------------------------------------------------------

uint64_t hook_pack_row(uint64_t record) {
    uint64_t row = record % 4 ? record % 2 ? 4 * record : 2 * record : record;
    return row <= MOST_ROW ? row : 0;
}

bool hook_pack(const void *data, uint64_t size, uint64_t row, bool quick, struct packing *packed) {
    static unsigned char *room;
    if (size > PACK_MOST || (!room && !(room = malloc(2 * PACK_MOST))))
        return false;
    *packed = (struct packing){data, size, NULL, 0};
    uint64_t made = row ? make_columns(data, size, row, room) : 0;
    if (made)
        *packed = (struct packing){room, made, "columns", row};
    if (!quick && packed->size >= LEAST_ZSTD &&
        (made = make_frame(packed->data, packed->size, room + PACK_MOST)))
        *packed =
            (struct packing){room + PACK_MOST, made, packed->row ? "columns+zstd" : "zstd", packed->row};
    return packed->codec;
}
