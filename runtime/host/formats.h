// All floating-point formats of PTX, and their conversion from and to double and integers, with every
// rounding mode. A value is represented as significand * 2^exponent, exactly, and rounded once.
//
// PTX ISA: "Fundamental Types", "Alternate Floating-Point Data Formats", "cvt".

#ifndef GPT_HOST_FORMATS_H
#define GPT_HOST_FORMATS_H

#include "integers.h"

// A function too large to inline: inlining these would double compile time.
#define CALLED static __attribute__((noinline, unused))

// Rounding modes, named as in the tables' rows: ROUND, then the modifier, if any.
enum host_round {
    ROUND,
    ROUND_rn = ROUND,
    ROUND_rz,
    ROUND_rm,
    ROUND_rp,
    ROUND_rna, // ties away from zero
    ROUND_rni = ROUND_rn,
    ROUND_rzi = ROUND_rz,
    ROUND_rmi = ROUND_rm,
    ROUND_rpi = ROUND_rp,
};

enum host_format {
    FORMAT_f16,
    FORMAT_bf16,
    FORMAT_tf32,
    FORMAT_f32,
    FORMAT_f64,
    FORMAT_e5m2,
    FORMAT_e4m3,
    FORMAT_e3m2,
    FORMAT_e2m3,
    FORMAT_e2m1,
    FORMAT_f16x2 = FORMAT_f16,
    FORMAT_bf16x2 = FORMAT_bf16,
    FORMAT_e5m2x2 = FORMAT_e5m2,
    FORMAT_e4m3x2 = FORMAT_e4m3,
    FORMAT_e3m2x2 = FORMAT_e3m2,
    FORMAT_e2m3x2 = FORMAT_e2m3,
    FORMAT_e2m1x2 = FORMAT_e2m1,
};

// Encodings without their sign. `greatest` is the greatest finite number; infinity, if the format has one,
// and NaN lie above it. `nan` is the canonical NaN, or the number that a NaN becomes in a format without NaN.
// The lowest 13 bits of a tf32 are 0.
static const struct {
    uint8_t fraction, exponent, size; // bits
    bool infinity, has_nan;
    uint64_t greatest, nan;
} host_formats[] = {
    [FORMAT_f16] = {10, 5, 16, true, true, 0x7bff, 0x7fff},
    [FORMAT_bf16] = {7, 8, 16, true, true, 0x7f7f, 0x7fff},
    [FORMAT_tf32] = {10, 8, 19, true, true, 0x3fbff, 0x3ffff},
    [FORMAT_f32] = {23, 8, 32, true, true, 0x7f7fffff, 0x7fffffff},
    [FORMAT_f64] = {52, 11, 64, true, true, 0x7fefffffffffffff, 0x7ff8000000000000},
    [FORMAT_e5m2] = {2, 5, 8, true, true, 0x7b, 0x7f},
    [FORMAT_e4m3] = {3, 4, 8, false, true, 0x7e, 0x7f},
    [FORMAT_e3m2] = {2, 3, 6, false, false, 0x1f, 0x1f},
    [FORMAT_e2m3] = {3, 2, 6, false, false, 0x1f, 0x1f},
    [FORMAT_e2m1] = {1, 2, 4, false, false, 7, 7},
};

INLINE uint64_t host_sign(enum host_format format) { return 1ull << (host_formats[format].size - 1); }

// Return whether rounding increases the magnitude. `rest` describes the bits that are cut off: 0 if they're
// zero, 1 for less than half of the last bit, 2 for exactly half, 3 for more.
INLINE bool host_rounds_up(enum host_round round, bool negative, bool odd, unsigned rest) {
    switch (round) {
    case ROUND_rz:
        return false;
    case ROUND_rm:
        return negative && rest;
    case ROUND_rp:
        return !negative && rest;
    case ROUND_rna:
        return rest >= 2;
    default:
        return rest + odd > 2;
    }
}

// Return value >> shift, with all bits that were cut off ORed into its lowest bit.
INLINE uint64_t host_shift_right(uint64_t value, int shift) {
    return shift > 63 ? value != 0 : shift > 0 ? value >> shift | (value << (64 - shift) != 0) : value;
}

// Round significand * 2^exponent to a format, and return the encoding with its sign. With .ftz, a result
// below the least normal number becomes 0. As on an H200, the result is first rounded as if there were no
// smallest exponent, and then compared.
CALLED uint64_t host_encode(enum host_format format, uint64_t significand, int exponent, bool negative,
                            enum host_round round, unsigned flags) {
    int fraction = host_formats[format].fraction, bias = (1 << (host_formats[format].exponent - 1)) - 1;
    uint64_t greatest = host_formats[format].greatest, sign = negative ? host_sign(format) : 0;
    if (!significand)
        return sign;
    int zeros = __builtin_clzll(significand), top = 63 - zeros + exponent + bias;
    bool normal = top >= 1 || flags & FLAG_ftz;
    // The fraction with its leading bit, and two bits below: half, and whether there is more.
    int shift = 61 - fraction + (normal ? 0 : 1 - top);
    uint64_t kept = host_shift_right(significand << zeros, shift);
    uint64_t up = host_rounds_up(round, negative, kept >> 2 & 1, kept & 3);
    int64_t encoding = (int64_t)((kept >> 2) + up) + (normal ? (int64_t)(top - 1) * (1ll << fraction) : 0);
    if (flags & FLAG_ftz && encoding < 1ll << fraction)
        encoding = 0;
    if ((uint64_t)encoding <= greatest)
        return sign | (uint64_t)encoding;
    bool finite = round == ROUND_rz || round == (negative ? ROUND_rp : ROUND_rm);
    return sign | (greatest + !(finite || flags & FLAG_satfinite || !host_formats[format].infinity));
}

// Convert from double. Every format is converted to double first. Flags: .relu, .satfinite, .sat, .ftz
// (flushes the result).
CALLED uint64_t host_narrow(enum host_format format, double value, enum host_round round, unsigned flags) {
    uint64_t bits = bits_f64(value), fraction = bits << 12 >> 12;
    int exponent = (int)(bits >> 52 & 0x7ff);
    bool negative = bits >> 63;
    if (exponent == 0x7ff && fraction) {
        if (flags & FLAG_sat || !(flags & FLAG_payload))
            return flags & FLAG_sat ? 0 : host_formats[format].nan;
        fraction = (fraction | 1ull << 51) >> (52 - host_formats[format].fraction);
        return (negative ? host_sign(format) : 0) | ((host_formats[format].greatest + 1) | fraction);
    }
    if (negative && flags & (FLAG_relu | FLAG_sat))
        return 0;
    if (flags & FLAG_sat && value > 1)
        return host_encode(format, 1, 0, false, round, 0);
    if (exponent == 0x7ff)
        return (negative ? host_sign(format) : 0) |
               (host_formats[format].greatest + (host_formats[format].infinity && !(flags & FLAG_satfinite)));
    return host_encode(format, exponent ? fraction | 1ull << 52 : fraction,
                       exponent ? exponent - 1075 : -1074, negative, round, flags);
}

// Convert to double, exactly. A NaN becomes quiet and keeps its payload, which stays at the top of the
// fraction.
CALLED double host_widen(enum host_format format, uint64_t encoding) {
    int bits = host_formats[format].fraction, bias = (1 << (host_formats[format].exponent - 1)) - 1;
    uint64_t sign = encoding & host_sign(format) ? 1ull << 63 : 0,
             magnitude = encoding & (host_sign(format) - 1);
    if (magnitude > host_formats[format].greatest) {
        bool infinite = host_formats[format].infinity && magnitude == host_formats[format].greatest + 1;
        uint64_t fraction = magnitude << (64 - bits) >> 12;
        return as_f64(sign | 0x7ffull << 52 | (infinite ? 0 : 1ull << 51 | fraction));
    }
    if (magnitude >> bits) {
        uint64_t exponent = (magnitude >> bits) + (uint64_t)(1023 - bias);
        return as_f64(sign | exponent << 52 | magnitude << (64 - bits) >> 12);
    }
    return as_f64(sign | bits_f64((double)magnitude * as_f64((uint64_t)(1024 - bias - bits) << 52)));
}

INLINE double host_widen_f16(uint16_t encoding) {
#ifdef __F16C__
    float value;
    __asm__("vcvtph2ps %1, %0" : "=x"(value) : "x"(as_f32(encoding)));
    return (double)value;
#else
    return host_widen(FORMAT_f16, encoding);
#endif
}

// Return a subnormal number as 0 with the same sign.
INLINE uint64_t host_flush(enum host_format format, uint64_t encoding) {
    uint64_t sign = host_sign(format);
    return (encoding & (sign - 1)) >> host_formats[format].fraction ? encoding : encoding & sign;
}

INLINE bool host_is_nan(enum host_format format, uint64_t encoding) {
    uint64_t magnitude = encoding & (host_sign(format) - 1);
    return host_formats[format].has_nan &&
           magnitude > host_formats[format].greatest + host_formats[format].infinity;
}

INLINE float host_f32_flush(float value) {
    return __builtin_fabsf(value) < 0x1p-126f ? __builtin_copysignf(0, value) : value;
}

INLINE double host_quiet(double value) {
    return value == value ? value : as_f64(bits_f64(value) | 1ull << 51);
}

// Convert to an integer, as `cvt` does: numbers outside the integer's range become its minimum or maximum. A
// NaN becomes 0, but 1 << (bits - 1) if it is an f64 or the integer has 64 bits.
CALLED uint64_t host_to_integer(double value, enum host_round round, int bits, bool is_signed, uint64_t nan) {
    uint64_t raw = bits_f64(value), fraction = raw << 12 >> 12;
    int exponent = (int)(raw >> 52 & 0x7ff);
    bool negative = raw >> 63;
    if (exponent == 0x7ff && fraction)
        return nan;
    uint64_t most = negative ? (is_signed ? 1ull << (bits - 1) : 0) : ~0ull >> (64 - bits + is_signed);
    uint64_t magnitude = 0;
    if (exponent >= 1023 + 64)
        magnitude = most;
    else if (exponent >= 1075)
        magnitude = (fraction | 1ull << 52) << (exponent - 1075);
    else {
        uint64_t kept = host_shift_right((exponent ? fraction | 1ull << 52 : fraction) << 2, 1075 - exponent);
        magnitude = (kept >> 2) + host_rounds_up(round, negative, kept >> 2 & 1, kept & 3);
    }
    magnitude = magnitude > most ? most : magnitude;
    return negative ? -magnitude : magnitude;
}

INLINE uint64_t host_from_integer(enum host_format format, uint64_t value, bool is_signed,
                                  enum host_round round, unsigned flags) {
    bool negative = is_signed && (int64_t)value < 0;
    if (flags & FLAG_sat)
        value = negative ? 0 : value > 1 ? 1 : value;
    return host_encode(format, negative && value ? -value : value, 0, negative && value, round, flags);
}

// Round to an integer in the given mode; return it as a double.
CALLED double host_integral(double value, enum host_round round) {
    if (!(__builtin_fabs(value) < 0x1p52))
        return host_quiet(value);
    uint64_t integer = host_to_integer(value, round, 64, true, 0);
    return __builtin_copysign((double)(int64_t)integer, value);
}

// Return a + b, rounded to odd. Rounding that again to a format of at most 51 bits gives the same as rounding
// once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
CALLED double host_add_odd(double a, double b) {
    double sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
    uint64_t bits = bits_f64(sum);
    if ((error > 0 || error < 0) && !(bits & 1))
        return as_f64(bits + ((error > 0) == (sum > 0) ? 1 : -1ull));
    return sum;
}

#endif
