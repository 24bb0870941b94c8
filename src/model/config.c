#include "model/config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

/* Far above every real model, and low enough that products of two or three of them stay in 64 bits and the rows of
 * every matrix in 32. */
enum {
    MAX_HIDDEN = 1 << 20,
    MAX_LAYERS = 4096,
    MAX_VOCAB = 1 << 24,
    MAX_HEADS = 1 << 14,
    MAX_HEAD_DIM = 1 << 13,
    MAX_INNER = 1 << 20,
    MAX_RANK = 1 << 16,
    MAX_EXPERTS = 1 << 16,
    MAX_SHARED = 64,
    MAX_CONV = 64,
};

static const double BIG = 1e30;

static int check_multiple(const char *what, uint64_t value, uint64_t of, const char *where,
                          struct moeflux_err *e)
{
    if (value % of == 0)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: %s is %llu, expected a multiple of %llu", where, what,
                   (unsigned long long)value, (unsigned long long)of);
}

/* Some converters leave model_type out of the manifest's config; a key that only one family has then tells. */
static int read_family(struct config *c, struct json_view *v)
{
    const char *type = json_view_text_or(v, "model_type", NULL);
    if (v->rc < 0)
        return v->rc;
    if (!type && json_view_get(v, "kv_lora_rank"))
        type = "deepseek_v3";
    if (!type && json_view_get(v, "linear_num_value_heads"))
        type = "qwen3_5_moe";
    if (!type)
        return err_set(v->e, ERR_FORMAT, "%s: key model_type is missing", v->where);
    if (!strcmp(type, "qwen3_5_moe") || !strcmp(type, "qwen3_5_moe_text"))
        c->family = FAMILY_QWEN35MOE;
    else if (!strcmp(type, "deepseek_v3"))
        c->family = FAMILY_DEEPSEEK3;
    else
        return err_set(v->e, ERR_UNSUPPORTED,
                       "%s: model_type is %s, expected qwen3_5_moe, qwen3_5_moe_text or deepseek_v3",
                       v->where, type);
    return 0;
}

static int check_supported(struct json_view *v)
{
    const char *act = json_view_text_or(v, "hidden_act", "silu");
    bool bias = json_view_bool_or(v, "attention_bias", false);
    bool gated = json_view_bool_or(v, "attn_output_gate", true);
    const json_t *dense = json_view_array(v, "mlp_only_layers");
    if (v->rc < 0)
        return v->rc;
    if (strcmp(act, "silu") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: hidden_act is %s, expected silu", v->where, act);
    if (bias)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: attention_bias is true, expected false", v->where);
    if (!gated)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: attn_output_gate is false, expected true", v->where);
    if (json_array_size(dense) > 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: mlp_only_layers has %zu layers, expected none", v->where,
                       json_array_size(dense));
    return 0;
}

static int read_common(struct config *c, struct json_view *v)
{
    c->hidden = json_view_u32(v, "hidden_size", 1, MAX_HIDDEN);
    c->n_layers = json_view_u32(v, "num_hidden_layers", 1, MAX_LAYERS);
    c->vocab_size = json_view_u32(v, "vocab_size", 1, MAX_VOCAB);
    c->n_heads = json_view_u32(v, "num_attention_heads", 1, MAX_HEADS);
    c->max_context = json_view_u32_or(v, "max_position_embeddings", 0, 1, UINT32_MAX);
    c->rms_eps = (float)json_view_real_or(v, "rms_norm_eps", 1e-6, 1e-30, 1);
    c->tied = json_view_bool_or(v, "tie_word_embeddings", false);
    c->moe_inner = json_view_u32(v, "moe_intermediate_size", 1, MAX_INNER);
    c->norm_topk = json_view_bool_or(v, "norm_topk_prob", true);
    if (v->rc < 0)
        return v->rc;
    int rc = check_multiple("hidden_size", c->hidden, CONFIG_GROUP, v->where, v->e);
    if (rc == 0)
        rc = check_multiple("moe_intermediate_size", c->moe_inner, CONFIG_GROUP, v->where, v->e);
    return rc;
}

static int read_eos_of(struct config *c, const json_t *value, const char *where, struct moeflux_err *e)
{
    bool list = json_is_array(value);
    size_t n = list ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = list ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: eos_token_id: expected a token id or a list of them", where);
        int32_t token = (int32_t)json_integer_value(id);
        uint32_t k = 0;
        while (k < c->n_eos && c->eos[k] != token)
            k++;
        if (k < c->n_eos)
            continue;
        if (c->n_eos == CONFIG_MAX_EOS)
            return err_set(e, ERR_FORMAT, "%s: eos_token_id: more than %d different ids", where,
                           CONFIG_MAX_EOS);
        c->eos[c->n_eos++] = token;
    }
    return 0;
}

int config_add_eos(struct config *c, const struct json_t *root, const char *where, struct moeflux_err *e)
{
    const json_t *value = json_object_get(root, "eos_token_id");
    return !value || json_is_null(value) ? 0 : read_eos_of(c, value, where, e);
}

/* --- rotary embedding --- */

static int read_yarn(struct rope_config *r, struct json_view *rope)
{
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
    if (r->factor < 1 || r->original_context < 1)
        return err_set(rope->e, ERR_FORMAT,
                       "%s: rope_type yarn: factor or original_max_position_embeddings is missing",
                       rope->where);
    if (r->theta <= 1)
        return err_set(rope->e, ERR_FORMAT, "%s: rope_theta is %g, expected more than 1 for rope_type yarn",
                       rope->where, r->theta);
    return 0;
}

/* New style rope_parameters before old style rope_scaling before the flat keys, key by key. */
static int read_rope(struct config *c, struct json_view *v)
{
    const json_t *fresh = json_view_object(v, "rope_parameters");
    const json_t *old = json_view_object(v, "rope_scaling");
    struct json_view rope = {.objects = {fresh, old}, .where = v->where, .e = v->e, .rc = v->rc};
    struct json_view all = rope;
    all.objects[2] = v->objects[0];
    all.objects[3] = v->objects[1];

    c->rope.truncate = true;
    c->rope.theta = json_view_real_or(&all, "rope_theta", 10000, 1, BIG);
    double part = json_view_real_or(&all, "partial_rotary_factor", 0.25, 0, 1);
    const char *type = json_view_text_or(&rope, "rope_type", NULL);
    if (!type)
        type = json_view_text_or(&rope, "type", "default");
    if (all.rc < 0 || rope.rc < 0)
        return all.rc < 0 ? all.rc : rope.rc;

    bool mla = c->family == FAMILY_DEEPSEEK3;
    c->rotary_dim = mla ? c->rope_dim : (uint32_t)((double)c->head_dim * part);
    if (c->rotary_dim == 0 || c->rotary_dim % 2 != 0)
        return err_set(v->e, ERR_FORMAT, "%s: %s: %u rotary channels, expected an even number above 0",
                       v->where, mla ? "qk_rope_head_dim" : "partial_rotary_factor", c->rotary_dim);
    if (!strcmp(type, "default"))
        return 0;
    if (!mla || strcmp(type, "yarn") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: rope_type is %s, expected default%s", v->where, type,
                       mla ? " or yarn" : "");
    return read_yarn(&c->rope, &rope);
}

/* --- Qwen3.5-MoE --- */

static int read_layer_types(struct config *c, struct json_view *v, const json_t *types)
{
    if (json_array_size(types) != c->n_layers)
        return err_set(v->e, ERR_FORMAT, "%s: layer_types has %zu entries, expected %u (num_hidden_layers)",
                       v->where, json_array_size(types), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && !strcmp(type, "full_attention"))
            c->layers[i] = LAYER_ATTENTION;
        else if (type && !strcmp(type, "linear_attention"))
            c->layers[i] = LAYER_DELTA;
        else
            return err_set(v->e, ERR_UNSUPPORTED,
                           "%s: layer_types[%u] is %s, expected linear_attention or full_attention", v->where,
                           i, type ? type : "no string");
    }
    return 0;
}

static int read_qwen_layers(struct config *c, struct json_view *v)
{
    uint32_t every = json_view_u32_or(v, "full_attention_interval", 4, 1, MAX_LAYERS);
    const json_t *types = json_view_array(v, "layer_types");
    if (v->rc < 0)
        return v->rc;
    if (types)
        return read_layer_types(c, v, types);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i] = (i + 1) % every == 0 ? LAYER_ATTENTION : LAYER_DELTA;
    return 0;
}

static int check_qwen(const struct config *c, const char *where, struct moeflux_err *e)
{
    const struct {
        const char *what;
        uint64_t value, of;
    } multiples[] = {
        {"num_attention_heads", c->n_heads, c->n_kv_heads},
        {"linear_num_value_heads", c->n_v_heads, c->n_k_heads},
        {"shared_expert_intermediate_size", c->shared_inner, CONFIG_GROUP},
        {"num_attention_heads * head_dim", (uint64_t)c->n_heads * c->head_dim, CONFIG_GROUP},
        {"linear_num_value_heads * linear_value_head_dim", (uint64_t)c->n_v_heads * c->v_head_dim,
         CONFIG_GROUP},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof multiples / sizeof *multiples && rc == 0; i++)
        rc = check_multiple(multiples[i].what, multiples[i].value, multiples[i].of, where, e);
    return rc;
}

static int read_qwen(struct config *c, struct json_view *v)
{
    uint32_t even_heads = (c->hidden + c->n_heads - 1) / c->n_heads;
    c->n_kv_heads = json_view_u32(v, "num_key_value_heads", 1, MAX_HEADS);
    c->head_dim = json_view_u32_or(v, "head_dim", even_heads, 1, MAX_HEAD_DIM);
    c->n_k_heads = json_view_u32(v, "linear_num_key_heads", 1, MAX_HEADS);
    c->n_v_heads = json_view_u32(v, "linear_num_value_heads", 1, MAX_HEADS);
    c->k_head_dim = json_view_u32(v, "linear_key_head_dim", 1, MAX_HEAD_DIM);
    c->v_head_dim = json_view_u32(v, "linear_value_head_dim", 1, MAX_HEAD_DIM);
    c->conv_kernel = json_view_u32_or(v, "linear_conv_kernel_dim", 4, 2, MAX_CONV);
    c->n_experts = json_view_u32(v, "num_experts", 1, MAX_EXPERTS);
    c->top_k = json_view_u32(v, "num_experts_per_tok", 1, MAX_EXPERTS);
    c->shared_inner = json_view_u32(v, "shared_expert_intermediate_size", 1, MAX_INNER);
    c->routed_scaling = 1;
    if (v->rc < 0)
        return v->rc;
    if (!json_view_get(v, "head_dim") && c->hidden % c->n_heads != 0)
        return err_set(v->e, ERR_FORMAT,
                       "%s: head_dim is missing and hidden_size %u is not a multiple of %u heads", v->where,
                       c->hidden, c->n_heads);
    int rc = check_qwen(c, v->where, v->e);
    return rc < 0 ? rc : read_qwen_layers(c, v);
}

/* --- DeepSeek-V3 --- */

static int check_deepseek(const struct config *c, const char *where, struct moeflux_err *e)
{
    const struct {
        const char *what;
        uint64_t value, of;
    } multiples[] = {
        {"intermediate_size", c->dense_inner, CONFIG_GROUP},
        {"q_lora_rank", c->q_lora_rank, CONFIG_GROUP},
        {"kv_lora_rank", c->kv_lora_rank, CONFIG_GROUP},
        {"num_attention_heads * v_head_dim", (uint64_t)c->n_heads * c->v_dim, CONFIG_GROUP},
        {"n_routed_experts", c->n_experts, c->n_group},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof multiples / sizeof *multiples && rc == 0; i++)
        rc = check_multiple(multiples[i].what, multiples[i].value, multiples[i].of, where, e);
    if (rc < 0)
        return rc;
    uint32_t per_group = c->n_experts / c->n_group;
    if (c->n_group > 1 && per_group < 2)
        return err_set(e, ERR_FORMAT, "%s: n_group is %u of %u experts, expected groups of at least 2", where,
                       c->n_group, c->n_experts);
    if (c->topk_group > c->n_group)
        return err_set(e, ERR_FORMAT, "%s: topk_group is %u, expected at most n_group = %u", where,
                       c->topk_group, c->n_group);
    if (c->top_k > (uint64_t)c->topk_group * per_group)
        return err_set(e, ERR_FORMAT, "%s: num_experts_per_tok is %u, expected at most %u (%u groups of %u)",
                       where, c->top_k, c->topk_group * per_group, c->topk_group, per_group);
    return 0;
}

static int read_deepseek_router(struct config *c, struct json_view *v)
{
    c->n_experts = json_view_u32(v, "n_routed_experts", 1, MAX_EXPERTS);
    c->top_k = json_view_u32(v, "num_experts_per_tok", 1, MAX_EXPERTS);
    c->n_group = json_view_u32_or(v, "n_group", 1, 1, MAX_EXPERTS);
    c->topk_group = json_view_u32_or(v, "topk_group", 1, 1, MAX_EXPERTS);
    c->routed_scaling = (float)json_view_real_or(v, "routed_scaling_factor", 1, 1e-6, 1e6);
    const char *method = json_view_text_or(v, "topk_method", "noaux_tc");
    const char *scoring = json_view_text_or(v, "scoring_func", "sigmoid");
    if (v->rc < 0)
        return v->rc;
    if (strcmp(method, "noaux_tc") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: topk_method is %s, expected noaux_tc", v->where, method);
    if (strcmp(scoring, "sigmoid") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: scoring_func is %s, expected sigmoid", v->where, scoring);
    return 0;
}

static int read_deepseek_ffn(struct config *c, struct json_view *v)
{
    uint32_t n_shared = json_view_u32_or(v, "n_shared_experts", 1, 1, MAX_SHARED);
    c->shared_inner = c->moe_inner * n_shared;
    c->first_dense = json_view_u32_or(v, "first_k_dense_replace", 0, 0, MAX_LAYERS);
    c->moe_freq = json_view_u32_or(v, "moe_layer_freq", 1, 1, MAX_LAYERS);
    uint32_t n_dense = 0;
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        n_dense += !config_has_experts(c, i);
    if (n_dense > 0)
        c->dense_inner = json_view_u32(v, "intermediate_size", 1, MAX_INNER);
    if (v->rc < 0)
        return v->rc;
    if (n_dense == c->n_layers)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: first_k_dense_replace %u leaves no layer with experts",
                       v->where, c->first_dense);
    return 0;
}

static int read_deepseek(struct config *c, struct json_view *v)
{
    c->q_lora_rank = json_view_u32_or(v, "q_lora_rank", 0, 1, MAX_RANK);
    c->kv_lora_rank = json_view_u32(v, "kv_lora_rank", 1, MAX_RANK);
    c->nope_dim = json_view_u32(v, "qk_nope_head_dim", 1, MAX_HEAD_DIM);
    c->rope_dim = json_view_u32(v, "qk_rope_head_dim", 1, MAX_HEAD_DIM);
    c->v_dim = json_view_u32(v, "v_head_dim", 1, MAX_HEAD_DIM);
    c->rope_interleave = json_view_bool_or(v, "rope_interleave", true);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i] = LAYER_MLA;
    int rc = read_deepseek_router(c, v);
    if (rc == 0)
        rc = read_deepseek_ffn(c, v);
    return rc < 0 ? rc : check_deepseek(c, v->where, v->e);
}

static int read_all(struct config *c, struct json_view *v)
{
    int rc = read_family(c, v);
    if (rc == 0)
        rc = check_supported(v);
    if (rc == 0)
        rc = read_common(c, v);
    if (rc < 0)
        return rc;
    c->layers = mem_new(c->n_layers, sizeof *c->layers, v->e);
    if (!c->layers)
        return ERR_MEMORY;
    rc = c->family == FAMILY_QWEN35MOE ? read_qwen(c, v) : read_deepseek(c, v);
    if (rc < 0)
        return rc;
    if (c->top_k > c->n_experts)
        return err_set(v->e, ERR_FORMAT, "%s: num_experts_per_tok is %u, expected at most %u experts",
                       v->where, c->top_k, c->n_experts);
    return read_rope(c, v);
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
        rc = config_add_eos(c, root, where, e);
    if (rc == 0 && text)
        rc = config_add_eos(c, text, where, e);
    if (rc < 0)
        config_free(c);
    return rc;
}

void config_free(struct config *c)
{
    free(c->layers);
    *c = (struct config){0};
}
