#include <string.h>

#include "base/team.h"
#include "ops/gqa.h"
#include "ops/loops.h"

struct job {
    const struct gqa_shape *shape;
    const struct gqa_call *call;
    const struct loops *loops;
    float *keys; /* a head's, one a thread */
};

static void norm_and_turn(const struct job *j, uint32_t t, const float *src, uint64_t norm, float *dst)
{
    const struct gqa_shape *s = j->shape;
    j->loops->norm(src, host_floats(norm), s->head_dim, s->eps, dst);
    j->loops->turn(dst, host_floats(j->call->rope) + (uint64_t)t * s->rotary_dim, s->rotary_dim / 2,
                   s->rotary_dim / 2);
}

/* One token: too little work to be shared. */
static void prepare_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct gqa_shape *s = j->shape;
    const struct gqa_call *call = j->call;
    const struct kv_rows cache = {call->blocks, call->layer_off, s->n_kv_heads, s->head_dim, s->kv_type};
    uint32_t d = s->head_dim;
    uint64_t step = (1 + s->gated) * (uint64_t)d; /* from a query to the next */
    const float *row = host_floats(call->qkv) + (uint64_t)t * call->stride;
    const float *keys = row + s->n_heads * step, *values = keys + (uint64_t)s->n_kv_heads * d;
    float *key = j->keys + (uint64_t)thread * d;
    for (uint32_t h = 0; h < s->n_heads; h++)
        norm_and_turn(j, t, row + h * step, call->q_norm,
                      host_floats_mut(call->q) + ((uint64_t)t * s->n_heads + h) * d);
    for (uint32_t g = 0; g < s->n_kv_heads; g++) {
        norm_and_turn(j, t, keys + (uint64_t)g * d, call->k_norm, key);
        loops_put_row(j->loops, s->kv_type, key, d, kv_rows_at(&cache, call->pos + t, 0, g));
        loops_put_row(j->loops, s->kv_type, values + (uint64_t)g * d, d,
                      kv_rows_at(&cache, call->pos + t, 1, g));
    }
}

int gqa_prepare_cpu(const void *self, const void *what, struct host *h)
{
    const struct gqa_shape *s = &((const struct gqa *)self)->shape;
    const struct gqa_call *call = what;
    struct job j = {s, call, loops_of(h), NULL};
    j.keys = host_scratch(h, (uint64_t)team_n_threads(h->team) * s->head_dim, sizeof *j.keys);
    if (j.keys)
        team_for(h->team, call->n, prepare_token, &j);
    return host_error(h);
}
