/* DeepSeek-V3 and models of its shape (Cogito-V2, JoyAI-LLM-Flash): latent attention in all layers, of which
 * the first are dense; experts in groups with a biased router, and shared experts. */
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "base/json.h"

int config_read_latent(struct config *c, struct json_view *v)
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
        rc = config_expect(v, "attention_bias", false);
    if (rc == 0)
        rc = config_read_sigmoid_router(c, v);
    if (rc == 0)
        rc = config_read_first_dense(c, v, MIXER_LATENT);
    return rc < 0 ? rc : config_read_rope(c, v, true);
}

const struct family family_deepseek3 = {
    .name = "DeepSeek-V3",
    .id = 1,
    .types = {"deepseek_v3", "joyai_llm_flash"},
    .own_key = "kv_lora_rank",
    .read = config_read_latent,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
