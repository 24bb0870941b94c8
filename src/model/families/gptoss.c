/* gpt-oss: grouped-query attention with sinks and biases, and with a window in every other layer; experts
 * with biases and a clamped activation, a router with biases, no shared expert. */
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "model/stacks.h"

static void read(struct config *c, struct json_view *v)
{
    struct part_config *full = config_add_part(c, PART_ATTENTION),
                       *sliding = config_add_part(c, PART_ATTENTION);
    config_read_experts(c, v, "num_local_experts");
    c->router.norm = c->experts_biased = true;
    c->swiglu_limit = (float)json_view_real_or(v, "swiglu_limit", 7, 1e-3, 1e6);
    config_expect_number(v, "swiglu_alpha", 1.702, 1.702);
    full->gqa = (struct gqa_config){.biased = true, .out_biased = true, .sinks = true};
    config_expect(v, "attention_bias", true);
    config_set_layers(c, (const struct part_config *const[]){sliding, full}, 2);
    const struct config_layer_type types[] = {{"sliding_attention", sliding}, {"full_attention", full}};
    config_read_layer_types(c, v, types, 2);
    config_read_attention(c, v, &full->gqa, 1);
    sliding->gqa = full->gqa;
    sliding->gqa.window = json_view_u32(v, "sliding_window", 1, UINT32_MAX);
    config_read_rope(c, v, true);
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
    .adopt = stacks_split,
    .experts_by_columns = true,
    .mlx_prefix = "",
    .gate_bits = 8,
};
