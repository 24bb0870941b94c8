/* quantise (product.h): a vector in fixed point and the sums of its groups, for one instruction set. */
#include "cpu/table.h"

#include <float.h>

#include "cpu/block_codes.h"

/* The largest number whose three digits are bytes: 127 * 65536 - 1. */
enum { TOP = 8323071, INFINITE = 0x7f800000 };

/* Splits v = ((d[0] * 256) + d[1]) * 256 + d[2] into digits from -128 to 127. Example: 200 = 1 * 256 - 56 has
 * the digits 0, 1, -56. */
VEC_INLINE void split(struct ivec v, struct ivec d[3])
{
    for (int k = 2; k > 0; k--) {
        d[k] = ivec_right_signed(ivec_left(v, 24), 24);
        v = ivec_right_signed(ivec_sub(v, d[k]), 8);
    }
    d[0] = v;
}

/* Returns a block's step: 0 for zeros, NaN if a value is infinite or a NaN. */
static float step_of(const struct ivec columns[VEC_LANES])
{
    struct ivec most = ivec_set1(0);
    for (int i = 0; i < VEC_LANES; i++)
        most = ivec_max(most, ivec_bits(vec_abs(vec_bits(columns[i]))));
    /* The bits of positive floats are ordered as the floats are, infinity and NaN above all numbers. */
    int32_t bits = ivec_largest(most);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    if (bits >= INFINITE)
        return NAN;
    float step = largest / TOP;
    return largest > 0 && step < FLT_MIN ? FLT_MIN : step;
}

/* Returns the parts of vec_sum's tree for lanes 0 to 3 and for 4 to 7. */
VEC_INLINE void sum_halves(struct vec x, float out[2])
{
    float lanes[VEC_LANES];
    vec_store(lanes, x);
    for (size_t i = 0; i < 2; i++) {
        const float *l = lanes + 4 * i;
        out[i] = (l[0] + l[2]) + (l[1] + l[3]);
    }
}

/* Puts the bytes of even and of odd columns into the order of the columns. */
VEC_INLINE void interleave(struct ivec even, struct ivec odd, int8_t *first, int8_t *second)
{
#ifdef VEC_AVX
    __m256i low = _mm256_unpacklo_epi8((__m256i)even.a, (__m256i)odd.a),
            high = _mm256_unpackhi_epi8((__m256i)even.a, (__m256i)odd.a);
    _mm256_storeu_si256((__m256i *)(void *)first, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)second, _mm256_permute2x128_si256(low, high, 0x31));
#else
    enum { HALF = CPU_BLOCK / 2 };
    int8_t bytes[2][HALF];
    ivec_store(bytes[0], even);
    ivec_store(bytes[1], odd);
    for (int i = 0; i < HALF; i++) {
        first[i] = bytes[i % 2][i / 2];
        second[i] = bytes[i % 2][HALF / 2 + i / 2];
    }
#endif
}

#if BLOCK_WIDE
/* Sets a block's wide digits. d: the digits' bytes of even or of odd columns. */
VEC_INLINE void put_wide(int16_t *to, const struct ivec d[3])
{
    for (int half = 0; half < 2; half++, to += BLOCK_WIDE_DIGITS / 2) {
        __m256i v[3];
        for (int k = 0; k < 3; k++)
            v[k] = _mm256_cvtepi8_epi16(half ? _mm256_extracti128_si256((__m256i)d[k].a, 1)
                                             : _mm256_castsi256_si128((__m256i)d[k].a));
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_add_epi16(_mm256_slli_epi16(v[0], 8), v[1]));
        _mm256_storeu_si256((__m256i *)(void *)(to + 2 * PAIR_LANES), v[2]);
    }
}
#endif

/* Sets the sums of 16 columns and of the lanes' digits. total: sums of 8 columns; all: sums of x / step; low:
 * sums of the last digit. */
static void put_lanes(const struct cpu_vector *v, uint32_t b, struct vec total, struct ivec all,
                      struct ivec low)
{
    float sums[VEC_LANES], *sums_16 = v->sums_16 + (size_t)4 * b;
    int32_t wholes[VEC_LANES], lows[VEC_LANES];
    vec_store(sums, total);
    ivec_store(wholes, all);
    ivec_store(lows, low);
    for (uint32_t l = 0; l < VEC_LANES; l++) {
        size_t from = cpu_block_lane(l) / VEC_LANES;
        v->lanes_all[(size_t)b * VEC_LANES + l] = wholes[from];
        v->lanes_high[(size_t)b * VEC_LANES + l] = (wholes[from] - lows[from]) / 256;
        v->lanes_low[(size_t)b * VEC_LANES + l] = lows[from];
        sums_16[l / 2] = sums[from / 2 * 2] + sums[from / 2 * 2 + 1];
    }
}

/* Sets the parts of v for block b from its columns at x. */
static void quantise_block(const struct cpu_vector *v, uint32_t b, const float *x)
{
    size_t at = (size_t)b / 2 * PAIR_DIGITS + (size_t)b % 2 * (CPU_BLOCK / 2);
    int8_t *digits = v->digits + at;
    const void *rows[VEC_LANES];
    struct ivec columns[VEC_LANES]; /* lane l of columns[i]: column 8 l + i */
    for (size_t l = 0; l < VEC_LANES; l++)
        rows[l] = x + VEC_LANES * l;
    vec_turn(rows, columns);
    struct vec total = vec_bits(columns[0]);
    for (int i = 1; i < VEC_LANES; i++)
        total = vec_add(total, vec_bits(columns[i]));
    v->sums[b] = vec_sum(total);
    sum_halves(total, v->sums_32 + (size_t)2 * b);

    struct ivec all = ivec_set1(0), low = all, packed[2][3];
    float step = step_of(columns);
    struct vec by = vec_set1(step > 0 ? step : 1);
    for (size_t odd = 0; odd < 2; odd++) {
        for (int k = 0; k < 3; k++)
            packed[odd][k] = ivec_set1(0);
        for (size_t i = 0; i < 4 && step > 0; i++) {
            struct ivec d[3];
            struct ivec whole = ivec_nearest(vec_div(vec_bits(columns[2 * i + odd]), by));
            all = ivec_add(all, whole);
            split(whole, d);
            low = ivec_add(low, d[2]);
            for (int k = 0; k < 3; k++)
                packed[odd][k] =
                    ivec_or(packed[odd][k], ivec_left(ivec_and(d[k], ivec_set1(255)), 8 * (int)i));
        }
        for (size_t k = 0; k < 3; k++)
            ivec_store(digits + k * 2 * CPU_BLOCK + odd * CPU_BLOCK, packed[odd][k]);
    }
    if (v->column_digits) {
        for (size_t k = 0; k < 3; k++) {
            int8_t *in_order = v->column_digits + at + k * 2 * CPU_BLOCK;
            interleave(packed[0][k], packed[1][k], in_order, in_order + CPU_BLOCK);
        }
        put_lanes(v, b, total, all, low);
#if BLOCK_WIDE
        for (size_t odd = 0; odd < 2; odd++)
            put_wide(v->wide_digits + (size_t)b * BLOCK_WIDE_DIGITS + odd * PAIR_LANES, packed[odd]);
#endif
    }
    v->steps[b] = step;
    ivec_store(v->shifted + (size_t)b * VEC_LANES, ivec_add(ivec_left(all, 3), ivec_left(all, 2)));
}
_Static_assert(CODES_SHIFT == (1 << 3) + (1 << 2), "the shifts above");

void VEC_NAME(quantise)(struct cpu_vector *v, const float *x)
{
    static const float zeros[CPU_BLOCK];
    uint32_t n = v->cols / CPU_BLOCK, padded = (n + 7) / 8 * 8;
    v->x = x;
    for (uint32_t b = 0; b < padded; b++)
        quantise_block(v, b, b < n ? x + (uint64_t)b * CPU_BLOCK : zeros);
    uint32_t n_sums = (padded / 2 + 7) / 8 * 8;
    for (size_t g = 0; g < n_sums; g++)
        v->sums_128[g] = 2 * g < padded ? v->sums[2 * g] + v->sums[2 * g + 1] : 0;
}
