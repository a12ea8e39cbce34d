// Included by the C code that `gpt-asm --arch host` generates: control flow, memory accesses and mbarriers.
// integers.h and math.h have the arithmetic.

#ifndef GPT_HOST_DEVICE_H
#define GPT_HOST_DEVICE_H

#include "abi.h"

#include "lanes.h"

#include <string.h>
#include <time.h>

#define INLINE static inline __attribute__((always_inline, unused))
#define OUTLINE static __attribute__((noinline, cold, unused))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

// Modifiers, named as in the tables' rows: FLAG followed by the modifier, if any.
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
    FLAG_payload = 256, // belongs to no modifier: a NaN keeps its upper bits
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

// How many bytes of stack our own functions and the services need, besides the frame of a generated function.
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

// A device function that may be called through a pointer. The list of them ends with an entry without code.
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

// alloca: sets `top` to the address of `size` bytes, reusing bytes that stackrestore released if there are
// enough. The stack grows down from `high`; C has reserved it down to `low`.
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

// Return the address of a frame's variable in the window of local memory. The compiler can't see that an
// access through the window may reach the variable, so the empty asm statement hides where the address comes
// from.
INLINE uint64_t host_offset(const struct host_thread *t, const unsigned char *place) {
    __asm__("" : "+r"(place) : : "memory");
    return (uint64_t)(place - t->local);
}

INLINE uint64_t host_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Memory. Each function checks that `size` bytes at an address may be accessed, and returns their host
// address. `size` is a power of two.

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

// Return an address in a kernel's parameters, which take `total` bytes
INLINE const void *host_parameter(struct host_thread *t, uint32_t site, const unsigned char *parameters,
                                  uint64_t total, uint64_t address, uint64_t size) {
    if (UNLIKELY(address & (size - 1)) || UNLIKELY(host_is_outside(address, size, total)))
        host_outside(t, site, address, size, HOST_FAULT_ADDRESS);
    return parameters + address;
}

// Convert a generic address to one in shared memory; leaves addresses in shared memory as they are.
INLINE uint64_t host_to_shared(const struct host_thread *t, uint64_t address) {
    return address >> 32 ? address - (uint64_t)t->shared : address;
}

// Check the range of a bulk copy. Its size comes from a register and must be a multiple of 16
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

// Copy the first `given` of `size` bytes of global memory, and fill the rest with zeros.
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

// mbarriers, in a format of our own: bit 63 is the phase, bits 43 to 62 are the number of arrivals that each
// phase expects, bits 23 to 42 how many of them are still missing, and bits 0 to 22 the number of bytes still
// to arrive, signed.
enum { HOST_PENDING = 23, HOST_EXPECTED = 43, HOST_COUNT = 0xfffff };

INLINE uint64_t host_mbarrier(uint64_t count) {
    return (count & HOST_COUNT) << HOST_EXPECTED | (count & HOST_COUNT) << HOST_PENDING;
}

INLINE uint32_t host_pending(uint64_t state) { return state >> HOST_PENDING & HOST_COUNT; }

// Begin the next phase if this one waits for nothing more.
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

#endif
