// Floating-point instructions on f32 and f64, exact according to the PTX ISA ("Floating Point Instructions"),
// and everything else that code from gpt/asm/host/floating.py calls. To be compiled with -ffp-contract=off,
// and linked with -lm.
//
// If an f32 result is NaN, it's the canonical 0x7fffffff. PTX doesn't define the bits of an f64 NaN, so we
// return the same as an H200: the operand that's NaN, made quiet, or 0xfff8000000000000 if none is. If
// several operands are NaN, it's the second one, or in fma the third if the second isn't NaN; in div, it's
// the first. .ftz flushes operands and result.
//
// Approximate functions are computed in double and rounded. Their error is within the bounds in the manual,
// but hardware returns other bits.
//
// The processor's own instructions are needed for rounding modes that C doesn't have, and for .ftz near the
// least normal number (arch_math.h).

#ifndef GPT_HOST_MATH_H
#define GPT_HOST_MATH_H

#include "formats.h"

#include <math.h>

#include "arch_math.h"

#define NAN_F32 as_f32(0x7fffffff)

// Apply modifiers to a result: .sat gives neither NaN nor -0.
INLINE float host_f32_result(float value, unsigned flags) {
    if (flags & FLAG_sat)
        return value > 0 ? value < 1 ? value : 1 : 0;
    return value == value ? value : NAN_F32;
}

INLINE float host_f32_flushed(float value, unsigned flags) {
    return flags & FLAG_ftz ? host_f32_flush(value) : value;
}

// True if the result of C's operator is right. It may be wrong near the smallest normal number, because C
// can't tell whether the value was below it before rounding.
#define HOST_IS_PLAIN(result)                                                                                \
    (round == ROUND_rn && (!(flags & FLAG_ftz) || !(__builtin_fabsf(result) <= 0x1p-126f)))

INLINE double host_f64_result(double result, double first, double second, double third) {
    if (UNLIKELY(result != result))
        return host_quiet(first != first     ? first
                          : second != second ? second
                          : third != third   ? third
                                             : result);
    return result;
}

#define HOST_F32(name, plain, first, second)                                                                 \
    INLINE float f32_##name(float a, float b, enum host_round round, unsigned flags) {                       \
        a = host_f32_flushed(a, flags), b = host_f32_flushed(b, flags);                                      \
        float result = plain;                                                                                \
        return host_f32_result(HOST_IS_PLAIN(result) ? result : host_f32_##name(a, b, round, flags), flags); \
    }                                                                                                        \
    INLINE double f64_##name(double a, double b, enum host_round round, unsigned flags) {                    \
        (void)flags;                                                                                         \
        return host_f64_result(round == ROUND_rn ? plain : host_f64_##name(a, b, round, 0), first, second,   \
                               0);                                                                           \
    }
HOST_F32(add, a + b, b, a)
HOST_F32(sub, a - b, b, a)
HOST_F32(mul, a *b, b, a)
HOST_F32(div, a / b, a, b)

INLINE float f32_fma(float a, float b, float c, enum host_round round, unsigned flags) {
    a = host_f32_flushed(a, flags), b = host_f32_flushed(b, flags), c = host_f32_flushed(c, flags);
    float result = round == ROUND_rn ? __builtin_fmaf(a, b, c) : 0;
    return host_f32_result(HOST_IS_PLAIN(result) ? result : host_f32_fma(a, b, c, round, flags), flags);
}

INLINE double f64_fma(double a, double b, double c, enum host_round round, unsigned flags) {
    (void)flags;
    return host_f64_result(round == ROUND_rn ? __builtin_fma(a, b, c) : host_f64_fma(a, b, c, round, 0), b, c,
                           a);
}

INLINE float f32_rcp(float a, enum host_round round, unsigned flags) { return f32_div(1, a, round, flags); }
INLINE double f64_rcp(double a, enum host_round round, unsigned flags) { return f64_div(1, a, round, flags); }

// A square root is never near the smallest normal number.
INLINE float f32_sqrt(float a, enum host_round round, unsigned flags) {
    a = host_f32_flushed(a, flags);
    return host_f32_result(round == ROUND_rn ? __builtin_sqrtf(a) : host_f32_sqrt(a, a, round, 0), flags);
}
INLINE double f64_sqrt(double a, enum host_round round, unsigned flags) {
    (void)flags;
    return round == ROUND_rn ? __builtin_sqrt(a) : host_f64_sqrt(a, a, round, 0);
}

INLINE float f32_abs(float a, unsigned flags) {
    return host_f32_result(__builtin_fabsf(host_f32_flushed(a, flags)), 0);
}
INLINE float f32_neg(float a, unsigned flags) { return host_f32_result(-host_f32_flushed(a, flags), 0); }
INLINE double f64_abs(double a, unsigned flags) {
    return (void)flags, a == a ? __builtin_fabs(a) : host_quiet(a);
}
INLINE double f64_neg(double a, unsigned flags) { return (void)flags, a == a ? -a : host_quiet(a); }

// Return the second operand with the sign of the first.
INLINE float f32_copysign(float a, float b) { return __builtin_copysignf(b, a); }
INLINE double f64_copysign(double a, double b) { return __builtin_copysign(b, a); }

// min and max of encodings. -0 is less than +0; a number is preferred to a NaN, except with .NaN; two NaNs
// give the canonical one. .xorsign.abs compares magnitudes and takes the sign of the product, including a
// NaN's sign.
CALLED uint64_t host_extreme(enum host_format format, uint64_t a, uint64_t b, bool greatest, unsigned flags) {
    uint64_t sign = host_sign(format), product = (a ^ b) & sign;
    if (flags & FLAG_ftz)
        a = host_flush(format, a), b = host_flush(format, b);
    bool no_a = host_is_nan(format, a), no_b = host_is_nan(format, b);
    if (no_a || no_b) {
        if (flags & FLAG_NaN || (no_a && no_b))
            return format == FORMAT_f64 ? b | 1ull << 51 : host_formats[format].nan;
        a = b = no_a ? b : a;
    }
    if (flags & (FLAG_xorsign | FLAG_abs))
        a &= ~sign, b &= ~sign;
    int64_t place_a = (int64_t)(a & ~sign), place_b = (int64_t)(b & ~sign);
    place_a = a & sign ? ~place_a : place_a;
    place_b = b & sign ? ~place_b : place_b;
    uint64_t found = (place_a < place_b) != greatest ? a : b;
    return flags & FLAG_xorsign ? found | product : found;
}

#define HOST_EXTREMES(type, format, bits)                                                                    \
    INLINE type format##_min(type a, type b, unsigned flags) {                                               \
        return as_##format(                                                                                  \
            (bits)host_extreme(FORMAT_##format, bits_##format(a), bits_##format(b), false, flags));          \
    }                                                                                                        \
    INLINE type format##_max(type a, type b, unsigned flags) {                                               \
        return as_##format(                                                                                  \
            (bits)host_extreme(FORMAT_##format, bits_##format(a), bits_##format(b), true, flags));           \
    }
HOST_EXTREMES(float, f32, uint32_t)
HOST_EXTREMES(double, f64, uint64_t)

// Three operands. If the result is NaN, neither its sign nor its origin shows.
INLINE float f32_min_3(float a, float b, float c, unsigned flags) {
    return f32_min(f32_min(a, b, flags), c, flags);
}
INLINE float f32_max_3(float a, float b, float c, unsigned flags) {
    return f32_max(f32_max(a, b, flags), c, flags);
}

// redux on f32: all lanes have the same operation.
struct host_extreme_f32 {
    float value;
    bool greatest;
    unsigned flags;
};

static __attribute__((unused)) void host_reduce_f32(void *const data[HOST_WARP], uint32_t mask) {
    struct host_extreme_f32 *first = data[__builtin_ctz(mask)];
    float all = first->value;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        float own = ((struct host_extreme_f32 *)data[__builtin_ctz(rest)])->value;
        all = first->greatest ? f32_max(all, own, first->flags) : f32_min(all, own, first->flags);
    }
    for (uint32_t rest = mask; rest; rest &= rest - 1)
        ((struct host_extreme_f32 *)data[__builtin_ctz(rest)])->value = all;
}

// testp, of an f32's or f64's bits. Zeros count as normal.
enum host_class { IS_finite, IS_infinite, IS_number, IS_notanumber, IS_normal, IS_subnormal };

INLINE bool host_is(enum host_class class, enum host_format format, uint64_t encoding) {
    uint64_t magnitude = encoding & (host_sign(format) - 1), greatest = host_formats[format].greatest;
    bool small = magnitude && !(magnitude >> host_formats[format].fraction);
    switch (class) {
    case IS_finite:
        return magnitude <= greatest;
    case IS_infinite:
        return magnitude == greatest + 1;
    case IS_number:
        return magnitude <= greatest + 1;
    case IS_notanumber:
        return magnitude > greatest + 1;
    case IS_normal:
        return magnitude <= greatest && !small;
    default:
        return small;
    }
}

// Comparisons: false if an operand is NaN, or true with a u in their name.
enum host_comparison {
    COMPARE_eq,
    COMPARE_ne,
    COMPARE_lt,
    COMPARE_le,
    COMPARE_gt,
    COMPARE_ge,
    COMPARE_equ,
    COMPARE_neu,
    COMPARE_ltu,
    COMPARE_leu,
    COMPARE_gtu,
    COMPARE_geu,
    COMPARE_num,
    COMPARE_nan,
};

INLINE bool host_compare(enum host_comparison how, double a, double b) {
    switch (how) {
    case COMPARE_eq:
        return a == b;
    case COMPARE_ne:
        return a < b || a > b;
    case COMPARE_lt:
        return a < b;
    case COMPARE_le:
        return a <= b;
    case COMPARE_gt:
        return a > b;
    case COMPARE_ge:
        return a >= b;
    case COMPARE_equ:
        return !(a < b || a > b);
    case COMPARE_neu:
        return a != b;
    case COMPARE_ltu:
        return !(a >= b);
    case COMPARE_leu:
        return !(a > b);
    case COMPARE_gtu:
        return !(a <= b);
    case COMPARE_geu:
        return !(a < b);
    case COMPARE_num:
        return a == a && b == b;
    default:
        return a != a || b != b;
    }
}

INLINE bool f64_compare(enum host_comparison how, double a, double b, unsigned flags) {
    (void)flags;
    return host_compare(how, a, b);
}
INLINE bool f32_compare(enum host_comparison how, float a, float b, unsigned flags) {
    return host_compare(how, (double)host_f32_flushed(a, flags), (double)host_f32_flushed(b, flags));
}

// The values that set writes for true, also in each half of a pair.
enum {
    TRUE_u16 = 0xffff,
    TRUE_s16 = -1,
    TRUE_s32 = -1,
    TRUE_f32 = 1,
    TRUE_f16 = 0x3c00,
    TRUE_bf16 = 0x3f80,
    HALF_u32 = 0xffff,
    HALF_s32 = 0xffff,
    HALF_f16x2 = TRUE_f16,
    HALF_bf16x2 = TRUE_bf16,
};
#define TRUE_u32 0xffffffff

// Approximations

#define HOST_APPROXIMATE(name, expression)                                                                   \
    CALLED float f32_##name##_approx(float value, unsigned flags) {                                          \
        double a = (double)host_f32_flushed(value, flags);                                                   \
        return host_f32_result(host_f32_flushed((float)(expression), flags), 0);                             \
    }
HOST_APPROXIMATE(rcp, 1 / a)
HOST_APPROXIMATE(sqrt, __builtin_sqrt(a))
HOST_APPROXIMATE(rsqrt, 1 / __builtin_sqrt(a))
HOST_APPROXIMATE(lg2, __builtin_log2(a))
HOST_APPROXIMATE(ex2, __builtin_exp2(a))
HOST_APPROXIMATE(tanh, __builtin_tanh(a))

// sin.approx and cos.approx turn radians into turns with a multiplication that rounds toward zero, and keep
// 25 bits of the fraction of a turn. So the smallest operands, subnormal or not, count as 0.
CALLED float host_wave(float value, unsigned quarters) {
    double turns = __builtin_trunc((double)f32_mul(value, 0x1.45f306p-3f, ROUND_rz, 0) * 0x1p25);
    double rest = __builtin_copysign(turns - __builtin_trunc(turns * 0x1p-25) * 0x1p25, turns);
    if (rest != rest)
        return host_f32_result((float)rest, 0);
    int quarter = (int)(rest * 0x1p-23);
    double angle = (rest - quarter * 0x1p23) * (0x1.921fb54442d18p0 * 0x1p-23);
    quarters += (unsigned)quarter;
    double result = quarters & 1 ? __builtin_cos(angle) : __builtin_sin(angle);
    return (float)(quarters & 2 ? 0 - result : result);
}
INLINE float f32_sin_approx(float value, unsigned flags) {
    (void)flags;
    return host_wave(value, 0);
}
INLINE float f32_cos_approx(float value, unsigned flags) {
    (void)flags;
    return host_wave(value, 1);
}

// div.approx computes a * (1 / b), so the result is 0 if |b| > 2^126. div.full scales its operands first.
INLINE float f32_div_approx(float a, float b, unsigned flags) {
    if (__builtin_fabsf(b) > 0x1p126f && __builtin_fabsf(b) <= 0x1.fffffep127f)
        return f32_mul(a, __builtin_copysignf(0, b), ROUND_rn, flags);
    return f32_div(a, b, ROUND_rn, flags);
}

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 read and write only the upper 32 bits. As on an H200, their NaN
// is the same as for f32.
INLINE double host_f64_upper(double value) { return as_f64(bits_f64(value) >> 32 << 32); }
INLINE double host_f64_upper_result(double value) {
    return value == value ? host_f64_upper(value) : as_f64(0x7fffffff00000000);
}

INLINE double host_f64_flush(double value) { return as_f64(host_flush(FORMAT_f64, bits_f64(value))); }

CALLED double f64_rcp_approx(double a) {
    return host_f64_upper_result(host_f64_flush(1 / host_f64_flush(host_f64_upper(a))));
}

CALLED double f64_rsqrt_approx(double a, unsigned flags) {
    double value = flags & FLAG_ftz ? host_f64_flush(host_f64_upper(a)) : a;
    double result = 1 / __builtin_sqrt(value);
    return flags & FLAG_ftz ? host_f64_upper_result(result) : result;
}

#include "half.h"

#include "convert.h"
#include "matrix.h"

#endif
