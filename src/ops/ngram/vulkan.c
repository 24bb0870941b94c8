/* The Vulkan implementation of ngram.h. */
#include "args.h"
#include "base/mem.h"
#include "ops/ngram/ngram.h"

enum { WORKGROUP = 256 };

int ngram_vulkan_open(struct ngram *op, struct exec *x, struct moeflux_err *e)
{
    const struct ngram_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    uint32_t group = exec_workgroup(&caps, WORKGROUP);
    const uint32_t gate[] = {caps.subgroup_size, group}, conv[] = {caps.subgroup_size, group, s->taps};
    op->gpu.workgroup = group;
    int rc = exec_kernel(x, &op->gpu.gate, "ngram_gate", sizeof(struct ngram_gate_args), gate, 2, e);
    return rc < 0 ? rc
                  : exec_kernel(x, &op->gpu.conv, "ngram_conv", sizeof(struct ngram_conv_args), conv, 3, e);
}

void ngram_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct ngram *op = self;
    const struct ngram_shape *s = &op->shape;
    const struct ngram_call *c = what;
    uint32_t width = s->n_streams * s->hidden, held = (uint32_t)ngram_held(s);
    uint64_t gates = c->scratch + (uint64_t)c->n * width * sizeof(float);
    const struct ngram_gate_args gate = {.proj = c->proj,
                                         .x = c->x,
                                         .x_norm = c->x_norm,
                                         .k_norm = c->k_norm,
                                         .u_norm = s->taps ? c->u_norm : 0,
                                         .u = c->scratch,
                                         .gates = gates,
                                         .n = c->n,
                                         .stride = c->stride,
                                         .hidden = s->hidden,
                                         .n_streams = s->n_streams,
                                         .scale = s->scale,
                                         .eps = s->eps};
    const struct ngram_conv_args conv = {.proj = c->proj,
                                         .conv = c->conv,
                                         .u = c->scratch,
                                         .gates = gates,
                                         .window_in = c->window_in,
                                         .window_out = c->window_out,
                                         .x = c->x,
                                         .n = c->n,
                                         .stride = c->stride,
                                         .hidden = s->hidden,
                                         .n_streams = s->n_streams,
                                         .dilation = s->dilation};
    exec_dispatch(x, &op->gpu.gate, &gate, s->n_streams, c->n, 1);
    exec_dispatch(x, &op->gpu.conv, &conv, div_up(width, op->gpu.workgroup), (uint32_t)size_max(c->n, held),
                  1);
}
