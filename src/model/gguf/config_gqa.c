/* Makes configurations of families with grouped-query attention of several kinds: Gemma 4, MiniMax-M3,
 * Step-3.5, MiMo-V2; and of Nemotron-3. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/ggml_type.h"
#include "base/gguf.h"
#include "base/mem.h"
#include "model/config_parts.h"
#include "model/gguf/making.h"

/* ---- Gemma 4 ---- */

enum { MOST_FREQUENCIES = 4096 };
static const char rope_freqs[] = "rope_freqs.weight";

/* Reads the divisors of angles. Returns their number. */
static uint64_t read_frequencies(struct making *m, float factors[MOST_FREQUENCIES])
{
    const struct gguf_tensor *t = gguf_find_tensor(m->g, rope_freqs);
    uint64_t n = t ? t->shape[0] : 0;
    if (!t || t->type != GGML_TYPE_F32 || t->n_dims != 1 || n == 0 || n > MOST_FREQUENCIES ||
        t->bytes != n * sizeof *factors) {
        m->rc = err_set(m->e, ERR_FORMAT, "%s: tensor %s: expected F32 numbers for half of a head's channels",
                        making_path_of(m), rope_freqs);
        return 0;
    }
    const struct open_file *f = &m->g->files[t->file];
    m->rc = file_read_at(f->fd, f->path, factors, t->bytes, t->off, m->e);
    return n;
}

/* Returns the share of a global layer's pairs that turn: rope_freqs has 1 for these, and for the others a
 * number so large that their angles vanish. */
static double turning_share(struct making *m)
{
    float factors[MOST_FREQUENCIES];
    uint64_t n = m->rc < 0 ? 0 : read_frequencies(m, factors), turning = 0;
    uint64_t head_dim = making_whole(m, "attention.key_length", -1);
    if (m->rc < 0)
        return 1;
    while (turning < n && factors[turning] == 1)
        turning++;
    for (uint64_t i = turning; m->rc == 0 && i < n; i++)
        if (!(factors[i] > 1e20f))
            m->rc = err_set(m->e, ERR_UNSUPPORTED,
                            "%s: tensor %s: %g at %" PRIu64 ", expected 1 or, from some place on, over 1e20",
                            making_path_of(m), rope_freqs, (double)factors[i], i);
    if (m->rc == 0 && n != head_dim / 2)
        m->rc = err_set(m->e, ERR_FORMAT,
                        "%s: tensor %s: %" PRIu64 " numbers, expected half of attention.key_length",
                        making_path_of(m), rope_freqs, n);
    /* A quarter of a pair more, so that rounding does not lose one. */
    return turning == n ? 1 : ((double)turning + 0.25) / (double)n;
}

/* Puts the kinds of layers and each one's heads. */
static void put_gemma4_layers(struct making *m)
{
    static const char pattern[] = "attention.sliding_window_pattern", heads[] = "attention.head_count_kv";
    const struct gguf_value *v = making_find(m, pattern), *kv = making_find(m, heads);
    uint64_t n = m->n_layers, full = making_whole(m, "attention.key_length", -1),
             sliding = making_whole(m, "attention.key_length_swa", -1), one = making_whole(m, heads, -1),
             *is_sliding = NULL, *list = NULL;
    if (m->rc == 0 && (!v || v->n != n))
        making_fail_key(m, pattern, "expected true or false for each layer");
    if (m->rc == 0)
        m->rc = gguf_u64_list(m->g, v, &is_sliding, m->e);
    if (m->rc == 0 && kv->is_list && kv->n != n)
        making_fail_key(m, heads, "expected a number for each layer");
    if (m->rc == 0 && kv->is_list)
        m->rc = gguf_u64_list(m->g, kv, &list, m->e);
    json_t *types = json_array(), *all = json_object();
    for (uint64_t i = 0; m->rc == 0 && i < n; i++) {
        char layer[24];
        snprintf(layer, sizeof layer, "%" PRIu64, i);
        json_array_append_new(types, json_string(is_sliding[i] ? "sliding_attention" : "full_attention"));
        json_object_set_new(all, layer,
                            json_pack("{s:I, s:I}", "head_dim", (json_int_t)(is_sliding[i] ? sliding : full),
                                      "num_key_value_heads", (json_int_t)(list ? list[i] : one)));
    }
    making_put(m, "layer_types", types);
    making_put(m, "per_layer_config", all);
    /* The first layer of the kind says whether they have matrices for values. */
    for (uint64_t i = 0; is_sliding && m->rc == 0 && i < n; i++) {
        char value[40];
        snprintf(value, sizeof value, "blk.%" PRIu64 ".attn_v.weight", i);
        if (!is_sliding[i] && !json_object_get(m->out, "attention_k_eq_v"))
            making_put(m, "attention_k_eq_v", json_boolean(!making_has_tensor(m, value)));
    }
    free(is_sliding);
    free(list);
}

void config_gqa_put_gemma4(struct making *m)
{
    static const struct making_pair keys[] = {
        {"num_experts", "expert_count", WHOLE},
        {"top_k_experts", "expert_used_count", WHOLE},
        {"moe_intermediate_size", "expert_feed_forward_length", WHOLE},
        {"intermediate_size", "feed_forward_length", WHOLE},
        {"sliding_window", "attention.sliding_window", WHOLE},
        {"num_kv_shared_layers", "attention.shared_kv_layers", WHOLE_MAY},
        {"final_logit_softcapping", "final_logit_softcapping", REAL_MAY},
        {0},
    };
    making_put_pairs(m, keys);
    making_put(m, "enable_moe_block", json_true());
    making_put_whole(m, "hidden_size_per_layer_input",
                     making_whole(m, "embedding_length_per_layer_input", 0));
    put_gemma4_layers(m);
    json_t *flat = m->out, *ropes = json_object(), *full = json_object(), *sliding = json_object();
    m->out = full;
    making_put(m, "rope_type", json_string("proportional"));
    making_put(m, "partial_rotary_factor", json_real(turning_share(m)));
    making_put_real(m, "rope_theta", "rope.freq_base", 1, false);
    m->out = sliding;
    making_put(m, "rope_type", json_string("default"));
    making_put_real(m, "rope_theta", "rope.freq_base_swa", 1, true);
    m->out = flat;
    json_object_set_new(ropes, "full_attention", full);
    json_object_set_new(ropes, "sliding_attention", sliding);
    making_put(m, "rope_parameters", ropes);
}

/* ---- MiniMax-M3, Step-3.5, MiMo-V2 ---- */

/* Returns a list of whole numbers with one for each layer, or one number as often; the caller frees it. NULL:
 * m->rc is set. */
static uint64_t *layers_of(struct making *m, const char *key)
{
    const struct gguf_value *v = making_find(m, key);
    uint64_t n = m->n_layers, one = making_whole(m, key, -1), *list = NULL;
    if (m->rc == 0 && v->is_list && v->n < n)
        making_fail_key(m, key, "expected a value for each layer");
    if (m->rc == 0 && v->is_list)
        m->rc = gguf_u64_list(m->g, v, &list, m->e);
    else if (m->rc == 0)
        list = mem_new(n, sizeof *list, m->e);
    for (uint64_t i = 0; list && !v->is_list && i < n; i++)
        list[i] = one;
    if (!list && m->rc == 0)
        m->rc = ERR_MEMORY;
    return list;
}

/* Puts which layers have experts: those that have a router. */
static void put_mlp_types(struct making *m)
{
    uint64_t n = m->n_layers;
    json_t *types = json_array();
    for (uint64_t i = 0; m->rc == 0 && i < n; i++) {
        char name[MAKING_NAME];
        snprintf(name, sizeof name, "blk.%" PRIu64 ".ffn_gate_inp.weight", i);
        json_array_append_new(types, json_string(making_has_tensor(m, name) ? "sparse" : "dense"));
    }
    making_put(m, "mlp_layer_types", types);
}

/* Puts layer_types by a list, and gives a number of the layers without a window, and of those with one, that
 * `key` has for each layer; equal if there are no such layers. */
static void put_windows(struct making *m, const char *key, uint64_t of_kinds[2])
{
    uint64_t n = m->n_layers;
    uint64_t *sliding = layers_of(m, "attention.sliding_window_pattern"), *numbers = layers_of(m, key);
    bool found[2] = {false, false};
    json_t *types = json_array();
    for (uint64_t i = 0; m->rc == 0 && i < n; i++) {
        int kind = sliding[i] != 0;
        json_array_append_new(types, json_string(kind ? "sliding_attention" : "full_attention"));
        if (found[kind] && numbers[i] != of_kinds[kind])
            making_fail_key(m, key, "expected the same in all layers of a kind");
        of_kinds[kind] = numbers[i];
        found[kind] = true;
    }
    making_put(m, "layer_types", types);
    for (int kind = 0; m->rc == 0 && kind < 2; kind++)
        if (!found[kind])
            of_kinds[kind] = found[!kind] ? of_kinds[!kind] : 0;
    free(sliding);
    free(numbers);
}

/* Puts the kind of the layer of multi-token prediction, if the list of windows goes on after the layers. */
static void put_drafter_window(struct making *m)
{
    const struct gguf_value *v = making_find(m, "attention.sliding_window_pattern");
    uint64_t *sliding = NULL;
    if (m->rc < 0 || !v || !v->is_list || v->n <= m->n_layers)
        return;
    m->rc = gguf_u64_list(m->g, v, &sliding, m->e);
    if (m->rc == 0)
        making_put(m, "mtp_layer_types",
                   json_pack("[s]", sliding[m->n_layers] ? "sliding_attention" : "full_attention"));
    free(sliding);
}

/* Returns the angles of a kind of layers, of which dims channels turn. */
static json_t *rope_of(struct making *m, const char *base, uint64_t dims)
{
    json_t *flat = m->out, *rope = m->out = json_object();
    uint64_t head_dim = making_whole(m, "attention.key_length", -1);
    making_put_real(m, "rope_theta", making_has(m, base) ? base : "rope.freq_base", 1, true);
    if (m->rc == 0 && (dims == 0 || dims > head_dim))
        making_fail_key(m, "rope.dimension_count", "expected at most a head's channels");
    if (m->rc == 0)
        making_put(m, "partial_rotary_factor",
                   json_real(dims == head_dim ? 1 : ((double)dims + 0.25) / (double)head_dim));
    m->out = flat;
    return rope;
}

/* Puts the angles of both kinds of layers. */
static json_t *put_ropes(struct making *m, uint64_t full_dims, uint64_t sliding_dims)
{
    json_t *full = rope_of(m, "rope.freq_base", full_dims),
           *sliding = rope_of(m, "rope.freq_base_swa", sliding_dims);
    making_put(m, "rope_parameters",
               json_pack("{s:o, s:o}", "full_attention", full, "sliding_attention", sliding));
    return full;
}

/* Puts what rope_freqs has, whose first n numbers divide the angles, if the file has it. */
static void put_divisors(struct making *m, json_t *rope, uint64_t n)
{
    float factors[MOST_FREQUENCIES];
    if (m->rc < 0 || !making_has_tensor(m, rope_freqs))
        return;
    uint64_t n_found = read_frequencies(m, factors);
    if (m->rc == 0 && n_found < n)
        m->rc = err_set(m->e, ERR_FORMAT, "%s: tensor %s has %" PRIu64 " numbers, expected at least %" PRIu64,
                        making_path_of(m), rope_freqs, n_found, n);
    json_t *list = json_array();
    for (uint64_t i = 0; m->rc == 0 && i < n; i++)
        json_array_append_new(list, json_real((double)factors[i]));
    json_object_set_new(rope, CONFIG_DIVISORS_KEY, list);
}

/* Puts which kinds of layers have sinks; the first layer of a kind says it. */
static void put_sinks(struct making *m)
{
    const json_t *types = json_object_get(m->out, "layer_types");
    for (size_t i = json_array_size(types); m->rc == 0 && i-- > 0;) {
        char name[MAKING_NAME];
        bool sliding = !strcmp(json_string_value(json_array_get(types, i)), "sliding_attention");
        snprintf(name, sizeof name, "blk.%zu.attn_sinks.weight", i);
        making_put(m, sliding ? "add_swa_attention_sink_bias" : "add_full_attention_sink_bias",
                   json_boolean(making_has_tensor(m, name)));
    }
}

void config_gqa_put_minimax_m3(struct making *m)
{
    static const struct making_pair keys[] = {
        {"num_key_value_heads", "attention.head_count_kv", WHOLE},
        {"head_dim", "attention.key_length", WHOLE},
        {"num_local_experts", "expert_count", WHOLE},
        {"intermediate_size", "expert_feed_forward_length", WHOLE},
        {"rotary_dim", "rope.dimension_count", WHOLE},
        {"dense_intermediate_size", "feed_forward_length", WHOLE},
        {"shared_intermediate_size", "expert_feed_forward_length", WHOLE},
        {"n_shared_experts", "expert_shared_count", WHOLE},
        {"index_n_heads", "attention.indexer.head_count", WHOLE},
        {"index_head_dim", "attention.indexer.key_length", WHOLE},
        {"index_topk_blocks", "attention.indexer.top_k", WHOLE},
        {"index_block_size", "attention.indexer.block_size", WHOLE},
        {"index_local_blocks", "attention.indexer.local_blocks", WHOLE},
        {0},
    };
    uint64_t n = m->n_layers, dense = making_whole(m, "leading_dense_block_count", 0);
    making_put_pairs(m, keys);
    making_put_scoring(m);
    making_put_real(m, "routed_scaling_factor", "expert_weights_scale", 1, true);
    if (!making_has(m, "expert_weights_scale"))
        making_put(m, "routed_scaling_factor", json_real(1));
    put_mlp_types(m);
    if (!making_has(m, "rope.freq_base")) /* llama.cpp's default, not the model's */
        making_put(m, "rope_theta", json_real(10000));
    json_t *types = json_array();
    for (uint64_t i = 0; m->rc == 0 && i < n; i++)
        json_array_append_new(types, json_string(i < dense ? "full_attention" : "minimax_m3_sparse"));
    making_put(m, "layer_types", types);
}

/* llama.cpp halves the rotated channels of layers without a window; their angles' divisors are a tensor. */
void config_gqa_put_step35(struct making *m)
{
    static const struct making_pair keys[] = {
        {"moe_num_experts", "expert_count", WHOLE},
        {"moe_top_k", "expert_used_count", WHOLE},
        {"moe_intermediate_size", "expert_feed_forward_length", WHOLE},
        {"intermediate_size", "feed_forward_length", WHOLE_MAY},
        {"share_expert_dim", "expert_shared_feed_forward_length", WHOLE},
        {"sliding_window", "attention.sliding_window", WHOLE},
        {"norm_expert_weight", "expert_weights_norm", FLAG_MAY},
        {0},
    };
    uint64_t heads[2] = {0, 0}, groups[2] = {0, 0}, dim = making_whole(m, "attention.key_length", -1),
             dims = making_whole(m, "rope.dimension_count", (int64_t)dim);
    making_put_pairs(m, keys);
    put_windows(m, "attention.head_count_kv", groups);
    put_windows(m, "attention.head_count", heads);
    put_drafter_window(m);
    making_put_whole(m, "head_dim", dim);
    making_put_whole(m, "num_attention_heads", heads[0]);
    making_put_whole(m, "num_attention_groups", groups[0]);
    making_put(m, "attention_other_setting",
               json_pack("{s:I, s:I}", "num_attention_heads", (json_int_t)heads[1], "num_attention_groups",
                         (json_int_t)groups[1]));
    making_put(m, "use_head_wise_attn_gate", json_boolean(making_has_tensor(m, "blk.0.attn_gate.weight")));
    if (!making_has(m, "expert_weights_norm"))
        making_put(m, "norm_expert_weight", json_false());
    making_put(m, "moe_router_activation",
               json_string(making_whole(m, "expert_gating_func", 2) == 2 ? "sigmoid" : "softmax"));
    making_put(m, "moe_router_scaling_factor", json_real(1));
    making_put_real(m, "moe_router_scaling_factor", "expert_weights_scale", 1, true);
    put_mlp_types(m);
    making_put_reals(m, "swiglu_limits", "swiglu_clamp_exp");
    making_put_reals(m, "swiglu_limits_shared", "swiglu_clamp_shexp");
    json_t *full = put_ropes(m, dims / 2, making_whole(m, "rope.dimension_count_swa", (int64_t)dims));
    put_divisors(m, full, dims / 4);
}

void config_gqa_put_mimo2(struct making *m)
{
    uint64_t groups[2] = {0, 0}, dims = making_whole(m, "rope.dimension_count", -1);
    static const struct making_pair keys[] = {
        {"head_dim", "attention.key_length", WHOLE},
        {"v_head_dim", "attention.value_length", WHOLE},
        {"n_routed_experts", "expert_count", WHOLE},
        {"moe_intermediate_size", "expert_feed_forward_length", WHOLE},
        {"intermediate_size", "feed_forward_length", WHOLE_MAY},
        {"routed_scaling_factor", "expert_weights_scale", REAL_MAY},
        {"sliding_window", "attention.sliding_window", WHOLE},
        {0},
    };
    making_put_pairs(m, keys);
    making_put(m, "norm_topk_prob", json_true()); /* llama.cpp has it built in, and the sigmoid */
    making_put(m, "attention_value_scale", json_real(1));
    making_put_real(m, "attention_value_scale", "attention.value_scale", 1, true);
    put_windows(m, "attention.head_count_kv", groups);
    making_put_whole(m, "num_key_value_heads", groups[0]);
    making_put_whole(m, "swa_num_key_value_heads", groups[1]);
    put_mlp_types(m);
    put_sinks(m);
    put_ropes(m, dims, making_whole(m, "rope.dimension_count_swa", (int64_t)dims));
}

/* ---- Nemotron-3 ---- */

/* Puts the kinds of Nemotron-3's layers, which follow from their tensors. */
static void put_single_parts(struct making *m)
{
    static const char *const kinds[][2] = {
        {"ssm_in", "linear_attention"}, {"attn_q", "full_attention"}, {"ffn_gate_inp", "moe"}, {NULL, "mlp"}};
    json_t *types = json_array();
    for (uint64_t i = 0; types && i < m->n_layers; i++) {
        char name[MAKING_NAME];
        size_t k = 0;
        for (; kinds[k][0]; k++) {
            snprintf(name, sizeof name, "blk.%" PRIu64 ".%s.weight", i, kinds[k][0]);
            if (making_has_tensor(m, name))
                break;
        }
        if (k == 0) {
            snprintf(name, sizeof name, "blk.%" PRIu64 ".ssm_conv1d.bias", i);
            making_put(m, "use_conv_bias", json_boolean(making_has_tensor(m, name)));
        }
        json_array_append_new(types, json_string(kinds[k][1]));
    }
    making_put(m, "layers_block_type", types);
}

void config_gqa_put_nemotron_h(struct making *m)
{
    static const struct making_pair keys[] = {
        {"num_key_value_heads", "attention.head_count_kv", WHOLE},
        {"head_dim", "attention.key_length", WHOLE},
        {"n_routed_experts", "expert_count", WHOLE},
        {"moe_intermediate_size", "expert_feed_forward_length", WHOLE},
        {"intermediate_size", "feed_forward_length", WHOLE_MAY},
        {"n_shared_experts", "expert_shared_count", WHOLE_MAY},
        {"moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length", WHOLE},
        {"moe_latent_size", "moe_latent_size", WHOLE_MAY},
        {"n_group", "expert_group_count", WHOLE_MAY},
        {"topk_group", "expert_group_used_count", WHOLE_MAY},
        {"norm_topk_prob", "expert_weights_norm", FLAG_MAY},
        {"routed_scaling_factor", "expert_weights_scale", REAL},
        {"mamba_num_heads", "ssm.time_step_rank", WHOLE},
        {"n_groups", "ssm.group_count", WHOLE},
        {"ssm_state_size", "ssm.state_size", WHOLE},
        {"conv_kernel", "ssm.conv_kernel", WHOLE},
        {0},
    };
    making_put_pairs(m, keys);
    put_single_parts(m);
    uint64_t heads = making_whole(m, "ssm.time_step_rank", -1), inner = making_whole(m, "ssm.inner_size", -1);
    if (m->rc == 0 && (heads == 0 || inner % heads != 0))
        making_fail_key(m, "ssm.inner_size", "expected a multiple of ssm.time_step_rank");
    else if (m->rc == 0)
        making_put_whole(m, "mamba_head_dim", inner / heads);
}
