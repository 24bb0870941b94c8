/* Qwen3.5-MoE: gated grouped-query attention in every n-th layer, delta net in the others; experts and a
 * shared expert in all layers. */
#include <jansson.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "base/json.h"

static int read_layer_types(struct config *c, struct json_view *v, const json_t *types)
{
    if (json_array_size(types) != c->n_layers)
        return err_set(v->e, ERR_FORMAT, "%s: layer_types has %zu entries, expected %u (num_hidden_layers)",
                       v->where, json_array_size(types), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && !strcmp(type, "full_attention"))
            c->layers[i].mixer = MIXER_ATTENTION;
        else if (type && !strcmp(type, "linear_attention"))
            c->layers[i].mixer = MIXER_DELTA_NET;
        else
            return err_set(v->e, ERR_UNSUPPORTED,
                           "%s: layer_types[%u] is %s, expected linear_attention or full_attention", v->where,
                           i, type ? type : "no string");
    }
    return 0;
}

static int read_layers(struct config *c, struct json_view *v)
{
    uint32_t every = json_view_u32_or(v, "full_attention_interval", 4, 1, CONFIG_MAX_LAYERS);
    const json_t *types = json_view_array(v, "layer_types");
    if (v->rc < 0)
        return v->rc;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i] =
            (struct config_layer){(i + 1) % every == 0 ? MIXER_ATTENTION : MIXER_DELTA_NET, true, false};
    return types ? read_layer_types(c, v, types) : 0;
}

static int check(const struct config *c, const struct json_view *v)
{
    const struct config_multiple multiples[] = {
        {"linear_num_value_heads", c->n_v_heads, c->n_k_heads},
        {"shared_expert_intermediate_size", c->shared_inner, PRODUCT_COLS},
    };
    return config_check_multiples(multiples, sizeof multiples / sizeof *multiples, v);
}

int config_read_hybrid(struct config *c, struct json_view *v)
{
    c->attn_gated = true;
    c->attn_norm = QK_NORM_HEADS;
    c->n_k_heads = json_view_u32(v, "linear_num_key_heads", 1, CONFIG_MAX_HEADS);
    c->n_v_heads = json_view_u32(v, "linear_num_value_heads", 1, CONFIG_MAX_HEADS);
    c->k_head_dim = json_view_u32(v, "linear_key_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    c->v_head_dim = json_view_u32(v, "linear_value_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    c->conv_kernel = json_view_u32_or(v, "linear_conv_kernel_dim", 4, 2, CONFIG_MAX_CONV);
    c->n_experts = json_view_u32(v, "num_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, "num_experts_per_tok", 1, CONFIG_MAX_EXPERTS);
    c->shared_inner = json_view_u32(v, "shared_expert_intermediate_size", 1, CONFIG_MAX_INNER);
    json_view_u32_or(v, "decoder_sparse_step", 1, 1, 1);
    int rc = v->rc < 0 ? v->rc : config_expect(v, "attn_output_gate", true);
    if (rc == 0)
        rc = config_expect(v, "attention_bias", false);
    if (rc == 0)
        rc = config_expect_empty(v, "mlp_only_layers");
    if (rc == 0)
        rc = config_read_attention(c, v, 0.25);
    if (rc == 0)
        rc = check(c, v);
    if (rc == 0)
        rc = read_layers(c, v);
    return rc < 0 ? rc : config_read_rope(c, v, true);
}

const struct family family_qwen35moe = {
    .name = "Qwen3.5-MoE",
    .id = 0,
    .types = {"qwen3_5_moe", "qwen3_5_moe_text"},
    .own_key = "linear_num_value_heads",
    .chat = "qwen3.5",
    .read = config_read_hybrid,
    .shared_gate = "shared_expert_gate",
    .shared = "shared_expert",
    .mlx_prefix = "language_model.",
    .norms_less_one = true,
    .gate_bits = 8,
};
