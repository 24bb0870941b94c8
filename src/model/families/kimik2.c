/* Kimi-K2: DeepSeek-V3's layers with 384 experts in one group, and a tokenizer in tiktoken's form. */
#include "model/config_parts.h"
#include "model/family.h"

const struct family family_kimik2 = {
    .name = "Kimi-K2",
    .id = 5,
    .types = {"kimi_k2"},
    .read = config_read_latent,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
