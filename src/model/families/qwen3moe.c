/* Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder): grouped-query attention without gates in all
 * layers, experts without a shared expert, dense layers if the configuration lists some. */
#include <jansson.h>

#include "base/err.h"
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "base/json.h"

/* Reads which layers are dense: those in mlp_only_layers, and those whose number is no multiple of
 * decoder_sparse_step. */
static int read_layers(struct config *c, struct json_view *v)
{
    uint32_t step = json_view_u32_or(v, "decoder_sparse_step", 1, 1, CONFIG_MAX_LAYERS);
    const json_t *dense = json_view_array(v, "mlp_only_layers");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        c->layers[i] = (struct config_layer){MIXER_ATTENTION, (i + 1) % step == 0, false};
    for (size_t i = 0; v->rc == 0 && i < json_array_size(dense); i++) {
        const json_t *layer = json_array_get(dense, i);
        json_int_t n = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (n < 0 || n >= c->n_layers)
            return err_set(v->e, ERR_FORMAT, "%s: mlp_only_layers[%zu]: expected a layer below %u", v->where,
                           i, c->n_layers);
        c->layers[n].has_experts = false;
    }
    return v->rc < 0 ? v->rc : config_read_dense(c, v);
}

static int read(struct config *c, struct json_view *v)
{
    /* Newer exports have another name for num_experts. */
    bool is_newer = !json_view_get(v, "num_experts") && json_view_get(v, "num_local_experts");
    c->n_experts = json_view_u32(v, is_newer ? "num_local_experts" : "num_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, "num_experts_per_tok", 1, CONFIG_MAX_EXPERTS);
    c->norm_topk = json_view_bool_or(v, "norm_topk_prob", false);
    c->attn_norm = QK_NORM_HEADS;
    int rc = v->rc < 0 ? v->rc : config_expect(v, "use_sliding_window", false);
    if (rc == 0)
        rc = config_expect(v, "attention_bias", false);
    if (rc == 0)
        rc = config_read_attention(c, v, 1);
    if (rc == 0)
        rc = read_layers(c, v);
    return rc < 0 ? rc : config_read_rope(c, v, true);
}

const struct family family_qwen3moe = {
    .name = "Qwen3-MoE",
    .id = 2,
    .types = {"qwen3_moe"},
    .chat = "qwen3",
    .read = read,
    .mlx_prefix = "",
    .gate_bits = 8,
};
