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

/* Puts the bytes of even and of odd columns into the order of column_digits: the lanes' first and second 4
 * columns. */
VEC_INLINE void to_lanes(struct ivec even, struct ivec odd, int8_t *first, int8_t *second)
{
#ifdef VEC_AVX
    /* Lots of 16 columns: 0 and 2, 1 and 3; then their first halves before their second ones. */
    __m256i low = _mm256_unpacklo_epi8((__m256i)even.a, (__m256i)odd.a),
            high = _mm256_unpackhi_epi8((__m256i)even.a, (__m256i)odd.a);
    low = _mm256_permute4x64_epi64(low, 0xd8);
    high = _mm256_permute4x64_epi64(high, 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)first, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)second, _mm256_permute2x128_si256(low, high, 0x31));
#else
    int8_t bytes[2][HALF_COLS];
    ivec_store(bytes[0], even);
    ivec_store(bytes[1], odd);
    for (uint32_t i = 0; i < HALF_COLS; i++) {
        uint32_t column = cpu_block_lane(i / 4) + i % 4;
        first[i] = bytes[column % 2][column / 2];
        second[i] = bytes[column % 2][column / 2 + 4];
    }
#endif
}

#if BLOCK_WIDE
/* Sets half of a block's wide digits from its column digits. */
VEC_INLINE void put_wide(int16_t *to, const int8_t *digits)
{
    __m256i d[3], *v = (__m256i *)(void *)to;
    for (size_t k = 0; k < 3; k++)
        d[k] = _mm256_loadu_si256((const __m256i *)(const void *)(digits + k * DIGIT_BYTES));
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(d[1], 8), 8), odd = _mm256_srai_epi16(d[1], 8);
    __m256i odd_0 = _mm256_andnot_si256(_mm256_set1_epi16(0xff), d[0]);
    _mm256_storeu_si256(v, _mm256_add_epi16(_mm256_slli_epi16(d[0], 8), even));
    _mm256_storeu_si256(v + 1, _mm256_add_epi16(odd_0, odd));
    _mm256_storeu_si256(v + 2, _mm256_srai_epi16(_mm256_slli_epi16(d[2], 8), 8));
    _mm256_storeu_si256(v + 3, _mm256_srai_epi16(d[2], 8));
}
#endif

/* Sums over the first and the second 4 of 8 columns, a lane for each 8. */
struct fours {
    struct ivec of[2];
};

/* Adds up the two fours of each lane of a block format. */
VEC_INLINE void put_sums(const struct fours *sums, int32_t out[VEC_LANES])
{
    int32_t fours[2][VEC_LANES];
    ivec_store(fours[0], sums->of[0]);
    ivec_store(fours[1], sums->of[1]);
    for (uint32_t l = 0; l < VEC_LANES; l++) {
        uint32_t eight = cpu_block_lane(l) / 8;
        out[l] = fours[l % 2][eight] + fours[l % 2][eight + 1];
    }
}

/* Sets the sums of 16 columns and of the lanes' digits. total: sums of 8 columns; all: sums of x / step; low:
 * sums of the last digit. */
static void put_lanes(const struct cpu_vector *v, uint32_t b, struct vec total, const struct fours *all,
                      const struct fours *low)
{
    const size_t at = (size_t)b * VEC_LANES;
    float sums[VEC_LANES], *sums_16 = v->sums_16 + (size_t)4 * b;
    vec_store(sums, total);
    put_sums(all, v->lanes_all + at);
    put_sums(low, v->lanes_low + at);
    for (uint32_t l = 0; l < VEC_LANES; l++) {
        size_t eight = cpu_block_lane(l) / 8;
        v->lanes_high[at + l] = (v->lanes_all[at + l] - v->lanes_low[at + l]) / 256;
        sums_16[l / 2] = sums[eight] + sums[eight + 1];
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

    const struct ivec zero = ivec_set1(0);
    struct fours all = {{zero, zero}}, low = all;
    struct ivec packed[2][3];
    float step = step_of(columns);
    struct vec by = vec_set1(step > 0 ? step : 1);
    for (size_t odd = 0; odd < 2; odd++) {
        for (int k = 0; k < 3; k++)
            packed[odd][k] = zero;
        for (size_t i = 0; i < 4 && step > 0; i++) {
            struct ivec d[3];
            struct ivec whole = ivec_nearest(vec_div(vec_bits(columns[2 * i + odd]), by));
            all.of[i / 2] = ivec_add(all.of[i / 2], whole);
            split(whole, d);
            low.of[i / 2] = ivec_add(low.of[i / 2], d[2]);
            for (int k = 0; k < 3; k++)
                packed[odd][k] =
                    ivec_or(packed[odd][k], ivec_left(ivec_and(d[k], ivec_set1(255)), 8 * (int)i));
        }
        for (size_t k = 0; k < 3; k++)
            ivec_store(digits + k * 2 * CPU_BLOCK + odd * CPU_BLOCK, packed[odd][k]);
    }
    if (v->column_digits) {
        for (size_t k = 0; k < 3; k++) {
            int8_t *first = v->column_digits + at + k * DIGIT_BYTES;
            to_lanes(packed[0][k], packed[1][k], first, first + CPU_BLOCK);
        }
        put_lanes(v, b, total, &all, &low);
#if BLOCK_WIDE
        int16_t *wide = v->wide_digits + (size_t)b * BLOCK_WIDE_DIGITS;
        put_wide(wide, v->column_digits + at);
        put_wide(wide + BLOCK_WIDE_DIGITS / 2, v->column_digits + at + CPU_BLOCK);
#endif
    }
    v->steps[b] = step;
    const struct ivec sum = ivec_add(all.of[0], all.of[1]);
    ivec_store(v->shifted + (size_t)b * VEC_LANES, ivec_add(ivec_left(sum, 3), ivec_left(sum, 2)));
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
