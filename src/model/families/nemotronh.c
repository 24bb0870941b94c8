/* Nemotron-3: a layer is a single part, Mamba-2, grouped-query attention without rotary angles, or experts
 * without gates (relu^2), with a biased router and a shared expert. In Super and Ultra the experts read a
 * latent. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* The kinds of layers: a letter of hybrid_override_pattern, and the names in layers_block_type, the second of
 * older files. */
static const struct {
    const char *name, *older;
    enum part_kind kind;
    char letter;
} kinds[] = {{"linear_attention", "mamba", PART_MAMBA, 'M'},
             {"full_attention", "attention", PART_ATTENTION, '*'},
             {"moe", "moe", PART_EXPERTS, 'E'},
             {"mlp", "mlp", PART_DENSE, '-'}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void read_layers(struct config *c, struct json_view *v)
{
    static const char list[] = "layers_block_type", pattern[] = "hybrid_override_pattern";
    const json_t *types = config_layers_list(c, v, list);
    const char *letters = types ? NULL : json_view_text_or(v, pattern, NULL);
    if (v->rc == 0 && !types && (!letters || strlen(letters) != c->n_layers))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s: expected a letter for each of %u layers", v->where,
                        pattern, c->n_layers);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        const json_t *type = json_array_get(types, i);
        size_t k = 0;
        while (k < N_KINDS &&
               (letters ? letters[i] != kinds[k].letter
                        : !json_is_text(type, kinds[k].name) && !json_is_text(type, kinds[k].older)))
            k++;
        if (k < N_KINDS)
            config_set_only_block(c, i, kinds[k].kind, "norm.weight");
        else
            v->rc = err_set(v->e, ERR_UNSUPPORTED,
                            "%s: %s[%u]: expected Mamba-2, attention, experts or a dense part", v->where,
                            letters ? pattern : list, i);
    }
}

/* Returns a bound of time steps. Python writes an infinite one as Infinity, transformers as an object. */
static float bound_of(struct json_view *v, const json_t *list, size_t i, double fallback)
{
    const json_t *item = json_array_get(list, i);
    double x = item ? json_number_value(item) : fallback;
    if (json_is_text(json_object_get(item, "__float__"), "Infinity") || x > 1e30)
        x = INFINITY;
    else if (v->rc == 0 && item && !json_is_number(item))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: time_step_limit[%zu]: expected a number", v->where, i);
    return (float)x;
}

static void read_mamba(struct json_view *v, struct mamba_config *m)
{
    m->n_heads = json_view_u32(v, "mamba_num_heads", 1, CONFIG_MAX_HEADS);
    m->n_groups = json_view_u32(v, "n_groups", 1, CONFIG_MAX_HEADS);
    m->head_dim = json_view_u32(v, "mamba_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    m->state_dim = json_view_u32(v, "ssm_state_size", 1, CONFIG_MAX_HEAD_DIM);
    m->conv_kernel = json_view_u32_or(v, "conv_kernel", 4, 2, CONFIG_MAX_CONV);
    m->conv_biased = json_view_bool_or(v, "use_conv_bias", true);
    config_check_multiple(v, "mamba_num_heads", m->n_heads, v->rc == 0 ? m->n_groups : 1);
    const json_t *limits = json_view_array(v, "time_step_limit");
    if (v->rc == 0 && limits && json_array_size(limits) != 2)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: time_step_limit has %zu entries, expected 2", v->where,
                        json_array_size(limits));
    m->low = bound_of(v, limits, 0, 0);
    m->high = bound_of(v, limits, 1, INFINITY);
    if (v->rc == 0 && !(m->low >= 0 && m->low < m->high))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: time_step_limit: %g to %g, expected a range from 0 on",
                        v->where, (double)m->low, (double)m->high);
}

static void read(struct config *c, struct json_view *v)
{
    static const char *const off[] = {"use_bias", "mamba_proj_bias", "mlp_bias", "attention_bias"};
    struct gqa_config *g = &config_add_part(c, PART_ATTENTION)->gqa;
    struct mamba_config *m = &config_add_part(c, PART_MAMBA)->mamba;
    c->gateless = true;
    const char *eps = json_view_get(v, "norm_eps") ? "norm_eps" : "layer_norm_epsilon";
    if (!json_view_get(v, "rms_norm_eps"))
        c->rms_eps = (float)json_view_real_or(v, eps, 1e-5, 1e-30, 1);
    c->moe_latent = json_view_u32_or(v, "moe_latent_size", 0, 1, CONFIG_MAX_HIDDEN);
    config_check_multiple(v, "moe_latent_size", c->moe_latent, PRODUCT_COLS);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        config_expect(v, off[i], false);
    config_expect_text(v, "mlp_hidden_act", "relu2");
    config_expect_text(v, "mamba_hidden_act", "silu");
    config_need(v, "routed_scaling_factor");
    read_layers(c, v);
    read_mamba(v, m);
    config_read_attention(c, v, g, 1);
    c->ropes[0].none = true;
    config_read_sigmoid_router(c, v);
    uint32_t n_shared = json_view_u32_or(v, "n_shared_experts", 1, 1, 1);
    c->shared_inner = n_shared * json_view_u32(v, "moe_shared_expert_intermediate_size", 1, CONFIG_MAX_INNER);
    config_check_multiple(v, "moe_shared_expert_intermediate_size", c->shared_inner, PRODUCT_COLS);
    config_read_dense(c, v, "intermediate_size");
}

/* Names of the checkpoint, then of mlx-lm. */
static const char *const renamed[][2] = {
    {"model.embeddings.", "model.embed_tokens."},
    {"model.norm_f.", "model.norm."},
    {".mixer.q_proj.", ".self_attn.q_proj."},
    {".mixer.k_proj.", ".self_attn.k_proj."},
    {".mixer.v_proj.", ".self_attn.v_proj."},
    {".mixer.o_proj.", ".self_attn.o_proj."},
    {".mixer.gate.e_score_correction.bias", ".mixer.gate.e_score_correction_bias"},
    {".mixer.gate.", ".mlp.gate."},
    {".mixer.fc1_latent_proj.", ".mlp.fc1_latent_proj."},
    {".mixer.fc2_latent_proj.", ".mlp.fc2_latent_proj."},
    {".mixer.experts.", ".mlp.experts."},
    {".mixer.shared_experts.", ".mlp.shared_experts."},
    {".mixer.up_proj.", ".mlp.up_proj."},
    {".mixer.down_proj.", ".mlp.down_proj."},
    {".mixer.switch_mlp.fc1.", ".mlp.switch_mlp.up_proj."},
    {".mixer.switch_mlp.fc2.", ".mlp.switch_mlp.down_proj."},
    {0}};

const struct family family_nemotronh = {
    .name = "Nemotron-3",
    .id = 20,
    .types = {"nemotron_h"},
    .own_key = "hybrid_override_pattern",
    .read = read,
    .layers_key = "layers_block_type",
    .renamed = renamed,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
