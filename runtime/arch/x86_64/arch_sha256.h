// SHA-256 by the instructions that some x86-64 processors have.

#ifndef GPT_ARCH_SHA256_H
#define GPT_ARCH_SHA256_H

#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// `k` are the 64 constants of FIPS 180-4.
__attribute__((target("sha,sse4.1,ssse3"))) static inline void
arch_sha256_blocks(uint32_t state[8], const unsigned char *data, size_t count, const uint32_t *k) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    // The instructions keep the state as (a b e f) and (c d g h).
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; count--; data += 64) {
        __m128i w[4], before = abef, before2 = cdgh;
        for (int i = 0; i < 16; i++) {
            __m128i words;
            if (i < 4)
                words = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + i), swap);
            else {
                words = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
                words = _mm_add_epi32(words, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
                words = _mm_sha256msg2_epu32(words, w[(i + 3) & 3]);
            }
            w[i & 3] = words;
            words = _mm_add_epi32(words, _mm_loadu_si128((const __m128i *)k + i));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0e));
        }
        abef = _mm_add_epi32(abef, before);
        cdgh = _mm_add_epi32(cdgh, before2);
    }
    low = _mm_shuffle_epi32(abef, 0x1b);
    high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(high, low, 8));
}

static inline bool arch_has_sha256(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 29;
}

#endif
