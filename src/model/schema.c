#include "model/schema.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/family.h"

/* Collects items; the first failure sticks. */
struct builder {
    struct schema *out;
    const struct config *c;
    uint32_t layer;
    struct moeflux_err *e;
    int rc;
};

static void add(struct builder *b, const char *name, uint32_t rows, uint32_t cols)
{
    if (b->rc < 0)
        return;
    void *items = b->out->items;
    b->rc = mem_grow(&items, &b->out->cap, b->out->n + 1, sizeof *b->out->items, b->e);
    b->out->items = items;
    if (b->rc < 0)
        return;
    struct schema_item *it = &b->out->items[b->out->n++];
    *it = (struct schema_item){.rows = rows, .cols = cols};
    snprintf(it->name, sizeof it->name, "%s", name);
}

static void in_layer(struct builder *b, const char *name, uint32_t rows, uint32_t cols)
{
    char full[SCHEMA_NAME];
    snprintf(full, sizeof full, "model.layers.%u.%s", b->layer, name);
    add(b, full, rows, cols);
}

static void attention(struct builder *b)
{
    const struct config *c = b->c;
    in_layer(b, "self_attn.q_proj", c->n_heads * (1 + c->attn_gated) * c->head_dim, c->hidden);
    in_layer(b, "self_attn.k_proj", c->n_kv_heads * c->head_dim, c->hidden);
    in_layer(b, "self_attn.v_proj", c->n_kv_heads * c->head_dim, c->hidden);
    in_layer(b, "self_attn.o_proj", c->hidden, c->n_heads * c->head_dim);
    if (c->attn_norm) {
        bool is_one = c->attn_norm == QK_NORM_ALL;
        in_layer(b, "self_attn.q_norm.weight", 0, (is_one ? c->n_heads : 1) * c->head_dim);
        in_layer(b, "self_attn.k_norm.weight", 0, (is_one ? c->n_kv_heads : 1) * c->head_dim);
    }
    if (c->attn_biased) {
        in_layer(b, "self_attn.q_proj.bias", 0, c->n_heads * (1 + c->attn_gated) * c->head_dim);
        in_layer(b, "self_attn.k_proj.bias", 0, c->n_kv_heads * c->head_dim);
        in_layer(b, "self_attn.v_proj.bias", 0, c->n_kv_heads * c->head_dim);
    }
    if (c->attn_out_biased)
        in_layer(b, "self_attn.o_proj.bias", 0, c->hidden);
    if (c->attn_sinks)
        in_layer(b, "self_attn.sinks", 0, c->n_heads);
}

static void delta_net(struct builder *b)
{
    const struct config *c = b->c;
    uint32_t values = c->n_v_heads * c->v_head_dim;
    in_layer(b, "linear_attn.in_proj_qkv", config_conv_dim(c), c->hidden);
    in_layer(b, "linear_attn.in_proj_z", values, c->hidden);
    in_layer(b, "linear_attn.in_proj_b", c->n_v_heads, c->hidden);
    in_layer(b, "linear_attn.in_proj_a", c->n_v_heads, c->hidden);
    in_layer(b, "linear_attn.out_proj", c->hidden, values);
    in_layer(b, "linear_attn.conv1d.weight", 0, config_conv_dim(c) * c->conv_kernel);
    in_layer(b, "linear_attn.A_log", 0, c->n_v_heads);
    in_layer(b, "linear_attn.dt_bias", 0, c->n_v_heads);
    in_layer(b, "linear_attn.norm.weight", 0, c->v_head_dim);
}

static void latent(struct builder *b)
{
    const struct config *c = b->c;
    uint32_t q = c->n_heads * (c->nope_dim + c->rope_dim);
    if (c->q_lora_rank) {
        in_layer(b, "self_attn.q_a_proj", c->q_lora_rank, c->hidden);
        in_layer(b, "self_attn.q_a_layernorm.weight", 0, c->q_lora_rank);
        in_layer(b, "self_attn.q_b_proj", q, c->q_lora_rank);
    } else {
        in_layer(b, "self_attn.q_proj", q, c->hidden);
    }
    in_layer(b, "self_attn.kv_a_proj_with_mqa", c->kv_lora_rank + c->rope_dim, c->hidden);
    in_layer(b, "self_attn.kv_a_layernorm.weight", 0, c->kv_lora_rank);
    if (c->has_kv_b) {
        in_layer(b, "self_attn.kv_b_proj", c->n_heads * (c->nope_dim + c->v_dim), c->kv_lora_rank);
    } else {
        in_layer(b, "self_attn.embed_q", c->n_heads * c->kv_lora_rank, c->nope_dim);
        in_layer(b, "self_attn.unembed_out", c->n_heads * c->v_dim, c->kv_lora_rank);
    }
    in_layer(b, "self_attn.o_proj", c->hidden, c->n_heads * c->v_dim);
}

/* Adds gate, up and down. `where`: the part of the names between "mlp." and the matrix, or NULL. */
static void gated_mlp(struct builder *b, const char *where, uint32_t inner)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        char name[48];
        snprintf(name, sizeof name, "mlp.%s%s%s", where ? where : "", where ? "." : "", parts[i]);
        in_layer(b, name, i < 2 ? inner : b->c->hidden, i < 2 ? b->c->hidden : inner);
    }
}

/* Adds a tensor that only some families have. */
static void in_mlp(struct builder *b, const char *name, uint32_t rows, uint32_t cols)
{
    char full[48];
    if (!name)
        return;
    snprintf(full, sizeof full, "mlp.%s", name);
    in_layer(b, full, rows, cols);
}

static void feed_forward(struct builder *b)
{
    const struct config *c = b->c;
    if (!config_has_experts(c, b->layer)) {
        gated_mlp(b, NULL, c->dense_inner);
        return;
    }
    in_layer(b, "mlp.gate", c->n_experts, c->hidden);
    in_mlp(b, c->family->router_bias, 0, c->n_experts);
    in_mlp(b, c->family->shared_gate, 1, c->hidden);
    if (c->experts_biased) {
        in_layer(b, "mlp.switch_mlp.gate_proj.bias", 0, c->n_experts * c->moe_inner);
        in_layer(b, "mlp.switch_mlp.up_proj.bias", 0, c->n_experts * c->moe_inner);
        in_layer(b, "mlp.switch_mlp.down_proj.bias", 0, c->n_experts * c->hidden);
    }
    if (c->shared_inner)
        gated_mlp(b, c->family->shared, c->shared_inner);
}

int schema_build(struct schema *s, const struct config *c, struct moeflux_err *e)
{
    static void (*const mixers[MIXER_KINDS])(struct builder * b) = {
        [MIXER_DELTA_NET] = delta_net, [MIXER_ATTENTION] = attention, [MIXER_LATENT] = latent};
    *s = (struct schema){0};
    struct builder b = {.out = s, .c = c, .e = e};
    add(&b, "model.embed_tokens", c->vocab_size, c->hidden);
    if (!c->tied)
        add(&b, "lm_head", c->vocab_size, c->hidden);
    add(&b, "model.norm.weight", 0, c->hidden);
    for (; b.layer < c->n_layers; b.layer++) {
        in_layer(&b, "input_layernorm.weight", 0, c->hidden);
        in_layer(&b, "post_attention_layernorm.weight", 0, c->hidden);
        mixers[c->layers[b.layer].mixer](&b);
        feed_forward(&b);
    }
    if (b.rc < 0)
        schema_free(s);
    return b.rc;
}

void schema_free(struct schema *s)
{
    free(s->items);
    *s = (struct schema){0};
}
