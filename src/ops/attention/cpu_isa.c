/* A tile of attention (cpu.h) for one instruction set; the Makefile compiles this file once for each. */
#include "ops/attention/cpu.h"

#include <string.h>

#include "cpu/math.h"
#include "cpu/pair.h"
#include "ops/loops.h"

void VEC_NAME(attention_tile)(struct attention_tile *t);

enum { POSITIONS = ATTENTION_POSITIONS, POSITION_VECS = POSITIONS / VEC_LANES };
/* The sums in flight at once fit the registers together with their operands. */
#ifdef __AVX512F__
#define FLOATS       struct pair
#define FLOATS_(op)  pair_##op
#define FOLD(sum, x) pair_fold(x)
enum { DOTS = 16, DOT_ROWS = 8, SCORE_ROWS = 8, VALUE_ROWS = 4, PANEL_ROWS = 8, PANEL_VALUES = 2 };
#else
#define FLOATS       struct vec
#define FLOATS_(op)  vec_##op
#define FOLD(sum, x) vec_add(sum, x)
enum { DOTS = 8, DOT_ROWS = 4, SCORE_ROWS = 3, VALUE_ROWS = 2, PANEL_ROWS = 4, PANEL_VALUES = 1 };
#endif
enum {
    LANES = sizeof(FLOATS) / sizeof(float),
    PASSES = PAIR_LANES / LANES, /* passes over the 16 lanes of a score */
    PANEL_PAIRS = POSITIONS / PAIR_LANES,
    VALUES = 4, /* positions whose values are added at once */
    AHEAD = 8,  /* positions between the one that is read and the one that is prefetched */
    LINE = 64,  /* bytes of a cache line */
};

/* ---- few rows: keys and values as they lie in memory, one position after the other */

VEC_INLINE uint64_t bytes_of(uint64_t numbers, bool f16)
{
    return numbers * (f16 ? sizeof(uint16_t) : sizeof(float));
}

VEC_INLINE FLOATS load(const uint8_t *row, uint32_t c, bool f16)
{
    return f16 ? FLOATS_(load_f16)(row + bytes_of(c, true))
               : FLOATS_(load)((const float *)(const void *)(row + bytes_of(c, false)));
}

/* The first returns where the key (value) of a position and head lies; the second what is needed AHEAD
 * positions later: the keys, then the values, then the next tile's keys. */
VEC_INLINE const uint8_t *row_at(const struct attention_tile *t, bool value, uint32_t pos, uint32_t head,
                                 bool f16)
{
    uint64_t at = pos * (value ? t->value_stride : t->key_stride) +
                  (uint64_t)head * (value ? t->value_dim : t->key_dim);
    return (value ? t->values : t->keys) + bytes_of(at, f16);
}

VEC_INLINE const uint8_t *row_ahead(const struct attention_tile *t, bool value, uint32_t pos, uint32_t head,
                                    bool f16)
{
    uint32_t p = pos + AHEAD;
    if (p < t->n)
        return row_at(t, value, p, head, f16);
    const uint8_t *row = row_at(t, !value, p - t->n, head, f16);
    return value ? t->next_keys + (row - t->keys) : row;
}

/* The cache lines of n positions that are needed later. The loop over a head's channels prefetches its part
 * of them. If the positions are contiguous, it prefetches line after line, which processors predict best. */
struct ahead {
    const uint8_t *from;
    uint64_t step, apart; /* bytes between lines, between positions */
};

VEC_INLINE struct ahead ahead_of(const struct attention_tile *t, bool value, uint32_t pos, uint32_t head,
                                 uint32_t n, bool f16)
{
    uint64_t dim = value ? t->value_dim : t->key_dim, stride = value ? t->value_stride : t->key_stride;
    if (stride != t->n_heads * dim)
        return (struct ahead){row_ahead(t, value, pos, head, f16), LINE, bytes_of(stride, f16)};
    return (struct ahead){row_ahead(t, value, pos, 0, f16) + bytes_of((uint64_t)head * n * dim, f16),
                          (uint64_t)n * LINE, LINE};
}

VEC_INLINE void fetch(const struct ahead *a, uint32_t c, uint32_t p, bool f16)
{
    if (bytes_of(c, f16) % LINE == 0)
        __builtin_prefetch(a->from + bytes_of(c, f16) / LINE * a->step + p * a->apart);
}

/* Computes the scores of some rows of a head and n positions, at most DOTS scores: sums in 16 lanes. */
VEC_INLINE void dots(const struct attention_tile *t, uint32_t head, uint32_t row, uint32_t pos, int rows,
                     int n, bool fetches, bool f16)
{
    const uint32_t dim = t->key_dim;
    const float *q[DOT_ROWS];
    const uint8_t *k[DOTS];
    struct vec lanes[DOTS];
    float sums[DOTS];
    const struct ahead ahead = ahead_of(t, false, pos, head, (uint32_t)n, f16);
    row += head * t->n_rows;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        q[r] = t->q + (uint64_t)(row + (uint32_t)r) * dim;
#pragma GCC unroll 8
    for (int p = 0; p < n; p++)
        k[p] = row_at(t, false, pos + (uint32_t)p, head, f16);
#pragma GCC unroll 16
    for (int i = 0; i < DOTS; i++)
        lanes[i] = vec_zero();
#pragma GCC unroll 2
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        FLOATS acc[DOTS];
#pragma GCC unroll 16
        for (int i = 0; i < DOTS; i++)
            acc[i] = FLOATS_(set1)(0);
        for (uint32_t c = pass * LANES; c < dim; c += PAIR_LANES) {
            FLOATS key[DOTS];
#pragma GCC unroll 8
            for (int p = 0; p < n; p++) {
                key[p] = load(k[p], c, f16);
                if (fetches && pass == 0)
                    fetch(&ahead, c, (uint32_t)p, f16);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                FLOATS by = FLOATS_(load)(q[r] + c);
#pragma GCC unroll 8
                for (int p = 0; p < n; p++)
                    acc[r * n + p] = FLOATS_(fma)(key[p], by, acc[r * n + p]);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows * n; i++)
            lanes[i] = FOLD(lanes[i], acc[i]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < DOTS; i += VEC_LANES)
        vec_store(sums + i, vec_sums(lanes + i));
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        memcpy(t->weights + (uint64_t)(row + (uint32_t)r) * POSITIONS + pos, sums + (size_t)r * (size_t)n,
               (size_t)n * sizeof *sums);
}

/* Computes the scores of n positions and all rows, `rows` at a time. */
VEC_INLINE void dots_of_positions(const struct attention_tile *t, uint32_t pos, int rows, int n, bool f16)
{
    for (uint32_t head = 0; head < t->n_heads; head++) {
        uint32_t row = (uint32_t)rows;
        dots(t, head, 0, pos, rows, n, true, f16);
        for (; row + (uint32_t)rows <= t->n_rows; row += (uint32_t)rows)
            dots(t, head, row, pos, rows, n, false, f16);
        for (; row < t->n_rows; row++)
            dots(t, head, row, pos, 1, n, false, f16);
    }
}

VEC_INLINE void dots_of_rows(const struct attention_tile *t, int rows, bool f16)
{
    const int n = DOTS / rows < VEC_LANES ? DOTS / rows : VEC_LANES;
    uint32_t pos = 0;
    for (; pos + (uint32_t)n <= t->n; pos += (uint32_t)n)
        dots_of_positions(t, pos, rows, n, f16);
    for (; pos < t->n; pos++)
        dots_of_positions(t, pos, rows, 1, f16);
}

VEC_INLINE void score_by_dots(const struct attention_tile *t, bool f16)
{
    if (t->n_rows >= DOT_ROWS)
        dots_of_rows(t, DOT_ROWS, f16);
    else if (t->n_rows >= DOT_ROWS / 2)
        dots_of_rows(t, DOT_ROWS / 2, f16);
    else
        dots_of_rows(t, 1, f16);
}

/* Adds the values of n positions to the sums of some rows of a head. */
VEC_INLINE void values(const struct attention_tile *t, uint32_t head, uint32_t row, uint32_t pos, int rows,
                       int n, bool fetches, bool f16)
{
    const uint32_t dim = t->value_dim;
    const uint8_t *from[VALUES];
    float *to[VALUE_ROWS];
    FLOATS by[VALUE_ROWS * VALUES];
    const struct ahead ahead = ahead_of(t, true, pos, head, (uint32_t)n, f16);
    row += head * t->n_rows;
    const float *w = t->weights + (uint64_t)row * POSITIONS + pos;
#pragma GCC unroll 4
    for (int p = 0; p < n; p++)
        from[p] = row_at(t, true, pos + (uint32_t)p, head, f16);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        to[r] = t->sums + (uint64_t)(row + (uint32_t)r) * dim;
#pragma GCC unroll 4
        for (int p = 0; p < n; p++)
            by[r * n + p] = FLOATS_(set1)(w[r * POSITIONS + p]);
    }
    for (uint32_t c = 0; c < dim; c += LANES) {
        FLOATS value[VALUES];
#pragma GCC unroll 4
        for (int p = 0; p < n; p++) {
            value[p] = load(from[p], c, f16);
            if (fetches)
                fetch(&ahead, c, (uint32_t)p, f16);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            FLOATS sum = FLOATS_(load)(to[r] + c);
#pragma GCC unroll 4
            for (int p = 0; p < n; p++)
                sum = FLOATS_(fma)(value[p], by[r * n + p], sum);
            FLOATS_(store)(to[r] + c, sum);
        }
    }
}

VEC_INLINE void values_of_positions(const struct attention_tile *t, uint32_t pos, int n, bool f16)
{
    for (uint32_t head = 0; head < t->n_heads; head++) {
        uint32_t row = 0;
        if (t->n_rows >= VALUE_ROWS)
            values(t, head, 0, pos, VALUE_ROWS, n, true, f16);
        else
            values(t, head, 0, pos, 1, n, true, f16);
        for (row = t->n_rows >= VALUE_ROWS ? VALUE_ROWS : 1; row + VALUE_ROWS <= t->n_rows; row += VALUE_ROWS)
            values(t, head, row, pos, VALUE_ROWS, n, false, f16);
        for (; row < t->n_rows; row++)
            values(t, head, row, pos, 1, n, false, f16);
    }
}

VEC_INLINE void add_values(const struct attention_tile *t, bool f16)
{
    uint32_t pos = 0;
    for (; pos + VALUES <= t->n; pos += VALUES)
        values_of_positions(t, pos, VALUES, f16);
    for (; pos < t->n; pos++)
        values_of_positions(t, pos, 1, f16);
}

/* ---- many rows: panels, in the order in which one group of rows after the other reads them */

static const float *float_row(const uint8_t *rows, uint64_t at)
{
    return (const float *)(const void *)rows + at;
}

/* Transposes the keys: the positions of a channel become contiguous. */
static void make_panel(const struct attention_tile *t)
{
    for (uint32_t p = 0; p < POSITIONS; p += VEC_LANES)
        for (uint32_t c = 0; c < t->key_dim; c += VEC_LANES) {
            const void *rows[VEC_LANES];
            struct ivec columns[VEC_LANES];
            for (uint32_t i = 0; i < VEC_LANES; i++)
                rows[i] = p + i < t->n ? float_row(t->keys, (p + i) * t->key_stride) + c : t->zeros;
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

/* Scales the earlier sums down to a larger score. */
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
    uint32_t hidden = t->begins[row] <= t->first ? 0 : t->begins[row] - t->first;
    seen = seen < t->n ? seen : t->n;
    if (seen <= hidden) {
        memset(s, 0, POSITIONS * sizeof *s);
        return;
    }
    for (uint32_t p = 0; p < hidden; p++)
        s[p] = -INFINITY;
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

/* Copies the values into a panel. If the distance of the rows is a power of two, the same channels of all
 * positions would share a few lines of the first-level cache. */
static void make_value_panel(const struct attention_tile *t)
{
    for (uint32_t p = 0; p < t->n; p++)
        for (uint32_t c = 0; c < t->value_dim; c += PAIR_LANES)
            pair_store(t->value_panel + (size_t)c * POSITIONS + (size_t)p * PAIR_LANES,
                       pair_load(float_row(t->values, p * t->value_stride) + c));
}

/* Adds n times 16 channels, from c on, to the sums of some rows. */
VEC_INLINE void panel_values(const struct attention_tile *t, uint32_t row, uint32_t c, int rows, int n)
{
    float *sums = t->sums + (uint64_t)row * t->value_dim + c;
    const float *w = t->weights + (uint64_t)row * POSITIONS, *at = t->value_panel + (uint64_t)c * POSITIONS;
    struct pair acc[PANEL_ROWS * PANEL_VALUES];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++)
            acc[r * n + v] = pair_load(sums + (uint64_t)r * t->value_dim + (size_t)v * PAIR_LANES);
    for (uint32_t p = 0; p < t->n; p++, at += PAIR_LANES) {
        struct pair value[PANEL_VALUES];
#pragma GCC unroll 2
        for (int v = 0; v < n; v++)
            value[v] = pair_load(at + (size_t)v * POSITIONS * PAIR_LANES);
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

VEC_INLINE void panel_values_of_all(const struct attention_tile *t, uint32_t c, int n)
{
    uint32_t row = 0;
    for (; row + PANEL_ROWS <= t->n_rows; row += PANEL_ROWS)
        panel_values(t, row, c, PANEL_ROWS, n);
    for (; row < t->n_rows; row++)
        panel_values(t, row, c, 1, n);
}

/* Prefetches the next keys, a part of them for each part of the channels: from `done` to the part that ends
 * with channel c. Returns the new `done`. */
static uint32_t fetch_keys(const struct attention_tile *t, uint32_t done, uint32_t c)
{
    for (; done < (uint64_t)t->n * c / t->value_dim; done++)
        for (uint64_t at = 0; at < t->key_dim * sizeof(float); at += LINE)
            __builtin_prefetch(t->next_keys + done * t->key_stride * sizeof(float) + at);
    return done;
}

static void add_values_by_panel(const struct attention_tile *t)
{
    uint32_t c = 0, n_fetched = 0;
    make_value_panel(t);
    for (; c + PANEL_VALUES * PAIR_LANES <= t->value_dim; c += PANEL_VALUES * PAIR_LANES) {
        n_fetched = fetch_keys(t, n_fetched, c + PANEL_VALUES * PAIR_LANES);
        panel_values_of_all(t, c, PANEL_VALUES);
    }
    for (; c < t->value_dim; c += PAIR_LANES)
        panel_values_of_all(t, c, 1);
}

/* ---- a tile */

static void weigh_all(const struct attention_tile *t)
{
    for (uint32_t r = 0; r < t->n_heads * t->n_rows; r++)
        weigh(t, r);
}

VEC_INLINE void few_rows(const struct attention_tile *t, bool f16)
{
    score_by_dots(t, f16);
    weigh_all(t);
    add_values(t, f16);
}

void VEC_NAME(attention_tile)(struct attention_tile *t)
{
    if (t->by_panel) {
        score_by_panel(t);
        weigh_all(t);
        add_values_by_panel(t);
    } else if (t->f16) {
        few_rows(t, true);
    } else {
        few_rows(t, false);
    }
}
