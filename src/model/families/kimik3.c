/* Kimi-K3: Kimi Delta Attention whose decays have a lower bound, latent attention without rotary angles whose
 * output has a gate for each channel, experts of a latent with a norm, SiTU in all feed-forward parts, and
 * attention residuals: each sublayer reads a mix of the sums of blocks of layers (ops/streams/streams.h). The
 * first layers are dense. Its vision is left out. */
#include <jansson.h>

#include "args.h"
#include "base/err.h"
#include "base/f16.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* Returns whether the list `key` counts layer i; it counts layers from 1. */
static bool counts(struct json_view *v, const char *key, uint32_t i)
{
    const json_t *list = json_view_array(v, key);
    size_t k = 0, n = json_array_size(list);
    while (k < n && json_integer_value(json_array_get(list, k)) != (json_int_t)i + 1)
        k++;
    return k < n;
}

/* Reads which layers have the delta net. v: linear_attn_config. */
static void read_layers(struct config *c, struct json_view *v, const struct part_config *delta)
{
    bool has_full = json_view_get(v, "full_attn_layers");
    config_need(v, "kda_layers");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        bool is_delta = counts(v, "kda_layers", i), is_full = counts(v, "full_attn_layers", i);
        if (is_delta)
            config_set_mixer(c, i, delta);
        if (v->rc == 0 && has_full && is_delta == is_full)
            v->rc = err_set(v->e, ERR_FORMAT,
                            "%s: linear_attn_config: layer %u is in %s of kda_layers and full_attn_layers, "
                            "expected one",
                            v->where, i + 1, is_full ? "both" : "none");
    }
}

static void read_delta(struct config *c, struct json_view *v, struct part_config *p)
{
    static const char bound[] = "gate_lower_bound";
    struct delta_config *d = &p->delta;
    config_need(v, "linear_attn_config");
    struct json_view linear = {
        .objects = {json_view_object(v, "linear_attn_config")}, .where = v->where, .e = v->e, .rc = v->rc};
    config_need(&linear, "short_conv_kernel_size");
    config_read_kimi_delta(&linear, "num_heads", "head_dim", "short_conv_kernel_size", d);
    d->gate_rank = d->k_head_dim;
    d->z_full = json_view_bool_or(&linear, "use_full_rank_gate", false);
    if (json_view_get(&linear, bound)) {
        d->lower = (float)json_view_real_or(&linear, bound, -1, -1e6, 0);
        if (linear.rc == 0 && d->lower >= 0)
            linear.rc = err_set(v->e, ERR_FORMAT, "%s: %s is 0, expected less", v->where, bound);
    }
    read_layers(c, &linear, p);
    v->rc = linear.rc;
}

/* Returns whether kernels take a factor of SiTU (ops/gating.h). */
static bool takes_factor(double factor)
{
    static const double SMALLEST = 1.0 / (1 << 14), LARGEST = 65472;
    bool is_there = factor >= SMALLEST && factor <= LARGEST;
    uint16_t half = is_there ? f16_from_float((float)factor) : 1;
    return (half & 1) == 0 && (double)f16_to_float(half) == factor;
}

/* Returns a factor of SiTU. fallback: what an absent one is. */
static float read_factor(struct json_view *v, const char *key, double fallback)
{
    double factor = json_view_real_or(v, key, fallback, 0, 1e30);
    if (v->rc == 0 && json_view_get(v, key) && !takes_factor(factor))
        v->rc =
            err_set(v->e, ERR_UNSUPPORTED,
                    "%s: %s is %.9g, expected a number from 2^-14 to 65472 with at most 10 significant bits",
                    v->where, key, factor);
    return (float)factor;
}

/* Reads the blocks of the residual. Null or absent: it is plain. */
static void read_blocks(struct config *c, struct json_view *v)
{
    static const char key[] = "attn_res_block_size";
    c->streams.block = json_view_u32_or(v, key, 0, 1, CONFIG_MAX_LAYERS);
    if (v->rc < 0 || !c->streams.block)
        return;
    c->streams.n = 1 + config_blocks_before(&c->streams, c->n_layers);
    if (c->streams.n > CONFIG_MAX_BLOCK_STREAMS)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %u, %u blocks of %u layers, expected at most %d",
                        v->where, key, c->streams.block, c->streams.n - 1, c->n_layers,
                        CONFIG_MAX_BLOCK_STREAMS - 1);
    config_check_width(c, v, key);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        c->layers[i].blocks[0].mix = "self_attention_res";
        c->layers[i].blocks[1].mix = "mlp_res";
    }
}

static void read_latent_experts(struct config *c, struct json_view *v)
{
    static const char key[] = "routed_expert_hidden_size", norm[] = "latent_moe_use_norm";
    c->moe_latent = json_view_u32_or(v, key, 0, 1, CONFIG_MAX_HIDDEN);
    c->latent_normed = json_view_bool_or(v, norm, false);
    config_check_multiple(v, key, c->moe_latent, PRODUCT_COLS);
    if (v->rc == 0 && c->latent_normed && !c->moe_latent)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is true without %s", v->where, norm, key);
}

static void read(struct config *c, struct json_view *v)
{
    struct part_config *full = config_add_part(c, PART_LATENT), *delta = config_add_part(c, PART_DELTA_NET);
    if (!json_view_get(v, "rms_norm_eps"))
        c->rms_eps = 1e-5f;
    config_need(v, "n_shared_experts");
    config_need(v, "num_experts_per_tok");
    config_need(v, "routed_scaling_factor");
    config_need(v, "first_k_dense_replace");
    config_expect_text(v, "hidden_act", "situ");
    config_expect(v, "mla_use_nope", true);
    config_expect(v, "use_grouped_topk", true);
    config_read_latent_heads(c, v, &full->latent);
    full->latent.gated = full->latent.gates_channels = json_view_bool_or(v, "mla_use_output_gate", false);
    c->ropes[0].none = true;
    config_read_sigmoid_router(c, v);
    config_read_first_dense(c, v, full);
    read_delta(c, v, delta);
    read_latent_experts(c, v);
    c->situ_beta = read_factor(v, "activation_situ_beta", 1);
    c->situ_linear = read_factor(v, "activation_situ_linear_beta", 0);
    read_blocks(c, v);
}

static uint32_t one_block(const struct config *c)
{
    (void)c;
    return 1;
}

static uint32_t rows_of_heads(const struct config *c, uint32_t run)
{
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    (void)run;
    return d->n_k_heads * d->k_head_dim;
}

/* mlx-lm has one matrix of queries, keys and values, and one convolution. */
static const struct fused_matrix fused[] = {
    {".self_attn.qkv_proj",
     {{".self_attn.q_proj", 1}, {".self_attn.k_proj", 1}, {".self_attn.v_proj", 1}},
     one_block,
     rows_of_heads},
    {".self_attn.qkv_conv.conv",
     {{".self_attn.q_conv1d", 1}, {".self_attn.k_conv1d", 1}, {".self_attn.v_conv1d", 1}},
     one_block,
     rows_of_heads},
    {0},
};

/* Names of the checkpoint, then of older ones, then of mlx-lm. */
static const char *const renamed[][2] = {
    {".block_sparse_moe.", ".mlp."},
    {".w1.", ".gate_proj."},
    {".w2.", ".down_proj."},
    {".w3.", ".up_proj."},
    {".mlp.routed_expert_down_proj.", ".mlp.fc1_latent_proj."},
    {".mlp.routed_expert_up_proj.", ".mlp.fc2_latent_proj."},
    {"_res.norm_weight", "_res_norm.weight"},
    {"_res.proj_weight", "_res_proj.weight"},
    {".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
    {0}};

const struct family family_kimik3 = {
    .name = "Kimi-K3",
    .id = 21,
    .types = {"kimi_k3"},
    .act = "situ",
    .chat = "kimi-k3",
    .read = read,
    .drafter = DRAFTER_UNPUBLISHED,
    .renamed = renamed,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .fused = fused,
    .mlx_prefix = "language_model.",
    .pads_decays = true,
    .decays_negated = true,
    .gate_bits = 8,
};
