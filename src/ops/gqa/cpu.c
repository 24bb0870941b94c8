/* The native implementation of gqa.h. */
#include <string.h>

#include "cpu/team.h"
#include "ops/gqa/gqa.h"
#include "ops/loops.h"

struct job {
    const struct gqa_shape *shape;
    const struct gqa_call *call;
    const struct loops *loops;
    float *rooms; /* room_of(shape), one a thread */
};

/* Returns the floats of a thread's scratch: a token's keys, and queries, keys or values with their biases. */
static uint64_t room_of(const struct gqa_shape *s)
{
    return ((uint64_t)s->n_kv_heads + s->n_heads) * s->head_dim;
}

/* Returns n numbers of a token's row: in place, or with their biases in `room`. */
static const float *with_bias(const struct job *j, const float *row, uint64_t at, uint64_t n, float *room)
{
    const float *bias = host_floats(j->call->bias);
    if (!j->shape->biased)
        return row + at;
    for (uint64_t c = 0; c < n; c++)
        room[c] = row[at + c] + bias[at + c];
    return room;
}

/* Norms and turns n heads, `step` apart, into dst, where they are contiguous. */
static void norm_and_turn(const struct job *j, uint32_t t, const float *src, uint64_t step, uint32_t n,
                          uint64_t norm, float *dst)
{
    const struct gqa_shape *s = j->shape;
    const float *rope = host_floats(j->call->rope) + (uint64_t)t * s->rotary_dim;
    uint32_t d = s->head_dim;
    bool is_one = s->norm == ATTENTION_NORM_ALL; /* there are no gates then, so the heads are contiguous */
    if (is_one)
        j->loops->norm(src, host_floats(norm), n * d, s->eps, dst);
    for (uint32_t h = 0; h < n; h++, dst += d) {
        if (!is_one)
            j->loops->norm(src + h * step, host_floats(norm), d, s->eps, dst);
        j->loops->turn(dst, rope, s->rotary_dim / 2, s->rotary_dim / 2);
    }
}

/* Prepares one token, which is too little work to be shared. */
static void prepare_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct gqa_shape *s = j->shape;
    const struct gqa_call *call = j->call;
    const struct kv_rows cache = {call->blocks, call->layer_off,  s->n_kv_heads,
                                  s->head_dim,  gqa_value_dim(s), s->kv_type};
    uint32_t d = s->head_dim, v = gqa_value_dim(s);
    uint64_t step = (1 + s->gated) * (uint64_t)d; /* distance between queries */
    uint64_t n_keys = (uint64_t)s->n_kv_heads * d, n_values = (uint64_t)s->n_kv_heads * v,
             keys_at = s->n_heads * step;
    const float *row = host_floats(call->qkv) + (uint64_t)t * call->stride;
    float *keys = j->rooms + thread * room_of(s), *room = keys + n_keys;
    norm_and_turn(j, t, with_bias(j, row, 0, (uint64_t)s->n_heads * d, room), step, s->n_heads, call->q_norm,
                  host_floats_mut(call->q) + (uint64_t)t * s->n_heads * d);
    norm_and_turn(j, t, with_bias(j, row, keys_at, n_keys, room), d, s->n_kv_heads, call->k_norm, keys);
    const float *values = with_bias(j, row, keys_at + n_keys, n_values, room);
    if (s->values.normed) {
        for (uint32_t g = 0; g < s->n_kv_heads; g++)
            j->loops->unit(values + (uint64_t)g * v, v, s->eps, room + (uint64_t)g * v);
        values = room;
    }
    if (s->values.scale > 0) {
        for (uint64_t i = 0; i < n_values; i++)
            room[i] = values[i] * s->values.scale;
        values = room;
    }
    for (uint32_t g = 0; g < s->n_kv_heads; g++) {
        loops_put_row(j->loops, s->kv_type, keys + (uint64_t)g * d, d,
                      kv_rows_at(&cache, call->pos + t, 0, g));
        loops_put_row(j->loops, s->kv_type, values + (uint64_t)g * v, v,
                      kv_rows_at(&cache, call->pos + t, 1, g));
    }
}

int gqa_prepare_cpu(const void *self, const void *what, struct host *h)
{
    const struct gqa_shape *s = &((const struct gqa *)self)->shape;
    const struct gqa_call *call = what;
    struct job j = {s, call, loops_of(h), NULL};
    j.rooms = host_scratch(h, team_n_threads(h->team) * room_of(s), sizeof *j.rooms);
    if (j.rooms)
        team_for(h->team, call->n, prepare_token, &j);
    return host_error(h);
}
