#include "ops/attention_cpu.h"

#include "cpu/math.h"
#include "cpu/pair.h"
#include "ops/loops.h"

void VEC_NAME(attention_tile)(struct attention_tile *t);

enum { POSITIONS = ATTENTION_POSITIONS, POSITION_VECS = POSITIONS / VEC_LANES };
/* Sums that are under way at once: pairs in registers, beside what they are made of. */
#ifdef __AVX512F__
enum { DOT_ROWS = 8, DOT_KEYS = 2, SCORE_ROWS = 8, VALUE_ROWS = 8, VALUE_PAIRS = 2 };
#else
enum { DOT_ROWS = 4, DOT_KEYS = 1, SCORE_ROWS = 3, VALUE_ROWS = 4, VALUE_PAIRS = 1 };
#endif
enum { PANEL_PAIRS = POSITIONS / PAIR_LANES };

/* Scores of some rows and positions as sums in 16 lanes. The first rows fetch the values meanwhile. */
VEC_INLINE void dots(const struct attention_tile *t, uint32_t row, uint32_t pos, int rows, int n)
{
    const float *q = t->q + (uint64_t)row * t->key_dim, *k = t->keys + pos * t->key_stride;
    struct pair acc[DOT_ROWS * DOT_KEYS];
#pragma GCC unroll 16
    for (int i = 0; i < rows * n; i++)
        acc[i] = pair_set1(0);
    for (uint32_t c = 0; c < t->key_dim; c += PAIR_LANES) {
        struct pair key[DOT_KEYS];
#pragma GCC unroll 4
        for (int p = 0; p < n; p++) {
            key[p] = pair_load(k + (uint64_t)p * t->key_stride + c);
            if (row == 0)
                __builtin_prefetch(t->values + (pos + (uint32_t)p) * t->value_stride + c);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            struct pair by = pair_load(q + (uint64_t)r * t->key_dim + c);
#pragma GCC unroll 4
            for (int p = 0; p < n; p++)
                acc[r * n + p] = pair_fma(key[p], by, acc[r * n + p]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < n; p++)
            t->weights[(uint64_t)(row + (uint32_t)r) * POSITIONS + pos + (uint32_t)p] =
                vec_sum(pair_fold(acc[r * n + p]));
}

VEC_INLINE void dots_of_rows(const struct attention_tile *t, uint32_t row, int rows)
{
    uint32_t pos = 0;
    for (; pos + DOT_KEYS <= t->n; pos += DOT_KEYS)
        dots(t, row, pos, rows, DOT_KEYS);
    for (; pos < t->n; pos++)
        dots(t, row, pos, rows, 1);
}

static void score_by_dots(const struct attention_tile *t)
{
    uint32_t row = 0;
    for (; row + DOT_ROWS <= t->n_rows; row += DOT_ROWS)
        dots_of_rows(t, row, DOT_ROWS);
    for (; row < t->n_rows; row++)
        dots_of_rows(t, row, 1);
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
    struct pair acc[SCORE_ROWS][PANEL_PAIRS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_PAIRS; v++)
            acc[r][v] = pair_set1(0);
    for (uint32_t c = 0; c < t->key_dim; c++) {
        struct pair key[PANEL_PAIRS];
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_PAIRS; v++)
            key[v] = pair_load(t->panel + (uint64_t)c * POSITIONS + (size_t)v * PAIR_LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            struct pair by = pair_set1(q[(uint64_t)r * t->key_dim + c]);
#pragma GCC unroll 2
            for (int v = 0; v < PANEL_PAIRS; v++)
                acc[r][v] = pair_fma(key[v], by, acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_PAIRS; v++)
            pair_store(t->weights + (uint64_t)(row + (uint32_t)r) * POSITIONS + (size_t)v * PAIR_LANES,
                       acc[r][v]);
}

static void score_by_panel(const struct attention_tile *t)
{
    uint32_t row = 0;
    make_panel(t);
    for (; row + SCORE_ROWS <= t->n_rows; row += SCORE_ROWS)
        panel_rows(t, row, SCORE_ROWS);
    for (; row < t->n_rows; row++)
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
        most = vec_max(most, vec_load(s + (size_t)v * VEC_LANES));
    float top = vec_largest(most);
    if (top > t->top[row])
        rescale(t, row, top);
    struct vec sum = vec_load(total), by = vec_set1(t->top[row]);
    for (int v = 0; v < POSITION_VECS; v++) {
        struct vec w = math_exp(vec_sub(vec_load(s + (size_t)v * VEC_LANES), by));
        vec_store(s + (size_t)v * VEC_LANES, w);
        sum = vec_add(sum, w);
    }
    vec_store(total, sum);
}

/* Where the values are read: their rows, or the panel. */
struct values {
    const float *from;
    uint64_t stride, pair_stride; /* from position to position, from 16 channels to the next */
};

/* Values in the order in which some rows after others read them. In rows whose distance is a power of two the same channels
 * of all positions fall into a few lines of the first cache. */
static struct values make_value_panel(const struct attention_tile *t)
{
    struct values v = {t->value_panel, PAIR_LANES, (uint64_t)POSITIONS * PAIR_LANES};
    for (uint32_t p = 0; p < t->n; p++)
        for (uint32_t c = 0; c < t->value_dim; c += PAIR_LANES)
            pair_store(t->value_panel + (size_t)c * POSITIONS + (size_t)p * PAIR_LANES,
                       pair_load(t->values + p * t->value_stride + c));
    return v;
}

/* Adds n times 16 channels from c on to the sums of some rows. The first rows fetch the next tile's keys meanwhile. */
VEC_INLINE void add_values(const struct attention_tile *t, const struct values *from, uint32_t row,
                           uint32_t c, int rows, int n)
{
    float *sums = t->sums + (uint64_t)row * t->value_dim + c;
    const float *w = t->weights + (uint64_t)row * POSITIONS,
                *at = from->from + c / PAIR_LANES * from->pair_stride;
    const float *next = t->next_keys + c;
    struct pair acc[VALUE_ROWS * VALUE_PAIRS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++)
            acc[r * n + v] = pair_load(sums + (uint64_t)r * t->value_dim + (size_t)v * PAIR_LANES);
    for (uint32_t p = 0; p < t->n; p++, at += from->stride) {
        struct pair value[VALUE_PAIRS];
#pragma GCC unroll 2
        for (int v = 0; v < n; v++) {
            value[v] = pair_load(at + (uint32_t)v * from->pair_stride);
            if (row == 0)
                __builtin_prefetch(next + (size_t)p * t->key_stride + (size_t)v * PAIR_LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            struct pair by = pair_set1(w[(uint32_t)r * POSITIONS + p]);
#pragma GCC unroll 2
            for (int v = 0; v < n; v++)
                acc[r * n + v] = pair_fma(value[v], by, acc[r * n + v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++)
            pair_store(sums + (uint64_t)r * t->value_dim + (size_t)v * PAIR_LANES, acc[r * n + v]);
}

VEC_INLINE void add_values_of_rows(const struct attention_tile *t, const struct values *from, uint32_t row,
                                   int rows)
{
    uint32_t c = 0;
    for (; c + VALUE_PAIRS * PAIR_LANES <= t->value_dim; c += VALUE_PAIRS * PAIR_LANES)
        add_values(t, from, row, c, rows, VALUE_PAIRS);
    for (; c < t->value_dim; c += PAIR_LANES)
        add_values(t, from, row, c, rows, 1);
}

static void add_all_values(const struct attention_tile *t)
{
    uint32_t row = 0;
    struct values from = {t->values, t->value_stride, PAIR_LANES};
    if (t->n_rows > VALUE_ROWS)
        from = make_value_panel(t);
    for (; row + VALUE_ROWS <= t->n_rows; row += VALUE_ROWS)
        add_values_of_rows(t, &from, row, VALUE_ROWS);
    for (; row < t->n_rows; row++)
        add_values_of_rows(t, &from, row, 1);
}

void VEC_NAME(attention_tile)(struct attention_tile *t)
{
    if (t->by_panel)
        score_by_panel(t);
    else
        score_by_dots(t);
    for (uint32_t r = 0; r < t->n_rows; r++)
        weigh(t, r);
    add_all_values(t);
}
