/* Qwen3.5-MoE: gated grouped-query attention in every n-th layer, delta net in the others; experts and a
 * shared expert in all layers. */
#include <stddef.h>

#include "model/config_parts.h"
#include "model/family.h"

/* A key of Qwen3.8, which has own_key, too. */
static const char *const not_keys[] = {"hc_lowrank", NULL};

const struct family family_qwen35moe = {
    .name = "Qwen3.5-MoE",
    .id = 0,
    .types = {"qwen3_5_moe", "qwen3_5_moe_text"},
    .own_key = "linear_num_value_heads",
    .not_keys = not_keys,
    .chat = "qwen3.5",
    .read = config_read_hybrid,
    .drafter = DRAFTER_AS_MTP,
    .shared_gate = "shared_expert_gate",
    .shared = "shared_expert",
    .mlx_prefix = "language_model.",
    .norms_less_one = true,
    .gate_bits = 8,
};
