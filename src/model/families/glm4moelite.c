/* GLM-4.7-Flash: DeepSeek-V3's layers with the experts in one group and without YaRN. The first layer is
 * dense if the configuration does not say which are. */
#include "model/config_parts.h"
#include "model/family.h"

static void read(struct config *c, struct json_view *v)
{
    c->first_dense = 1;
    config_read_latent(c, v);
}

const struct family family_glm4moelite = {
    .name = "GLM-4.7-Flash",
    .id = 8,
    .types = {"glm4_moe_lite"},
    .read = read,
    .drafter = DRAFTER_AS_NEXTN,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
