#include "arch/residual.h"

#include <stdio.h>

#include "args.h"
#include "arch/loader.h"
#include "arch/scratch.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/part_tensors.h"

/* Rows of `low` begin at multiples of four numbers, as products need them. */
static uint32_t low_stride(const struct config *c)
{
    return (uint32_t)size_round_up(c->streams.rank + c->streams.n, 4);
}

int residual_open(struct residual *r, struct exec *x, const struct config *c, struct moeflux_err *e)
{
    const struct streams_shape shape = {c->streams.n, c->hidden, c->rms_eps};
    r->exec = x;
    r->config = c;
    return streams_open(&r->op, x, &shape, e);
}

void residual_allocate(struct residual *r, const struct config *c, uint32_t n, struct scratch *to)
{
    uint64_t width = config_width(c);
    scratch_floats(to, &r->x, n * width);
    scratch_floats(to, &r->normed, n * width);
    scratch_floats(to, &r->up, n * width);
    scratch_floats(to, &r->low, (uint64_t)n * low_stride(c));
}

void residual_close_mix(struct residual_mix *m, struct exec *x)
{
    linear_close(&m->down, x);
    linear_close(&m->up, x);
}

void residual_close(struct residual *r, struct exec *x)
{
    struct exec_buffer *buffers[] = {&r->x, &r->normed, &r->up, &r->low};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(x, buffers[i]);
    residual_close_mix(&r->last, x);
}

int residual_load_mix(struct residual_mix *m, struct loader *l, uint32_t layer, const char *name,
                      struct moeflux_err *e)
{
    struct part_tensor t[STREAMS_TENSORS];
    part_streams(l->config, name, layer == LOADER_NO_LAYER, t);
    int rc = loader_fused(l, layer, t + STREAMS_DOWN, 2, &m->down, e);
    if (rc == 0)
        rc = loader_fused(l, layer, t + STREAMS_UP, 1, &m->up, e);
    return rc < 0 ? rc : loader_vectors(l, layer, t + STREAMS_NORM, 1, &m->norm, e);
}

int residual_load_last(struct residual *r, struct loader *l, struct moeflux_err *e)
{
    return residual_load_mix(&r->last, l, LOADER_NO_LAYER, PART_LAST_MIX, e);
}

void residual_begin(const struct residual *r, uint64_t src, uint32_t n)
{
    streams_begin_run(&r->op, r->exec, &(struct streams_begin_call){.src = src, .x = r->x.address, .n = n});
}

/* Returns the norm of some tokens' streams, without an addition and without a result. */
static struct streams_norm_call norm_of(const struct residual *r, uint32_t from, uint32_t n)
{
    const struct config *c = r->config;
    uint64_t row = (uint64_t)from * config_width(c) * sizeof(float);
    return (struct streams_norm_call){.x = r->x.address + row, .n = n, .by_stride = low_stride(c)};
}

/* Sets what norm_of lacks to add r->out. */
static void set_add(const struct residual *r, uint32_t from, struct streams_norm_call *call)
{
    const struct config *c = r->config;
    call->add = r->out + (uint64_t)from * c->hidden * sizeof(float);
    call->by = r->low.address + ((uint64_t)from * low_stride(c) + c->streams.rank) * sizeof(float);
}

void residual_add(const struct residual *r, uint32_t from, uint32_t n)
{
    struct streams_norm_call call = norm_of(r, from, n);
    set_add(r, from, &call);
    streams_norm_run(&r->op, r->exec, &call);
}

void residual_mix(const struct residual *r, const struct residual_mix *m, uint64_t dst, uint32_t from,
                  uint32_t n, bool adds)
{
    uint32_t width = config_width(r->config), stride = low_stride(r->config);
    struct streams_norm_call norm = norm_of(r, from, n);
    if (adds)
        set_add(r, from, &norm);
    norm.norm = m->norm;
    norm.dst = r->normed.address;
    streams_norm_run(&r->op, r->exec, &norm);
    linear_run(&m->down, r->exec,
               &(struct linear_call){.x = r->normed.address,
                                     .y = r->low.address,
                                     .x_stride = width,
                                     .y_stride = stride,
                                     .n = n,
                                     .f16_scratch = r->f16_scratch});
    streams_low_run(&r->op, r->exec,
                    &(struct streams_low_call){
                        .low = r->low.address, .n = n, .rank = r->config->streams.rank, .stride = stride});
    linear_run(&m->up, r->exec,
               &(struct linear_call){.x = r->low.address,
                                     .y = r->up.address,
                                     .x_stride = stride,
                                     .y_stride = width,
                                     .n = n,
                                     .f16_scratch = r->f16_scratch});
    streams_mix_run(
        &r->op, r->exec,
        &(struct streams_mix_call){.up = r->up.address, .normed = r->normed.address, .dst = dst, .n = n});
}
