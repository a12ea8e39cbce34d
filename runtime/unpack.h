// Reads msgpack from traces, which anybody may have written: every value is checked to lie within the bytes.
// Once one doesn't, `bad` is set, and later results are meaningless. A text or binary value that goes beyond
// the bytes still has its type, its start and its size, because hook/write/totals.c skips what it doesn't
// read: check `bad` before you use its contents.

#ifndef GPT_UNPACK_H
#define GPT_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct value {
    enum { UNSIGNED, TEXT, BINARY, ARRAY, MAP, ELSE } type;
    uint64_t number; // its value, the bytes of text, how many are in an array or map
    const unsigned char *data;
};

struct cursor {
    const unsigned char *at, *end;
    bool bad;
};

static inline uint64_t read_number(struct cursor *cursor, unsigned width) {
    uint64_t number = 0;
    if (width > (size_t)(cursor->end - cursor->at)) {
        cursor->bad = true;
        return 0;
    }
    while (width--)
        number = number << 8 | *cursor->at++;
    return number;
}

// Read the next value; the contents of an array or map follow it.
static inline struct value read_value(struct cursor *cursor) {
    static const signed char widths[32] = {
        // 0xc0: nil, -, false, true, bin 8 16 32, ext 8 16 32, float 32 64, uint 8 16 32 64
        0, -1, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8,
        // 0xd0: int 8 16 32 64, fixext 1 2 4 8 16, str 8 16 32, array 16 32, map 16 32
        1, 2, 4, 8, 2, 3, 5, 9, 17, 1, 2, 4, 2, 4, 2, 4};
    struct value value = {ELSE, 0, NULL};
    unsigned char type = (unsigned char)read_number(cursor, 1);
    if (type < 0x80)
        return (struct value){UNSIGNED, type, NULL};
    if (type < 0x90)
        return (struct value){MAP, type & 0xf, NULL};
    if (type < 0xa0)
        return (struct value){ARRAY, type & 0xf, NULL};
    if (type >= 0xe0)
        return value;
    uint64_t size = type & 0x1f;
    if (type >= 0xc0) {
        int width = widths[type - 0xc0];
        if (width < 0 || width > 8) {
            cursor->bad |= width < 0;
            read_number(cursor, 8), read_number(cursor, (unsigned)(width - 8));
            return value;
        }
        size = read_number(cursor, (unsigned)width);
    }
    if (type >= 0xcc && type <= 0xcf)
        return (struct value){UNSIGNED, size, NULL};
    if (type >= 0xdc)
        return (struct value){type < 0xde ? ARRAY : MAP, size, NULL};
    bool text = type < 0xc0 || (type >= 0xd9 && type <= 0xdb), binary = type >= 0xc4 && type <= 0xc6;
    if (!text && !binary) {
        if (type >= 0xc7 && type <= 0xc9) // its type and its bytes
            size++;
        else
            return value;
    }
    value = (struct value){text ? TEXT : binary ? BINARY : ELSE, size, cursor->at};
    if (size > (size_t)(cursor->end - cursor->at))
        cursor->bad = true;
    else
        cursor->at += size;
    return value;
}

static inline void skip_value(struct cursor *cursor) {
    for (uint64_t left = 1; left && !cursor->bad; left--) {
        struct value value = read_value(cursor);
        if (value.type == ARRAY || value.type == MAP)
            left += value.type == MAP ? 2 * value.number : value.number;
    }
}

// Read the next value and skip its contents.
static inline struct value take_value(struct cursor *cursor) {
    struct cursor inside = *cursor;
    skip_value(cursor);
    return read_value(&inside);
}

// Return the value of a nonnegative integer, or 0 for anything else.
static inline uint64_t unsigned_of(struct value value) { return value.type == UNSIGNED ? value.number : 0; }

static inline bool is(struct value value, const char *text) {
    return value.type == TEXT && value.number == strlen(text) && !memcmp(value.data, text, value.number);
}

#endif
