// What code made by `gpt-asm --arch host` is made of besides its own lines: accesses to memory, integers.
// math.h beside it has floating point.

#ifndef GPT_HOST_DEVICE_H
#define GPT_HOST_DEVICE_H

#include "abi.h"

#include "lanes.h"

#include <string.h>
#include <time.h>

typedef unsigned __int128 uint128_t;
typedef __int128 int128_t;

#define INLINE static inline __attribute__((always_inline, unused))
#define OUTLINE static __attribute__((noinline, cold, unused))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

// Modifiers, as rows of tables name them: FLAG, then the modifier if it is there.
enum {
    FLAG = 0,
    FLAG_ftz = 1,
    FLAG_sat = 2,
    FLAG_relu = 4,
    FLAG_satfinite = 8,
    FLAG_NaN = 16,
    FLAG_abs = 32,
    FLAG_xorsign = 64,
    FLAG_oob = 128,
    FLAG_payload = 256, // of no modifier: a NaN keeps its upper bits
};

// The bits of registers

INLINE float as_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

INLINE double as_f64(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

INLINE uint32_t bits_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

INLINE uint64_t bits_f64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

// Control

// Bytes of stack that code of ours and of services needs beyond a function's own.
enum { HOST_RESERVE = 16384 };

INLINE void host_enter(struct host_thread *t, uint32_t site, uint64_t size) {
    uint64_t left = (uint64_t)((unsigned char *)__builtin_frame_address(0) - t->local);
    if (UNLIKELY(left < size + HOST_RESERVE))
        t->services->fault(t, site, HOST_FAULT_STACK, 0);
}

INLINE void host_back(struct host_thread *t, uint32_t site) {
    if (UNLIKELY(--t->budget < 0))
        t->services->turn(t, site);
}

// A device function whose address something takes; a list of them ends with one without code.
struct host_target {
    uint64_t address;
    void *code;
};

static __attribute__((unused)) void *host_function(struct host_thread *t, uint32_t site,
                                                   const struct host_target *targets, uint64_t address) {
    for (; targets->code; targets++)
        if (targets->address == address)
            return targets->code;
    t->services->fault(t, site, HOST_FAULT_FUNCTION, address);
}

// alloca: `top` becomes the address of `size` bytes, of what stackrestore gave back if that is enough. The
// stack of a function grows downwards: `high` is where it began, `low` how far C has given it.
#define HOST_ALLOCATE(site, size, align)                                                                     \
    do {                                                                                                     \
        uint64_t most_ = (size) + 2 * (align) + 16;                                                          \
        if (!top || (uint64_t)(top - low) < most_) {                                                         \
            unsigned char *at_ = low ? low : (unsigned char *)__builtin_frame_address(0);                    \
            if ((uint64_t)(at_ - t->local) < HOST_RESERVE ||                                                 \
                (uint64_t)(at_ - t->local) - HOST_RESERVE < most_)                                           \
                t->services->fault(t, site, HOST_FAULT_STACK, 0);                                            \
            low = __builtin_alloca(most_);                                                                   \
            top = low + most_;                                                                               \
            high = high ? high : top;                                                                        \
        }                                                                                                    \
        top = (unsigned char *)((uint64_t)(top - (size)) & -(uint64_t)(align));                              \
    } while (0)

// The address of a variable of a frame, in the window of local memory. The compiler would not see that an
// access by way of the window may be to the variable: so it knows nothing of the address.
INLINE uint64_t host_offset(const struct host_thread *t, const unsigned char *place) {
    __asm__("" : "+r"(place) : : "memory");
    return (uint64_t)(place - t->local);
}

INLINE uint64_t host_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Memory: each returns the address in the host of `size` bytes, a power of two, that may be accessed.

OUTLINE _Noreturn void host_outside(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size,
                                    enum host_fault fault) {
    t->services->fault(t, site, address & (size - 1) ? HOST_FAULT_MISALIGNED : fault, address);
}

OUTLINE void host_see(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (address & (size - 1))
        t->services->fault(t, site, HOST_FAULT_MISALIGNED, address);
    t->services->see(t, site, address, size);
}

INLINE bool host_is_outside(uint64_t offset, uint64_t size, uint64_t window) {
    return offset >= window || window - offset < size;
}

INLINE void *host_global(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    const struct host_place *place = &t->places[site];
    if (UNLIKELY(address & (size - 1)) ||
        UNLIKELY(host_is_outside(address - place->start, size, place->size)))
        host_see(t, site, address, size);
    return (void *)address;
}

INLINE bool host_is_global(struct host_thread *t, uint64_t address) {
    return address - (uint64_t)t->shared >= t->shared_size && address - (uint64_t)t->local >= t->local_size &&
           address - (uint64_t)t->constant >= t->constant_size;
}

OUTLINE void host_see_generic(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (address & (size - 1))
        t->services->fault(t, site, HOST_FAULT_MISALIGNED, address);
    if (host_is_outside(address - (uint64_t)t->shared, size, t->shared_size) &&
        host_is_outside(address - (uint64_t)t->local, size, t->local_size))
        t->services->see(t, site, address, size);
}

INLINE void *host_generic(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    const struct host_place *place = &t->places[site];
    if (UNLIKELY(address & (size - 1)) ||
        UNLIKELY(host_is_outside(address - place->start, size, place->size)))
        host_see_generic(t, site, address, size);
    return (void *)address;
}

INLINE void *host_shared(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (UNLIKELY(address & (size - 1)) || UNLIKELY(host_is_outside(address, size, t->shared_size)))
        host_outside(t, site, address, size, HOST_FAULT_SHARED);
    return t->shared + address;
}

INLINE void *host_local(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (UNLIKELY(address & (size - 1)) || UNLIKELY(host_is_outside(address, size, t->local_size)))
        host_outside(t, site, address, size, HOST_FAULT_LOCAL);
    return t->local + address;
}

INLINE void *host_constant(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (UNLIKELY(address & (size - 1)) || UNLIKELY(host_is_outside(address, size, t->constant_size)))
        host_outside(t, site, address, size, HOST_FAULT_ADDRESS);
    return (void *)(t->constant + address);
}

// Of as many bytes as a register says, a multiple of 16, as bulk copies have them
INLINE unsigned char *host_range_shared(struct host_thread *t, uint32_t site, uint64_t address,
                                        uint64_t size) {
    if (UNLIKELY((address | size) & 15) || UNLIKELY(host_is_outside(address, size, t->shared_size)))
        t->services->fault(t, site, (address | size) & 15 ? HOST_FAULT_MISALIGNED : HOST_FAULT_SHARED,
                           address);
    return t->shared + address;
}

INLINE unsigned char *host_range_global(struct host_thread *t, uint32_t site, uint64_t address,
                                        uint64_t size) {
    if (UNLIKELY((address | size) & 15))
        t->services->fault(t, site, HOST_FAULT_MISALIGNED, address);
    if (size)
        t->services->see(t, site, address, size);
    return (unsigned char *)address;
}

// The first `given` of `size` bytes of global memory; zeros become the rest.
INLINE void host_copy_part(struct host_thread *t, uint32_t site, unsigned char *to, uint64_t address,
                           uint64_t given, uint64_t size) {
    if (UNLIKELY(address & (size - 1)))
        t->services->fault(t, site, HOST_FAULT_MISALIGNED, address);
    memset(to, 0, size);
    if (given) {
        t->services->see(t, site, address, given);
        memcpy(to, (const void *)address, given);
    }
}

// mbarriers. Bit 63 is the phase; bits 43 to 62 are how many arrivals a phase expects, 23 to 42 how many it
// still does, 0 to 22 the bytes that it waits for, signed.
enum { HOST_PENDING = 23, HOST_EXPECTED = 43, HOST_COUNT = 0xfffff };

INLINE uint64_t host_mbarrier(uint64_t count) {
    return (count & HOST_COUNT) << HOST_EXPECTED | (count & HOST_COUNT) << HOST_PENDING;
}

INLINE uint32_t host_pending(uint64_t state) { return state >> HOST_PENDING & HOST_COUNT; }

// The next phase, if nothing is waited for in this one.
INLINE void host_complete(uint64_t *barrier) {
    uint64_t expected = *barrier >> HOST_EXPECTED & HOST_COUNT;
    if ((*barrier & ((1ull << HOST_EXPECTED) - 1)) == 0)
        *barrier = (~*barrier & 1ull << 63) | host_mbarrier(expected);
}

INLINE void host_transfer(uint64_t *barrier, int64_t bytes) {
    uint64_t mask = (1ull << HOST_PENDING) - 1;
    *barrier = (*barrier & ~mask) | ((*barrier + (uint64_t)bytes) & mask);
    host_complete(barrier);
}

INLINE uint64_t host_arrive(uint64_t *barrier, uint32_t count, uint32_t bytes, bool drop) {
    uint64_t before = *barrier, mask = (1ull << HOST_PENDING) - 1;
    uint64_t after = (before & ~mask) | ((before + bytes) & mask);
    after -= (uint64_t)count << HOST_PENDING;
    *barrier = drop ? after - ((uint64_t)count << HOST_EXPECTED) : after;
    host_complete(barrier);
    return before;
}

// Integers. PTX's own text says what those of an opcode's name do.

INLINE int32_t saturate_s32(int64_t value) {
    return (int32_t)(value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value);
}

// The nearest integer of so many bits
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

// The halves of words, one by one
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

// The selectors of prmt's modes, by the two lowest bits of c
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
    if (offset == INT32_MIN) // what an H200 makes of it
        return 0;
    int64_t count = (offset > 0 ? (int64_t)offset : -(int64_t)offset) - 1;
    for (int64_t at = base; at >= 0 && at < 32; at += offset > 0 ? 1 : -1)
        if (mask >> at & 1 && count-- == 0)
            return (uint32_t)at;
    return ~0u;
}

// Positions and lengths are of 8 bits for words of 32. For those of 64, where the PTX manual says the same,
// an H200 takes all of them.
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
    a = (int64_t)((uint64_t)a << (63 - last)) >> (63 - last); // the field's highest bit is that of the sign
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

// Video instructions: of parts of words, in 64 bits
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

INLINE int64_t video_part(uint64_t words, uint32_t number, unsigned bits, bool is_signed) {
    uint64_t part = words >> bits * number << (64 - bits);
    return is_signed ? (int64_t)part >> (64 - bits) : (int64_t)(part >> (64 - bits));
}

// `select_a` and `select_b` have the number of a part of b:a for each lane, as hex digits.
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
