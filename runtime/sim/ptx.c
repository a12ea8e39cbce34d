// PTX, as much of it as says which kernels and variables there are (declared.c: how those are declared). What
// it says of them is gpt-asm's business.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"

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

// Read a parameter list: .param [.align N] .type [.ptr .space .align N] name [ "[" N "]" ], ...
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
            sim_add_parameter(entry, index++, at, item * count);
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
    struct entry *entry = sim_add_entry(code, sim_keep_text(code, text->token, text->size));
    if (!entry)
        return;
    entry->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = target; // the target's version, not the language's
    entry->text = start;
    entry->text_size = size;
    bool more = sim_next_token(text);
    if (more && sim_is_token(text, "(")) {
        read_parameters(text, entry);
        more = sim_next_token(text);
    }
    for (; more && !sim_is_token(text, "{") && !sim_is_token(text, ";"); more = sim_next_token(text)) {
        unsigned long registers = sim_is_token(text, ".maxnreg") ? sim_next_number(text) : 0;
        if (registers)
            sim_set_registers(entry, registers);
        if (sim_is_token(text, ".maxntid") || sim_is_token(text, ".reqntid")) {
            unsigned long threads = sim_next_number(text);
            for (; sim_next_token(text) && sim_is_token(text, ",");)
                threads *= sim_next_number(text);
            if (threads > 0 && threads <= (unsigned long)sim_attribute(1))
                entry->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = (int)threads;
            text->at = text->token; // what ended the numbers
        }
    }
    if (more && sim_is_token(text, "{"))
        read_body(text, code, entry->name);
}

void sim_read_ptx(struct code *code, const char *start, size_t size) {
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

// Returns true if there is a version of PTX, given by the text after `.version`, up to CUDA 13.5's.
static bool is_version(const char *text) {
    static const int last[] = {-1, 5, 3, 2, 3, 1, 5, 8, 8, 5}; // the last minor number of each major one
    int major, minor, size = 0;
    return sscanf(text, " %3d.%1d%n", &major, &minor, &size) == 2 && major >= 0 &&
           (size_t)major < sizeof(last) / sizeof(*last) && minor <= last[major] &&
           !(text[size] >= '0' && text[size] <= '9');
}

// Check the first lines: reject an architecture that the device doesn't support, and PTX versions that don't
// exist or are too new for us.
CUresult sim_check_target(const struct code *code) {
    struct text text = {.at = code->text, .end = code->text + code->text_size};
    int line = 1, major, minor;
    for (const char *seen = code->text; sim_next_token(&text); seen = text.token) {
        for (const char *at = seen; at < text.token; at++)
            line += *at == '\n';
        if (sim_is_token(&text, ".version")) {
            if (sscanf(text.at, " %3d.%d", &major, &minor) != 2 || is_version(text.at))
                continue;
            sim_say("PTX: line %d: .version %d.%d: the newest that is known here is 9.5", line, major, minor);
            return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        }
        if (sim_is_token(&text, ".target") && sim_next_token(&text)) {
            struct fatbin_element element = {.kind = FATBIN_PTX};
            char suffix = text.token[text.size - 1];
            unsigned arch = text.size > 3 ? (unsigned)atoi(text.token + 3) : 0;
            element.arch = (unsigned short)arch;
            element.flags = suffix == 'a' ? FATBIN_SUFFIX_A : suffix == 'f' ? FATBIN_SUFFIX_F : 0;
            if (!arch || sim_suits(&element))
                return CUDA_SUCCESS;
            sim_say("PTX: line %d: .target %.*s: the device is sm_%d%d", line, (int)text.size, text.token,
                    sim_major, sim_minor);
            return CUDA_ERROR_INVALID_PTX;
        }
    }
    return CUDA_SUCCESS; // gpt-asm reports missing features
}
