#include "engine/angles.h"

#include "base/real.h"
#include "engine/engine.h"

static uint64_t half_bytes(const struct angles *a)
{
    return a->room.bytes / 2;
}

static float *half_of(const struct angles *a, uint32_t half)
{
    return (float *)(void *)(a->room.host + half * half_bytes(a));
}

int angles_open(struct angles *a, struct exec *x, const struct moeflux_model *m, struct moeflux_err *e)
{
    uint64_t bytes = (uint64_t)m->max_chunk * m->dir.config.rotary_dim * sizeof(float);
    return exec_buffer_new(x, &a->room, EXEC_INPUT, 2 * bytes, e);
}

void angles_close(struct angles *a, struct exec *x)
{
    exec_buffer_free(x, &a->room);
}

void angles_fill(const struct moeflux_model *m, float *out, uint32_t n, uint32_t pos)
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

uint64_t angles_of_chunk(struct angles *a, const struct moeflux_model *m, uint32_t n, uint32_t pos)
{
    if (a->is_ahead && pos == a->pos + a->n && n <= a->n)
        a->half ^= 1;
    else
        angles_fill(m, half_of(a, a->half), n, pos);
    a->pos = pos;
    a->n = n;
    a->is_ahead = false;
    return a->room.address + a->half * half_bytes(a);
}

void angles_go_ahead(struct angles *a, const struct moeflux_model *m)
{
    angles_fill(m, half_of(a, a->half ^ 1), a->n, a->pos + a->n);
    a->is_ahead = true;
}

float *angles_of_tokens(struct angles *a)
{
    a->is_ahead = false;
    return half_of(a, 0);
}
