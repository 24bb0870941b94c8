/* A dense feed-forward part:
 *   [gate, up] = W norm(x);  silu(gate) * up, or gelu(gate) * up;  x += down   (3 dispatches) */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/linear/linear.h"
#include "ops/swiglu.h"

struct dense_layer {
    struct linear gate_up, down;
};

struct dense {
    const struct part_room *room;
    uint32_t inner;
    struct swiglu swiglu;
    struct dense_layer *layers; /* [n_layers] */
};

/* indices into room->own */
enum { GATE_UP, ACT };

/* Returns the matrices of the first product: gate and up, or up by itself. */
static uint32_t n_in(const struct config *c)
{
    return c->gateless ? 1 : 2;
}

static void dense_needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                        const struct part_most *most, struct part_needs *out)
{
    uint64_t n = (uint64_t)most->chunk * p->dense.inner;
    (void)caps;
    *out = (struct part_needs){.widest = p->dense.inner, .own = {[GATE_UP] = n_in(c) * n, [ACT] = n}};
}

static void dense_close(void *self)
{
    struct dense *d = self;
    if (!d)
        return;
    for (uint32_t i = 0; d->layers && i < d->room->config->n_layers; i++) {
        linear_close(&d->layers[i].gate_up, d->room->exec);
        linear_close(&d->layers[i].down, d->room->exec);
    }
    free(d->layers);
    free(d);
}

static int dense_open(void **self, const struct part_room *room, const struct part_config *p,
                      struct moeflux_err *e)
{
    struct dense *d = *self = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->room = room;
    d->inner = p->dense.inner;
    d->layers = mem_new(room->config->n_layers, sizeof *d->layers, e);
    float gating = part_gating(room->config, p->dense.clamp);
    int rc = d->layers ? swiglu_open(&d->swiglu, room->exec, gating, e) : ERR_MEMORY;
    if (rc < 0) {
        dense_close(d);
        *self = NULL;
    }
    return rc;
}

static int dense_load(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                      struct moeflux_err *e)
{
    struct dense_layer *y = &((struct dense *)self)->layers[layer];
    int rc = loader_fused(l, layer, t + DENSE_GATE, 2, &y->gate_up, e);
    return rc < 0 ? rc : loader_fused(l, layer, t + DENSE_DOWN, 1, &y->down, e);
}

static void dense_run(const void *self, const struct part_call *call)
{
    const struct dense *d = self;
    const struct part_room *r = d->room;
    const struct dense_layer *y = &d->layers[call->layer];
    const struct exec_buffer *own = r->own[PART_DENSE];
    uint32_t n = call->chunk->n;
    linear_run(&y->gate_up, r->exec,
               &(struct linear_call){.x = call->in,
                                     .norm = call->norm,
                                     .y = own[GATE_UP].address,
                                     .x_stride = r->config->hidden,
                                     .y_stride = n_in(r->config) * d->inner,
                                     .n = n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .eps = r->config->rms_eps,
                                     .f16_scratch = r->f16_scratch.address});
    swiglu_run(&d->swiglu, r->exec,
               &(struct swiglu_call){
                   .src = own[GATE_UP].address, .dst = own[ACT].address, .n = n, .inner = d->inner});
    linear_run(&y->down, r->exec,
               &(struct linear_call){.x = own[ACT].address,
                                     .y = call->out,
                                     .x_stride = d->inner,
                                     .y_stride = r->config->hidden,
                                     .n = n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .add = call->adds,
                                     .f16_scratch = r->f16_scratch.address});
}

const struct part part_dense = {
    .needs = dense_needs,
    .open = dense_open,
    .close = dense_close,
    .load = dense_load,
    .run = dense_run,
};
