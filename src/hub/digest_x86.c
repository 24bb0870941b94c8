/* digest_x86.c - SHA-256 with the processor's own instructions: five times as fast, so that one connection of
 * 10 Gbit/s does not wait for its checksum. */
#include "hub/digest.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>

bool digest_x86_works(void)
{
    unsigned a, b, c, d, b7, ignored;
    bool known = __get_cpuid(1, &a, &b, &c, &d) && __get_cpuid_count(7, 0, &ignored, &b7, &ignored, &ignored);
    return known && (c & bit_SSSE3) && (c & bit_SSE4_1) && (b7 & bit_SHA);
}

/* The state is kept as the instructions want it: a, b, e, f in one register, c, d, g, h in the other. */
#define TARGET __attribute__((target("sha,sse4.1,ssse3")))

static const uint32_t constants[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* Four words of the schedule from the sixteen before them, w[0] to w[3]. */
TARGET static __m128i schedule(const __m128i w[4])
{
    __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[0], w[1]), _mm_alignr_epi8(w[3], w[2], 4));
    return _mm_sha256msg2_epu32(sum, w[3]);
}

TARGET static void add_block(__m128i *abef, __m128i *cdgh, const uint8_t *p)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i w[4], first = *abef, second = *cdgh;
    for (int i = 0; i < 16; i++) {
        __m128i now;
        if (i < 4) {
            now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p + i), order);
        } else {
            now = schedule(w);
            w[0] = w[1];
            w[1] = w[2];
            w[2] = w[3];
        }
        w[i < 4 ? i : 3] = now;
        __m128i k = _mm_add_epi32(now, _mm_load_si128((const __m128i *)(const void *)constants + i));
        __m128i next = _mm_sha256rnds2_epu32(second, first, k);
        second = first;
        first = next;
        next = _mm_sha256rnds2_epu32(second, first, _mm_shuffle_epi32(k, 0x0e));
        second = first;
        first = next;
    }
    *abef = _mm_add_epi32(*abef, first);
    *cdgh = _mm_add_epi32(*cdgh, second);
}

TARGET void digest_x86_sha256(uint32_t state[8], const uint8_t *bytes, size_t n)
{
    __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    uint32_t out[2][4];
    for (size_t i = 0; i < n; i++)
        add_block(&abef, &cdgh, bytes + i * DIGEST_BLOCK);
    _mm_storeu_si128((__m128i *)(void *)out[0], abef);
    _mm_storeu_si128((__m128i *)(void *)out[1], cdgh);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 4; i++)
            state[(i < 2 ? 5 - i : 3 - i) + 2 * half] = out[half][i];
}

#else

bool digest_x86_works(void)
{
    return false;
}

void digest_x86_sha256(uint32_t state[8], const uint8_t *bytes, size_t n)
{
    digest_sha256_plain(state, bytes, n);
}

#endif
