/* MiMo-V2-Flash: grouped-query attention whose values have fewer channels than its keys and a factor; in
 * most layers a window, sinks and more key heads than in the others; each kind has a table of angles. The
 * first layer is dense; experts with a biased router, no shared expert. Layers of multi-token prediction
 * have a window and are dense. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* The mixers of layers with a window, and of the others. */
struct mixers {
    struct part_config *sliding, *full;
};

/* Reads which layers have a window: layer_types, or hybrid_layer_pattern with 1 for such a layer. */
static void read_layers(struct config *c, struct json_view *v, const struct mixers *m)
{
    static const char key[] = "hybrid_layer_pattern";
    const struct config_layer_type types[] = {{"sliding_attention", m->sliding}, {"full_attention", m->full}};
    bool has_types = json_view_get(v, "layer_types");
    config_set_layers(c, (const struct part_config *const[]){m->full}, 1);
    if (!has_types)
        config_need(v, key);
    config_read_layer_types(c, v, types, 2);
    const json_t *pattern = has_types ? NULL : config_layers_list(c, v, key);
    for (uint32_t i = 0; v->rc == 0 && pattern && i < c->n_layers; i++)
        config_set_mixer(c, i, config_layer_flag(v, pattern, key, i) ? m->sliding : m->full);
}

/* Returns the factor of values: a number, or null for none. Readers have different defaults. */
static float value_scale(struct json_view *v)
{
    static const char key[] = "attention_value_scale";
    if (!config_is_null(v, key))
        config_need(v, key);
    double x = json_view_real_or(v, key, 1, 1e-6, 1e6);
    return x == 1 ? 0 : (float)x;
}

/* Reads the heads of both kinds of layers. Those with a window have keys of their own, which begin with swa_;
 * transformers has none for them: then they have twice the key heads. */
static void read_heads(struct json_view *v, const struct mixers *m)
{
    struct gqa_config *full = &m->full->gqa, *sliding = &m->sliding->gqa;
    full->n_heads = json_view_u32(v, "num_attention_heads", 1, CONFIG_MAX_HEADS);
    full->n_kv_heads = json_view_u32(v, "num_key_value_heads", 1, CONFIG_MAX_HEADS / 2);
    full->head_dim = json_view_u32(v, "head_dim", 1, CONFIG_MAX_HEAD_DIM);
    full->value_dim = json_view_u32(v, "v_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    full->value_scale = value_scale(v);
    full->rope = 1;
    full->sinks = json_view_bool_or(v, "add_full_attention_sink_bias", false);
    *sliding = *full;
    sliding->rope = 0;
    sliding->sinks = json_view_bool_or(v, "add_swa_attention_sink_bias", true);
    sliding->n_heads = json_view_u32_or(v, "swa_num_attention_heads", full->n_heads, 1, CONFIG_MAX_HEADS);
    sliding->n_kv_heads =
        json_view_u32_or(v, "swa_num_key_value_heads", 2 * full->n_kv_heads, 1, CONFIG_MAX_HEADS);
    sliding->head_dim = json_view_u32_or(v, "swa_head_dim", full->head_dim, 1, CONFIG_MAX_HEAD_DIM);
    sliding->value_dim = json_view_u32_or(v, "swa_v_head_dim", full->value_dim, 1, CONFIG_MAX_HEAD_DIM);
    /* A window counts the token itself, as in mlx-lm and llama.cpp, for which MLX and GGUF files are made.
     * transformers adds 1: it counts the positions before the token, as SGLang does. */
    const char *window = json_view_get(v, "sliding_window_size") ? "sliding_window_size" : "sliding_window";
    sliding->window = json_view_u32(v, window, 1, UINT32_MAX);
    for (int i = 0; v->rc == 0 && i < 2; i++) {
        const struct gqa_config *g = i ? sliding : full;
        config_check_multiple(v, i ? "swa_num_attention_heads" : "num_attention_heads", g->n_heads,
                              g->n_kv_heads);
        config_check_multiple(v, i ? "swa_head_dim" : "head_dim", g->head_dim, CONFIG_FOUR);
        config_check_multiple(v, i ? "swa_v_head_dim" : "v_head_dim", g->value_dim, CONFIG_FOUR);
        if (v->rc == 0 && g->value_dim > g->head_dim)
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %u, expected at most %u channels of a key",
                            v->where, i ? "swa_v_head_dim" : "v_head_dim", g->value_dim, g->head_dim);
    }
}

/* Reads the angles of one kind: of an object in rope_parameters, or of flat keys. */
static void read_rope(struct config *c, struct json_view *v, const struct mixers *m, bool sliding)
{
    const char *type = sliding ? "sliding_attention" : "full_attention",
               *key = sliding ? "swa_rope_theta" : "rope_theta";
    const json_t *all = json_view_object(v, "rope_parameters"), *own = json_object_get(all, type);
    struct json_view rope = {.objects = {own}, .where = v->where, .e = v->e, .rc = v->rc};
    if (v->rc == 0 && all && !own)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: rope_parameters.%s is missing", v->where, type);
    if (!own) {
        config_need(v, key);
        config_need(v, "partial_rotary_factor");
    }
    double theta = own ? 10000 : json_view_real_or(v, key, 10000, 1, 1e30),
           part = own ? 0.334 : json_view_real_or(v, "partial_rotary_factor", 1, 0, 1);
    if (v->rc == 0 && json_view_object(v, "rope_scaling"))
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: rope_scaling is an object, expected null", v->where);
    if (rope.rc == 0)
        rope.rc = v->rc;
    config_read_rope_of(&rope, (sliding ? m->sliding : m->full)->gqa.head_dim, theta, part, false,
                        &c->ropes[sliding ? 0 : 1]);
    v->rc = rope.rc;
}

static void read(struct config *c, struct json_view *v)
{
    const struct mixers m = {config_add_part(c, PART_ATTENTION), config_add_part(c, PART_ATTENTION)};
    const char *eps = json_view_get(v, "layernorm_epsilon") ? "layernorm_epsilon" : "rms_norm_eps";
    c->rms_eps = (float)json_view_real_or(v, eps, 1e-5, 1e-30, 1);
    read_layers(c, v, &m);
    if (!json_view_get(v, "mlp_layer_types"))
        config_need(v, "moe_layer_freq");
    config_read_moe_flags(c, v, "moe_layer_freq");
    config_set_drafter(c, m.sliding, false);
    config_read_dense(c, v, "intermediate_size");
    read_heads(v, &m);
    c->n_ropes = 2;
    for (int i = 0; i < 2; i++)
        read_rope(c, v, &m, i == 0);
    config_read_sigmoid_router(c, v);
    config_expect(v, "attention_bias", false);
    config_expect_text(v, "attention_projection_layout", "split");
    if (v->rc == 0 && json_view_u32_or(v, "n_shared_experts", 0, 0, CONFIG_MAX_SHARED) > 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: n_shared_experts is not null, expected no shared expert",
                        v->where);
}

static const char *const renamed[][2] = {{".self_attn.attention_sink_bias", ".self_attn.sinks"}, {0}};

const struct family family_mimov2 = {
    .name = "MiMo-V2",
    .id = 19,
    .types = {"mimo_v2_flash"},
    .own_key = "add_swa_attention_sink_bias",
    .read = read,
    .drafter = DRAFTER_AS_MTP_NEXTN,
    .renamed = renamed,
    .router_bias = "gate.e_score_correction_bias",
    .mlx_prefix = "",
};
