/* MiniMax-M2: grouped-query attention with one norm over all heads' queries and one over all keys; experts
 * with a biased router in all layers, no shared expert. Earlier models of this name have linear attention and
 * are refused. */
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "model/names.h"

static void read(struct config *c, struct json_view *v)
{
    struct part_config *mixer = config_add_part(c, PART_ATTENTION);
    c->router.sigmoid = true;
    c->router.n_groups = c->router.keep_groups = 1;
    config_read_experts(c, v, "num_local_experts");
    config_expect_text(v, "scoring_func", "sigmoid");
    mixer->gqa.norm = QK_NORM_ALL;
    config_set_layers(c, (const struct part_config *const[]){mixer}, 1);
    /* Exports have one list of the layers' attention, the other or neither. */
    config_expect_ones(v, "attn_type_list");
    config_read_layer_types(c, v, &(struct config_layer_type){"full_attention", mixer}, 1);
    config_expect(v, "use_qk_norm", true);
    config_expect(v, "attention_bias", false);
    config_read_attention(c, v, &mixer->gqa, 0.5);
    config_read_rotary_dim(c, v, &mixer->gqa);
    config_read_rope(c, v, true);
}

const struct family family_minimaxm2 = {
    .name = "MiniMax-M2",
    .id = 6,
    .types = {"minimax_m2", "minimax"},
    .read = read,
    .drafter = DRAFTER_UNPUBLISHED,
    .inner_key = "intermediate_size",
    .renamed = names_of_mixtral,
    .router_bias = "e_score_correction_bias",
    .mlx_prefix = "",
    .gate_bits = 8,
};
