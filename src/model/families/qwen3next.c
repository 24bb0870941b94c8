/* Qwen3-Next: as Qwen3.5-MoE, but its files store the delta net's input projections as two fused matrices.
 * Each key head has a block of rows: in the first its query, its key, its value heads' values and their gates
 * z; in the second its value heads' rates b, then a. */
#include "model/config_parts.h"
#include "model/family.h"

static uint32_t key_heads(const struct config *c)
{
    return config_first(c, PART_DELTA_NET)->delta.n_k_heads;
}

static uint32_t ba_rows(const struct config *c, uint32_t run)
{
    (void)run;
    return config_first(c, PART_DELTA_NET)->delta.n_v_heads / key_heads(c);
}

static uint32_t qkvz_rows(const struct config *c, uint32_t run)
{
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    return run < 2 ? d->k_head_dim : ba_rows(c, run) * d->v_head_dim;
}

static const struct fused_matrix fused[] = {
    {".linear_attn.in_proj_qkvz",
     {{".linear_attn.in_proj_qkv", 3}, {".linear_attn.in_proj_z", 1}},
     key_heads,
     qkvz_rows},
    {".linear_attn.in_proj_ba",
     {{".linear_attn.in_proj_b", 1}, {".linear_attn.in_proj_a", 1}},
     key_heads,
     ba_rows},
    {0},
};

const struct family family_qwen3next = {
    .name = "Qwen3-Next",
    .id = 4,
    .types = {"qwen3_next"},
    .chat = "qwen3",
    .read = config_read_hybrid,
    .shared_gate = "shared_expert_gate",
    .shared = "shared_expert",
    .fused = fused,
    .mlx_prefix = "",
    .norms_less_one = true,
    .gate_bits = 8,
};
