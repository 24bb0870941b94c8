/* Gemma 4 with experts (26B-A4B): grouped-query attention, with a window in most layers and larger heads in
 * the others; a dense part next to the experts; a norm after each part. Its vision and audio are left out.
 * Models with per-layer inputs or shared keys and values are refused. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/f16.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* The mixers of layers with a window, and of the others. */
struct mixers {
    struct part_config *sliding, *full;
};

static void refuse(struct json_view *v, const char *key, const char *found, const char *expected)
{
    if (v->rc == 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %s, expected %s", v->where, key, found, expected);
}

/* Refuses what smaller and dense models of this name have, and what no model has. */
static void check_options(struct json_view *v)
{
    const char *act = json_view_text_or(v, "hidden_activation", "gelu_pytorch_tanh");
    const char *both_ways = json_view_text_or(v, "use_bidirectional_attention", "vision");
    if (v->rc == 0 && strcmp(act, "gelu_pytorch_tanh") != 0)
        refuse(v, "hidden_activation", act, "gelu_pytorch_tanh");
    if (v->rc == 0 && strcmp(both_ways, "vision") != 0)
        refuse(v, "use_bidirectional_attention", both_ways, "vision");
    config_expect_number(v, "hidden_size_per_layer_input", 256, 0);
    config_expect_number(v, "num_kv_shared_layers", 0, 0);
    config_expect_number(v, "query_pre_attn_scalar", 1, 1);
    config_expect(v, "use_double_wide_mlp", false);
    config_expect(v, "attention_bias", false);
    config_expect(v, "rope_traditional", false);
    if (v->rc == 0 && json_view_get(v, "attn_logit_softcapping"))
        refuse(v, "attn_logit_softcapping", "a number", "null");
    if (v->rc == 0 && json_view_get(v, "rope_scaling"))
        refuse(v, "rope_scaling", "an object", "rope_parameters for each kind of layer");
}

/* ---- heads ---- */

/* Returns the object of layer i in per_layer_config; NULL: it has none. */
static const json_t *overrides_of(struct json_view *v, const json_t *all, uint32_t i)
{
    const char *key;
    json_t *value;
    const json_t *one = config_override(all, i);
    json_object_foreach((json_t *)(uintptr_t)one, key, value)
    {
        if (v->rc == 0 && strcmp(key, "head_dim") != 0 && strcmp(key, "num_key_value_heads") != 0)
            v->rc = err_set(v->e, ERR_UNSUPPORTED,
                            "%s: per_layer_config.%u.%s, expected head_dim and num_key_value_heads alone",
                            v->where, i, key);
    }
    return one;
}

/* Reads each layer's own head_dim and num_key_value_heads, which layers of a kind share. */
static void read_overrides(struct config *c, struct json_view *v, const json_t *all)
{
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        const json_t *one = overrides_of(v, all, i);
        struct json_view own = {
            .objects = {one, v->objects[0], v->objects[1]}, .where = v->where, .e = v->e, .rc = v->rc};
        struct gqa_config *g = &c->parts[c->layers[i].blocks[0].part].gqa;
        uint32_t head_dim = json_view_u32_or(&own, "head_dim", 256, 1, CONFIG_MAX_HEAD_DIM);
        uint32_t n_kv_heads = json_view_u32(&own, "num_key_value_heads", 1, CONFIG_MAX_HEADS);
        v->rc = own.rc;
        if (v->rc == 0 && g->head_dim && (g->head_dim != head_dim || g->n_kv_heads != n_kv_heads))
            v->rc = err_set(v->e, ERR_UNSUPPORTED,
                            "%s: per_layer_config: layer %u has %u heads of %u, expected %u of %u as others "
                            "of its kind",
                            v->where, i, n_kv_heads, head_dim, g->n_kv_heads, g->head_dim);
        g->head_dim = head_dim;
        g->n_kv_heads = n_kv_heads;
    }
}

static void read_heads(struct config *c, struct json_view *v, const struct mixers *m)
{
    struct gqa_config *sliding = &m->sliding->gqa, *full = &m->full->gqa;
    const json_t *all = config_overrides(c, v);
    bool is_shared = json_view_bool_or(v, "attention_k_eq_v", false);
    sliding->n_heads = json_view_u32(v, "num_attention_heads", 1, CONFIG_MAX_HEADS);
    if (all) {
        read_overrides(c, v, all);
    } else {
        sliding->head_dim = json_view_u32_or(v, "head_dim", 256, 1, CONFIG_MAX_HEAD_DIM);
        sliding->n_kv_heads = json_view_u32(v, "num_key_value_heads", 1, CONFIG_MAX_HEADS);
        full->head_dim = json_view_u32_or(v, "global_head_dim", 512, 1, CONFIG_MAX_HEAD_DIM);
        full->n_kv_heads = is_shared ? json_view_u32_or(v, "num_global_key_value_heads", sliding->n_kv_heads,
                                                        1, CONFIG_MAX_HEADS)
                                     : sliding->n_kv_heads;
    }
    sliding->window = json_view_u32_or(v, "sliding_window", 512, 1, UINT32_MAX);
    full->n_heads = sliding->n_heads;
    full->keys_are_values = is_shared;
    for (int i = 0; v->rc == 0 && i < 2; i++) {
        struct gqa_config *g = i ? full : sliding;
        if (!g->head_dim) /* no layer has it */
            *g = (struct gqa_config){.n_heads = g->n_heads, .n_kv_heads = 1, .head_dim = CONFIG_FOUR};
        g->norm = QK_NORM_HEADS;
        g->norms_values = true;
        g->scale = 1;
        config_check_multiple(v, "num_attention_heads", g->n_heads, g->n_kv_heads);
        config_check_multiple(v, i ? "global_head_dim" : "head_dim", g->head_dim, CONFIG_FOUR);
    }
}

/* ---- rotary angles ---- */

/* Reads the table of a kind of layers. Proportional: the first part of the pairs turns, at the speeds that
 * they have if all do. */
static void read_rope(struct json_view *v, const char *kind, const struct gqa_config *g, bool is_full,
                      struct rope_config *r)
{
    const json_t *ropes = json_view_object(v, "rope_parameters"), *own = json_member(ropes, kind);
    if (v->rc == 0 && ropes && !json_is_object(own))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: rope_parameters.%s: expected an object", v->where, kind);
    struct json_view rope = {.objects = {own}, .where = v->where, .e = v->e, .rc = v->rc};
    const char *type = json_view_text_or(&rope, "rope_type", !ropes && is_full ? "proportional" : "default");
    double part = json_view_real_or(&rope, "partial_rotary_factor", !ropes && is_full ? 0.25 : 1, 0, 1);
    r->dim = g->head_dim;
    r->theta = json_view_real_or(&rope, "rope_theta", !ropes && is_full ? 1e6 : 1e4, 1, 1e30);
    r->factor = json_view_real_or(&rope, "factor", 1, 1e-3, 1e30);
    v->rc = rope.rc;
    if (v->rc < 0)
        return;
    if (!strcmp(type, "proportional")) {
        r->n_pairs = (uint32_t)(part * g->head_dim / 2);
        if (r->n_pairs == 0)
            v->rc = err_set(v->e, ERR_UNSUPPORTED,
                            "%s: rope_parameters.%s: partial_rotary_factor is %g of %u channels, expected a "
                            "pair or more",
                            v->where, kind, part, g->head_dim);
    } else if (strcmp(type, "default") != 0) {
        refuse(v, "rope_type", type, "default or proportional");
    } else if (part < 1 || r->factor != 1) {
        v->rc = err_set(v->e, ERR_UNSUPPORTED,
                        "%s: rope_parameters.%s: rope_type default with partial_rotary_factor or factor, "
                        "expected proportional",
                        v->where, kind);
    }
}

/* ---- layers ---- */

static uint32_t index_of(const struct config *c, const struct part_config *p)
{
    return (uint32_t)(p - c->parts);
}

/* Every sixth layer and the last one have no window, if the configuration lists none. */
static void read_layers(struct config *c, struct json_view *v, const struct mixers *m)
{
    struct part_config *dense = config_add_part(c, PART_DENSE), *experts = config_add_part(c, PART_EXPERTS);
    for (uint32_t i = 0; i < c->n_layers; i++)
        config_set_layer(c, i, (i + 1) % 6 == 0 || i + 1 == c->n_layers ? m->full : m->sliding, true);
    const struct config_layer_type types[] = {{"sliding_attention", m->sliding}, {"full_attention", m->full}};
    config_read_layer_types(c, v, types, 2);
    if (v->rc == 0 && c->layers[c->n_layers - 1].blocks[0].part != index_of(c, m->full))
        refuse(v, "the last one of layer_types", "sliding_attention", "full_attention");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        struct config_layer *y = &c->layers[i];
        y->n_blocks = 3;
        y->blocks[0].post = "post_attention_layernorm.weight";
        y->blocks[1] = (struct config_block){.part = index_of(c, dense),
                                             .norm = "pre_feedforward_layernorm.weight",
                                             .post = "post_feedforward_layernorm_1.weight",
                                             .keeps = true};
        y->blocks[2] = (struct config_block){.part = index_of(c, experts),
                                             .norm = "pre_feedforward_layernorm_2.weight",
                                             .post = "post_feedforward_layernorm_2.weight",
                                             .outer = "post_feedforward_layernorm.weight",
                                             .factor = "layer_scalar"};
    }
    dense->dense.inner = json_view_u32(v, "intermediate_size", 1, CONFIG_MAX_INNER);
    config_check_multiple(v, "intermediate_size", dense->dense.inner, CONFIG_FOUR);
}

/* Returns sqrt(hidden) as the model computes it: in the type of its numbers, bfloat16 if none is named. */
static float embed_factor(const struct config *c, struct json_view *v)
{
    const char *type = json_view_text_or(v, "dtype", json_view_text_or(v, "torch_dtype", "bfloat16"));
    float exact = (float)sqrt((double)c->hidden);
    if (v->rc < 0 || !strcmp(type, "float32"))
        return exact;
    if (!strcmp(type, "float16"))
        return f16_to_float(f16_from_float(exact));
    if (strcmp(type, "bfloat16") != 0)
        refuse(v, "dtype", type, "bfloat16, float16 or float32");
    return bf16_to_float(bf16_from_float(exact));
}

static void read(struct config *c, struct json_view *v)
{
    const struct mixers m = {config_add_part(c, PART_ATTENTION), config_add_part(c, PART_ATTENTION)};
    check_options(v);
    c->n_experts = json_view_u32(v, "num_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, "top_k_experts", 1, c->n_experts ? c->n_experts : 1);
    c->router = (struct router_config){.scale = 1, .norm = true, .own_norm = true, .factors = true};
    c->gelu = true;
    c->tied = json_view_bool_or(v, "tie_word_embeddings", true);
    c->softcap = (float)json_view_real_or(v, "final_logit_softcapping", 0, 1e-3, 1e6);
    c->embed_factor = embed_factor(c, v);
    read_layers(c, v, &m);
    read_heads(c, v, &m);
    m.full->gqa.rope = 1;
    c->n_ropes = 2;
    read_rope(v, "sliding_attention", &m.sliding->gqa, false, &c->ropes[0]);
    read_rope(v, "full_attention", &m.full->gqa, true, &c->ropes[1]);
}

/* MLX's names, transformers'. */
static const char *const renamed[][2] = {{".experts.switch_glu.", ".mlp.switch_mlp."},
                                         {".experts.gate_up_proj", ".mlp.experts.gate_up_proj"},
                                         {".experts.down_proj", ".mlp.experts.down_proj"},
                                         {".router.proj.", ".mlp.gate."},
                                         {0}};

const struct family family_gemma4 = {
    .name = "Gemma 4",
    .id = 10,
    .types = {"gemma4", "gemma4_text"},
    .own_key = "top_k_experts",
    .moe_switch = "enable_moe_block",
    .read = read,
    .renamed = renamed,
    .mlx_prefix = "language_model.",
    .gate_bits = 8,
    .overrides = true,
};
