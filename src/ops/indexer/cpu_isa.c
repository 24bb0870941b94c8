/* The inner loop of the indexer for one instruction set; the Makefile compiles this file once for each. */
#include "ops/indexer/cpu.h"

#include "cpu/vec.h"

/* Queries that meet a row at the same time. */
enum { HEADS = 4 };

void VEC_NAME(indexer_scores)(const struct indexer_tile *t);

/* Multiplies a row with n of the queries at q, which share its loads. */
VEC_INLINE void dots(const float *q, const float *row, uint32_t dim, int n, float *out)
{
    struct vec acc[HEADS][2];
#pragma GCC unroll 4
    for (int h = 0; h < n; h++)
        acc[h][0] = acc[h][1] = vec_zero();
    for (uint32_t c = 0; c < dim; c += 2 * VEC_LANES) {
        uint32_t odd = c + VEC_LANES;
        struct vec even_row = vec_load_some(row + c, dim - c);
#pragma GCC unroll 4
        for (int h = 0; h < n; h++)
            acc[h][0] = vec_fma(vec_load_some(q + (uint64_t)h * dim + c, dim - c), even_row, acc[h][0]);
        if (odd >= dim)
            break;
        struct vec odd_row = vec_load_some(row + odd, dim - odd);
#pragma GCC unroll 4
        for (int h = 0; h < n; h++)
            acc[h][1] = vec_fma(vec_load_some(q + (uint64_t)h * dim + odd, dim - odd), odd_row, acc[h][1]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < n; h++)
        out[h] = vec_sum(vec_add(acc[h][0], acc[h][1]));
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
        float score = 0, d[HEADS];
        for (uint32_t first = 0; first < t->n_heads; first += HEADS) {
            const float *q = t->q + (uint64_t)first * t->dim;
            uint32_t n = t->n_heads - first < HEADS ? t->n_heads - first : HEADS;
            if (n == HEADS)
                dots(q, row, t->dim, HEADS, d);
            for (uint32_t h = 0; n < HEADS && h < n; h++)
                dots(q + (uint64_t)h * t->dim, row, t->dim, 1, d + h);
            for (uint32_t h = 0; t->by_head && h < n; h++)
                t->scores[(uint64_t)(first + h) * t->stride + i] = d[h];
            for (uint32_t h = 0; !t->by_head && h < n; h++) {
                d[h] = d[h] < 0 ? 0 : d[h];
                score += t->weights ? t->weights[first + h] * d[h] : d[h];
            }
        }
        if (!t->by_head)
            t->scores[i] = score;
    }
}
