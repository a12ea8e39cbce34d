// Write the records of questions, and read those in answers.

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/records.h"
#include "broker.h"

// Bytes

// Even empty data gets memory, so NULL always means out of memory.
char *gpt_make_room(struct gpt_bytes *bytes, size_t size) {
    if (!bytes->data || bytes->room - bytes->size < size) {
        size_t room = bytes->size + size + bytes->room / 2 + 1;
        char *larger = realloc(bytes->data, room);
        if (!larger)
            return NULL;
        bytes->data = larger;
        bytes->room = room;
    }
    return bytes->data + bytes->size;
}

bool gpt_add(struct gpt_bytes *bytes, const void *data, size_t size) {
    char *at = gpt_make_room(bytes, size);
    if (!at)
        return false;
    if (size) // `data` may be NULL
        memcpy(at, data, size);
    bytes->size += size;
    return true;
}

void gpt_empty(struct gpt_bytes *bytes) {
    free(bytes->data);
    *bytes = (struct gpt_bytes){0};
}

// Writing

enum { SMALL = 512 }; // enough bytes for a record without its texts and payload

#define ADD(bytes, kind, more, ...)                                                                          \
    do {                                                                                                     \
        unsigned char *at = (unsigned char *)gpt_make_room(bytes, SMALL + (more));                           \
        struct gpt_packer buffer = {at, at + SMALL + (more), !at};                                           \
        size_t size = at ? gpt_pack_##kind(&buffer, &(struct gpt_##kind){__VA_ARGS__}) : 0;                  \
        (bytes)->size += size;                                                                               \
        return size > 0;                                                                                     \
    } while (0)

bool gpt_add_header(struct gpt_bytes *bytes) {
    ADD(bytes, header, 0, .version = GPT_STR(GPT_VERSION), .tool = GPT_STR("gpt-hook"),
        .pid = (uint64_t)getpid());
}

bool gpt_add_end(struct gpt_bytes *bytes) { ADD(bytes, end, 0, .status = 0); }

bool gpt_add_sync(struct gpt_bytes *bytes, uint64_t number) { ADD(bytes, sync, 0, .id = number); }

bool gpt_add_module(struct gpt_bytes *bytes, const struct gpt_asked *asked) {
    struct gpt_str only = {asked->kernel, asked->kernel ? strlen(asked->kernel) : 0};
    size_t inside = asked->image ? asked->size : 0;
    char of[32];
    int of_size = asked->module ? snprintf(of, sizeof(of), "%d:%u", getpid(), asked->module) : 0;
    ADD(bytes, module, inside + only.size, .type = {asked->type, strlen(asked->type)},
        .offset = {!asked->image, asked->offset}, .size = {!asked->image, asked->size},
        .data = {asked->image, inside}, .only = {asked->kernel ? &only : NULL, 1},
        .arch = {asked->arch, asked->arch ? strlen(asked->arch) : 0},
        .registers = {asked->registers != 0, asked->registers},
        .want = {asked->want, asked->want ? strlen(asked->want) : 0}, .of = {of, (size_t)of_size});
}

// Add a key to a small map.
bool gpt_add_path(struct gpt_bytes *bytes, size_t start, const char *path) {
    size_t size = strlen(path);
    unsigned char *at = (unsigned char *)gpt_make_room(bytes, SMALL + size);
    struct gpt_packer buffer = {at, at + SMALL + size, !at};
    unsigned char *head = (unsigned char *)bytes->data + start;
    if (!at || (*head & 0xf0) != 0x80 || *head == 0x8f)
        return false;
    gpt_put_str(&buffer, "path", strlen("path"));
    gpt_put_str(&buffer, path, size);
    bytes->size += (size_t)(buffer.at - at);
    ++*head;
    return !buffer.full;
}

// Reading

struct gpt_record gpt_read_record(struct cursor *cursor) {
    struct value none = {ELSE, 0, NULL}, map = read_value(cursor);
    struct gpt_record record = {none, none, none, none, none, none};
    struct {
        const char *name;
        struct value *value;
    } wanted[] = {{"kind", &record.kind},   {"id", &record.id},       {"data", &record.data},
                  {"level", &record.level}, {"where", &record.where}, {"text", &record.text}};
    cursor->bad |= map.type != MAP;
    for (uint64_t i = 0; i < map.number && !cursor->bad; i++) {
        struct value name = take_value(cursor), value = take_value(cursor);
        for (size_t k = 0; k < sizeof(wanted) / sizeof(*wanted) && !cursor->bad; k++)
            if (is(name, wanted[k].name))
                *wanted[k].value = value;
    }
    return record;
}
