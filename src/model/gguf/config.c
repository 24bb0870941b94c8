#include "model/gguf/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/gguf.h"
#include "model/config.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "model/gguf/making.h"
#include "model/ngram.h"

/* --- what families have in common --- */

static const struct making_pair common[] = {
    {"hidden_size", "embedding_length", WHOLE},
    {"num_attention_heads", "attention.head_count", WHOLE},
    {"max_position_embeddings", "context_length", WHOLE_MAY},
    {"num_experts_per_tok", "expert_used_count", WHOLE},
    {"rope_theta", "rope.freq_base", REAL_MAY},
    {0},
};

/* Grouped-query attention. */
static const struct making_pair attention[] = {
    {"num_key_value_heads", "attention.head_count_kv", WHOLE_MAY},
    {"head_dim", "attention.key_length", WHOLE_MAY},
    {0},
};

/* The router of DeepSeek-V3 and GLM, shared experts and dense layers. */
static const struct making_pair sigmoid[] = {
    {"n_routed_experts", "expert_count", WHOLE},
    {"moe_intermediate_size", "expert_feed_forward_length", WHOLE},
    {"intermediate_size", "feed_forward_length", WHOLE_MAY},
    {"n_shared_experts", "expert_shared_count", WHOLE_MAY},
    {"first_k_dense_replace", "leading_dense_block_count", WHOLE_MAY},
    {"routed_scaling_factor", "expert_weights_scale", REAL_MAY},
    {"n_group", "expert_group_count", WHOLE_MAY},
    {"topk_group", "expert_group_used_count", WHOLE_MAY},
    {0},
};

/* Puts the rotary part of head_dim, so that reading it gives the same number of channels. */
static void put_rotary_part(struct making *m)
{
    uint64_t head_dim = making_whole(m, "attention.key_length", 0),
             dims = making_whole(m, "rope.dimension_count", 0);
    if (head_dim == 0 || dims == 0 || dims > head_dim)
        return;
    double part = (double)dims / (double)head_dim;
    if ((uint64_t)((double)head_dim * part) != dims)
        part = ((double)dims + 0.25) / (double)head_dim;
    making_put(m, "partial_rotary_factor", json_real(part));
}

/* Puts YaRN's parameters. llama.cpp's factor of the logarithm is a tenth of DeepSeek's mscale. */
static void put_yarn(struct making *m)
{
    static const char log_multiplier[] = "rope.scaling.yarn_log_multiplier";
    json_t *rope = json_object(), *flat = m->out;
    making_put(m, "rope_scaling", rope);
    m->out = rope;
    making_put(m, "type", json_string("yarn"));
    making_put_real(m, "factor", "rope.scaling.factor", 1, false);
    if (m->rc == 0)
        making_put_whole(m, "original_max_position_embeddings",
                         making_whole(m, "rope.scaling.original_context_length", -1));
    making_put_real(m, "beta_fast", "rope.scaling.yarn_beta_fast", 1, true);
    making_put_real(m, "beta_slow", "rope.scaling.yarn_beta_slow", 1, true);
    making_put_real(m, "mscale", log_multiplier, 10, true);
    making_put_real(m, "mscale_all_dim", log_multiplier, 10, true);
    m->out = flat;
}

/* Returns whether the file has a factor of linear scaling that changes angles. */
static bool has_factor(struct making *m)
{
    static const char *const keys[] = {"rope.scaling.factor", "rope.scale_linear"};
    const char *key = keys[!making_has(m, keys[0])];
    const struct gguf_value *v = making_find(m, key);
    double x = 1;
    if (m->rc == 0 && v && !gguf_real(v, &x))
        making_fail_key(m, key, "expected a number");
    return x != 0 && x != 1;
}

/* Without a type llama.cpp scales linearly. */
static void put_rope(struct making *m)
{
    const struct gguf_value *v = making_find(m, "rope.scaling.type");
    char *type = NULL;
    if (m->rc == 0 && v)
        m->rc = gguf_text(m->g, v, MAKING_NAME, &type, m->e);
    if (m->rc < 0)
        return;
    bool is_linear = !type || !strcmp(type, "linear");
    if (type && !strcmp(type, "yarn"))
        put_yarn(m);
    else if (is_linear ? has_factor(m) : strcmp(type, "none") != 0)
        m->rc = err_set(m->e, ERR_UNSUPPORTED, "%s: key %s.rope.scaling.type: %s, expected none or yarn",
                        making_path_of(m), m->arch,
                        type ? type : "missing with a rope.scaling.factor, which means linear");
    free(type);
}

/* Control tokens that end an answer in every model; END_END and END_S: in some. */
enum { END_RETURN, END_CALL, END_CALLS, END_FLUSH, END_END, END_S };
static const char *const known_ends[] = {[END_RETURN] = "<|return|>",
                                         [END_CALL] = "<|call|>",
                                         [END_CALLS] = "<|calls|>",
                                         [END_FLUSH] = "<|flush|>",
                                         [END_END] = "<|end|>",
                                         [END_S] = "</s>",
                                         "<|endoftext|>",
                                         "<|end_of_text|>",
                                         "<|im_end|>",
                                         "<|eot_id|>",
                                         "<|eom_id|>",
                                         "<|observation|>",
                                         "<turn|>",
                                         "<|tool_response>",
                                         "<eos>",
                                         "<end_of_turn>",
                                         "<end_of_utterance>",
                                         "<EOT>",
                                         "_<EOT>",
                                         "[EOT]",
                                         "[EOS]",
                                         "[e~[",
                                         "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                         "<|fim_pad|>",
                                         "<fim-pad>",
                                         "<fim_pad>",
                                         "<PAD>",
                                         "[PAD]",
                                         "<|fim_repo|>",
                                         "<|repo_name|>",
                                         "<fim-repo>",
                                         "<REPO>",
                                         "<reponame>",
                                         "<|file_sep|>"};
enum { N_KNOWN_ENDS = sizeof known_ends / sizeof *known_ends };

/* Finds the known tokens: ids [N_KNOWN_ENDS]; -1: the file has none of this text. */
static void find_known_ends(struct making *m, json_int_t *ids)
{
    const struct gguf_value *tokens = gguf_find(m->g, "tokenizer.ggml.tokens");
    struct gguf_texts t;
    struct str text = {0};
    if (!tokens || m->rc < 0)
        return;
    int rc = gguf_texts_open(&t, m->g, tokens, m->e);
    for (json_int_t id = 0; rc == 0 && (rc = gguf_texts_next(&t, &text, m->e)) > 0; id++, rc = 0)
        for (size_t i = 0; i < N_KNOWN_ENDS; i++)
            if (!strcmp(str_text(&text), known_ends[i]))
                ids[i] = id;
    gguf_texts_close(&t);
    str_free(&text);
    m->rc = rc;
}

/* Returns whether the file says that a token is a control token. */
static bool is_control(struct making *m, json_int_t id)
{
    enum { CONTROL = 3 };
    const struct gguf_value *types = gguf_find(m->g, "tokenizer.ggml.token_type");
    uint32_t *list = NULL;
    if (id < 0 || !types || m->rc < 0)
        return false;
    m->rc = gguf_u32_list(m->g, types, &list, m->e);
    bool is = m->rc == 0 && (uint64_t)id < types->n && list[id] == CONTROL;
    free(list);
    return is;
}

/* Adds known control tokens that end an answer, as llama.cpp does. A file names only one or two. In gpt-oss
 * and Solar <|end|> ends a channel, and the text </s> is a token of HTML in some models. */
static void add_known_eos(struct making *m, json_t *ids)
{
    json_int_t found[N_KNOWN_ENDS];
    for (size_t i = 0; i < N_KNOWN_ENDS; i++)
        found[i] = -1;
    find_known_ends(m, found);
    bool calls = found[END_CALL] >= 0 || found[END_CALLS] >= 0;
    if (calls && (found[END_RETURN] >= 0 || found[END_FLUSH] >= 0))
        found[END_END] = -1;
    if (!is_control(m, found[END_S]))
        found[END_S] = -1;
    for (size_t i = 0; i < N_KNOWN_ENDS; i++)
        if (found[i] >= 0)
            json_array_append_new(ids, json_integer(found[i]));
}

/* Puts the tokens that are never chosen. */
static void put_suppressed(struct making *m)
{
    const struct gguf_value *v = gguf_find(m->g, "tokenizer.ggml.suppress_tokens");
    uint32_t *list;
    if (!v || m->rc < 0)
        return;
    m->rc = gguf_u32_list(m->g, v, &list, m->e);
    if (m->rc < 0)
        return;
    json_t *ids = json_array();
    for (uint64_t i = 0; i < v->n; i++)
        json_array_append_new(ids, json_integer(list[i]));
    making_put(m, "suppress_tokens", ids);
    free(list);
}

/* Puts the tokens that end an answer: end of text, of turn, of message. */
static void put_eos(struct making *m)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
                                       "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"};
    json_t *ids = json_array();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t id;
        if (gguf_whole(gguf_find(m->g, keys[i]), &id) && id <= INT32_MAX)
            json_array_append_new(ids, json_integer((json_int_t)id));
    }
    add_known_eos(m, ids);
    making_put(m, "eos_token_id", ids);
}

/* Checks that no tensor is of a layer that the file should not have, and that the vocabulary is not that of
 * another model. */
static void check_counts(struct making *m, uint64_t n_blocks, uint64_t n_rows)
{
    const struct gguf *g = m->g;
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    unsigned layer;
    for (size_t i = 0; m->rc == 0 && i < g->n_tensors; i++)
        if (sscanf(g->tensors[i].name, "blk.%9u.", &layer) == 1 && layer >= n_blocks)
            m->rc = err_set(m->e, ERR_FORMAT, "%s: tensor %s: block_count is %" PRIu64,
                            g->files[g->tensors[i].file].path, g->tensors[i].name, n_blocks);
    if (m->rc == 0 && tokens && tokens->n > n_rows)
        m->rc =
            err_set(m->e, ERR_FORMAT,
                    "%s: tokenizer.ggml.tokens has %" PRIu64 " tokens, token_embd.weight %" PRIu64 " rows",
                    making_path_of(m), tokens->n, n_rows);
}

/* Counts layer i's tensors; of_nextn: only those that multi-token prediction has. */
static size_t n_tensors_of(const struct making *m, uint64_t i, bool of_nextn)
{
    char start[MAKING_NAME];
    size_t n = 0;
    snprintf(start, sizeof start, "blk.%" PRIu64 ".%s", i, of_nextn ? "nextn." : "");
    for (size_t k = 0; k < m->g->n_tensors; k++)
        n += strncmp(m->g->tensors[k].name, start, strlen(start)) == 0;
    return n;
}

/* Sets the model's own layers. Those of multi-token prediction follow them and are not used. llama.cpp takes
 * them for the model's own in DeepSeek-V4's files where they lack the tensors of multi-token prediction. */
static void find_layers(struct making *m)
{
    static const char key[] = "nextn_predict_layers";
    uint64_t layers = making_whole(m, "block_count", -1), more = making_whole(m, key, 0);
    if (m->rc == 0 && (layers == 0 || layers > CONFIG_MAX_LAYERS))
        m->rc = err_set(m->e, ERR_UNSUPPORTED, "%s: key %s.block_count: %" PRIu64 ", expected 1 to %d",
                        making_path_of(m), m->arch, layers, CONFIG_MAX_LAYERS);
    if (m->rc == 0 && more >= layers)
        making_fail_key(m, key, "expected fewer than block_count");
    if (m->rc < 0)
        return;
    m->n_layers = layers - more;
    if (more == 0 || n_tensors_of(m, m->n_layers, false) == 0 || n_tensors_of(m, m->n_layers, true) > 0)
        return;
    if (!strcmp(m->arch, "deepseek4"))
        m->n_layers = layers;
    else
        m->rc = err_set(m->e, ERR_FORMAT,
                        "%s: key %s.%s: layer %" PRIu64 " has no tensor blk.%" PRIu64 ".nextn.*",
                        making_path_of(m), m->arch, key, m->n_layers, m->n_layers);
}

/* Checks that all layers with experts use the same number of them. */
static void check_used(struct making *m)
{
    static const char key[] = "expert_used_count";
    const struct gguf_value *v = making_find(m, key);
    uint64_t *list, most = making_whole(m, key, -1);
    if (m->rc < 0 || !v || !v->is_list || (m->rc = gguf_u64_list(m->g, v, &list, m->e)) < 0)
        return;
    for (uint64_t i = 0; m->rc == 0 && i < v->n && i < m->n_layers; i++)
        if (list[i] != 0 && list[i] != most)
            m->rc = err_set(m->e, ERR_UNSUPPORTED,
                            "%s: key %s.%s[%" PRIu64 "]: %" PRIu64 ", expected %" PRIu64
                            " as in other layers with experts",
                            making_path_of(m), m->arch, key, i, list[i], most);
    free(list);
}

/* Puts the epsilon of norms. Files of Nemotron-3 may have that of layer norms alone. */
static void put_eps(struct making *m)
{
    static const char own[] = "attention.layer_norm_rms_epsilon", other[] = "attention.layer_norm_epsilon";
    bool has_other = !strcmp(m->arch, "nemotron_h_moe") && !making_has(m, own);
    making_put_real(m, "rms_norm_eps", has_other ? other : own, 1, false);
}

/* Puts the keys that all families have. */
static void put_common(struct making *m)
{
    const struct gguf_tensor *embedding = gguf_find_tensor(m->g, "token_embd.weight");
    if (!embedding) {
        m->rc = err_set(m->e, ERR_FORMAT, "%s: tensor token_embd.weight is missing", making_path_of(m));
        return;
    }
    making_put_pairs(m, common);
    put_eps(m);
    find_layers(m);
    check_used(m);
    check_counts(m, making_whole(m, "block_count", -1), embedding->shape[1]);
    making_put_whole(m, "num_hidden_layers", m->n_layers);
    making_put_whole(m, "vocab_size", embedding->shape[1] <= INT32_MAX ? embedding->shape[1] : 0);
    making_put(m, "tie_word_embeddings", json_boolean(!making_has_tensor(m, "output.weight")));
    put_eos(m);
    put_suppressed(m);
    put_rope(m);
}

/* --- the families --- */

static const struct making_pair softmax_experts[] = {
    {"num_experts", "expert_count", WHOLE},
    {"moe_intermediate_size", "expert_feed_forward_length", WHOLE},
    {"intermediate_size", "feed_forward_length", WHOLE_MAY},
    {0},
};

/* llama.cpp always makes the weights of a token's experts sum to 1; files have no key for it. */
static void put_qwen3moe(struct making *m)
{
    making_put_pairs(m, attention);
    making_put_pairs(m, softmax_experts);
    making_put(m, "norm_topk_prob", json_true());
}

static void put_hybrid(struct making *m)
{
    static const struct making_pair delta_net[] = {
        {"linear_num_key_heads", "ssm.group_count", WHOLE},
        {"linear_num_value_heads", "ssm.time_step_rank", WHOLE},
        {"linear_key_head_dim", "ssm.state_size", WHOLE},
        {"linear_conv_kernel_dim", "ssm.conv_kernel", WHOLE},
        {"shared_expert_intermediate_size", "expert_shared_feed_forward_length", WHOLE},
        {"full_attention_interval", "full_attention_interval", WHOLE_MAY},
        {0},
    };
    put_qwen3moe(m);
    making_put_pairs(m, delta_net);
    put_rotary_part(m);
    uint64_t heads = making_whole(m, "ssm.time_step_rank", -1),
             values = making_whole(m, "ssm.inner_size", -1);
    if (m->rc == 0 && (heads == 0 || values % heads != 0))
        making_fail_key(m, "ssm.inner_size", "expected a multiple of ssm.time_step_rank");
    else if (m->rc == 0)
        making_put_whole(m, "linear_value_head_dim", values / heads);
}

/* Puts what llama.cpp takes for keys of the router and of dense layers that the file leaves out. */
static void put_groups(struct making *m)
{
    making_put_whole(m, "n_group", making_whole(m, "expert_group_count", 1));
    making_put_whole(m, "topk_group", making_whole(m, "expert_group_used_count", 1));
    making_put_whole(m, "first_k_dense_replace", making_whole(m, "leading_dense_block_count", 0));
    if (!making_has(m, "expert_weights_scale"))
        making_put(m, "routed_scaling_factor", json_real(1));
}

/* Files with absorbed matrices have the heads' own sizes under other keys. */
static void put_deepseek2(struct making *m)
{
    static const struct making_pair latent[] = {
        {"q_lora_rank", "attention.q_lora_rank", WHOLE_MAY},
        {"kv_lora_rank", "attention.kv_lora_rank", WHOLE},
        {"qk_rope_head_dim", "rope.dimension_count", WHOLE},
        {0},
    };
    bool absorbed = making_has(m, "attention.key_length_mla");
    uint64_t key = making_whole(m, absorbed ? "attention.key_length_mla" : "attention.key_length", -1);
    uint64_t value = making_whole(m, absorbed ? "attention.value_length_mla" : "attention.value_length", -1);
    uint64_t rope = making_whole(m, "rope.dimension_count", -1);
    making_put_pairs(m, latent);
    making_put_pairs(m, sigmoid);
    making_put_scoring(m);
    put_groups(m);
    if (m->rc == 0 && rope >= key)
        making_fail_key(m, "rope.dimension_count", "expected fewer than a key has");
    making_put_whole(m, "qk_nope_head_dim", key - rope);
    making_put_whole(m, "v_head_dim", value);
}

/* Puts which layers have an indexer: those of a list; without one, those that have its tensors. */
static void put_indexer_types(struct making *m)
{
    static const char key[] = "attention.indexer.types";
    const struct gguf_value *v = making_find(m, key);
    uint64_t n = m->n_layers, *list = NULL;
    if (m->rc == 0 && v && v->n < n)
        making_fail_key(m, key, "expected a value for each layer");
    if (m->rc == 0 && v)
        m->rc = gguf_u64_list(m->g, v, &list, m->e);
    json_t *types = m->rc < 0 ? NULL : json_array();
    for (uint64_t i = 0; types && i < n; i++) {
        char name[MAKING_NAME];
        snprintf(name, sizeof name, "blk.%" PRIu64 ".indexer.attn_k.weight", i);
        json_array_append_new(
            types, json_string((list ? list[i] != 0 : making_has_tensor(m, name)) ? "full" : "shared"));
    }
    if (types)
        making_put(m, "indexer_types", types);
    free(list);
}

/* Latent attention with an indexer. */
static void put_dsa(struct making *m)
{
    static const struct making_pair indexer[] = {
        {"index_n_heads", "attention.indexer.head_count", WHOLE},
        {"index_head_dim", "attention.indexer.key_length", WHOLE},
        {"index_topk", "attention.indexer.top_k", WHOLE},
        {0},
    };
    put_deepseek2(m);
    making_put_pairs(m, indexer);
    put_indexer_types(m);
    if (!making_has(m, "expert_gating_func"))
        making_put(m, "scoring_func", json_string("sigmoid"));
}

/* The first files of GLM-4.7-Flash say softmax, which is wrong. */
static void put_glm4moe_lite(struct making *m)
{
    put_deepseek2(m);
    making_put(m, "scoring_func", json_string("sigmoid"));
}

static void put_glm4moe(struct making *m)
{
    making_put_pairs(m, attention);
    making_put_pairs(m, sigmoid);
    making_put_scoring(m);
    if (!making_has(m, "expert_gating_func"))
        making_put(m, "scoring_func", json_string("sigmoid"));
    put_rotary_part(m);
    making_put(m, "use_qk_norm", json_boolean(making_has_tensor(m, "blk.0.attn_q_norm.weight")));
    making_put(m, "attention_bias", json_boolean(making_has_tensor(m, "blk.0.attn_q.bias")));
}

static void put_minimax_m2(struct making *m)
{
    static const struct making_pair experts[] = {
        {"num_local_experts", "expert_count", WHOLE},
        {"intermediate_size", "expert_feed_forward_length", WHOLE},
        {"rotary_dim", "rope.dimension_count", WHOLE_MAY},
        {0},
    };
    making_put_pairs(m, attention);
    making_put_pairs(m, experts);
    making_put(m, "scoring_func",
               json_string(making_whole(m, "expert_gating_func", 2) == 2 ? "sigmoid" : "softmax"));
}

/* llama.cpp has built in that every other layer has a window, which is also our reader's default, and that
 * YaRN's range is not rounded. */
static void put_gpt_oss(struct making *m)
{
    static const struct making_pair experts[] = {
        {"num_local_experts", "expert_count", WHOLE},
        {"intermediate_size", "expert_feed_forward_length", WHOLE},
        {"sliding_window", "attention.sliding_window", WHOLE},
        {0},
    };
    making_put_pairs(m, attention);
    making_put_pairs(m, experts);
    json_t *rope = json_object_get(m->out, "rope_scaling");
    if (rope && json_object_set_new(rope, "truncate", json_false()) < 0 && m->rc == 0)
        m->rc = err_set(m->e, ERR_MEMORY, "out of memory for config.json");
}

/* Puts the kinds of layers, if the file lists those that are no attention. */
static void put_layer_types(struct making *m)
{
    const struct gguf_value *v = making_find(m, "attention.recurrent_layers");
    uint64_t n = m->n_layers, *list;
    if (m->rc < 0 || !v)
        return;
    m->rc = gguf_u64_list(m->g, v, &list, m->e);
    if (m->rc < 0)
        return;
    json_t *types = json_array();
    for (uint64_t i = 0; i < v->n && i < n; i++)
        json_array_append_new(types, json_string(list[i] ? "linear_attention" : "full_attention"));
    making_put(m, "layer_types", types);
    free(list);
}

/* Returns whether a layer has attention, by what has been put. */
static bool has_attention(const struct making *m, uint64_t layer)
{
    const json_t *types = json_object_get(m->out, "layer_types"),
                 *every = json_object_get(m->out, "full_attention_interval");
    if (layer < json_array_size(types))
        return !strcmp(json_string_value(json_array_get(types, layer)), "full_attention");
    return every && json_integer_value(every) > 0 && (layer + 1) % (uint64_t)json_integer_value(every) == 0;
}

/* Puts the positions of an indexer's block: one number in a file's list of all layers, where those without
 * attention have 0. */
static void put_ratio(struct making *m)
{
    static const char key[] = "attention.compress_ratios";
    const struct gguf_value *v = making_find(m, key);
    uint64_t ratio = making_whole(m, key, -1), n = m->n_layers, *list;
    making_put_whole(m, "indexer_compress_ratio", ratio);
    if (m->rc < 0 || !v->is_list)
        return;
    if (v->n < n) {
        making_fail_key(m, key, "expected a number for each layer");
        return;
    }
    m->rc = gguf_u64_list(m->g, v, &list, m->e);
    if (m->rc < 0)
        return;
    for (uint64_t i = 0; m->rc == 0 && i < n; i++)
        if (has_attention(m, i) && list[i] != ratio)
            m->rc = err_set(m->e, ERR_UNSUPPORTED,
                            "%s: key %s.%s: %" PRIu64 " in layer %" PRIu64 ", expected %" PRIu64
                            " in all layers with attention",
                            making_path_of(m), m->arch, key, list[i], i, ratio);
    free(list);
}

/* Puts the n-gram table: where it is, its constants and its rows. */
static void put_table(struct making *m)
{
    static const struct making_pair keys[] = {
        {"ngram_size", "ple.ngram_size", WHOLE},
        {"heads_per_ngram", "ple.heads_per_ngram", WHOLE},
        {"ple_conv_kernel_size", "ple.conv_kernel", WHOLE},
        {0},
    };
    _Static_assert(NGRAM_MAX_SIZE == 4 && NGRAM_MAX_HEADS == 64, "the messages below");
    static const char name[] = "per_layer_token_embd.weight";
    const struct gguf_value *layers = making_find(m, "ple.layers");
    const struct gguf_tensor *rows = gguf_find_tensor(m->g, name);
    json_t *eos = json_object_get(m->out, "eos_token_id");
    if (m->rc < 0 || !layers || layers->n == 0)
        return;
    if (!rows) {
        m->rc = err_set(m->e, ERR_FORMAT, "%s: tensor %s is missing", making_path_of(m), name);
        return;
    }
    making_put_pairs(m, keys);
    making_put_list(m, "ple_layer_ids", "ple.layers", 1);
    making_put_list(m, "ple_layer_multipliers", "ple.layer_multipliers", 0);
    making_put_list(m, "ple_head_vocab_sizes", "ple.head_vocab_sizes", 0);
    making_put_list(m, "ple_head_offsets", "ple.head_offsets", 0);
    uint64_t size = making_whole(m, "ple.ngram_size", -1), heads = making_whole(m, "ple.heads_per_ngram", -1),
             width = making_whole(m, "embedding_length_per_layer_input", -1);
    if (m->rc == 0 && (size < 2 || size > NGRAM_MAX_SIZE))
        making_fail_key(m, "ple.ngram_size", "expected 2 to 4");
    if (m->rc == 0 && (heads < 1 || heads > NGRAM_MAX_HEADS))
        making_fail_key(m, "ple.heads_per_ngram", "expected 1 to 64");
    making_put_whole(m, "ple_embed_dim", (size - 1) * heads * width);
    making_put_whole(m, "ple_rows", rows->shape[1] <= INT32_MAX ? rows->shape[1] : 0);
    /* Our reader takes the first one for the token that ends n-grams. */
    json_array_insert_new(eos, 0, json_integer((json_int_t)making_whole(m, "ple.eos_token_id", -1)));
}

/* Files do not say that the delta net's gate is a sigmoid; llama.cpp has it built in. */
static void put_qwen4exp(struct making *m)
{
    static const struct making_pair keys[] = {
        {"hc_count", "hyper_connection.count", WHOLE},
        {"hc_lowrank", "hyper_connection.low_rank", WHOLE},
        {"indexer_n_heads", "attention.indexer.head_count", WHOLE},
        {"indexer_head_dim", "attention.indexer.key_length", WHOLE},
        {"indexer_budget", "attention.indexer.top_k", WHOLE},
        {0},
    };
    put_hybrid(m);
    making_put_pairs(m, keys);
    making_put(m, "output_gate_type", json_string("sigmoid"));
    making_put_whole(m, "indexer_kv_heads", 1);
    put_layer_types(m);
    making_put_whole(m, "full_attention_interval", making_whole(m, "full_attention_interval", 4));
    put_ratio(m);
    put_table(m);
}

/* ---- Kimi-Linear and Ling-3.0 ---- */

/* Puts the kinds of layers: those without key heads have a delta net. */
static void put_layers_by_heads(struct making *m)
{
    static const char key[] = "attention.head_count_kv";
    const struct gguf_value *v = making_find(m, key);
    uint64_t n = m->n_layers, *list;
    if (m->rc == 0 && (!v || !v->is_list || v->n < n))
        making_fail_key(m, key, "expected a number for each layer");
    if (m->rc < 0 || (m->rc = gguf_u64_list(m->g, v, &list, m->e)) < 0)
        return;
    json_t *types = json_array();
    for (uint64_t i = 0; i < n; i++)
        json_array_append_new(types, json_string(list[i] ? "full_attention" : "linear_attention"));
    making_put(m, "layer_types", types);
    free(list);
}

/* Returns whether a layer of the file has this matrix or vector. */
static bool any_layer_has(const struct making *m, const char *part)
{
    bool has = false;
    for (uint64_t i = 0; i < m->n_layers && !has; i++) {
        char name[MAKING_NAME];
        snprintf(name, sizeof name, "blk.%" PRIu64 ".%s.weight", i, part);
        has = making_has_tensor(m, name);
    }
    return has;
}

/* Puts Kimi-K3's object of the delta net. */
static void put_delta_object(struct making *m)
{
    static const char key[] = "attention.head_count_kv";
    const struct gguf_value *v = making_find(m, key), *bound = making_find(m, "kda.gate_lower_bound");
    uint64_t n = m->n_layers, *list, heads = making_whole(m, "attention.head_count", -1),
             dim = making_whole(m, "kda.head_dim", -1), taps = making_whole(m, "ssm.conv_kernel", -1);
    double lower = 0;
    if (m->rc == 0 && (!v || !v->is_list || v->n < n))
        making_fail_key(m, key, "expected a number for each layer");
    if (m->rc == 0 && bound && !gguf_real(bound, &lower))
        making_fail_key(m, "kda.gate_lower_bound", "expected a number");
    if (m->rc < 0 || (m->rc = gguf_u64_list(m->g, v, &list, m->e)) < 0)
        return;
    json_t *full = json_array(), *delta = json_array();
    for (uint64_t i = 0; i < n; i++)
        json_array_append_new(list[i] ? full : delta, json_integer((json_int_t)i + 1));
    free(list);
    json_t *object =
        json_pack("{s:I, s:I, s:I, s:o, s:o, s:b}", "num_heads", (json_int_t)heads, "head_dim",
                  (json_int_t)dim, "short_conv_kernel_size", (json_int_t)taps, "kda_layers", delta,
                  "full_attn_layers", full, "use_full_rank_gate", any_layer_has(m, "ssm_g"));
    if (bound)
        json_object_set_new(object, "gate_lower_bound", json_real(lower));
    making_put(m, "linear_attn_config", object);
}

/* llama.cpp always makes the weights of a token's experts sum to 1 here; files have no key for it. */
static void put_kimi_linear(struct making *m)
{
    static const struct making_pair delta[] = {
        {"linear_num_heads", "attention.head_count", WHOLE},
        {"linear_head_dim", "kda.head_dim", WHOLE},
        {"linear_conv_kernel_dim", "ssm.conv_kernel", WHOLE},
        {"n_shared_experts", "expert_shared_count", WHOLE},
        {"first_k_dense_replace", "leading_dense_block_count", WHOLE},
        {"routed_scaling_factor", "expert_weights_scale", REAL},
        {0},
    };
    put_deepseek2(m);
    making_put_pairs(m, delta);
    making_put(m, "norm_topk_prob", json_true());
    put_layers_by_heads(m);
}

/* ---- Kimi-K3 ---- */

/* Puts a factor of SiTU; llama.cpp takes 0 and less for none. */
static void put_factor(struct making *m, const char *ours, const char *theirs)
{
    const struct gguf_value *v = making_find(m, theirs);
    double factor = 0;
    if (m->rc == 0 && (!v || !gguf_real(v, &factor)))
        making_fail_key(m, theirs, "expected a number");
    making_put(m, ours, factor > 0 ? json_real(factor) : json_null());
}

/* Files say what their tensors have by these alone: a gate of attention, a norm of latents, a full matrix of
 * output gates. */
static void put_kimi_k3(struct making *m)
{
    static const struct making_pair keys[] = {
        {"n_shared_experts", "expert_shared_count", WHOLE},
        {"first_k_dense_replace", "leading_dense_block_count", WHOLE_MAY},
        {"routed_scaling_factor", "expert_weights_scale", REAL},
        {"routed_expert_hidden_size", "expert_latent_length", WHOLE_MAY},
        {0},
    };
    put_deepseek2(m);
    making_put_pairs(m, keys);
    if (!making_has(m, "leading_dense_block_count"))
        making_put_whole(m, "first_k_dense_replace", 0);
    uint64_t block = making_whole(m, "attn_res.block_size", 0);
    if (block > 0)
        making_put_whole(m, "attn_res_block_size", block);
    put_factor(m, "activation_situ_beta", "activation.situ_beta");
    put_factor(m, "activation_situ_linear_beta", "activation.situ_linear_beta");
    put_delta_object(m);
    making_put(m, "hidden_act", json_string("situ"));
    making_put(m, "mla_use_output_gate", json_boolean(any_layer_has(m, "attn_gate")));
    making_put(m, "latent_moe_use_norm", json_boolean(any_layer_has(m, "ffn_routed_norm")));
}

static void put_bailingmoe3(struct making *m)
{
    static const struct making_pair keys[] = {
        {"linear_head_dim", "kda.head_dim", WHOLE},
        {"short_conv_kernel_size", "ssm.conv_kernel", WHOLE},
        {"kda_safe_gate", "kda.safe_gate", FLAG_MAY},
        {"kda_lower_bound", "kda.gate_lower_bound", REAL},
        {"moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length", WHOLE_MAY},
        {"n_shared_experts", "expert_shared_count", WHOLE},
        {"first_k_dense_replace", "leading_dense_block_count", WHOLE},
        {"routed_scaling_factor", "expert_weights_scale", REAL},
        {"n_group", "expert_group_count", WHOLE},
        {"topk_group", "expert_group_used_count", WHOLE},
        {"rope_theta", "rope.freq_base", REAL},
        {0},
    };
    put_deepseek2(m);
    making_put_pairs(m, keys);
    making_put(m, "architectures", json_pack("[s]", "BailingMoeV3ForCausalLM"));
    put_layers_by_heads(m);
    making_put_reals(m, "expert_swiglu_limit_list", "swiglu_clamp_exp");
    making_put_reals(m, "share_expert_swiglu_limit_list", "swiglu_clamp_shexp");
}

/* ---- DeepSeek-V4 ---- */

/* Puts the clamp of all activations, which files repeat for each layer, for routed experts and for the
 * rest. */
static void put_clamp(struct making *m)
{
    static const char *const keys[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    double clamp = 0;
    for (int k = 0; k < 2 && m->rc == 0; k++) {
        const struct gguf_value *v = making_find(m, keys[k]);
        double *list = NULL;
        if (!v && k == 1) /* that of routed experts */
            break;
        if (!v || !v->is_list || v->n == 0)
            making_fail_key(m, keys[k], "expected a number for each layer");
        if (m->rc == 0)
            m->rc = gguf_real_list(m->g, v, &list, m->e);
        if (m->rc == 0 && k == 0)
            clamp = list[0];
        for (uint64_t i = 0; m->rc == 0 && v && i < v->n; i++)
            if (list[i] != clamp)
                making_fail_key(m, keys[k], "expected the same number for all layers and experts");
        free(list);
    }
    making_put(m, "swiglu_limit", json_real(clamp));
}

static void put_deepseek4(struct making *m)
{
    static const struct making_pair keys[] = {
        {"n_routed_experts", "expert_count", WHOLE},
        {"moe_intermediate_size", "expert_feed_forward_length", WHOLE},
        {"n_shared_experts", "expert_shared_count", WHOLE},
        {"routed_scaling_factor", "expert_weights_scale", REAL},
        {"norm_topk_prob", "expert_weights_norm", FLAG_MAY},
        {"q_lora_rank", "attention.q_lora_rank", WHOLE},
        {"sliding_window", "attention.sliding_window", WHOLE},
        {"qk_rope_head_dim", "rope.dimension_count", WHOLE},
        {"o_groups", "attention.output_group_count", WHOLE},
        {"o_lora_rank", "attention.output_lora_rank", WHOLE},
        {"index_n_heads", "attention.indexer.head_count", WHOLE},
        {"index_head_dim", "attention.indexer.key_length", WHOLE},
        {"index_topk", "attention.indexer.top_k", WHOLE},
        {"compress_rope_theta", "attention.compress_rope_freq_base", REAL},
        {"hc_mult", "hyper_connection.count", WHOLE},
        {"hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations", WHOLE},
        {"hc_eps", "hyper_connection.epsilon", REAL},
        {"num_hash_layers", "hash_layer_count", WHOLE},
        {0},
    };
    making_put_pairs(m, attention);
    making_put_pairs(m, keys);
    making_put(m, "scoring_func",
               json_string(making_whole(m, "expert_gating_func", -1) == 4 ? "sqrtsoftplus" : "another"));
    making_put_list(m, "compress_ratios", "attention.compress_ratios", 0);
    put_clamp(m);
}

/* ---- GLM-5.3-Flash ---- */

static void put_glm5_next(struct making *m)
{
    static const struct making_pair keys[] = {
        {"linear_num_heads", "attention.head_count", WHOLE},
        {"linear_head_dim", "kda.head_dim", WHOLE},
        {"linear_conv_kernel_dim", "ssm.conv_kernel", WHOLE},
        {"index_kpool", "attention.indexer.kpool", WHOLE},
        {"index_kpool_always_select_tail", "attention.indexer.kpool_select_tail", FLAG_MAY},
        {"hc_mult", "hyper_connection.count", WHOLE},
        {"hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations", WHOLE},
        {"hc_eps", "hyper_connection.epsilon", REAL},
        {0},
    };
    put_dsa(m);
    making_put_pairs(m, keys);
    put_layers_by_heads(m);
    put_clamp(m);
    if (making_has(m, "kda.gate_lower_bound"))
        making_put_real(m, "linear_lower_bound", "kda.gate_lower_bound", 1, false);
    else
        making_put(m, "linear_lower_bound", json_null());
}

static const struct {
    const char *arch;       /* general.architecture */
    const char *pre;        /* tokenizer.ggml.pre that tells the family from others; NULL: any */
    const char *model_type; /* model/family.h */
    void (*put)(struct making *m);
} families[] = {
    {"qwen3moe", NULL, "qwen3_moe", put_qwen3moe},
    {"qwen3next", NULL, "qwen3_next", put_hybrid},
    {"qwen35moe", NULL, "qwen3_5_moe_text", put_hybrid},
    {"qwen4exp", NULL, "qwen4_exp_text", put_qwen4exp},
    {"deepseek2", "kimi-k2", "kimi_k2", put_deepseek2},
    {"deepseek2", "glm4", "glm4_moe_lite", put_glm4moe_lite},
    {"deepseek2", NULL, "deepseek_v3", put_deepseek2},
    {"deepseek32", NULL, "deepseek_v32", put_dsa},
    {"glm-dsa", NULL, "glm_moe_dsa", put_dsa},
    {"glm4moe", NULL, "glm4_moe", put_glm4moe},
    {"minimax-m2", NULL, "minimax_m2", put_minimax_m2},
    {"gpt-oss", NULL, "gpt_oss", put_gpt_oss},
    {"gemma4", NULL, "gemma4_text", config_gqa_put_gemma4},
    {"kimi-linear", NULL, "kimi_linear", put_kimi_linear},
    {"kimi-k3", NULL, "kimi_k3", put_kimi_k3},
    {"glm5-next", NULL, "glm5_next_text", put_glm5_next},
    {"bailingmoe3", NULL, "bailing_hybrid", put_bailingmoe3},
    {"deepseek4", NULL, "deepseek_v4", put_deepseek4},
    {"minimax-m3", NULL, "minimax_m3_vl_text", config_gqa_put_minimax_m3},
    {"step35", NULL, "step3p5", config_gqa_put_step35},
    {"mimo2", NULL, "mimo_v2_flash", config_gqa_put_mimo2},
    {"nemotron_h_moe", NULL, "nemotron_h", config_gqa_put_nemotron_h},
};
enum { N_FAMILIES = sizeof families / sizeof *families, LIST_TEXT = 320 };

static int fail_arch(const struct making *m, struct moeflux_err *e)
{
    char known[LIST_TEXT] = "";
    size_t at = 0;
    uint64_t n_experts = 0;
    const struct gguf_value *v = making_find(m, "expert_count");
    if (!strcmp(m->arch, "clip"))
        return err_set(e, ERR_UNSUPPORTED, "%s: the vision part of a model: name the file of its text part",
                       making_path_of(m));
    if (!v || (gguf_whole(v, &n_experts) && n_experts == 0))
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: general.architecture is %s without experts, a dense model: llama.cpp or mlx-lm run it",
            making_path_of(m), m->arch);
    for (size_t i = 0; i < N_FAMILIES && at < sizeof known; i++)
        if (!families[i].pre)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s",
                                   at == 0              ? ""
                                   : i + 1 < N_FAMILIES ? ", "
                                                        : " or ",
                                   families[i].arch);
    return err_set(e, ERR_UNSUPPORTED, "%s: general.architecture is %s, expected %s; llama.cpp may run it",
                   making_path_of(m), m->arch, known);
}

static int make(struct making *m, const char *pre, struct moeflux_err *e)
{
    size_t i = 0;
    while (i < N_FAMILIES &&
           (strcmp(families[i].arch, m->arch) != 0 || (families[i].pre && strcmp(families[i].pre, pre) != 0)))
        i++;
    if (i == N_FAMILIES)
        return fail_arch(m, e);
    making_put(m, "model_type", json_string(families[i].model_type));
    put_common(m);
    if (m->rc == 0)
        families[i].put(m);
    return m->rc;
}

int gguf_config_make(const struct gguf *g, struct json_t **out, struct moeflux_err *e)
{
    const struct gguf_value *arch = gguf_find(g, "general.architecture"),
                            *pre = gguf_find(g, "tokenizer.ggml.pre");
    char *name = NULL, *split = NULL;
    *out = NULL;
    if (!arch)
        return err_set(e, ERR_FORMAT, "%s: key general.architecture is missing", g->files[0].path);
    int rc = gguf_text(g, arch, MAKING_NAME, &name, e);
    if (rc == 0 && pre)
        rc = gguf_text(g, pre, MAKING_NAME, &split, e);
    if (rc == 0 && !(*out = json_object()))
        rc = err_set(e, ERR_MEMORY, "out of memory for config.json");
    struct making m = {.g = g, .arch = name, .out = *out, .e = e};
    if (rc == 0)
        rc = make(&m, split ? split : "", e);
    if (rc < 0) {
        json_decref(*out);
        *out = NULL;
    }
    free(name);
    free(split);
    return rc;
}

bool gguf_config_knows(const char *architecture)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].arch, architecture) == 0)
            return true;
    return false;
}

bool gguf_config_has_tokenizer(const struct gguf *g)
{
    const struct gguf_value *v = gguf_find(g, "tokenizer.ggml.model");
    char *name = NULL;
    if (!v)
        return false;
    bool has = gguf_text(g, v, MAKING_NAME, &name, NULL) < 0 || /* its reader reports that */
               (strcmp(name, "none") != 0 && strcmp(name, "no_vocab") != 0);
    free(name);
    return has;
}

/* Families with fused matrices keep their order, and so do those with a decay for each channel. */
bool gguf_config_tiles_heads(const struct config *c)
{
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    return d->n_k_heads && !d->by_channel && !c->family->fused;
}
