/* The Vulkan implementation of streams.h. */
#include "args.h"
#include "base/mem.h"
#include "ops/streams/streams.h"

enum { WORKGROUP = 256 };

int streams_vulkan_open(struct streams *op, struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps caps = exec_get_caps(x);
    uint32_t group = exec_workgroup(&caps, WORKGROUP);
    const uint32_t spec[] = {caps.subgroup_size, group, div_up(op->shape.hidden / 4, group)};
    const uint32_t joined[] = {caps.subgroup_size, group, op->shape.n_streams};
    op->gpu.workgroup = group;
    int rc = exec_kernel(x, &op->gpu.begin, "streams_begin", sizeof(struct streams_begin_args), spec, 2, e);
    if (rc == 0 && op->shape.attends)
        return exec_kernel(x, &op->gpu.attend, "streams_attend", sizeof(struct streams_attend_args), joined,
                           3, e);
    if (rc == 0 && op->shape.iterations > 0) {
        rc = exec_kernel(x, &op->gpu.join, "streams_join", sizeof(struct streams_join_args), joined, 3, e);
        return rc < 0 ? rc
                      : exec_kernel(x, &op->gpu.collapse, "streams_collapse",
                                    sizeof(struct streams_collapse_args), joined, 3, e);
    }
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.norm, "streams_norm", sizeof(struct streams_norm_args), spec, 3, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.low, "streams_low", sizeof(struct streams_low_args), spec, 2, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.mix, "streams_mix", sizeof(struct streams_mix_args), spec, 2, e);
    return rc;
}

void streams_begin_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct streams *op = self;
    const struct streams_begin_call *c = what;
    const struct streams_begin_args a = {
        .src = c->src, .x = c->x, .n = c->n, .hidden = op->shape.hidden, .n_streams = op->shape.n_streams};
    exec_dispatch(x, &op->gpu.begin, &a, div_up(op->shape.hidden / 4, op->gpu.workgroup), c->n, 1);
}

void streams_norm_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct streams *op = self;
    const struct streams_norm_call *c = what;
    const struct streams_norm_args a = {.x = c->x,
                                        .add = c->add,
                                        .by = c->by,
                                        .norm = c->norm,
                                        .dst = c->dst,
                                        .n = c->n,
                                        .hidden = op->shape.hidden,
                                        .n_streams = op->shape.n_streams,
                                        .by_stride = c->by_stride,
                                        .eps = op->shape.eps};
    exec_dispatch(x, &op->gpu.norm, &a, op->shape.n_streams, c->n, 1);
}

void streams_low_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct streams *op = self;
    const struct streams_low_call *c = what;
    const struct streams_low_args a = {
        .low = c->low, .n = c->n, .rank = c->rank, .stride = c->stride, .n_streams = op->shape.n_streams};
    exec_dispatch(x, &op->gpu.low, &a, div_up(c->rank, op->gpu.workgroup), c->n, 1);
}

void streams_mix_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct streams *op = self;
    const struct streams_mix_call *c = what;
    const struct streams_mix_args a = {.up = c->up,
                                       .normed = c->normed,
                                       .dst = c->dst,
                                       .n = c->n,
                                       .hidden = op->shape.hidden,
                                       .n_streams = op->shape.n_streams};
    exec_dispatch(x, &op->gpu.mix, &a, div_up(op->shape.hidden / 4, op->gpu.workgroup), c->n, 1);
}

void streams_join_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct streams *op = self;
    const struct streams_join_call *c = what;
    const struct streams_join_args a = {.x = c->x,
                                        .add = c->add,
                                        .by = c->by,
                                        .squares = c->squares,
                                        .n = c->n,
                                        .hidden = op->shape.hidden,
                                        .by_stride = c->by_stride};
    exec_dispatch(x, &op->gpu.join, &a, STREAMS_PIECES(op->shape.hidden), c->n, 1);
}

void streams_collapse_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct streams *op = self;
    const struct streams_collapse_call *c = what;
    const struct streams_collapse_args a = {.x = c->x,
                                            .squares = c->squares,
                                            .low = c->low,
                                            .scale = c->scale,
                                            .base = c->base,
                                            .dst = c->dst,
                                            .n = c->n,
                                            .hidden = op->shape.hidden,
                                            .stride = c->stride,
                                            .weights = c->weights,
                                            .kept = c->kept,
                                            .joins = c->joins,
                                            .lagged = c->lagged,
                                            .eps = op->shape.eps,
                                            .floor = op->shape.floor,
                                            .iterations = op->shape.iterations};
    exec_dispatch(x, &op->gpu.collapse, &a, STREAMS_PIECES(op->shape.hidden) + c->joins, c->n, 1);
}

void streams_attend_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct streams *op = self;
    const struct streams_attend_call *c = what;
    const struct streams_attend_args a = {.x = c->x,
                                          .add = c->add,
                                          .norm = c->norm,
                                          .score = c->score,
                                          .dst = c->dst,
                                          .n = c->n,
                                          .hidden = op->shape.hidden,
                                          .n_streams = op->shape.n_streams,
                                          .n_kept = c->n_kept,
                                          .keep = c->keep,
                                          .sets = c->sets,
                                          .eps = op->shape.eps};
    exec_dispatch(x, &op->gpu.attend, &a, 1, c->n, 1);
}
