// Atomic operations. Each returns the old value; floats are passed as their bits.

#ifndef GPT_HOST_ATOMICS_H
#define GPT_HOST_ATOMICS_H

#include "math.h"

// `next` is the new value, an expression of `old` and `b`.
#define ATOMIC(name, type, next)                                                                             \
    CALLED type atomic_##name(struct host_thread *t, type *at, type b) {                                     \
        (void)t;                                                                                             \
        type old = __atomic_load_n(at, __ATOMIC_RELAXED);                                                    \
        while (                                                                                              \
            !__atomic_compare_exchange_n(at, &old, (type)(next), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
            ;                                                                                                \
        return old;                                                                                          \
    }
#define ATOMIC_FETCH(name, type, fetch)                                                                      \
    CALLED type atomic_##name(struct host_thread *t, type *at, type b) {                                     \
        (void)t;                                                                                             \
        return fetch(at, b, __ATOMIC_SEQ_CST);                                                               \
    }
#define ATOMIC_CAS(name, type)                                                                               \
    CALLED type atomic_##name(struct host_thread *t, type *at, type b, type c) {                             \
        (void)t;                                                                                             \
        return __sync_val_compare_and_swap(at, b, c);                                                        \
    }
ATOMIC_FETCH(and_b32, uint32_t, __atomic_fetch_and)
ATOMIC_FETCH(and_b64, uint64_t, __atomic_fetch_and)
ATOMIC_FETCH(or_b32, uint32_t, __atomic_fetch_or)
ATOMIC_FETCH(or_b64, uint64_t, __atomic_fetch_or)
ATOMIC_FETCH(xor_b32, uint32_t, __atomic_fetch_xor)
ATOMIC_FETCH(xor_b64, uint64_t, __atomic_fetch_xor)
ATOMIC_FETCH(exch_b32, uint32_t, __atomic_exchange_n)
ATOMIC_FETCH(exch_b64, uint64_t, __atomic_exchange_n)
ATOMIC_FETCH(add_u32, uint32_t, __atomic_fetch_add)
ATOMIC_FETCH(add_s32, uint32_t, __atomic_fetch_add)
ATOMIC_FETCH(add_u64, uint64_t, __atomic_fetch_add)
ATOMIC_FETCH(add_s64, uint64_t, __atomic_fetch_add)
ATOMIC(inc_u32, uint32_t, old >= b ? 0 : old + 1)
ATOMIC(dec_u32, uint32_t, old == 0 || old > b ? b : old - 1)
ATOMIC(min_u32, uint32_t, b < old ? b : old)
ATOMIC(max_u32, uint32_t, b > old ? b : old)
ATOMIC(min_u64, uint64_t, b < old ? b : old)
ATOMIC(max_u64, uint64_t, b > old ? b : old)
ATOMIC(min_s32, uint32_t, (int32_t)b < (int32_t)old ? b : old)
ATOMIC(max_s32, uint32_t, (int32_t)b > (int32_t)old ? b : old)
ATOMIC(min_s64, uint64_t, (int64_t)b < (int64_t)old ? b : old)
ATOMIC(max_s64, uint64_t, (int64_t)b > (int64_t)old ? b : old)
ATOMIC_CAS(cas_b16, uint16_t)
ATOMIC_CAS(cas_b32, uint32_t)
ATOMIC_CAS(cas_b64, uint64_t)
ATOMIC_CAS(cas_b128, uint128_t)

CALLED uint128_t atomic_exch_b128(struct host_thread *t, uint128_t *at, uint128_t b) {
    (void)t;
    uint128_t old = *at, seen;
    while ((seen = __sync_val_compare_and_swap(at, old, b)) != old)
        old = seen;
    return old;
}

// atom.add.f32 flushes subnormal numbers to zero in global memory, but not in shared memory (PTX manual,
// atom).
INLINE uint32_t host_sum(struct host_thread *t, const void *at, uint32_t a, uint32_t b) {
    bool flush = (uint64_t)at - (uint64_t)t->shared >= t->shared_size;
    return bits_f32(f32_add(as_f32(a), as_f32(b), ROUND_rn, flush ? FLAG_ftz : FLAG));
}
ATOMIC(add_f32, uint32_t, host_sum(t, at, old, b))
ATOMIC(add_f64, uint64_t, bits_f64(f64_add(as_f64(old), as_f64(b), ROUND_rn, FLAG)))
#define ATOMIC_HALF(f, type)                                                                                 \
    ATOMIC(add_##f, type, f##_add(old, b, ROUND_rn, FLAG))                                                   \
    ATOMIC(min_##f, type, f##_min(old, b, FLAG))                                                             \
    ATOMIC(max_##f, type, f##_max(old, b, FLAG))
ATOMIC_HALF(f16, uint16_t)
ATOMIC_HALF(bf16, uint16_t)
ATOMIC_HALF(f16x2, uint32_t)
ATOMIC_HALF(bf16x2, uint32_t)

#undef ATOMIC_HALF
#undef ATOMIC_CAS
#undef ATOMIC_FETCH

#endif
