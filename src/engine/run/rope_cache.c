#include "engine/run/rope_cache.h"

#include "base/real.h"
#include "engine/model.h"

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
    uint64_t bytes = (uint64_t)m->max_chunk * m->dir.config.rotary_dim * sizeof(float);
    return exec_buffer_new(x, &r->room, EXEC_INPUT, 2 * bytes, e);
}

void rope_cache_close(struct rope_cache *r, struct exec *x)
{
    exec_buffer_free(x, &r->room);
}

void rope_cache_fill(const struct moeflux_model *m, float *out, uint32_t n, uint32_t pos)
{
    uint32_t n_angles = m->dir.config.rotary_dim / 2;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < n_angles; i++) {
            /* The angle is rounded to float32, as the reference computes it. */
            float angle = (float)(pos + t) * m->inverse_frequencies[i];
            *out++ = (float)(real_cos((double)angle) * m->rope_multiplier);
            *out++ = (float)(real_sin((double)angle) * m->rope_multiplier);
        }
}

uint64_t rope_cache_of_chunk(struct rope_cache *r, const struct moeflux_model *m, uint32_t n, uint32_t pos)
{
    if (r->is_ahead && pos == r->pos + r->n && n <= r->n)
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
