// Links several PTX modules into one, which is then loaded like any other PTX:
//
//   - If two modules use the same local name, one is renamed.
//   - An `.extern` declaration is dropped if an earlier module has the definition. If a later module has it,
//   the
//     declaration is replaced by the head of the definition, because PTX requires names to be declared before
//     use.
//   - Of several `.weak` definitions, the first is used.
//   - Cubins can't be linked, because the device doesn't run machine code.
//   - A static library is assumed to be CUDA's device runtime (devrt.c).
//
// Elsewhere, gpt-asm parses PTX for us (outline.c). But a request to gpt-asm contains a single text, and
// linking has to cut pieces out of several, so this file splits PTX into tokens itself.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"

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
    bool function;
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
        symbols->all[i].end = reader->at, symbols->all[i].function = function;
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

// Write a declaration of what a later module defines: a function without its body, or a variable without its
// value.
static void write_head(FILE *out, const struct symbol *defined) {
    struct text reader = {.at = defined->start, .end = defined->end};
    int depth = 0;
    for (const char *at = reader.at; next_token(&reader); at = reader.at) {
        if (!depth && (is_token(&reader, "{") || is_token(&reader, "=") || is_token(&reader, ";")))
            break;
        depth += is_token(&reader, "(") - is_token(&reader, ")");
        bool linking = is_token(&reader, ".visible") || is_token(&reader, ".weak");
        if (linking && !defined->function)
            fputs(".extern", out);
        else
            fwrite(at, 1, (size_t)(reader.at - at), out);
    }
    fputs(";\n", out);
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
        for (size_t i = 0; i < symbols->count && left && left->linkage == EXTERN; i++) {
            const struct symbol *symbol = &symbols->all[i], *defined = find_same(symbols, symbol, false);
            if (symbol->start == left->start && defined && defined->linkage != LOCAL &&
                !find_same(symbols, symbol, true))
                write_head(out, defined);
        }
        if (renamed)
            fprintf(out, "%.*s$%d", (int)reader.size, reader.token, number);
        written = reader.at = left ? left->end : reader.at;
    }
    fwrite(written, 1, (size_t)(reader.end - written), out);
    fputc('\n', out);
}

CUresult sim_link_parts(const struct part *parts, char **result) {
    struct symbols symbols = {0};
    const struct part *newest = parts;
    const char *header, *first = NULL;
    int version, best = -1;
    bool whole = true;
    for (const struct part *part = parts; part && whole; part = part->next) {
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
    FILE *out = status ? NULL : open_memstream(result, &size);
    if (out) {
        int number = 0;
        struct symbols none = {0};
        fwrite(newest->text, 1, (size_t)(first - newest->text), out);
        for (const struct part *part = parts; part; part = part->next, number++) {
            read_part(part, &none, &header, &version);
            write_part(out, &symbols, part, header, number);
        }
        free(none.all);
        fclose(out);
    }
    free(symbols.all);
    return status || *result ? status : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_free_parts(struct part *parts) {
    for (struct part *part = parts, *next; part; part = next) {
        next = part->next;
        free(part->text);
        free(part);
    }
}

CUresult sim_add_part(void *parts, const char *text, size_t size) {
    struct part *part = calloc(1, sizeof(*part)), **at = parts;
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
    struct part *parts = NULL;
    CUresult status = CUDA_SUCCESS;
    bool lacks = false;
    *text = NULL;
    for (; !status && *fatbins; fatbins++) {
        status = sim_each_ptx(*fatbins, SIZE_MAX, sim_add_part, &parts);
        if (status ==
            CUDA_ERROR_NO_BINARY_FOR_GPU) // libcudadevrt has only cubins: missing names are reported later
            status = CUDA_SUCCESS, lacks = true;
    }
    if (!status && !parts)
        status = CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!status && lacks)
        status = sim_add_part(&parts, sim_device_runtime, strlen(sim_device_runtime));
    if (!status)
        status = sim_link_parts(parts, text);
    sim_free_parts(parts);
    return status;
}
