#include "arch/mixer.h"

#include "model/config.h"
#include "ops/linear/linear.h"

uint32_t mixer_n_parts(const struct arch_chunk *c)
{
    return c->each ? c->n : 1;
}

struct mixer_part mixer_part(const struct mixer_room *r, const struct arch_chunk *c, uint32_t idx)
{
    uint64_t rope_row = r->config->rotary_dim * sizeof(float);
    if (!c->each)
        return (struct mixer_part){.n = c->n, .rope = c->rope, .of = c->of};
    return (struct mixer_part){.from = idx, .n = 1, .rope = c->rope + idx * rope_row, .of = c->each[idx]};
}

void mixer_project(const struct mixer_room *r, const struct linear *w, const struct mixer_call *call,
                   uint32_t stride)
{
    linear_run(w, r->exec,
               &(struct linear_call){.x = r->x,
                                     .norm = call->norm,
                                     .y = r->proj.address,
                                     .x_stride = r->config->hidden,
                                     .y_stride = stride,
                                     .n = call->chunk->n,
                                     .eps = r->config->rms_eps,
                                     .f16_scratch = r->f16_scratch.address});
}

void mixer_add(const struct mixer_room *r, const struct linear *w, uint32_t n, bool is_cast)
{
    linear_run(w, r->exec,
               &(struct linear_call){.x = r->mixed.address,
                                     .y = r->x,
                                     .x_stride = w->cols,
                                     .y_stride = r->config->hidden,
                                     .n = n,
                                     .add = true,
                                     .f16_scratch = r->f16_scratch.address,
                                     .is_cast = is_cast});
}
