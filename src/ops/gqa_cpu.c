#include <string.h>

#include "base/team.h"
#include "ops/gqa.h"
#include "ops/loops.h"

struct job {
    const struct gqa_shape *shape;
    const struct gqa_call *call;
    const struct loops *loops;
    float *heads; /* two a thread: a key, and a head with its bias */
};

/* A head of a token's row: where it stands, or with its bias in `room`. */
static const float *head_at(const struct job *j, const float *row, uint64_t at, float *room)
{
    const float *bias = host_floats(j->call->bias);
    if (!j->shape->biased)
        return row + at;
    for (uint32_t c = 0; c < j->shape->head_dim; c++)
        room[c] = row[at + c] + bias[at + c];
    return room;
}

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
    uint64_t keys = s->n_heads * step, values = keys + (uint64_t)s->n_kv_heads * d;
    float *key = j->heads + (uint64_t)thread * 2 * d, *room = key + d;
    for (uint32_t h = 0; h < s->n_heads; h++)
        norm_and_turn(j, t, head_at(j, row, h * step, room), call->q_norm,
                      host_floats_mut(call->q) + ((uint64_t)t * s->n_heads + h) * d);
    for (uint32_t g = 0; g < s->n_kv_heads; g++) {
        uint64_t of_head = (uint64_t)g * d;
        norm_and_turn(j, t, head_at(j, row, keys + of_head, room), call->k_norm, key);
        loops_put_row(j->loops, s->kv_type, key, d, kv_rows_at(&cache, call->pos + t, 0, g));
        loops_put_row(j->loops, s->kv_type, head_at(j, row, values + of_head, room), d,
                      kv_rows_at(&cache, call->pos + t, 1, g));
    }
}

int gqa_prepare_cpu(const void *self, const void *what, struct host *h)
{
    const struct gqa_shape *s = &((const struct gqa *)self)->shape;
    const struct gqa_call *call = what;
    struct job j = {s, call, loops_of(h), NULL};
    j.heads = host_scratch(h, (uint64_t)team_n_threads(h->team) * 2 * s->head_dim, sizeof *j.heads);
    if (j.heads)
        team_for(h->team, call->n, prepare_token, &j);
    return host_error(h);
}
