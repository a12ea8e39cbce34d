// The build id of an ELF file among its notes (elf(5), Nhdr).

#ifndef GPT_BUILD_ID_H
#define GPT_BUILD_ID_H

#include <elf.h>
#include <stddef.h>
#include <string.h>

enum { GPT_BUILD_ID = 64 }; // bytes at most that count as one

// Return the size of the build id in the notes of a segment with this alignment, or 0 without one; *id points
// to it.
static inline size_t gpt_find_build_id(const unsigned char *notes, size_t size, size_t align,
                                       const unsigned char **id) {
    align = align == 8 ? 8 : 4;
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= size;) {
        Elf64_Nhdr note;
        memcpy(&note, notes + at, sizeof(note));
        size_t name = at + sizeof(note), value = (name + note.n_namesz + align - 1) & ~(align - 1);
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz <= GPT_BUILD_ID &&
            value + note.n_descsz <= size && !memcmp(notes + name, "GNU", 4)) {
            *id = notes + value;
            return note.n_descsz;
        }
        at = (value + note.n_descsz + align - 1) & ~(align - 1);
    }
    return 0;
}

#endif
