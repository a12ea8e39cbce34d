// Passes on the rows of records. A program reserves rows when it writes a record, and fills them in later.
//
// A row of `calls` or `gpu_times` is passed on once the call has returned. A row with a count is passed on
// whenever the count has grown, with the difference. Other rows are passed on when the process has ended.
// Rows that are passed on together form a record of the same kind as the original.

#include <stdlib.h>

#include "abi/records.h"
#include "follow.h"

struct place {
    uint64_t offset; // in a row
    uint32_t size;   // bytes; 0: none
};

struct rows { // one record's rows
    struct rows *next;
    const unsigned char *at;       // the rows in the file, to which the program keeps writing
    uint64_t count, stride, first; // the first row that wasn't passed on yet
    enum { CALLS, COUNTS, OTHER } way;
    bool at_once; // rows are complete as soon as they start
    struct place start, duration, number;
    uint64_t *passed; // per row: 1 if it was passed on, or the count that was
    size_t head_size;
    unsigned char head[]; // the record's bytes before the length of the rows
};

bool output_put(struct bytes *bytes, const void *data, size_t size) {
    if (bytes->size + size > bytes->room) {
        size_t room = bytes->room ? bytes->room : 64 << 10;
        while (room < bytes->size + size)
            room *= 2;
        unsigned char *more = realloc(bytes->data, room);
        if (!more)
            return false;
        bytes->data = more;
        bytes->room = room;
    }
    if (size)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    return true;
}

static uint64_t load(const unsigned char *row, struct place place) {
    switch (place.size) {
    case 8:
        return __atomic_load_n((const uint64_t *)(row + place.offset), __ATOMIC_ACQUIRE);
    case 4:
        return __atomic_load_n((const uint32_t *)(row + place.offset), __ATOMIC_ACQUIRE);
    default:
        return 0;
    }
}

static void read_field(struct cursor *cursor, struct rows *rows) {
    struct value map = read_value(cursor), name = {0}, type = {0}, offset = {0};
    for (uint64_t i = 0; map.type == MAP && i < map.number && !cursor->bad; i++) {
        struct value key = take_value(cursor);
        *(is(key, "name") ? &name : is(key, "type") ? &type : &offset) = take_value(cursor);
    }
    struct place place = {offset.number, is(type, "u64") ? 8 : is(type, "u32") ? 4 : 0};
    if (is(name, "start"))
        rows->start = place;
    else if (is(name, "begin")) {
        rows->start = place;
        rows->at_once = true;
    } else if (is(name, "duration"))
        rows->duration = place;
    else if (is(name, "count"))
        rows->number = place;
}

static bool lies_in(struct place place, uint64_t stride) {
    return place.size && place.offset % place.size == 0 && place.size <= stride &&
           place.offset <= stride - place.size;
}

struct rows *rows_find(const unsigned char *record, struct cursor body, uint64_t keys,
                       const unsigned char *mapped) {
    struct rows found = {.stride = 0};
    struct value rows = {0};
    const unsigned char *value_at = NULL;
    for (uint64_t i = 0; i < keys && !body.bad; i++) {
        struct value key = take_value(&body);
        struct cursor inside = body;
        struct value value = take_value(&body);
        if (is(key, "fields") && value.type == ARRAY) {
            read_value(&inside);
            for (uint64_t j = 0; j < value.number && !inside.bad; j++)
                read_field(&inside, &found);
        } else if (is(key, "stride")) {
            found.stride = value.number;
        } else if (is(key, "rows") && i + 1 == keys) {
            rows = value;
            value_at = inside.at;
        }
    }
    if (body.bad || rows.type != BINARY || !found.stride || found.stride % 4)
        return NULL;
    found.head_size = (size_t)(value_at - record);
    found.at = mapped + (rows.data - record);
    found.count = rows.number / found.stride;
    bool aligned = (uintptr_t)found.at % 8 == 0 && found.stride % 8 == 0;
    if (aligned && lies_in(found.start, found.stride) && lies_in(found.duration, found.stride))
        found.way = CALLS;
    else
        found.way = aligned && lies_in(found.number, found.stride) ? COUNTS : OTHER;
    struct rows *result = malloc(sizeof(found) + found.head_size);
    found.passed = calloc(found.count + 1, sizeof(*found.passed));
    if (!result || !found.passed) {
        free(found.passed);
        free(result);
        return NULL;
    }
    *result = found;
    memcpy(result->head, record, found.head_size);
    return result;
}

static const unsigned char *row_at(const struct rows *rows, uint64_t row) {
    return rows->at + (size_t)row * rows->stride;
}

static void begin_rows(struct bytes *bytes, const struct rows *rows, size_t size, bool *failed) {
    unsigned char room[8];
    struct gpt_packer head = {room, room + sizeof(room), false};
    gpt_put_head(&head, size, 0, 0, 0xc4, 0xc5);
    *failed |=
        !output_put(bytes, rows->head, rows->head_size) || !output_put(bytes, room, (size_t)(head.at - room));
}

enum { PICKED = 512 }; // rows of a record at most

// Rows that are passed on together: their numbers and current counts.
struct picked {
    uint32_t count;
    uint64_t row[PICKED], counts[PICKED];
};

// Return whether a call may be passed on: it has ended, or its end will never be recorded.
static bool is_call_ready(const struct rows *rows, uint64_t row, bool last) {
    return !rows->passed[row] && (last || rows->at_once || load(row_at(rows, row), rows->duration));
}

// Return whether a row may be passed on now, and mark it as passed on. Counts are marked once they are
// written.
static bool pick(struct rows *rows, uint64_t row, bool last, uint64_t *count) {
    switch (rows->way) {
    case CALLS:
        return is_call_ready(rows, row, last) && (rows->passed[row] = 1);
    case COUNTS:
        return (*count = load(row_at(rows, row), rows->number)) != rows->passed[row];
    default:
        return last && !rows->passed[row]++;
    }
}

// Pick rows, starting at `row`; returns where the next search begins.
static uint64_t pick_rows(struct rows *rows, uint64_t row, bool last, struct picked *picked) {
    for (picked->count = 0; row < rows->count && picked->count < PICKED; row++) {
        if (rows->way == CALLS && !load(row_at(rows, row), rows->start))
            return rows->count; // the rows after it aren't in use either
        if (pick(rows, row, last, &picked->counts[picked->count]))
            picked->row[picked->count++] = row;
    }
    return row;
}

static void put_row(struct bytes *bytes, struct rows *rows, uint64_t row, uint64_t count, bool *failed) {
    *failed |= !output_put(bytes, row_at(rows, row), rows->stride);
    if (rows->way != COUNTS || *failed)
        return;
    uint64_t added = count - rows->passed[row];
    memcpy(bytes->data + bytes->size - rows->stride + rows->number.offset, &added, rows->number.size);
    rows->passed[row] = count;
}

void rows_free(struct rows *list) {
    while (list) {
        struct rows *rows = list;
        list = rows->next;
        free(rows->passed);
        free(rows);
    }
}

uint64_t rows_take(struct rows **list, struct bytes *bytes, bool last, bool *failed) {
    uint64_t records = 0;
    for (struct rows **at = list; *at;) {
        struct rows *rows = *at;
        struct picked picked;
        for (uint64_t row = rows->first; row < rows->count;) {
            row = pick_rows(rows, row, last, &picked);
            if (!picked.count)
                continue;
            begin_rows(bytes, rows, picked.count * rows->stride, failed);
            for (uint32_t i = 0; i < picked.count && !*failed; i++)
                put_row(bytes, rows, picked.row[i], picked.counts[i], failed);
            records++;
        }
        while (rows->way == CALLS && rows->first < rows->count && rows->passed[rows->first])
            rows->first++;
        if (last || rows->first == rows->count) {
            *at = rows->next;
            rows->next = NULL;
            rows_free(rows);
        } else
            at = &rows->next;
    }
    return records;
}

void rows_add(struct rows **list, struct rows *rows) {
    rows->next = *list;
    *list = rows;
}
