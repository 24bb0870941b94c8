/* search_isa.c - the search of search.h, compiled once for each instruction set. */
#include "convert/search.h"

#include <float.h>

#include "cpu/vec.h"

void VEC_NAME(search)(struct search *s, bool more);

_Static_assert((int)SEARCH_GROUPS == (int)VEC_LANES, "a group a lane");

/* value = code * scale + bias; each lane has another group's */
struct line {
    struct vec scale, bias;
};

/* Sums over the numbers of a group: the squared error, and what a new line is fitted to. */
struct sums {
    struct vec error, q, qq, qx;
};

struct task {
    struct vec x[SEARCH_MAX_GROUP]; /* number i of each group */
    uint32_t n;
    struct vec levels, lo, hi, sum;
    struct line best;
    struct vec best_error; /* a better line has less */
    struct ivec found;
};

#define WHOLE 8388608.0f

/* Rounds to bf16: to nearest, ties to even. */
VEC_INLINE struct vec round_bf16(struct vec x)
{
    struct ivec u = ivec_bits(x), odd = ivec_and(ivec_right(u, 16), ivec_set1(1));
    u = ivec_add(u, ivec_add(odd, ivec_set1(0x7fff)));
    return vec_bits(ivec_left(ivec_right(u, 16), 16));
}

/* Returns the nearest code. Floats of 2^23 and more are whole. */
VEC_INLINE struct vec nearest_code(struct vec x, struct vec bias, struct vec inverse, struct vec levels)
{
    struct vec v = vec_mul(vec_sub(x, bias), inverse);
    v = vec_min(vec_max(v, vec_zero()), levels);
    return vec_sub(vec_add(v, vec_set1(WHOLE)), vec_set1(WHOLE));
}

VEC_INLINE struct sums measure(const struct task *t, struct line l)
{
    struct sums s = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    struct vec inverse = vec_div(vec_set1(1), l.scale);
    for (uint32_t i = 0; i < t->n; i++) {
        struct vec x = t->x[i], q = nearest_code(x, l.bias, inverse, t->levels);
        struct vec r = vec_sub(vec_add(vec_mul(q, l.scale), l.bias), x);
        s.error = vec_add(s.error, vec_mul(r, r));
        s.q = vec_add(s.q, q);
        s.qq = vec_add(s.qq, vec_mul(q, q));
        s.qx = vec_add(s.qx, vec_mul(q, x));
    }
    return s;
}

/* Returns the line with the smallest squared error for these codes; the bias is fitted to the rounded scale.
 * Codes that are all equal give NaN, which is never better. */
VEC_INLINE struct line fit(const struct task *t, const struct sums *s)
{
    struct vec n = vec_set1((float)t->n);
    struct vec top = vec_sub(vec_mul(n, s->qx), vec_mul(s->q, t->sum));
    struct vec below = vec_sub(vec_mul(n, s->qq), vec_mul(s->q, s->q));
    struct line l = {.scale = round_bf16(vec_div(top, below))};
    l.bias = round_bf16(vec_div(vec_sub(t->sum, vec_mul(l.scale, s->q)), n));
    return l;
}

VEC_INLINE void keep_better(struct task *t, struct line l, struct vec error)
{
    struct ivec better = vec_greater(t->best_error, error);
    t->best.scale = vec_select(better, l.scale, t->best.scale);
    t->best.bias = vec_select(better, l.bias, t->best.bias);
    t->best_error = vec_select(better, error, t->best_error);
    t->found = ivec_or(t->found, better);
}

/* Measures a line, then n_fits times fits a new one and measures it. */
VEC_INLINE void try_from(struct task *t, struct line l, int n_fits)
{
    for (int i = 0; i <= n_fits; i++) {
        struct sums s = measure(t, l);
        keep_better(t, l, s.error);
        l = fit(t, &s);
    }
}

/* The search starts with the ends of the range moved inwards by 0 to 4 quarters of a step, in all
 * combinations. One fit after each, and three more of the best, come within 0.3 % (8 bits: 0.8 %) of the
 * error of 25 x 25 starts with four fits, in a hundredth of the time (measured on normal and long-tailed
 * numbers). */
enum { N_MOVES = 5, FITS_EACH = 1, FITS_LAST = 3 };
#define MOVE 0.25f

/* Tries all starts. The bias is the end of the range that is nearer to 0, whose bf16 is finer. */
VEC_INLINE void search_grid(struct task *t)
{
    struct ivec low = vec_greater(vec_abs(t->hi), vec_abs(t->lo));
    struct vec end = vec_select(low, t->lo, t->hi), other = vec_select(low, t->hi, t->lo);
    struct vec step = vec_div(vec_sub(other, end), t->levels);
    for (int i = 0; i < N_MOVES; i++)
        for (int k = 0; k < N_MOVES; k++) {
            struct vec a = vec_set1(MOVE * (float)i), b = vec_set1(MOVE * (float)k);
            struct vec share = vec_div(vec_sub(t->levels, vec_add(a, b)), t->levels);
            struct line l = {round_bf16(vec_mul(step, share)), round_bf16(vec_add(end, vec_mul(a, step)))};
            try_from(t, l, FITS_EACH);
        }
    try_from(t, t->best, FITS_LAST);
}

/* Loads number i of each group into t->x[i]. */
static void load(struct task *t, const struct search *s)
{
    for (uint32_t i = 0; i < s->group; i += VEC_LANES) {
        const void *rows[VEC_LANES];
        struct ivec turned[VEC_LANES];
        for (uint32_t g = 0; g < VEC_LANES; g++)
            rows[g] = s->x + (size_t)g * s->group + i;
        vec_turn(rows, turned);
        for (uint32_t k = 0; k < VEC_LANES; k++)
            t->x[i + k] = vec_bits(turned[k]);
    }
    t->n = s->group;
    t->levels = vec_set1((float)((1u << s->bits) - 1));
    t->lo = vec_set1(FLT_MAX);
    t->hi = vec_set1(-FLT_MAX);
    t->sum = vec_zero();
    t->found = ivec_set1(0);
    for (uint32_t i = 0; i < t->n; i++) {
        t->lo = vec_min(t->lo, t->x[i]);
        t->hi = vec_max(t->hi, t->x[i]);
        t->sum = vec_add(t->sum, t->x[i]);
    }
    t->best = (struct line){vec_load_bf16(s->scales), vec_load_bf16(s->biases)};
}

static void store_codes(const struct task *t, struct search *s)
{
    struct vec inverse = vec_div(vec_set1(1), t->best.scale);
    for (uint32_t i = 0; i < t->n; i++) {
        int32_t q[VEC_LANES];
        ivec_store(q, ivec_nearest(nearest_code(t->x[i], t->best.bias, inverse, t->levels)));
        for (uint32_t g = 0; g < VEC_LANES; g++)
            s->codes[(size_t)g * t->n + i] = (uint8_t)q[g];
    }
}

void VEC_NAME(search)(struct search *s, bool more)
{
    struct task t;
    load(&t, s);
    struct vec squares = vec_zero();
    for (uint32_t i = 0; i < t.n; i++)
        squares = vec_add(squares, vec_mul(t.x[i], t.x[i]));
    struct vec first = measure(&t, t.best).error;
    vec_store(s->squares, squares);
    vec_store(s->first_error, first);
    /* A better line must be better by more than the rounding errors of these sums. */
    t.best_error = vec_mul(first, vec_set1(0.9999f));
    if (more)
        search_grid(&t);
    int32_t found[VEC_LANES];
    ivec_store(found, t.found);
    vec_store(s->error, vec_select(t.found, t.best_error, first));
    for (int g = 0; g < VEC_LANES; g++)
        s->found[g] = found[g] != 0;
    vec_store_bf16(s->scales, t.best.scale);
    vec_store_bf16(s->biases, t.best.bias);
    store_codes(&t, s);
}
