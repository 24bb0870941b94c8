/* DeepSeek-V3 and models of its shape (Cogito-V2, JoyAI-LLM-Flash): latent attention in all layers, of which
 * the first are dense; experts in groups with a biased router, and shared experts. */
#include <stddef.h>

#include "model/config_parts.h"
#include "model/family.h"

static void read(struct config *c, struct json_view *v)
{
    static const char *const needed[] = {"n_group", "topk_group", "routed_scaling_factor",
                                         "first_k_dense_replace"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        config_need(v, needed[i]); /* its default depends on the reader */
    config_read_latent(c, v);
}

/* Keys of GLM-5, DeepSeek-V3.2 and the families with Kimi Delta Attention. */
static const char *const not_keys[] = {"index_topk", "linear_attn_config", "linear_num_heads",
                                       "kda_lower_bound", NULL};

const struct family family_deepseek3 = {
    .name = "DeepSeek-V3",
    .id = 1,
    .types = {"deepseek_v3", "joyai_llm_flash"},
    .own_key = "kv_lora_rank",
    .not_keys = not_keys,
    .read = read,
    .drafter = DRAFTER_AS_NEXTN,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
