/* Multi-head latent attention:
 *   [q_a, kv_a] = W norm(x);  q = q_b norm(q_a);  mla (ops/mla/mla.h);  x += o_proj o
 *                                                    8 dispatches, 5 of them of mla
 *   without q_a: [q, kv_a] = W norm(x)               one less
 *   gated: [.., kv_a, g] = W norm(x);  o_h *= sigmoid(g_h)       one more
 *   gates of channels: a gate for each channel of a head        the same
 *   latents on matrix units, for long sequences      one more
 *   with an indexer: [q_a, kv_a, index key, weights] = W norm(x);  [q, index queries] = q_b norm(q_a);
 *   indexer (ops/indexer/indexer.h)
 *   A layer without one may use the choice of a layer before it (config.h). Pooled index keys have gates.
 *
 * A row of the KV cache is a latent (normalised) followed by its rotary key (rotated, every channel at its
 * own index). */
#include <stdlib.h>

#include "arch/index.h"
#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "model/rope.h"
#include "ops/head_gate.h"
#include "ops/linear/linear.h"
#include "ops/mla/mla.h"

/* The epsilon of the norms inside attention. Most published code uses their class's default, not
 * rms_norm_eps. */
static const float LATENT_EPS = 1e-6f;

static float eps_of(const struct latent_config *c)
{
    return c->eps > 0 ? c->eps : LATENT_EPS;
}

struct latent_layer {
    uint64_t q_norm, kv_norm;
    uint64_t index_norm; /* weights of the index key's layer norm, then its biases, then those of a pool */
    struct linear in;    /* outputs: q_a or q, latent, rotary key; index key, its gates, weights; the gates */
    struct linear q_b;   /* only in models with q_a; outputs: q, the index queries */
    struct mla_matrices mla;
    struct linear out;
};

struct latent {
    const struct part_room *room;
    const struct latent_config *config;
    struct mla op;
    struct index_part index;
    struct head_gate gate;
    struct latent_layer *layers; /* [n_layers] */
};

/* indices into room->own; the rest is the indexer's */
enum { Q, SCRATCH };

/* The number of rows of all heads' queries. */
static uint32_t q_rows(const struct latent_config *c)
{
    return c->n_heads * (c->nope_dim + c->rope_dim);
}

/* The number of outputs of q_b. */
static uint32_t q_b_rows(const struct latent_config *c)
{
    return q_rows(c) + c->index.n_heads * c->index.dim;
}

/* The index of the latent in the outputs of the fused product. */
static uint32_t kv_at(const struct latent_config *c)
{
    return c->q_lora_rank ? c->q_lora_rank : q_rows(c);
}

/* The index of the index key in these outputs. */
static uint32_t index_at(const struct latent_config *c)
{
    return kv_at(c) + c->kv_lora_rank + c->rope_dim;
}

/* The index of the weights of the index queries. */
static uint32_t weights_at(const struct latent_config *c)
{
    return index_at(c) + c->index.dim * (c->index.pooled ? 2 : 1);
}

/* The index of the gates. */
static uint32_t gate_at(const struct latent_config *c)
{
    return c->index.n_heads ? weights_at(c) + c->index.n_heads : index_at(c);
}

/* The floats between two tokens' outputs: a multiple of 4, since q_b reads the first of them. */
static uint32_t in_stride(const struct latent_config *c)
{
    return (uint32_t)size_round_up(gate_at(c) + config_latent_gates(c), CONFIG_FOUR);
}

static struct mla_shape shape_of(const struct config *c, const struct latent_config *m, enum kv_type type)
{
    return (struct mla_shape){.n_heads = m->n_heads,
                              .nope_dim = m->nope_dim,
                              .rope_dim = m->rope_dim,
                              .latent_dim = m->kv_lora_rank,
                              .v_dim = m->v_dim,
                              .interleaved = m->interleaved,
                              .scale =
                                  (float)rope_softmax_scale(&c->ropes[m->rope], m->nope_dim + m->rope_dim),
                              .eps = eps_of(m),
                              .kv_type = type,
                              .keys_by_rows = c->has_kv_b,
                              .choice = index_choice(&m->index)};
}

static void latent_needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                         const struct part_most *most, struct part_needs *out)
{
    const struct latent_config *m = &p->latent;
    const struct mla_shape shape = shape_of(c, m, most->kv_type);
    uint64_t ctx = (uint64_t)m->n_heads * m->v_dim;
    *out = (struct part_needs){.proj = in_stride(m), .mixed = ctx, .widest = size_max(ctx, m->q_lora_rank)};
    out->own[Q] = m->q_lora_rank ? (uint64_t)most->chunk * q_b_rows(m) : 0;
    out->own[SCRATCH] =
        mla_scratch_bytes(&shape, caps, most->chunk, config_longest_context(c)) / sizeof(float);
    index_needs(c, &m->index, caps, most, out);
}

/* Returns the stores of latents and rotary keys. */
static uint32_t n_row_stores(const struct latent_config *c, enum kv_type type)
{
    return type == KV_TYPE_Q8_0 || c->rope_dim == 0 ? 1 : 2;
}

static void latent_stores(const struct part_config *p, enum kv_type type, struct arch_stores *out)
{
    const struct latent_config *c = &p->latent;
    uint32_t rank = c->kv_lora_rank, row = rank + c->rope_dim;
    struct arch_store t = {.kind = ARCH_ROWS,
                           .type = type,
                           .width = row,
                           .head = row,
                           .stride = 1,
                           .pitch = kv_row_bytes(type, row)};
    if (n_row_stores(c, type) == 1) { /* q8_0: the scales of both come after the codes of both */
        arch_add_store(out, &t);
    } else {
        t.width = t.head = rank;
        arch_add_store(out, &t);
        t.width = t.head = c->rope_dim;
        t.off = kv_row_bytes(type, rank);
        arch_add_store(out, &t);
    }
    index_stores(&c->index, (uint64_t)t.pitch << KV_BLOCK_SHIFT, type, out);
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

static int latent_open(void **self, const struct part_room *room, const struct part_config *p,
                       struct moeflux_err *e)
{
    const struct mla_shape shape = shape_of(room->config, &p->latent, room->kv_type);
    struct latent *d = *self = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->room = room;
    d->config = &p->latent;
    d->layers = mem_new(room->config->n_layers, sizeof *d->layers, e);
    const struct exec_buffer *scratch = &room->own[PART_LATENT][SCRATCH];
    int rc = d->layers ? mla_open(&d->op, room->exec, &shape, scratch, e) : ERR_MEMORY;
    if (rc == 0)
        rc = index_open(&d->index, room, PART_LATENT, &d->config->index, d->config->rope, e);
    if (rc == 0 && p->latent.gated)
        rc = head_gate_open(&d->gate, room->exec, e);
    if (rc < 0) {
        latent_close(d);
        *self = NULL;
    }
    return rc;
}

/* Loads the matrices of the heads: one, or two. */
static int load_heads(struct latent *d, struct loader *l, uint32_t layer, const struct part_tensor *t,
                      struct moeflux_err *e)
{
    struct weights w[2];
    const struct part_tensor *first = t[LATENT_KV_B].cols ? &t[LATENT_KV_B] : &t[LATENT_EMBED_Q];
    int rc = loader_parts(l, layer, first, t[LATENT_KV_B].cols ? 1 : 2, w, e);
    return rc < 0 ? rc : mla_matrices_open(&d->layers[layer].mla, d->room->exec, &d->op.shape, w, e);
}

static int latent_load(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                       struct moeflux_err *e)
{
    struct latent *d = self;
    struct latent_layer *y = &d->layers[layer];
    const struct part_tensor in[] = {t[LATENT_Q_A],           t[LATENT_KV_A],
                                     t[LATENT_INDEX_K],       t[LATENT_INDEX_POOL_GATE],
                                     t[LATENT_INDEX_WEIGHTS], t[LATENT_GATE]},
                             q[] = {t[LATENT_Q_B], t[LATENT_INDEX_Q]};
    int rc = loader_fused(l, layer, in, sizeof in / sizeof *in, &y->in, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + LATENT_Q_NORM, 1, &y->q_norm, e);
    if (rc == 0 && t[LATENT_Q_B].cols)
        rc = loader_fused(l, layer, q, 2, &y->q_b, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + LATENT_INDEX_K_NORM, 3, &y->index_norm, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + LATENT_KV_NORM, 1, &y->kv_norm, e);
    if (rc == 0)
        rc = load_heads(d, l, layer, t, e);
    return rc < 0 ? rc : loader_fused(l, layer, t + LATENT_OUT, 1, &y->out, e);
}

/* Computes the queries of all heads. Returns their address; tokens are *stride floats apart. */
static uint64_t run_query(const struct latent *d, const struct part_call *call, uint32_t *stride)
{
    const struct part_room *r = d->room;
    const struct latent_layer *y = &d->layers[call->layer];
    uint64_t q = r->own[PART_LATENT][Q].address;
    *stride = in_stride(d->config);
    part_project(r, &y->in, call, *stride);
    if (!d->config->q_lora_rank)
        return r->proj.address;
    linear_run(&y->q_b, r->exec,
               &(struct linear_call){.x = r->proj.address,
                                     .norm = y->q_norm,
                                     .y = q,
                                     .x_stride = *stride,
                                     .y_stride = q_b_rows(d->config),
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .eps = eps_of(d->config),
                                     .f16_scratch = r->f16_scratch.address});
    *stride = q_b_rows(d->config);
    return q;
}

/* Chooses the positions that the chunk's tokens see. q: their queries. */
static void choose(const struct latent *d, const struct part_call *call, uint64_t q, uint32_t stride)
{
    const struct latent_layer *y = &d->layers[call->layer];
    const struct index_config *x = &d->config->index;
    uint64_t key = d->room->proj.address + index_at(d->config) * sizeof(float);
    index_run(&d->index, call,
              &(struct index_inputs){.queries = q + q_rows(d->config) * sizeof(float),
                                     .keys = key,
                                     .weights = d->room->proj.address + weights_at(d->config) * sizeof(float),
                                     .stride = stride,
                                     .key_stride = in_stride(d->config),
                                     .weight_stride = in_stride(d->config),
                                     .k_norm = y->index_norm,
                                     .k_bias = y->index_norm + x->dim * sizeof(float),
                                     .pool_bias = y->index_norm + 2 * (uint64_t)x->dim * sizeof(float),
                                     .stores = call->stores + n_row_stores(d->config, d->room->kv_type)});
}

/* q: the queries of the chunk. */
static void attend(const struct latent *d, const struct part_call *call, const struct part_tokens *part,
                   uint64_t q, uint32_t stride)
{
    const struct part_room *r = d->room;
    const struct latent_layer *y = &d->layers[call->layer];
    uint64_t from = part->from * sizeof(float);
    mla_run(&d->op, r->exec,
            &(struct mla_call){.q = q + from * stride,
                               .kv = r->proj.address + from * in_stride(d->config),
                               .norm = y->kv_norm,
                               .rope = part->rope,
                               .blocks = part->of.kv_blocks,
                               .chosen = index_list_at(&d->index, part->from),
                               .matrices = &y->mla,
                               .dst = r->mixed.address + from * y->out.cols,
                               .use_f16 = r->uses_f16,
                               .n = part->n,
                               .pos = part->of.pos,
                               .q_stride = stride,
                               .kv_stride = in_stride(d->config),
                               .kv_at = kv_at(d->config),
                               .layer_off = (uint32_t)call->stores[0].off});
}

static void latent_run(const void *self, const struct part_call *call)
{
    const struct latent *d = self;
    uint32_t stride;
    uint64_t q = run_query(d, call, &stride);
    if (d->config->index.n_heads)
        choose(d, call, q, stride);
    for (uint32_t i = 0; i < part_n_sequences(call->chunk); i++) {
        const struct part_tokens part = part_tokens_of(d->room, call->chunk, d->config->rope, i);
        attend(d, call, &part, q, stride);
    }
    if (d->config->gated)
        head_gate_run(
            &d->gate, d->room->exec,
            &(struct head_gate_call){.x = d->room->mixed.address,
                                     .gate = d->room->proj.address + gate_at(d->config) * sizeof(float),
                                     .n = call->chunk->n,
                                     .n_heads = config_latent_gates(d->config),
                                     .dim = d->config->gates_channels ? 1 : d->config->v_dim,
                                     .stride = in_stride(d->config)});
    part_add(d->room, &d->layers[call->layer].out, call, false);
}

const struct part part_latent = {
    .needs = latent_needs,
    .stores = latent_stores,
    .open = latent_open,
    .close = latent_close,
    .load = latent_load,
    .run = latent_run,
};
