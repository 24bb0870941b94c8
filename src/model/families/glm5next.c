/* GLM-5.3-Flash: Kimi Delta Attention, and in every fourth layer latent attention without rotary keys,
 * with an indexer of pooled keys; several residual streams with a doubly stochastic mix; the first layers
 * are dense, all activations clamped. The layer of multi-token prediction has one residual stream. Its
 * vision is left out. */
#include <jansson.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

static const double LOWER = -5; /* the default bound of a decay's logarithm */

/* Reads the bound of decays. Null: none, unless is_on. */
static float read_bound(struct json_view *v, const char *key, bool is_on)
{
    double bound = json_view_real_or(v, key, LOWER, -1e6, 0);
    if (config_is_null(v, key) && !is_on)
        return 0;
    if (v->rc == 0 && bound >= 0)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s is %g, expected less than 0", v->where, key, bound);
    return (float)bound;
}

/* Reads the delta net: published configurations have an object for it, transformers writes flat keys. The
 * flat bound also holds for an object without one. */
static void read_delta(struct json_view *v, struct delta_config *d)
{
    static const char bound[] = "gate_lower_bound", flat_bound[] = "linear_lower_bound";
    const json_t *object = json_view_object(v, "linear_attn_config");
    struct json_view linear = {.objects = {object}, .where = v->where, .e = v->e, .rc = v->rc};
    if (object) {
        config_read_kimi_delta(&linear, "num_heads", "head_dim", "short_conv_kernel_size", d);
        bool is_on = json_view_bool_or(&linear, "safe_gate", true);
        if (json_object_get(object, bound))
            d->lower = read_bound(&linear, bound, is_on);
        v->rc = linear.rc;
        if (!json_object_get(object, bound))
            d->lower = read_bound(v, flat_bound, is_on);
    } else {
        config_read_kimi_delta(v, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", d);
        d->lower = read_bound(v, flat_bound, false);
    }
    d->gate_rank = d->k_head_dim;
}

static void read_layers(struct config *c, struct json_view *v, const struct part_config *full,
                        const struct part_config *delta)
{
    const struct config_layer_type types[] = {
        {"linear_attention", delta}, {"indexed_attention", full}, {"full_attention", full}};
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        if (i % 4 != 3)
            config_set_mixer(c, i, delta);
    config_read_layer_types(c, v, types, 3);
}

static void read_clamps(struct config *c, struct json_view *v)
{
    float clamp = (float)json_view_real_or(v, "swiglu_limit", 10, 1e-3, 1e6);
    c->clamps_inputs = true;
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        c->layers[i].clamp = c->layers[i].shared_clamp = clamp;
    c->drafter.clamp = c->drafter.shared_clamp = clamp;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].kind == PART_DENSE)
            c->parts[i].dense.clamp = clamp;
}

static void read(struct config *c, struct json_view *v)
{
    struct part_config *full = config_add_part(c, PART_LATENT), *delta = config_add_part(c, PART_DELTA_NET);
    const struct index_config index = {.n_heads = 32, .ratio = 16, .pooled = true};
    if (!json_view_get(v, "rms_norm_eps"))
        c->rms_eps = 1e-5f;
    c->first_dense = 3;
    c->router.scale = 2.5f;
    c->ropes[0].none = true;
    config_expect(v, "mla_use_nope", true);
    config_expect(v, "index_kpool_always_select_tail", true);
    config_read_latent_heads(c, v, &full->latent);
    full->latent.eps = c->rms_eps;
    json_view_u32_or(v, "num_key_value_heads", full->latent.n_heads, full->latent.n_heads,
                     full->latent.n_heads);
    if (v->rc == 0 && full->latent.rope_dim != 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: qk_rope_head_dim is %u, expected 0", v->where,
                        full->latent.rope_dim);
    config_read_sigmoid_router(c, v);
    config_set_drafter(c, full, true);
    config_read_first_dense(c, v, full);
    read_delta(v, &delta->delta);
    read_layers(c, v, full, delta);
    if (v->rc == 0)
        config_read_latent_index(c, v, full, &index);
    config_expect(v, "mhc", true);
    config_read_streams(c, v);
    c->streams.ends_in_mean = true;
    read_clamps(c, v);
}

/* The checkpoint's names. */
static const char *const renamed[][2] = {{".hc_attn_fn", ".hc_attn.fn.weight"},
                                         {".hc_attn_scale", ".hc_attn.scale"},
                                         {".hc_attn_base", ".hc_attn.base"},
                                         {".hc_ffn_fn", ".hc_ffn.fn.weight"},
                                         {".hc_ffn_scale", ".hc_ffn.scale"},
                                         {".hc_ffn_base", ".hc_ffn.base"},
                                         {".indexer.k_norm.", ".indexer.k_layernorm."},
                                         {".index_kpool_compress_gate", ".index_kpool_compress_gate.weight"},
                                         {0}};

const struct family family_glm5next = {
    .name = "GLM-5.3-Flash",
    .id = 16,
    .types = {"glm5_next", "glm5_next_text"},
    .own_key = "index_kpool",
    .read = read,
    .drafter = DRAFTER_AS_NEXTN,
    .renamed = renamed,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "language_model.",
    .decays_negated = true,
};
