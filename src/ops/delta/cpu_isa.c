/* The loops of the gated delta net (cpu.h) for one instruction set; the Makefile compiles this file once for
 * each. */
#include "ops/delta/cpu.h"

#include "cpu/vec.h"
#include "cpu/math.h"

void VEC_NAME(delta_prepare)(const struct delta_unit *u);
void VEC_NAME(delta_gates)(const struct delta_gate *g);
void VEC_NAME(delta_walk)(const struct delta_head *h);

/* Rows of the state that share the loads of keys and queries. */
enum { ROWS = 8 };

VEC_INLINE struct vec load_some(const float *p, uint32_t n)
{
    return n >= VEC_LANES ? vec_load(p) : vec_load_n(p, n);
}

VEC_INLINE void store_some(float *p, struct vec v, uint32_t n)
{
    if (n >= VEC_LANES)
        vec_store(p, v);
    else
        vec_store_n(p, v, n);
}

/* ---- what does not depend on the state ---- */

static void prepare_token(const struct delta_unit *u, uint32_t t)
{
    float *out = u->out + t * u->out_stride;
    struct vec squares = vec_zero();
    for (uint32_t c = 0; c < u->dim; c += VEC_LANES) {
        struct vec y = vec_zero();
        for (uint32_t j = 0; j < u->taps; j++)
            y = vec_fma(load_some(u->rows[t + j] + c, u->dim - c),
                        load_some(u->turned + (uint64_t)j * u->dim + c, u->dim - c), y);
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
        struct vec step = math_softplus(vec_add(load_some(g->a + i, n), load_some(g->bias + i, n)));
        struct vec rate = math_exp(load_some(g->a_log + i, n));
        store_some(g->decay + i, math_exp(vec_neg(vec_mul(rate, step))), n);
        store_some(g->beta + i, math_sigmoid(load_some(g->b + i, n)), n);
    }
}

/* ---- the state ---- */

/* acc[i] += up to 8 columns of row i of the state, times k. The rows are `stride` floats apart. */
VEC_INLINE void read_columns(const float *state, uint64_t stride, const float *k, uint32_t left, int n,
                             struct vec *acc)
{
    struct vec key = vec_load(k);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = vec_fma(load_some(state + (uint64_t)i * stride, left), key, acc[i]);
}

/* state = decay state + update k, acc[i] += state q */
VEC_INLINE void write_columns(float *state, uint64_t stride, const float *k, const float *q, struct vec decay,
                              const struct vec *update, uint32_t left, int n, struct vec *acc)
{
    struct vec key = vec_load(k), query = vec_load(q);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        float *at = state + (uint64_t)i * stride;
        struct vec next = vec_fma(update[i], key, vec_mul(decay, load_some(at, left)));
        acc[i] = vec_fma(next, query, acc[i]);
        store_some(at, next, left);
    }
}

/* Computes one token and n rows of the state, from r on. */
VEC_INLINE void step(const struct delta_head *h, uint32_t t, uint32_t r, int n)
{
    const float *q = h->q + t * h->stride, *k = h->k + t * h->stride, *v = h->v + t * h->stride + r;
    float *state = h->state + (uint64_t)r * h->k_dim, *out = h->out + t * h->out_stride + r;
    float decay = h->decay[t * h->stride], beta = h->beta[t * h->stride];
    uint32_t whole = h->k_dim / VEC_LANES * VEC_LANES, rest = h->k_dim - whole;
    struct vec acc[ROWS], update[ROWS], all = vec_set1(decay);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = vec_zero();
    for (uint32_t c = 0; c < whole; c += VEC_LANES)
        read_columns(state + c, h->k_dim, k + c, VEC_LANES, n, acc);
    if (rest)
        read_columns(state + whole, h->k_dim, k + whole, rest, n, acc);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        update[i] = vec_set1(beta * (v[i] - decay * vec_sum(acc[i])));
        acc[i] = vec_zero();
    }
    for (uint32_t c = 0; c < whole; c += VEC_LANES)
        write_columns(state + c, h->k_dim, k + c, q + c, all, update, VEC_LANES, n, acc);
    if (rest)
        write_columns(state + whole, h->k_dim, k + whole, q + whole, all, update, rest, n, acc);
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
        struct vec o = load_some(out + c, h->v_dim - c);
        squares = vec_fma(o, o, squares);
    }
    struct vec by = vec_set1(1 / sqrtf(vec_sum(squares) / (float)h->v_dim + h->eps));
    for (uint32_t c = 0; c < h->v_dim; c += VEC_LANES) {
        uint32_t n = h->v_dim - c;
        struct vec o = vec_mul(vec_mul(load_some(out + c, n), by), load_some(h->norm + c, n));
        struct vec gate = load_some(z + c, n);
        store_some(out + c, vec_mul(o, h->sigmoid ? math_sigmoid(gate) : math_silu(gate)), n);
    }
}

void VEC_NAME(delta_walk)(const struct delta_head *h)
{
    uint32_t r = 0;
    /* Some rows go through all tokens, so that they stay in the first-level cache. */
    for (; r + ROWS <= h->v_dim; r += ROWS)
        for (uint32_t t = 0; t < h->n; t++)
            step(h, t, r, ROWS);
    for (; r < h->v_dim; r++)
        for (uint32_t t = 0; t < h->n; t++)
            step(h, t, r, 1);
    for (uint32_t t = 0; t < h->n; t++)
        gated_norm(h, t);
}
