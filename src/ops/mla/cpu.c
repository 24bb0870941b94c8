/* The native implementation of mla.h's prepare. */
#include <string.h>

#include "cpu/team.h"
#include "ops/loops.h"
#include "ops/mla/mla.h"

struct job {
    const struct mla_shape *shape;
    const struct mla_prepare_call *to;
    const struct loops *loops;
    float *keys; /* one row of the cache for each thread */
};

static void turn(const struct job *j, uint32_t t, const float *src, float *dst)
{
    const struct mla_shape *s = j->shape;
    memmove(dst, src, s->rope_dim * sizeof *dst);
    j->loops->turn(dst, host_floats(j->to->of->rope) + (uint64_t)t * s->rope_dim, s->rope_dim / 2,
                   s->interleaved ? 0 : s->rope_dim / 2);
}

static void prepare_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct mla_shape *s = j->shape;
    const struct mla_call *call = j->to->of;
    uint32_t row = s->latent_dim + s->rope_dim, head = s->nope_dim + s->rope_dim;
    const struct kv_rows cache = {call->blocks, call->layer_off, 1, row, 0, s->kv_type};
    const float *kv = host_floats(call->kv) + (uint64_t)t * call->kv_stride + call->kv_at;
    float *key = j->keys + (uint64_t)thread * row;
    j->loops->norm(kv, host_floats(call->norm), s->latent_dim, s->eps, key);
    turn(j, t, kv + s->latent_dim, key + s->latent_dim);
    loops_put_row(j->loops, s->kv_type, key, row, kv_rows_at(&cache, call->pos + t, 0, 0));
    for (uint32_t h = 0; h < s->n_heads; h++) {
        const float *from = host_floats(call->q) + (uint64_t)t * call->q_stride + (uint64_t)h * head;
        float *to = host_floats_mut(j->to->q) + (uint64_t)t * j->to->stride + (uint64_t)h * j->to->step;
        turn(j, t, from + s->nope_dim, to + j->to->at);
    }
}

int mla_prepare_cpu(const void *self, const void *what, struct host *host)
{
    const struct mla_shape *s = &((const struct mla *)self)->shape;
    const struct mla_prepare_call *to = what;
    struct job j = {s, to, loops_of(host), NULL};
    j.keys = host_scratch(host, (uint64_t)team_n_threads(host->team) * (s->latent_dim + s->rope_dim),
                          sizeof *j.keys);
    if (j.keys)
        team_for(host->team, to->of->n, prepare_token, &j);
    return host_error(host);
}
