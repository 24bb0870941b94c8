#include "ops/attention_cpu.h"

#include "cpu/math.h"
#include "ops/loops.h"

void VEC_NAME(attention_tile)(struct attention_tile *t);

enum { POSITIONS = ATTENTION_POSITIONS, POSITION_VECS = POSITIONS / VEC_LANES };

/* Scores of some rows and positions as sums in 8 lanes. */
VEC_INLINE void dots(const struct attention_tile *t, uint32_t row, uint32_t pos, int rows, int n)
{
    const float *q = t->q + (uint64_t)row * t->key_dim, *k = t->keys + pos * t->key_stride;
    struct vec acc[8];
    for (int i = 0; i < rows * n; i++)
        acc[i] = vec_zero();
    for (uint32_t c = 0; c < t->key_dim; c += VEC_LANES)
        for (int p = 0; p < n; p++) {
            struct vec key = vec_load(k + (uint64_t)p * t->key_stride + c);
            for (int r = 0; r < rows; r++)
                acc[r * n + p] = vec_fma(key, vec_load(q + (uint64_t)r * t->key_dim + c), acc[r * n + p]);
        }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < n; p++)
            t->weights[(row + (uint32_t)r) * POSITIONS + pos + (uint32_t)p] = vec_sum(acc[r * n + p]);
}

VEC_INLINE void dots_of_rows(const struct attention_tile *t, uint32_t row, int rows, int n)
{
    uint32_t pos = 0;
    for (; pos + (uint32_t)n <= t->n; pos += (uint32_t)n)
        dots(t, row, pos, rows, n);
    for (; pos < t->n; pos++)
        dots(t, row, pos, rows, 1);
}

static void score_by_dots(const struct attention_tile *t)
{
    uint32_t row = 0;
    for (; row + 4 <= t->n_rows; row += 4)
        dots_of_rows(t, row, 4, 2);
    for (; row + 2 <= t->n_rows; row += 2)
        dots_of_rows(t, row, 2, 4);
    for (; row < t->n_rows; row++)
        dots_of_rows(t, row, 1, 8);
}

/* The keys with positions beside each other. */
static void make_panel(const struct attention_tile *t)
{
    for (uint32_t p = 0; p < POSITIONS; p += VEC_LANES)
        for (uint32_t c = 0; c < t->key_dim; c += VEC_LANES) {
            const void *rows[VEC_LANES];
            struct ivec columns[VEC_LANES];
            for (uint32_t i = 0; i < VEC_LANES; i++)
                rows[i] = p + i < t->n ? t->keys + (p + i) * t->key_stride + c : t->zeros;
            vec_turn(rows, columns);
            for (uint32_t i = 0; i < VEC_LANES; i++)
                ivec_store(t->panel + (uint64_t)(c + i) * POSITIONS + p, columns[i]);
        }
}

VEC_INLINE void panel_rows(const struct attention_tile *t, uint32_t row, int rows)
{
    const float *q = t->q + (uint64_t)row * t->key_dim;
    struct vec acc[3][POSITION_VECS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < POSITION_VECS; v++)
            acc[r][v] = vec_zero();
    for (uint32_t c = 0; c < t->key_dim; c++) {
        struct vec by[3];
        for (int r = 0; r < rows; r++)
            by[r] = vec_set1(q[(uint64_t)r * t->key_dim + c]);
        for (int v = 0; v < POSITION_VECS; v++) {
            struct vec key = vec_load(t->panel + (uint64_t)c * POSITIONS + v * VEC_LANES);
            for (int r = 0; r < rows; r++)
                acc[r][v] = vec_fma(key, by[r], acc[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < POSITION_VECS; v++)
            vec_store(t->weights + (row + (uint32_t)r) * POSITIONS + v * VEC_LANES, acc[r][v]);
}

static void score_by_panel(const struct attention_tile *t)
{
    uint32_t row = 0;
    make_panel(t);
    for (; row + 3 <= t->n_rows; row += 3)
        panel_rows(t, row, 3);
    if (row + 2 <= t->n_rows)
        panel_rows(t, row, 2);
    else if (row < t->n_rows)
        panel_rows(t, row, 1);
}

/* What was added up before counts relative to a larger score now. */
static void rescale(const struct attention_tile *t, uint32_t row, float top)
{
    struct vec by = math_exp(vec_set1(t->top[row] - top));
    float *sums = t->sums + (uint64_t)row * t->value_dim, *total = t->total + (uint64_t)row * VEC_LANES;
    for (uint32_t c = 0; c < t->value_dim; c += VEC_LANES)
        vec_store(sums + c, vec_mul(vec_load(sums + c), by));
    vec_store(total, vec_mul(vec_load(total), by));
    t->top[row] = top;
}

/* Turns a row's scores into weights. */
static void weigh(const struct attention_tile *t, uint32_t row)
{
    float *s = t->weights + (uint64_t)row * POSITIONS, *total = t->total + (uint64_t)row * VEC_LANES;
    uint32_t seen = t->ends[row] <= t->first ? 0 : t->ends[row] - t->first;
    seen = seen < t->n ? seen : t->n;
    if (seen == 0) {
        memset(s, 0, POSITIONS * sizeof *s);
        return;
    }
    for (uint32_t p = seen; p < POSITIONS; p++)
        s[p] = -INFINITY;
    struct vec most = vec_load(s);
    for (int v = 1; v < POSITION_VECS; v++)
        most = vec_max(most, vec_load(s + v * VEC_LANES));
    float top = vec_largest(most);
    if (top > t->top[row])
        rescale(t, row, top);
    struct vec sum = vec_load(total), by = vec_set1(t->top[row]);
    for (int v = 0; v < POSITION_VECS; v++) {
        struct vec w = math_exp(vec_sub(vec_load(s + v * VEC_LANES), by));
        vec_store(s + v * VEC_LANES, w);
        sum = vec_add(sum, w);
    }
    vec_store(total, sum);
}

/* Adds the values' channels [c, c + 8 n) to the sums of some rows. */
VEC_INLINE void add_values(const struct attention_tile *t, uint32_t row, uint32_t c, int rows, int n)
{
    float *sums = t->sums + (uint64_t)row * t->value_dim + c;
    const float *w = t->weights + (uint64_t)row * POSITIONS;
    struct vec acc[8];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < n; v++)
            acc[r * n + v] = vec_load(sums + (uint64_t)r * t->value_dim + v * VEC_LANES);
    for (uint32_t p = 0; p < t->n; p++) {
        const float *from = t->values + p * t->value_stride + c;
        struct vec value[8];
        for (int v = 0; v < n; v++)
            value[v] = vec_load(from + v * VEC_LANES);
        for (int r = 0; r < rows; r++) {
            struct vec by = vec_set1(w[(uint32_t)r * POSITIONS + p]);
            for (int v = 0; v < n; v++)
                acc[r * n + v] = vec_fma(value[v], by, acc[r * n + v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < n; v++)
            vec_store(sums + (uint64_t)r * t->value_dim + v * VEC_LANES, acc[r * n + v]);
}

VEC_INLINE void add_values_of_rows(const struct attention_tile *t, uint32_t row, int rows, int n)
{
    uint32_t c = 0, step = (uint32_t)n * VEC_LANES;
    for (; c + step <= t->value_dim; c += step)
        add_values(t, row, c, rows, n);
    for (; c < t->value_dim; c += VEC_LANES)
        add_values(t, row, c, rows, 1);
}

void VEC_NAME(attention_tile)(struct attention_tile *t)
{
    uint32_t row = 0;
    if (t->by_panel)
        score_by_panel(t);
    else
        score_by_dots(t);
    for (uint32_t r = 0; r < t->n_rows; r++)
        weigh(t, r);
    for (; row + 4 <= t->n_rows; row += 4)
        add_values_of_rows(t, row, 4, 2);
    for (; row + 2 <= t->n_rows; row += 2)
        add_values_of_rows(t, row, 2, 4);
    for (; row < t->n_rows; row++)
        add_values_of_rows(t, row, 1, 8);
}
