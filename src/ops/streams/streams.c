#include "ops/streams/streams.h"

#include <assert.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "exec/host.h"

static const struct op begin_op = {.name = "streams_begin",
                                   .vulkan = streams_begin_vulkan,
                                   .cpu = streams_begin_host,
                                   .reference = streams_begin_host};
static const struct op norm_op = {.name = "streams_norm",
                                  .vulkan = streams_norm_vulkan,
                                  .cpu = streams_norm_cpu,
                                  .reference = streams_norm_ref};
static const struct op low_op = {.name = "streams_low",
                                 .vulkan = streams_low_vulkan,
                                 .cpu = streams_low_cpu,
                                 .reference = streams_low_ref};
static const struct op mix_op = {.name = "streams_mix",
                                 .vulkan = streams_mix_vulkan,
                                 .cpu = streams_mix_cpu,
                                 .reference = streams_mix_ref};

static const struct op join_op = {.name = "streams_join",
                                  .vulkan = streams_join_vulkan,
                                  .cpu = streams_join_cpu,
                                  .reference = streams_join_ref};
static const struct op collapse_op = {.name = "streams_collapse",
                                      .vulkan = streams_collapse_vulkan,
                                      .cpu = streams_collapse_cpu,
                                      .reference = streams_collapse_ref};
static const struct op attend_op = {.name = "streams_attend",
                                    .vulkan = streams_attend_vulkan,
                                    .cpu = streams_attend_cpu,
                                    .reference = streams_attend_ref};

int streams_open(struct streams *op, struct exec *x, const struct streams_shape *s, struct moeflux_err *e)
{
    *op = (struct streams){.shape = *s};
    if (s->n_streams == 0 || s->hidden == 0 || s->hidden % 4)
        return err_set(e, ERR_UNSUPPORTED, "residual: %u streams of %u channels, expected a multiple of 4",
                       s->n_streams, s->hidden);
    if (s->iterations > 0 && s->n_streams > STREAMS_MOST_JOINED)
        return err_set(e, ERR_UNSUPPORTED,
                       "residual: %u streams in a doubly stochastic mix, expected up to %d", s->n_streams,
                       STREAMS_MOST_JOINED);
    if (s->attends && s->n_streams > STREAMS_MOST_ATTENDED)
        return err_set(e, ERR_UNSUPPORTED, "residual: %u streams in attention over blocks, expected up to %d",
                       s->n_streams, STREAMS_MOST_ATTENDED);
    return exec_get_caps(x).is_host ? 0 : streams_vulkan_open(op, x, e);
}

void streams_begin_run(const struct streams *op, struct exec *x, const struct streams_begin_call *call)
{
    exec_op(x, &begin_op, op, call);
}

void streams_norm_run(const struct streams *op, struct exec *x, const struct streams_norm_call *call)
{
    exec_op(x, &norm_op, op, call);
}

void streams_low_run(const struct streams *op, struct exec *x, const struct streams_low_call *call)
{
    exec_op(x, &low_op, op, call);
}

void streams_mix_run(const struct streams *op, struct exec *x, const struct streams_mix_call *call)
{
    exec_op(x, &mix_op, op, call);
}

void streams_join_run(const struct streams *op, struct exec *x, const struct streams_join_call *call)
{
    exec_op(x, &join_op, op, call);
}

void streams_collapse_run(const struct streams *op, struct exec *x, const struct streams_collapse_call *call)
{
    exec_op(x, &collapse_op, op, call);
}

void streams_attend_run(const struct streams *op, struct exec *x, const struct streams_attend_call *call)
{
    assert(call->n_kept < op->shape.n_streams && call->keep < op->shape.n_streams);
    exec_op(x, &attend_op, op, call);
}

uint32_t streams_n_squares(uint32_t hidden)
{
    return STREAMS_PIECES(hidden);
}

int streams_begin_host(const void *self, const void *what, struct host *h)
{
    const struct streams_shape *s = &((const struct streams *)self)->shape;
    const struct streams_begin_call *c = what;
    for (uint64_t i = 0; i < (uint64_t)c->n * s->n_streams; i++)
        memcpy(host_floats_mut(c->x) + i * s->hidden, host_floats(c->src) + i / s->n_streams * s->hidden,
               s->hidden * sizeof(float));
    return host_error(h);
}
