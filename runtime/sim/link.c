// Links PTX to PTX: the result is one module with the contents of all, which loads like any other. If two
// modules use the same local name, one is renamed. An `.extern` declaration is dropped if another module has
// the definition, and the first of several `.weak` definitions is kept. Cubins, and files with only cubins,
// can't be linked, because the device runs none. A static library is taken to be CUDA's device runtime.
//
// This is the only place where the device splits PTX into tokens; outline.c has gpt-asm do that. Linking
// means cutting pieces out of several texts and renaming them, and a request to gpt-asm holds only one text.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"

struct part { // one module's text
    struct part *next;
    char *text;
    size_t size;
};

struct link {
    struct object object;
    struct part *parts;
    struct jit jit;
    char *result;
};

_Static_assert(sizeof(struct link) <= OBJECT_SIZE, "fit");

void sim_end_link(struct object *object) {
    struct link *link = (struct link *)object;
    for (struct part *part = link->parts, *next; part; part = next) {
        next = part->next;
        free(part->text);
        free(part);
    }
    free(link->result);
}

// Reading PTX

struct text { // PTX that is read
    const char *at, *end;
    const char *token;
    size_t size; // bytes of the token
};

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

// Read the next token: a word (with the dot or percent sign that it begins with), or one character. Returns
// false at the end.
static bool next_token(struct text *text) {
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
        for (at++; at < end && (is_word(text->token[0]) || text->token[0] == '.' || text->token[0] == '%') &&
                   is_word(*at);)
            at++;
    text->size = (size_t)(at - text->token);
    text->at = at;
    return text->size;
}

static bool is_token(const struct text *text, const char *word) {
    return text->size == strlen(word) && !memcmp(text->token, word, text->size);
}

static bool is_name(const struct text *reader) {
    char c = *reader->token;
    return c == '_' || c == '$' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

struct symbol {
    const char *name;
    size_t size;
    const struct part *part;
    const char *start, *end; // its declaration
    enum { LOCAL, EXTERN, WEAK, VISIBLE } linkage;
};

struct symbols {
    struct symbol *all;
    size_t count, room;
};

// Read a declaration to its end; if it declares symbols, add them.
static bool read_declaration(struct text *reader, const struct part *part, struct symbols *symbols) {
    struct symbol symbol = {.part = part, .start = reader->token};
    size_t first = symbols->count;
    bool function = false, named = false, in_value = false;
    int depth = 0;
    do {
        bool opens = is_token(reader, "{") || is_token(reader, "(") || is_token(reader, "[");
        bool closes = is_token(reader, "}") || is_token(reader, ")") || is_token(reader, "]");
        if (is_token(reader, ".extern"))
            symbol.linkage = EXTERN;
        else if (is_token(reader, ".weak") || is_token(reader, ".common"))
            symbol.linkage = WEAK;
        else if (is_token(reader, ".visible"))
            symbol.linkage = VISIBLE;
        else if (is_token(reader, ".func") || is_token(reader, ".entry") || is_token(reader, ".alias"))
            function = true;
        else if (is_token(reader, "="))
            in_value = true;
        else if (is_token(reader, ",") && !depth && !function)
            named = in_value = false;
        else if (!depth && !in_value && !named && is_name(reader)) {
            symbol.name = reader->token, symbol.size = reader->size;
            struct symbol *larger = sim_grow(symbols->all, symbols->count, &symbols->room, sizeof(*larger));
            if (!larger)
                return false;
            symbols->all = larger;
            larger[symbols->count++] = symbol;
            named = true;
        }
        depth += opens - closes;
    } while (!(depth == 0 && (is_token(reader, ";") || (function && is_token(reader, "}")))) &&
             next_token(reader));
    for (size_t i = first; i < symbols->count; i++)
        symbols->all[i].end = reader->at;
    return true;
}

// Add what a module declares; `header` is where its declarations begin.
static bool read_part(const struct part *part, struct symbols *symbols, const char **header, int *version) {
    struct text reader = {.at = part->text, .end = part->text + part->size};
    *header = part->text;
    *version = 0;
    while (next_token(&reader)) {
        if (is_token(&reader, ".version")) {
            next_token(&reader);
            *version = 100 * atoi(reader.token);
            next_token(&reader);
            *version += *reader.token == '.' ? atoi(reader.token + 1) : 0;
        } else if (is_token(&reader, ".target")) {
            const char *line = memchr(reader.at, '\n', (size_t)(reader.end - reader.at));
            reader.at = line ? line : reader.end;
        } else if (is_token(&reader, ".address_size"))
            next_token(&reader);
        else if (is_token(&reader, ".file") || is_token(&reader, ".pragma")) {
            const char *line = memchr(reader.at, '\n', (size_t)(reader.end - reader.at));
            reader.at = line ? line : reader.end;
            continue;
        } else if (is_token(&reader, ".section")) {
            while (next_token(&reader) && !is_token(&reader, "}"))
                ;
            continue;
        } else if (!read_declaration(&reader, part, symbols))
            return false;
        else
            continue;
        *header = reader.at;
    }
    return true;
}

// Find another symbol with the same name that isn't `.extern`.
static const struct symbol *find_same(const struct symbols *symbols, const struct symbol *symbol,
                                      bool before) {
    for (size_t i = 0; i < symbols->count; i++) {
        const struct symbol *other = &symbols->all[i];
        if (before && other == symbol)
            return NULL;
        if (other->part != symbol->part && other->linkage != EXTERN && other->size == symbol->size &&
            !memcmp(other->name, symbol->name, symbol->size))
            return other;
    }
    return NULL;
}

// Find the symbol that a token names.
static const struct symbol *find_symbol(const struct symbols *symbols, const struct part *part,
                                        const struct text *reader) {
    for (size_t i = 0; i < symbols->count; i++) {
        const struct symbol *symbol = &symbols->all[i];
        if (symbol->part == part && symbol->size == reader->size &&
            !memcmp(symbol->name, reader->token, reader->size))
            return symbol;
    }
    return NULL;
}

// Write a module's declarations, except the redundant ones.
static void write_part(FILE *out, const struct symbols *symbols, const struct part *part, const char *from,
                       int number) {
    struct text reader = {.at = from, .end = part->text + part->size};
    const char *written = from;
    while (next_token(&reader)) {
        const struct symbol *left = NULL;
        for (size_t i = 0; i < symbols->count && !left; i++) {
            const struct symbol *symbol = &symbols->all[i];
            if (symbol->start == reader.token &&
                ((symbol->linkage == EXTERN && find_same(symbols, symbol, false)) ||
                 (symbol->linkage == WEAK && find_same(symbols, symbol, true))))
                left = symbol;
        }
        const struct symbol *named = left               ? NULL
                                     : is_name(&reader) ? find_symbol(symbols, part, &reader)
                                                        : NULL;
        bool renamed = named && named->linkage == LOCAL && find_same(symbols, named, false);
        if (!left && !renamed)
            continue;
        fwrite(written, 1, (size_t)(reader.token - written), out);
        if (renamed)
            fprintf(out, "%.*s$%d", (int)reader.size, reader.token, number);
        written = reader.at = left ? left->end : reader.at;
    }
    fwrite(written, 1, (size_t)(reader.end - written), out);
    fputc('\n', out);
}

static CUresult link_parts(struct link *link) {
    struct symbols symbols = {0};
    const struct part *newest = link->parts;
    const char *header, *first = NULL;
    int version, best = -1;
    bool whole = true;
    for (const struct part *part = link->parts; part && whole; part = part->next) {
        whole = read_part(part, &symbols, &header, &version);
        if (version > best)
            best = version, newest = part, first = header;
    }
    CUresult status = whole ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < symbols.count && !status; i++) {
        const struct symbol *symbol = &symbols.all[i], *other = find_same(&symbols, symbol, true);
        if (symbol->linkage == VISIBLE && other && other->linkage == VISIBLE) {
            sim_say("two modules define '%.*s'", (int)(symbol->size < 400 ? symbol->size : 400),
                    symbol->name);
            status = CUDA_ERROR_INVALID_PTX;
        }
    }
    size_t size;
    FILE *out = status ? NULL : open_memstream(&link->result, &size);
    if (out) {
        int number = 0;
        struct symbols none = {0};
        fwrite(newest->text, 1, (size_t)(first - newest->text), out);
        for (const struct part *part = link->parts; part; part = part->next, number++) {
            read_part(part, &none, &header, &version);
            write_part(out, &symbols, part, header, number);
        }
        free(none.all);
        fclose(out);
    }
    free(symbols.all);
    return status || link->result ? status : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_text(void *of, const char *text, size_t size) {
    struct link *link = of;
    struct part *part = calloc(1, sizeof(*part)), **at = &link->parts;
    if (!part || !(part->text = strndup(text, size))) {
        free(part);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    part->size = strlen(part->text);
    while (*at)
        at = &(*at)->next;
    *at = part;
    return CUDA_SUCCESS;
}

CUresult sim_link_fatbins(const void *const *fatbins, char **text) {
    struct link link = {0};
    CUresult status = CUDA_SUCCESS;
    bool lacks = false;
    for (; !status && *fatbins; fatbins++) {
        status = sim_each_ptx(*fatbins, SIZE_MAX, add_text, &link);
        if (status ==
            CUDA_ERROR_NO_BINARY_FOR_GPU) // libcudadevrt has only cubins: missing names are reported later
            status = CUDA_SUCCESS, lacks = true;
    }
    if (!status && !link.parts)
        status = CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!status && lacks)
        status = add_text(&link, sim_device_runtime, strlen(sim_device_runtime));
    if (!status)
        status = link_parts(&link);
    *text = status ? NULL : link.result;
    link.result = status ? link.result : NULL;
    sim_end_link(&link.object);
    return status;
}

// Functions

API cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
    IN_CONTEXT;
    if (!state || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    struct link *made = sim_new(LINK, context);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_read_jit(&made->jit, count, options, values);
    *state = made;
    return sim_log_jit(&made->jit, CUDA_SUCCESS);
}

static CUresult check_link(const struct link *link) {
    IN_CONTEXT;
    return is_kind(link, LINK) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// PTX may have to be unpacked, so don't hold the lock.
static CUresult add_data(struct link *link, const char *data, size_t size) {
    struct link read = {0};
    bool library =
        size >= 8 && !memcmp(data, "!<arch>\n", 8); // libcudadevrt.a, whose code is the device's own
    CUresult status = library ? add_text(&read, sim_device_runtime, strlen(sim_device_runtime))
                              : sim_each_ptx(data, size, add_text, &read);
    LOCKED;
    if (!is_kind(link, LINK)) {
        sim_end_link(&read.object);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct part **at = &link->parts;
    while (*at)
        at = &(*at)->next;
    *at = read.parts;
    if (status == CUDA_ERROR_NO_BINARY_FOR_GPU || status == CUDA_ERROR_INVALID_IMAGE)
        sim_say("no PTX for the device: only PTX can be linked, see gpt-sim(7)");
    return sim_log_jit(&link->jit, status);
}

API cuLinkAddData_v2(void *state, int type, void *data, size_t size, const char *name, unsigned count,
                     int *options, void **values) {
    (void)name, (void)count, (void)options, (void)values;
    CUresult status = check_link(state);
    if (status)
        return status;
    if (!data || !size || type < 0 || type >= CU_JIT_NUM_INPUT_TYPES)
        return CUDA_ERROR_INVALID_VALUE;
    return add_data(state, data, size);
}

API cuLinkAddFile_v2(void *state, int type, const char *path, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    CUresult status = check_link(state);
    if (status)
        return status;
    if (!path || type < 0 || type >= CU_JIT_NUM_INPUT_TYPES)
        return CUDA_ERROR_INVALID_VALUE;
    char *data;
    size_t size;
    status = sim_read_whole(path, &data, &size);
    if (!status) {
        status = add_data(state, data, size);
        free(data);
    }
    return status;
}

// Link everything added so far, once. `text` is a copy of the result, which the caller frees.
static CUresult complete(struct link *link, char **text) {
    IN_CONTEXT;
    if (!is_kind(link, LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!link->parts)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = link->result ? CUDA_SUCCESS : link_parts(link);
    *text = status ? NULL : strdup(link->result);
    return status || *text ? status : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult check_text(const char *text) {
    struct code *code;
    CUresult status = sim_read_image(&code, text, SIZE_MAX);
    if (status)
        return status;
    status = sim_check_text(code);
    LOCKED;
    sim_release_code(code);
    return status;
}

API cuLinkComplete(void *state, void **image, size_t *size) {
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    char *text = NULL;
    CUresult status = complete(state, &text);
    if (!status)
        status = check_text(text);
    free(text);
    LOCKED;
    struct link *link = state;
    if (!is_kind(link, LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    sim_log_jit(&link->jit, status);
    if (status)
        return status;
    *image = link->result;
    if (size)
        *size = strlen(link->result) + 1;
    return CUDA_SUCCESS;
}

API cuLinkDestroy(void *state) {
    LOCKED;
    if (!is_kind(state, LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    sim_delete(state);
    return CUDA_SUCCESS;
}
