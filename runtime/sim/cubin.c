// Cubins. The simulated device can't run machine code. It loads cubins for its compute capability, so that a
// program finds their kernels, but it doesn't launch them.
//
// But tests can launch them: for each cubin, the folder in GPT_SIM_TWINS has a "twin": a file of PTX
// with the same kernels, which runs in place of the cubin. That tests everything that gpt-hook does to
// machine code before a launch. The name of the file is the digest of the cubin, without the contents of
// constant bank 4, to which a loader writes addresses. A twin may begin with lines like
//
//     // address 16 gpt_variables 8
//
// They copy such an address to a variable of the twin: here, from byte 16 of the bank to byte 8 of
// gpt_variables.

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/cache.h"
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

static bool open_cubin(struct cubin *cubin, struct code *code, const char *start, size_t size) {
    const Elf64_Ehdr *head = (const void *)start;
    if (size < sizeof(*head) || head->e_shoff % 8 || head->e_shoff > size ||
        head->e_shentsize != sizeof(Elf64_Shdr) ||
        head->e_shnum > (size - head->e_shoff) / sizeof(Elf64_Shdr) || head->e_shstrndx >= head->e_shnum)
        return false;
    *cubin = (struct cubin){code, start, size, (const void *)(start + head->e_shoff), head->e_shnum, NULL, 0};
    const Elf64_Shdr *names = &cubin->sections[head->e_shstrndx];
    cubin->names = section_bytes(cubin, names);
    cubin->names_size = names->sh_size;
    return cubin->names != NULL;
}

void sim_read_cubin(struct code *code, const char *start, size_t size) {
    struct cubin cubin;
    if (!open_cubin(&cubin, code, start, size))
        return;
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

// Twins

static struct entry *find_entry(const struct code *code, const char *name) {
    for (size_t i = 0; i < code->entry_count; i++)
        if (!strcmp(code->entries[i].name, name))
            return &code->entries[i];
    return NULL;
}

// Return whether two kernels have parameters of the same sizes and offsets. A twin must have the cubin's
// parameters, because programs pass those.
static bool has_same_parameters(const struct entry *one, const struct entry *other) {
    bool same = one->count == other->count;
    for (size_t i = 0; same && i < one->count; i++)
        same = one->parameters[i].offset == other->parameters[i].offset &&
               one->parameters[i].size == other->parameters[i].size;
    return same;
}

static CUresult compare(struct code *code, const struct code *cubin, const char *digest) {
    for (size_t i = 0; i < cubin->entry_count; i++) {
        const struct entry *entry = &cubin->entries[i], *twin = find_entry(code, entry->name);
        if (!twin) {
            sim_add_entry(code, entry->name); // the kernel can be found, but not launched
            continue;
        }
        if (!has_same_parameters(entry, twin)) {
            sim_say("kernel '%.512s': the twin of cubin %s has other parameters", entry->name, digest);
            return CUDA_ERROR_INVALID_IMAGE;
        }
    }
    return CUDA_SUCCESS;
}

// Copy an address from bank 4 to a variable of the twin, as a line at the twin's start says.
static bool take_address(struct code *code, const char *bank, size_t bank_size, const char *line) {
    size_t from, to;
    char name[1024];
    if (sscanf(line, "// address %zu %1023s %zu", &from, name, &to) != 3)
        return false;
    for (size_t i = 0; i < code->variable_count; i++) {
        struct variable *variable = &code->variables[i];
        if (strcmp(variable->name, name))
            continue;
        if (bank_size < 8 || from > bank_size - 8 || variable->size < 8 || to > variable->size - 8)
            return false;
        char *initial = sim_new_block(code, variable->size);
        if (!initial)
            return false;
        if (variable->initial_size)
            memcpy(initial, variable->initial, variable->initial_size);
        memcpy(initial + to, bank + from, 8);
        variable->initial = initial, variable->initial_size = variable->size;
        return true;
    }
    return false;
}

static CUresult read_twin(struct code *code, const struct cubin *cubin, const char *bank, size_t bank_size,
                          const char *digest) {
    static const char mark[] = "// address ";
    char path[4096], *text;
    size_t size;
    snprintf(path, sizeof(path), "%s/%s", sim_twins, digest);
    if (sim_read_whole(path, &text, &size)) {
        sim_say_once("cubin %s has no twin in GPT_SIM_TWINS", digest);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const char *copy = sim_keep_text(code, text, size);
    free(text);
    CUresult status = copy ? sim_read_ptx(code, copy, size) : CUDA_ERROR_OUT_OF_MEMORY;
    for (const char *line = copy; !status && !strncmp(line, mark, sizeof(mark) - 1);) {
        if (!take_address(code, bank, bank_size, line)) {
            sim_say("the twin of cubin %s: wrong line '%.*s'", digest, (int)strcspn(line, "\n"), line);
            status = CUDA_ERROR_INVALID_IMAGE;
        }
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    if (status)
        return status;
    struct code *plain = calloc(1, sizeof(*plain));
    if (!plain)
        return CUDA_ERROR_OUT_OF_MEMORY;
    plain->references = 1;
    sim_read_cubin(plain, cubin->start, cubin->size);
    status = compare(code, plain, digest);
    LOCKED;
    sim_release_code(plain);
    return status;
}

CUresult sim_read_machine_code(struct code *code, const char *start, size_t size) {
    if (!sim_runs || !sim_twins) {
        sim_read_cubin(code, start, size);
        return CUDA_SUCCESS;
    }
    struct cubin cubin;
    char digest[65];
    char *masked = sim_keep_text(code, start, size);
    if (!masked)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!open_cubin(&cubin, code, start, size))
        return CUDA_ERROR_INVALID_IMAGE;
    const Elf64_Shdr *section = find_section(&cubin, ".nv.constant4", "");
    const char *bank = section ? section_bytes(&cubin, section) : NULL;
    size_t bank_size = bank ? section->sh_size : 0;
    memset(masked + (bank ? bank - start : 0), 0, bank_size);
    gpt_sha256(masked, size, digest);
    return read_twin(code, &cubin, bank, bank_size, digest);
}

// Copy as many of the bytes as are readable, and return their number: a header may claim more than there is.
static size_t read_what_is_there(char *to, const char *from, size_t size) {
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
    ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (got < 0 && errno == ESRCH) // the main thread has ended
        got = process_vm_readv((pid_t)syscall(SYS_gettid), &here, 1, &there, 1, 0);
    return got > 0 ? (size_t)got : 0;
}

// Copy a cubin. Its size is where the last of its sections and tables ends. A malformed header may claim any
// size, so memory is allocated piece by piece, as long as there are bytes to read.
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
    char *copy = bytes ? sim_keep_text(code, bytes, got) : NULL;
    free(bytes);
    return copy;
}
