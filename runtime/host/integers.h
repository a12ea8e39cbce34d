// Integer instructions that C has no operator for: saturation, division, halves and bytes of words, bits,
// video. A function named after an opcode does what the PTX manual says about it.

#ifndef GPT_HOST_INTEGERS_H
#define GPT_HOST_INTEGERS_H

#include "device.h"

typedef unsigned __int128 uint128_t;
typedef __int128 int128_t;

INLINE int32_t saturate_s32(int64_t value) {
    return (int32_t)(value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value);
}

// Clamp to the integers that fit in `bits`
INLINE int128_t saturate(int128_t value, unsigned bits, bool is_signed) {
    int128_t most = (int128_t)(~0ull >> (64 - bits + is_signed)), least = is_signed ? -most - 1 : 0;
    return value > most ? most : value < least ? least : value;
}

#define PACK(name, bits, is_signed)                                                                          \
    INLINE uint32_t pack_##name(int64_t a, int64_t b, uint32_t c) {                                          \
        uint32_t mask = (1u << bits) - 1;                                                                    \
        uint32_t high = (uint32_t)saturate(a, bits, is_signed) & mask;                                       \
        return c << 2 * bits | high << bits | ((uint32_t)saturate(b, bits, is_signed) & mask);               \
    }
PACK(_u4, 4, 0)
PACK(_s4, 4, 1)
PACK(_u2, 2, 0)
PACK(_s2, 2, 1)
#undef PACK

INLINE int32_t relu_s32(int32_t value) { return value < 0 ? 0 : value; }

INLINE int64_t low24_s32(int32_t value) { return value << 8 >> 8; }
INLINE uint64_t low24_u32(uint32_t value) { return value & 0xffffff; }

#define DIVISION(name, type)                                                                                 \
    INLINE type div_##name(type a, type b) {                                                                 \
        return b == 0 ? (type) - 1 : (type) - 1 < 0 && b == (type) - 1 ? (type)(0 - a) : (type)(a / b);      \
    }                                                                                                        \
    INLINE type rem_##name(type a, type b) {                                                                 \
        return b == 0 ? (type) - 1 : (type) - 1 < 0 && b == (type) - 1 ? 0 : (type)(a % b);                  \
    }
DIVISION(u16, uint16_t)
DIVISION(s16, int16_t)
DIVISION(u32, uint32_t)
DIVISION(s32, int32_t)
DIVISION(u64, uint64_t)
DIVISION(s64, int64_t)
#undef DIVISION

// Operations on each half of a word
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define ADD(a, b) ((a) + (b))
#define each_as(type, a, b, operation, relu)                                                                 \
    (each_half(operation((type)(a), (type)(b)), relu) |                                                      \
     each_half(operation((type)((a) >> 16), (type)((b) >> 16)), relu) << 16)
#define each_half(value, relu) ((uint32_t)(uint16_t)((relu) && (value) < 0 ? 0 : (value)))
#define each_u16x2(a, b, operation, relu) each_as(uint16_t, a, b, operation, relu)
#define each_s16x2(a, b, operation, relu) each_as(int16_t, a, b, operation, relu)
#define each_16(a, b, operation) each_as(uint16_t, a, b, operation, 0)

INLINE int32_t dot_item(uint32_t word, unsigned shift, unsigned bits, bool is_signed) {
    uint32_t item = word >> shift << (32 - bits);
    return is_signed ? (int32_t)item >> (32 - bits) : (int32_t)(item >> (32 - bits));
}

INLINE uint32_t dp4a(uint32_t a, uint32_t b, uint32_t c, bool a_signed, bool b_signed) {
    for (unsigned i = 0; i < 32; i += 8)
        c += (uint32_t)(dot_item(a, i, 8, a_signed) * dot_item(b, i, 8, b_signed));
    return c;
}

INLINE uint32_t dp2a(uint32_t a, uint32_t b, uint32_t c, unsigned half, bool a_signed, bool b_signed) {
    for (unsigned i = 0; i < 2; i++)
        c += (uint32_t)(dot_item(a, 16 * i, 16, a_signed) * dot_item(b, half + 8 * i, 8, b_signed));
    return c;
}

INLINE uint32_t funnel_wrap(uint32_t count) { return count & 31; }
INLINE uint32_t funnel_clamp(uint32_t count) { return count < 32 ? count : 32; }

INLINE uint32_t prmt_byte(uint64_t bytes, uint32_t selector) {
    uint32_t byte = bytes >> 8 * (selector & 7) & 255;
    return selector & 8 ? (byte & 128 ? 255 : 0) : byte;
}

INLINE uint32_t prmt(uint32_t a, uint32_t b, uint32_t c) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    return prmt_byte(bytes, c) | prmt_byte(bytes, c >> 4) << 8 | prmt_byte(bytes, c >> 8) << 16 |
           prmt_byte(bytes, c >> 12) << 24;
}

// Return the selectors of prmt's modes for the two lowest bits of c
INLINE uint32_t prmt_f4e(uint32_t c) { return 0x3210 + 0x1111 * c; }
INLINE uint32_t prmt_b4e(uint32_t c) { return (0x5670 + 0x1111 * c) & 0x7777; }
INLINE uint32_t prmt_rc8(uint32_t c) { return 0x1111 * c; }
INLINE uint32_t prmt_rc16(uint32_t c) { return c & 1 ? 0x3232 : 0x1010; }
INLINE uint32_t prmt_ecl(uint32_t c) { return (uint32_t)(0x3333322232113210 >> 16 * c & 0xffff); }
INLINE uint32_t prmt_ecr(uint32_t c) { return (uint32_t)(0x3210221011100000 >> 16 * c & 0xffff); }

INLINE uint64_t brev(uint64_t bits) {
    bits = (bits >> 1 & 0x5555555555555555) | (bits & 0x5555555555555555) << 1;
    bits = (bits >> 2 & 0x3333333333333333) | (bits & 0x3333333333333333) << 2;
    bits = (bits >> 4 & 0x0f0f0f0f0f0f0f0f) | (bits & 0x0f0f0f0f0f0f0f0f) << 4;
    return __builtin_bswap64(bits);
}

#define bfind(bits) bfind_bits(sizeof(bits) == 4 ? (uint32_t)(bits) : (uint64_t)(bits))
INLINE uint32_t bfind_bits(uint64_t bits) { return bits ? 63 - (uint32_t)__builtin_clzll(bits) : ~0u; }
INLINE uint32_t bfind_shift(uint64_t bits, uint32_t size) {
    return bits ? size - 64 + (uint32_t)__builtin_clzll(bits) : ~0u;
}

INLINE uint32_t fns(uint32_t mask, uint32_t base, int32_t offset) {
    if (offset == 0)
        return base < 32 && mask >> base & 1 ? base : ~0u;
    if (offset == INT32_MIN) // as on an H200
        return 0;
    int64_t count = (offset > 0 ? (int64_t)offset : -(int64_t)offset) - 1;
    for (int64_t at = base; at >= 0 && at < 32; at += offset > 0 ? 1 : -1)
        if (mask >> at & 1 && count-- == 0)
            return (uint32_t)at;
    return ~0u;
}

// Positions and lengths have 8 bits for 32-bit words. The manual says so for 64-bit words too, but there an
// H200 uses all bits.
INLINE uint32_t host_field(uint32_t number, uint32_t bits) {
    return bits == 32 ? number & 255 : MIN(number, 255);
}

INLINE uint64_t bfe(uint64_t a, uint32_t position, uint32_t length, uint32_t bits) {
    position = host_field(position, bits);
    length = host_field(length, bits);
    a = position < bits ? a >> position : 0;
    return length < bits ? a & ((1ull << length) - 1) : a;
}

INLINE uint64_t bfe_signed(int64_t a, uint32_t position, uint32_t length, uint32_t bits) {
    position = host_field(position, bits);
    length = host_field(length, bits);
    if (length == 0)
        return 0;
    uint32_t last = MIN(position + length - 1, bits - 1);
    a = (int64_t)((uint64_t)a << (63 - last)) >> (63 - last); // the field's highest bit is its sign
    return (uint64_t)(a >> (position < bits ? position : 63));
}

INLINE uint64_t bfi(uint64_t a, uint64_t b, uint32_t position, uint32_t length, uint32_t bits) {
    position = host_field(position, bits);
    length = host_field(length, bits);
    if (position >= bits || length == 0)
        return b;
    uint64_t mask = (length < 64 ? (1ull << length) - 1 : ~0ull) << position;
    return (b & ~mask) | (a << position & mask);
}

INLINE uint32_t szext_u32(uint32_t a, uint32_t b, bool clamp) {
    return clamp && b >= 32 ? a : a & ((1u << (b & 31)) - 1);
}

INLINE uint32_t szext_s32(uint32_t a, uint32_t b, bool clamp) {
    uint32_t size = b & 31;
    if (clamp && b >= 32)
        return a;
    return size ? (uint32_t)((int32_t)(a << (32 - size)) >> (32 - size)) : 0;
}

INLINE uint32_t bmsk(uint32_t a, uint32_t b, bool clamp) {
    uint32_t first = clamp && a >= 32 ? 0 : ~0u << (a & 31);
    uint32_t end = (a & 31) + (b & 31);
    bool over = end >= 32 || (clamp && (a >= 32 || b >= 32));
    return first & (over ? ~0u : ~(~0u << end));
}

// Video instructions: operations on parts of words, computed in 64 bits
INLINE int64_t vadd(int64_t a, int64_t b, bool clamp) { return (void)clamp, a + b; }
INLINE int64_t vsub(int64_t a, int64_t b, bool clamp) { return (void)clamp, a - b; }
INLINE int64_t vabsdiff(int64_t a, int64_t b, bool clamp) { return (void)clamp, a < b ? b - a : a - b; }
INLINE int64_t vmin(int64_t a, int64_t b, bool clamp) { return (void)clamp, MIN(a, b); }
INLINE int64_t vmax(int64_t a, int64_t b, bool clamp) { return (void)clamp, MAX(a, b); }
INLINE int64_t host_shift(int64_t b, bool clamp) {
    return !clamp ? b & 31 : (uint32_t)b < 32 ? (uint32_t)b : 32;
}
INLINE int64_t vshl(int64_t a, int64_t b, bool clamp) {
    return (int64_t)((uint64_t)a << host_shift(b, clamp));
}
INLINE int64_t vshr(int64_t a, int64_t b, bool clamp) { return a >> host_shift(b, clamp); }
INLINE int64_t vavrg(int64_t a, int64_t b, bool clamp) { return (void)clamp, (a + b + (a + b >= 0)) >> 1; }
#define VSET(name, operator)                                                                                 \
    INLINE int64_t vset##name(int64_t a, int64_t b, bool clamp) { return (void)clamp, a operator b; }
VSET(_eq, ==)
VSET(_ne, !=)
VSET(_lt, <)
VSET(_le, <=)
VSET(_gt, >)
VSET(_ge, >=)
#undef VSET

// Return the lowest 34 bits, sign-extended: what `vshl.sat` limits
INLINE int64_t video_34(int64_t value) { return (int64_t)((uint64_t)value << 30) >> 30; }
// Apply `.sat` to a part of the result: its upper limit only, so that a negative value becomes the largest
INLINE uint64_t video_saturate(int64_t value, unsigned bits) {
    return MIN((uint64_t)value, ((uint64_t)1 << bits) - 1);
}

INLINE int64_t video_part(uint64_t words, uint32_t number, unsigned bits, bool is_signed) {
    uint64_t part = words >> bits * number << (64 - bits);
    return is_signed ? (int64_t)part >> (64 - bits) : (int64_t)(part >> (64 - bits));
}

// The hex digits of `select_a` and `select_b` select a part of b:a for each lane.
INLINE uint32_t video_lanes(int64_t (*operate)(int64_t, int64_t, bool), unsigned lanes, uint32_t a,
                            uint32_t b, uint32_t c, uint32_t select_a, uint32_t select_b, uint32_t mask,
                            bool a_signed, bool b_signed, bool is_signed, bool saturates, bool sums) {
    uint64_t words = (uint64_t)b << 32 | a;
    unsigned bits = 32 / lanes;
    uint32_t d = c;
    for (unsigned i = 0; i < lanes; i++) {
        int64_t value = operate(video_part(words, select_a >> 4 * i & 7, bits, a_signed),
                                video_part(words, select_b >> 4 * i & 7, bits, b_signed), 0);
        value = saturates ? (int64_t)saturate(value, bits, is_signed) : value;
        if (mask >> i & 1)
            d = sums ? d + (uint32_t)value : (uint32_t)bfi((uint64_t)value, d, bits * i, bits, 32);
    }
    return d;
}
#define VIDEO_add(a, b) ((a) + (b))
#define VIDEO_min(a, b) MIN(a, b)
#define VIDEO_max(a, b) MAX(a, b)

#endif
