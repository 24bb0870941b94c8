/* DeepSeek-V3 and models of its shape (Cogito-V2, JoyAI-LLM-Flash): latent attention in all layers, of which
 * the first are dense; experts in groups with a biased router, and shared experts. */
#include "model/config_parts.h"
#include "model/family.h"

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
