// Floating-point instructions on f16, bf16, f16x2 and bf16x2 (PTX ISA, "Half Precision Floating Point
// Instructions"), and on f32x2. Operands are the bits of a number, or of a pair, with the first number in the
// lower half. Each result is as if it were computed exactly and rounded once: in double it's either exact, or
// rounded to odd, which makes the second rounding correct. Every NaN is the canonical 0x7fff.

#ifndef GPT_HOST_HALF_H
#define GPT_HOST_HALF_H

#include "formats.h"

// Return an operand as double, flushed by .ftz.
INLINE double host_half(enum host_format format, uint16_t value, unsigned flags) {
    value = flags & FLAG_ftz ? (uint16_t)host_flush(format, value) : value;
    return format == FORMAT_f16 ? host_widen_f16(value) : (double)as_f32((uint32_t)value << 16);
}

CALLED uint16_t host_half_fma(enum host_format format, uint16_t a, uint16_t b, uint16_t c,
                              enum host_round round, unsigned flags) {
    if (flags & FLAG_oob && (a == 0xffff || b == 0xffff)) // this NaN marks an element out of bounds
        return 0;
    double product = host_half(format, a, flags) * host_half(format, b, flags);
    return (uint16_t)host_narrow(format, host_add_odd(product, host_half(format, c, flags)), round, flags);
}

CALLED uint16_t host_half_add(enum host_format format, uint16_t a, uint16_t b, enum host_round round,
                              unsigned flags) {
    double sum = host_add_odd(host_half(format, a, flags), host_half(format, b, flags));
    return (uint16_t)host_narrow(format, sum, round, flags);
}

CALLED uint16_t host_half_sub(enum host_format format, uint16_t a, uint16_t b, enum host_round round,
                              unsigned flags) {
    return host_half_add(format, a, b ^ 0x8000, round, flags);
}

CALLED uint16_t host_half_mul(enum host_format format, uint16_t a, uint16_t b, enum host_round round,
                              unsigned flags) {
    return (uint16_t)host_narrow(format, host_half(format, a, flags) * host_half(format, b, flags), round,
                                 flags);
}

INLINE uint16_t host_half_abs(enum host_format format, uint16_t a, unsigned flags) {
    a = (uint16_t)(flags & FLAG_ftz ? host_flush(format, a) : a);
    return host_is_nan(format, a) ? 0x7fff : a & 0x7fff;
}
INLINE uint16_t host_half_neg(enum host_format format, uint16_t a, unsigned flags) {
    a = (uint16_t)(flags & FLAG_ftz ? host_flush(format, a) : a);
    return host_is_nan(format, a) ? 0x7fff : a ^ 0x8000;
}
INLINE uint16_t host_half_min(enum host_format format, uint16_t a, uint16_t b, unsigned flags) {
    return (uint16_t)host_extreme(format, a, b, false, flags);
}
INLINE uint16_t host_half_max(enum host_format format, uint16_t a, uint16_t b, unsigned flags) {
    return (uint16_t)host_extreme(format, a, b, true, flags);
}
CALLED uint16_t host_half_ex2(enum host_format format, uint16_t a, unsigned flags) {
    return (uint16_t)host_narrow(format, __builtin_exp2(host_half(format, a, flags)), ROUND_rn, flags);
}
CALLED uint16_t host_half_tanh(enum host_format format, uint16_t a, unsigned flags) {
    return (uint16_t)host_narrow(format, __builtin_tanh(host_half(format, a, flags)), ROUND_rn, flags);
}

// Names by type: f16_add of two numbers, f16x2_add of two pairs.

#define PAIR(low, high) ((uint32_t)(uint16_t)(low) | (uint32_t)(uint16_t)(high) << 16)
#define LOW(pair) ((uint16_t)(pair))
#define HIGH(pair) ((uint16_t)((pair) >> 16))

#define HOST_HALF_1(name, f)                                                                                 \
    INLINE uint16_t f##_##name(uint16_t a, unsigned flags) {                                                 \
        return host_half_##name(FORMAT_##f, a, flags);                                                       \
    }                                                                                                        \
    INLINE uint32_t f##x2_##name(uint32_t a, unsigned flags) {                                               \
        return PAIR(f##_##name(LOW(a), flags), f##_##name(HIGH(a), flags));                                  \
    }
#define HOST_HALF_2(name, f)                                                                                 \
    INLINE uint16_t f##_##name(uint16_t a, uint16_t b, unsigned flags) {                                     \
        return host_half_##name(FORMAT_##f, a, b, flags);                                                    \
    }                                                                                                        \
    INLINE uint32_t f##x2_##name(uint32_t a, uint32_t b, unsigned flags) {                                   \
        return PAIR(f##_##name(LOW(a), LOW(b), flags), f##_##name(HIGH(a), HIGH(b), flags));                 \
    }
#define HOST_HALF_ROUNDED(name, f)                                                                           \
    INLINE uint16_t f##_##name(uint16_t a, uint16_t b, enum host_round round, unsigned flags) {              \
        return host_half_##name(FORMAT_##f, a, b, round, flags);                                             \
    }                                                                                                        \
    INLINE uint32_t f##x2_##name(uint32_t a, uint32_t b, enum host_round round, unsigned flags) {            \
        return PAIR(f##_##name(LOW(a), LOW(b), round, flags), f##_##name(HIGH(a), HIGH(b), round, flags));   \
    }
#define HOST_HALF(f)                                                                                         \
    HOST_HALF_ROUNDED(add, f)                                                                                \
    HOST_HALF_ROUNDED(sub, f)                                                                                \
    HOST_HALF_ROUNDED(mul, f)                                                                                \
    HOST_HALF_1(abs, f)                                                                                      \
    HOST_HALF_1(neg, f)                                                                                      \
    HOST_HALF_1(ex2, f)                                                                                      \
    HOST_HALF_1(tanh, f)                                                                                     \
    HOST_HALF_2(min, f)                                                                                      \
    HOST_HALF_2(max, f)                                                                                      \
    INLINE uint16_t f##_fma(uint16_t a, uint16_t b, uint16_t c, enum host_round round, unsigned flags) {     \
        return host_half_fma(FORMAT_##f, a, b, c, round, flags);                                             \
    }                                                                                                        \
    INLINE uint32_t f##x2_fma(uint32_t a, uint32_t b, uint32_t c, enum host_round round, unsigned flags) {   \
        return PAIR(f##_fma(LOW(a), LOW(b), LOW(c), round, flags),                                           \
                    f##_fma(HIGH(a), HIGH(b), HIGH(c), round, flags));                                       \
    }                                                                                                        \
    INLINE bool f##_compare(enum host_comparison how, uint16_t a, uint16_t b, unsigned flags) {              \
        return host_compare(how, host_half(FORMAT_##f, a, flags), host_half(FORMAT_##f, b, flags));          \
    }                                                                                                        \
    INLINE bool f##x2_low_compare(enum host_comparison how, uint32_t a, uint32_t b, unsigned flags) {        \
        return f##_compare(how, LOW(a), LOW(b), flags);                                                      \
    }                                                                                                        \
    INLINE bool f##x2_high_compare(enum host_comparison how, uint32_t a, uint32_t b, unsigned flags) {       \
        return f##_compare(how, HIGH(a), HIGH(b), flags);                                                    \
    }
HOST_HALF(f16)
HOST_HALF(bf16)

// f32x2

#define HOST_F32X2(name)                                                                                     \
    INLINE uint64_t f32x2_##name(uint64_t a, uint64_t b, enum host_round round, unsigned flags) {            \
        float low = f32_##name(as_f32((uint32_t)a), as_f32((uint32_t)b), round, flags);                      \
        float high = f32_##name(as_f32((uint32_t)(a >> 32)), as_f32((uint32_t)(b >> 32)), round, flags);     \
        return bits_f32(low) | (uint64_t)bits_f32(high) << 32;                                               \
    }
HOST_F32X2(add)
HOST_F32X2(sub)
HOST_F32X2(mul)

INLINE uint64_t f32x2_fma(uint64_t a, uint64_t b, uint64_t c, enum host_round round, unsigned flags) {
    float low = f32_fma(as_f32((uint32_t)a), as_f32((uint32_t)b), as_f32((uint32_t)c), round, flags);
    float high = f32_fma(as_f32((uint32_t)(a >> 32)), as_f32((uint32_t)(b >> 32)),
                         as_f32((uint32_t)(c >> 32)), round, flags);
    return bits_f32(low) | (uint64_t)bits_f32(high) << 32;
}

#endif
