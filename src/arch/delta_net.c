/* Gated delta net:
 *   [qkv, z, b, a] = W norm(x);  delta (ops/delta/delta.h);  x += out_proj o   (3 dispatches)
 *
 * The recurrent state has two windows of the convolution, one read while the other is written, then S. */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/mixer.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"
#include "ops/delta/delta.h"
#include "ops/linear/linear.h"

struct delta_layer {
    struct linear in, out;
    uint64_t conv, a_log, dt_bias, norm;
};

struct delta_net {
    const struct mixer_room *room;
    struct delta op;
    struct delta_layer *layers; /* [n_layers] */
};

/* index into room->own */
enum { PREPARED };

static struct delta_shape shape_of(const struct config *c)
{
    return (struct delta_shape){.n_k = c->n_k_heads,
                                .n_v = c->n_v_heads,
                                .k_dim = c->k_head_dim,
                                .v_dim = c->v_head_dim,
                                .conv_kernel = c->conv_kernel,
                                .eps = c->rms_eps};
}

/* The number of outputs of the fused product. */
static uint32_t in_rows(const struct config *c)
{
    return config_conv_dim(c) + c->n_v_heads * (c->v_head_dim + 2);
}

static void delta_net_needs(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk,
                            struct mixer_needs *out)
{
    const struct delta_shape shape = shape_of(c);
    uint64_t inner = (uint64_t)c->n_v_heads * c->v_head_dim;
    *out = (struct mixer_needs){.proj = in_rows(c), .mixed = inner, .widest = inner};
    out->own[PREPARED] = delta_scratch(&shape, caps, max_chunk);
}

static struct arch_state delta_net_state(const struct config *c, enum kv_type type)
{
    uint64_t window = (uint64_t)(c->conv_kernel - 1) * config_conv_dim(c) * sizeof(float);
    (void)type;
    return (struct arch_state){.window_bytes = window,
                               .delta_off = 2 * window,
                               .delta_bytes =
                                   (uint64_t)c->n_v_heads * c->v_head_dim * c->k_head_dim * sizeof(float)};
}

static void delta_net_close(void *self)
{
    struct delta_net *d = self;
    if (!d)
        return;
    for (uint32_t i = 0; d->layers && i < d->room->config->n_layers; i++) {
        linear_close(&d->layers[i].in, d->room->exec);
        linear_close(&d->layers[i].out, d->room->exec);
    }
    free(d->layers);
    free(d);
}

static int delta_net_open(void **self, const struct mixer_room *room, struct moeflux_err *e)
{
    const struct delta_shape shape = shape_of(room->config);
    struct delta_net *d = *self = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->room = room;
    d->layers = mem_new(room->config->n_layers, sizeof *d->layers, e);
    int rc = d->layers ? delta_open(&d->op, room->exec, &shape, e) : ERR_MEMORY;
    if (rc < 0) {
        delta_net_close(d);
        *self = NULL;
    }
    return rc;
}

static int delta_net_load(void *self, struct loader *l, uint32_t layer, struct moeflux_err *e)
{
    struct delta_net *d = self;
    const struct config *c = d->room->config;
    struct delta_layer *y = &d->layers[layer];
    uint32_t channels = config_conv_dim(c), inner = c->n_v_heads * c->v_head_dim;
    const struct loader_part in[] = {{"linear_attn.in_proj_qkv", channels},
                                     {"linear_attn.in_proj_z", inner},
                                     {"linear_attn.in_proj_b", c->n_v_heads},
                                     {"linear_attn.in_proj_a", c->n_v_heads}};
    const struct loader_part out[] = {{"linear_attn.out_proj", c->hidden}};
    int rc = loader_fused(l, layer, in, 4, c->hidden, &y->in, e);
    if (rc == 0)
        rc = loader_fused(l, layer, out, 1, inner, &y->out, e);
    if (rc == 0 && delta_gives_squares(&d->op, d->room->exec, 1))
        rc = linear_expect_squares(&y->out, d->room->exec, c->v_head_dim, e);
    if (rc == 0)
        rc = loader_layer_vector(l, layer, "linear_attn.conv1d.weight", (uint64_t)channels * c->conv_kernel,
                                 &y->conv, e);
    if (rc == 0)
        rc = loader_layer_vector(l, layer, "linear_attn.A_log", c->n_v_heads, &y->a_log, e);
    if (rc == 0)
        rc = loader_layer_vector(l, layer, "linear_attn.dt_bias", c->n_v_heads, &y->dt_bias, e);
    if (rc == 0)
        rc = loader_layer_vector(l, layer, "linear_attn.norm.weight", c->v_head_dim, &y->norm, e);
    return rc;
}

/* The number of sums of squares of a token. */
static uint32_t n_squares(const struct config *c)
{
    return c->n_v_heads * HEAD_SQUARES;
}

static void mix(const struct delta_net *d, const struct mixer_call *call, const struct mixer_part *part,
                bool norm_in_out, bool is_cast)
{
    uint64_t squares = part->from * (uint64_t)n_squares(d->room->config) * sizeof(float);
    const struct mixer_room *r = d->room;
    const struct delta_layer *y = &d->layers[call->layer];
    const struct arch_state *s = call->state;
    const struct arch_sequence *of = &part->of;
    uint64_t scratch = r->own[MIXER_DELTA_NET][PREPARED].address, from = part->from * sizeof(float);
    uint64_t current = s->window_off + (of->parity ? s->window_bytes : 0);
    uint64_t other = s->window_off + (of->parity ? 0 : s->window_bytes);
    delta_run(&d->op, r->exec,
              &(struct delta_call){.proj = r->proj.address + from * in_rows(r->config),
                                   .conv = y->conv,
                                   .a_log = y->a_log,
                                   .dt_bias = y->dt_bias,
                                   .norm = y->norm,
                                   .window_in = of->recurrent + current,
                                   .window_out = of->recurrent_out + other,
                                   .state = of->recurrent + s->delta_off,
                                   .state_out = of->recurrent_out + s->delta_off,
                                   .dst = r->mixed.address + from * y->out.cols,
                                   .squares = norm_in_out ? scratch + squares : 0,
                                   .scratch = scratch,
                                   .f16 = is_cast ? r->f16_scratch.address : 0,
                                   .is_blocked = is_cast && linear_takes_blocked(&y->out, part->n),
                                   .n = part->n,
                                   .stride = in_rows(r->config)});
}

/* Computes a chunk whose state is kept inside it as two. */
static void mix_twice(const struct delta_net *d, const struct mixer_call *call)
{
    const struct arch_chunk *c = call->chunk;
    struct mixer_part part = {.n = c->keep, .of = c->of};
    part.of.recurrent_out = c->kept;
    mix(d, call, &part, false, false);
    part = (struct mixer_part){.from = c->keep, .n = c->n - c->keep, .of = c->of};
    part.of.parity ^= 1;
    part.of.recurrent = c->kept;
    mix(d, call, &part, false, false);
}

static void delta_net_run(const void *self, const struct mixer_call *call)
{
    const struct delta_net *d = self;
    const struct mixer_room *r = d->room;
    const struct delta_layer *y = &d->layers[call->layer];
    uint32_t n = call->chunk->n, n_parts = mixer_n_parts(call->chunk);
    bool is_cast = r->f16_scratch.address && !call->chunk->each && !call->chunk->keep &&
                   linear_takes_f16(&y->out, n) && delta_gives_f16(&d->op, r->exec, n);
    /* One token of a sequence uses the scratch buffer for nothing else. */
    bool norm_in_out = delta_gives_squares(&d->op, r->exec, n / n_parts) && linear_takes_squares(&y->out);
    mixer_project(r, &y->in, call, in_rows(r->config));
    if (call->chunk->keep)
        mix_twice(d, call);
    for (uint32_t i = 0; !call->chunk->keep && i < n_parts; i++) {
        const struct mixer_part part = mixer_part(r, call->chunk, i);
        if (i > 0)
            exec_concurrent(r->exec);
        mix(d, call, &part, norm_in_out, is_cast);
    }
    if (!norm_in_out) {
        mixer_add(r, &y->out, n, is_cast);
        return;
    }
    linear_run(&y->out, r->exec,
               &(struct linear_call){.x = r->mixed.address,
                                     .y = r->x,
                                     .x_stride = y->out.cols,
                                     .y_stride = r->config->hidden,
                                     .n = call->chunk->n,
                                     .add = true,
                                     .eps = r->config->rms_eps,
                                     .squares = r->own[MIXER_DELTA_NET][PREPARED].address,
                                     .head_dim = r->config->v_head_dim});
}

const struct mixer mixer_delta_net = {
    .needs = delta_net_needs,
    .state = delta_net_state,
    .open = delta_net_open,
    .close = delta_net_close,
    .load = delta_net_load,
    .run = delta_net_run,
};
