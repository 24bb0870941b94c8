#include "model/config_parts.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "model/config.h"
#include "base/json.h"

static const double BIG = 1e30;

int config_check_multiples(const struct config_multiple *m, size_t n, const struct json_view *v)
{
    for (size_t i = 0; i < n; i++)
        if (m[i].value % m[i].of != 0)
            return err_set(v->e, ERR_FORMAT, "%s: %s is %llu, expected a multiple of %llu", v->where,
                           m[i].key, (unsigned long long)m[i].value, (unsigned long long)m[i].of);
    return 0;
}

int config_expect(struct json_view *v, const char *key, bool expected)
{
    bool found = json_view_bool_or(v, key, expected);
    if (v->rc < 0 || found == expected)
        return v->rc;
    return err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %s, expected %s", v->where, key,
                   found ? "true" : "false", expected ? "true" : "false");
}

int config_expect_empty(struct json_view *v, const char *key)
{
    size_t n = json_array_size(json_view_array(v, key));
    if (v->rc < 0 || n == 0)
        return v->rc;
    return err_set(v->e, ERR_UNSUPPORTED, "%s: %s has %zu layers, expected none", v->where, key, n);
}

/* Returns a view of the rotary keys: rope_parameters (new style), else rope_scaling (old style). */
static struct json_view rope_view(struct json_view *v)
{
    const json_t *fresh = json_view_object(v, "rope_parameters");
    const json_t *old = json_view_object(v, "rope_scaling");
    return (struct json_view){.objects = {fresh, old}, .where = v->where, .e = v->e, .rc = v->rc};
}

/* Returns a view that looks up each key in `rope` first, then among the flat keys. */
static struct json_view with_flat_keys(const struct json_view *rope, const struct json_view *v)
{
    struct json_view all = *rope;
    all.objects[2] = v->objects[0];
    all.objects[3] = v->objects[1];
    return all;
}

int config_read_attention(struct config *c, struct json_view *v, double part)
{
    uint32_t even_heads = (c->hidden + c->n_heads - 1) / c->n_heads;
    c->n_kv_heads = json_view_u32(v, "num_key_value_heads", 1, CONFIG_MAX_HEADS);
    c->head_dim = json_view_u32_or(v, "head_dim", even_heads, 1, CONFIG_MAX_HEAD_DIM);
    struct json_view rope = rope_view(v), all = with_flat_keys(&rope, v);
    part = json_view_real_or(&all, "partial_rotary_factor", part, 0, 1);
    if (all.rc < 0)
        return all.rc;
    c->rotary_dim = (uint32_t)((double)c->head_dim * part);
    if (!json_view_get(v, "head_dim") && c->hidden % c->n_heads != 0)
        return err_set(v->e, ERR_FORMAT,
                       "%s: head_dim is missing and hidden_size %u is not a multiple of %u heads", v->where,
                       c->hidden, c->n_heads);
    const struct config_multiple multiples[] = {
        {"num_attention_heads", c->n_heads, c->n_kv_heads},
        {"head_dim", c->head_dim, CONFIG_FOUR},
    };
    int rc = config_check_multiples(multiples, 2, v);
    if (rc == 0 && (c->rotary_dim == 0 || c->rotary_dim % 2 != 0))
        rc = err_set(v->e, ERR_FORMAT,
                     "%s: partial_rotary_factor: %u rotary channels, expected an even number above 0",
                     v->where, c->rotary_dim);
    return rc;
}

int config_read_dense(struct config *c, struct json_view *v)
{
    uint32_t i = 0;
    while (i < c->n_layers && config_has_experts(c, i))
        i++;
    if (i == c->n_layers)
        return 0;
    c->dense_inner = json_view_u32(v, "intermediate_size", 1, CONFIG_MAX_INNER);
    const struct config_multiple inner = {"intermediate_size", c->dense_inner, CONFIG_FOUR};
    return v->rc < 0 ? v->rc : config_check_multiples(&inner, 1, v);
}

static int check_groups(const struct config *c, const struct json_view *v)
{
    uint32_t per_group = c->n_experts / c->n_group;
    if (c->n_group > 1 && per_group < 2)
        return err_set(v->e, ERR_FORMAT, "%s: n_group is %u of %u experts, expected groups of at least 2",
                       v->where, c->n_group, c->n_experts);
    if (c->topk_group > c->n_group)
        return err_set(v->e, ERR_FORMAT, "%s: topk_group is %u, expected at most n_group = %u", v->where,
                       c->topk_group, c->n_group);
    if (c->top_k > (uint64_t)c->topk_group * per_group)
        return err_set(v->e, ERR_FORMAT,
                       "%s: num_experts_per_tok is %u, expected at most %u (%u groups of %u)", v->where,
                       c->top_k, c->topk_group * per_group, c->topk_group, per_group);
    return 0;
}

int config_read_sigmoid_router(struct config *c, struct json_view *v)
{
    c->sigmoid = true;
    c->n_experts = json_view_u32(v, "n_routed_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, "num_experts_per_tok", 1, CONFIG_MAX_EXPERTS);
    c->n_group = json_view_u32_or(v, "n_group", 1, 1, CONFIG_MAX_EXPERTS);
    c->topk_group = json_view_u32_or(v, "topk_group", 1, 1, CONFIG_MAX_EXPERTS);
    c->routed_scaling = (float)json_view_real_or(v, "routed_scaling_factor", 1, 1e-6, 1e6);
    const char *method = json_view_text_or(v, "topk_method", "noaux_tc");
    const char *scoring = json_view_text_or(v, "scoring_func", "sigmoid");
    if (v->rc < 0)
        return v->rc;
    if (strcmp(method, "noaux_tc") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: topk_method is %s, expected noaux_tc", v->where, method);
    if (strcmp(scoring, "sigmoid") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: scoring_func is %s, expected sigmoid", v->where, scoring);
    const struct config_multiple experts = {"n_routed_experts", c->n_experts, c->n_group};
    int rc = config_check_multiples(&experts, 1, v);
    return rc < 0 ? rc : check_groups(c, v);
}

/* Reads a list with "dense" or "sparse" for each layer, which newer exports have, if it is there. */
static int read_layer_types(struct config *c, struct json_view *v)
{
    const json_t *types = json_view_array(v, "mlp_layer_types");
    if (v->rc < 0 || !types)
        return v->rc;
    if (json_array_size(types) != c->n_layers)
        return err_set(v->e, ERR_FORMAT,
                       "%s: mlp_layer_types has %zu entries, expected %u (num_hidden_layers)", v->where,
                       json_array_size(types), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *type = json_array_get(types, i);
        if (!json_is_text(type, "dense") && !json_is_text(type, "sparse"))
            return err_set(v->e, ERR_UNSUPPORTED, "%s: mlp_layer_types[%u] is neither dense nor sparse",
                           v->where, i);
        c->layers[i].has_experts = json_is_text(type, "sparse");
    }
    return 0;
}

int config_read_first_dense(struct config *c, struct json_view *v, enum mixer_kind mixer)
{
    uint32_t n_shared = json_view_u32_or(v, "n_shared_experts", 1, 1, CONFIG_MAX_SHARED);
    c->shared_inner = c->moe_inner * n_shared;
    c->first_dense = json_view_u32_or(v, "first_k_dense_replace", c->first_dense, 0, CONFIG_MAX_LAYERS);
    c->moe_freq = json_view_u32_or(v, "moe_layer_freq", 1, 1, CONFIG_MAX_LAYERS);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        c->layers[i] = (struct config_layer){mixer, i >= c->first_dense && i % c->moe_freq == 0, false};
    int rc = v->rc < 0 ? v->rc : read_layer_types(c, v);
    return rc < 0 ? rc : config_read_dense(c, v);
}

/* Sets the trained context and the longest one. A user switches YaRN on by adding its keys, and
 * max_position_embeddings may still be the trained context: then the stretched one counts. If no trained
 * context is given it is max_position_embeddings, which also stays the longest. */
static void set_contexts(struct config *c)
{
    double stretched = c->rope.factor * c->rope.original_context;
    if (c->rope.original_context < 1)
        c->rope.original_context = c->max_context;
    else if (c->max_context && stretched > c->max_context)
        c->max_context = stretched < UINT32_MAX ? (uint32_t)stretched : UINT32_MAX;
}

static int read_yarn(struct config *c, struct json_view *rope)
{
    struct rope_config *r = &c->rope;
    r->yarn = true;
    r->factor = json_view_real_or(rope, "factor", 0, 1, BIG);
    r->original_context = json_view_real_or(rope, "original_max_position_embeddings", 0, 1, BIG);
    r->beta_fast = json_view_real_or(rope, "beta_fast", 32, 1e-3, BIG);
    r->beta_slow = json_view_real_or(rope, "beta_slow", 1, 1e-3, BIG);
    r->mscale = json_view_real_or(rope, "mscale", 0, 0, BIG);
    r->mscale_all_dim = json_view_real_or(rope, "mscale_all_dim", 0, 0, BIG);
    r->attention_factor = json_view_real_or(rope, "attention_factor", 0, 0, BIG);
    r->truncate = json_view_bool_or(rope, "truncate", true);
    if (rope->rc < 0)
        return rope->rc;
    set_contexts(c);
    if (r->factor < 1 || r->original_context < 1)
        return err_set(rope->e, ERR_FORMAT, "%s: rope_type yarn: key %s is missing", rope->where,
                       r->factor < 1 ? "factor" : "original_max_position_embeddings");
    if (r->theta <= 1)
        return err_set(rope->e, ERR_FORMAT, "%s: rope_theta is %g, expected more than 1 for rope_type yarn",
                       rope->where, r->theta);
    return 0;
}

int config_read_rope(struct config *c, struct json_view *v, bool takes_yarn)
{
    struct json_view rope = rope_view(v), all = with_flat_keys(&rope, v);
    c->rope.truncate = true;
    c->rope.theta = json_view_real_or(&all, "rope_theta", 10000, 1, BIG);
    const char *type = json_view_text_or(&rope, "rope_type", NULL);
    if (!type)
        type = json_view_text_or(&rope, "type", "default");
    if (all.rc < 0 || rope.rc < 0)
        return all.rc < 0 ? all.rc : rope.rc;
    if (!strcmp(type, "default"))
        return 0;
    if (!takes_yarn || strcmp(type, "yarn") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: rope_type is %s, expected default%s", v->where, type,
                       takes_yarn ? " or yarn" : "");
    return read_yarn(c, &rope);
}
