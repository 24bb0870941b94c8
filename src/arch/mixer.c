#include "arch/mixer.h"

#include "model/config.h"
#include "ops/linear.h"

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

void mixer_add(const struct mixer_room *r, const struct linear *w, uint32_t n)
{
    linear_run(w, r->exec,
               &(struct linear_call){.x = r->mixed.address,
                                     .y = r->x,
                                     .x_stride = w->cols,
                                     .y_stride = r->config->hidden,
                                     .n = n,
                                     .add = true,
                                     .f16_scratch = r->f16_scratch.address});
}
