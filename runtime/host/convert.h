// The cvt instruction, as gpt/asm/host/floating.py uses it. formats.h has the conversions themselves. With
// .ftz, only f32 values are flushed, whether they're operands or results.

#ifndef GPT_HOST_CONVERT_H
#define GPT_HOST_CONVERT_H

#include "formats.h"

#define IS_SIGNED(type) ((type) - 1 < 1)

// The integer that a NaN is converted to
#define NAN_INTEGER(type, source)                                                                            \
    (sizeof(type) == 8 || sizeof(source) == 8 ? 1ull << (8 * sizeof(type) - 1) : 0)

// Convert operands of any type to double. With FLAG_payload, a NaN keeps its payload.
enum { KEEP_f16 = 0, KEEP_bf16 = 0, KEEP_f32 = 0, KEEP_f64 = FLAG_payload };
INLINE double read_f16(uint16_t value, unsigned flags) { return (void)flags, host_widen_f16(value); }
INLINE double read_bf16(uint16_t value, unsigned flags) {
    return (void)flags, (double)as_f32((uint32_t)value << 16);
}
INLINE double read_f32(float value, unsigned flags) {
    return (double)(flags & FLAG_ftz ? host_f32_result(host_f32_flush(value), 0) : value);
}
INLINE double read_f64(double value, unsigned flags) { return (void)flags, value; }

#define LOW_f16x2(value, flags) read_f16(LOW(value), flags)
#define HIGH_f16x2(value, flags) read_f16(HIGH(value), flags)
#define LOW_bf16x2(value, flags) read_bf16(LOW(value), flags)
#define HIGH_bf16x2(value, flags) read_bf16(HIGH(value), flags)

// Convert a double to a result of any type.
INLINE uint16_t write_f16(double value, enum host_round round, unsigned flags) {
    return (uint16_t)host_narrow(FORMAT_f16, value, round, flags & ~(unsigned)FLAG_ftz);
}
INLINE uint16_t write_bf16(double value, enum host_round round, unsigned flags) {
    return (uint16_t)host_narrow(FORMAT_bf16, value, round, flags & ~(unsigned)FLAG_ftz);
}
#define write_f16x2 write_f16
#define write_bf16x2 write_bf16
INLINE float write_f32(double value, enum host_round round, unsigned flags) {
    if (round == ROUND_rn && !(flags & (FLAG_ftz | FLAG_payload)))
        return host_f32_result((float)value, flags);
    return as_f32((uint32_t)host_narrow(FORMAT_f32, value, round, flags));
}
INLINE double write_f64(double value, enum host_round round, unsigned flags) {
    (void)round;
    return !(flags & FLAG_sat) ? value : value > 0 ? value < 1 ? value : 1 : 0;
}

// With .rna, a NaN keeps its upper bits, as on an H200.
CALLED uint32_t write_tf32(float value, enum host_round round, unsigned flags) {
    if (round == ROUND_rna && value != value)
        return bits_f32(value) & 0xffffe000;
    return (uint32_t)host_narrow(FORMAT_tf32, (double)value, round, flags) << 13;
}

// Convert an integer to a floating-point result.
INLINE uint16_t integer_f16(uint64_t value, bool is_signed, enum host_round round, unsigned flags) {
    return (uint16_t)host_from_integer(FORMAT_f16, value, is_signed, round, flags);
}
INLINE uint16_t integer_bf16(uint64_t value, bool is_signed, enum host_round round, unsigned flags) {
    return (uint16_t)host_from_integer(FORMAT_bf16, value, is_signed, round, flags);
}
INLINE float integer_f32(uint64_t value, bool is_signed, enum host_round round, unsigned flags) {
    if (round == ROUND_rn)
        return host_f32_result(is_signed ? (float)(int64_t)value : (float)value, flags);
    return as_f32((uint32_t)host_from_integer(FORMAT_f32, value, is_signed, round, flags));
}
INLINE double integer_f64(uint64_t value, bool is_signed, enum host_round round, unsigned flags) {
    return as_f64(host_from_integer(FORMAT_f64, value, is_signed, round, flags));
}

// Return two numbers of 8, 6 or 4 bits, each in `width` bits. The first is the upper one.
CALLED uint16_t narrow_two(enum host_format format, int width, double a, double b, unsigned flags) {
    flags |= FLAG_satfinite;
    return (uint16_t)(host_narrow(format, a, ROUND_rn, flags) << width |
                      host_narrow(format, b, ROUND_rn, flags));
}

// Convert two numbers of `width` bits each to a pair of f16. A NaN becomes the canonical NaN.
CALLED uint32_t widen_two(enum host_format format, int width, uint32_t value, unsigned flags) {
    uint32_t mask = (1u << width) - 1;
    return PAIR(host_narrow(FORMAT_f16, host_widen(format, value & mask), ROUND_rn, flags),
                host_narrow(FORMAT_f16, host_widen(format, value >> width & mask), ROUND_rn, flags));
}

// Convert to ue8m0, which encodes 2^(encoding - 127); 0xff is NaN. The sign is dropped, and numbers below
// 2^-127 become 2^-127.
CALLED uint8_t host_ue8m0(double value, enum host_round round, unsigned flags) {
    if (value != value)
        return 0xff;
    uint64_t bits = bits_f64(__builtin_fabs(value));
    if (bits <= bits_f64(0x1p-127))
        return 0;
    uint64_t exponent = (bits >> 52) - 896 + (round == ROUND_rp && bits << 12);
    return exponent < 0xff ? (uint8_t)exponent : flags & FLAG_satfinite ? 0xfe : 0xff;
}

INLINE uint16_t bf16_of_ue8m0(unsigned encoding) {
    return (uint16_t)(encoding == 0xff ? 0x7fff : encoding ? encoding << 7 : 0x40);
}

#endif
