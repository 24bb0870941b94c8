/* The inner loop of the indexer for one instruction set; the Makefile compiles this file once for each. */
#include "ops/indexer/cpu.h"

#include "cpu/vec.h"

void VEC_NAME(indexer_scores)(const struct indexer_tile *t);

VEC_INLINE struct vec load_some(const float *p, uint32_t n)
{
    return n >= VEC_LANES ? vec_load(p) : vec_load_n(p, n);
}

static float dot(const float *x, const float *y, uint32_t n)
{
    struct vec acc[2] = {vec_zero(), vec_zero()};
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        struct vec *to = &acc[c / VEC_LANES % 2];
        *to = vec_fma(load_some(x + c, n - c), load_some(y + c, n - c), *to);
    }
    return vec_sum(vec_add(acc[0], acc[1]));
}

static const float *wide_row(const struct indexer_tile *t, uint32_t i)
{
    uint32_t whole = t->dim / VEC_LANES * VEC_LANES;
    if (!t->f16)
        return (const float *)t->rows + (uint64_t)i * t->dim;
    const uint16_t *row = (const uint16_t *)t->rows + (uint64_t)i * t->dim;
    for (uint32_t c = 0; c < whole; c += VEC_LANES)
        vec_store(t->wide + c, vec_load_f16(row + c));
    if (whole < t->dim) {
        uint16_t last[VEC_LANES] = {0};
        memcpy(last, row + whole, (t->dim - whole) * sizeof *row);
        vec_store_n(t->wide + whole, vec_load_f16(last), t->dim - whole);
    }
    return t->wide;
}

void VEC_NAME(indexer_scores)(const struct indexer_tile *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const float *row = wide_row(t, i);
        float score = 0;
        for (uint32_t h = 0; h < t->n_heads; h++) {
            float d = dot(t->q + (uint64_t)h * t->dim, row, t->dim);
            d = d < 0 ? 0 : d;
            score += t->weights ? t->weights[h] * d : d;
        }
        t->scores[i] = score;
    }
}
