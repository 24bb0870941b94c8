/* quantise (product.h): a vector in fixed point and the sums of its groups, for one instruction set. */
#include "cpu/table.h"

#include <float.h>

#include "cpu/codes.h"

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

/* Sets the parts of v for block b from its columns at x. */
static void quantise_block(const struct cpu_vector *v, uint32_t b, const float *x)
{
    int8_t *digits = v->digits + (size_t)b / 2 * PAIR_DIGITS + (size_t)b % 2 * (CPU_BLOCK / 2);
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

    struct ivec all = ivec_set1(0);
    float step = step_of(columns);
    struct vec by = vec_set1(step > 0 ? step : 1);
    for (size_t odd = 0; odd < 2; odd++) {
        struct ivec packed[3] = {ivec_set1(0), ivec_set1(0), ivec_set1(0)};
        for (size_t i = 0; i < 4 && step > 0; i++) {
            struct ivec d[3];
            struct ivec whole = ivec_nearest(vec_div(vec_bits(columns[2 * i + odd]), by));
            all = ivec_add(all, whole);
            split(whole, d);
            for (int k = 0; k < 3; k++)
                packed[k] = ivec_or(packed[k], ivec_left(ivec_and(d[k], ivec_set1(255)), 8 * (int)i));
        }
        for (size_t k = 0; k < 3; k++)
            ivec_store(digits + k * 2 * CPU_BLOCK + odd * CPU_BLOCK, packed[k]);
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
