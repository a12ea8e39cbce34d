// Cubins. They can't run here; we only keep ones for a device of this kind.

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "image.h"

struct cubin {
    struct code *code;
    const char *start;
    size_t size;
    const Elf64_Shdr *sections;
    unsigned count;
    const char *names;
    size_t names_size;
};

static const char *name_at(const char *names, size_t size, size_t at) {
    return at < size && memchr(names + at, 0, size - at) ? names + at : "";
}

static const char *section_bytes(const struct cubin *cubin, const Elf64_Shdr *section) {
    bool inside = section->sh_offset <= cubin->size && section->sh_size <= cubin->size - section->sh_offset;
    return section->sh_type != SHT_NOBITS && inside ? cubin->start + section->sh_offset : NULL;
}

static const Elf64_Shdr *find_section(const struct cubin *cubin, const char *prefix, const char *rest) {
    for (unsigned i = 0; i < cubin->count; i++) {
        const char *name = name_at(cubin->names, cubin->names_size, cubin->sections[i].sh_name);
        if (!strncmp(name, prefix, strlen(prefix)) && !strcmp(name + strlen(prefix), rest))
            return &cubin->sections[i];
    }
    return NULL;
}

// .nv.info.KERNEL: u8 form, u8 attribute, u16 value; with form 4 the value is the size of what follows.
static void read_info(const struct cubin *cubin, struct entry *entry) {
    enum { SIZED = 4, MAX_THREADS = 0x05, REQUIRED_THREADS = 0x10, PARAMETER = 0x17 };
    const Elf64_Shdr *section = find_section(cubin, ".nv.info.", entry->name);
    const char *bytes = section ? section_bytes(cubin, section) : NULL;
    for (size_t at = 0; bytes && at + 4 <= section->sh_size;) {
        unsigned char form = (unsigned char)bytes[at], attribute = (unsigned char)bytes[at + 1];
        uint16_t value;
        uint32_t words[3];
        memcpy(&value, bytes + at + 2, 2);
        at += 4;
        if (form != SIZED)
            continue;
        if (value > section->sh_size - at)
            return;
        if (value >= 12) {
            memcpy(words, bytes + at, 12);
            if (attribute ==
                PARAMETER) // its number, and its offset from the first; its size in the high bits
                sim_add_parameter(cubin->code, entry, words[1] & 0xffff, words[1] >> 16, words[2] >> 18);
            else if (attribute == MAX_THREADS || attribute == REQUIRED_THREADS)
                entry->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] =
                    (int)(words[0] * words[1] * words[2]);
        }
        at += value;
    }
}

static void read_symbol(const struct cubin *cubin, const Elf64_Sym *symbol, const char *name) {
    enum { STO_CUDA_ENTRY = 0x10 };
    if (!*name || !symbol->st_shndx || symbol->st_shndx >= cubin->count)
        return;
    const Elf64_Shdr *section = &cubin->sections[symbol->st_shndx];
    if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_other & STO_CUDA_ENTRY) {
        struct entry *entry = sim_add_entry(cubin->code, name);
        if (!entry)
            return;
        if (section->sh_info >> 24)
            entry->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = (int)(section->sh_info >> 24);
        read_info(cubin, entry);
    } else if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT) {
        const char *bytes = section_bytes(cubin, section);
        bool inside =
            symbol->st_value <= section->sh_size && symbol->st_size <= section->sh_size - symbol->st_value;
        if (inside)
            sim_add_variable(cubin->code,
                             (struct variable){.name = name,
                                               .size = symbol->st_size,
                                               .initial = bytes ? bytes + symbol->st_value : NULL,
                                               .initial_size = symbol->st_size});
    }
}

void sim_read_cubin(struct code *code, const char *start, size_t size) {
    const Elf64_Ehdr *head = (const void *)start;
    if (size < sizeof(*head) || head->e_shoff % 8 || head->e_shoff > size ||
        head->e_shentsize != sizeof(Elf64_Shdr) ||
        head->e_shnum > (size - head->e_shoff) / sizeof(Elf64_Shdr) || head->e_shstrndx >= head->e_shnum)
        return;
    struct cubin cubin = {code, start, size, (const void *)(start + head->e_shoff), head->e_shnum, NULL, 0};
    const Elf64_Shdr *names = &cubin.sections[head->e_shstrndx];
    if (!(cubin.names = section_bytes(&cubin, names)))
        return;
    cubin.names_size = names->sh_size;
    for (unsigned i = 0; i < cubin.count; i++) {
        const Elf64_Shdr *section = &cubin.sections[i];
        const char *symbols = section->sh_type == SHT_SYMTAB ? section_bytes(&cubin, section) : NULL;
        const Elf64_Shdr *strings = section->sh_link < cubin.count ? &cubin.sections[section->sh_link] : NULL;
        const char *texts = strings ? section_bytes(&cubin, strings) : NULL;
        for (size_t at = 0; symbols && texts && at + sizeof(Elf64_Sym) <= section->sh_size;
             at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, symbols + at, sizeof(symbol));
            read_symbol(&cubin, &symbol, name_at(texts, strings->sh_size, symbol.st_name));
        }
    }
}

// Return how many of the bytes can be read: a header may claim more than there is.
static size_t read_what_is_there(char *to, const char *from, size_t size) {
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
    ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    return got > 0 ? (size_t)got : 0;
}

// A cubin ends with the last of its sections and tables. Reads it piece by piece, since the claimed size may
// exceed any memory.
char *sim_copy_elf(struct code *code, const void *start, size_t room, size_t *size) {
    const Elf64_Ehdr *head = start;
    enum { PIECE = 1 << 20 };
    uint64_t sections = head->e_shoff + (uint64_t)head->e_shnum * head->e_shentsize;
    uint64_t segments = head->e_phoff + (uint64_t)head->e_phnum * head->e_phentsize;
    uint64_t claimed = sections > segments ? sections : segments;
    if (room != SIZE_MAX) {
        *size = room;
        return claimed <= room ? sim_keep_text(code, (const char *)head, room) : NULL;
    }
    size_t got = 0, part;
    char *bytes = NULL;
    do {
        size_t want = claimed - got < PIECE ? claimed - got : PIECE;
        char *larger = realloc(bytes, got + want + 1);
        code->starved |= !larger;
        if (!larger)
            break;
        bytes = larger;
        part = read_what_is_there(bytes + got, (const char *)head + got, want);
        got += part;
    } while (part == PIECE);
    *size = got;
    char *kept = bytes ? sim_keep_text(code, bytes, got) : NULL;
    free(bytes);
    return kept;
}
