/* Kimi-Linear: Kimi Delta Attention, and latent attention without rotary angles in some layers; the first
 * layers are dense; experts with a biased router and a shared expert (arXiv 2510.26692). */
#include <jansson.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* Counts layer i in the list `key`, which counts layers from 1. */
static uint32_t count_layer(struct json_view *v, const char *key, uint32_t i)
{
    const json_t *list = json_view_array(v, key);
    uint32_t n = 0;
    for (size_t k = 0; k < json_array_size(list); k++)
        n += json_integer_value(json_array_get(list, k)) == (json_int_t)i + 1;
    return n;
}

/* Reads the lists of layers. v: linear_attn_config. */
static void read_lists(struct config *c, struct json_view *v, const struct part_config *delta)
{
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        uint32_t n_delta = count_layer(v, "kda_layers", i), n_full = count_layer(v, "full_attn_layers", i);
        if (n_delta)
            config_set_mixer(c, i, delta);
        if (v->rc == 0 && n_delta + n_full != 1)
            v->rc =
                err_set(v->e, ERR_FORMAT,
                        "%s: linear_attn_config: layer %u is in kda_layers and full_attn_layers %u times, "
                        "expected once",
                        v->where, i + 1, n_delta + n_full);
    }
}

/* Reads the delta net, and which layers have it. transformers writes linear_attn_config as flat keys. */
static void read_delta(struct config *c, struct json_view *v, const struct part_config *full,
                       struct part_config *delta)
{
    bool has_types = json_view_get(v, "layer_types");
    if (!has_types)
        config_need(v, "linear_attn_config");
    const json_t *object = json_view_object(v, "linear_attn_config");
    struct json_view linear = {.objects = {object}, .where = v->where, .e = v->e, .rc = v->rc};
    const struct config_layer_type types[] = {{"linear_attention", delta}, {"full_attention", full}};
    if (object)
        config_read_kimi_delta(&linear, "num_heads", "head_dim", "short_conv_kernel_size", &delta->delta);
    else
        config_read_kimi_delta(v, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim",
                               &delta->delta);
    delta->delta.gate_rank = delta->delta.k_head_dim;
    if (!has_types)
        read_lists(c, &linear, delta);
    if (linear.rc < 0)
        v->rc = linear.rc;
    config_read_layer_types(c, v, types, 2);
}

static void read(struct config *c, struct json_view *v)
{
    struct part_config *full = config_add_part(c, PART_LATENT), *delta = config_add_part(c, PART_DELTA_NET);
    config_need(v, "rms_norm_eps");
    config_need(v, "routed_scaling_factor");
    config_need(v, "n_shared_experts");
    if (!json_view_get(v, "mlp_layer_types"))
        config_need(v, "first_k_dense_replace");
    config_expect(v, "mla_use_nope", true);
    config_expect(v, "use_grouped_topk", true);
    config_read_latent_heads(c, v, &full->latent);
    c->ropes[0].none = true;
    config_read_sigmoid_router(c, v);
    config_read_first_dense(c, v, full);
    read_delta(c, v, full, delta);
}

/* Names of the checkpoint, then of mlx-lm. */
static const char *const renamed[][2] = {
    {".block_sparse_moe.", ".mlp."},
    {".w1.", ".gate_proj."},
    {".w2.", ".down_proj."},
    {".w3.", ".up_proj."},
    {".q_conv.conv.", ".q_conv1d."},
    {".k_conv.conv.", ".k_conv1d."},
    {".v_conv.conv.", ".v_conv1d."},
    {".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
    {0}};

const struct family family_kimilinear = {
    .name = "Kimi-Linear",
    .id = 12,
    .types = {"kimi_linear"},
    .read = read,
    .renamed = renamed,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
