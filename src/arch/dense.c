#include "arch/dense.h"

#include "arch/loader.h"
#include "arch/scratch.h"
#include "base/err.h"
#include "model/config.h"

void dense_allocate(struct dense *d, const struct config *c, uint32_t n, struct scratch *to)
{
    if (!c->dense_inner)
        return;
    scratch_floats(to, &d->gate_up, 2 * (uint64_t)n * c->dense_inner);
    scratch_floats(to, &d->act, (uint64_t)n * c->dense_inner);
}

int dense_open(struct dense *d, struct exec *x, const struct config *c, struct moeflux_err *e)
{
    d->exec = x;
    d->config = c;
    return c->dense_inner ? swiglu_open(&d->swiglu, x, e) : 0;
}

void dense_close(struct dense *d)
{
    exec_buffer_free(d->exec, &d->gate_up);
    exec_buffer_free(d->exec, &d->act);
}

int dense_load_layer(struct loader *l, uint32_t layer, struct dense_layer *out, struct moeflux_err *e)
{
    const struct config *c = l->config;
    const struct loader_part gate_up[] = {{"mlp.gate_proj", c->dense_inner}, {"mlp.up_proj", c->dense_inner}};
    const struct loader_part down = {"mlp.down_proj", c->hidden};
    int rc = loader_fused(l, layer, gate_up, 2, c->hidden, &out->gate_up, e);
    return rc < 0 ? rc : loader_fused(l, layer, &down, 1, c->dense_inner, &out->down, e);
}

void dense_close_layer(struct dense_layer *y, struct exec *x)
{
    linear_close(&y->gate_up, x);
    linear_close(&y->down, x);
}

void dense_run(const struct dense *d, const struct dense_layer *y, uint64_t x, uint64_t norm, uint32_t n)
{
    uint32_t inner = d->config->dense_inner;
    linear_run(&y->gate_up, d->exec,
               &(struct linear_call){.x = x,
                                     .norm = norm,
                                     .y = d->gate_up.address,
                                     .x_stride = d->config->hidden,
                                     .y_stride = 2 * inner,
                                     .n = n,
                                     .eps = d->config->rms_eps,
                                     .f16_scratch = d->f16_scratch});
    swiglu_run(
        &d->swiglu, d->exec,
        &(struct swiglu_call){.src = d->gate_up.address, .dst = d->act.address, .n = n, .inner = inner});
    linear_run(&y->down, d->exec,
               &(struct linear_call){.x = d->act.address,
                                     .y = x,
                                     .x_stride = inner,
                                     .y_stride = d->config->hidden,
                                     .n = n,
                                     .add = true,
                                     .f16_scratch = d->f16_scratch});
}
