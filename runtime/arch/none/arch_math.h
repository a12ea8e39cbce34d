// The same functions as in arch/x86_64/arch_math.h, with the C library's rounding modes. Each operation is a
// separate function, so that the mode applies to nothing else. A result that rounds up to the smallest normal
// number isn't flushed, while hardware may return 0.

#ifndef GPT_ARCH_MATH_H
#define GPT_ARCH_MATH_H

#include "formats.h"

#include <fenv.h>
#include <math.h>

INLINE int host_rounding(enum host_round round) {
    return round == ROUND_rz   ? FE_TOWARDZERO
           : round == ROUND_rm ? FE_DOWNWARD
           : round == ROUND_rp ? FE_UPWARD
                               : FE_TONEAREST;
}

// A subnormal number becomes 0 with the same sign.
#define HOST_FLUSHED(x) ((flags & FLAG_ftz) && __builtin_fabs(x) < least && (x) == (x) ? (x) * 0 : (x))

// The empty asm keeps the compiler from moving the computation across the mode changes.
#define HOST_ROUNDED(name, type, least_, expression)                                                         \
    OUTLINE type name##_by(type a, type b, type c, enum host_round round, unsigned flags) {                  \
        const type least = least_;                                                                           \
        int before = fegetround();                                                                           \
        a = HOST_FLUSHED(a), b = HOST_FLUSHED(b), c = HOST_FLUSHED(c);                                       \
        fesetround(host_rounding(round));                                                                    \
        volatile type x = a, y = b, z = c;                                                                   \
        volatile type result = expression;                                                                   \
        fesetround(before);                                                                                  \
        return HOST_FLUSHED(result);                                                                         \
    }
#define HOST_TWO(name, type, least, expression)                                                              \
    HOST_ROUNDED(name, type, least, expression)                                                              \
    INLINE type name(type a, type b, enum host_round round, unsigned flags) {                                \
        return name##_by(a, b, 0, round, flags);                                                             \
    }
#define HOST_THREE(name, type, least, expression)                                                            \
    HOST_ROUNDED(name, type, least, expression)                                                              \
    INLINE type name(type a, type b, type c, enum host_round round, unsigned flags) {                        \
        return name##_by(a, b, c, round, flags);                                                             \
    }
HOST_TWO(host_f32_add, float, 0x1p-126f, x + y)
HOST_TWO(host_f32_sub, float, 0x1p-126f, x - y)
HOST_TWO(host_f32_mul, float, 0x1p-126f, x *y)
HOST_TWO(host_f32_div, float, 0x1p-126f, x / y)
HOST_TWO(host_f32_sqrt, float, 0x1p-126f, sqrtf(y))
HOST_TWO(host_f64_add, double, 0x1p-1022, x + y)
HOST_TWO(host_f64_sub, double, 0x1p-1022, x - y)
HOST_TWO(host_f64_mul, double, 0x1p-1022, x *y)
HOST_TWO(host_f64_div, double, 0x1p-1022, x / y)
HOST_TWO(host_f64_sqrt, double, 0x1p-1022, sqrt(y))
HOST_THREE(host_f32_fma, float, 0x1p-126f, fmaf(x, y, z))
HOST_THREE(host_f64_fma, double, 0x1p-1022, fma(x, y, z))

#endif
