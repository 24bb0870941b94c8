/* The loops of the gated delta net (cpu.h) for one instruction set; the Makefile compiles this file once for
 * each. */
#include "ops/delta/cpu.h"

#include "cpu/vec.h"
#include "cpu/math.h"

void VEC_NAME(delta_prepare)(const struct delta_unit *u);
void VEC_NAME(delta_gates)(const struct delta_gate *g);
void VEC_NAME(delta_channels)(const struct delta_channels *c);
void VEC_NAME(delta_walk)(const struct delta_head *h);

/* Rows of the state that share the loads of keys and queries. */
enum { ROWS = 8 };

/* ---- what does not depend on the state ---- */

static void prepare_token(const struct delta_unit *u, uint32_t t)
{
    float *out = u->out + t * u->out_stride;
    struct vec squares = vec_zero();
    for (uint32_t c = 0; c < u->dim; c += VEC_LANES) {
        struct vec y = vec_zero();
        for (uint32_t j = 0; j < u->taps; j++)
            y = vec_fma(vec_load_some(u->rows[t + j] + c, u->dim - c),
                        vec_load_some(u->turned + (uint64_t)j * u->dim + c, u->dim - c), y);
        y = math_silu(y);
        squares = vec_fma(y, y, squares);
        vec_store(out + c, y);
    }
    if (u->divisor == 0)
        return;
    struct vec by = vec_set1(1 / (sqrtf(vec_sum(squares) + 1e-6f) * u->divisor));
    for (uint32_t c = 0; c < u->dim; c += VEC_LANES)
        vec_store(out + c, vec_mul(vec_load(out + c), by));
}

void VEC_NAME(delta_prepare)(const struct delta_unit *u)
{
    for (uint32_t c = 0; c < u->dim; c++)
        for (uint32_t j = 0; j < u->taps; j++)
            u->turned[(uint64_t)j * u->dim + c] = u->conv[(uint64_t)c * u->taps + j];
    for (uint32_t t = 0; t < u->n; t++)
        prepare_token(u, t);
}

void VEC_NAME(delta_gates)(const struct delta_gate *g)
{
    for (uint32_t i = 0; i < g->n; i += VEC_LANES) {
        uint32_t n = g->n - i;
        struct vec step = math_softplus(vec_add(vec_load_some(g->a + i, n), vec_load_some(g->bias + i, n)));
        struct vec rate = math_exp(vec_load_some(g->a_log + i, n));
        vec_store_some(g->decay + i, math_exp(vec_neg(vec_mul(rate, step))), n);
        vec_store_some(g->beta + i, math_sigmoid(vec_load_some(g->b + i, n)), n);
    }
}

void VEC_NAME(delta_channels)(const struct delta_channels *c)
{
    struct vec rate = math_exp(vec_set1(c->a_log)), lower = vec_set1(c->lower);
    for (uint32_t i = 0; i < c->n; i += VEC_LANES) {
        uint32_t n = c->n - i;
        struct vec x = vec_add(vec_load_some(c->a + i, n), vec_load_some(c->bias + i, n));
        struct vec log = c->lower < 0 ? vec_mul(lower, math_sigmoid(vec_mul(rate, x)))
                                      : vec_neg(vec_mul(rate, math_softplus(x)));
        vec_store(c->decay + i, vec_zero());
        vec_store_some(c->decay + i, math_exp(log), n);
    }
}

/* ---- the state ---- */

/* A token's keys, queries and decays, from some column on. decay NULL: all have the decay `all`. */
struct columns {
    const float *k, *q, *decay;
    struct vec all;
};

VEC_INLINE struct columns from_column(const struct columns *x, uint32_t c)
{
    return (struct columns){x->k + c, x->q + c, x->decay ? x->decay + c : NULL, x->all};
}

/* acc[i] += up to 8 columns of row i of the state, times k, and times the columns' decays if they have
 * some. The rows are `stride` floats apart. */
VEC_INLINE void read_columns(const float *state, uint64_t stride, struct columns at, uint32_t left, int n,
                             struct vec *acc)
{
    struct vec key = vec_load(at.k);
    if (at.decay)
        key = vec_mul(key, vec_load(at.decay));
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = vec_fma(vec_load_some(state + (uint64_t)i * stride, left), key, acc[i]);
}

/* state = decay state + update k, acc[i] += state q */
VEC_INLINE void write_columns(float *state, uint64_t stride, struct columns at, const struct vec *update,
                              uint32_t left, int n, struct vec *acc)
{
    struct vec key = vec_load(at.k), query = vec_load(at.q), decay = at.decay ? vec_load(at.decay) : at.all;
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        float *to = state + (uint64_t)i * stride;
        struct vec next = vec_fma(update[i], key, vec_mul(decay, vec_load_some(to, left)));
        acc[i] = vec_fma(next, query, acc[i]);
        vec_store_some(to, next, left);
    }
}

/* Computes one token and n rows of the state, from r on. */
VEC_INLINE void step(const struct delta_head *h, uint32_t t, uint32_t r, int n, bool by_channel)
{
    const float *v = h->v + t * h->stride + r, *decays = h->decay + t * h->stride;
    float *state = h->state + (uint64_t)r * h->k_dim, *out = h->out + t * h->out_stride + r;
    float decay = by_channel ? 1 : decays[0], beta = h->beta[t * h->stride];
    uint32_t whole = h->k_dim / VEC_LANES * VEC_LANES, rest = h->k_dim - whole;
    struct vec acc[ROWS], update[ROWS];
    const struct columns all = {h->k + t * h->stride, h->q + t * h->stride, by_channel ? decays : NULL,
                                vec_set1(decay)};
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = vec_zero();
    for (uint32_t c = 0; c < whole; c += VEC_LANES)
        read_columns(state + c, h->k_dim, from_column(&all, c), VEC_LANES, n, acc);
    if (rest)
        read_columns(state + whole, h->k_dim, from_column(&all, whole), rest, n, acc);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        update[i] = vec_set1(beta * (v[i] - decay * vec_sum(acc[i])));
        acc[i] = vec_zero();
    }
    for (uint32_t c = 0; c < whole; c += VEC_LANES)
        write_columns(state + c, h->k_dim, from_column(&all, c), update, VEC_LANES, n, acc);
    if (rest)
        write_columns(state + whole, h->k_dim, from_column(&all, whole), update, rest, n, acc);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        out[i] = vec_sum(acc[i]);
}

static void gated_norm(const struct delta_head *h, uint32_t t)
{
    float *out = h->out + t * h->out_stride;
    const float *z = h->z + t * h->z_stride;
    struct vec squares = vec_zero();
    for (uint32_t c = 0; c < h->v_dim; c += VEC_LANES) {
        struct vec o = vec_load_some(out + c, h->v_dim - c);
        squares = vec_fma(o, o, squares);
    }
    struct vec by = vec_set1(1 / sqrtf(vec_sum(squares) / (float)h->v_dim + h->eps));
    for (uint32_t c = 0; c < h->v_dim; c += VEC_LANES) {
        uint32_t n = h->v_dim - c;
        struct vec o = vec_mul(vec_mul(vec_load_some(out + c, n), by), vec_load_some(h->norm + c, n));
        struct vec gate = vec_load_some(z + c, n);
        vec_store_some(out + c, vec_mul(o, h->sigmoid ? math_sigmoid(gate) : math_silu(gate)), n);
    }
}

/* Some rows go through all tokens, so that they stay in the first-level cache. */
VEC_INLINE void walk(const struct delta_head *h, bool by_channel)
{
    uint32_t r = 0;
    for (; r + ROWS <= h->v_dim; r += ROWS)
        for (uint32_t t = 0; t < h->n; t++)
            step(h, t, r, ROWS, by_channel);
    for (; r < h->v_dim; r++)
        for (uint32_t t = 0; t < h->n; t++)
            step(h, t, r, 1, by_channel);
}

void VEC_NAME(delta_walk)(const struct delta_head *h)
{
    if (h->by_channel)
        walk(h, true);
    else
        walk(h, false);
    for (uint32_t t = 0; t < h->n; t++)
        gated_norm(h, t);
}
