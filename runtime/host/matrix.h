// mma and wmma: a warp's product of matrices, D = A * B + C ("Warp Level Matrix Multiply-Accumulate
// Instructions").
//
// Of floats the products are exact and are added in double, to the element of C, from k = 0 up; the sum is
// rounded once, to nearest, to D's type. (Hardware adds in an order and with a precision of its own.) Of f64
// each step is an fma. Integers are added exactly, and wrap, or with .satfinite are clamped at the end.
//
// Fragments of mma are as the manual has them. Those of wmma are opaque: here the elements in the order of
// rows (A, C, D) or columns (B), as many to each lane; where a fragment has more room than that, they begin
// anew.

#ifndef GPT_HOST_MATRIX_H
#define GPT_HOST_MATRIX_H

#include "formats.h"

enum host_layout { LAYOUT_mma, LAYOUT_quarters, LAYOUT_wmma }; // quarters: mma.m8n8k4 of f16, four at once

// Types of elements: formats of formats.h, then these.
enum {
    ELEMENT_integer = 16,
    ELEMENT_s8 = ELEMENT_integer,
    ELEMENT_u8,
    ELEMENT_s4,
    ELEMENT_u4,
    ELEMENT_b1,
    ELEMENT_s32
};

struct host_shape {
    uint8_t m, n;
    uint16_t k;
    uint8_t layout, a, b, c, d;                 // types
    bool column_a, column_b;                    // of quarters
    bool clamps, conjunction;                   // .satfinite; .and of bits, not .xor
    uint8_t elements_a, elements_b, elements_c; // of a lane's fragment
};

struct host_product {
    const struct host_shape *shape;
    const void *a, *b, *c;
    void *d;
};

struct host_at {
    unsigned row, column;
};

static const uint8_t host_element_bits[] = {
    [FORMAT_f16] = 16, [FORMAT_bf16] = 16, [FORMAT_tf32] = 32, [FORMAT_f32] = 32, [FORMAT_f64] = 64,
    [FORMAT_e5m2] = 8, [FORMAT_e4m3] = 8,  [ELEMENT_s8] = 8,   [ELEMENT_u8] = 8,  [ELEMENT_s4] = 4,
    [ELEMENT_u4] = 4,  [ELEMENT_b1] = 1,   [ELEMENT_s32] = 32,
};

// Where element i of a lane's fragment of A, B or C is in its matrix.
static struct host_at host_at_a(const struct host_shape *s, unsigned lane, unsigned i) {
    unsigned each = s->a == FORMAT_f64 ? 1 : 32 / host_element_bits[s->a], word = i / each,
             halves = s->m / 8u;
    if (s->layout == LAYOUT_wmma) {
        unsigned at = (lane * s->elements_a + i) % (s->m * s->k);
        return (struct host_at){at / s->k, at % s->k};
    }
    if (s->layout == LAYOUT_quarters) {
        unsigned high = lane < 16 ? 0 : 4;
        return s->column_a ? (struct host_at){i + high, lane % 4} : (struct host_at){lane % 4 + high, i};
    }
    return (struct host_at){lane / 4 + 8 * (word % halves), (word / halves * 4 + lane % 4) * each + i % each};
}

static struct host_at host_at_b(const struct host_shape *s, unsigned lane, unsigned i) {
    unsigned each = s->b == FORMAT_f64 ? 1 : 32 / host_element_bits[s->b], word = i / each;
    if (s->layout == LAYOUT_wmma) {
        unsigned at = (lane * s->elements_b + i) % (s->n * s->k);
        return (struct host_at){at % s->k, at / s->k};
    }
    if (s->layout == LAYOUT_quarters) {
        unsigned high = lane < 16 ? 0 : 4;
        return s->column_b ? (struct host_at){i, lane % 4 + high} : (struct host_at){lane % 4, i + high};
    }
    return (struct host_at){(word * 4 + lane % 4) * each + i % each, lane / 4};
}

// That of D is the same, but in quarters, where it depends on the type.
static struct host_at host_at_c(const struct host_shape *s, unsigned type, unsigned lane, unsigned i) {
    if (s->layout == LAYOUT_wmma) {
        unsigned at = lane * s->elements_c + i;
        return (struct host_at){at / s->n, at % s->n};
    }
    if (s->layout == LAYOUT_quarters) {
        unsigned high = lane < 16 ? 0 : 4;
        return type == FORMAT_f16
                   ? (struct host_at){lane % 4 + high, i}
                   : (struct host_at){(lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)};
    }
    return (struct host_at){lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2};
}

static uint64_t host_bits_of(const void *fragment, unsigned bits, unsigned i) {
    uint64_t value = 0;
    if (bits >= 8)
        memcpy(&value, (const char *)fragment + i * (bits / 8), bits / 8);
    else
        value = ((const uint8_t *)fragment)[i * bits / 8] >> i * bits % 8 & ((1u << bits) - 1);
    return value;
}

static double host_number_of(unsigned type, uint64_t bits) {
    switch (type) {
    case FORMAT_f64:
        return as_f64(bits);
    case FORMAT_f32:
        return (double)as_f32((uint32_t)bits);
    case FORMAT_tf32: // the lower bits are ignored
        return (double)as_f32((uint32_t)bits & 0xffffe000);
    default:
        return host_widen((enum host_format)type, bits);
    }
}

static int16_t host_integer_of(unsigned type, uint64_t bits) {
    switch (type) {
    case ELEMENT_s8:
        return (int8_t)bits;
    case ELEMENT_s4:
        return (int16_t)((bits ^ 8) - 8);
    default:
        return (int16_t)bits;
    }
}

// The two factors, while the lanes of a warp meet: rows of A, columns of B. Too large for a thread's stack.
static _Thread_local union {
    double numbers[2][512];
    int16_t integers[2][4096];
} host_factors;

static uint64_t host_dot_numbers(const struct host_shape *s, struct host_at at, uint64_t c) {
    const double *a = host_factors.numbers[0] + at.row * s->k,
                 *b = host_factors.numbers[1] + at.column * s->k;
    double sum = host_number_of(s->c, c);
    for (unsigned k = 0; k < s->k; k++)
        sum = s->d == FORMAT_f64 ? __builtin_fma(a[k], b[k], sum) : sum + a[k] * b[k];
    return s->d == FORMAT_f64 ? bits_f64(sum) : host_narrow((enum host_format)s->d, sum, ROUND_rn, 0);
}

static uint32_t host_dot_integers(const struct host_shape *s, struct host_at at, uint32_t c) {
    const int16_t *a = host_factors.integers[0] + at.row * s->k,
                  *b = host_factors.integers[1] + at.column * s->k;
    int64_t sum = (int32_t)c;
    for (unsigned k = 0; k < s->k; k++)
        sum += s->a != ELEMENT_b1 ? a[k] * b[k] : s->conjunction ? a[k] & b[k] : a[k] ^ b[k];
    return (uint32_t)(!s->clamps ? sum : sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
}

static void host_gather(const struct host_shape *s, const struct host_product *one, unsigned lane) {
    unsigned bits_a = host_element_bits[s->a], bits_b = host_element_bits[s->b];
    for (unsigned i = 0; i < s->elements_a; i++) {
        struct host_at at = host_at_a(s, lane, i);
        uint64_t bits = host_bits_of(one->a, bits_a, i);
        unsigned to = at.row * s->k + at.column;
        if (s->a < ELEMENT_integer)
            host_factors.numbers[0][to] = host_number_of(s->a, bits);
        else
            host_factors.integers[0][to] = host_integer_of(s->a, bits);
    }
    for (unsigned i = 0; i < s->elements_b; i++) {
        struct host_at at = host_at_b(s, lane, i);
        uint64_t bits = host_bits_of(one->b, bits_b, i);
        unsigned to = at.column * s->k + at.row;
        if (s->b < ELEMENT_integer)
            host_factors.numbers[1][to] = host_number_of(s->b, bits);
        else
            host_factors.integers[1][to] = host_integer_of(s->b, bits);
    }
}

// The element of C where D has its element i: in quarters C may lie otherwise, in another lane of the
// quarter.
static uint64_t host_addend(const struct host_shape *s, void *const data[HOST_WARP], unsigned lane,
                            unsigned i) {
    struct host_at at = host_at_c(s, s->d, lane, i);
    unsigned from = lane, j = i;
    if (s->layout == LAYOUT_quarters && s->c != s->d) {
        unsigned high = at.row & 4 ? 16 : 0, quarter = lane & 12;
        for (from = high + quarter; from < high + quarter + 4; from++)
            for (j = 0; j < 8; j++) {
                struct host_at other = host_at_c(s, s->c, from, j);
                if (other.row == at.row && other.column == at.column)
                    goto found;
            }
    }
found:;
    const struct host_product *one = data[from];
    return one ? host_bits_of(one->c, host_element_bits[s->c], j) : 0;
}

static __attribute__((unused)) void host_multiply(void *const data[HOST_WARP], uint32_t mask) {
    const struct host_shape *s = ((struct host_product *)data[__builtin_ctz(mask)])->shape;
    unsigned parts = s->layout == LAYOUT_quarters ? 4 : 1, bits = host_element_bits[s->d];
    for (unsigned part = 0; part < parts; part++) {
        uint32_t lanes = mask & (parts == 1 ? ~0u : 0x000f000fu << 4 * part);
        if (~mask)
            memset(&host_factors, 0, sizeof(host_factors));
        for (unsigned lane = 0; lane < HOST_WARP; lane++)
            if (lanes >> lane & 1)
                host_gather(s, data[lane], lane);
        for (unsigned lane = 0; lane < HOST_WARP; lane++)
            for (unsigned i = 0; lanes >> lane & 1 && i < s->elements_c; i++) {
                uint64_t c = host_addend(s, data, lane, i);
                struct host_at at = host_at_c(s, s->d, lane, i);
                uint64_t d = s->a < ELEMENT_integer ? host_dot_numbers(s, at, c)
                                                    : host_dot_integers(s, at, (uint32_t)c);
                memcpy((char *)((struct host_product *)data[lane])->d + i * (bits / 8), &d, bits / 8);
            }
    }
}

// Where element i of a lane's fragment of `matrix` (a, b, c) is in memory, in elements: rows or columns are
// `stride` elements apart.
INLINE uint64_t host_wmma_at(const struct host_shape *s, char matrix, bool by_rows, unsigned lane, unsigned i,
                             uint64_t stride) {
    struct host_at at = matrix == 'a'   ? host_at_a(s, lane, i)
                        : matrix == 'b' ? host_at_b(s, lane, i)
                                        : host_at_c(s, s->c, lane, i);
    return by_rows ? at.row * stride + at.column : at.column * stride + at.row;
}

INLINE void host_put(void *fragment, unsigned bits, unsigned i, const void *from, uint64_t at) {
    if (bits >= 8) {
        memcpy((char *)fragment + i * (bits / 8), from, bits / 8);
        return;
    }
    unsigned value = *(const uint8_t *)from >> at * bits % 8 & ((1u << bits) - 1), shift = i * bits % 8;
    uint8_t *to = (uint8_t *)fragment + i * bits / 8;
    *to = (uint8_t)((*to & ~(((1u << bits) - 1) << shift)) | value << shift);
}

#endif
