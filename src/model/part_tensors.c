#include "model/part_tensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/family.h"

static void gqa(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct gqa_config *g = &p->gqa;
    uint32_t d = g->head_dim, q = g->n_heads * d, kv = g->n_kv_heads * d, q_rows = q * (1 + g->gated),
             v = config_value_dim(g);
    uint32_t norms = g->norm != QK_NORM_NONE, biased = g->biased;
    const struct index_config *x = &g->index;
    uint32_t has_index = x->n_heads > 0, one = has_index && !c->splits_index,
             two = has_index && c->splits_index;
    bool is_one = g->norm == QK_NORM_ALL;
    const struct part_tensor all[] = {
        [GQA_Q] = {"self_attn.q_proj", q_rows, c->hidden},
        [GQA_K] = {"self_attn.k_proj", kv, c->hidden},
        [GQA_V] = {"self_attn.v_proj", g->n_kv_heads * v, c->hidden},
        [GQA_INDEX] = {"self_attn.indexer.index_qk_proj", (x->n_heads + 1) * x->dim, one * c->hidden},
        [GQA_INDEX_Q] = {"self_attn.indexer.index_q_proj", x->n_heads * x->dim, two * c->hidden},
        [GQA_INDEX_K] = {"self_attn.indexer.index_k_proj", x->dim, two * c->hidden},
        [GQA_GATE] = {"self_attn.g_proj", g->head_gated * g->n_heads, g->head_gated * c->hidden},
        [GQA_OUT] = {"self_attn.o_proj", c->hidden, g->n_heads * v},
        [GQA_Q_NORM] = {"self_attn.q_norm.weight", 0, norms * (is_one ? q : d)},
        [GQA_K_NORM] = {"self_attn.k_norm.weight", 0, norms * (is_one ? kv : d)},
        [GQA_BIASES] = {"self_attn.q_proj.bias", 0, biased * q_rows},
        [GQA_BIASES + 1] = {"self_attn.k_proj.bias", 0, biased * kv},
        [GQA_BIASES + 2] = {"self_attn.v_proj.bias", 0, biased * g->n_kv_heads * v},
        [GQA_OUT_BIAS] = {"self_attn.o_proj.bias", 0, g->out_biased * c->hidden},
        [GQA_SINKS] = {"self_attn.sinks", 0, g->sinks * g->n_heads},
        [GQA_INDEX_Q_NORM] = {"self_attn.indexer.q_layernorm.weight", 0, has_index * x->dim},
        [GQA_INDEX_K_NORM] = {"self_attn.indexer.k_layernorm.weight", 0, has_index * x->dim},
    };
    memcpy(t, all, sizeof all);
    if (g->keys_are_values)
        memcpy(t[GQA_V].name, t[GQA_K].name, sizeof t->name);
}

static void gated_delta(const struct config *c, const struct delta_config *d, struct part_tensor *t)
{
    uint32_t values = d->n_v_heads * d->v_head_dim, channels = config_conv_dim(d);
    const struct part_tensor all[] = {
        [DELTA_QKV] = {"linear_attn.in_proj_qkv", channels, c->hidden},
        [DELTA_Z] = {"linear_attn.in_proj_z", values, c->hidden},
        [DELTA_A] = {"linear_attn.in_proj_a", d->n_v_heads, c->hidden},
        [DELTA_B] = {"linear_attn.in_proj_b", d->n_v_heads, c->hidden},
        [DELTA_OUT] = {"linear_attn.out_proj", c->hidden, values},
        [DELTA_CONV] = {"linear_attn.conv1d.weight", 0, channels * d->conv_kernel},
        [DELTA_A_LOG] = {"linear_attn.A_log", 0, d->n_v_heads},
        [DELTA_DT_BIAS] = {"linear_attn.dt_bias", 0, d->n_v_heads},
        [DELTA_NORM] = {"linear_attn.norm.weight", 0, d->v_head_dim},
    };
    memcpy(t, all, sizeof all);
}

static void kimi_delta(const struct config *c, const struct delta_config *d, struct part_tensor *t)
{
    uint32_t keys = d->n_k_heads * d->k_head_dim, values = d->n_v_heads * d->v_head_dim,
             decays = config_decays(d), rank = d->gate_rank, z_rank = config_z_rank(d), taps = d->conv_kernel;
    const struct part_tensor all[] = {
        [DELTA_QKV] = {"self_attn.q_proj", keys, c->hidden},
        [DELTA_K] = {"self_attn.k_proj", keys, c->hidden},
        [DELTA_V] = {"self_attn.v_proj", values, c->hidden},
        [DELTA_Z] = {"self_attn.g_proj", z_rank ? z_rank : values, c->hidden},
        [DELTA_A] = {"self_attn.f_proj", rank ? rank : decays, c->hidden},
        [DELTA_B] = {"self_attn.b_proj", d->n_v_heads, c->hidden},
        [DELTA_Z_UP] = {"self_attn.g_b_proj", values, z_rank},
        [DELTA_A_UP] = {"self_attn.f_b_proj", decays, rank},
        [DELTA_OUT] = {"self_attn.o_proj", c->hidden, values},
        [DELTA_CONV] = {"self_attn.q_conv1d.weight", 0, keys * taps},
        [DELTA_CONV + 1] = {"self_attn.k_conv1d.weight", 0, keys * taps},
        [DELTA_CONV + 2] = {"self_attn.v_conv1d.weight", 0, values * taps},
        [DELTA_A_LOG] = {"self_attn.A_log", 0, d->n_v_heads},
        [DELTA_DT_BIAS] = {"self_attn.dt_bias", 0, decays},
        [DELTA_NORM] = {"self_attn.o_norm.weight", 0, d->v_head_dim},
    };
    memcpy(t, all, sizeof all);
    if (z_rank)
        strcpy(t[DELTA_Z].name, "self_attn.g_a_proj");
    if (rank)
        strcpy(t[DELTA_A].name, "self_attn.f_a_proj");
}

static void delta_net(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    (p->delta.by_channel ? kimi_delta : gated_delta)(c, &p->delta, t);
}

static void latent(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct latent_config *m = &p->latent;
    uint32_t rank = m->kv_lora_rank, q_rows = m->n_heads * (m->nope_dim + m->rope_dim), lora = m->q_lora_rank;
    uint32_t one = c->has_kv_b, two = !c->has_kv_b;
    const struct index_config *x = &m->index;
    uint32_t has_index = x->n_heads > 0, pooled = has_index && x->pooled;
    const struct part_tensor all[] = {
        [LATENT_Q_A] = {"self_attn.q_proj", lora ? lora : q_rows, c->hidden},
        [LATENT_Q_NORM] = {"self_attn.q_a_layernorm.weight", 0, lora},
        [LATENT_Q_B] = {"self_attn.q_b_proj", q_rows, lora},
        [LATENT_KV_A] = {"self_attn.kv_a_proj_with_mqa", rank + m->rope_dim, c->hidden},
        [LATENT_GATE] = {"self_attn.g_proj", config_latent_gates(m), m->gated * c->hidden},
        [LATENT_KV_NORM] = {"self_attn.kv_a_layernorm.weight", 0, rank},
        [LATENT_KV_B] = {"self_attn.kv_b_proj", m->n_heads * (m->nope_dim + m->v_dim), one * rank},
        [LATENT_EMBED_Q] = {"self_attn.embed_q", m->n_heads * rank, two * m->nope_dim},
        [LATENT_UNEMBED] = {"self_attn.unembed_out", m->n_heads * m->v_dim, two * rank},
        [LATENT_OUT] = {"self_attn.o_proj", c->hidden, m->n_heads * m->v_dim},
        [LATENT_INDEX_Q] = {"self_attn.indexer.wq_b", x->n_heads * x->dim, has_index * lora},
        [LATENT_INDEX_K] = {"self_attn.indexer.wk", x->dim, has_index * c->hidden},
        [LATENT_INDEX_POOL_GATE] = {"self_attn.indexer.index_kpool_compress_gate", x->dim,
                                    pooled * c->hidden},
        [LATENT_INDEX_WEIGHTS] = {"self_attn.indexer.weights_proj", x->n_heads, has_index * c->hidden},
        [LATENT_INDEX_K_NORM] = {"self_attn.indexer.k_layernorm.weight", 0, has_index * x->dim},
        [LATENT_INDEX_K_BIAS] = {"self_attn.indexer.k_layernorm.bias", 0, has_index * x->dim},
        [LATENT_INDEX_POOL_BIAS] = {"self_attn.indexer.index_kpool_compress_ape", 0,
                                    pooled * x->ratio * x->dim},
    };
    memcpy(t, all, sizeof all);
    if (lora)
        strcpy(t[LATENT_Q_A].name, "self_attn.q_a_proj");
}

static void compressed(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct compressed_config *a = &p->compressed;
    const struct index_config *x = &a->index;
    uint32_t wide = a->head_dim * (1 + a->overlaps), index_wide = x->dim * (1 + a->overlaps);
    uint32_t has_rows = a->ratio > 0 && !a->borrows, has_index = x->n_heads > 0, own = !a->projects_keys,
             keys = has_rows && has_index && a->projects_keys, rows_of = has_rows * c->hidden,
             weights_of = (own || a->ratio > 1) * rows_of, index_of = has_index * c->hidden,
             low = a->out_groups * a->out_rank;
    const struct part_tensor all[] = {
        [COMPRESSED_Q_A] = {"self_attn.wq_a", a->q_lora_rank, c->hidden},
        [COMPRESSED_KV] = {"self_attn.wkv", a->head_dim, c->hidden},
        [COMPRESSED_ROWS] = {"self_attn.compressor.wkv", wide, rows_of},
        [COMPRESSED_WEIGHTS] = {"self_attn.compressor.wgate", wide, weights_of},
        [COMPRESSED_INDEX_ROWS] = {"self_attn.indexer.compressor.wkv", index_wide, own * index_of},
        [COMPRESSED_INDEX_WEIGHTS] = {"self_attn.indexer.compressor.wgate", index_wide, own * index_of},
        [COMPRESSED_INDEX_HEADS] = {"self_attn.indexer.weights_proj", x->n_heads, index_of},
        [COMPRESSED_Q_B] = {"self_attn.wq_b", a->n_heads * a->head_dim, a->q_lora_rank},
        [COMPRESSED_INDEX_Q] = {"self_attn.indexer.wq_b", x->n_heads * x->dim, has_index * a->q_lora_rank},
        [COMPRESSED_INDEX_KEY] = {"self_attn.indexer.wk", x->dim, keys * a->head_dim},
        [COMPRESSED_OUT_A] = {"self_attn.wo_a", low, a->n_heads / a->out_groups * a->head_dim},
        [COMPRESSED_OUT_B] = {"self_attn.wo_b", c->hidden, low},
        [COMPRESSED_Q_NORM] = {"self_attn.q_norm.weight", 0, a->q_lora_rank},
        [COMPRESSED_KV_NORM] = {"self_attn.kv_norm.weight", 0, a->head_dim},
        [COMPRESSED_SINKS] = {"self_attn.attn_sink", 0, a->n_heads},
        [COMPRESSED_BIASES] = {"self_attn.compressor.ape", 0, own * a->ratio * wide},
        [COMPRESSED_ROW_NORM] = {"self_attn.compressor.norm.weight", 0, has_rows * a->head_dim},
        [COMPRESSED_INDEX_BIASES] = {"self_attn.indexer.compressor.ape", 0, own * x->ratio * index_wide},
        [COMPRESSED_INDEX_ROW_NORM] = {"self_attn.indexer.compressor.norm.weight", 0,
                                       own * has_index * x->dim},
        [COMPRESSED_INDEX_KEY_NORM] = {"self_attn.indexer.k_norm.weight", 0, keys * x->dim},
    };
    memcpy(t, all, sizeof all);
}

static void mamba(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct mamba_config *m = &p->mamba;
    uint32_t inner = config_mamba_inner(m), channels = config_mamba_channels(m);
    const struct part_tensor all[] = {
        [MAMBA_IN] = {"mixer.in_proj", inner + channels + m->n_heads, c->hidden},
        [MAMBA_OUT] = {"mixer.out_proj", c->hidden, inner},
        [MAMBA_CONV] = {"mixer.conv1d.weight", 0, channels * m->conv_kernel},
        [MAMBA_CONV_BIAS] = {"mixer.conv1d.bias", 0, m->conv_biased * channels},
        [MAMBA_A_LOG] = {"mixer.A_log", 0, m->n_heads},
        [MAMBA_D] = {"mixer.D", 0, m->n_heads},
        [MAMBA_DT_BIAS] = {"mixer.dt_bias", 0, m->n_heads},
        [MAMBA_NORM] = {"mixer.norm.weight", 0, inner},
    };
    memcpy(t, all, sizeof all);
}

/* Sets a feed-forward part's matrices, below "mlp." and `where`: gate, if it has one, up and down. */
static void gated(const struct config *c, const char *where, uint32_t inner, struct part_tensor *t)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = c->gateless; i < 3 && inner > 0; i++) {
        t[i] = (struct part_tensor){.rows = i < 2 ? inner : c->hidden, .cols = i < 2 ? c->hidden : inner};
        snprintf(t[i].name, sizeof t[i].name, "mlp.%s%s", where, parts[i]);
    }
}

static void dense(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    gated(c, "", p->dense.inner, t + DENSE_GATE);
}

/* Sets a tensor that only some families have. */
static void named(const char *name, uint32_t rows, uint32_t cols, struct part_tensor *t)
{
    if (!name)
        return;
    *t = (struct part_tensor){.rows = rows, .cols = cols};
    snprintf(t->name, sizeof t->name, "mlp.%s", name);
}

static void experts(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct family *f = c->family;
    uint32_t n = c->experts_biased * c->n_experts;
    const struct part_tensor all[] = {
        [EXPERTS_ROUTER] = {"mlp.gate", c->n_experts, c->hidden},
        [EXPERTS_BIASES] = {"mlp.switch_mlp.gate_proj.bias", 0, n * c->moe_inner},
        [EXPERTS_BIASES + 1] = {"mlp.switch_mlp.up_proj.bias", 0, n * c->moe_inner},
        [EXPERTS_BIASES + 2] = {"mlp.switch_mlp.down_proj.bias", 0, n * c->hidden},
    };
    char shared[PART_TENSOR_NAME / 2];
    bool by_token = p->routed.by_token;
    memcpy(t, all, sizeof all);
    t[EXPERTS_ROUTER_NORM] = (struct part_tensor){.name = "router.scale",
                                                  .cols = c->router.own_norm * c->hidden,
                                                  .factor = (float)(1 / sqrt((double)c->hidden))};
    t[EXPERTS_FACTORS] =
        (struct part_tensor){.name = "router.per_expert_scale", .cols = c->router.factors * c->n_experts};
    t[EXPERTS_OF_TOKENS] = (struct part_tensor){
        .name = "mlp.gate.tid2eid", .cols = by_token * c->vocab_size * c->own_top_k, .is_ids = true};
    if (c->moe_latent) {
        t[EXPERTS_LATENT_IN] =
            (struct part_tensor){.name = "mlp.fc1_latent_proj", .rows = c->moe_latent, .cols = c->hidden};
        t[EXPERTS_LATENT_OUT] =
            (struct part_tensor){.name = "mlp.fc2_latent_proj", .rows = c->hidden, .cols = c->moe_latent};
    }
    t[EXPERTS_LATENT_NORM] = (struct part_tensor){.name = "mlp.routed_expert_norm.weight",
                                                  .cols = c->latent_normed * c->moe_latent};
    named(by_token ? NULL : f->router_bias, 0, c->n_experts, &t[EXPERTS_ROUTER_BIAS]);
    named(f->shared_gate, 1, c->hidden, &t[EXPERTS_SHARED_GATE]);
    snprintf(shared, sizeof shared, "%s.", f->shared ? f->shared : "");
    gated(c, shared, c->shared_inner, t + EXPERTS_GATE);
}

static void ngrams(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    uint32_t width = config_width(c), inner = p->ngrams.inner;
    const struct part_tensor fused[] = {
        [NGRAM_KEY] = {"engram.wkv", width + c->hidden, inner},
        [NGRAM_K_NORM] = {"engram.k_weight", 0, width},
        [NGRAM_X_NORM] = {"engram.q_weight", 0, width},
    };
    const struct part_tensor all[] = {
        [NGRAM_KEY] = {"ple.key_proj", width, inner},
        [NGRAM_VALUE] = {"ple.value_proj", c->hidden, inner},
        [NGRAM_K_NORM] = {"ple.norm_key.weight", 0, width},
        [NGRAM_X_NORM] = {"ple.norm_query.weight", 0, width},
        [NGRAM_U_NORM] = {"ple.norm_conv.weight", 0, width},
        [NGRAM_CONV] = {"ple.conv1d.weight", 0, width * p->ngrams.taps},
    };
    if (p->ngrams.fused)
        memcpy(t, fused, sizeof fused);
    else
        memcpy(t, all, sizeof all);
}

void part_tensors(const struct config *c, const struct part_config *p, struct part_tensor *out)
{
    static void (*const kinds[PART_KINDS])(const struct config *, const struct part_config *,
                                           struct part_tensor *) = {
        [PART_DELTA_NET] = delta_net,   [PART_ATTENTION] = gqa,   [PART_LATENT] = latent,
        [PART_DENSE] = dense,           [PART_EXPERTS] = experts, [PART_NGRAMS] = ngrams,
        [PART_COMPRESSED] = compressed, [PART_MAMBA] = mamba,
    };
    memset(out, 0, PART_MAX_TENSORS * sizeof *out);
    kinds[p->kind](c, p, out);
}

struct part_tensor part_norm(const struct config *c, const struct config_block *b)
{
    struct part_tensor t = {.cols = b->norm ? c->hidden : 0};
    snprintf(t.name, sizeof t.name, "%s", b->norm ? b->norm : "");
    return t;
}

void part_posts(const struct config *c, const struct config_block *b, struct part_tensor out[POST_TENSORS])
{
    const char *const names[POST_TENSORS] = {
        [POST_NORM] = b->post, [POST_OUTER] = b->outer, [POST_FACTOR] = b->factor};
    for (int i = 0; i < POST_TENSORS; i++) {
        out[i] = (struct part_tensor){.cols = !names[i] ? 0 : i == POST_FACTOR ? 1 : c->hidden};
        snprintf(out[i].name, sizeof out[i].name, "%s", names[i] ? names[i] : "");
    }
}

const char *part_last_mix(const struct config *c)
{
    if (c->streams.block)
        return "output_attn_res";
    if (c->streams.rank)
        return "hyper_connection_mixer";
    return c->streams.n && !c->streams.ends_in_mean && !c->streams.lagged ? "hc_head" : NULL;
}

/* Sets the tensors of attention over blocks. */
static void block_score(const struct config *c, const char *name, struct part_tensor *out)
{
    out[STREAMS_NORM].cols = c->streams.scores_alone ? 0 : c->hidden;
    out[STREAMS_SCORE].cols = c->hidden;
    snprintf(out[STREAMS_NORM].name, sizeof out->name, "%s_norm.weight", name);
    snprintf(out[STREAMS_SCORE].name, sizeof out->name, "%s_proj.weight", name);
}

void part_streams(const struct config *c, const char *name, bool is_last, struct part_tensor *out)
{
    static const char *const parts[STREAMS_TENSORS] = {
        [STREAMS_DOWN] = "input_mix_weight_down",
        [STREAMS_BY] = "block_inject_weight",
        [STREAMS_UP] = "input_mix_weight_up",
        [STREAMS_NORM] = "hc_norm.weight",
        [STREAMS_FN] = "fn",
        [STREAMS_SCALE] = "scale",
        [STREAMS_BASE] = "base",
        [STREAMS_SCORE] = "",
    };
    uint32_t width = config_width(c), rank = c->streams.rank, n = c->streams.n, low = rank ? width : 0;
    uint32_t joined = rank ? 0 : is_last ? n : n * (n + 2);
    const uint32_t shapes[STREAMS_TENSORS][2] = {[STREAMS_DOWN] = {rank, low},
                                                 [STREAMS_BY] = {n, is_last ? 0 : low},
                                                 [STREAMS_UP] = {width, rank},
                                                 [STREAMS_NORM] = {0, low},
                                                 [STREAMS_FN] = {joined, rank ? 0 : width},
                                                 [STREAMS_SCALE] = {0, rank      ? 0
                                                                       : is_last ? 1
                                                                                 : 3},
                                                 [STREAMS_BASE] = {0, joined}};
    memset(out, 0, STREAMS_TENSORS * sizeof *out);
    if (name && c->streams.block)
        block_score(c, name, out);
    for (int i = 0; name && !c->streams.block && i < STREAMS_TENSORS; i++) {
        out[i] = (struct part_tensor){.rows = shapes[i][0], .cols = shapes[i][1]};
        snprintf(out[i].name, sizeof out[i].name, "%s.%s", name, parts[i]);
    }
}

static uint32_t key_heads(const struct config *c)
{
    return config_first(c, PART_DELTA_NET)->delta.n_k_heads;
}

static uint32_t ba_rows(const struct config *c, uint32_t run)
{
    (void)run;
    return config_first(c, PART_DELTA_NET)->delta.n_v_heads / key_heads(c);
}

static uint32_t qkvz_rows(const struct config *c, uint32_t run)
{
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    return run < 2 ? d->k_head_dim : ba_rows(c, run) * d->v_head_dim;
}

const struct fused_matrix part_fused_delta_net[] = {
    {".linear_attn.in_proj_qkvz",
     {{".linear_attn.in_proj_qkv", 3}, {".linear_attn.in_proj_z", 1}},
     key_heads,
     qkvz_rows},
    {".linear_attn.in_proj_ba",
     {{".linear_attn.in_proj_b", 1}, {".linear_attn.in_proj_a", 1}},
     key_heads,
     ba_rows},
    {0},
};
