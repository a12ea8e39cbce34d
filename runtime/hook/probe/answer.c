// Reads the pipeline's answers. gpt-stream(5) describes their records. They come from stages that anybody may
// have written, or from the cache. If anything in an answer is inconsistent, that's a fault, and the kernel
// runs without probes.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"
#include "unpack.h"

enum { MOST_ITEMS = 4096, MOST_PARAM_BYTES = 32764, MOST_BLOCKS = 1024 };

struct field { // a key of a map, and where to store its value
    const char *name;
    struct value *value;
    struct cursor *inside; // NULL, or where to store the start of an array's items
};

// Read the keys of the next map, skipping unwanted ones.
static void read_keys(struct cursor *cursor, const struct field *fields, size_t count) {
    struct value map = read_value(cursor);
    cursor->bad |= map.type != MAP;
    for (uint64_t i = 0; i < map.number && !cursor->bad; i++) {
        struct value name = take_value(cursor);
        struct cursor at = *cursor;
        struct value value = take_value(cursor);
        for (size_t k = 0; k < count && !cursor->bad; k++)
            if (is(name, fields[k].name)) {
                *fields[k].value = value;
                if (fields[k].inside) {
                    read_value(&at);
                    *fields[k].inside = at;
                }
            }
    }
}

#define KEYS(cursor, ...)                                                                                    \
    read_keys(cursor, (const struct field[]){__VA_ARGS__},                                                   \
              sizeof((const struct field[]){__VA_ARGS__}) / sizeof(struct field))

static const struct value none = {ELSE, 0, NULL};
static const struct value stage_error = {TEXT, sizeof("stage_error") - 1, (const void *)"stage_error"};

static bool refuse(struct woven *woven, const struct reason *why) {
    woven->fault = woven->fault ? woven->fault : why;
    return false;
}

static bool doubt(struct woven *woven, const char *detail) {
    return refuse(woven, hook_make_reason("pipeline_wrong", detail));
}

static char *keep_text(struct value value) {
    return value.type == TEXT ? strndup((const char *)value.data, value.number) : NULL;
}

// Parameters

static bool read_params(struct woven *woven, struct value items, struct cursor at, struct woven_param **found,
                        size_t *count, bool added) {
    if (items.type != ARRAY || items.number > MOST_ITEMS)
        return doubt(woven, "it lists no parameters");
    if (!(*found = calloc(items.number + 1, sizeof(**found))))
        return refuse(woven, WHY(no_memory));
    for (*count = 0; *count < items.number; ++*count) {
        struct value offset = none, size = none, map = none;
        KEYS(&at, {"offset", &offset, NULL}, {"size", &size, NULL}, {"map", &map, NULL});
        struct woven_param *param = &(*found)[*count];
        *param = (struct woven_param){unsigned_of(offset), unsigned_of(size), UINT32_MAX};
        for (uint32_t i = 0; added && i < woven->map_count; i++)
            if (map.type == UNSIGNED && woven->maps[i].id == map.number)
                param->map = i;
        if (at.bad || param->offset > MOST_PARAM_BYTES || param->size > MOST_PARAM_BYTES ||
            (added && (param->map == UINT32_MAX || param->size != sizeof(uint64_t))))
            return doubt(woven, "it lists impossible parameters");
    }
    return true;
}

static bool read_variables(struct woven *woven, struct value items, struct cursor at) {
    if (items.type == ELSE)
        return true;
    if (items.type != ARRAY || items.number > MOST_ITEMS)
        return doubt(woven, "it lists no variables");
    if (!(woven->variables = calloc(items.number + 1, sizeof(*woven->variables))))
        return refuse(woven, WHY(no_memory));
    for (size_t i = 0; i < items.number; i++) {
        struct value name = none, space = none, size = none, offset = none, copy = none;
        KEYS(&at, {"name", &name, NULL}, {"space", &space, NULL}, {"size", &size, NULL},
             {"offset", &offset, NULL}, {"copy", &copy, NULL});
        struct woven_variable *variable = &woven->variables[i];
        *variable = (struct woven_variable){keep_text(name),    unsigned_of(size),  unsigned_of(offset),
                                            is(space, "const"), is(copy, "always"), 0};
        woven->variable_count = i + 1;
        if (at.bad || !variable->name || (!variable->constant && offset.type != UNSIGNED))
            return doubt(woven, "it lists impossible variables");
    }
    return true;
}

// A grid may count clusters.
static bool read_cluster(struct woven *woven, struct value items, struct cursor at) {
    for (uint64_t i = 0; i < 3; i++) {
        uint64_t blocks = items.type == ARRAY && i < items.number ? unsigned_of(take_value(&at)) : 1;
        if (at.bad || !blocks || blocks > MOST_BLOCKS)
            return doubt(woven, "it gives an impossible cluster");
        woven->cluster[i] = (uint32_t)blocks;
    }
    return true;
}

// Records

struct record {
    struct value kind, id, name, arch, level, type, capacity, stride, data, params, added, maps, variables,
        table, code, detail, text, original, wanted, cluster, registers, registers_before, keeps, head,
        copies, fields, least, most, room, stored, ring;
    struct cursor in_params, in_added, in_variables, in_cluster, in_fields, in_least, in_most, start, end;
};

static struct record read_record(struct cursor *cursor) {
    struct record record = {.start = *cursor};
    struct value *values[] = {&record.kind,      &record.id,
                              &record.name,      &record.arch,
                              &record.level,     &record.type,
                              &record.capacity,  &record.stride,
                              &record.data,      &record.params,
                              &record.added,     &record.maps,
                              &record.table,     &record.code,
                              &record.detail,    &record.text,
                              &record.variables, &record.original,
                              &record.wanted,    &record.cluster,
                              &record.registers, &record.registers_before,
                              &record.keeps,     &record.head,
                              &record.copies,    &record.fields,
                              &record.least,     &record.most,
                              &record.room,      &record.stored,
                              &record.ring};
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++)
        *values[i] = none;
    KEYS(cursor, {"kind", &record.kind, NULL}, {"id", &record.id, NULL}, {"name", &record.name, NULL},
         {"arch", &record.arch, NULL}, {"level", &record.level, NULL}, {"type", &record.type, NULL},
         {"capacity", &record.capacity, NULL}, {"stride", &record.stride, NULL}, {"data", &record.data, NULL},
         {"params", &record.params, &record.in_params}, {"added", &record.added, &record.in_added},
         {"maps", &record.maps, NULL}, {"variables", &record.variables, &record.in_variables},
         {"table", &record.table, NULL}, {"code", &record.code, NULL}, {"detail", &record.detail, NULL},
         {"text", &record.text, NULL}, {"original", &record.original, NULL}, {"wanted", &record.wanted, NULL},
         {"cluster", &record.cluster, &record.in_cluster}, {"registers", &record.registers, NULL},
         {"registers_before", &record.registers_before, NULL}, {"keeps", &record.keeps, NULL},
         {"head", &record.head, NULL}, {"copies", &record.copies, NULL},
         {"fields", &record.fields, &record.in_fields}, {"min", &record.least, &record.in_least},
         {"max", &record.most, &record.in_most}, {"room", &record.room, NULL},
         {"ring_size", &record.ring, NULL}, {"stored", &record.stored, NULL});
    record.end = *cursor;
    return record;
}

static struct cursor begin(const struct gpt_bytes *answer) {
    const unsigned char *data = (const unsigned char *)answer->data;
    return (struct cursor){data, data + answer->size, false};
}

// Return the number in sm_90a. For `host`, it's always the same.
static unsigned long version_of(struct value arch) {
    char text[16] = "";
    if (arch.type == TEXT && arch.number < sizeof(text))
        memcpy(text, arch.data, arch.number);
    return strncmp(text, "sm_", 3) ? 0 : strtoul(text + 3, NULL, 10);
}

// Return whether a record begins a module: PTX, or machine code that wasn't made from PTX.
static bool begins_module(const struct record *record, uint64_t id, bool any) {
    bool is_code = is(record->kind, "cubin") || is(record->kind, "object");
    return is(record->kind, "ptx") || (is_code && (!any || unsigned_of(record->id) != id));
}

// Choose the module whose kernel fits best. Like the driver, take the one for the newest architecture.
static bool choose(struct woven *woven, const char *kernel, uint64_t *chosen) {
    unsigned long best = 0;
    bool found = false, any = false;
    struct cursor cursor = begin(&woven->answer);
    uint64_t id = 0;
    unsigned long version = 0;
    while (cursor.at < cursor.end) {
        struct record record = read_record(&cursor);
        if (cursor.bad)
            return doubt(woven, "it writes no stream");
        if (begins_module(&record, id, any)) {
            any = true;
            id = unsigned_of(record.id);
            version = version_of(record.arch);
        } else if (is(record.kind, "kernel") && is(record.name, kernel) && record.params.type == ARRAY &&
                   unsigned_of(record.id) == id && (!found || version > best)) {
            found = true;
            best = version;
            *chosen = id;
        }
    }
    return found;
}

static bool has_name(struct value names, struct cursor at, struct value name) {
    bool found = false;
    for (uint64_t i = 0; names.type == ARRAY && i < names.number && !at.bad; i++) {
        struct value one = take_value(&at);
        found |= one.type == TEXT && one.number == name.number && !memcmp(one.data, name.data, one.number);
    }
    return found && !at.bad;
}

static bool read_field(struct woven_field *field, const struct record *record, struct cursor *at,
                       uint64_t stride) {
    struct value name = none, type = none, offset = none;
    KEYS(at, {"name", &name, NULL}, {"type", &type, NULL}, {"offset", &offset, NULL});
    char text[4] = "";
    if (at->bad || name.type != TEXT || type.type != TEXT || type.number < 2 || type.number > 3)
        return false;
    memcpy(text, type.data, type.number);
    uint64_t bits = strtoul(text + 1, NULL, 10), place = unsigned_of(offset), size = bits / 8;
    bool known = *text == 'f' ? bits == 32 || bits == 64
                              : (*text == 'u' || *text == 'i') &&
                                    (bits == 8 || bits == 16 || bits == 32 || bits == 64);
    if (!known || place > UINT16_MAX || place % size || place + size > stride)
        return false;
    bool least = has_name(record->least, record->in_least, name);
    bool most = has_name(record->most, record->in_most, name);
    if ((least || most) && (*text == 'f' || bits < 32))
        return false;
    uint64_t sign = *text == 'i' ? 1ull << (bits - 1) : 0, all = bits < 64 ? (1ull << bits) - 1 : UINT64_MAX;
    *field = (struct woven_field){.offset = (uint16_t)place,
                                  .size = (uint8_t)size,
                                  .kind = *text == 'f'   ? FIELD_FLOAT
                                          : *text == 'i' ? FIELD_SIGNED
                                                         : FIELD_UNSIGNED,
                                  .flip = least  ? all ^ sign
                                          : most ? sign
                                                 : 0};
    return true;
}

// Determine what reduce.c has to know about a map. If it doesn't understand the map, all records are kept.
static void read_fields(struct woven_map *map, const struct record *record) {
    struct cursor at = record->in_fields;
    bool whole = map->stride && map->stride % sizeof(uint64_t) == 0;
    if (is(record->type, "histogram"))
        map->reducible = whole && (!map->capacity || (map->capacity == 1 && !map->head));
    if (map->copies || map->log || !whole || record->fields.type != ARRAY ||
        record->fields.number > MOST_FIELDS)
        return;
    map->fields = calloc(record->fields.number + 1, sizeof(*map->fields));
    map->reducible = map->fields != NULL;
    for (; map->reducible && map->field_count < record->fields.number; map->field_count++)
        map->reducible = read_field(&map->fields[map->field_count], record, &at, map->stride);
}

static bool read_map(struct woven *woven, const struct record *record) {
    struct woven_map *map = &woven->maps[woven->map_count];
    *map = (struct woven_map){
        .id = unsigned_of(record->id),
        .capacity = unsigned_of(record->capacity),
        .stride = unsigned_of(record->stride),
        .wanted = unsigned_of(record->wanted),
        .level = is(record->level, "thread") ? LEVEL_THREAD
                 : is(record->level, "warp") ? LEVEL_WARP
                                             : LEVEL_BLOCK,
        .log = is(record->type, "log") && record->stored.type == ARRAY,
        .head = record->head.type == ELSE ? sizeof(uint64_t) : unsigned_of(record->head),
        .copies = unsigned_of(record->copies),
        .knows_repeats = (is(record->type, "array") && is(record->keeps, "last")) ||
                         (is(record->type, "total") && is(record->keeps, "sum")),
        .has_room = is(record->type, "histogram") && record->room.type == UNSIGNED,
        .grows = is(record->type, "log") && is(record->keeps, "all"),
        .ring = unsigned_of(record->ring),
    };
    bool known = is(record->type, "array") || is(record->type, "total") ||
                 ((is(record->type, "histogram") || is(record->type, "table")) && map->copies) || map->log;
    if (!known || map->capacity > 1u << 30 || map->wanted > 1u << 30 || map->stride > 1u << 20 ||
        map->copies > 1u << 16 || map->ring > UINT32_MAX || (map->head && map->head != sizeof(uint64_t)) ||
        (map->level == LEVEL_BLOCK && !is(record->level, "block")))
        return doubt(woven, "it gives an impossible map");
    read_fields(map, record);
    woven->map_count++;
    return true;
}

// Return NULL if there's no code.
static const struct reason *read_reason(struct value code, struct value detail) {
    char *known = keep_text(code), *more = keep_text(detail);
    const struct reason *reason = known ? hook_make_reason(known, more ? more : "") : NULL;
    free(known), free(more);
    return reason;
}

// Record why there's no kernel with probes: use the reason in the kernel's record, or else the first fault.
static void explain(struct woven *woven, const char *kernel) {
    struct cursor cursor = begin(&woven->answer);
    while (cursor.at < cursor.end && !woven->fault) {
        struct record record = read_record(&cursor);
        if (cursor.bad)
            break;
        bool about = is(record.name, kernel) || (is(record.kind, "refused") && record.name.type == ELSE);
        if (about && (is(record.kind, "kernel") || is(record.kind, "refused")))
            woven->fault = read_reason(record.code, record.detail);
        else if (is(record.kind, "diag"))
            woven->fault = read_reason(stage_error, record.text);
    }
    refuse(woven, WHY(pipeline_empty));
}

static bool read_all(struct woven *woven, const char *kernel) {
    if (!choose(woven, kernel, &woven->chosen))
        return false;
    struct cursor cursor = begin(&woven->answer);
    struct record probed = {.kind = none};
    bool inside = false, any = false;
    uint64_t id = 0;
    if (!(woven->maps = calloc(MOST_MAPS, sizeof(*woven->maps))))
        return refuse(woven, WHY(no_memory));
    while (cursor.at < cursor.end) {
        struct record record = read_record(&cursor);
        if (begins_module(&record, id, any)) {
            any = true;
            id = unsigned_of(record.id);
            inside = id == woven->chosen;
        }
        if (!inside)
            continue;
        if ((is(record.kind, "cubin") || is(record.kind, "object")) && record.data.type == BINARY) {
            woven->image = record.data.data;
            woven->image_size = record.data.number;
            woven->plain = record.original.type == BINARY ? record.original.data : NULL;
            woven->plain_size = woven->plain ? record.original.number : 0;
        } else if (is(record.kind, "map")) {
            if (woven->map_count == MOST_MAPS) {
                char detail[64];
                snprintf(detail, sizeof(detail), "it lists more than %d maps", MOST_MAPS);
                return doubt(woven, detail);
            }
            if (!read_map(woven, &record))
                return false;
        } else if (is(record.kind, "kernel") && is(record.name, kernel) && record.params.type == ARRAY)
            probed = record;
    }
    woven->table = keep_text(probed.table);
    woven->room = unsigned_of(probed.room);
    if (probed.code.type == TEXT)
        return (woven->fault = read_reason(probed.code, probed.detail)), false;
    if (!woven->image || probed.added.type != ARRAY || !probed.added.number)
        return false;
    if (!read_params(woven, probed.params, probed.in_params, &woven->params, &woven->param_count, false) ||
        !read_params(woven, probed.added, probed.in_added, &woven->added, &woven->added_count, true) ||
        !read_variables(woven, probed.variables, probed.in_variables) ||
        !read_cluster(woven, probed.cluster, probed.in_cluster))
        return false;
    for (size_t i = 0; i < woven->param_count; i++) {
        size_t end = woven->params[i].offset + woven->params[i].size;
        woven->param_bytes = end > woven->param_bytes ? end : woven->param_bytes;
    }
    return true;
}

bool hook_is_lasting(const struct gpt_bytes *answer) {
    struct cursor cursor = begin(answer);
    while (cursor.at < cursor.end) {
        struct record record = read_record(&cursor);
        if (cursor.bad || (is(record.kind, "diag") && is(record.level, "error")))
            return false;
    }
    return answer->size > 0;
}

const struct reason *hook_read_refusal(const struct gpt_bytes *answer, struct gpt_bytes *found) {
    struct cursor cursor = begin(answer);
    const struct reason *reason = NULL;
    while (cursor.at < cursor.end && !reason) {
        struct record record = read_record(&cursor);
        if (cursor.bad)
            break;
        if (is(record.kind, "refused") && record.name.type == ELSE &&
            (reason = read_reason(record.code, record.detail)))
            *found = (struct gpt_bytes){.data = (char *)record.start.at,
                                        .size = (size_t)(cursor.at - record.start.at)};
    }
    return reason;
}

bool hook_has_growing_log(const struct woven *woven) {
    bool found = false;
    for (size_t i = 0; i < woven->map_count; i++)
        found |= woven->maps[i].grows;
    return found;
}

struct woven *hook_read_woven(struct gpt_bytes *answer, const char *kernel) {
    struct woven *woven = calloc(1, sizeof(*woven));
    if (!woven)
        return NULL;
    woven->answer = *answer;
    *answer = (struct gpt_bytes){0};
    if (!read_all(woven, kernel))
        explain(woven, kernel);
    else if (hook_has_growing_log(woven))
        woven->needed = hook_needed_before(kernel);
    return woven;
}

void hook_free_woven(struct woven *woven) {
    if (!woven)
        return;
    for (size_t i = 0; i < woven->variable_count; i++)
        free((char *)woven->variables[i].name);
    for (size_t i = 0; i < woven->map_count; i++)
        free(woven->maps[i].fields);
    free(woven->params), free(woven->added), free(woven->maps), free(woven->variables);
    free((char *)woven->table);
    gpt_empty(&woven->answer);
    free(woven);
}

// Into the trace

void hook_write_woven(struct woven *woven, uint32_t function, unsigned registers) {
    struct cursor cursor = begin(&woven->answer);
    woven->number = hook_new_id(&hook_watched->kernels);
    for (size_t i = 0; i < woven->map_count; i++)
        woven->maps[i].number = hook_new_id(&hook_watched->maps);
    while (cursor.at < cursor.end) {
        struct record record = read_record(&cursor);
        if (cursor.bad)
            return;
        uint64_t id = unsigned_of(record.id);
        if (is(record.kind, "map") && hook_number_of_map(woven, id))
            hook_retell(record.start, woven, (uint32_t)hook_number_of_map(woven, id), 0, 0);
        else if (is(record.kind, "kernel") && id == woven->chosen)
            hook_retell(record.start, woven, woven->number, function,
                        record.registers.type == UNSIGNED && record.registers_before.type == ELSE ? registers
                                                                                                  : 0);
    }
}

// -- Records of an answer --------------------------------------------------
//
// The trace gets the records of an answer unchanged except for numbers: kernels and maps are numbered
// throughout the process, and parameters refer to maps by these numbers.

uint64_t hook_number_of_map(const struct woven *woven, uint64_t id) {
    for (size_t i = 0; i < woven->map_count; i++)
        if (woven->maps[i].id == id)
            return woven->maps[i].number;
    return 0;
}

static void copy(struct gpt_packer *to, const unsigned char *start, const struct cursor *end) {
    gpt_put_raw(to, start, (size_t)(end->at - start));
}

// Copy a parameter, with the number that its map has in the trace.
static void copy_param(struct gpt_packer *to, struct cursor *from, const struct woven *woven) {
    const unsigned char *whole = from->at;
    struct value map = read_value(from);
    if (map.type != MAP) {
        from->at = whole;
        take_value(from);
        copy(to, whole, from);
        return;
    }
    gpt_put_map(to, map.number);
    for (uint64_t i = 0; i < map.number && !from->bad; i++) {
        const unsigned char *start = from->at;
        struct value key = take_value(from);
        if (!from->bad && is(key, "map")) {
            copy(to, start, from);
            gpt_put_u64(to, hook_number_of_map(woven, unsigned_of(take_value(from))));
        } else {
            take_value(from);
            copy(to, start, from);
        }
    }
}

static void copy_record(struct gpt_packer *to, struct cursor from, const struct woven *woven, uint32_t number,
                        uint32_t function, unsigned before) {
    unsigned char *start = to->at;
    struct value map = read_value(&from);
    gpt_put_map(to, map.number + (function != 0) + (before != 0));
    for (uint64_t i = 0; i < map.number && !from.bad && !to->full; i++) {
        const unsigned char *at = from.at;
        struct value key = take_value(&from);
        copy(to, at, &from);
        at = from.at;
        struct cursor items = from;
        struct value value = take_value(&from), list = read_value(&items);
        if (from.bad)
            break;
        if (is(key, "id")) {
            gpt_put_u64(to, number);
        } else if ((is(key, "maps") || is(key, "added")) && value.type == ARRAY) {
            gpt_put_array(to, list.number);
            for (uint64_t k = 0; k < list.number; k++)
                if (is(key, "maps"))
                    gpt_put_u64(to, hook_number_of_map(woven, unsigned_of(take_value(&items))));
                else
                    copy_param(to, &items, woven);
        } else {
            copy(to, at, &from);
        }
        if (function && is(key, "name")) {
            gpt_put_str(to, "function", strlen("function"));
            gpt_put_u64(to, function);
            function = 0;
        }
        if (before && is(key, "registers")) {
            gpt_put_str(to, "registers_before", strlen("registers_before"));
            gpt_put_u64(to, before);
            before = 0;
        }
    }
    if (to->full || from.bad || function) // not a record, or without a name
        to->at = start, to->full = true;
}

void hook_retell(struct cursor from, const struct woven *woven, uint32_t number, uint32_t function,
                 unsigned before) {
    struct gpt_packer to;
    HOOK_HOLD_SIGNALS;
    bool done = false, nested = hook_writing;
    hook_writing = true;
    for (int try = nested ? TRIES : 0; try < TRIES && !done && hook_open(&to, try); try++) {
        copy_record(&to, from, woven, number, function, before);
        done = !to.full && hook_close(&to);
    }
    hook_writing = nested;
}
