#include "arch/residual.h"

#include <stdio.h>

#include "arch/arch.h"
#include "arch/loader.h"
#include "arch/scratch.h"
#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "model/part_tensors.h"

_Static_assert((int)CONFIG_MAX_BLOCK_STREAMS <= (int)STREAMS_MOST_ATTENDED, "streams of blocks");

/* Rows of `low` begin at multiples of four numbers, as products need them. */
static uint32_t low_stride(const struct config *c)
{
    const struct streams_config *s = &c->streams;
    return (uint32_t)size_round_up(s->rank ? s->rank + s->n : streams_n_low(s->n, true), 4);
}

/* Returns the numbers of a mix's scale, which precede its base. */
static uint32_t n_scales(bool joins)
{
    return joins ? 3 : 1;
}

int residual_open(struct residual *r, struct exec *x, const struct config *c, struct moeflux_err *e)
{
    const struct streams_shape shape = {c->streams.n, c->hidden,        c->streams.iterations,
                                        c->rms_eps,   c->streams.floor, c->streams.block > 0};
    r->exec = x;
    r->config = c;
    return streams_open(&r->op, x, &shape, e);
}

void residual_allocate(struct residual *r, const struct config *c, uint32_t n, struct scratch *to)
{
    uint64_t width = config_width(c);
    scratch_floats(to, &r->x, n * (width + 2 * (uint64_t)config_lagged(c)));
    if (c->streams.block)
        return;
    if (c->streams.rank) {
        scratch_floats(to, &r->normed, n * width);
        scratch_floats(to, &r->up, n * width);
    } else {
        scratch_floats(to, &r->squares, (uint64_t)n * streams_n_squares(c->hidden));
    }
    r->most = n;
    scratch_floats(to, &r->low, (uint64_t)n * low_stride(c));
}

void residual_close_mix(struct residual_mix *m, struct exec *x)
{
    linear_close(&m->down, x);
    linear_close(&m->up, x);
}

void residual_close(struct residual *r, struct exec *x)
{
    struct exec_buffer *buffers[] = {&r->x, &r->normed, &r->up, &r->squares, &r->low};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(x, buffers[i]);
    residual_close_mix(&r->last, x);
}

/* Sets which streams a mix has. layer: n_layers is the mix before the head. */
static void choose_streams(const struct streams_config *s, uint32_t layer, uint32_t block, bool is_last,
                           struct residual_mix *m)
{
    bool is_start = !is_last && layer % s->block == 0;
    uint32_t before = config_blocks_before(s, layer);
    m->n_kept = block > 0 && is_start ? before + 1 : before;
    m->keep = block == 0 && is_start ? before + 1 : 0;
    m->sets = block > 0 && is_start;
}

/* Returns how many mixes come before the mix `name` of a layer, or before the head. */
static uint32_t mixes_before(const struct config *c, uint32_t layer, const char *name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers && i <= layer; i++)
        for (uint32_t b = 0; b < c->layers[i].n_blocks; b++) {
            const char *mix = c->layers[i].blocks[b].mix;
            if (i == layer && mix == name)
                return n;
            n += mix != NULL;
        }
    return n;
}

static void set_turn(const struct config *c, uint32_t layer, const char *name, struct residual_mix *m)
{
    uint32_t before = mixes_before(c, layer, name);
    m->turn = before % 2;
    m->is_first = before == 0;
}

static int load_mix(struct residual_mix *m, struct loader *l, uint32_t layer, const char *name,
                    struct moeflux_err *e)
{
    struct part_tensor t[STREAMS_TENSORS];
    set_turn(l->config, layer, name, m);
    part_streams(l->config, name, layer == LOADER_NO_LAYER, t);
    if (l->config->streams.block) {
        int norm = loader_vectors(l, layer, t + STREAMS_NORM, 1, &m->norm, e);
        return norm < 0 ? norm : loader_vectors(l, layer, t + STREAMS_SCORE, 1, &m->score, e);
    }
    if (!l->config->streams.rank) {
        int done = loader_fused(l, layer, t + STREAMS_FN, 1, &m->down, e);
        return done < 0 ? done : loader_vectors(l, layer, t + STREAMS_SCALE, 2, &m->coefficients, e);
    }
    int rc = loader_fused(l, layer, t + STREAMS_DOWN, 2, &m->down, e);
    if (rc == 0)
        rc = loader_fused(l, layer, t + STREAMS_UP, 1, &m->up, e);
    return rc < 0 ? rc : loader_vectors(l, layer, t + STREAMS_NORM, 1, &m->norm, e);
}

int residual_load_mix(struct residual_mix *m, struct loader *l, uint32_t layer, uint32_t block,
                      struct moeflux_err *e)
{
    const struct config *c = l->config;
    if (c->streams.block)
        choose_streams(&c->streams, layer, block, false, m);
    return load_mix(m, l, layer, c->layers[layer].blocks[block].mix, e);
}

int residual_load_last(struct residual *r, struct loader *l, struct moeflux_err *e)
{
    const struct config *c = r->config;
    const char *name = part_last_mix(c);
    set_turn(c, LOADER_NO_LAYER, name, &r->last);
    if (c->streams.block)
        choose_streams(&c->streams, c->n_layers, 0, true, &r->last);
    return name ? load_mix(&r->last, l, LOADER_NO_LAYER, name, e) : 0;
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
    uint32_t at = c->streams.rank ? c->streams.rank : c->streams.n;
    call->by = r->low.address + ((uint64_t)from * low_stride(c) + at) * sizeof(float);
}

/* Adds r->out to doubly stochastic streams, and sums the squares of the result if `squares`. */
static void join(const struct residual *r, uint32_t from, uint32_t n, bool adds, bool squares)
{
    struct streams_norm_call of = norm_of(r, from, n);
    if (adds)
        set_add(r, from, &of);
    streams_join_run(&r->op, r->exec,
                     &(struct streams_join_call){.x = of.x,
                                                 .add = of.add,
                                                 .by = of.by,
                                                 .squares = squares ? r->squares.address : 0,
                                                 .n = n,
                                                 .by_stride = of.by_stride});
}

/* Mixes blocks into dst, unless it is 0. m NULL: there is no mix. */
static void attend(const struct residual *r, const struct residual_mix *m, uint64_t dst, uint32_t from,
                   uint32_t n, bool adds)
{
    const struct config *c = r->config;
    struct streams_attend_call call = {.x = norm_of(r, from, n).x, .n = n};
    if (adds)
        call.add = r->out + (uint64_t)from * c->hidden * sizeof(float);
    if (m) {
        call.norm = m->norm;
        call.score = m->score;
        call.dst = dst;
        call.n_kept = m->n_kept;
        call.keep = m->keep;
        call.sets = adds && m->sets;
    }
    streams_attend_run(&r->op, r->exec, &call);
}

void residual_add(const struct residual *r, uint32_t from, uint32_t n)
{
    if (r->config->streams.block) {
        attend(r, NULL, 0, from, n, true);
        return;
    }
    if (!r->config->streams.rank) {
        join(r, from, n, true, false);
        return;
    }
    struct streams_norm_call call = norm_of(r, from, n);
    set_add(r, from, &call);
    streams_norm_run(&r->op, r->exec, &call);
}

/* Returns the lagged weights of tokens from `from` on. */
static uint64_t lagged_at(const struct residual *r, uint32_t turn, uint32_t from)
{
    const struct config *c = r->config;
    uint64_t before = (uint64_t)r->most * config_width(c) + ((uint64_t)turn * r->most + from) * c->streams.n;
    return r->x.address + before * sizeof(float);
}

/* The products are float32 on every path: the weights of all streams depend on them. */
static void mix_joined(const struct residual *r, const struct residual_mix *m, uint64_t dst,
                       const struct arch_tokens *t, bool adds)
{
    const struct config *c = r->config;
    bool has_weights = m->coefficients != 0, joins = m != &r->last, lagged = c->streams.lagged;
    uint64_t x = norm_of(r, t->from, t->n).x;
    if (adds || has_weights)
        join(r, t->from, t->n, adds, has_weights);
    if (has_weights)
        linear_run(&m->down, r->exec,
                   &(struct linear_call){.x = x,
                                         .y = r->low.address,
                                         .x_stride = config_width(c),
                                         .y_stride = low_stride(c),
                                         .n = t->n,
                                         .chunk = t->plan_n});
    streams_collapse_run(&r->op, r->exec,
                         &(struct streams_collapse_call){
                             .x = x,
                             .squares = r->squares.address,
                             .low = has_weights ? r->low.address : 0,
                             .scale = m->coefficients,
                             .base = m->coefficients + n_scales(joins) * sizeof(float),
                             .dst = dst,
                             .n = t->n,
                             .stride = low_stride(c),
                             .joins = joins,
                             .lagged = lagged,
                             .weights = lagged && !m->is_first ? lagged_at(r, m->turn, t->from) : 0,
                             .kept = lagged ? lagged_at(r, !m->turn, t->from) : 0});
}

static void mix_low_rank(const struct residual *r, const struct residual_mix *m, uint64_t dst,
                         const struct arch_tokens *t, bool adds)
{
    uint32_t width = config_width(r->config), stride = low_stride(r->config);
    struct streams_norm_call norm = norm_of(r, t->from, t->n);
    if (adds)
        set_add(r, t->from, &norm);
    norm.norm = m->norm;
    norm.dst = r->normed.address;
    streams_norm_run(&r->op, r->exec, &norm);
    linear_run(&m->down, r->exec,
               &(struct linear_call){.x = r->normed.address,
                                     .y = r->low.address,
                                     .x_stride = width,
                                     .y_stride = stride,
                                     .n = t->n,
                                     .chunk = t->plan_n,
                                     .f16_scratch = r->f16_scratch});
    streams_low_run(&r->op, r->exec,
                    &(struct streams_low_call){
                        .low = r->low.address, .n = t->n, .rank = r->config->streams.rank, .stride = stride});
    linear_run(&m->up, r->exec,
               &(struct linear_call){.x = r->low.address,
                                     .y = r->up.address,
                                     .x_stride = stride,
                                     .y_stride = width,
                                     .n = t->n,
                                     .chunk = t->plan_n,
                                     .f16_scratch = r->f16_scratch});
    streams_mix_run(
        &r->op, r->exec,
        &(struct streams_mix_call){.up = r->up.address, .normed = r->normed.address, .dst = dst, .n = t->n});
}

void residual_mix(const struct residual *r, const struct residual_mix *m, uint64_t dst,
                  const struct arch_tokens *t, bool adds)
{
    if (r->config->streams.block)
        attend(r, m, dst, t->from, t->n, adds);
    else
        (r->config->streams.rank ? mix_low_rank : mix_joined)(r, m, dst, t, adds);
}
