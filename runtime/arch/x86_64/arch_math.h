// Arithmetic with a rounding mode, for host/math.h: host_TYPE_OPERATION(a, b, round, flags), and for fma (a,
// b, c, round, flags). With FLAG_ftz, subnormal operands and results are flushed to 0. sqrt takes its operand
// twice.
//
// Each is a single instruction between two loads of MXCSR, the register with the rounding mode. All three are
// in one asm statement, so that the mode applies to nothing else, and the exception flags don't change.

#ifndef GPT_ARCH_MATH_H
#define GPT_ARCH_MATH_H

#include "formats.h"

// Values of MXCSR by rounding mode, with exceptions masked; the second row also flushes subnormal operands
// and results.
static const uint32_t host_mxcsr[2][4] = {{0x1f80, 0x7f80, 0x3f80, 0x5f80}, {0x9fc0, 0xffc0, 0xbfc0, 0xdfc0}};

#define HOST_ROUNDED(name, type, instruction)                                                                \
    INLINE type name(type a, type b, enum host_round round, unsigned flags) {                                \
        uint32_t saved;                                                                                      \
        __asm__ volatile("stmxcsr %0\n\tldmxcsr %2\n\t" instruction " %3, %1\n\tldmxcsr %0"                  \
                         : "=&m"(saved), "+x"(a)                                                             \
                         : "m"(host_mxcsr[(flags & FLAG_ftz) != 0][round]), "x"(b));                         \
        return a;                                                                                            \
    }
HOST_ROUNDED(host_f32_add, float, "addss")
HOST_ROUNDED(host_f32_sub, float, "subss")
HOST_ROUNDED(host_f32_mul, float, "mulss")
HOST_ROUNDED(host_f32_div, float, "divss")
HOST_ROUNDED(host_f32_sqrt, float, "sqrtss")
HOST_ROUNDED(host_f64_add, double, "addsd")
HOST_ROUNDED(host_f64_sub, double, "subsd")
HOST_ROUNDED(host_f64_mul, double, "mulsd")
HOST_ROUNDED(host_f64_div, double, "divsd")
HOST_ROUNDED(host_f64_sqrt, double, "sqrtsd")

// Without -mfma, use the C library's fma, which obeys MXCSR. It's in a separate function so that nothing else
// is affected.
#ifdef __FMA__
#define HOST_FUSED(name, type, instruction, function)                                                        \
    INLINE type name(type a, type b, type c, enum host_round round, unsigned flags) {                        \
        uint32_t saved;                                                                                      \
        __asm__ volatile("stmxcsr %0\n\tldmxcsr %2\n\t" instruction " %4, %3, %1\n\tldmxcsr %0"              \
                         : "=&m"(saved), "+x"(c)                                                             \
                         : "m"(host_mxcsr[(flags & FLAG_ftz) != 0][round]), "x"(a), "x"(b));                 \
        return c;                                                                                            \
    }
#else
#define HOST_FUSED(name, type, instruction, function)                                                        \
    OUTLINE type name(type a, type b, type c, enum host_round round, unsigned flags) {                       \
        uint32_t saved;                                                                                      \
        __asm__ volatile("stmxcsr %0\n\tldmxcsr %2"                                                          \
                         : "=&m"(saved), "+x"(a)                                                             \
                         : "m"(host_mxcsr[(flags & FLAG_ftz) != 0][round]));                                 \
        type result = function(a, b, c);                                                                     \
        __asm__ volatile("ldmxcsr %1" : "+x"(result) : "m"(saved));                                          \
        return result;                                                                                       \
    }
#endif
HOST_FUSED(host_f32_fma, float, "vfmadd231ss", __builtin_fmaf)
HOST_FUSED(host_f64_fma, double, "vfmadd231sd", __builtin_fma)

#endif
