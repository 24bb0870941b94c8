/* GLM-5 to 5.3 and DeepSeek-V3.2: DeepSeek-V3's layers, with an indexer of single tokens in attention. From
 * GLM-5.2 on some layers use the choice of a layer before them. */
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* Their checkpoints' names, where Qwen3.8's differ. */
static const char *const renamed[][2] = {{".indexer.k_norm.", ".indexer.k_layernorm."}, {0}};

static void read_glm(struct config *c, struct json_view *v)
{
    const struct index_config x = {.n_heads = 32, .interleaved = true};
    if (!json_view_get(v, "rms_norm_eps"))
        c->rms_eps = 1e-5f;
    c->first_dense = 3;
    c->router.scale = 2.5f;
    config_read_indexed_latent(c, v, &x);
}

static void read_deepseek(struct config *c, struct json_view *v)
{
    const struct index_config x = {.n_heads = 64};
    c->first_dense = 3;
    c->router.scale = 2.5f;
    c->router.n_groups = 8;
    c->router.keep_groups = 4;
    config_read_indexed_latent(c, v, &x);
}

const struct family family_glmdsa = {
    .name = "GLM-5",
    .id = 11,
    .types = {"glm_moe_dsa"},
    .read = read_glm,
    .drafter = DRAFTER_AS_NEXTN,
    .renamed = renamed,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};

const struct family family_deepseek32 = {
    .name = "DeepSeek-V3.2",
    .id = 14,
    .types = {"deepseek_v32"},
    .chat = "deepseek-v3.2",
    .read = read_deepseek,
    .drafter = DRAFTER_AS_NEXTN,
    .renamed = renamed,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
