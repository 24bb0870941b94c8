/* Multi-head latent attention:
 *   [q_a, kv_a] = W norm(x);  q = q_b norm(q_a);  mla (ops/mla/mla.h);  x += o_proj o
 *                                                    8 dispatches, 5 of them of mla
 *   without q_a: [q, kv_a] = W norm(x)               one less
 *   latents on matrix units, for long sequences      one more
 *
 * A row of the KV cache is a latent (normalised) followed by its rotary key (rotated, every channel at its
 * own index). */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/mixer.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/rope.h"
#include "ops/linear/linear.h"
#include "ops/mla/mla.h"

/* The epsilon of the norms inside attention. The published code uses their class's default, not
 * rms_norm_eps. */
static const float LATENT_EPS = 1e-6f;

struct latent_layer {
    uint64_t q_norm, kv_norm;
    struct linear in;  /* outputs: q_a or q, the latent, the rotary key */
    struct linear q_b; /* only in models with q_a */
    struct mla_matrices mla;
    struct linear out;
};

struct latent {
    const struct mixer_room *room;
    struct mla op;
    struct latent_layer *layers; /* [n_layers] */
};

/* indices into room->own */
enum { Q, SCRATCH };

/* The number of rows of all heads' queries. */
static uint32_t q_rows(const struct config *c)
{
    return c->n_heads * (c->nope_dim + c->rope_dim);
}

/* The index of the latent in the outputs of the fused product; the number of these outputs. */
static uint32_t kv_at(const struct config *c)
{
    return c->q_lora_rank ? c->q_lora_rank : q_rows(c);
}

static uint32_t in_rows(const struct config *c)
{
    return kv_at(c) + c->kv_lora_rank + c->rope_dim;
}

static struct mla_shape shape_of(const struct config *c, enum kv_type type)
{
    return (struct mla_shape){.n_heads = c->n_heads,
                              .nope_dim = c->nope_dim,
                              .rope_dim = c->rope_dim,
                              .latent_dim = c->kv_lora_rank,
                              .v_dim = c->v_dim,
                              .interleaved = c->rope_interleave,
                              .scale = (float)rope_softmax_scale(c, c->nope_dim + c->rope_dim),
                              .eps = LATENT_EPS,
                              .kv_type = type,
                              .keys_by_rows = c->has_kv_b};
}

static void latent_needs(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk,
                         struct mixer_needs *out)
{
    const struct mla_shape shape = shape_of(c, KV_TYPE_F32);
    uint64_t ctx = (uint64_t)c->n_heads * c->v_dim;
    *out = (struct mixer_needs){.proj = in_rows(c), .mixed = ctx, .widest = size_max(ctx, c->q_lora_rank)};
    out->own[Q] = c->q_lora_rank ? (uint64_t)max_chunk * q_rows(c) : 0;
    out->own[SCRATCH] = mla_scratch_bytes(&shape, caps, max_chunk, config_longest_context(c)) / sizeof(float);
}

static struct arch_state latent_state(const struct config *c, enum kv_type type)
{
    uint32_t number = kv_type_bytes(type), rank = c->kv_lora_rank, stride = (rank + c->rope_dim) * number;
    return (struct arch_state){.rows = {{.off = 0, .stride = stride, .n = rank},
                                        {.off = (uint64_t)rank * number, .stride = stride, .n = c->rope_dim}},
                               .n_heads = c->n_heads,
                               .head_dim = c->nope_dim + c->rope_dim,
                               .is_latent = true};
}

static void latent_close(void *self)
{
    struct latent *d = self;
    if (!d)
        return;
    for (uint32_t i = 0; d->layers && i < d->room->config->n_layers; i++) {
        struct latent_layer *y = &d->layers[i];
        struct linear *products[] = {&y->in, &y->q_b, &y->out};
        for (size_t j = 0; j < sizeof products / sizeof *products; j++)
            linear_close(products[j], d->room->exec);
        mla_matrices_close(&y->mla, d->room->exec);
    }
    mla_close(&d->op, d->room->exec);
    free(d->layers);
    free(d);
}

static int latent_open(void **self, const struct mixer_room *room, struct moeflux_err *e)
{
    const struct mla_shape shape = shape_of(room->config, room->kv_type);
    struct latent *d = *self = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->room = room;
    d->layers = mem_new(room->config->n_layers, sizeof *d->layers, e);
    uint64_t scratch = room->own[MIXER_LATENT][SCRATCH].address;
    int rc = d->layers ? mla_open(&d->op, room->exec, &shape, scratch, e) : ERR_MEMORY;
    if (rc < 0) {
        latent_close(d);
        *self = NULL;
    }
    return rc;
}

static int load_query(struct latent *d, struct loader *l, uint32_t layer, struct moeflux_err *e)
{
    const struct config *c = d->room->config;
    struct latent_layer *y = &d->layers[layer];
    const struct loader_part in[] = {{c->q_lora_rank ? "self_attn.q_a_proj" : "self_attn.q_proj", kv_at(c)},
                                     {"self_attn.kv_a_proj_with_mqa", c->kv_lora_rank + c->rope_dim}};
    const struct loader_part q_b = {"self_attn.q_b_proj", q_rows(c)};
    int rc = loader_fused(l, layer, in, 2, c->hidden, &y->in, e);
    if (rc == 0 && c->q_lora_rank)
        rc = loader_layer_vector(l, layer, "self_attn.q_a_layernorm.weight", c->q_lora_rank, &y->q_norm, e);
    if (rc == 0 && c->q_lora_rank)
        rc = loader_fused(l, layer, &q_b, 1, c->q_lora_rank, &y->q_b, e);
    return rc;
}

/* Loads the matrices of the heads. */
static int load_heads(struct latent *d, struct loader *l, uint32_t layer, struct moeflux_err *e)
{
    const struct config *c = d->room->config;
    const struct loader_part kv_b = {"self_attn.kv_b_proj", c->n_heads * (c->nope_dim + c->v_dim)},
                             embed = {"self_attn.embed_q", c->n_heads * c->kv_lora_rank},
                             unembed = {"self_attn.unembed_out", c->n_heads * c->v_dim};
    struct weights w[2];
    int rc = c->has_kv_b ? loader_parts(l, layer, &kv_b, 1, c->kv_lora_rank, w, e)
                         : loader_parts(l, layer, &embed, 1, c->nope_dim, w, e);
    if (rc == 0 && !c->has_kv_b)
        rc = loader_parts(l, layer, &unembed, 1, c->kv_lora_rank, w + 1, e);
    return rc < 0 ? rc : mla_matrices_open(&d->layers[layer].mla, d->room->exec, &d->op.shape, w, e);
}

static int latent_load(void *self, struct loader *l, uint32_t layer, struct moeflux_err *e)
{
    struct latent *d = self;
    const struct config *c = d->room->config;
    struct latent_layer *y = &d->layers[layer];
    const struct loader_part out = {"self_attn.o_proj", c->hidden};
    int rc = load_query(d, l, layer, e);
    if (rc == 0)
        rc =
            loader_layer_vector(l, layer, "self_attn.kv_a_layernorm.weight", c->kv_lora_rank, &y->kv_norm, e);
    if (rc == 0)
        rc = load_heads(d, l, layer, e);
    return rc < 0 ? rc : loader_fused(l, layer, &out, 1, c->n_heads * c->v_dim, &y->out, e);
}

/* Computes the queries of all heads. Returns their address; tokens are *stride floats apart. */
static uint64_t run_query(const struct latent *d, const struct mixer_call *call, uint32_t *stride)
{
    const struct mixer_room *r = d->room;
    const struct latent_layer *y = &d->layers[call->layer];
    uint64_t q = r->own[MIXER_LATENT][Q].address;
    *stride = in_rows(r->config);
    mixer_project(r, &y->in, call, *stride);
    if (!r->config->q_lora_rank)
        return r->proj.address;
    linear_run(&y->q_b, r->exec,
               &(struct linear_call){.x = r->proj.address,
                                     .norm = y->q_norm,
                                     .y = q,
                                     .x_stride = *stride,
                                     .y_stride = q_rows(r->config),
                                     .n = call->chunk->n,
                                     .eps = LATENT_EPS,
                                     .f16_scratch = r->f16_scratch.address});
    *stride = q_rows(r->config);
    return q;
}

/* q: the queries of the chunk. */
static void attend(const struct latent *d, const struct mixer_call *call, const struct mixer_part *part,
                   uint64_t q, uint32_t stride)
{
    const struct mixer_room *r = d->room;
    const struct latent_layer *y = &d->layers[call->layer];
    uint64_t from = part->from * sizeof(float);
    mla_run(&d->op, r->exec,
            &(struct mla_call){.q = q + from * stride,
                               .kv = r->proj.address + from * in_rows(r->config),
                               .norm = y->kv_norm,
                               .rope = part->rope,
                               .blocks = part->of.kv_blocks,
                               .matrices = &y->mla,
                               .dst = r->mixed.address + from * y->out.cols,
                               .use_f16 = r->uses_f16,
                               .n = part->n,
                               .pos = part->of.pos,
                               .q_stride = stride,
                               .kv_stride = in_rows(r->config),
                               .kv_at = kv_at(r->config),
                               .layer_off = (uint32_t)call->state->rows[0].off});
}

static void latent_run(const void *self, const struct mixer_call *call)
{
    const struct latent *d = self;
    uint32_t stride;
    uint64_t q = run_query(d, call, &stride);
    for (uint32_t i = 0; i < mixer_n_parts(call->chunk); i++) {
        const struct mixer_part part = mixer_part(d->room, call->chunk, i);
        attend(d, call, &part, q, stride);
    }
    mixer_add(d->room, &d->layers[call->layer].out, call->chunk->n, false);
}

const struct mixer mixer_latent = {
    .needs = latent_needs,
    .state = latent_state,
    .open = latent_open,
    .close = latent_close,
    .load = latent_load,
    .run = latent_run,
};
