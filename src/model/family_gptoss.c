/* gpt-oss: grouped-query attention with sinks and biases, in every other layer with a window; experts with biases and a limited
 * activation, of which a router with biases chooses; none shared. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"

static const char WINDOW[] = "sliding_attention", FULL[] = "full_attention";

/* Without layer_types every other layer has a window, the first one too. */
static int read_layers(struct config *c, struct json_view *v)
{
    const json_t *types = json_view_array(v, "layer_types");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        const char *type = types ? json_string_value(json_array_get(types, i)) : i % 2 ? FULL : WINDOW;
        if (!type || (strcmp(type, WINDOW) && strcmp(type, FULL)))
            return err_set(v->e, ERR_UNSUPPORTED, "%s: layer_types[%u] is %s, expected %s or %s", v->where, i,
                           type ? type : "missing", WINDOW, FULL);
        c->layers[i] = (struct config_layer){MIXER_ATTENTION, true, !strcmp(type, WINDOW)};
    }
    return v->rc;
}

/* Biases of all experts are counted in 32 bits. */
static int check_biases(const struct config *c, const struct json_view *v)
{
    uint64_t most = c->hidden > 2 * c->moe_inner ? c->hidden : 2 * c->moe_inner;
    if (most * c->n_experts <= UINT32_MAX)
        return 0;
    return err_set(v->e, ERR_UNSUPPORTED, "%s: biases of %u experts of %u and %u rows, expected fewer",
                   v->where, c->n_experts, c->moe_inner, c->hidden);
}

static int read(struct config *c, struct json_view *v)
{
    /* Older exports have another name for it. */
    bool is_older = !json_view_get(v, "num_experts_per_tok") && json_view_get(v, "experts_per_token");
    c->n_experts = json_view_u32(v, "num_local_experts", 1, CONFIG_MAX_EXPERTS);
    c->top_k =
        json_view_u32(v, is_older ? "experts_per_token" : "num_experts_per_tok", 1, CONFIG_MAX_EXPERTS);
    c->norm_topk = c->attn_biased = c->attn_out_biased = c->attn_sinks = c->experts_biased = true;
    c->attn_window = json_view_u32(v, "sliding_window", 1, UINT32_MAX);
    c->swiglu_limit = (float)json_view_real_or(v, "swiglu_limit", 7, 1e-3, 1e6);
    int rc = v->rc < 0 ? v->rc : config_expect(v, "attention_bias", true);
    if (rc == 0)
        rc = read_layers(c, v);
    if (rc == 0)
        rc = check_biases(c, v);
    if (rc == 0)
        rc = config_read_attention(c, v, 1);
    return rc < 0 ? rc : config_read_rope(c, v, true);
}

static const char *const renamed[][2] = {
    {".mlp.router.", ".mlp.gate."}, {".mlp.experts.", ".mlp.switch_mlp."}, {0}};

const struct family family_gptoss = {
    .name = "gpt-oss",
    .id = 7,
    .types = {"gpt_oss"},
    .read = read,
    .inner_key = "intermediate_size",
    .renamed = renamed,
    .router_bias = "gate.bias",
    .mlx_prefix = "",
    .gate_bits = 8,
};
