/* The loops of Mamba-2's state space (cpu.h) for one instruction set; the Makefile compiles this file once
 * for each. */
#include "ops/ssd/cpu.h"

#include "cpu/math.h"
#include "cpu/vec.h"

void VEC_NAME(ssd_prepare)(const struct ssd_unit *u);
void VEC_NAME(ssd_times)(const struct ssd_steps *s);
void VEC_NAME(ssd_walk)(const struct ssd_head *h);

/* Rows of the state that share the loads of B and C. */
enum { ROWS = 8 };

/* ---- what does not depend on the state ---- */

static void prepare_token(const struct ssd_unit *u, uint32_t t)
{
    float *out = u->out + t * u->out_stride;
    for (uint32_t c = 0; c < u->dim; c += VEC_LANES) {
        uint32_t n = u->dim - c;
        struct vec y = u->bias ? vec_load_some(u->bias + c, n) : vec_zero();
        for (uint32_t j = 0; j < u->taps; j++)
            y = vec_fma(vec_load_some(u->rows[t + j] + c, n),
                        vec_load_some(u->turned + (uint64_t)j * u->dim + c, n), y);
        vec_store_some(out + c, math_silu(y), n);
    }
}

void VEC_NAME(ssd_prepare)(const struct ssd_unit *u)
{
    for (uint32_t c = 0; c < u->dim; c++)
        for (uint32_t j = 0; j < u->taps; j++)
            u->turned[(uint64_t)j * u->dim + c] = u->conv[(uint64_t)c * u->taps + j];
    for (uint32_t t = 0; t < u->n; t++)
        prepare_token(u, t);
}

void VEC_NAME(ssd_times)(const struct ssd_steps *s)
{
    for (uint32_t i = 0; i < s->n; i += VEC_LANES) {
        uint32_t n = s->n - i;
        struct vec dt = math_softplus(vec_add(vec_load_some(s->dt + i, n), vec_load_some(s->bias + i, n)));
        dt = vec_min(vec_max(dt, vec_set1(s->low)), vec_set1(s->high));
        struct vec rate = math_exp(vec_load_some(s->a_log + i, n));
        vec_store_some(s->out_dt + i, dt, n);
        vec_store_some(s->decay + i, math_exp(vec_neg(vec_mul(rate, dt))), n);
    }
}

/* ---- the state ---- */

/* A token's values for up to ROWS rows. */
struct rows {
    struct vec update[ROWS]; /* dt x */
    struct vec decay;
    struct vec sum[ROWS];
};

/* state = decay state + update b, sum += state c, of up to 8 columns of n rows, `stride` floats apart */
VEC_INLINE void step_columns(float *state, uint64_t stride, const float *b, const float *c, uint32_t left,
                             int n, struct rows *r)
{
    struct vec in = vec_load_some(b, left), out = vec_load_some(c, left);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        float *to = state + (uint64_t)i * stride;
        struct vec next = vec_fma(r->update[i], in, vec_mul(r->decay, vec_load_some(to, left)));
        r->sum[i] = vec_fma(next, out, r->sum[i]);
        vec_store_some(to, next, left);
    }
}

/* Computes one token and n rows of the state, from `first` on. */
VEC_INLINE void step(const struct ssd_head *h, uint32_t t, uint32_t first, int n)
{
    const float *x = h->x + t * h->stride + first, *b = h->b + t * h->stride, *c = h->c + t * h->stride;
    float *state = h->state + (uint64_t)first * h->state_dim, *out = h->out + t * h->out_stride + first;
    float dt = h->dt[t * h->stride];
    uint32_t whole = h->state_dim / VEC_LANES * VEC_LANES, rest = h->state_dim - whole;
    struct rows r = {.decay = vec_set1(h->decay[t * h->stride])};
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        r.update[i] = vec_set1(dt * x[i]);
        r.sum[i] = vec_zero();
    }
    for (uint32_t k = 0; k < whole; k += VEC_LANES)
        step_columns(state + k, h->state_dim, b + k, c + k, VEC_LANES, n, &r);
    if (rest)
        step_columns(state + whole, h->state_dim, b + whole, c + whole, rest, n, &r);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        out[i] = vec_sum(r.sum[i]);
}

/* out = (out + d x) silu(z) */
static void gate(const struct ssd_head *h, uint32_t t)
{
    float *out = h->out + t * h->out_stride;
    const float *x = h->x + t * h->stride, *z = h->z + t * h->z_stride;
    for (uint32_t i = 0; i < h->head_dim; i += VEC_LANES) {
        uint32_t n = h->head_dim - i;
        struct vec o = vec_fma(vec_set1(h->d), vec_load_some(x + i, n), vec_load_some(out + i, n));
        vec_store_some(out + i, vec_mul(o, math_silu(vec_load_some(z + i, n))), n);
    }
}

/* Some rows go through all tokens, so that they stay in the first-level cache. */
void VEC_NAME(ssd_walk)(const struct ssd_head *h)
{
    uint32_t r = 0;
    for (; r + ROWS <= h->head_dim; r += ROWS)
        for (uint32_t t = 0; t < h->n; t++)
            step(h, t, r, ROWS);
    for (; r < h->head_dim; r++)
        for (uint32_t t = 0; t < h->n; t++)
            step(h, t, r, 1);
    for (uint32_t t = 0; t < h->n; t++)
        gate(h, t);
}
