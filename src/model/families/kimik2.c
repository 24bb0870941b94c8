/* Kimi-K2 and K2.5 to 2.7: DeepSeek-V3's layers with 384 experts in one group, and a tokenizer in tiktoken's
 * form. Those from K2.5 on are the text model of a larger one. */
#include "model/config_parts.h"
#include "model/family.h"

const struct family family_kimik2 = {
    .name = "Kimi-K2",
    .id = 5,
    .types = {"kimi_k2", "kimi_k25"},
    .read = config_read_latent,
    .drafter = DRAFTER_UNPUBLISHED,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
