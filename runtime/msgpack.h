// Writing msgpack, for the packers of records.h: the shortest form of everything, as Python writes it.
//
// Safe in a signal handler: no allocation, no lock, no call but memcpy, errno untouched. Nothing is checked
// until the end: once something does not fit, `full` is set and all that follows is dropped.

#ifndef GPT_MSGPACK_H
#define GPT_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct gpt_packer {
    unsigned char *at;  // where the next byte goes
    unsigned char *end; // one past the last that may be written
    bool full;
};

static inline unsigned char *gpt_reserve(struct gpt_packer *buffer, size_t size) {
    unsigned char *at = buffer->at;
    if (buffer->full || size > (size_t)(buffer->end - at)) {
        buffer->full = true;
        return NULL;
    }
    buffer->at += size;
    return at;
}

static inline void gpt_put_raw(struct gpt_packer *buffer, const void *data, size_t size) {
    unsigned char *at = gpt_reserve(buffer, size);
    if (at && size)
        memcpy(at, data, size);
}

// A type byte, and `width` bytes of a number after it, big-endian.
__attribute__((noinline, unused)) static void gpt_put_number(struct gpt_packer *buffer, unsigned char type,
                                                             unsigned width, uint64_t value) {
    unsigned char *at = gpt_reserve(buffer, 1 + width);
    if (!at)
        return;
    *at++ = type;
    while (width--)
        *at++ = (unsigned char)(value >> (8 * width));
}

static inline void gpt_put_u64(struct gpt_packer *buffer, uint64_t value) {
    if (value < 0x80)
        gpt_put_number(buffer, (unsigned char)value, 0, 0);
    else if (value <= UINT8_MAX)
        gpt_put_number(buffer, 0xcc, 1, value);
    else if (value <= UINT16_MAX)
        gpt_put_number(buffer, 0xcd, 2, value);
    else if (value <= UINT32_MAX)
        gpt_put_number(buffer, 0xce, 4, value);
    else
        gpt_put_number(buffer, 0xcf, 8, value);
}

static inline void gpt_put_bool(struct gpt_packer *buffer, bool value) {
    gpt_put_number(buffer, value ? 0xc3 : 0xc2, 0, 0);
}

// Write the head of text, bytes, an array or a map of `size` parts. A size below `limit` is in the type byte
// itself; others follow it in 8 bits (where `type8` is not 0), 16 (`type16`) or 32 (the next type).
static inline void gpt_put_head(struct gpt_packer *buffer, size_t size, unsigned char fix, unsigned limit,
                                unsigned char type8, unsigned char type16) {
    if (size < limit)
        gpt_put_number(buffer, (unsigned char)(fix | size), 0, 0);
    else if (type8 && size <= UINT8_MAX)
        gpt_put_number(buffer, type8, 1, size);
    else if (size <= UINT16_MAX)
        gpt_put_number(buffer, type16, 2, size);
    else if (size <= UINT32_MAX)
        gpt_put_number(buffer, type16 + 1, 4, size);
    else
        buffer->full = true;
}

static inline void gpt_put_str(struct gpt_packer *buffer, const char *data, size_t size) {
    gpt_put_head(buffer, size, 0xa0, 32, 0xd9, 0xda);
    gpt_put_raw(buffer, data, size);
}

static inline void gpt_put_bin(struct gpt_packer *buffer, const void *data, size_t size) {
    gpt_put_head(buffer, size, 0, 0, 0xc4, 0xc5);
    gpt_put_raw(buffer, data, size);
}

static inline void gpt_put_array(struct gpt_packer *buffer, size_t count) {
    gpt_put_head(buffer, count, 0x90, 16, 0, 0xdc);
}

static inline void gpt_put_map(struct gpt_packer *buffer, size_t count) {
    gpt_put_head(buffer, count, 0x80, 16, 0, 0xde);
}

#endif
