#include "cpu/table.h"

#include <float.h>

#include "cpu/codes.h"

/* The largest number whose three digits are bytes: 127 * 65536 - 1. */
enum { TOP = 8323071, INFINITE = 0x7f800000 };

/* v = ((d[0] * 256) + d[1]) * 256 + d[2], digits from -128 to 127. */
VEC_INLINE void split(struct ivec v, struct ivec d[3])
{
    for (int k = 2; k > 0; k--) {
        d[k] = ivec_right_signed(ivec_left(v, 24), 24);
        v = ivec_right_signed(ivec_sub(v, d[k]), 8);
    }
    d[0] = v;
}

/* 0 for zeros, NaN where a value is none. */
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

/* digits: those of the block within its pair. Returns its step; *sum gets the sum of x. */
static float quantise_block(const float *x, int8_t *digits, float *sum)
{
    const void *rows[VEC_LANES];
    struct ivec columns[VEC_LANES]; /* lane l of columns[i]: column 8 l + i */
    for (size_t l = 0; l < VEC_LANES; l++)
        rows[l] = x + VEC_LANES * l;
    vec_turn(rows, columns);
    struct vec total = vec_bits(columns[0]);
    for (int i = 1; i < VEC_LANES; i++)
        total = vec_add(total, vec_bits(columns[i]));
    *sum = vec_sum(total);

    float step = step_of(columns);
    struct vec by = vec_set1(step > 0 ? step : 1);
    for (size_t odd = 0; odd < 2; odd++) {
        struct ivec packed[3] = {ivec_set1(0), ivec_set1(0), ivec_set1(0)};
        for (size_t i = 0; i < 4 && step > 0; i++) {
            struct ivec d[3];
            split(ivec_nearest(vec_div(vec_bits(columns[2 * i + odd]), by)), d);
            for (int k = 0; k < 3; k++)
                packed[k] = ivec_or(packed[k], ivec_left(ivec_and(d[k], ivec_set1(255)), 8 * (int)i));
        }
        for (size_t k = 0; k < 3; k++)
            ivec_store(digits + k * 2 * CPU_BLOCK + odd * CPU_BLOCK, packed[k]);
    }
    return step;
}

void VEC_NAME(quantise)(struct cpu_vector *v, const float *x)
{
    uint32_t n = v->cols / CPU_BLOCK, padded = (n + 7) / 8 * 8;
    v->x = x;
    for (uint32_t b = 0; b < padded; b++) {
        int8_t *digits = v->digits + (size_t)b / 2 * PAIR_DIGITS + (size_t)b % 2 * (CPU_BLOCK / 2);
        static const float zeros[CPU_BLOCK];
        v->steps[b] = quantise_block(b < n ? x + (uint64_t)b * CPU_BLOCK : zeros, digits, &v->sums[b]);
    }
}
