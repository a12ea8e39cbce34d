// Images of GPU code: what of one suits the device is copied, and read for its kernels, their parameters, and
// its variables. What is compressed is not read: any name may be in it.

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "host/abi.h"
#include "sim.h"

// A block of bytes that lives as long as the code.
struct block {
    struct block *next;
    _Alignas(16) char bytes[];
};

void *sim_new_block(struct code *code, size_t size) { // zero, with a byte more than asked for
    struct block *made = size < SIZE_MAX / 2 ? calloc(1, sizeof(*made) + size + 1) : NULL;
    if (!made)
        return NULL;
    made->next = code->blocks;
    code->blocks = made;
    return made->bytes;
}

char *sim_keep_text(struct code *code, const char *bytes, size_t size) {
    char *kept = sim_new_block(code, size);
    return kept ? memcpy(kept, bytes, size) : NULL;
}

static struct entry *add_entry(struct code *code, const char *name) {
    struct entry *larger =
        name ? sim_grow(code->entries, code->entry_count, &code->entry_room, sizeof(*larger)) : NULL;
    if (!larger)
        return NULL;
    code->entries = larger;
    struct entry *made = &larger[code->entry_count++];
    *made = (struct entry){.name = name,
                           .attributes = {
                               [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = sim_attribute(1),
                               [CU_FUNC_ATTRIBUTE_NUM_REGS] = 32,
                               [CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 10 * sim_major + sim_minor,
                               [CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = sim_attribute(8),
                               [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1,
                           }};
    return made;
}

static void add_parameter(struct entry *entry, size_t index, size_t offset, size_t size) {
    enum { MOST = 4096 };
    if (index >= MOST)
        return;
    if (index >= entry->count) {
        struct parameter *larger = realloc(entry->parameters, (index + 1) * sizeof(*larger));
        if (!larger)
            return;
        memset(larger + entry->count, 0, (index + 1 - entry->count) * sizeof(*larger));
        entry->parameters = larger;
        entry->count = index + 1;
    }
    entry->parameters[index] = (struct parameter){offset, size};
}

void sim_add_variable(struct code *code, struct variable variable) {
    struct variable *larger = variable.name && variable.size ? sim_grow(code->variables, code->variable_count,
                                                                        &code->variable_room, sizeof(*larger))
                                                             : NULL;
    if (!larger)
        return;
    code->variables = larger;
    larger[code->variable_count++] = variable;
}

// PTX: declarations

bool sim_is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

// The next token: a word (with the dot or percent sign that it begins with), or one character. Returns false
// at the end.
bool sim_next_token(struct text *text) {
    const char *at = text->at, *end = text->end;
    for (;;) {
        while (at < end && (unsigned char)*at <= ' ')
            at++;
        if (end - at < 2 || *at != '/' || (at[1] != '/' && at[1] != '*'))
            break;
        const char *stop = at[1] == '/' ? memchr(at, '\n', (size_t)(end - at))
                                        : memmem(at + 2, (size_t)(end - at - 2), "*/", 2);
        at = stop ? stop + (at[1] == '/' ? 1 : 2) : end;
    }
    text->token = at;
    if (at < end && *at == '"') {
        const char *stop = memchr(at + 1, '"', (size_t)(end - at - 1));
        at = stop ? stop + 1 : end;
    } else if (at < end)
        for (at++; at < end &&
                   (sim_is_word(text->token[0]) || text->token[0] == '.' || text->token[0] == '%') &&
                   sim_is_word(*at);)
            at++;
    text->size = (size_t)(at - text->token);
    text->at = at;
    return text->size;
}

bool sim_is_token(const struct text *text, const char *word) {
    return text->size == strlen(word) && !memcmp(text->token, word, text->size);
}

unsigned long sim_next_number(struct text *text) {
    char digits[32] = "";
    if (sim_next_token(text))
        memcpy(digits, text->token, text->size < sizeof(digits) ? text->size : sizeof(digits) - 1);
    return strtoul(digits, NULL, 0);
}

size_t sim_type_size(const struct text *text) {
    static const struct {
        const char *name;
        size_t size;
    } types[] = {
        {".u8", 1},   {".s8", 1},    {".b8", 1},     {".u16", 2},     {".s16", 2},        {".b16", 2},
        {".f16", 2},  {".bf16", 2},  {".u32", 4},    {".s32", 4},     {".b32", 4},        {".f32", 4},
        {".tf32", 4}, {".f16x2", 4}, {".bf16x2", 4}, {".u64", 8},     {".s64", 8},        {".b64", 8},
        {".f64", 8},  {".b128", 16}, {".texref", 8}, {".surfref", 8}, {".samplerref", 8},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (sim_is_token(text, types[i].name))
            return types[i].size;
    return 0;
}

// What is between the parentheses: .param [.align N] .type [.ptr .space .align N] name [ "[" N "]" ], ...
static void read_parameters(struct text *text, struct entry *entry) {
    size_t item = 0, align = 0, count = 1, at = 0, index = 0;
    bool pointer = false;
    while (sim_next_token(text)) {
        if (sim_is_token(text, ".align")) {
            size_t number = sim_next_number(text);
            align = pointer ? align : number;
        } else if (sim_is_token(text, ".ptr"))
            pointer = true;
        else if (sim_is_token(text, "["))
            count = sim_next_number(text);
        else if (sim_is_token(text, ",") || sim_is_token(text, ")")) {
            if (!item || count > 65536)
                return;
            align = align && align <= 128 ? align : item;
            at = (at + align - 1) / align * align;
            add_parameter(entry, index++, at, item * count);
            at += item * count;
            if (sim_is_token(text, ")"))
                return;
            item = align = 0, count = 1, pointer = false;
        } else if (sim_type_size(text))
            item = sim_type_size(text);
    }
}

// The rest of a function, after its brace: `function` is its name, or NULL.
static void read_body(struct text *text, struct code *code, const char *function) {
    bool begins = true; // a statement
    for (int depth = 1; depth && sim_next_token(text);) {
        bool constant = sim_is_token(text, ".const");
        if (begins && function && (constant || sim_is_token(text, ".global")))
            sim_read_variables(code, text, constant, function);
        depth += sim_is_token(text, "{") - sim_is_token(text, "}");
        begins = text->size == 1 && strchr("{};:", *text->token);
    }
}

// A device function, whose variables are the module's, too.
static void read_function(struct text *text, struct code *code) {
    const char *name = NULL;
    int depth = 0;
    while (sim_next_token(text) && !sim_is_token(text, ";") && !sim_is_token(text, "{")) {
        depth += sim_is_token(text, "(") - sim_is_token(text, ")");
        if (!name && !depth && sim_is_word(*text->token))
            name = sim_keep_text(code, text->token, text->size);
    }
    if (text->size && sim_is_token(text, "{"))
        read_body(text, code, name);
}

static void read_entry(struct text *text, struct code *code, int target, const char *start, size_t size) {
    if (!sim_next_token(text))
        return;
    struct entry *entry = add_entry(code, sim_keep_text(code, text->token, text->size));
    if (!entry)
        return;
    entry->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = target; // not that of the language
    entry->text = start;
    entry->text_size = size;
    bool more = sim_next_token(text);
    if (more && sim_is_token(text, "(")) {
        read_parameters(text, entry);
        more = sim_next_token(text);
    }
    for (; more && !sim_is_token(text, "{") && !sim_is_token(text, ";"); more = sim_next_token(text))
        if (sim_is_token(text, ".maxntid") || sim_is_token(text, ".reqntid")) {
            unsigned long threads = sim_next_number(text);
            for (; sim_next_token(text) && sim_is_token(text, ",");)
                threads *= sim_next_number(text);
            if (threads > 0 && threads <= (unsigned long)sim_attribute(1))
                entry->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = (int)threads;
            text->at = text->token; // what ended the numbers
        }
    if (more && sim_is_token(text, "{"))
        read_body(text, code, entry->name);
}

static void read_ptx(struct code *code, const char *start, size_t size) {
    struct text text = {.at = start, .end = start + size};
    int target = 0;
    bool external = false;
    while (sim_next_token(&text)) {
        if (sim_is_token(&text, ".target")) { // sm_90a
            bool named = sim_next_token(&text) && text.size > 3 && !memcmp(text.token, "sm_", 3);
            target = named ? atoi(text.token + 3) : 0;
        } else if (sim_is_token(&text, ".func"))
            read_function(&text, code);
        else if (sim_is_token(&text, ".entry"))
            read_entry(&text, code, target, start, size);
        else if (sim_is_token(&text, ".global") || sim_is_token(&text, ".const")) {
            if (!external)
                sim_read_variables(code, &text, sim_is_token(&text, ".const"), NULL);
        } else if (sim_is_token(&text, "{"))
            read_body(&text, code, NULL);
        external = sim_is_token(&text, ".extern");
    }
}

// Cubins

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
                add_parameter(entry, words[1] & 0xffff, words[1] >> 16, words[2] >> 18);
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
        struct entry *entry = add_entry(cubin->code, name);
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
                                               .initial = bytes ? bytes + symbol->st_value : NULL});
    }
}

static void read_cubin(struct code *code, const char *start, size_t size) {
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

// Objects of `gpt-asm --arch host`

static void read_object(struct code *code, const struct host_module *module) {
    for (uint32_t i = 0; i < module->variable_count; i++) {
        const struct host_variable *from = &module->variables[i];
        if (!from->external)
            sim_add_variable(code, (struct variable){.name = from->name,
                                                     .size = from->size,
                                                     .align = from->align,
                                                     .constant = from->space == HOST_CONST,
                                                     .initial = from->initial,
                                                     .addresses = from->addresses,
                                                     .address_count = from->address_count});
    }
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        const struct host_kernel *kernel = &module->kernels[i];
        struct entry *entry = add_entry(code, kernel->name);
        if (!entry)
            return;
        entry->state = MADE;
        entry->module = module;
        entry->kernel = kernel;
        for (uint32_t k = 0; k < kernel->parameter_count; k++)
            add_parameter(entry, k, kernel->parameters[k].offset, kernel->parameters[k].size);
        sim_describe_entry(entry);
    }
}

// Fatbins

// How well an element suits the device, as a driver chooses: a cubin of the same major version and the
// highest minor one, else PTX with the highest target; 0: not at all.
static unsigned suits(const struct fatbin_element *element) {
    unsigned device = (unsigned)(10 * sim_major + sim_minor), arch = element->arch;
    bool same_major = arch / 10 == device / 10;
    if (arch > device || (element->flags & FATBIN_SUFFIX_A && arch != device) ||
        (element->flags & FATBIN_SUFFIX_F && !same_major))
        return 0;
    if (element->kind == FATBIN_CUBIN && same_major && !sim_runs)
        return 1000 + arch;
    return element->kind == FATBIN_PTX ? arch : 0;
}

// The elements of a region, one after the other; NULL at the end, and where the region is malformed.
static const struct fatbin_element *next_element(const struct fatbin_region *region,
                                                 const struct fatbin_element *element) {
    const char *end = (const char *)region + region->header_size + region->size;
    const char *at = element ? (const char *)element + element->header_size + element->payload_size
                             : (const char *)region + region->header_size;
    const struct fatbin_element *next = (const void *)at;
    if (at >= end || (size_t)(end - at) < sizeof(*next))
        return NULL;
    bool fits = next->header_size >= sizeof(*next) && next->header_size <= (size_t)(end - at) &&
                next->payload_size <= (size_t)(end - at) - next->header_size;
    return fits && !(next->header_size % 8) && !(next->payload_size % 8) ? next : NULL;
}

static CUresult read_fatbin(struct code *code, const struct fatbin_region *region, size_t room) {
    if (room < sizeof(*region) || region->header_size != sizeof(*region) ||
        region->size > room - sizeof(*region))
        return CUDA_ERROR_INVALID_IMAGE;
    unsigned best = 0;
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));)
        best = suits(at) > best ? suits(at) : best;
    if (!best)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));) {
        if (suits(at) != best)
            continue;
        if (at->flags & FATBIN_PACKED && sim_runs) {
            char *text;
            size_t size;
            CUresult status = sim_unpack(at, &text, &size);
            const char *kept = status ? NULL : sim_keep_text(code, text, size);
            if (status || !kept)
                return status ? status : CUDA_ERROR_OUT_OF_MEMORY;
            free(text);
            read_ptx(code, kept, size);
            continue;
        }
        if (at->flags & FATBIN_PACKED) {
            code->packed = true;
            continue;
        }
        const char *bytes = sim_keep_text(code, (const char *)at + at->header_size, at->payload_size);
        if (!bytes)
            return CUDA_ERROR_OUT_OF_MEMORY;
        (at->kind == FATBIN_PTX ? read_ptx : read_cubin)(code, bytes, at->payload_size);
    }
    return CUDA_SUCCESS;
}

// Images

// Whether a cubin is for the device.
static bool is_for_device(const Elf64_Ehdr *head) {
    bool newer = head->e_ident[EI_OSABI] == 0x41;
    struct fatbin_element element = {.kind = FATBIN_CUBIN,
                                     .arch = (newer ? head->e_flags >> 8 : head->e_flags) & 0xff};
    return suits(&element);
}

// How many of the bytes can be read: a header may claim more than there is.
static size_t read_what_is_there(char *to, const char *from, size_t size) {
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
    ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    return got > 0 ? (size_t)got : 0;
}

// The sections and tables of a cubin end where it ends. Reads it piece by piece, for what it claims may be
// more than any memory holds.
static char *copy_cubin(struct code *code, const Elf64_Ehdr *head, size_t room, size_t *size) {
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

// A fatbin that is in memory. Of relocatable code there are cubins only, which nvlink made; what it made them
// of is in a list, and has PTX.
static CUresult read_wrapper(struct code *code, const struct fatbin_wrapper *wrapper) {
    const struct fatbin_region *region = wrapper->data;
    if (region->magic != FATBIN_MAGIC)
        return CUDA_ERROR_INVALID_IMAGE;
    CUresult status = read_fatbin(code, region, SIZE_MAX);
    if (status != CUDA_ERROR_NO_BINARY_FOR_GPU || wrapper->version != FATBIN_WRAPPER_LINKED || !wrapper->more)
        return status;
    char *text;
    if ((status = sim_link_fatbins(wrapper->more, &text)))
        return status;
    const char *kept = sim_keep_text(code, text, strlen(text));
    if (kept)
        read_ptx(code, kept, strlen(text));
    free(text);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult read_image(struct code *code, const void *start, size_t room) {
    const struct fatbin_wrapper *wrapper = start;
    if (wrapper->magic == FATBIN_WRAPPER_MAGIC && room == SIZE_MAX) // what is in a file has no addresses
        return read_wrapper(code, wrapper);
    const struct fatbin_region *region = start;
    if (region->magic == FATBIN_MAGIC)
        return read_fatbin(code, region, room);
    size_t size;
    if (!memcmp(start, ELFMAG, SELFMAG)) {
        const Elf64_Ehdr *head = start;
        if (head->e_machine == EM_X86_64) {
            const char *bytes = copy_cubin(code, head, room, &size);
            if (!bytes || !(code->object = sim_open_object(bytes, size)))
                return CUDA_ERROR_INVALID_IMAGE;
            read_object(code, sim_module_of(code->object));
            return CUDA_SUCCESS;
        }
        if (head->e_machine != 190) // EM_CUDA
            return CUDA_ERROR_INVALID_IMAGE;
        if (!is_for_device(head))
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
        const char *bytes = copy_cubin(code, head, room, &size);
        if (!bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        read_cubin(code, bytes, size);
        return CUDA_SUCCESS;
    }
    size = strlen(start);
    if (!memmem(start, size, ".version", 8))
        return CUDA_ERROR_INVALID_IMAGE;
    const char *text = sim_keep_text(code, start, size);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    read_ptx(code, text, size);
    return CUDA_SUCCESS;
}

void sim_release_code(struct code *code) {
    if (--code->references)
        return;
    for (struct block *block = code->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    for (size_t i = 0; i < code->entry_count; i++) {
        free(code->entries[i].parameters);
        if (code->entries[i].object)
            sim_close_later(code->entries[i].object);
    }
    if (code->object)
        sim_close_later(code->object);
    free(code->entries);
    free(code->variables);
    free(code);
}

CUresult sim_read_image(struct code **code, const void *start, size_t room) {
    if (!start)
        return CUDA_ERROR_INVALID_VALUE;
    struct code *made = calloc(1, sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->references = 1;
    CUresult status = read_image(made, start, room);
    if (status)
        sim_release_code(made);
    else
        *code = made;
    return status;
}

CUresult sim_each_ptx(const void *image, size_t room, CUresult (*take)(void *, const char *, size_t),
                      void *data) {
    const struct fatbin_wrapper *wrapper = image;
    if (room < sizeof(uint32_t))
        return CUDA_ERROR_INVALID_IMAGE;
    if (wrapper->magic == FATBIN_WRAPPER_MAGIC && room >= sizeof(*wrapper))
        image = wrapper->data, room = SIZE_MAX;
    const struct fatbin_region *region = image;
    if (region->magic != FATBIN_MAGIC)
        return memmem(image, room, ".version", 8) ? take(data, image, room) : CUDA_ERROR_INVALID_IMAGE;
    if (room < sizeof(*region) || region->header_size != sizeof(*region) ||
        region->size > room - sizeof(*region))
        return CUDA_ERROR_INVALID_IMAGE;
    const struct fatbin_element *best = NULL;
    for (const struct fatbin_element *at = NULL; (at = next_element(region, at));)
        if (at->kind == FATBIN_PTX && suits(at) > (best ? suits(best) : 0))
            best = at;
    if (!best)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!(best->flags & FATBIN_PACKED))
        return take(data, (const char *)best + best->header_size, best->payload_size);
    char *text;
    size_t size;
    CUresult status = sim_unpack(best, &text, &size);
    if (!status) {
        status = take(data, text, size);
        free(text);
    }
    return status;
}

CUresult sim_read_whole(const char *path, char **bytes, size_t *size) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode)) {
        if (file >= 0)
            close(file);
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    *size = (size_t)status.st_size;
    *bytes = calloc(1, *size + 64);
    bool whole = *bytes && read(file, *bytes, *size) == status.st_size;
    close(file);
    if (!whole)
        free(*bytes);
    return whole ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_read_file(struct code **code, const char *path) {
    char *image;
    size_t size;
    CUresult status = path ? sim_read_whole(path, &image, &size) : CUDA_ERROR_INVALID_VALUE;
    if (status)
        return status;
    status = sim_read_image(code, image, size);
    free(image);
    return status;
}
