#include "model/gguf/names.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "model/config.h"
#include "model/drafter.h"
#include "model/family.h"
#include "model/table.h"

struct name {
    const char *theirs, *ours;
};

#define MIXER "model.hyper_connection_mixer."

static const struct name whole[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"output_res_score.weight", "model.output_attn_res_proj.weight"},
    {"output_hc_norm.weight", MIXER "hc_norm.weight"},
    {"output_hc_down.weight", MIXER "input_mix_weight_down.weight"},
    {"output_hc_up.weight", MIXER "input_mix_weight_up.weight"},
    {"output_hc_fn.weight", "model.hc_head.fn.weight"},
    {"output_hc_base.weight", "model.hc_head.base"},
    {"output_hc_scale.weight", "model.hc_head.scale"},
};

/* Names after "blk.N." and after "model.layers.N." */
static const struct name in_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
    {"attn_k_b.weight", "self_attn.embed_q.weight"},
    {"attn_v_b.weight", "self_attn.unembed_out.weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"},
    {"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_exps.weight", "mlp.switch_mlp.gate_proj.weight"},
    {"ffn_up_exps.weight", "mlp.switch_mlp.up_proj.weight"},
    {"ffn_down_exps.weight", "mlp.switch_mlp.down_proj.weight"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_exps.bias", "mlp.switch_mlp.gate_proj.bias"},
    {"ffn_up_exps.bias", "mlp.switch_mlp.up_proj.bias"},
    {"ffn_down_exps.bias", "mlp.switch_mlp.down_proj.bias"},
    {"hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight"},
    {"hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight"},
    {"hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight"},
    {"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight"},
    {"hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight"},
    {"hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight"},
    {"hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight"},
    {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight"},
    {"hc_attn_fn.weight", "hc_attn.fn.weight"},
    {"hc_attn_base.weight", "hc_attn.base"},
    {"hc_attn_scale.weight", "hc_attn.scale"},
    {"hc_ffn_fn.weight", "hc_ffn.fn.weight"},
    {"hc_ffn_base.weight", "hc_ffn.base"},
    {"hc_ffn_scale.weight", "hc_ffn.scale"},
    {"attn_res_score.weight", "self_attention_res_proj.weight"},
    {"ffn_res_score.weight", "mlp_res_proj.weight"},
    {"ffn_routed_down.weight", "mlp.fc1_latent_proj.weight"},
    {"ffn_routed_up.weight", "mlp.fc2_latent_proj.weight"},
    {"ffn_routed_norm.weight", "mlp.routed_expert_norm.weight"},
    {"indexer.q_proj.weight", "self_attn.indexer.index_q_proj.weight"},
    {"indexer.k_proj.weight", "self_attn.indexer.index_k_proj.weight"},
    {"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight"},
    {"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight"},
    {"indexer.k_norm.bias", "self_attn.indexer.k_layernorm.bias"},
    {"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"},
    {"indexer.attn_k.weight", "self_attn.indexer.wk.weight"},
    {"indexer.proj.weight", "self_attn.indexer.weights_proj.weight"},
    {"indexer_compressor_gate.weight", "self_attn.indexer.index_kpool_compress_gate.weight"},
    {"indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape"},
    {"ple_key.weight", "ple.key_proj.weight"},
    {"ple_value.weight", "ple.value_proj.weight"},
    {"ple_norm_key.weight", "ple.norm_key.weight"},
    {"ple_norm_query.weight", "ple.norm_query.weight"},
    {"ple_norm_conv.weight", "ple.norm_conv.weight"},
    {"ple_conv1d.weight", "ple.conv1d.weight"},
};

/* Those of models with norms after their parts, where these names have another meaning or exist alone. */
static const struct name with_posts[] = {
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {"layer_output_scale.weight", "layer_scalar"},
};

/* Those of layers that are a single part, and of Mamba-2. */
static const struct name single_part[] = {
    {"attn_norm.weight", "norm.weight"},
    {"ssm_in.weight", "mixer.in_proj.weight"},
    {"ssm_conv1d.weight", "mixer.conv1d.weight"},
    {"ssm_conv1d.bias", "mixer.conv1d.bias"},
    {"ssm_a", "mixer.A_log"},
    {"ssm_d", "mixer.D"},
    {"ssm_dt.bias", "mixer.dt_bias"},
    {"ssm_norm.weight", "mixer.norm.weight"},
    {"ssm_out.weight", "mixer.out_proj.weight"},
    {"ffn_latent_down.weight", "mlp.fc1_latent_proj.weight"},
    {"ffn_latent_up.weight", "mlp.fc2_latent_proj.weight"},
};

/* Names in layers with Kimi Delta Attention, before those of in_layer: the same in all models; with gates of
 * a low rank; with gates of full rank. */
static const struct name kimi_delta[] = {
    {"ssm_conv1d_q.weight", "self_attn.q_conv1d.weight"},
    {"ssm_conv1d_k.weight", "self_attn.k_conv1d.weight"},
    {"ssm_conv1d_v.weight", "self_attn.v_conv1d.weight"},
    {"ssm_beta.weight", "self_attn.b_proj.weight"},
    {"ssm_a", "self_attn.A_log"},
    {"ssm_dt.bias", "self_attn.dt_bias"},
    {"ssm_norm.weight", "self_attn.o_norm.weight"},
};
static const struct name low_gates[] = {
    {"ssm_f_a.weight", "self_attn.f_a_proj.weight"},
    {"ssm_f_b.weight", "self_attn.f_b_proj.weight"},
    {"ssm_g_a.weight", "self_attn.g_a_proj.weight"},
    {"ssm_g_b.weight", "self_attn.g_b_proj.weight"},
};
/* Only the decays' gate has a low rank. */
static const struct name low_decays[] = {
    {"ssm_f_a.weight", "self_attn.f_a_proj.weight"},
    {"ssm_f_b.weight", "self_attn.f_b_proj.weight"},
    {"ssm_g.weight", "self_attn.g_proj.weight"},
};
static const struct name full_gates[] = {
    {"ssm_f_a.weight", "self_attn.f_proj.weight"},
    {"ssm_g_a.weight", "self_attn.g_proj.weight"},
};
/* Names in layers whose attention has gates of heads. */
static const struct name head_gate[] = {{"attn_gate.weight", "self_attn.g_proj.weight"}};

/* Names in layers with DeepSeek-V4's attention. */
static const struct name compressed[] = {
    {"attn_sinks.weight", "self_attn.attn_sink"},
    {"attn_q_a.weight", "self_attn.wq_a.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_norm.weight"},
    {"attn_q_b.weight", "self_attn.wq_b.weight"},
    {"attn_kv.weight", "self_attn.wkv.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_norm.weight"},
    {"attn_output_a.weight", "self_attn.wo_a.weight"},
    {"attn_output_b.weight", "self_attn.wo_b.weight"},
    {"attn_compressor_kv.weight", "self_attn.compressor.wkv.weight"},
    {"attn_compressor_gate.weight", "self_attn.compressor.wgate.weight"},
    {"attn_compressor_ape.weight", "self_attn.compressor.ape"},
    {"attn_compressor_norm.weight", "self_attn.compressor.norm.weight"},
    {"indexer_compressor_kv.weight", "self_attn.indexer.compressor.wkv.weight"},
    {"indexer_compressor_gate.weight", "self_attn.indexer.compressor.wgate.weight"},
    {"indexer_compressor_ape.weight", "self_attn.indexer.compressor.ape"},
    {"indexer_compressor_norm.weight", "self_attn.indexer.compressor.norm.weight"},
    {"ffn_gate_tid2eid.weight", "mlp.gate.tid2eid"},
};

/* Names of tensors that families call differently (family.h). */
static const char *const of_family[] = {
    "ffn_gate_inp.bias",     "exp_probs_b.bias",    "ffn_gate_inp_shexp.weight",
    "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight",
};

static const char *find_ours(const struct name *names, size_t n, const char *theirs)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i].theirs, theirs))
            return names[i].ours;
    return NULL;
}

static const char *find_theirs(const struct name *names, size_t n, const char *ours)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i].ours, ours))
            return names[i].theirs;
    return NULL;
}

struct names {
    const struct name *items;
    size_t n;
};
#define NAMES(table)                                                                                         \
    (struct names)                                                                                           \
    {                                                                                                        \
        table, sizeof(table) / sizeof *(table)                                                               \
    }
enum { LAYER_TABLES = 3 };

/* Lists the tables of a layer's names, the first ones first. */
static void tables_of(const struct config *c, uint32_t layer, struct names out[LAYER_TABLES])
{
    const struct part_config *mixer = config_mixer(c, layer);
    struct names last = NAMES(in_layer);
    out[0] = out[1] = out[2] = last;
    if (config_has_posts(c))
        out[0] = NAMES(with_posts);
    if ((mixer->kind == PART_LATENT && mixer->latent.gated) ||
        (mixer->kind == PART_ATTENTION && mixer->gqa.head_gated))
        out[0] = NAMES(head_gate);
    if (mixer->kind == PART_COMPRESSED)
        out[0] = NAMES(compressed);
    if (c->layers[layer].n_blocks == 1)
        out[0] = NAMES(single_part);
    if (mixer->kind != PART_DELTA_NET || !mixer->delta.by_channel)
        return;
    out[0] = NAMES(kimi_delta);
    if (mixer->delta.z_full)
        out[1] = NAMES(low_decays);
    else if (mixer->delta.gate_rank)
        out[1] = NAMES(low_gates);
    else
        out[1] = NAMES(full_gates);
}

static const char *find_in_layer(const struct config *c, uint32_t layer, const char *name,
                                 const char *(*find)(const struct name *, size_t, const char *))
{
    struct names tables[LAYER_TABLES];
    const char *found = NULL;
    tables_of(c, layer, tables);
    for (int i = 0; i < LAYER_TABLES && !found; i++)
        found = find(tables[i].items, tables[i].n, name);
    return found;
}

/* Finds the canonical name of one in `of_family`. NULL: the family has no such tensor. */
static const char *find_of_family(const struct family *f, const char *theirs, char out[GGUF_NAMES_LENGTH])
{
    static const char *const parts[] = {"gate", "up", "down"};
    out[0] = '\0';
    bool of_logits = f->router_bias && !strcmp(f->router_bias, "gate.bias");
    if (f->router_bias && !strcmp(theirs, of_logits ? "ffn_gate_inp.bias" : "exp_probs_b.bias"))
        snprintf(out, GGUF_NAMES_LENGTH, "mlp.%s", f->router_bias);
    else if (!strcmp(theirs, "ffn_gate_inp_shexp.weight") && f->shared_gate)
        snprintf(out, GGUF_NAMES_LENGTH, "mlp.%s.weight", f->shared_gate);
    for (int i = 0; i < 3 && f->shared; i++) {
        char shared[32];
        snprintf(shared, sizeof shared, "ffn_%s_shexp.weight", parts[i]);
        if (!strcmp(theirs, shared))
            snprintf(out, GGUF_NAMES_LENGTH, "mlp.%s.%s_proj.weight", f->shared, parts[i]);
    }
    return out[0] ? out : NULL;
}

/* Names of the n-gram table, of which a file has one. */
static const char table_theirs[] = "per_layer_token_embd.weight";

/* Writes our name of the table's tensor. Returns whether a layer has a table. */
static bool name_table(const struct config *c, char out[GGUF_NAMES_LENGTH])
{
    char name[TABLE_NAME];
    uint32_t layer = 0;
    while (layer < c->n_layers && !table_of_layer(c, layer))
        layer++;
    table_name(layer, name);
    snprintf(out, GGUF_NAMES_LENGTH, "%s.weight", name);
    return layer < c->n_layers;
}

static bool has_rope_freqs(const struct config *c)
{
    for (uint32_t i = 0; i < c->n_ropes; i++)
        if (c->ropes[i].n_pairs || c->ropes[i].n_divisors)
            return true;
    return false;
}

/* Finds the canonical name of a drafter's tensor (model/drafter.h). NULL: *name is another tensor's, and then
 * as if the layer were the first. own: room for that. */
static const char *find_drafter(const struct config *c, const char **name, char own[GGUF_NAMES_LENGTH])
{
    static const struct name nextn[] = {{"nextn.eh_proj.weight", "model.mtp.fc.weight"},
                                        {"nextn.enorm.weight", DRAFTER_EMBEDDING_NORM},
                                        {"nextn.hnorm.weight", DRAFTER_HIDDEN_NORM},
                                        {"nextn.shared_head_norm.weight", "model.norm.weight"},
                                        {"layer_output_norm.weight", "model.norm.weight"},
                                        {"nextn.hc_head_norm.weight", MIXER "hc_norm.weight"},
                                        {"nextn.hc_head_down.weight", MIXER "input_mix_weight_down.weight"},
                                        {"nextn.hc_head_up.weight", MIXER "input_mix_weight_up.weight"},
                                        {"nextn.hc_head_fn.weight", "model.hc_head.fn.weight"},
                                        {"nextn.hc_head_base.weight", "model.hc_head.base"},
                                        {"nextn.hc_head_scale.weight", "model.hc_head.scale"}};
    unsigned layer = 0;
    int n = 0;
    bool is_norm = !strcmp(*name, "output_norm.weight");
    if (is_norm && drafter_has_last_norm(c))
        return DRAFTER_LAST_NORM;
    if (is_norm || str_after(*name, "output_hc_")) { /* the model's own */
        snprintf(own, GGUF_NAMES_LENGTH, "blk.%u.", c->n_layers);
        *name = own;
        return NULL;
    }
    if (sscanf(*name, "blk.%9u.%n", &layer, &n) != 1 || n == 0)
        return NULL;
    const char *rest = *name + n;
    snprintf(own, GGUF_NAMES_LENGTH, "blk.%u.%.80s", layer == c->drafts_as ? 0 : 1 + layer, rest);
    *name = own;
    return layer == c->drafts_as ? find_ours(nextn, sizeof nextn / sizeof *nextn, rest) : NULL;
}

const char *gguf_names_drafter_norm(const struct config *c)
{
    bool is_in_mtp = c->family->drafter == DRAFTER_AS_MTP_NEXTN;
    return c->streams.rank ? "nextn.hc_head_norm"
           : is_in_mtp     ? "layer_output_norm"
                           : "nextn.shared_head_norm";
}

enum gguf_names_kind gguf_names_find(const struct config *c, const char *name, char out[GGUF_NAMES_LENGTH])
{
    unsigned layer = 0;
    int n = 0;
    char own[GGUF_NAMES_LENGTH];
    char as_first[GGUF_NAMES_LENGTH];
    const char *ours = c->drafts ? find_drafter(c, &name, as_first) : NULL;
    if (!ours)
        ours = find_ours(whole, sizeof whole / sizeof *whole, name);
    if (ours) {
        snprintf(out, GGUF_NAMES_LENGTH, "%s", ours);
        return GGUF_NAMES_OURS;
    }
    if (!strcmp(name, table_theirs))
        return c->drafts ? GGUF_NAMES_UNUSED : name_table(c, out) ? GGUF_NAMES_OURS : GGUF_NAMES_UNKNOWN;
    if (str_after(name, "v.") || str_after(name, "mm."))
        return GGUF_NAMES_OTHER_PART;
    /* YaRN's tables follow from keys; rope_freqs would change the angles if it is not part of the
     * configuration. */
    if (str_after(name, "rope_factors_") || (has_rope_freqs(c) && !strcmp(name, "rope_freqs.weight")))
        return GGUF_NAMES_UNUSED;
    if (sscanf(name, "blk.%9u.%n", &layer, &n) != 1 || n == 0)
        return GGUF_NAMES_UNKNOWN;
    if (layer >= c->n_layers)
        return GGUF_NAMES_OTHER_PART;
    if (c->drafts && str_after(name + n, "nextn.")) /* copies of the model's embedding and head */
        return GGUF_NAMES_UNUSED;
    if (!strcmp(name + n, "exp_probs_b_vl.bias")) /* images' tokens are routed by it */
        return GGUF_NAMES_UNUSED;
    if (!(ours = find_in_layer(c, layer, name + n, find_ours)))
        ours = find_of_family(c->family, name + n, own);
    snprintf(out, GGUF_NAMES_LENGTH, "model.layers.%u.%.80s", layer, ours ? ours : "");
    return ours ? GGUF_NAMES_OURS : GGUF_NAMES_UNKNOWN;
}

const char *gguf_names_of(const struct config *c, const char *name, char out[GGUF_NAMES_LENGTH])
{
    unsigned layer = 0;
    int n = 0;
    char own[GGUF_NAMES_LENGTH];
    const char *theirs = find_theirs(whole, sizeof whole / sizeof *whole, name);
    if (theirs)
        return theirs;
    if (name_table(c, own) && !strcmp(own, name))
        return table_theirs;
    if (sscanf(name, "model.layers.%9u.%n", &layer, &n) != 1 || n == 0)
        return name;
    theirs = layer < c->n_layers ? find_in_layer(c, layer, name + n, find_theirs) : NULL;
    for (size_t i = 0; !theirs && i < sizeof of_family / sizeof *of_family; i++) {
        const char *ours = find_of_family(c->family, of_family[i], own);
        if (ours && !strcmp(ours, name + n))
            theirs = of_family[i];
    }
    if (!theirs)
        return name;
    snprintf(out, GGUF_NAMES_LENGTH, "blk.%u.%s", layer, theirs);
    return out;
}
