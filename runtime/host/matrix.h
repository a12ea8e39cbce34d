// mma and wmma: a warp's product of matrices, D = A * B + C ("Warp Level Matrix Multiply-Accumulate
// Instructions").
//
// For floats, products are exact. They're added in double to the element of C, starting with k = 0, and the
// sum is rounded once, to the nearest number of D's type. (Hardware adds in another order and precision.) For
// f64, each step is an fma. Integers are added exactly; the sum wraps around, or with .satfinite, is clamped
// at the end.
//
// The manual defines how mma distributes the elements of a matrix over the lanes of a warp. For wmma, it
// leaves that open. Here, each lane gets an equal share of the elements, by rows (A, C, D) or by columns (B).
// If a fragment has room for more, they're repeated.

#ifndef GPT_HOST_MATRIX_H
#define GPT_HOST_MATRIX_H

#include "formats.h"

enum host_layout {
    LAYOUT_mma,
    LAYOUT_quarters,
    LAYOUT_wmma
}; // quarters: mma.m8n8k4 on f16, four products at once

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
    bool column_a, column_b;                    // layouts of quarters
    bool clamps, conjunction;                   // .satfinite; .and instead of .xor on bits
    uint8_t elements_a, elements_b, elements_c; // elements in a lane's fragment
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

// Return the number of elements in a word, as a power of 2.
INLINE unsigned host_each(unsigned type) {
    return type == FORMAT_f64 ? 0 : (unsigned)__builtin_ctz(32u / host_element_bits[type]);
}

// Division by a size that is a power of 2.
INLINE unsigned host_over(unsigned a, unsigned size) { return a >> __builtin_ctz(size); }

// Return the position in its matrix of element i of a lane's fragment of A, B, C or D.
static struct host_at host_at_a(const struct host_shape *s, unsigned lane, unsigned i) {
    if (s->layout == LAYOUT_wmma) {
        unsigned at = lane * s->elements_a + i;
        return (struct host_at){host_over(at, s->k) & (s->m - 1u), at & (s->k - 1u)};
    }
    if (s->layout == LAYOUT_quarters) {
        unsigned high = lane < 16 ? 0 : 4;
        return s->column_a ? (struct host_at){i + high, lane % 4} : (struct host_at){lane % 4 + high, i};
    }
    unsigned each = host_each(s->a), word = i >> each, upper = s->m == 16;
    return (struct host_at){lane / 4 + 8 * (word & upper),
                            (((word >> upper) * 4 + lane % 4) << each) + (i & ((1u << each) - 1))};
}

static struct host_at host_at_b(const struct host_shape *s, unsigned lane, unsigned i) {
    if (s->layout == LAYOUT_wmma) {
        unsigned at = lane * s->elements_b + i;
        return (struct host_at){at & (s->k - 1u), host_over(at, s->k) & (s->n - 1u)};
    }
    if (s->layout == LAYOUT_quarters) {
        unsigned high = lane < 16 ? 0 : 4;
        return s->column_b ? (struct host_at){i, lane % 4 + high} : (struct host_at){lane % 4, i + high};
    }
    unsigned each = host_each(s->b), word = i >> each;
    return (struct host_at){((word * 4 + lane % 4) << each) + (i & ((1u << each) - 1)), lane / 4};
}

static struct host_at host_at_c(const struct host_shape *s, unsigned type, unsigned lane, unsigned i) {
    if (s->layout == LAYOUT_wmma) {
        unsigned at = lane * s->elements_c + i;
        return (struct host_at){host_over(at, s->n), at & (s->n - 1u)};
    }
    if (s->layout == LAYOUT_quarters) {
        unsigned high = lane < 16 ? 0 : 4;
        return type == FORMAT_f16
                   ? (struct host_at){lane % 4 + high, i}
                   : (struct host_at){(lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)};
    }
    return (struct host_at){lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2};
}

// Fragments are registers of 32 bits, or of 64 for f64; an element is within one.
INLINE uint64_t host_bits_of(const void *fragment, unsigned bits, unsigned i) {
    if (bits == 64)
        return ((const uint64_t *)fragment)[i];
    return ((const uint32_t *)fragment)[i * bits / 32] >> i * bits % 32 & ~0u >> (32 - bits);
}

INLINE double host_number_of(unsigned type, uint64_t bits) {
    switch (type) {
    case FORMAT_f64:
        return as_f64(bits);
    case FORMAT_f32:
        return (double)as_f32((uint32_t)bits);
    case FORMAT_tf32: // the lower bits are ignored
        return (double)as_f32((uint32_t)bits & 0xffffe000);
    case FORMAT_f16:
        return host_widen_f16((uint16_t)bits);
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

// The matrices of the warp being processed, all by rows. They're too large for a thread's stack.
typedef double host_four __attribute__((vector_size(32)));
union host_matrices {
    struct {
        double a[512], c[256];
        host_four b[128];
    } numbers;
    struct {
        int16_t a[4096], b[2048];
        int32_t c[256];
    } integers;
};

static void host_gather(union host_matrices *all, const struct host_shape *s, const struct host_product *one,
                        unsigned lane) {
    bool integer = s->a >= ELEMENT_integer;
    for (unsigned i = 0; i < s->elements_a; i++) {
        struct host_at at = host_at_a(s, lane, i);
        uint64_t bits = host_bits_of(one->a, host_element_bits[s->a], i);
        unsigned to = at.row * s->k + at.column;
        if (integer)
            all->integers.a[to] = host_integer_of(s->a, bits);
        else
            all->numbers.a[to] = host_number_of(s->a, bits);
    }
    for (unsigned i = 0; i < s->elements_b; i++) {
        struct host_at at = host_at_b(s, lane, i);
        uint64_t bits = host_bits_of(one->b, host_element_bits[s->b], i);
        unsigned to = at.row * s->n + at.column;
        if (integer)
            all->integers.b[to] = host_integer_of(s->b, bits);
        else
            ((double *)all->numbers.b)[to] = host_number_of(s->b, bits);
    }
    for (unsigned i = 0; i < s->elements_c; i++) {
        struct host_at at = host_at_c(s, s->c, lane, i);
        uint64_t bits = host_bits_of(one->c, host_element_bits[s->c], i);
        unsigned to = at.row * s->n + at.column;
        if (integer)
            all->integers.c[to] = (int32_t)bits;
        else
            all->numbers.c[to] = host_number_of(s->c, bits);
    }
}

// Store the sum in C.
static void host_multiply_numbers(union host_matrices *all, const struct host_shape *s) {
    for (unsigned row = 0; row < s->m; row++) {
        double *c = all->numbers.c + row * s->n;
        host_four sums[8];
        memcpy(sums, c, s->n * sizeof(*c));
        for (unsigned k = 0; k < s->k; k++) {
            double a = all->numbers.a[row * s->k + k];
            const host_four *b = all->numbers.b + k * s->n / 4;
            if (s->d == FORMAT_f64)
                for (unsigned j = 0; j < s->n; j++)
                    sums[j / 4][j % 4] = __builtin_fma(a, b[j / 4][j % 4], sums[j / 4][j % 4]);
            else
                for (unsigned j = 0; j < s->n / 4u; j++)
                    sums[j] += a * b[j];
        }
        memcpy(c, sums, s->n * sizeof(*c));
    }
}

static void host_multiply_integers(union host_matrices *all, const struct host_shape *s) {
    for (unsigned row = 0; row < s->m; row++)
        for (unsigned column = 0; column < s->n; column++) {
            int32_t *c = all->integers.c + row * s->n + column;
            int64_t sum = *c;
            for (unsigned k = 0; k < s->k; k++) {
                int32_t a = all->integers.a[row * s->k + k];
                int32_t b = all->integers.b[k * s->n + column];
                sum += s->a != ELEMENT_b1 ? a * b : s->conjunction ? a & b : a ^ b;
            }
            *c = (int32_t)(!s->clamps        ? sum
                           : sum > INT32_MAX ? INT32_MAX
                           : sum < INT32_MIN ? INT32_MIN
                                             : sum);
        }
}

static void host_scatter(const union host_matrices *all, const struct host_shape *s,
                         const struct host_product *one, unsigned lane) {
    unsigned size = host_element_bits[s->d] / 8;
    for (unsigned i = 0; i < s->elements_c; i++) {
        struct host_at at = host_at_c(s, s->d, lane, i);
        unsigned from = at.row * s->n + at.column;
        uint64_t bits;
        if (s->d >= ELEMENT_integer)
            bits = (uint32_t)all->integers.c[from];
        else if (s->d == FORMAT_f64)
            bits = bits_f64(all->numbers.c[from]);
        else
            bits = host_narrow((enum host_format)s->d, all->numbers.c[from], ROUND_rn, 0);
        if (size == 8)
            ((uint64_t *)one->d)[i] = bits;
        else if (size == 4)
            ((uint32_t *)one->d)[i] = (uint32_t)bits;
        else
            ((uint16_t *)one->d)[i] = (uint16_t)bits;
    }
}

static __attribute__((unused)) void host_multiply(void *const data[HOST_WARP], uint32_t mask) {
    static _Thread_local union host_matrices matrices;
    union host_matrices *all = &matrices;
    const struct host_shape *s = ((struct host_product *)data[__builtin_ctz(mask)])->shape;
    unsigned parts = s->layout == LAYOUT_quarters ? 4 : 1;
    for (unsigned part = 0; part < parts; part++) {
        uint32_t lanes = mask & (parts == 1 ? ~0u : 0x000f000fu << 4 * part);
        if (~mask) // lanes that have exited: PTX defines nothing
            memset(all, 0, sizeof(*all));
        EACH_LANE(lane, lanes)
        host_gather(all, s, data[lane], lane);
        if (s->d < ELEMENT_integer)
            host_multiply_numbers(all, s);
        else
            host_multiply_integers(all, s);
        EACH_LANE(lane, lanes)
        host_scatter(all, s, data[lane], lane);
    }
}

// Return the offset in memory, in elements, of element i of a lane's fragment of `matrix` (a, b, c). Rows or
// columns are `stride` elements apart.
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
