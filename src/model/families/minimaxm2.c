/* MiniMax-M2: grouped-query attention with one norm over all heads' queries and one over all keys; experts
 * with a biased router in all layers, no shared expert. Earlier models of this name have linear attention and
 * are refused. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"

/* Checks that all layers have softmax attention: 1 in attn_type_list, full_attention in layer_types. Exports
 * have one list, the other or neither. */
static int check_layers(const struct config *c, struct json_view *v)
{
    const json_t *numbers = json_view_array(v, "attn_type_list"), *types = json_view_array(v, "layer_types");
    for (size_t i = 0; v->rc == 0 && i < json_array_size(numbers) && i < c->n_layers; i++)
        if (json_integer_value(json_array_get(numbers, i)) != 1)
            return err_set(v->e, ERR_UNSUPPORTED, "%s: attn_type_list[%zu] is not 1, softmax attention",
                           v->where, i);
    for (size_t i = 0; v->rc == 0 && i < json_array_size(types) && i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, "full_attention") != 0)
            return err_set(v->e, ERR_UNSUPPORTED, "%s: layer_types[%zu] is %s, expected full_attention",
                           v->where, i, type ? type : "no string");
    }
    return v->rc;
}

/* Reads rotary_dim; newer exports have partial_rotary_factor instead. */
static int read_rotary(struct config *c, struct json_view *v)
{
    int rc = config_read_attention(c, v, 0.5);
    c->rotary_dim = json_view_u32_or(v, "rotary_dim", c->rotary_dim, 2, c->head_dim);
    if (rc < 0 || v->rc < 0)
        return rc < 0 ? rc : v->rc;
    const struct config_multiple even = {"rotary_dim", c->rotary_dim, 2};
    return config_check_multiples(&even, 1, v);
}

static int read(struct config *c, struct json_view *v)
{
    c->sigmoid = true;
    c->n_group = c->topk_group = 1;
    c->n_experts = json_view_u32(v, "num_local_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, "num_experts_per_tok", 1, CONFIG_MAX_EXPERTS);
    c->attn_norm = QK_NORM_ALL;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i] = (struct config_layer){MIXER_ATTENTION, true, false};
    int rc = v->rc < 0 ? v->rc : check_layers(c, v);
    if (rc == 0)
        rc = config_expect(v, "use_qk_norm", true);
    if (rc == 0)
        rc = config_expect(v, "attention_bias", false);
    if (rc == 0)
        rc = read_rotary(c, v);
    return rc < 0 ? rc : config_read_rope(c, v, true);
}

static const char *const renamed[][2] = {{".block_sparse_moe.", ".mlp."},
                                         {".w1.", ".gate_proj."},
                                         {".w2.", ".down_proj."},
                                         {".w3.", ".up_proj."},
                                         {0}};

const struct family family_minimaxm2 = {
    .name = "MiniMax-M2",
    .id = 6,
    .types = {"minimax_m2", "minimax"},
    .read = read,
    .inner_key = "intermediate_size",
    .renamed = renamed,
    .router_bias = "e_score_correction_bias",
    .mlx_prefix = "",
    .gate_bits = 8,
};
