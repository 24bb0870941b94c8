/* Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder): grouped-query attention without gates in all
 * layers, experts without a shared expert, dense layers if the configuration lists some. */
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

static void read(struct config *c, struct json_view *v)
{
    struct part_config *mixer = config_add_part(c, PART_ATTENTION);
    config_read_experts(c, v, "num_experts");
    c->router.norm = json_view_bool_or(v, "norm_topk_prob", false);
    mixer->gqa.norm = QK_NORM_HEADS;
    config_expect(v, "use_sliding_window", false);
    config_expect(v, "attention_bias", false);
    config_read_attention(c, v, &mixer->gqa, 1);
    config_read_dense_list(c, v, mixer);
    config_read_rope(c, v, true);
}

const struct family family_qwen3moe = {
    .name = "Qwen3-MoE",
    .id = 2,
    .types = {"qwen3_moe"},
    .chat = "qwen3",
    .read = read,
    .mlx_prefix = "",
    .gate_bits = 8,
};
