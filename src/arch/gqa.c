/* Grouped-query attention, with or without gates, biases, norms of queries and keys, sinks, windows and an
 * indexer:
 *   [q | gate, k, v, index] = W norm(x) + b;  indexer (ops/indexer/indexer.h);  gqa (ops/gqa/gqa.h);
 *   x += o_proj o + b
 *
 * The KV cache has keys (ready for the product), then values, [n_kv_heads][head_dim] for each position. */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/add.h"
#include "ops/gqa/gqa.h"
#include "ops/indexer/indexer.h"
#include "ops/linear/linear.h"

struct gqa_layer {
    struct linear in, out;
    uint64_t q_norm, k_norm, bias, out_bias, sinks;
    uint64_t index_q_norm, index_k_norm;
};

struct gqa_mixer {
    const struct part_room *room;
    const struct gqa_config *config;
    struct gqa op;
    struct indexer indexer;   /* unused without index heads */
    struct add add;           /* adds o_proj's biases */
    struct gqa_layer *layers; /* [n_layers] */
    /* sizes of one sequence's parts of own[PARTIAL] and own[SCORES] in batched decode */
    uint64_t partial_bytes, scores_bytes;
};

/* indices into room->own */
enum { Q, PARTIAL, INDEX_Q, SCORES, CHOSEN };
enum { PARTIAL_ALIGN = 16 };

static uint32_t query_rows(const struct gqa_config *c)
{
    return (1 + c->gated) * c->n_heads * c->head_dim;
}

/* The first of the indexer's outputs. */
static uint32_t index_row(const struct gqa_config *c)
{
    return query_rows(c) + 2 * c->n_kv_heads * c->head_dim;
}

/* The number of outputs of the fused product. */
static uint32_t in_rows(const struct gqa_config *c)
{
    const struct index_config *x = &c->index;
    return index_row(c) + (x->n_heads > 0 ? (x->n_heads + 1) * x->dim : 0);
}

static struct kv_choice choice_of(const struct index_config *x)
{
    return (struct kv_choice){x->n_heads ? x->ratio : 0, x->n_heads ? x->budget : 0};
}

static struct gqa_shape shape_of(const struct config *c, const struct gqa_config *g, enum kv_type type)
{
    static const enum attention_norm norms[] = {[QK_NORM_NONE] = ATTENTION_NORM_NONE,
                                                [QK_NORM_HEADS] = ATTENTION_NORM_HEADS,
                                                [QK_NORM_ALL] = ATTENTION_NORM_ALL};
    return (struct gqa_shape){.n_heads = g->n_heads,
                              .n_kv_heads = g->n_kv_heads,
                              .head_dim = g->head_dim,
                              .rotary_dim = c->ropes[g->rope].dim,
                              .eps = c->rms_eps,
                              .kv_type = type,
                              .gated = g->gated,
                              .norm = norms[g->norm],
                              .biased = g->biased,
                              .sinks = g->sinks,
                              .window = g->window,
                              .choice = choice_of(&g->index),
                              .scale = g->scale};
}

static struct indexer_shape indexer_of(const struct config *c, const struct index_config *x,
                                       enum kv_type type)
{
    return (struct indexer_shape){.n_heads = x->n_heads,
                                  .dim = x->dim,
                                  .rotary_dim = x->rotary_dim,
                                  .choice = choice_of(x),
                                  .eps = c->rms_eps,
                                  .kv_type = type};
}

/* Returns the bytes of the indexer's scores for chunks of up to n tokens. */
static uint64_t scores_bytes(const struct config *c, const struct gqa_config *g, const struct exec_caps *caps,
                             uint32_t n)
{
    const struct indexer_shape shape = indexer_of(c, &g->index, KV_TYPE_F32);
    return g->index.n_heads ? sizeof(float) * indexer_scratch(&shape, caps, n, config_longest_context(c)) : 0;
}

/* Returns the bytes of partial results of chunks of up to n tokens, as without a window. */
static uint64_t partial_bytes(const struct config *c, const struct gqa_config *g,
                              const struct exec_caps *caps, uint32_t n)
{
    struct gqa_shape shape = shape_of(c, g, KV_TYPE_F32);
    shape.window = 0;
    return gqa_partial_bytes(&shape, caps, n, config_longest_context(c));
}

static void gqa_needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                      uint32_t max_chunk, struct part_needs *out)
{
    const struct gqa_config *g = &p->gqa;
    uint64_t ctx = (uint64_t)g->n_heads * g->head_dim, n_batched = size_min(caps->max_invariant, max_chunk);
    uint64_t alone = size_round_up(partial_bytes(c, g, caps, 1), PARTIAL_ALIGN);
    *out = (struct part_needs){.proj = in_rows(g), .mixed = ctx, .widest = ctx};
    out->own[Q] = max_chunk * ctx;
    out->own[PARTIAL] = size_max(partial_bytes(c, g, caps, max_chunk), n_batched * alone) / sizeof(float);
    if (!g->index.n_heads)
        return;
    alone = size_round_up(scores_bytes(c, g, caps, 1), PARTIAL_ALIGN);
    out->own[INDEX_Q] = (uint64_t)max_chunk * g->index.n_heads * g->index.dim;
    out->own[SCORES] = size_max(scores_bytes(c, g, caps, max_chunk), n_batched * alone) / sizeof(float);
    out->own[CHOSEN] = (uint64_t)max_chunk * (g->index.budget + 1);
}

/* Returns the type of index keys; blocks are chosen by them, so they keep more bits than q8_0 has. */
static enum kv_type index_type(enum kv_type type)
{
    return type == KV_TYPE_Q8_0 ? KV_TYPE_F16 : type;
}

/* off: where the rows of keys and values end in a block. */
static void index_stores(const struct index_config *x, uint64_t off, enum kv_type type,
                         struct arch_stores *out)
{
    struct arch_store t = {.kind = ARCH_ROWS,
                           .type = index_type(type),
                           .width = x->dim,
                           .head = x->dim,
                           .stride = x->ratio,
                           .off = off};
    t.pitch = (uint32_t)arch_store_bytes(&t);
    arch_add_store(out, &t);
    if (x->ratio > 1)
        arch_add_store(out, &(struct arch_store){.kind = ARCH_FIXED,
                                                 .type = KV_TYPE_F32,
                                                 .width = (uint64_t)(x->ratio - 1) * (x->dim + x->rotary_dim),
                                                 .copies = 2});
}

static void gqa_stores(const struct part_config *p, enum kv_type type, struct arch_stores *out)
{
    const struct gqa_config *c = &p->gqa;
    struct arch_store t = {.kind = c->window ? ARCH_WINDOW : ARCH_ROWS,
                           .type = type,
                           .width = (uint64_t)c->n_kv_heads * c->head_dim,
                           .head = c->head_dim,
                           .stride = 1,
                           .window = c->window};
    t.pitch = (uint32_t)arch_store_bytes(&t);
    arch_add_store(out, &t);
    t.off = (uint64_t)t.pitch << KV_BLOCK_SHIFT;
    arch_add_store(out, &t);
    if (c->index.n_heads)
        index_stores(&c->index, 2 * t.off, type, out);
}

static void gqa_part_close(void *self)
{
    struct gqa_mixer *q = self;
    if (!q)
        return;
    for (uint32_t i = 0; q->layers && i < q->room->config->n_layers; i++) {
        linear_close(&q->layers[i].in, q->room->exec);
        linear_close(&q->layers[i].out, q->room->exec);
    }
    gqa_close(&q->op, q->room->exec);
    free(q->layers);
    free(q);
}

static int gqa_part_open(void **self, const struct part_room *room, const struct part_config *p,
                         struct moeflux_err *e)
{
    const struct gqa_shape shape = shape_of(room->config, &p->gqa, room->kv_type);
    const struct exec_caps caps = exec_get_caps(room->exec);
    struct gqa_mixer *q = *self = mem_new(1, sizeof *q, e);
    if (!q)
        return ERR_MEMORY;
    q->room = room;
    q->config = &p->gqa;
    q->partial_bytes = size_round_up(partial_bytes(room->config, q->config, &caps, 1), PARTIAL_ALIGN);
    q->scores_bytes = size_round_up(scores_bytes(room->config, q->config, &caps, 1), PARTIAL_ALIGN);
    q->layers = mem_new(room->config->n_layers, sizeof *q->layers, e);
    int rc = q->layers ? gqa_open(&q->op, room->exec, &shape, e) : ERR_MEMORY;
    if (rc == 0 && q->config->index.n_heads) {
        const struct indexer_shape index =
            indexer_of(room->config, &q->config->index, index_type(room->kv_type));
        rc = indexer_open(&q->indexer, room->exec, &index, e);
    }
    if (rc == 0 && q->config->out_biased)
        rc = add_open(&q->add, room->exec, e);
    if (rc < 0) {
        gqa_part_close(q);
        *self = NULL;
    }
    return rc;
}

static int gqa_load(void *self, struct loader *l, uint32_t layer, const struct part_tensor *t,
                    struct moeflux_err *e)
{
    struct gqa_mixer *q = self;
    struct gqa_layer *y = &q->layers[layer];
    int rc = loader_fused(l, layer, t + GQA_Q, 6, &y->in, e);
    if (rc == 0)
        rc = loader_fused(l, layer, t + GQA_OUT, 1, &y->out, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + GQA_BIASES, 3, &y->bias, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + GQA_OUT_BIAS, 1, &y->out_bias, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + GQA_SINKS, 1, &y->sinks, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + GQA_Q_NORM, 1, &y->q_norm, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + GQA_K_NORM, 1, &y->k_norm, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + GQA_INDEX_Q_NORM, 1, &y->index_q_norm, e);
    return rc < 0 ? rc : loader_vectors(l, layer, t + GQA_INDEX_K_NORM, 1, &y->index_k_norm, e);
}

/* Returns where the list of a token is. */
static uint64_t chosen_at(const struct gqa_mixer *q, uint32_t token)
{
    return q->room->own[PART_ATTENTION][CHOSEN].address +
           (uint64_t)token * (q->config->index.budget + 1) * sizeof(uint32_t);
}

/* idx: which of the calls that may run concurrently it is. */
static struct indexer_call index_call_of(const struct gqa_mixer *q, const struct part_call *call,
                                         const struct part_tokens *part, uint32_t idx)
{
    const struct part_room *r = q->room;
    const struct gqa_layer *y = &q->layers[call->layer];
    const struct index_config *x = &q->config->index;
    const struct arch_store *rows = &call->stores[2], *window = &call->stores[x->ratio > 1 ? 3 : 2];
    uint64_t bytes = arch_store_bytes(window), from = part->from * sizeof(float);
    uint32_t stride = in_rows(q->config), is_odd = part->of.parity != 0;
    return (struct indexer_call){.proj =
                                     r->proj.address + from * stride + index_row(q->config) * sizeof(float),
                                 .q_norm = y->index_q_norm,
                                 .k_norm = y->index_k_norm,
                                 .rope = part->rope,
                                 .window_in = part->of.recurrent + window->off + is_odd * bytes,
                                 .window_out = part->of.recurrent_out + window->off + !is_odd * bytes,
                                 .blocks = part->of.kv_blocks,
                                 .q = r->own[PART_ATTENTION][INDEX_Q].address + from * x->n_heads * x->dim,
                                 .scores = r->own[PART_ATTENTION][SCORES].address + idx * q->scores_bytes,
                                 .chosen = chosen_at(q, part->from),
                                 .n = part->n,
                                 .pos = part->of.pos,
                                 .stride = stride,
                                 .layer_off = (uint32_t)rows->off};
}

/* Chooses the blocks that the chunk's tokens see. */
static void choose(const struct gqa_mixer *q, const struct part_call *call)
{
    struct part_tokens parts[PART_MOST_TOKENS];
    struct indexer_call calls[PART_MOST_TOKENS];
    uint32_t n = part_tokens_with_state(q->room, call->chunk, q->config->rope, parts);
    for (uint32_t i = 0; i < n; i++)
        calls[i] = index_call_of(q, call, &parts[i], call->chunk->each ? i : 0);
    if (call->chunk->each)
        indexer_run(&q->indexer, q->room->exec, calls, n);
    for (uint32_t i = 0; !call->chunk->each && i < n; i++)
        indexer_run(&q->indexer, q->room->exec, &calls[i], 1);
}

static struct gqa_call call_of(const struct gqa_mixer *q, const struct part_call *call,
                               const struct part_tokens *part)
{
    const struct part_room *r = q->room;
    const struct gqa_layer *y = &q->layers[call->layer];
    const struct arch_store *keys = &call->stores[0];
    uint64_t from = part->from * sizeof(float);
    uint32_t rows = in_rows(q->config);
    return (struct gqa_call){.qkv = r->proj.address + (uint64_t)part->from * rows * sizeof(float),
                             .q_norm = y->q_norm,
                             .k_norm = y->k_norm,
                             .bias = y->bias,
                             .sinks = y->sinks,
                             .rope = part->rope,
                             .blocks = keys->kind == ARCH_WINDOW ? part->of.ring_blocks : part->of.kv_blocks,
                             .chosen = q->config->index.n_heads ? chosen_at(q, part->from) : 0,
                             .q = r->own[PART_ATTENTION][Q].address + from * y->out.cols,
                             .partial =
                                 r->own[PART_ATTENTION][PARTIAL].address + part->from * q->partial_bytes,
                             .dst = r->mixed.address + (uint64_t)part->from * y->out.cols * sizeof(float),
                             .n = part->n,
                             .pos = part->of.pos,
                             .stride = rows,
                             .layer_off = (uint32_t)keys->off,
                             .norms_values = q->config->norms_values,
                             .use_f16 = r->uses_f16};
}

static void gqa_part_run(const void *self, const struct part_call *call)
{
    const struct gqa_mixer *q = self;
    const struct part_room *r = q->room;
    const struct gqa_layer *y = &q->layers[call->layer];
    part_project(r, &y->in, call, in_rows(q->config));
    if (q->config->index.n_heads)
        choose(q, call);
    struct gqa_call calls[EXEC_MAX_INVARIANT];
    uint32_t n = part_n_sequences(call->chunk);
    for (uint32_t i = 0; i < n; i++) {
        const struct part_tokens part = part_tokens_of(r, call->chunk, q->config->rope, i);
        calls[i] = call_of(q, call, &part);
    }
    if (call->chunk->each)
        gqa_run_concurrent(&q->op, r->exec, calls, n);
    else
        gqa_run(&q->op, r->exec, calls);
    if (y->out_bias) {
        exec_concurrent(r->exec); /* attention does not touch the hidden states */
        add_run(&q->add, r->exec,
                &(struct add_call){.y = y->out_bias,
                                   .x = call->out,
                                   .n = call->chunk->n * r->config->hidden,
                                   .every = r->config->hidden});
    }
    part_add(r, &y->out, call, false);
}

const struct part part_gqa = {
    .needs = gqa_needs,
    .stores = gqa_stores,
    .open = gqa_part_open,
    .close = gqa_part_close,
    .load = gqa_load,
    .run = gqa_part_run,
};
