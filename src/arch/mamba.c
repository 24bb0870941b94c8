/* Mamba-2:
 *   [z, channels, dt] = in_proj norm(x);  ssd and its norm by groups (ops/ssd/ssd.h);  x += out_proj o
 *
 * The recurrent state has two windows of the convolution, one read while the other is written, then S. */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "ops/linear/linear.h"
#include "ops/ssd/ssd.h"

_Static_assert((int)PART_GROUP <= (int)SSD_CONCURRENT, "sequences of a group");

struct mamba_layer {
    struct linear in, out;
    uint64_t conv, conv_bias, a_log, d, dt_bias, norm;
};

struct mamba {
    const struct part_room *room;
    const struct mamba_config *config;
    struct ssd op;
    struct mamba_layer *layers; /* [n_layers] */
};

/* index into room->own */
enum { PREPARED };

static struct ssd_shape shape_of(const struct config *c, const struct mamba_config *m)
{
    return (struct ssd_shape){.n_heads = m->n_heads,
                              .n_groups = m->n_groups,
                              .head_dim = m->head_dim,
                              .state_dim = m->state_dim,
                              .conv_kernel = m->conv_kernel,
                              .low = m->low,
                              .high = m->high,
                              .eps = c->rms_eps};
}

/* The floats of a token's row of proj, a multiple of 4. */
static uint32_t row_of(const struct mamba_config *m)
{
    return (uint32_t)size_round_up(config_mamba_inner(m) + config_mamba_channels(m) + m->n_heads,
                                   CONFIG_FOUR);
}

static void mamba_needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                        const struct part_most *most, struct part_needs *out)
{
    const struct ssd_shape shape = shape_of(c, &p->mamba);
    uint64_t inner = config_mamba_inner(&p->mamba);
    *out = (struct part_needs){.proj = row_of(&p->mamba), .mixed = inner, .widest = inner};
    out->own[PREPARED] = ssd_scratch(&shape, caps, most->chunk);
}

static void mamba_stores(const struct part_config *p, enum kv_type type, struct arch_stores *out)
{
    const struct mamba_config *m = &p->mamba;
    struct arch_store t = {.kind = ARCH_FIXED,
                           .type = KV_TYPE_F32,
                           .width = (uint64_t)(m->conv_kernel - 1) * config_mamba_channels(m),
                           .copies = 2};
    (void)type;
    arch_add_store(out, &t);
    t.off = 2 * arch_store_bytes(&t);
    t.width = (uint64_t)config_mamba_inner(m) * m->state_dim;
    t.copies = 1;
    arch_add_store(out, &t);
}

static void mamba_close(void *self)
{
    struct mamba *d = self;
    if (!d)
        return;
    for (uint32_t i = 0; d->layers && i < d->room->config->n_layers; i++) {
        linear_close(&d->layers[i].in, d->room->exec);
        linear_close(&d->layers[i].out, d->room->exec);
    }
    free(d->layers);
    free(d);
}

static int mamba_open(void **self, const struct part_room *room, const struct part_config *p,
                      struct moeflux_err *e)
{
    const struct ssd_shape shape = shape_of(room->config, &p->mamba);
    struct mamba *d = *self = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->room = room;
    d->config = &p->mamba;
    d->layers = mem_new(room->config->n_layers, sizeof *d->layers, e);
    int rc = d->layers ? ssd_open(&d->op, room->exec, &shape, e) : ERR_MEMORY;
    if (rc < 0) {
        mamba_close(d);
        *self = NULL;
    }
    return rc;
}

static int mamba_load(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                      struct moeflux_err *e)
{
    struct mamba *d = self;
    struct mamba_layer *y = &d->layers[layer];
    const struct {
        enum mamba_tensor tensor;
        uint64_t *address;
    } vectors[] = {{MAMBA_CONV, &y->conv}, {MAMBA_CONV_BIAS, &y->conv_bias}, {MAMBA_A_LOG, &y->a_log},
                   {MAMBA_D, &y->d},       {MAMBA_DT_BIAS, &y->dt_bias},     {MAMBA_NORM, &y->norm}};
    int rc = loader_fused(l, layer, t + MAMBA_IN, 1, &y->in, e);
    if (rc == 0)
        rc = loader_fused(l, layer, t + MAMBA_OUT, 1, &y->out, e);
    for (size_t i = 0; rc == 0 && i < sizeof vectors / sizeof *vectors; i++)
        rc = loader_vectors(l, layer, t + vectors[i].tensor, 1, vectors[i].address, e);
    return rc;
}

static struct ssd_call call_of(const struct mamba *d, const struct part_call *call,
                               const struct part_tokens *part)
{
    const struct part_room *r = d->room;
    const struct mamba_layer *y = &d->layers[call->layer];
    const struct arch_store *window = &call->stores[0], *state = &call->stores[1];
    const struct arch_sequence *of = &part->of;
    uint64_t from = part->from * sizeof(float), inner = config_mamba_inner(d->config);
    uint64_t current = window->off + (of->parity ? arch_store_bytes(window) : 0);
    uint64_t other = window->off + (of->parity ? 0 : arch_store_bytes(window));
    return (struct ssd_call){.proj = r->proj.address + from * row_of(d->config),
                             .conv = y->conv,
                             .conv_bias = y->conv_bias,
                             .a_log = y->a_log,
                             .dt_bias = y->dt_bias,
                             .d = y->d,
                             .window_in = of->recurrent + current,
                             .window_out = of->recurrent_out + other,
                             .state = of->recurrent + state->off,
                             .state_out = of->recurrent_out + state->off,
                             .dst = r->mixed.address + from * inner,
                             .scratch = r->own[PART_MAMBA][PREPARED].address,
                             .n = part->n,
                             .stride = row_of(d->config),
                             .x_at = (uint32_t)inner,
                             .dt_at = (uint32_t)inner + config_mamba_channels(d->config)};
}

/* Runs the sequences that have one token, concurrently, then parts of prompts, one after the other: they
 * share the scratch memory. Or the positions of a chain, or the two parts of a chunk whose state is kept
 * inside it. */
static void mix(const struct mamba *d, const struct part_call *call)
{
    struct exec *x = d->room->exec;
    struct part_tokens parts[PART_GROUP];
    struct ssd_call calls[PART_GROUP];
    bool are_single;
    uint32_t first = 0, n;
    while ((n = part_tokens_with_state(d->room, call->chunk, 0, first, parts, &are_single)) > 0) {
        for (uint32_t i = 0; i < n; i++)
            calls[i] = call_of(d, call, &parts[i]);
        if (call->chunk->is_chain)
            ssd_run_chain(&d->op, x, calls, n);
        if (are_single && first > 0)
            exec_concurrent(x);
        if (are_single)
            ssd_run_concurrent(&d->op, x, calls, n);
        for (uint32_t i = 0; !are_single && !call->chunk->is_chain && i < n; i++)
            ssd_run(&d->op, x, &calls[i]);
        first += n;
    }
}

static void mamba_run(const void *self, const struct part_call *call)
{
    const struct mamba *d = self;
    const struct part_room *r = d->room;
    const struct mamba_layer *y = &d->layers[call->layer];
    part_project(r, &y->in, call, row_of(d->config));
    mix(d, call);
    ssd_norm_run(&d->op, r->exec,
                 &(struct ssd_norm_call){.x = r->mixed.address, .norm = y->norm, .n = call->chunk->n});
    part_add(r, &y->out, call, false);
}

const struct part part_mamba = {
    .needs = mamba_needs,
    .stores = mamba_stores,
    .open = mamba_open,
    .close = mamba_close,
    .load = mamba_load,
    .run = mamba_run,
};
