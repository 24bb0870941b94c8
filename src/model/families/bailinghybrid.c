/* Ling-3.0: Kimi Delta Attention whose decays have a lower bound, and gated latent attention in the last
 * layer of each group; the first layers are dense; experts in groups with a biased router, and a shared
 * expert, whose activations are clamped in some layers. Ling-2.6 has the same model_type and is refused. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* Checks `architectures`: what publishers write, or transformers. */
static void check_architecture(struct json_view *v)
{
    const char *name = json_string_value(json_array_get(json_view_array(v, "architectures"), 0));
    if (v->rc == 0 &&
        (!name || (strncmp(name, "BailingMoeV3", 12) != 0 && strcmp(name, "BailingHybridForCausalLM") != 0)))
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: architectures is %s, expected BailingMoeV3ForCausalLM",
                        v->where, name ? name : "missing");
}

/* Reads what has to have one value, or has to be there because its default depends on the reader. */
static void check_keys(struct json_view *v)
{
    static const char *const needed[] = {"n_group", "topk_group", "routed_scaling_factor", "n_shared_experts",
                                         "rope_theta"};
    static const char *const off[] = {"use_kda_lora", "use_mla_nope", "use_bias",
                                      "use_qkv_bias", "value_norm",   "up_proj_norm"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        config_need(v, needed[i]);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        config_expect(v, off[i], false);
    config_expect(v, "no_kda_lora", true);
    config_expect(v, "moe_router_enable_expert_bias", true);
    config_expect_text(v, "score_function", "sigmoid");
    config_expect_text(v, "gated_attention_proj_granularity_type", "head_wise");
    if (!json_view_get(v, "mlp_layer_types"))
        config_need(v, "first_k_dense_replace");
}

static void read_bound(struct json_view *v, struct delta_config *d)
{
    bool is_safe = json_view_bool_or(v, "kda_safe_gate", true);
    double bound = json_view_real_or(v, "kda_lower_bound", -5, -1e6, 0);
    d->lower = is_safe ? (float)bound : 0;
    if (v->rc == 0 && is_safe && d->lower >= 0)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: kda_lower_bound is %g, expected less than 0", v->where, bound);
}

/* Reads which layers have the delta net: all but the last of each group, and but an incomplete group. */
static void read_layers(struct config *c, struct json_view *v, const struct part_config *full,
                        const struct part_config *delta)
{
    const struct config_layer_type types[] = {{"linear_attention", delta}, {"full_attention", full}};
    if (!json_view_get(v, "layer_types")) {
        uint32_t group = json_view_u32(v, "layer_group_size", 1, CONFIG_MAX_LAYERS);
        for (uint32_t i = 0; v->rc == 0 && i < c->n_layers / group * group; i++)
            if ((i + 1) % group != 0)
                config_set_mixer(c, i, delta);
    }
    config_read_layer_types(c, v, types, 2);
}

static void read(struct config *c, struct json_view *v)
{
    struct part_config *full = config_add_part(c, PART_LATENT), *delta = config_add_part(c, PART_DELTA_NET);
    check_architecture(v);
    check_keys(v);
    config_read_latent_heads(c, v, &full->latent);
    full->latent.gated = true;
    config_read_sigmoid_router(c, v);
    config_read_first_dense(c, v, full);
    /* transformers writes its own head_dim, that of the rotated channels. */
    const char *dim = json_view_get(v, "linear_head_dim") ? "linear_head_dim" : "head_dim";
    config_read_kimi_delta(v, "num_attention_heads", dim, "short_conv_kernel_size", &delta->delta);
    read_bound(v, &delta->delta);
    read_layers(c, v, full, delta);
    config_read_clamps(c, v, "expert_swiglu_limit_list", "share_expert_swiglu_limit_list");
    config_read_rope(c, v, true);
}

static const char *const renamed[][2] = {{".attention.dense.", ".self_attn.o_proj."},
                                         {".attention.", ".self_attn."},
                                         {".word_embeddings.", ".embed_tokens."},
                                         {0}};

const struct family family_bailinghybrid = {
    .name = "Ling-3.0",
    .id = 13,
    .types = {"bailing_hybrid"},
    .read = read,
    .drafter = DRAFTER_AS_NEXTN,
    .renamed = renamed,
    .router_bias = "gate.expert_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
