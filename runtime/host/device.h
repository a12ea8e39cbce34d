// What code made by `gpt-asm --arch host` is made of besides its own lines: accesses to memory, integers.
// math.h beside it has floating point.

#ifndef GPT_HOST_DEVICE_H
#define GPT_HOST_DEVICE_H

#include "abi.h"

#include <string.h>
#include <time.h>

typedef unsigned __int128 uint128_t;
typedef __int128 int128_t;

#define INLINE static inline __attribute__((always_inline, unused))
#define OUTLINE static __attribute__((noinline, cold, unused))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

// Modifiers, as rows of tables name them: FLAG, then the modifier if it is there.
enum { FLAG = 0, FLAG_sat = 1, FLAG_ftz = 1, FLAG_relu = 1, FLAG_satfinite = 1 };

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
enum { HOST_RESERVE = 8192 };

INLINE void host_enter(struct host_thread *t, uint32_t site, uint64_t size) {
    uint64_t left = (uint64_t)((unsigned char *)__builtin_frame_address(0) - t->local);
    if (UNLIKELY(left < size + HOST_RESERVE))
        t->services->fault(t, site, HOST_FAULT_STACK, 0);
}

INLINE void host_back(struct host_thread *t, uint32_t site) {
    if (UNLIKELY(--t->budget < 0))
        t->services->turn(t, site);
}

INLINE uint64_t host_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Memory: each gives the address in the host of `size` bytes, a power of two, that may be accessed.

OUTLINE void *host_outside(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size,
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
        return host_outside(t, site, address, size, HOST_FAULT_SHARED);
    return t->shared + address;
}

INLINE void *host_local(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (UNLIKELY(address & (size - 1)) || UNLIKELY(host_is_outside(address, size, t->local_size)))
        return host_outside(t, site, address, size, HOST_FAULT_LOCAL);
    return t->local + address;
}

INLINE void *host_constant(struct host_thread *t, uint32_t site, uint64_t address, uint64_t size) {
    if (UNLIKELY(address & (size - 1)) || UNLIKELY(host_is_outside(address, size, t->constant_size)))
        return host_outside(t, site, address, size, HOST_FAULT_ADDRESS);
    return (void *)(t->constant + address);
}

// Integers

INLINE int32_t saturate_s32(int64_t value) {
    return (int32_t)(value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value);
}

#endif
