/* Grouped-query attention, with or without gates of queries or heads, biases, norms of queries and keys,
 * sinks, windows and an indexer:
 *   [q | gate, k, v, index, g] = W norm(x) + b;  indexer (ops/indexer/indexer.h);  gqa (ops/gqa/gqa.h);
 *   o_h *= sigmoid(g_h) if head_gated;  x += o_proj o + b
 *
 * The KV cache has keys (ready for the product), [n_kv_heads][head_dim] for each position, then values,
 * [n_kv_heads][value_dim]. */
#include <stdlib.h>

#include "arch/index.h"
#include "arch/loader.h"
#include "arch/part.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "ops/add.h"
#include "ops/gqa/gqa.h"
#include "ops/head_gate.h"
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
    struct index_part index;
    struct add add;           /* adds o_proj's biases */
    struct head_gate gate;    /* open if config->head_gated */
    struct gqa_layer *layers; /* [n_layers] */
    uint64_t partial_bytes;   /* size of one sequence's part of own[PARTIAL] in batched decode */
};

/* indices into room->own; the rest is the indexer's */
enum { Q, PARTIAL };
enum { PARTIAL_ALIGN = 16 };

static uint32_t query_rows(const struct gqa_config *c)
{
    return (1 + c->gated) * c->n_heads * c->head_dim;
}

/* The first of the indexer's outputs. */
static uint32_t index_row(const struct gqa_config *c)
{
    return query_rows(c) + c->n_kv_heads * (c->head_dim + config_value_dim(c));
}

/* The first of the heads' gates. */
static uint32_t gate_row(const struct gqa_config *c)
{
    const struct index_config *x = &c->index;
    return index_row(c) + (x->n_heads > 0 ? (x->n_heads + 1) * x->dim : 0);
}

/* The number of outputs of the fused product, a multiple of 4. */
static uint32_t in_rows(const struct gqa_config *c)
{
    return (uint32_t)size_round_up(gate_row(c) + (c->head_gated ? c->n_heads : 0), CONFIG_FOUR);
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
                              .choice = index_choice(&g->index),
                              .scale = g->scale,
                              .values = {g->norms_values, g->value_scale, config_value_dim(g)}};
}

/* Returns the bytes of partial results of chunks of up to n tokens, as without a window. */
static uint64_t partial_bytes(const struct config *c, const struct gqa_config *g,
                              const struct exec_caps *caps, enum kv_type type, uint32_t n)
{
    struct gqa_shape shape = shape_of(c, g, type);
    shape.window = 0;
    return gqa_partial_bytes(&shape, caps, n, config_longest_context(c));
}

static void gqa_needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                      const struct part_most *most, struct part_needs *out)
{
    const struct gqa_config *g = &p->gqa;
    uint64_t ctx = (uint64_t)g->n_heads * config_value_dim(g), n_batched = part_n_concurrent(most);
    uint64_t alone = size_round_up(partial_bytes(c, g, caps, most->kv_type, 1), PARTIAL_ALIGN);
    uint64_t chunk = partial_bytes(c, g, caps, most->kv_type, most->chunk);
    *out = (struct part_needs){.proj = in_rows(g), .mixed = ctx, .widest = ctx};
    out->own[Q] = (uint64_t)most->chunk * g->n_heads * g->head_dim;
    out->own[PARTIAL] = size_max(chunk, n_batched * alone) / sizeof(float);
    index_needs(c, &g->index, caps, most, out);
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
    t.head = config_value_dim(c);
    t.width = (uint64_t)c->n_kv_heads * t.head;
    t.pitch = (uint32_t)arch_store_bytes(&t);
    arch_add_store(out, &t);
    index_stores(&c->index, t.off + ((uint64_t)t.pitch << KV_BLOCK_SHIFT), type, out);
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
    q->partial_bytes =
        size_round_up(partial_bytes(room->config, q->config, &caps, room->kv_type, 1), PARTIAL_ALIGN);
    q->layers = mem_new(room->config->n_layers, sizeof *q->layers, e);
    int rc = q->layers ? gqa_open(&q->op, room->exec, &shape, e) : ERR_MEMORY;
    if (rc == 0)
        rc = index_open(&q->index, room, PART_ATTENTION, &q->config->index, q->config->rope, e);
    if (rc == 0 && q->config->head_gated)
        rc = head_gate_open(&q->gate, room->exec, e);
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
    int rc = loader_fused(l, layer, t + GQA_Q, 7, &y->in, e);
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

/* Chooses the blocks that the chunk's tokens see. */
static void choose(const struct gqa_mixer *q, const struct part_call *call)
{
    const struct gqa_layer *y = &q->layers[call->layer];
    const struct index_config *x = &q->config->index;
    uint32_t stride = in_rows(q->config);
    uint64_t queries = q->room->proj.address + index_row(q->config) * sizeof(float);
    index_run(&q->index, call,
              &(struct index_inputs){.queries = queries,
                                     .keys = queries + (uint64_t)x->n_heads * x->dim * sizeof(float),
                                     .stride = stride,
                                     .key_stride = stride,
                                     .q_norm = y->index_q_norm,
                                     .k_norm = y->index_k_norm,
                                     .stores = call->stores + 2});
}

/* idx: which of the calls that may run concurrently it is; each of these has a part of own[PARTIAL]. */
static struct gqa_call call_of(const struct gqa_mixer *q, const struct part_call *call,
                               const struct part_tokens *part, uint32_t idx)
{
    const struct part_room *r = q->room;
    const struct exec_buffer *partial = &r->own[PART_ATTENTION][PARTIAL];
    const struct gqa_layer *y = &q->layers[call->layer];
    const struct arch_store *keys = &call->stores[0];
    const struct gqa_config *c = q->config;
    uint64_t queries = (uint64_t)part->from * c->n_heads * c->head_dim * sizeof(float);
    uint32_t rows = in_rows(q->config);
    return (struct gqa_call){.qkv = r->proj.address + (uint64_t)part->from * rows * sizeof(float),
                             .q_norm = y->q_norm,
                             .k_norm = y->k_norm,
                             .bias = y->bias,
                             .sinks = y->sinks,
                             .rope = part->rope,
                             .blocks = keys->kind == ARCH_WINDOW ? part->of.ring_blocks : part->of.kv_blocks,
                             .chosen = index_list_at(&q->index, part->from),
                             .q = r->own[PART_ATTENTION][Q].address + queries,
                             .partial = partial->address + idx * q->partial_bytes,
                             .partial_bytes = partial->bytes - idx * q->partial_bytes,
                             .dst = r->mixed.address + (uint64_t)part->from * y->out.cols * sizeof(float),
                             .n = part->n,
                             .pos = part->of.pos,
                             .stride = rows,
                             .layer_off = (uint32_t)keys->off,
                             .use_f16 = r->uses_f16,
                             .may_use_matrices =
                                 r->uses_f16 && arch_plan_n(call->chunk) > EXEC_MAX_INVARIANT};
}

/* Runs the sequences, or a chain's tokens, in groups of those whose partial results have room. */
static void attend(const struct gqa_mixer *q, const struct part_call *call)
{
    const struct part_room *r = q->room;
    struct gqa_call calls[PART_GROUP];
    bool are_single;
    for (uint32_t first = 0, n; (n = part_group_from(call->chunk, first, &are_single)) > 0; first += n) {
        bool is_chain =
            call->chunk->is_chain && n * q->partial_bytes <= r->own[PART_ATTENTION][PARTIAL].bytes;
        for (uint32_t i = 0; i < n; i++) {
            const struct part_tokens part = part_tokens_of(r, call->chunk, q->config->rope, first + i);
            calls[i] = call_of(q, call, &part, are_single || is_chain ? i : 0);
        }
        if (are_single)
            gqa_run_concurrent(&q->op, r->exec, calls, n);
        else if (is_chain)
            gqa_run_chain(&q->op, r->exec, calls, n);
        for (uint32_t i = 0; !are_single && !is_chain && i < n; i++)
            gqa_run(&q->op, r->exec, &calls[i]);
    }
}

static void gqa_part_run(const void *self, const struct part_call *call)
{
    const struct gqa_mixer *q = self;
    const struct part_room *r = q->room;
    const struct gqa_layer *y = &q->layers[call->layer];
    part_project(r, &y->in, call, in_rows(q->config));
    if (q->config->index.n_heads)
        choose(q, call);
    attend(q, call);
    if (q->config->head_gated)
        head_gate_run(&q->gate, r->exec,
                      &(struct head_gate_call){.x = r->mixed.address,
                                               .gate = r->proj.address + gate_row(q->config) * sizeof(float),
                                               .n = call->chunk->n,
                                               .n_heads = q->config->n_heads,
                                               .dim = config_value_dim(q->config),
                                               .stride = in_rows(q->config)});
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
