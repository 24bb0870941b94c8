/* DeepSeek-V3 and models of its shape (Cogito-V2): layers of multi-head latent attention, the first ones followed by a
 * dense feed-forward part, the others by a mixture of experts.
 *
 *   attention:  [q_a, kv_a] = W norm1(x);  q = q_b norm(q_a);  mla;  x += o_proj o           8 dispatches, 5 of mla
 *               without q_a: [q, kv_a] = W norm1(x)                                          one less
 *   dense:      [gate, up] = W norm2(x);  silu(gate) * up;  x += down                        3 dispatches
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
#include "model/rope.h"
#include "ops/linear.h"
#include "ops/mla.h"
#include "ops/swiglu.h"

/* Of the norms inside attention, whatever rms_norm_eps says: the published code leaves them at their class's default. */
static const float LATENT_EPS = 1e-6f;

struct layer {
    uint64_t norm1, q_norm, kv_norm;
    struct linear in;  /* q_a or q, then the latent and the rotary key */
    struct linear q_b; /* of models that have it */
    struct mla_matrices mla;
    struct linear out;
    uint32_t kv_off;             /* bytes of this layer's rows in a KV block */
    struct moe_layer moe;        /* a dense layer has only its norm */
    struct linear gate_up, down; /* dense */
};

struct deepseek {
    struct exec *exec;
    const struct config *config;
    uint32_t max_chunk;
    enum kv_type kv_type;
    bool uses_f16; /* prompts go through float16 */
    struct embed_head embed_head;
    struct layer *layers;
    struct arch_state *states; /* [n_layers] */
    struct mla mla;
    struct swiglu swiglu;
    struct moe moe;
    uint32_t q_rows, kv_at,
        in_rows; /* of all heads' queries; where kv_a stands in the outputs of `in`; all of those */
    struct exec_buffer proj, q, latent, mixed; /* activations; latent: scratch of mla */
    struct exec_buffer gate_up, act;           /* dense */
    struct exec_buffer f16_scratch;            /* inputs of products in float16; absent without them */
};

static const struct moe_names names = {
    .router_bias = "mlp.gate.e_score_correction_bias",
    .shared = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"}};

static uint64_t layer_kv_bytes(const struct deepseek *d)
{
    return ((uint64_t)1 << KV_BLOCK_SHIFT) * (d->config->kv_lora_rank + d->config->rope_dim) *
           kv_type_bytes(d->kv_type);
}

static bool has_dense(const struct config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (!config_has_experts(c, i))
            return true;
    return false;
}

/* ---- opening ---- */

static int load_query(struct deepseek *d, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = d->config;
    struct layer *y = &d->layers[i];
    const struct loader_part in[] = {{c->q_lora_rank ? "self_attn.q_a_proj" : "self_attn.q_proj", d->kv_at},
                                     {"self_attn.kv_a_proj_with_mqa", c->kv_lora_rank + c->rope_dim}};
    const struct loader_part q_b = {"self_attn.q_b_proj", d->q_rows};
    int rc = loader_fused(l, i, in, 2, c->hidden, &y->in, e);
    if (rc == 0 && c->q_lora_rank)
        rc = loader_layer_vector(l, i, "self_attn.q_a_layernorm.weight", c->q_lora_rank, &y->q_norm, e);
    if (rc == 0 && c->q_lora_rank)
        rc = loader_fused(l, i, &q_b, 1, c->q_lora_rank, &y->q_b, e);
    return rc;
}

static struct mla_shape mla_of(const struct deepseek *d)
{
    const struct config *c = d->config;
    return (struct mla_shape){.n_heads = c->n_heads,
                              .nope_dim = c->nope_dim,
                              .rope_dim = c->rope_dim,
                              .latent_dim = c->kv_lora_rank,
                              .v_dim = c->v_dim,
                              .interleaved = c->rope_interleave,
                              .scale = (float)rope_softmax_scale(c),
                              .eps = LATENT_EPS,
                              .kv_type = d->kv_type,
                              .keys_by_rows = c->has_kv_b};
}

/* The matrices of the heads. */
static int load_heads(struct deepseek *d, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = d->config;
    const struct mla_shape shape = mla_of(d);
    const struct loader_part kv_b = {"self_attn.kv_b_proj", c->n_heads * (c->nope_dim + c->v_dim)},
                             embed = {"self_attn.embed_q", c->n_heads * c->kv_lora_rank},
                             unembed = {"self_attn.unembed_out", c->n_heads * c->v_dim};
    struct weights w[2];
    int rc = c->has_kv_b ? loader_parts(l, i, &kv_b, 1, c->kv_lora_rank, w, e)
                         : loader_parts(l, i, &embed, 1, c->nope_dim, w, e);
    if (rc == 0 && !c->has_kv_b)
        rc = loader_parts(l, i, &unembed, 1, c->kv_lora_rank, w + 1, e);
    return rc < 0 ? rc : mla_matrices_open(&d->layers[i].mla, d->exec, &shape, w, e);
}

static int load_attention(struct deepseek *d, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = d->config;
    struct layer *y = &d->layers[i];
    const struct loader_part out = {"self_attn.o_proj", c->hidden};
    int rc = load_query(d, l, i, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "self_attn.kv_a_layernorm.weight", c->kv_lora_rank, &y->kv_norm, e);
    if (rc == 0)
        rc = load_heads(d, l, i, e);
    return rc < 0 ? rc : loader_fused(l, i, &out, 1, c->n_heads * c->v_dim, &y->out, e);
}

static int load_dense(struct deepseek *d, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = d->config;
    const struct loader_part gate_up[] = {{"mlp.gate_proj", c->dense_inner}, {"mlp.up_proj", c->dense_inner}};
    const struct loader_part down = {"mlp.down_proj", c->hidden};
    int rc = loader_fused(l, i, gate_up, 2, c->hidden, &d->layers[i].gate_up, e);
    return rc < 0 ? rc : loader_fused(l, i, &down, 1, c->dense_inner, &d->layers[i].down, e);
}

static int load_layer(struct deepseek *d, struct loader *l, uint32_t i, struct moeflux_err *e)
{
    const struct config *c = d->config;
    struct layer *y = &d->layers[i];
    int rc = loader_layer_vector(l, i, "input_layernorm.weight", c->hidden, &y->norm1, e);
    if (rc == 0)
        rc = loader_layer_vector(l, i, "post_attention_layernorm.weight", c->hidden, &y->moe.norm, e);
    if (rc == 0)
        rc = load_attention(d, l, i, e);
    if (rc < 0)
        return rc;
    return config_has_experts(c, i) ? moe_load_layer(&d->moe, l, i, &names, &y->moe, e)
                                    : load_dense(d, l, i, e);
}

static int open_ops(struct deepseek *d, const struct arch_request *r, struct moeflux_err *e)
{
    const struct config *c = d->config;
    const struct mla_shape mla = mla_of(d);
    const struct router_shape router = {.n_experts = c->n_experts,
                                        .top_k = c->top_k,
                                        .norm = c->norm_topk,
                                        .sigmoid = true,
                                        .n_groups = c->n_group,
                                        .keep_groups = c->topk_group,
                                        .scale = c->routed_scaling};
    int rc = mla_open(&d->mla, d->exec, &mla, d->latent.address, e);
    if (rc == 0)
        rc = swiglu_open(&d->swiglu, d->exec, e);
    return rc < 0 ? rc : moe_open(&d->moe, r, &router, e);
}

/* Of the products that may go through float16. */
static uint64_t widest_input(const struct config *c)
{
    uint64_t outer = size_max(c->hidden, (uint64_t)c->n_heads * c->v_dim);
    return size_max(size_max(outer, c->q_lora_rank), size_max(c->dense_inner, c->shared_inner));
}

/* Sets the rows of the products, too. */
static void allocate(struct deepseek *d, const struct exec_caps *caps, struct scratch *to)
{
    const struct config *c = d->config;
    const struct mla_shape mla = mla_of(d);
    uint64_t n = d->max_chunk;
    d->q_rows = c->n_heads * (c->nope_dim + c->rope_dim);
    d->kv_at = c->q_lora_rank ? c->q_lora_rank : d->q_rows;
    d->in_rows = d->kv_at + c->kv_lora_rank + c->rope_dim;
    scratch_floats(to, &d->proj, n * d->in_rows);
    if (c->q_lora_rank)
        scratch_floats(to, &d->q, n * d->q_rows);
    scratch_floats(to, &d->latent,
                   mla_scratch_bytes(&mla, caps, d->max_chunk, config_longest_context(c)) / sizeof(float));
    scratch_floats(to, &d->mixed, n * c->n_heads * c->v_dim);
    if (has_dense(c)) {
        scratch_floats(to, &d->gate_up, 2 * n * c->dense_inner);
        scratch_floats(to, &d->act, n * c->dense_inner);
    }
    if (d->uses_f16)
        scratch_floats(to, &d->f16_scratch, n * widest_input(c) / 2);
    d->moe.f16_scratch = d->f16_scratch.address;
    embed_head_allocate(&d->embed_head, c, d->max_chunk, to);
    moe_allocate(&d->moe, c, caps, false, d->max_chunk, to);
}

static uint64_t deepseek_scratch_bytes(const struct config *c, const struct exec_caps *caps,
                                       uint32_t max_chunk)
{
    struct deepseek d = {.config = c, .max_chunk = max_chunk, .uses_f16 = caps->has_coopmat};
    struct scratch count = {0};
    allocate(&d, caps, &count);
    return count.bytes;
}

static void deepseek_close(void *self)
{
    struct deepseek *d = self;
    if (!d)
        return;
    struct exec_buffer *buffers[] = {&d->proj,    &d->q,   &d->latent,     &d->mixed,
                                     &d->gate_up, &d->act, &d->f16_scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(d->exec, buffers[i]);
    for (uint32_t i = 0; d->layers && i < d->config->n_layers; i++) {
        struct layer *y = &d->layers[i];
        struct linear *products[] = {&y->in, &y->q_b, &y->out, &y->gate_up, &y->down};
        for (size_t j = 0; j < sizeof products / sizeof *products; j++)
            linear_close(products[j], d->exec);
        mla_matrices_close(&y->mla, d->exec);
        moe_close_layer(&y->moe, d->exec);
    }
    mla_close(&d->mla, d->exec);
    embed_head_close(&d->embed_head, d->exec);
    moe_close(&d->moe);
    free(d->layers);
    free(d->states);
    free(d);
}

/* A row is a latent with its rotary key behind it. */
static struct arch_state state_at(const struct deepseek *d, uint64_t off)
{
    uint32_t number = kv_type_bytes(d->kv_type), rank = d->config->kv_lora_rank, rope = d->config->rope_dim;
    uint32_t stride = (rank + rope) * number;
    return (struct arch_state){.rows = {{.off = off, .stride = stride, .n = rank},
                                        {.off = off + (uint64_t)rank * number, .stride = stride, .n = rope}}};
}

static void show(struct deepseek *d, uint64_t scratch_bytes, struct arch_view *view)
{
    for (uint32_t i = 0; i < d->config->n_layers; i++) {
        d->layers[i].kv_off = (uint32_t)view->kv_block_bytes;
        d->states[i] = state_at(d, view->kv_block_bytes);
        view->kv_block_bytes += layer_kv_bytes(d);
    }
    view->states = d->states;
    view->scratch_bytes = scratch_bytes;
    view->max_context = config_longest_context(d->config);
    view->x = d->embed_head.x;
    view->logits = d->embed_head.logits;
    moe_show(&d->moe, view);
}

static int deepseek_open(void **self, const struct arch_request *r, struct arch_view *view,
                         struct moeflux_err *e)
{
    *self = NULL;
    *view = (struct arch_view){0};
    struct deepseek *d = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->exec = d->moe.exec = r->exec;
    d->config = r->config;
    d->max_chunk = r->max_chunk;
    d->kv_type = r->kv_type;
    d->uses_f16 = exec_get_caps(r->exec).has_coopmat;
    d->layers = mem_new(r->config->n_layers, sizeof *d->layers, e);
    d->states = mem_new(r->config->n_layers, sizeof *d->states, e);
    struct exec_caps caps = exec_get_caps(r->exec);
    struct scratch made = {.exec = r->exec, .e = e};
    int rc = d->layers && d->states ? 0 : ERR_MEMORY;
    if (rc == 0) {
        allocate(d, &caps, &made);
        rc = made.rc;
    }
    if (rc == 0)
        rc = embed_head_load(&d->embed_head, r->loader, r->config, e);
    for (uint32_t i = 0; rc == 0 && i < r->config->n_layers; i++)
        rc = load_layer(d, r->loader, i, e);
    if (rc == 0)
        rc = loader_finish(r->loader, e);
    if (rc == 0)
        rc = open_ops(d, r, e);
    if (rc < 0) {
        deepseek_close(d);
        return rc;
    }
    show(d, made.bytes, view);
    *self = d;
    return 0;
}

/* ---- running ---- */

static void deepseek_embed(void *self, const struct arch_chunk *c)
{
    struct deepseek *d = self;
    embed_head_embed(&d->embed_head, d->exec, c);
}

/* The queries of all heads; returns where they are, *stride floats apart. */
static uint64_t run_query(struct deepseek *d, const struct layer *y, uint32_t n, uint32_t *stride)
{
    linear_run(&y->in, d->exec,
               &(struct linear_call){.x = d->embed_head.x.address,
                                     .norm = y->norm1,
                                     .y = d->proj.address,
                                     .x_stride = d->config->hidden,
                                     .y_stride = d->in_rows,
                                     .n = n,
                                     .eps = d->config->rms_eps,
                                     .f16_scratch = d->f16_scratch.address});
    *stride = d->in_rows;
    if (!d->config->q_lora_rank)
        return d->proj.address;
    linear_run(&y->q_b, d->exec,
               &(struct linear_call){.x = d->proj.address,
                                     .norm = y->q_norm,
                                     .y = d->q.address,
                                     .x_stride = d->in_rows,
                                     .y_stride = d->q_rows,
                                     .n = n,
                                     .eps = LATENT_EPS,
                                     .f16_scratch = d->f16_scratch.address});
    *stride = d->q_rows;
    return d->q.address;
}

static void run_attention(struct deepseek *d, const struct layer *y, const struct arch_chunk *c)
{
    uint32_t stride;
    uint64_t q = run_query(d, y, c->n, &stride);
    mla_run(&d->mla, d->exec,
            &(struct mla_call){.q = q,
                               .kv = d->proj.address,
                               .norm = y->kv_norm,
                               .rope = c->rope,
                               .blocks = c->kv_blocks,
                               .matrices = &y->mla,
                               .dst = d->mixed.address,
                               .use_f16 = d->uses_f16,
                               .n = c->n,
                               .pos = c->pos,
                               .q_stride = stride,
                               .kv_stride = d->in_rows,
                               .kv_at = d->kv_at,
                               .layer_off = y->kv_off});
    linear_run(&y->out, d->exec,
               &(struct linear_call){.x = d->mixed.address,
                                     .y = d->embed_head.x.address,
                                     .x_stride = y->out.cols,
                                     .y_stride = d->config->hidden,
                                     .n = c->n,
                                     .add = true,
                                     .f16_scratch = d->f16_scratch.address});
}

static void run_dense(struct deepseek *d, const struct layer *y, uint32_t n)
{
    uint32_t inner = d->config->dense_inner;
    linear_run(&y->gate_up, d->exec,
               &(struct linear_call){.x = d->embed_head.x.address,
                                     .norm = y->moe.norm,
                                     .y = d->gate_up.address,
                                     .x_stride = d->config->hidden,
                                     .y_stride = 2 * inner,
                                     .n = n,
                                     .eps = d->config->rms_eps,
                                     .f16_scratch = d->f16_scratch.address});
    swiglu_run(
        &d->swiglu, d->exec,
        &(struct swiglu_call){.src = d->gate_up.address, .dst = d->act.address, .n = n, .inner = inner});
    linear_run(&y->down, d->exec,
               &(struct linear_call){.x = d->act.address,
                                     .y = d->embed_head.x.address,
                                     .x_stride = inner,
                                     .y_stride = d->config->hidden,
                                     .n = n,
                                     .add = true,
                                     .f16_scratch = d->f16_scratch.address});
}

static void deepseek_before_experts(void *self, const struct arch_chunk *c, uint32_t layer)
{
    struct deepseek *d = self;
    const struct layer *y = &d->layers[layer];
    run_attention(d, y, c);
    if (config_has_experts(d->config, layer))
        moe_route(&d->moe, &y->moe, d->embed_head.x.address, c->n);
    else
        run_dense(d, y, c->n);
}

static void deepseek_predict_experts(void *self, const struct arch_chunk *c, uint32_t layer)
{
    struct deepseek *d = self;
    (void)c;
    moe_predict(&d->moe, &d->layers[layer].moe, d->embed_head.x.address);
}

static bool deepseek_takes_waves(void *self, uint32_t n)
{
    const struct deepseek *d = self;
    return experts_takes_waves(&d->moe.experts, n);
}

static void deepseek_experts_up(void *self, const struct arch_chunk *c, const struct arch_experts *x)
{
    struct deepseek *d = self;
    moe_up(&d->moe, &d->layers[x->layer].moe, d->embed_head.x.address, c->n, x);
}

static void deepseek_experts_down(void *self, const struct arch_chunk *c, const struct arch_experts *x)
{
    struct deepseek *d = self;
    moe_down(&d->moe, &d->layers[x->layer].moe, d->embed_head.x.address, c->n, x);
}

static void deepseek_head(void *self, const struct arch_chunk *c, uint32_t from, uint32_t n)
{
    struct deepseek *d = self;
    (void)c;
    embed_head_head(&d->embed_head, d->exec, from, n);
}

const struct arch arch_deepseek3 = {
    .name = "DeepSeek-V3",
    .scratch_bytes = deepseek_scratch_bytes,
    .open = deepseek_open,
    .close = deepseek_close,
    .embed = deepseek_embed,
    .before_experts = deepseek_before_experts,
    .predict_experts = deepseek_predict_experts,
    .takes_waves = deepseek_takes_waves,
    .experts_up = deepseek_experts_up,
    .experts_down = deepseek_experts_down,
    .head = deepseek_head,
};
