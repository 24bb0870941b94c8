/* Qwen3.5-MoE: layers of gated grouped-query attention or gated delta net, each followed by a mixture of experts.
 *
 *   attention:  [q|gate, k, v] = W norm1(x);  prep, score, merge;  x += o_proj o             5 dispatches
 *   delta net:  [qkv, z, b, a] = W norm1(x);  delta;               x += out_proj o           3 dispatches
 *   experts:    moe.h                                                                        4 dispatches */
#include <stdlib.h>

#include "arch/arch.h"
#include "arch/embed_head.h"
#include "arch/loader.h"
#include "arch/moe.h"
#include "arch/scratch.h"
#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"
#include "ops/gqa.h"
#include "ops/delta.h"
#include "ops/linear.h"

struct layer {
    uint64_t norm1;
    struct linear in, out; /* of the mixer */
    struct moe_layer moe;
    uint64_t q_norm, k_norm;                  /* attention */
    uint64_t conv, a_log, dt_bias, gate_norm; /* delta net */
    uint32_t kv_off;                          /* attention: bytes of this layer's keys in a KV block */
    uint64_t state_off; /* delta net: bytes of its two windows and its state in the recurrent state */
};

struct qwen {
    struct exec *exec;
    const struct config *config;
    uint32_t max_chunk;
    enum kv_type kv_type;
    bool uses_f16; /* prompts go through float16 */
    struct embed_head embed_head;
    struct layer *layers;
    struct arch_state *states; /* [n_layers] */
    struct gqa gqa;
    struct delta delta;
    struct moe moe;
    uint32_t qkv_rows, delta_rows; /* outputs of the fused products */
    /* activations; proj is the widest of the fused products' outputs */
    struct exec_buffer proj, q, partial, mixed, prepared;
    struct exec_buffer f16_scratch; /* inputs of products in float16; absent without them */
};

static const struct moe_names names = {
    .shared_gate = "mlp.shared_expert_gate",
    .shared = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"}};

static uint64_t window_bytes(const struct config *c)
{
    return (uint64_t)(c->conv_kernel - 1) * config_conv_dim(c) * sizeof(float);
}

static uint64_t delta_state_bytes(const struct config *c)
{
    return (uint64_t)c->n_v_heads * c->v_head_dim * c->k_head_dim * sizeof(float);
}

/* A layer's share of the recurrent state: window, window, S. */
static uint64_t layer_recurrent_bytes(const struct config *c)
{
    return 2 * window_bytes(c) + delta_state_bytes(c);
}

static uint64_t layer_kv_bytes(const struct qwen *q)
{
    const struct config *c = q->config;
    return ((uint64_t)2 << KV_BLOCK_SHIFT) * c->n_kv_heads * c->head_dim * kv_type_bytes(q->kv_type);
}

static int load_attention(struct qwen *q, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = q->config;
    struct layer *y = &q->layers[i];
    const struct loader_part in[] = {{"self_attn.q_proj", 2 * c->n_heads * c->head_dim},
                                     {"self_attn.k_proj", c->n_kv_heads * c->head_dim},
                                     {"self_attn.v_proj", c->n_kv_heads * c->head_dim}};
    const struct loader_part out[] = {{"self_attn.o_proj", c->hidden}};
    int rc = loader_fused(l, i, in, 3, c->hidden, &y->in, e);
    if (rc == 0)
        rc = loader_fused(l, i, out, 1, c->n_heads * c->head_dim, &y->out, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "self_attn.q_norm.weight", c->head_dim, &y->q_norm, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "self_attn.k_norm.weight", c->head_dim, &y->k_norm, e);
    return rc;
}

static int load_delta(struct qwen *q, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = q->config;
    struct layer *y = &q->layers[i];
    uint32_t channels = config_conv_dim(c), inner = c->n_v_heads * c->v_head_dim;
    const struct loader_part in[] = {{"linear_attn.in_proj_qkv", channels},
                                     {"linear_attn.in_proj_z", inner},
                                     {"linear_attn.in_proj_b", c->n_v_heads},
                                     {"linear_attn.in_proj_a", c->n_v_heads}};
    const struct loader_part out[] = {{"linear_attn.out_proj", c->hidden}};
    int rc = loader_fused(l, i, in, 4, c->hidden, &y->in, e);
    if (rc == 0)
        rc = loader_fused(l, i, out, 1, inner, &y->out, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "linear_attn.conv1d.weight", (uint64_t)channels * c->conv_kernel,
                                 &y->conv, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "linear_attn.A_log", c->n_v_heads, &y->a_log, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "linear_attn.dt_bias", c->n_v_heads, &y->dt_bias, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "linear_attn.norm.weight", c->v_head_dim, &y->gate_norm, e);
    return rc;
}

static int load_layer(struct qwen *q, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = q->config;
    struct layer *y = &q->layers[i];
    int rc = loader_layer_vector(l, i, "input_layernorm.weight", c->hidden, &y->norm1, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "post_attention_layernorm.weight", c->hidden, &y->moe.norm, e);
    if (rc == 0)
        rc = c->layers[i] == LAYER_ATTENTION ? load_attention(q, l, i, e) : load_delta(q, l, i, e);
    return rc < 0 ? rc : moe_load_layer(&q->moe, l, i, &names, &y->moe, e);
}

static struct arch_state attention_state(const struct qwen *q, uint64_t off)
{
    uint32_t n = q->config->n_kv_heads * q->config->head_dim, row = n * kv_type_bytes(q->kv_type);
    uint64_t values = off + layer_kv_bytes(q) / 2;
    return (struct arch_state){
        .rows = {{.off = off, .stride = row, .n = n}, {.off = values, .stride = row, .n = n}}};
}

static struct arch_state delta_state(const struct config *c, uint64_t off)
{
    return (struct arch_state){.window_off = off,
                               .window_bytes = window_bytes(c),
                               .delta_off = off + 2 * window_bytes(c),
                               .delta_bytes = delta_state_bytes(c)};
}

/* Gives every layer its place in the KV blocks and in the recurrent state. */
static void lay_out_state(struct qwen *q, struct arch_view *view)
{
    const struct config *c = q->config;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i] == LAYER_ATTENTION) {
            q->layers[i].kv_off = (uint32_t)view->kv_block_bytes;
            q->states[i] = attention_state(q, view->kv_block_bytes);
            view->kv_block_bytes += layer_kv_bytes(q);
        } else {
            q->layers[i].state_off = view->recurrent_state_bytes;
            q->states[i] = delta_state(c, view->recurrent_state_bytes);
            view->recurrent_state_bytes += layer_recurrent_bytes(c);
        }
    }
    view->states = q->states;
}

static struct gqa_shape attention_of(const struct qwen *q)
{
    const struct config *c = q->config;
    return (struct gqa_shape){.n_heads = c->n_heads,
                              .n_kv_heads = c->n_kv_heads,
                              .head_dim = c->head_dim,
                              .rotary_dim = c->rotary_dim,
                              .eps = c->rms_eps,
                              .kv_type = q->kv_type,
                              .gated = true};
}

static struct delta_shape delta_of(const struct config *c)
{
    return (struct delta_shape){.n_k = c->n_k_heads,
                                .n_v = c->n_v_heads,
                                .k_dim = c->k_head_dim,
                                .v_dim = c->v_head_dim,
                                .conv_kernel = c->conv_kernel,
                                .eps = c->rms_eps};
}

static bool has_layers(const struct config *c, enum layer_kind kind)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i] == kind)
            return true;
    return false;
}

static int open_ops(struct qwen *q, const struct arch_request *r, struct moeflux_err *e)
{
    const struct config *c = q->config;
    const struct gqa_shape attention = attention_of(q);
    const struct delta_shape delta = delta_of(c);
    const struct router_shape router = {.n_experts = c->n_experts, .top_k = c->top_k, .norm = c->norm_topk};
    int rc = has_layers(c, LAYER_ATTENTION) ? gqa_open(&q->gqa, q->exec, &attention, e) : 0;
    if (rc == 0 && has_layers(c, LAYER_DELTA))
        rc = delta_open(&q->delta, q->exec, &delta, e);
    return rc < 0 ? rc : moe_open(&q->moe, r, &router, e);
}

static void allocate(struct qwen *q, const struct exec_caps *caps, struct scratch *to)
{
    const struct config *c = q->config;
    uint64_t n = q->max_chunk, ctx = (uint64_t)c->n_heads * c->head_dim,
             inner = (uint64_t)c->n_v_heads * c->v_head_dim;
    q->qkv_rows = 2 * (c->n_heads + c->n_kv_heads) * c->head_dim;
    q->delta_rows = config_conv_dim(c) + c->n_v_heads * (c->v_head_dim + 2);
    scratch_floats(to, &q->proj, n * size_max(q->qkv_rows, q->delta_rows));
    scratch_floats(to, &q->mixed, n * size_max(ctx, inner));
    if (has_layers(c, LAYER_ATTENTION)) {
        const struct gqa_shape attention = attention_of(q);
        uint64_t bytes = gqa_partial_bytes(&attention, caps, q->max_chunk, config_longest_context(c));
        scratch_floats(to, &q->q, n * ctx);
        scratch_floats(to, &q->partial, bytes / sizeof(float));
    }
    if (has_layers(c, LAYER_DELTA)) {
        const struct delta_shape delta = delta_of(c);
        scratch_floats(to, &q->prepared, delta_scratch(&delta, caps, q->max_chunk));
    }
    if (q->uses_f16)
        scratch_floats(to, &q->f16_scratch,
                       n * size_max(size_max(c->hidden, c->shared_inner), size_max(ctx, inner)) / 2);
    q->moe.f16_scratch = q->f16_scratch.address;
    embed_head_allocate(&q->embed_head, c, q->max_chunk, to);
    moe_allocate(&q->moe, c, caps, true, q->max_chunk, to);
}

static uint64_t qwen_scratch_bytes(const struct config *c, const struct exec_caps *caps, uint32_t max_chunk)
{
    struct qwen q = {.config = c, .max_chunk = max_chunk, .uses_f16 = caps->has_coopmat};
    struct scratch count = {0};
    allocate(&q, caps, &count);
    return count.bytes;
}

static void qwen_close(void *self)
{
    struct qwen *q = self;
    if (!q)
        return;
    struct exec_buffer *buffers[] = {&q->proj, &q->q, &q->partial, &q->mixed, &q->prepared, &q->f16_scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(q->exec, buffers[i]);
    for (uint32_t i = 0; q->layers && i < q->config->n_layers; i++) {
        linear_close(&q->layers[i].in, q->exec);
        linear_close(&q->layers[i].out, q->exec);
        moe_close_layer(&q->layers[i].moe, q->exec);
    }
    embed_head_close(&q->embed_head, q->exec);
    moe_close(&q->moe);
    free(q->layers);
    free(q->states);
    free(q);
}

static int qwen_open(void **self, const struct arch_request *r, struct arch_view *view, struct moeflux_err *e)
{
    *self = NULL;
    *view = (struct arch_view){0};
    struct qwen *q = mem_new(1, sizeof *q, e);
    if (!q)
        return ERR_MEMORY;
    q->exec = r->exec;
    q->config = r->config;
    q->max_chunk = r->max_chunk;
    q->kv_type = r->kv_type;
    q->uses_f16 = exec_get_caps(r->exec).has_coopmat;
    q->layers = mem_new(r->config->n_layers, sizeof *q->layers, e);
    struct exec_caps caps = exec_get_caps(r->exec);
    struct scratch made = {.exec = r->exec, .e = e};
    q->moe.exec = r->exec;
    q->states = mem_new(r->config->n_layers, sizeof *q->states, e);
    int rc = q->layers && q->states ? embed_head_load(&q->embed_head, r->loader, r->config, e) : ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < r->config->n_layers; i++)
        rc = load_layer(q, r->loader, i, e);
    if (rc == 0)
        rc = loader_finish(r->loader, e);
    if (rc == 0)
        allocate(q, &caps, &made);
    if (rc == 0)
        rc = made.rc;
    if (rc == 0)
        rc = open_ops(q, r, e);
    if (rc < 0) {
        qwen_close(q);
        return rc;
    }
    lay_out_state(q, view);
    view->max_context = config_longest_context(q->config);
    view->scratch_bytes = made.bytes;
    view->x = q->embed_head.x;
    view->logits = q->embed_head.logits;
    moe_show(&q->moe, view);
    *self = q;
    return 0;
}

static void qwen_embed(void *self, const struct arch_chunk *c)
{
    struct qwen *q = self;
    embed_head_embed(&q->embed_head, q->exec, c);
}

/* proj = W norm1(x) */
static void run_in(struct qwen *q, const struct layer *y, uint32_t n, uint32_t rows)
{
    linear_run(&y->in, q->exec,
               &(struct linear_call){.x = q->embed_head.x.address,
                                     .norm = y->norm1,
                                     .y = q->proj.address,
                                     .x_stride = q->config->hidden,
                                     .y_stride = rows,
                                     .n = n,
                                     .eps = q->config->rms_eps,
                                     .f16_scratch = q->f16_scratch.address});
}

/* x += W mixed */
static void run_out(struct qwen *q, const struct layer *y, uint32_t n)
{
    linear_run(&y->out, q->exec,
               &(struct linear_call){.x = q->mixed.address,
                                     .y = q->embed_head.x.address,
                                     .x_stride = y->out.cols,
                                     .y_stride = q->config->hidden,
                                     .n = n,
                                     .add = true,
                                     .f16_scratch = q->f16_scratch.address});
}

static void run_attention(struct qwen *q, const struct layer *y, const struct arch_chunk *c)
{
    run_in(q, y, c->n, q->qkv_rows);
    gqa_run(&q->gqa, q->exec,
            &(struct gqa_call){.qkv = q->proj.address,
                               .q_norm = y->q_norm,
                               .k_norm = y->k_norm,
                               .rope = c->rope,
                               .blocks = c->kv_blocks,
                               .q = q->q.address,
                               .partial = q->partial.address,
                               .dst = q->mixed.address,
                               .n = c->n,
                               .pos = c->pos,
                               .stride = q->qkv_rows,
                               .layer_off = y->kv_off,
                               .use_f16 = q->uses_f16});
    run_out(q, y, c->n);
}

static void run_delta(struct qwen *q, const struct layer *y, const struct arch_chunk *c)
{
    uint64_t windows = c->recurrent + y->state_off, window = window_bytes(q->config);
    run_in(q, y, c->n, q->delta_rows);
    delta_run(&q->delta, q->exec,
              &(struct delta_call){.proj = q->proj.address,
                                   .conv = y->conv,
                                   .a_log = y->a_log,
                                   .dt_bias = y->dt_bias,
                                   .norm = y->gate_norm,
                                   .window_in = windows + (c->parity ? window : 0),
                                   .window_out = windows + (c->parity ? 0 : window),
                                   .state = windows + 2 * window,
                                   .dst = q->mixed.address,
                                   .scratch = q->prepared.address,
                                   .n = c->n,
                                   .stride = q->delta_rows});
    run_out(q, y, c->n);
}

static void qwen_before_experts(void *self, const struct arch_chunk *c, uint32_t layer)
{
    struct qwen *q = self;
    const struct layer *y = &q->layers[layer];
    if (q->config->layers[layer] == LAYER_ATTENTION)
        run_attention(q, y, c);
    else
        run_delta(q, y, c);
    moe_route(&q->moe, &y->moe, q->embed_head.x.address, c->n);
}

static bool qwen_takes_waves(void *self, uint32_t n)
{
    const struct qwen *q = self;
    return experts_takes_waves(&q->moe.experts, n);
}

static void qwen_experts_up(void *self, const struct arch_chunk *c, const struct arch_experts *x)
{
    struct qwen *q = self;
    moe_up(&q->moe, &q->layers[x->layer].moe, q->embed_head.x.address, c->n, x);
}

static void qwen_experts_down(void *self, const struct arch_chunk *c, const struct arch_experts *x)
{
    struct qwen *q = self;
    moe_down(&q->moe, &q->layers[x->layer].moe, q->embed_head.x.address, c->n, x);
}

static void qwen_predict_experts(void *self, const struct arch_chunk *c, uint32_t layer)
{
    struct qwen *q = self;
    (void)c;
    moe_predict(&q->moe, &q->layers[layer].moe, q->embed_head.x.address);
}

static void qwen_head(void *self, const struct arch_chunk *c, uint32_t from, uint32_t n)
{
    struct qwen *q = self;
    (void)c;
    embed_head_head(&q->embed_head, q->exec, from, n);
}

const struct arch arch_qwen35moe = {
    .name = "Qwen3.5-MoE",
    .scratch_bytes = qwen_scratch_bytes,
    .open = qwen_open,
    .close = qwen_close,
    .embed = qwen_embed,
    .before_experts = qwen_before_experts,
    .predict_experts = qwen_predict_experts,
    .takes_waves = qwen_takes_waves,
    .experts_up = qwen_experts_up,
    .experts_down = qwen_experts_down,
    .head = qwen_head,
};
