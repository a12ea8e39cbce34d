// The libraries that the dynamic linker loaded, and their symbols. We call none of the linker's functions:
// dlsym, dladdr and dl_iterate_phdr take locks that the program may hold while it waits for the calling
// thread, or that stay locked forever in a forked child. We read its list as memory that may be freed at any
// time. Libraries loaded at program start stay.

#include <elf.h>
#include <link.h>
#include <string.h>

#include "arch_elf.h"
#include "watch.h"

#pragma weak _r_debug                                        // glibc's
extern struct r_debug *_dl_debug_addr __attribute__((weak)); // musl's

struct more_debug { // r_version 2, glibc 2.35
    struct r_debug debug;
    struct more_debug *next; // another namespace's
};

static size_t began_with = MAX_LINKED; // libraries, including the program

// A sanitizer looks up symbols before its own set-up is done.
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

EARLY static bool read_map(const struct link_map *at, struct linked *linked) {
    struct link_map map;
    if (linked->index >= began_with || linked->name_space) {
        if (!hook_peek(at, &map, sizeof(map)))
            return false;
    } else
        memcpy(&map, at, sizeof(map));
    *linked = (struct linked){.address = map.l_addr,
                              .dynamic = (uintptr_t)map.l_ld,
                              .name = map.l_name,
                              .map = at,
                              .next = map.l_next,
                              .other = linked->other,
                              .index = linked->index,
                              .name_space = linked->name_space};
    return true;
}

// The program comes first, then the libraries loaded with it, in symbol search order.
EARLY bool hook_next_linked(struct linked *linked) {
    if (linked->index >= MAX_LINKED)
        return false;
    if (!linked->index && !linked->name_space) { // the first of all
        const struct r_debug *debug = &_r_debug ? &_r_debug : &_dl_debug_addr ? _dl_debug_addr : NULL;
        bool found = debug && debug->r_map && read_map(debug->r_map, linked);
        if (&_r_debug && _r_debug.r_version > 1) {
            __asm__("" : "+r"(debug)); // it's larger than declared
            linked->other = ((const struct more_debug *)debug)->next;
        }
        linked->index = 1;
        return found;
    }
    bool found = linked->next && read_map(linked->next, linked);
    while (!found && linked->other && linked->name_space++ < 16) {
        struct more_debug debug;
        if (!hook_peek(linked->other, &debug, sizeof(debug)))
            return false;
        linked->other = debug.next;
        found = debug.debug.r_map && read_map(debug.debug.r_map, linked);
    }
    linked->index++;
    return found;
}

// Only visit libraries loaded at the start. This makes no system call, for which a seccomp filter may kill
// the process.
EARLY static bool next_at_start(struct linked *linked) {
    return linked->index < began_with && hook_next_linked(linked);
}

bool hook_has_namespaces(void) {
    struct linked linked = {0};
    return hook_next_linked(&linked) && linked.other;
}

EARLY static bool begins_with_us(const struct linked *linked) {
    return linked->dynamic == (uintptr_t)_DYNAMIC;
}

EARLY bool hook_linked_at_start(const struct linked *linked) {
    return !linked->name_space && linked->index <= began_with;
}

// Read memory of a library. A library loaded at the start is never unmapped, and neither is a library that
// contains a function which the program is about to call, so reading those needs no system call.
EARLY static bool get(const struct linked *linked, uintptr_t from, void *into, size_t size) {
    if (!linked->in_use && !hook_linked_at_start(linked))
        return hook_peek((const void *)from, into, size);
    memcpy(into, (const void *)from, size);
    return true;
}

// The dynamic section

struct tables {
    uintptr_t strings, symbols, versions, hash, gnu_hash, soname;
    struct relocations {
        uintptr_t start;
        size_t size;
    } data, jumps;
};

EARLY static bool read_tables(const struct linked *linked, struct tables *tables) {
    *tables = (struct tables){0};
    Elf64_Dyn entry;
    for (uintptr_t at = linked->dynamic; at && get(linked, at, &entry, sizeof(entry)); at += sizeof(entry)) {
        // Some loaders leave addresses as they are in the file.
        uintptr_t value = entry.d_un.d_ptr,
                  address = value < linked->address ? value + linked->address : value;
        switch (entry.d_tag) {
        case DT_STRTAB:
            tables->strings = address;
            break;
        case DT_SYMTAB:
            tables->symbols = address;
            break;
        case DT_VERSYM:
            tables->versions = address;
            break;
        case DT_HASH:
            tables->hash = address;
            break;
        case DT_GNU_HASH:
            tables->gnu_hash = address;
            break;
        case DT_SONAME:
            tables->soname = value;
            break;
        case DT_RELA:
            tables->data.start = address;
            break;
        case DT_RELASZ:
            tables->data.size = entry.d_un.d_val;
            break;
        case DT_JMPREL:
            tables->jumps.start = address;
            break;
        case DT_PLTRELSZ:
            tables->jumps.size = entry.d_un.d_val;
            break;
        case DT_NULL:
            return tables->strings && tables->symbols;
        }
    }
    return false;
}

EARLY static bool has_text(const struct linked *linked, uintptr_t at, const char *text, size_t size) {
    char found[NAME_BYTES];
    if (linked->in_use || hook_linked_at_start(linked))
        return !strncmp((const char *)at, text, size);
    return size <= sizeof(found) && hook_peek((const void *)at, found, size) && !memcmp(found, text, size);
}

bool hook_is_driver(const struct linked *linked) {
    static const char name[] = "libcuda.so";
    struct tables tables;
    return read_tables(linked, &tables) && tables.soname &&
           has_text(linked, tables.strings + tables.soname, name, sizeof(name) - 1);
}

EARLY static uint32_t hash_gnu(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

EARLY static uint32_t hash_sysv(const char *name) {
    uint32_t hash = 0;
    for (; *name; name++) {
        hash = (hash << 4) + (unsigned char)*name;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    return hash;
}

// Return what symbol `index` stands for if it's called `name` and has the default version, or NULL. `type`:
// STT_FUNC or STT_OBJECT.
EARLY static void *value_of(const struct linked *linked, const struct tables *tables, uint32_t index,
                            const char *name, unsigned type) {
    Elf64_Sym symbol;
    uint16_t version = 1;
    if (!get(linked, tables->symbols + index * sizeof(symbol), &symbol, sizeof(symbol)) || !symbol.st_shndx ||
        ELF64_ST_TYPE(symbol.st_info) != type || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL ||
        !has_text(linked, tables->strings + symbol.st_name, name, strlen(name) + 1))
        return NULL;
    if (tables->versions && !get(linked, tables->versions + 2ul * index, &version, 2))
        return NULL;
    return version & 0x8000 ? NULL : (void *)(linked->address + symbol.st_value); // else hidden
}

EARLY static void *find_symbol(const struct linked *linked, const char *name, unsigned type) {
    struct tables tables;
    uint32_t head[4], index, word, hash = hash_gnu(name);
    void *found = NULL;
    if (!read_tables(linked, &tables))
        return NULL;
    if (tables.gnu_hash && get(linked, tables.gnu_hash, head, 16) && head[0]) {
        uint64_t filter; // Bloom's
        uintptr_t filters = tables.gnu_hash + 16, buckets = filters + 8ul * head[2],
                  chains = buckets + 4ul * head[0];
        if (!head[2] || !get(linked, filters + 8ul * (hash / 64 % head[2]), &filter, 8) ||
            !(filter >> hash % 64 & filter >> (hash >> head[3]) % 64 & 1) ||
            !get(linked, buckets + 4ul * (hash % head[0]), &index, 4) || index < head[1])
            return NULL;
        for (; !found && get(linked, chains + 4ul * (index - head[1]), &word, 4); index++) {
            if (!((word ^ hash) >> 1))
                found = value_of(linked, &tables, index, name, type);
            if (word & 1)
                break;
        }
    } else if (tables.hash && get(linked, tables.hash, head, 8) && head[0]) {
        uintptr_t buckets = tables.hash + 8, chains = buckets + 4ul * head[0];
        if (!get(linked, buckets + 4ul * (hash_sysv(name) % head[0]), &index, 4))
            return NULL;
        for (uint32_t steps = 0; index && index < head[1] && !found && steps < head[1]; steps++) {
            found = value_of(linked, &tables, index, name, type);
            if (!get(linked, chains + 4ul * index, &index, 4))
                break;
        }
    }
    return found;
}

EARLY void *hook_function_in(const struct linked *linked, const char *name) {
    return find_symbol(linked, name, STT_FUNC);
}

void *hook_variable_in(const struct linked *linked, const char *name) {
    return find_symbol(linked, name, STT_OBJECT);
}

// Return the number of symbols, which isn't in the GNU hash table.
static size_t count_symbols(const struct linked *linked, const struct tables *tables) {
    uint32_t head[4], word, last = 0;
    if (tables->hash)
        return get(linked, tables->hash, head, 8) ? head[1] : 0;
    if (!tables->gnu_hash || !get(linked, tables->gnu_hash, head, 16))
        return 0;
    uintptr_t buckets = tables->gnu_hash + 16 + 8ul * head[2], chains = buckets + 4ul * head[0];
    for (uint32_t i = 0; i < head[0] && get(linked, buckets + 4ul * i, &word, 4); i++)
        last = word > last ? word : last;
    if (last < head[1])
        return 0;
    while (get(linked, chains + 4ul * (last - head[1]), &word, 4) && !(word & 1))
        last++;
    return last + 1;
}

// Call `see` for each function that a library defines.
void hook_each_function(const struct linked *linked,
                        void (*see)(void *state, uintptr_t address, const char *name), void *state) {
    struct tables tables;
    size_t count = read_tables(linked, &tables) ? count_symbols(linked, &tables) : 0;
    for (size_t i = 0; i < count; i++) {
        Elf64_Sym symbol;
        if (!get(linked, tables.symbols + i * sizeof(symbol), &symbol, sizeof(symbol)))
            return;
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx)
            see(state, linked->address + symbol.st_value, (const char *)tables.strings + symbol.st_name);
    }
}

// Call `see` for each word by which a library refers to another library's function. The caller keeps the
// library open.
void hook_each_reference(const struct linked *linked, void (*see)(void *state, void **word, const char *name),
                         void *state) {
    struct tables tables;
    if (!read_tables(linked, &tables))
        return;
    const struct relocations both[] = {tables.data, tables.jumps};
    for (int i = 0; i < 2; i++) {
        const Elf64_Rela *first = (const Elf64_Rela *)both[i].start;
        for (const Elf64_Rela *at = first; at < first + both[i].size / sizeof(*at); at++) {
            const Elf64_Sym *symbol = (const Elf64_Sym *)tables.symbols + ELF64_R_SYM(at->r_info);
            unsigned type = ELF64_R_TYPE(at->r_info);
            bool word =
                type == ARCH_JUMP_SLOT || type == ARCH_GLOB_DAT || (type == ARCH_ABSOLUTE && !at->r_addend);
            if (word && ELF64_R_SYM(at->r_info) && !symbol->st_shndx)
                see(state, (void **)(linked->address + at->r_offset),
                    (const char *)tables.strings + symbol->st_name);
        }
    }
}

// Return the range that the linker makes read-only once a library is bound.
struct span hook_protected_in(const struct linked *linked) {
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)linked->address;
    const Elf64_Phdr *segment = (const Elf64_Phdr *)(linked->address + head->e_phoff);
    for (unsigned i = 0; i < head->e_phnum; i++)
        if (segment[i].p_type == PT_GNU_RELRO)
            return (struct span){linked->address + segment[i].p_vaddr,
                                 linked->address + segment[i].p_vaddr + segment[i].p_memsz};
    return (struct span){0};
}

// Return the end address of what's mapped from an ELF header on, or 0 if there's no header.
static uintptr_t end_of(const struct linked *linked) {
    Elf64_Ehdr head;
    Elf64_Phdr segment;
    uintptr_t end = 0;
    if (!get(linked, linked->address, &head, sizeof(head)) || memcmp(head.e_ident, ELFMAG, SELFMAG))
        return 0;
    for (unsigned i = 0; i < head.e_phnum; i++) {
        uintptr_t at = linked->address + head.e_phoff + i * sizeof(segment);
        if (!get(linked, at, &segment, sizeof(segment)))
            return 0;
        if (segment.p_type == PT_LOAD && linked->address + segment.p_vaddr + segment.p_memsz > end)
            end = linked->address + segment.p_vaddr + segment.p_memsz;
    }
    return end;
}

// glibc 2.35: without a lock, an allocation or a system call.
struct dl_object { // struct dl_find_object of <dlfcn.h>
    unsigned long long flags;
    void *start, *end;
    const struct link_map *map;
    void *frames;
    unsigned long long more[7];
};
static int (*find_object)(const void *, struct dl_object *);

static unsigned index_of(const struct link_map *map) {
    for (struct linked linked = {0}; next_at_start(&linked);)
        if (linked.map == map)
            return linked.index;
    return MAX_LINKED;
}

// Find the library of an address that the program uses: a caller, or a function that it got. A
// position-dependent program begins below everything else.
bool hook_linked_of(const void *address, struct linked *found) {
    struct linked best = {0};
    struct dl_object object;
    if (find_object && !find_object(address, &object) && object.map) {
        unsigned index = index_of(object.map);
        *found = (struct linked){.address = object.map->l_addr,
                                 .dynamic = (uintptr_t)object.map->l_ld,
                                 .name = object.map->l_name,
                                 .map = object.map,
                                 .next = object.map->l_next,
                                 .index = index,
                                 .end = index == 1 ? 0 : (uintptr_t)object.end,
                                 .in_use = true};
        return true;
    }
    for (struct linked linked = {0}; hook_next_linked(&linked);)
        if (linked.address <= (uintptr_t)address && (!best.map || linked.address > best.address))
            best = linked;
    if (best.map && best.address)
        best.end = end_of(&best);
    *found = best;
    return best.map && (!best.address || (uintptr_t)address < best.end);
}

// Find the next function of this name after ours in the libraries loaded at the start, like RTLD_NEXT.
EARLY void *hook_next_function(const char *name) {
    bool after = false;
    for (struct linked linked = {0}; next_at_start(&linked);) {
        void *found = after ? hook_function_in(&linked, name) : NULL;
        if (found)
            return found;
        after |= begins_with_us(&linked);
    }
    return NULL;
}

// Return whether it was loaded at the start, after us, so that our symbols come first.
bool hook_comes_after_us(const struct linked *library) {
    bool after = false;
    for (struct linked linked = {0}; next_at_start(&linked);) {
        if (after && linked.map == library->map)
            return true;
        after |= begins_with_us(&linked);
    }
    return false;
}

EARLY void hook_linker_setup(void) {
    size_t count = 0;
    for (struct linked linked = {0}; hook_next_linked(&linked) && !linked.name_space;)
        count = linked.index;
    began_with = count;
    find_object = hook_next_function("_dl_find_object");
}

bool hook_is_glibc(void) { return &_r_debug; }
