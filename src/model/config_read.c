#include "model/config_read.h"

#include <jansson.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "model/family.h"

/* Returns whether no key speaks of experts. */
static bool is_dense(const struct json_view *v)
{
    static const char *const keys[] = {
        "num_experts",           "n_routed_experts", "num_local_experts", "num_experts_per_tok",
        "moe_intermediate_size", "moe_num_experts",  "n_experts"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_view_get(v, keys[i]))
            return false;
    return true;
}

/* Returns the family of the whole model. Its text part alone may have another's model_type: Kimi-K2.5's has
 * DeepSeek-V3's. */
static const struct family *whole_family(const struct json_view *v)
{
    const char *type = json_string_value(json_object_get(v->objects[1], "model_type"));
    return type ? family_find(type) : NULL;
}

static int read_family(struct config *c, struct json_view *v)
{
    char known[FAMILY_LIST_TEXT];
    const char *type = json_view_text_or(v, "model_type", NULL);
    if (v->rc < 0)
        return v->rc;
    c->family = type ? family_find(type) : family_of_keys(v);
    const struct family *whole = whole_family(v);
    if (c->family && whole)
        c->family = whole;
    const char *key = c->family ? c->family->moe_switch : NULL;
    bool lacks_experts = key && !json_view_bool_or(v, key, false);
    if (v->rc < 0 || (c->family && !lacks_experts))
        return v->rc;
    if (!type)
        return err_set(v->e, ERR_FORMAT, "%s: key model_type is missing", v->where);
    if (lacks_experts || is_dense(v))
        return err_set(v->e, ERR_UNSUPPORTED,
                       "%s: model_type is %s, a dense model: llama.cpp or mlx-lm run it", v->where, type);
    return err_set(v->e, ERR_UNSUPPORTED, "%s: model_type is %s, expected %s", v->where, type,
                   family_list(known));
}

static int check_supported(const struct family *f, struct json_view *v)
{
    const char *act = json_view_text_or(v, "hidden_act", "silu");
    if (v->rc < 0)
        return v->rc;
    if (strcmp(act, "silu") != 0 && !(f->act && !strcmp(act, f->act)))
        return err_set(v->e, ERR_UNSUPPORTED, "%s: hidden_act is %s, expected silu", v->where, act);
    const json_t *own = f->overrides ? NULL : json_view_object(v, "per_layer_config");
    if (v->rc == 0 && json_object_size(own) > 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: per_layer_config has %zu layers, expected none", v->where,
                       json_object_size(own));
    return v->rc;
}

static uint32_t read_n_layers(const struct config *c, struct json_view *v)
{
    const char *key = c->family->layers_key;
    size_t n = key && !json_view_get(v, "num_hidden_layers") ? json_array_size(json_view_get(v, key)) : 0;
    return n > 0 && n <= CONFIG_MAX_LAYERS ? (uint32_t)n
                                           : json_view_u32(v, "num_hidden_layers", 1, CONFIG_MAX_LAYERS);
}

static void read_common(struct config *c, struct json_view *v)
{
    c->hidden = json_view_u32(v, "hidden_size", 1, CONFIG_MAX_HIDDEN);
    c->n_layers = read_n_layers(c, v);
    c->vocab_size = json_view_u32(v, "vocab_size", 1, CONFIG_MAX_VOCAB);
    c->max_context = json_view_u32_or(v, config_key(v, "max_position_embeddings"), 0, 1, UINT32_MAX);
    c->rms_eps = (float)json_view_real_or(v, "rms_norm_eps", 1e-6, 1e-30, 1);
    c->tied = json_view_bool_or(v, "tie_word_embeddings", false);
    const char *inner = c->family->inner_key ? c->family->inner_key : "moe_intermediate_size";
    c->moe_inner = json_view_u32(v, inner, 1, CONFIG_MAX_INNER);
    c->router.norm = json_view_bool_or(v, config_key(v, "norm_topk_prob"), true);
    c->router.scale = 1;
    config_check_multiple(v, "hidden_size", c->hidden, PRODUCT_COLS);
    config_check_multiple(v, inner, c->moe_inner, PRODUCT_COLS);
}

static int check_experts(const struct config *c, const struct json_view *v)
{
    uint64_t rows = c->hidden > 2 * c->moe_inner ? c->hidden : 2 * c->moe_inner;
    uint32_t i = 0;
    if (c->top_k > c->n_experts)
        return err_set(v->e, ERR_FORMAT, "%s: num_experts_per_tok is %u, expected at most %u experts",
                       v->where, c->top_k, c->n_experts);
    if (c->experts_biased && rows * c->n_experts > UINT32_MAX)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: biases of %u experts of %u and %u rows, expected fewer",
                       v->where, c->n_experts, c->moe_inner, c->hidden);
    while (i < c->n_layers && !config_has_experts(c, i))
        i++;
    if (i == c->n_layers)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: all %u layers are dense, expected one with experts",
                       v->where, c->n_layers);
    return 0;
}

static int read_all(struct config *c, struct json_view *v)
{
    int rc = read_family(c, v);
    if (rc == 0)
        rc = check_supported(c->family, v);
    if (rc == 0)
        read_common(c, v);
    if (rc < 0 || v->rc < 0)
        return rc < 0 ? rc : v->rc;
    c->layers = mem_new(c->n_layers, sizeof *c->layers, v->e);
    if (!c->layers)
        return ERR_MEMORY;
    c->family->read(c, v);
    c->own_top_k = c->top_k;
    return v->rc < 0 ? v->rc : check_experts(c, v);
}

int config_read(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e)
{
    *c = (struct config){0};
    struct json_view top = {.objects = {root}, .where = where, .e = e};
    const json_t *text = json_view_object(&top, "text_config");
    struct json_view v = {.objects = {text, root}, .where = where, .e = e, .rc = top.rc};
    int rc = v.rc;
    if (rc == 0)
        rc = read_all(c, &v);
    if (rc == 0)
        rc = config_add_generation(c, root, where, e);
    if (rc == 0 && text)
        rc = config_add_generation(c, text, where, e);
    if (rc < 0)
        config_free(c);
    return rc;
}
