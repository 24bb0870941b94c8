/* GLM-4.5 and GLM-4.6: grouped-query attention without gates in all layers, with biases and, in the larger
 * models, norms of queries and keys. The first layers are dense; the others have experts with a biased router
 * and a shared expert. */
#include <stddef.h>

#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

static void read(struct config *c, struct json_view *v)
{
    struct part_config *mixer = config_add_part(c, PART_ATTENTION);
    mixer->gqa.norm = json_view_bool_or(v, "use_qk_norm", false) ? QK_NORM_HEADS : QK_NORM_NONE;
    mixer->gqa.biased = json_view_bool_or(v, "attention_bias", false);
    config_read_attention(c, v, &mixer->gqa, 0.5);
    config_read_sigmoid_router(c, v);
    config_read_first_dense(c, v, mixer);
    config_read_rope(c, v, false);
}

/* Keys of MiniMax, Step and Ling, which have own_key, too. */
static const char *const not_keys[] = {"num_local_experts", "moe_num_experts", "share_expert_dim",
                                       "kv_lora_rank", NULL};

const struct family family_glm4moe = {
    .name = "GLM-4.5",
    .id = 3,
    .types = {"glm4_moe"},
    .own_key = "use_qk_norm",
    .not_keys = not_keys,
    .read = read,
    .drafter = DRAFTER_AS_NEXTN,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
