/* Gated delta net:
 *   [qkv, z, a, b] = W norm(x);  delta (ops/delta/delta.h);  x += out_proj o   (3 dispatches)
 *   with gates of a low rank: z = g_b z, a = f_b a follow                     two more, or one: a's
 *
 * The recurrent state has two windows of the convolution, one read while the other is written, then S. */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "ops/delta/delta.h"
#include "ops/linear/linear.h"

struct delta_layer {
    struct linear in, out;
    struct linear z_up, a_up; /* only with gates of a low rank */
    uint64_t conv, a_log, dt_bias, norm;
};

struct delta_net {
    const struct part_room *room;
    const struct delta_config *config;
    struct delta op;
    struct delta_layer *layers; /* [n_layers] */
};

/* index into room->own */
enum { PREPARED };

static struct delta_shape shape_of(const struct config *c, const struct delta_config *d)
{
    return (struct delta_shape){.n_k = d->n_k_heads,
                                .n_v = d->n_v_heads,
                                .k_dim = d->k_head_dim,
                                .v_dim = d->v_head_dim,
                                .conv_kernel = d->conv_kernel,
                                .eps = c->rms_eps,
                                .sigmoid = d->sigmoid,
                                .tiled = d->tiled,
                                .by_channel = d->by_channel,
                                .lower = d->lower};
}

/* A token's row of proj: where its parts begin. The fused product gives channels, z, a and b. With gates of a
 * low rank, the inputs of their second products are in place of z and a; z and a follow. */
struct row {
    uint32_t z_low, a_low, z, a, b, n;
};

static struct row row_of(const struct delta_config *c)
{
    uint32_t values = c->n_v_heads * c->v_head_dim, rank = c->gate_rank, z_rank = config_z_rank(c);
    struct row y = {.z_low = config_conv_dim(c)};
    y.a_low = y.z_low + (z_rank ? z_rank : values);
    y.b = y.a_low + (rank ? rank : config_decays(c));
    y.n = y.b + c->n_v_heads;
    y.z = y.z_low;
    y.a = y.a_low;
    if (!rank)
        return y;
    y.n = (uint32_t)size_round_up(y.n, CONFIG_FOUR);
    if (z_rank) {
        y.z = y.n;
        y.n += values;
    }
    y.a = y.n;
    y.n += config_decays(c);
    return y;
}

static void delta_net_needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                            const struct part_most *most, struct part_needs *out)
{
    const struct delta_config *d = &p->delta;
    const struct delta_shape shape = shape_of(c, d);
    uint64_t inner = (uint64_t)d->n_v_heads * d->v_head_dim;
    *out = (struct part_needs){.proj = row_of(d).n, .mixed = inner, .widest = inner};
    out->own[PREPARED] = delta_scratch(&shape, caps, most->chunk);
}

static void delta_net_stores(const struct part_config *p, enum kv_type type, struct arch_stores *out)
{
    const struct delta_config *c = &p->delta;
    struct arch_store t = {.kind = ARCH_FIXED,
                           .type = KV_TYPE_F32,
                           .width = (uint64_t)(c->conv_kernel - 1) * config_conv_dim(c),
                           .copies = 2};
    (void)type;
    arch_add_store(out, &t);
    t.off = 2 * arch_store_bytes(&t);
    t.width = (uint64_t)c->n_v_heads * c->v_head_dim * c->k_head_dim;
    t.copies = 1;
    arch_add_store(out, &t);
}

static void delta_net_close(void *self)
{
    struct delta_net *d = self;
    if (!d)
        return;
    for (uint32_t i = 0; d->layers && i < d->room->config->n_layers; i++) {
        struct linear *products[] = {&d->layers[i].in, &d->layers[i].z_up, &d->layers[i].a_up,
                                     &d->layers[i].out};
        for (size_t k = 0; k < sizeof products / sizeof *products; k++)
            linear_close(products[k], d->room->exec);
    }
    free(d->layers);
    free(d);
}

static int delta_net_open(void **self, const struct part_room *room, const struct part_config *p,
                          struct moeflux_err *e)
{
    const struct delta_shape shape = shape_of(room->config, &p->delta);
    struct delta_net *d = *self = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->room = room;
    d->config = &p->delta;
    d->layers = mem_new(room->config->n_layers, sizeof *d->layers, e);
    int rc = d->layers ? delta_open(&d->op, room->exec, &shape, e) : ERR_MEMORY;
    if (rc < 0) {
        delta_net_close(d);
        *self = NULL;
    }
    return rc;
}

static int delta_net_load(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                          struct moeflux_err *e)
{
    struct delta_net *d = self;
    struct delta_layer *y = &d->layers[layer];
    int rc = loader_fused(l, layer, t + DELTA_QKV, DELTA_Z_UP - DELTA_QKV, &y->in, e);
    if (rc == 0 && t[DELTA_Z_UP].cols)
        rc = loader_fused(l, layer, t + DELTA_Z_UP, 1, &y->z_up, e);
    if (rc == 0 && t[DELTA_A_UP].cols)
        rc = loader_fused(l, layer, t + DELTA_A_UP, 1, &y->a_up, e);
    if (rc == 0)
        rc = loader_fused(l, layer, t + DELTA_OUT, 1, &y->out, e);
    if (rc == 0 && delta_gives_squares(&d->op, d->room->exec, 1))
        rc = linear_expect_squares(&y->out, d->room->exec, d->config->v_head_dim, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + DELTA_CONV, DELTA_A_LOG - DELTA_CONV, &y->conv, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + DELTA_A_LOG, 1, &y->a_log, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + DELTA_DT_BIAS, 1, &y->dt_bias, e);
    return rc < 0 ? rc : loader_vectors(l, layer, t + DELTA_NORM, 1, &y->norm, e);
}

/* The number of sums of squares of a token. */
static uint32_t n_squares(const struct delta_config *c)
{
    return c->n_v_heads * HEAD_SQUARES;
}

static struct delta_call call_of(const struct delta_net *d, const struct part_call *call,
                                 const struct part_tokens *part, bool norm_in_out, bool is_cast)
{
    uint64_t squares = part->from * (uint64_t)n_squares(d->config) * sizeof(float);
    const struct part_room *r = d->room;
    const struct delta_layer *y = &d->layers[call->layer];
    const struct arch_store *window = &call->stores[0], *state = &call->stores[1];
    const struct arch_sequence *of = &part->of;
    uint64_t scratch = r->own[PART_DELTA_NET][PREPARED].address, from = part->from * sizeof(float);
    const struct row row = row_of(d->config);
    uint64_t current = window->off + (of->parity ? arch_store_bytes(window) : 0);
    uint64_t other = window->off + (of->parity ? 0 : arch_store_bytes(window));
    return (struct delta_call){.proj = r->proj.address + from * row.n,
                               .conv = y->conv,
                               .a_log = y->a_log,
                               .dt_bias = y->dt_bias,
                               .norm = y->norm,
                               .window_in = of->recurrent + current,
                               .window_out = of->recurrent_out + other,
                               .state = of->recurrent + state->off,
                               .state_out = of->recurrent_out + state->off,
                               .dst = r->mixed.address + from * y->out.cols,
                               .squares = norm_in_out ? scratch + squares : 0,
                               .scratch = scratch,
                               .f16 = is_cast ? r->f16_scratch.address : 0,
                               .is_blocked = is_cast && linear_takes_blocked(&y->out, part->n),
                               .n = part->n,
                               .stride = row.n,
                               .z_at = row.z,
                               .b_at = row.b,
                               .a_at = row.a};
}

static void mix(const struct delta_net *d, const struct part_call *call, const struct part_tokens *part,
                bool norm_in_out, bool is_cast)
{
    const struct delta_call own = call_of(d, call, part, norm_in_out, is_cast);
    delta_run(&d->op, d->room->exec, &own);
}

/* Runs the sequences that have one token, concurrently, then parts of prompts, one after the other: they
 * share the scratch memory. Or the positions of a chain. */
static void mix_each(const struct delta_net *d, const struct part_call *call, bool norm_in_out)
{
    struct exec *x = d->room->exec;
    struct delta_call calls[PART_GROUP];
    bool are_single;
    for (uint32_t first = 0, n; (n = part_group_from(call->chunk, first, &are_single)) > 0; first += n) {
        for (uint32_t i = 0; i < n; i++) {
            const struct part_tokens part = part_tokens_of(d->room, call->chunk, 0, first + i);
            calls[i] = call_of(d, call, &part, norm_in_out, false);
        }
        if (call->chunk->is_chain)
            delta_run_chain(&d->op, x, calls, n);
        if (are_single && first > 0)
            exec_concurrent(x);
        if (are_single)
            delta_run_concurrent(&d->op, x, calls, n);
        for (uint32_t i = 0; !are_single && !call->chunk->is_chain && i < n; i++)
            delta_run(&d->op, x, &calls[i]);
    }
}

/* Computes the second product of a gate: rows `to` of proj from its rows `from`. */
static void raise_gate(const struct delta_net *d, const struct linear *w, uint32_t from, uint32_t to,
                       const struct arch_chunk *c)
{
    const struct part_room *r = d->room;
    uint32_t stride = row_of(d->config).n;
    linear_run(w, r->exec,
               &(struct linear_call){.x = r->proj.address + from * sizeof(float),
                                     .y = r->proj.address + to * sizeof(float),
                                     .x_stride = stride,
                                     .y_stride = stride,
                                     .n = c->n,
                                     .chunk = arch_plan_n(c),
                                     .f16_scratch = r->f16_scratch.address});
}

static void project(const struct delta_net *d, const struct part_call *call)
{
    const struct delta_layer *y = &d->layers[call->layer];
    const struct row row = row_of(d->config);
    part_project(d->room, &y->in, call, row.n);
    if (!d->config->gate_rank)
        return;
    if (config_z_rank(d->config))
        raise_gate(d, &y->z_up, row.z_low, row.z, call->chunk);
    raise_gate(d, &y->a_up, row.a_low, row.a, call->chunk);
}

/* Computes a chunk whose state is kept inside it as two. */
static void mix_twice(const struct delta_net *d, const struct part_call *call)
{
    const struct arch_chunk *c = call->chunk;
    struct part_tokens part = {.n = c->keep, .of = c->of};
    part.of.recurrent_out = c->kept;
    mix(d, call, &part, false, false);
    part = (struct part_tokens){.from = c->keep, .n = c->n - c->keep, .of = c->of};
    part.of.parity ^= 1;
    part.of.recurrent = c->kept;
    mix(d, call, &part, false, false);
}

static void delta_net_run(const void *self, const struct part_call *call)
{
    const struct delta_net *d = self;
    const struct part_room *r = d->room;
    const struct delta_layer *y = &d->layers[call->layer];
    uint32_t n = call->chunk->n;
    bool is_cast = r->f16_scratch.address && !call->chunk->each && !call->chunk->keep &&
                   linear_takes_f16(&y->out, n) && delta_gives_f16(&d->op, r->exec, n);
    /* One token of a sequence uses the scratch buffer for nothing else. */
    bool norm_in_out = arch_plan_n(call->chunk) <= EXEC_MAX_INVARIANT &&
                       delta_gives_squares(&d->op, r->exec, call->chunk->each ? 1 : n) &&
                       linear_takes_squares(&y->out);
    project(d, call);
    const struct part_tokens whole = part_tokens_of(r, call->chunk, 0, 0);
    if (call->chunk->each)
        mix_each(d, call, norm_in_out);
    else if (call->chunk->keep)
        mix_twice(d, call);
    else
        mix(d, call, &whole, norm_in_out, is_cast);
    if (!norm_in_out) {
        part_add(r, &y->out, call, is_cast);
        return;
    }
    linear_run(&y->out, r->exec,
               &(struct linear_call){.x = r->mixed.address,
                                     .y = call->out,
                                     .x_stride = y->out.cols,
                                     .y_stride = r->config->hidden,
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .add = call->adds,
                                     .eps = r->config->rms_eps,
                                     .squares = r->own[PART_DELTA_NET][PREPARED].address,
                                     .head_dim = d->config->v_head_dim});
}

const struct part part_delta_net = {
    .needs = delta_net_needs,
    .stores = delta_net_stores,
    .open = delta_net_open,
    .close = delta_net_close,
    .load = delta_net_load,
    .run = delta_net_run,
};
