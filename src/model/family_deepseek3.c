/* DeepSeek-V3 and models of its shape (Cogito-V2): latent attention in all layers, the first of which are dense; experts in
 * groups, of which a biased router chooses, and shared ones beside them. */
#include <string.h>

#include "base/err.h"
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "base/json.h"

static int check_groups(const struct config *c, const struct json_view *v)
{
    uint32_t per_group = c->n_experts / c->n_group;
    if (c->n_group > 1 && per_group < 2)
        return err_set(v->e, ERR_FORMAT, "%s: n_group is %u of %u experts, expected groups of at least 2",
                       v->where, c->n_group, c->n_experts);
    if (c->topk_group > c->n_group)
        return err_set(v->e, ERR_FORMAT, "%s: topk_group is %u, expected at most n_group = %u", v->where,
                       c->topk_group, c->n_group);
    if (c->top_k > (uint64_t)c->topk_group * per_group)
        return err_set(v->e, ERR_FORMAT,
                       "%s: num_experts_per_tok is %u, expected at most %u (%u groups of %u)", v->where,
                       c->top_k, c->topk_group * per_group, c->topk_group, per_group);
    return 0;
}

static int read_router(struct config *c, struct json_view *v)
{
    c->sigmoid = true;
    c->n_experts = json_view_u32(v, "n_routed_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, "num_experts_per_tok", 1, CONFIG_MAX_EXPERTS);
    c->n_group = json_view_u32_or(v, "n_group", 1, 1, CONFIG_MAX_EXPERTS);
    c->topk_group = json_view_u32_or(v, "topk_group", 1, 1, CONFIG_MAX_EXPERTS);
    c->routed_scaling = (float)json_view_real_or(v, "routed_scaling_factor", 1, 1e-6, 1e6);
    const char *method = json_view_text_or(v, "topk_method", "noaux_tc");
    const char *scoring = json_view_text_or(v, "scoring_func", "sigmoid");
    if (v->rc < 0)
        return v->rc;
    if (strcmp(method, "noaux_tc") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: topk_method is %s, expected noaux_tc", v->where, method);
    if (strcmp(scoring, "sigmoid") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: scoring_func is %s, expected sigmoid", v->where, scoring);
    const struct config_multiple experts = {"n_routed_experts", c->n_experts, c->n_group};
    int rc = config_check_multiples(&experts, 1, v);
    return rc < 0 ? rc : check_groups(c, v);
}

static int read_layers(struct config *c, struct json_view *v)
{
    uint32_t n_shared = json_view_u32_or(v, "n_shared_experts", 1, 1, CONFIG_MAX_SHARED);
    c->shared_inner = c->moe_inner * n_shared;
    c->first_dense = json_view_u32_or(v, "first_k_dense_replace", 0, 0, CONFIG_MAX_LAYERS);
    c->moe_freq = json_view_u32_or(v, "moe_layer_freq", 1, 1, CONFIG_MAX_LAYERS);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        c->layers[i] = (struct config_layer){MIXER_LATENT, i >= c->first_dense && i % c->moe_freq == 0};
    return v->rc < 0 ? v->rc : config_read_dense(c, v);
}

static int read(struct config *c, struct json_view *v)
{
    c->q_lora_rank = json_view_u32_or(v, "q_lora_rank", 0, 1, CONFIG_MAX_RANK);
    c->kv_lora_rank = json_view_u32(v, "kv_lora_rank", 1, CONFIG_MAX_RANK);
    c->nope_dim = json_view_u32(v, "qk_nope_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    c->rope_dim = json_view_u32(v, "qk_rope_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    c->v_dim = json_view_u32(v, "v_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    c->rope_interleave = json_view_bool_or(v, "rope_interleave", true);
    c->rotary_dim = c->rope_dim;
    const struct config_multiple multiples[] = {
        {"qk_nope_head_dim", c->nope_dim, CONFIG_FOUR},
        {"qk_rope_head_dim", c->rope_dim, CONFIG_FOUR},
        {"kv_lora_rank", c->kv_lora_rank, CONFIG_FOUR},
    };
    int rc = v->rc < 0 ? v->rc : config_check_multiples(multiples, 3, v);
    if (rc == 0)
        rc = config_expect_empty(v, "mlp_only_layers");
    if (rc == 0)
        rc = read_router(c, v);
    if (rc == 0)
        rc = read_layers(c, v);
    return rc < 0 ? rc : config_read_rope(c, v, true);
}

const struct family family_deepseek3 = {
    .name = "DeepSeek-V3",
    .id = 1,
    .types = {"deepseek_v3"},
    .own_key = "kv_lora_rank",
    .read = read,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
