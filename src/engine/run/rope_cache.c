#include "engine/run/rope_cache.h"

#include "base/mem.h"
#include "base/real.h"
#include "engine/model.h"
#include "model/rope.h"

static uint64_t half_bytes(const struct rope_cache *r)
{
    return r->room.bytes / 2;
}

static float *half_of(const struct rope_cache *r, uint32_t half)
{
    return (float *)(void *)(r->room.host + half * half_bytes(r));
}

int rope_cache_open(struct rope_cache *r, struct exec *x, const struct moeflux_model *m,
                    struct moeflux_err *e)
{
    uint64_t bytes =
        (uint64_t)m->max_chunk * rope_floats(&m->dir.config, m->dir.config.n_ropes) * sizeof(float);
    return exec_buffer_new(x, &r->room, EXEC_INPUT, 2 * size_max(bytes, sizeof(float)), e);
}

void rope_cache_close(struct rope_cache *r, struct exec *x)
{
    exec_buffer_free(x, &r->room);
}

static void fill_row(const struct moeflux_model *m, uint32_t table, float *out, uint32_t pos)
{
    const struct config *c = &m->dir.config;
    const float *inverse = m->inverse_frequencies + rope_floats(c, table) / 2;
    for (uint32_t i = 0; i < c->ropes[table].dim / 2; i++) {
        /* The angle is rounded to float32, as the reference computes it. */
        float angle = (float)pos * inverse[i];
        *out++ = (float)(real_cos((double)angle) * m->rope_multipliers[table]);
        *out++ = (float)(real_sin((double)angle) * m->rope_multipliers[table]);
    }
}

void rope_cache_fill_token(const struct moeflux_model *m, float *out, uint32_t n, uint32_t idx, uint32_t pos)
{
    const struct config *c = &m->dir.config;
    for (uint32_t k = 0; k < c->n_ropes; k++)
        fill_row(m, k, out + (size_t)n * rope_floats(c, k) + (size_t)idx * c->ropes[k].dim, pos);
}

void rope_cache_fill(const struct moeflux_model *m, float *out, uint32_t n, uint32_t pos)
{
    for (uint32_t t = 0; t < n; t++)
        rope_cache_fill_token(m, out, n, t, pos + t);
}

uint64_t rope_cache_of_chunk(struct rope_cache *r, const struct moeflux_model *m, uint32_t n, uint32_t pos)
{
    /* The place of a second table depends on the number of tokens. */
    bool fits = n == r->n || (n < r->n && m->dir.config.n_ropes == 1);
    if (r->is_ahead && pos == r->pos + r->n && fits)
        r->half ^= 1;
    else
        rope_cache_fill(m, half_of(r, r->half), n, pos);
    r->pos = pos;
    r->n = n;
    r->is_ahead = false;
    return r->room.address + r->half * half_bytes(r);
}

void rope_cache_go_ahead(struct rope_cache *r, const struct moeflux_model *m)
{
    rope_cache_fill(m, half_of(r, r->half ^ 1), r->n, r->pos + r->n);
    r->is_ahead = true;
}

float *rope_cache_of_tokens(struct rope_cache *r, uint32_t half, uint64_t *address)
{
    r->is_ahead = false;
    *address = r->room.address + half * half_bytes(r);
    return half_of(r, half);
}
