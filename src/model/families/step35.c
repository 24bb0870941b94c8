/* Step-3.5 and Step-3.7: grouped-query attention with gates of heads; in most layers a window, and more heads
 * than in the others; each kind has a table of angles. The first layers are dense; experts with a biased
 * router and a shared expert, with clamped activations in some layers. The layers of multi-token
 * prediction, which are dense and take hidden states before the last norm, follow in all lists. The vision of
 * Step-3.7 is left out. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* The mixers of layers with a window, and of the others. */
struct mixers {
    struct part_config *sliding, *full;
};

static bool is_sliding(const struct config *c, const struct mixers *m, uint32_t i)
{
    return c->layers[i].blocks[0].part == (uint32_t)(m->sliding - c->parts);
}

static void read_layer_types(struct config *c, struct json_view *v, const struct mixers *m)
{
    const struct config_layer_type types[] = {{"sliding_attention", m->sliding}, {"full_attention", m->full}};
    config_set_layers(c, (const struct part_config *const[]){m->full}, 1);
    config_need(v, "layer_types"); /* its default depends on the reader */
    config_read_layer_types(c, v, types, 2);
}

/* Makes the layers that moe_layers_enum lacks dense. The key is a text of numbers and commas, or a list. */
static void read_moe_layers(struct config *c, struct json_view *v, const struct mixers *m)
{
    static const char key[] = "moe_layers_enum";
    const json_t *value = json_view_get(v, key);
    const char *text = json_string_value(value);
    size_t n = text ? strlen(text) : json_array_size(value);
    if (v->rc == 0 && !value)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: key %s is missing", v->where, key);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        config_set_layer(c, i, is_sliding(c, m, i) ? m->sliding : m->full, false);
    for (size_t at = 0; v->rc == 0 && at < n;) {
        char *end = NULL;
        json_int_t layer = -1;
        if (text) {
            layer = strtoll(text + at, &end, 10);
            layer = end == text + at || (*end != ',' && *end != '\0') ? -1 : layer;
            at = (size_t)(end - text) + 1;
        } else {
            const json_t *item = json_array_get(value, at++);
            layer = json_is_integer(item) ? json_integer_value(item) : -1;
        }
        if (layer < 0)
            v->rc = err_set(v->e, ERR_FORMAT, "%s: %s: expected numbers of layers", v->where, key);
        else if (layer < c->n_layers)
            config_set_layer(c, (uint32_t)layer, is_sliding(c, m, (uint32_t)layer) ? m->sliding : m->full,
                             true);
    }
}

/* Reads the kind of the layer of multi-token prediction: the entry after those of the layers, or the first
 * one of a list of its own. */
static void read_drafter(struct config *c, struct json_view *v, const struct mixers *m)
{
    const json_t *own = json_view_array(v, "mtp_layer_types");
    const json_t *type =
        own ? json_array_get(own, 0) : json_array_get(config_layers_list(c, v, "layer_types"), c->n_layers);
    config_set_drafter(c, json_is_text(type, "sliding_attention") ? m->sliding : m->full, false);
    c->drafts_raw = true;
}

/* Returns the first of two keys that is there, else the second. */
static const char *either(const struct json_view *v, const char *key, const char *other)
{
    return json_view_get(v, key) ? key : other;
}

/* Checks that per_layer_config, which exports of transformers have, says what the kinds of layers have. */
static void check_overrides(const struct config *c, struct json_view *v, const struct mixers *m)
{
    const json_t *all = config_overrides(c, v);
    for (uint32_t i = 0; v->rc == 0 && all && i < c->n_layers; i++) {
        const char *key;
        json_t *value;
        uint32_t n_heads = (is_sliding(c, m, i) ? m->sliding : m->full)->gqa.n_heads;
        json_object_foreach((json_t *)(uintptr_t)config_override(all, i), key, value)
        {
            if (v->rc == 0 &&
                (strcmp(key, "num_attention_heads") != 0 || json_integer_value(value) != n_heads))
                v->rc = err_set(v->e, ERR_UNSUPPORTED,
                                "%s: per_layer_config.%u.%s, expected num_attention_heads = %u alone",
                                v->where, i, key, n_heads);
        }
    }
}

static void read_heads(struct config *c, struct json_view *v, const struct mixers *m)
{
    struct gqa_config *full = &m->full->gqa, *sliding = &m->sliding->gqa;
    *full = (struct gqa_config){.norm = QK_NORM_HEADS, .rope = 1};
    full->n_heads = json_view_u32(v, "num_attention_heads", 1, CONFIG_MAX_HEADS);
    full->n_kv_heads =
        json_view_u32(v, either(v, "num_attention_groups", "num_key_value_heads"), 1, CONFIG_MAX_HEADS);
    full->head_dim = json_view_u32(v, "head_dim", 1, CONFIG_MAX_HEAD_DIM);
    full->head_gated = json_view_bool_or(v, "use_head_wise_attn_gate", true);
    *sliding = *full;
    sliding->rope = 0;
    const json_t *object = json_view_object(v, "attention_other_setting");
    struct json_view other = {.objects = {object}, .where = v->where, .e = v->e, .rc = v->rc};
    sliding->n_heads = json_view_u32_or(
        &other, "num_attention_heads",
        json_view_u32_or(v, "num_sliding_attention_heads", full->n_heads, 1, CONFIG_MAX_HEADS), 1,
        CONFIG_MAX_HEADS);
    sliding->n_kv_heads =
        json_view_u32_or(&other, "num_attention_groups", full->n_kv_heads, 1, CONFIG_MAX_HEADS);
    sliding->head_dim = json_view_u32_or(&other, "head_dim", full->head_dim, 1, CONFIG_MAX_HEAD_DIM);
    if (v->rc == 0)
        v->rc = other.rc;
    bool has_sliding = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        has_sliding |= is_sliding(c, m, i);
    sliding->window = has_sliding ? json_view_u32(v, "sliding_window", 1, UINT32_MAX) : 1;
    config_check_multiple(v, "head_dim", full->head_dim, CONFIG_FOUR);
    for (int i = 0; v->rc == 0 && i < 2; i++)
        config_check_multiple(v, "num_attention_heads", (i ? sliding : full)->n_heads,
                              (i ? sliding : full)->n_kv_heads);
    if (v->rc == 0 && (sliding->head_dim != full->head_dim || sliding->n_kv_heads != full->n_kv_heads))
        v->rc = err_set(v->e, ERR_UNSUPPORTED,
                        "%s: attention_other_setting: %u groups of %u, expected %u of %u as in other layers",
                        v->where, sliding->n_kv_heads, sliding->head_dim, full->n_kv_heads, full->head_dim);
    check_overrides(c, v, m);
}

/* Returns the number that all layers of a kind have: one for all, or an entry of a list. */
static double number_of(const struct config *c, struct json_view *v, const char *key, const struct mixers *m,
                        bool sliding, double fallback)
{
    const json_t *value = json_view_get(v, key);
    double found = fallback;
    bool is_first = true;
    if (!json_is_array(value))
        return json_view_real_or(v, key, fallback, 1e-6, 1e30);
    const json_t *list = config_layers_list(c, v, key);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        if (is_sliding(c, m, i) != sliding)
            continue;
        if (!json_is_number(item) || (!is_first && json_number_value(item) != found))
            v->rc =
                err_set(v->e, ERR_UNSUPPORTED,
                        "%s: %s[%u]: expected a number, the same in all layers of a kind", v->where, key, i);
        found = json_number_value(item);
        is_first = false;
    }
    return found;
}

/* Reads the angles of one kind: of an object in rope_parameters, else of lists and of rope_scaling, which
 * holds for layers without a window. */
static void read_rope(struct config *c, struct json_view *v, const struct mixers *m, bool sliding)
{
    const char *type = sliding ? "sliding_attention" : "full_attention";
    const json_t *all = json_view_object(v, "rope_parameters"), *own = json_object_get(all, type),
                 *scaling = sliding ? NULL : json_view_object(v, "rope_scaling"),
                 *only = json_view_array(v, "yarn_only_types");
    double theta = own ? 10000 : number_of(c, v, "rope_theta", m, sliding, 10000),
           part = own ? 1 : number_of(c, v, "partial_rotary_factors", m, sliding, 1);
    struct json_view rope = {.objects = {own ? own : scaling}, .where = v->where, .e = v->e, .rc = v->rc};
    if (v->rc == 0 && all && !own)
        rope.rc = err_set(v->e, ERR_FORMAT, "%s: rope_parameters.%s is missing", v->where, type);
    if (rope.rc == 0 && !own && scaling &&
        (json_array_size(only) != 1 || !json_is_text(json_array_get(only, 0), "full_attention")))
        rope.rc = err_set(v->e, ERR_UNSUPPORTED,
                          "%s: yarn_only_types: expected full_attention alone with rope_scaling", v->where);
    if (rope.rc == 0 && own && scaling)
        rope.rc = err_set(v->e, ERR_UNSUPPORTED,
                          "%s: rope_scaling is an object, expected null next to rope_parameters", v->where);
    config_read_rope_of(&rope, m->full->gqa.head_dim, theta, part, !sliding, &c->ropes[sliding ? 0 : 1]);
    v->rc = rope.rc;
}

static void read_experts(struct config *c, struct json_view *v)
{
    struct router_config *r = &c->router;
    r->sigmoid = true;
    r->n_groups = r->keep_groups = 1;
    c->n_experts = json_view_u32(v, either(v, "moe_num_experts", "n_routed_experts"), 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, either(v, "moe_top_k", "num_experts_per_tok"), 1, CONFIG_MAX_EXPERTS);
    config_need(v, "moe_router_scaling_factor"); /* its default depends on the reader */
    r->scale = (float)json_view_real_or(v, "moe_router_scaling_factor", 1, 1e-6, 1e6);
    r->norm = json_view_bool_or(v, "norm_expert_weight", true);
    config_expect_text(v, "moe_router_activation", "sigmoid");
    config_expect(v, "use_moe_router_bias", true);
    const char *shared = either(v, "share_expert_dim", "share_expert_dims");
    c->shared_inner = json_view_u32_or(v, shared, 1280, 1, CONFIG_MAX_INNER);
    config_check_multiple(v, shared, c->shared_inner, PRODUCT_COLS);
    /* A layer without an entry would have no limit. */
    config_layers_list(c, v, "swiglu_limits");
    config_layers_list(c, v, "swiglu_limits_shared");
    config_read_clamps(c, v, "swiglu_limits", "swiglu_limits_shared");
}

static void read(struct config *c, struct json_view *v)
{
    const struct mixers m = {config_add_part(c, PART_ATTENTION), config_add_part(c, PART_ATTENTION)};
    if (!json_view_get(v, "rms_norm_eps"))
        c->rms_eps = 1e-5f;
    read_layer_types(c, v, &m);
    /* Exports of transformers have mlp_layer_types. */
    if (json_view_get(v, "mlp_layer_types"))
        config_read_mlp_types(c, v);
    else
        read_moe_layers(c, v, &m);
    read_drafter(c, v, &m);
    config_read_dense(c, v, "intermediate_size");
    read_heads(c, v, &m);
    c->n_ropes = 2;
    for (int i = 0; i < 2; i++)
        read_rope(c, v, &m, i == 0);
    double scale = json_view_real_or(v, "query_pre_attn_scalar", m.full->gqa.head_dim, 1e-6, 1e9);
    if (v->rc == 0 && scale != m.full->gqa.head_dim)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: query_pre_attn_scalar is %g, expected head_dim = %u",
                        v->where, scale, m.full->gqa.head_dim);
    config_expect(v, "attention_bias", false);
    config_expect(v, "mlp_bias", false);
    config_expect(v, "use_qk_norm", true);
    config_expect(v, "sink", false);
    read_experts(c, v);
}

/* Names of the checkpoint, then of mlx-lm. */
static const char *const renamed[][2] = {{".mlp.share_expert.", ".share_expert."},
                                         {".share_expert.", ".mlp.share_expert."},
                                         {".moe.gate.", ".mlp.gate."},
                                         {".moe.router_bias", ".mlp.router_bias"},
                                         {".moe.", ".mlp.switch_mlp."},
                                         {".mlp.gate.gate.", ".mlp.gate."},
                                         {".mlp.gate.router_bias", ".mlp.router_bias"},
                                         {0}};

const struct family family_step35 = {
    .name = "Step-3.5",
    .id = 18,
    .types = {"step3p5", "step3p7"},
    .own_key = "share_expert_dim",
    .read = read,
    .drafter = DRAFTER_AS_NEXTN,
    .renamed = renamed,
    .longer_lists = true,
    .router_bias = "router_bias",
    .shared = "share_expert",
    .mlx_prefix = "",
    .norms_less_one = true,
    .published_part = ".moe.",
    .gate_bits = 8,
    .overrides = true,
};
