#include "arch/part.h"

#include "model/config.h"
#include "model/rope.h"
#include "ops/linear/linear.h"

uint32_t part_n_sequences(const struct arch_chunk *c)
{
    return c->each ? c->n : 1;
}

struct part_tokens part_tokens_of(const struct part_room *r, const struct arch_chunk *c, uint32_t rope,
                                  uint32_t idx)
{
    uint64_t row = r->config->ropes[rope].dim * sizeof(float);
    uint64_t table = c->rope + (uint64_t)c->n * rope_floats(r->config, rope) * sizeof(float);
    if (!c->each)
        return (struct part_tokens){.n = c->n, .rope = table, .of = c->of};
    return (struct part_tokens){.from = idx, .n = 1, .rope = table + idx * row, .of = c->each[idx]};
}

void part_project(const struct part_room *r, const struct linear *w, const struct part_call *call,
                  uint32_t stride)
{
    linear_run(w, r->exec,
               &(struct linear_call){.x = call->in,
                                     .norm = call->norm,
                                     .y = r->proj.address,
                                     .x_stride = r->config->hidden,
                                     .y_stride = stride,
                                     .n = call->chunk->n,
                                     .eps = r->config->rms_eps,
                                     .f16_scratch = r->f16_scratch.address});
}

void part_add(const struct part_room *r, const struct linear *w, const struct part_call *call, bool is_cast)
{
    linear_run(w, r->exec,
               &(struct linear_call){.x = r->mixed.address,
                                     .y = call->out,
                                     .x_stride = w->cols,
                                     .y_stride = r->config->hidden,
                                     .n = call->chunk->n,
                                     .add = true,
                                     .f16_scratch = r->f16_scratch.address,
                                     .is_cast = is_cast});
}
