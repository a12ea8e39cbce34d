// The trace has the records of an answer as they are, but for numbers: those of kernels and maps count all of
// a process. Parameters name maps by them, too.

#include <string.h>

#include "hook/write/write.h"
#include "probe.h"

uint64_t hook_number_of_map(const struct woven *woven, uint64_t id) {
    for (size_t i = 0; i < woven->map_count; i++)
        if (woven->maps[i].id == id)
            return woven->maps[i].number;
    return 0;
}

static void copy(struct gpt_packer *to, const unsigned char *start, const struct cursor *end) {
    gpt_put_raw(to, start, (size_t)(end->at - start));
}

// A param, with the number of its map in the trace.
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
    if (to->full || from.bad || function) // a record without a name, or that is none
        to->at = start, to->full = true;
}

void hook_retell(struct cursor from, const struct woven *woven, uint32_t number, uint32_t function,
                 unsigned before) {
    struct gpt_packer to;
    HOOK_CALM;
    bool done = false, nested = hook_writing;
    hook_writing = true;
    for (int try = nested ? TRIES : 0; try < TRIES && !done && hook_open(&to, try); try++) {
        copy_record(&to, from, woven, number, function, before);
        done = !to.full && hook_close(&to);
    }
    hook_writing = nested;
}
