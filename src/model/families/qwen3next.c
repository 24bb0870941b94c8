/* Qwen3-Next: as Qwen3.5-MoE, but its files store the delta net's input projections as two fused matrices. */
#include "model/config_parts.h"
#include "model/family.h"
#include "model/part_tensors.h"

const struct family family_qwen3next = {
    .name = "Qwen3-Next",
    .id = 4,
    .types = {"qwen3_next"},
    .chat = "qwen3",
    .read = config_read_hybrid,
    .drafter = DRAFTER_AS_MTP,
    .shared_gate = "shared_expert_gate",
    .shared = "shared_expert",
    .fused = part_fused_delta_net,
    .mlx_prefix = "",
    .norms_less_one = true,
    .gate_bits = 8,
};
