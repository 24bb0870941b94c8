/* Grouped-query attention, with or without gates, biases, norms of queries and keys, sinks and windows:
 *   [q | gate, k, v] = W norm(x) + b;  gqa (ops/gqa/gqa.h);  x += o_proj o + b
 *
 * The KV cache has keys (ready for the product), then values, [n_kv_heads][head_dim] for each position. */
#include <stdlib.h>

#include "arch/loader.h"
#include "arch/mixer.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"
#include "ops/add.h"
#include "ops/gqa/gqa.h"
#include "ops/linear/linear.h"

struct gqa_layer {
    struct linear in, out;
    uint64_t q_norm, k_norm, bias, out_bias, sinks;
};

struct gqa_mixer {
    const struct mixer_room *room;
    struct gqa op[2];         /* one for layers without a window, one for those with */
    struct add add;           /* adds o_proj's biases */
    struct gqa_layer *layers; /* [n_layers] */
    uint64_t partial_bytes;   /* size of one sequence's part of own[PARTIAL] in batched decode */
};

/* indices into room->own */
enum { Q, PARTIAL };

static uint32_t query_rows(const struct config *c)
{
    return (1 + c->attn_gated) * c->n_heads * c->head_dim;
}

/* The number of outputs of the fused product. */
static uint32_t in_rows(const struct config *c)
{
    return query_rows(c) + 2 * c->n_kv_heads * c->head_dim;
}

static enum attention_norm norm_of(const struct config *c)
{
    static const enum attention_norm norms[] = {[QK_NORM_NONE] = ATTENTION_NORM_NONE,
                                                [QK_NORM_HEADS] = ATTENTION_NORM_HEADS,
                                                [QK_NORM_ALL] = ATTENTION_NORM_ALL};
    return norms[c->attn_norm];
}

static struct gqa_shape shape_of(const struct config *c, enum kv_type type, bool has_window)
{
    return (struct gqa_shape){.n_heads = c->n_heads,
                              .n_kv_heads = c->n_kv_heads,
                              .head_dim = c->head_dim,
                              .rotary_dim = c->rotary_dim,
                              .eps = c->rms_eps,
                              .kv_type = type,
                              .gated = c->attn_gated,
                              .norm = norm_of(c),
                              .biased = c->attn_biased,
                              .sinks = c->attn_sinks,
                              .window = has_window ? c->attn_window : 0};
}

/* The bytes of partial results of one token. */
static uint64_t partial_bytes_alone(const struct config *c, const struct exec_caps *caps)
{
    const struct gqa_shape shape = shape_of(c, KV_TYPE_F32, false);
    return size_round_up(gqa_partial_bytes(&shape, caps, 1, config_longest_context(c)), 16);
}

static void mixer_needs(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk,
                        struct mixer_needs *out)
{
    const struct gqa_shape shape = shape_of(c, KV_TYPE_F32, false);
    uint64_t ctx = (uint64_t)c->n_heads * c->head_dim;
    *out = (struct mixer_needs){.proj = in_rows(c), .mixed = ctx, .widest = ctx};
    out->own[Q] = max_chunk * ctx;
    uint32_t n_batched = (uint32_t)size_min(caps->max_invariant, max_chunk);
    out->own[PARTIAL] = size_max(gqa_partial_bytes(&shape, caps, max_chunk, config_longest_context(c)),
                                 n_batched * partial_bytes_alone(c, caps)) /
                        sizeof(float);
}

static struct arch_state mixer_state(const struct config *c, enum kv_type type)
{
    uint32_t n = c->n_kv_heads * c->head_dim, row = n * kv_type_bytes(type);
    uint64_t values = (uint64_t)row << KV_BLOCK_SHIFT;
    return (struct arch_state){
        .rows = {{.off = 0, .stride = row, .n = n}, {.off = values, .stride = row, .n = n}},
        .n_heads = c->n_kv_heads,
        .head_dim = c->head_dim};
}

static void mixer_close(void *self)
{
    struct gqa_mixer *q = self;
    if (!q)
        return;
    for (uint32_t i = 0; q->layers && i < q->room->config->n_layers; i++) {
        linear_close(&q->layers[i].in, q->room->exec);
        linear_close(&q->layers[i].out, q->room->exec);
    }
    for (int i = 0; i < 2; i++)
        gqa_close(&q->op[i], q->room->exec);
    free(q->layers);
    free(q);
}

static bool has_layers(const struct config *c, bool with_window)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].mixer == MIXER_ATTENTION && c->layers[i].has_window == with_window)
            return true;
    return false;
}

static int open_ops(struct gqa_mixer *q, struct moeflux_err *e)
{
    const struct config *c = q->room->config;
    int rc = c->attn_out_biased ? add_open(&q->add, q->room->exec, e) : 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        const struct gqa_shape shape = shape_of(c, q->room->kv_type, i);
        if (has_layers(c, i))
            rc = gqa_open(&q->op[i], q->room->exec, &shape, e);
    }
    return rc;
}

static int mixer_open(void **self, const struct mixer_room *room, struct moeflux_err *e)
{
    struct gqa_mixer *q = *self = mem_new(1, sizeof *q, e);
    if (!q)
        return ERR_MEMORY;
    const struct exec_caps caps = exec_get_caps(room->exec);
    q->room = room;
    q->partial_bytes = partial_bytes_alone(room->config, &caps);
    q->layers = mem_new(room->config->n_layers, sizeof *q->layers, e);
    int rc = q->layers ? open_ops(q, e) : ERR_MEMORY;
    if (rc < 0) {
        mixer_close(q);
        *self = NULL;
    }
    return rc;
}

static int mixer_load(void *self, struct loader *l, uint32_t layer, struct moeflux_err *e)
{
    struct gqa_mixer *q = self;
    const struct config *c = q->room->config;
    struct gqa_layer *y = &q->layers[layer];
    const struct loader_part in[] = {{"self_attn.q_proj", query_rows(c)},
                                     {"self_attn.k_proj", c->n_kv_heads * c->head_dim},
                                     {"self_attn.v_proj", c->n_kv_heads * c->head_dim}};
    const struct loader_part out[] = {{"self_attn.o_proj", c->hidden}};
    int rc = loader_fused(l, layer, in, 3, c->hidden, &y->in, e);
    if (rc == 0)
        rc = loader_fused(l, layer, out, 1, c->n_heads * c->head_dim, &y->out, e);
    if (rc == 0 && c->attn_biased)
        rc = loader_biases(l, layer, in, 3, &y->bias, e);
    if (rc == 0 && c->attn_out_biased)
        rc = loader_biases(l, layer, out, 1, &y->out_bias, e);
    if (rc == 0 && c->attn_sinks)
        rc = loader_layer_vector(l, layer, "self_attn.sinks", c->n_heads, &y->sinks, e);
    if (rc < 0 || !c->attn_norm)
        return rc;
    uint64_t d = c->head_dim;
    bool is_one = c->attn_norm == QK_NORM_ALL;
    rc = loader_layer_vector(l, layer, "self_attn.q_norm.weight", is_one ? c->n_heads * d : d, &y->q_norm, e);
    return rc < 0 ? rc
                  : loader_layer_vector(l, layer, "self_attn.k_norm.weight", is_one ? c->n_kv_heads * d : d,
                                        &y->k_norm, e);
}

static struct gqa_call call_of(const struct gqa_mixer *q, const struct mixer_call *call,
                               const struct mixer_part *part)
{
    const struct mixer_room *r = q->room;
    const struct gqa_layer *y = &q->layers[call->layer];
    uint32_t rows = in_rows(r->config);
    return (struct gqa_call){.qkv = r->proj.address + (uint64_t)part->from * rows * sizeof(float),
                             .q_norm = y->q_norm,
                             .k_norm = y->k_norm,
                             .bias = y->bias,
                             .sinks = y->sinks,
                             .rope = part->rope,
                             .blocks = part->of.kv_blocks,
                             .q = r->own[MIXER_ATTENTION][Q].address,
                             .partial =
                                 r->own[MIXER_ATTENTION][PARTIAL].address + part->from * q->partial_bytes,
                             .dst = r->mixed.address + (uint64_t)part->from * y->out.cols * sizeof(float),
                             .n = part->n,
                             .pos = part->of.pos,
                             .stride = rows,
                             .layer_off = (uint32_t)call->state->rows[0].off,
                             .use_f16 = r->uses_f16};
}

static void mixer_run(const void *self, const struct mixer_call *call)
{
    const struct gqa_mixer *q = self;
    const struct mixer_room *r = q->room;
    const struct gqa_layer *y = &q->layers[call->layer];
    const struct gqa *op = &q->op[r->config->layers[call->layer].has_window];
    mixer_project(q->room, &y->in, call, in_rows(q->room->config));
    struct gqa_call calls[EXEC_MAX_INVARIANT];
    uint32_t n = mixer_n_parts(call->chunk);
    for (uint32_t i = 0; i < n; i++) {
        const struct mixer_part part = mixer_part(q->room, call->chunk, i);
        calls[i] = call_of(q, call, &part);
    }
    if (call->chunk->each)
        gqa_run_concurrent(op, r->exec, calls, n);
    else
        gqa_run(op, r->exec, calls);
    if (y->out_bias) {
        exec_concurrent(r->exec); /* attention does not touch the hidden states */
        add_run(&q->add, r->exec,
                &(struct add_call){.y = y->out_bias,
                                   .x = r->x,
                                   .n = call->chunk->n * r->config->hidden,
                                   .every = r->config->hidden});
    }
    mixer_add(r, &y->out, call->chunk->n, false);
}

const struct mixer mixer_gqa = {
    .needs = mixer_needs,
    .state = mixer_state,
    .open = mixer_open,
    .close = mixer_close,
    .load = mixer_load,
    .run = mixer_run,
};
