/* DeepSeek-V4.1: DeepSeek-V4's attention, whose compressed rows and choices groups of layers share; lagged
 * mixes of residual streams; rows of n-gram tables (Engram) before some layers' mixers; a bias in each
 * router. The layers of multi-token prediction and vision are left out. Defaults are mlx-lm's. */
#include <jansson.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "model/scaled.h"

static const double BIG = 1e30;
/* The seed of a layer's n-gram table is so many times its number. */
enum { SEED_STEP = 10007 };

/* Checks keys of which only one value is computed. */
static void check_keys(struct json_view *v)
{
    config_expect(v, "norm_topk_prob", true);
    config_expect(v, "attention_bias", false);
    config_expect_text(v, "scoring_func", "sqrtsoftplus");
    config_expect_text(v, "topk_method", "noaux_tc");
    config_expect_number(v, "gate_temp", 1, 1);
    config_expect_number(v, "hc_post_alpha", 2, 2);
    config_expect_number(v, "engram_gate_clamp", 1e-6, 1e-6);
    json_view_u32_or(v, "n_shared_experts", 1, 1, 1);
    json_view_u32_or(v, "num_key_value_heads", 1, 1, 1);
    json_view_u32_or(v, "n_group", 1, 1, 1);
    json_view_u32_or(v, "topk_group", 1, 1, 1);
    json_view_u32_or(v, "moe_layer_freq", 1, 1, 1);
    json_view_u32_or(v, "first_k_dense_replace", 0, 0, 0);
}

/* ---- attention ---- */

/* What tells one layer's attention from another's. */
struct role {
    uint32_t ratio;
    bool makes_rows, chooses, finds, takes; /* finds, takes: candidates */
};

static bool is_same(const struct role *a, const struct role *b)
{
    return a->ratio == b->ratio && a->makes_rows == b->makes_rows && a->chooses == b->chooses &&
           a->finds == b->finds && a->takes == b->takes;
}

/* The lists that name layers. */
struct lists {
    const json_t *ratios, *rows, *index;
    json_int_t finder; /* the layer that finds candidates; < 0: there is none */
};

static void check_ids(const struct config *c, struct json_view *v, const char *key, const json_t *list)
{
    for (size_t i = 0; v->rc == 0 && i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        if (layer < 0 || layer >= c->n_layers)
            v->rc = err_set(v->e, ERR_FORMAT, "%s: %s[%zu]: expected a layer below %u", v->where, key, i,
                            c->n_layers);
    }
}

static bool has_id(const json_t *list, uint32_t layer)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == (json_int_t)layer)
            return true;
    return false;
}

static struct lists read_lists(const struct config *c, struct json_view *v)
{
    struct lists l = {.ratios = config_layers_list(c, v, "compress_ratios"),
                      .rows = json_view_array(v, "kv_source_layer_ids"),
                      .index = json_view_array(v, "index_source_layer_ids"),
                      .finder = -1};
    const json_t *finder = json_view_get(v, "candidate_source_layer_id");
    check_ids(c, v, "kv_source_layer_ids", l.rows);
    check_ids(c, v, "index_source_layer_ids", l.index);
    if (v->rc == 0 && finder && !json_is_integer(finder))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: candidate_source_layer_id: expected a layer or -1", v->where);
    else if (finder && json_view_u32_or(v, "candidate_topk_blocks", 2048, 0, CONFIG_MAX_BUDGET) > 0)
        l.finder = json_integer_value(finder);
    return l;
}

static uint32_t ratio_of(const struct lists *l, struct json_view *v, uint32_t i)
{
    const json_t *item = json_array_get(l->ratios, i);
    json_int_t ratio = json_integer_value(item);
    bool is_known = json_is_integer(item) && ratio >= 0 && ratio <= 1 << KV_BLOCK_SHIFT;
    if (v->rc == 0 && l->ratios && (!is_known || (ratio & (ratio - 1)) != 0))
        v->rc =
            err_set(v->e, ERR_UNSUPPORTED, "%s: compress_ratios[%u]: expected 0 or a power of two up to %d",
                    v->where, i, 1 << KV_BLOCK_SHIFT);
    return v->rc < 0 ? 0 : (uint32_t)ratio;
}

/* Reads what layer i does. source: the layer whose rows the layers before it see. */
static struct role role_of(const struct lists *l, struct json_view *v, uint32_t i, uint32_t *source)
{
    struct role r = {.ratio = ratio_of(l, v, i),
                     .makes_rows = has_id(l->rows, i),
                     .chooses = has_id(l->index, i),
                     .finds = l->finder == (json_int_t)i};
    const char *key = r.makes_rows ? "kv_source_layer_ids" : "index_source_layer_ids";
    r.takes = r.chooses && l->finder >= 0 && l->finder < (json_int_t)i;
    if (r.makes_rows)
        *source = i;
    if (v->rc < 0)
        return r;
    if (r.ratio == 0 && (r.makes_rows || r.chooses || r.finds))
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s has layer %u, whose compress_ratios is 0", v->where,
                        r.finds ? "candidate_source_layer_id" : key, i);
    else if ((r.makes_rows || r.finds) && !r.chooses)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: index_source_layer_ids: layer %u is missing, %s has it",
                        v->where, i, r.makes_rows ? key : "candidate_source_layer_id");
    else if (r.ratio && (*source == UINT32_MAX || ratio_of(l, v, *source) != r.ratio))
        v->rc = err_set(v->e, ERR_UNSUPPORTED,
                        "%s: kv_source_layer_ids: layer %u has compress_ratios %u, expected a source of that "
                        "ratio before it",
                        v->where, i, r.ratio);
    else if (r.takes && (json_int_t)*source > l->finder)
        v->rc =
            err_set(v->e, ERR_UNSUPPORTED,
                    "%s: candidate_source_layer_id: layer %u chooses among the rows of layer %u, not those "
                    "of the candidates",
                    v->where, i, *source);
    return r;
}

static void read_index(struct json_view *v, const struct role *r, struct compressed_config *a)
{
    struct index_config *x = &a->index;
    x->ratio = a->ratio;
    x->budget = json_view_u32_or(v, "index_topk", 512, 1, CONFIG_MAX_BUDGET);
    if (!r->chooses)
        return;
    x->n_heads = json_view_u32_or(v, "index_n_heads", 32, 1, CONFIG_MAX_HEADS);
    x->dim = json_view_u32_or(v, "index_head_dim", 128, 1, CONFIG_MAX_HEAD_DIM);
    x->rotary_dim = a->rope_dim;
    x->weighted = x->interleaved = true;
    config_check_multiple(v, "index_head_dim", x->dim, CONFIG_FOUR);
    if (v->rc == 0 && a->rope_dim > x->dim)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: index_head_dim is %u, expected at least %u rotary channels",
                        v->where, x->dim, a->rope_dim);
    if (!r->finds && !r->takes)
        return;
    x->blocks = json_view_u32_or(v, "candidate_topk_blocks", 2048, 1, CONFIG_MAX_BUDGET);
    x->block_rows = json_view_u32_or(v, "candidate_block_size", 8, 1, CONFIG_MAX_BUDGET);
    x->finds = r->finds;
    if (v->rc == 0 && (uint64_t)x->blocks * x->block_rows < (uint64_t)x->budget + x->block_rows)
        v->rc = err_set(
            v->e, ERR_UNSUPPORTED,
            "%s: candidate_topk_blocks is %u with %u rows each, expected room for index_topk = %u and "
            "another block",
            v->where, x->blocks, x->block_rows, x->budget);
}

/* Reads what all layers have. */
static struct compressed_config read_heads(struct json_view *v)
{
    struct compressed_config a = {.n_heads = json_view_u32(v, "num_attention_heads", 1, CONFIG_MAX_HEADS),
                                  .head_dim = json_view_u32_or(v, "head_dim", 512, 1, CONFIG_MAX_HEAD_DIM),
                                  .q_lora_rank = json_view_u32_or(v, "q_lora_rank", 1280, 1, CONFIG_MAX_RANK),
                                  .window = json_view_u32_or(v, "sliding_window", 128, 1, UINT32_MAX),
                                  .projects_keys = true,
                                  .out_groups = json_view_u32_or(v, "o_groups", 8, 1, CONFIG_MAX_HEADS),
                                  .out_rank = json_view_u32_or(v, "o_lora_rank", 1024, 1, CONFIG_MAX_RANK)};
    if (v->rc < 0)
        return a;
    a.rope_dim = json_view_u32_or(v, "qk_rope_head_dim", 64, 1, a.head_dim);
    config_check_multiple(v, "head_dim", a.head_dim, CONFIG_FOUR);
    config_check_multiple(v, "qk_rope_head_dim", a.rope_dim, CONFIG_FOUR);
    config_check_multiple(v, "q_lora_rank", a.q_lora_rank, CONFIG_FOUR);
    config_check_multiple(v, "o_lora_rank", a.out_rank, CONFIG_FOUR);
    config_check_multiple(v, "num_attention_heads", a.n_heads, a.out_groups);
    return a;
}

static void read_attention(struct config *c, struct json_view *v, const struct compressed_config *heads)
{
    const struct lists l = read_lists(c, v);
    struct role known[CONFIG_MAX_PARTS];
    uint32_t source = UINT32_MAX, first = c->n_parts;
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        const struct role r = role_of(&l, v, i, &source);
        uint32_t k = first;
        while (k < c->n_parts && (c->parts[k].kind != PART_COMPRESSED || !is_same(&known[k], &r)))
            k++;
        if (v->rc < 0)
            return;
        if (k == c->n_parts) {
            if (k + 2 >= CONFIG_MAX_PARTS) { /* one is for experts */
                v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: compress_ratios: too many different layers",
                                v->where);
                return;
            }
            struct part_config *p = config_add_part(c, PART_COMPRESSED);
            p->compressed = *heads;
            p->compressed.ratio = r.ratio;
            p->compressed.rope = r.ratio > 0;
            p->compressed.borrows = r.ratio > 0 && !r.makes_rows;
            if (r.ratio)
                read_index(v, &r, &p->compressed);
            known[k] = r;
        }
        config_set_layer(c, i, &c->parts[k], true);
    }
}

/* ---- rotary angles ---- */

/* Layers with a window alone have plain angles. */
static void read_ropes(struct config *c, struct json_view *v, uint32_t dim)
{
    struct json_view scaling = config_rope_view(v);
    c->n_ropes = 2;
    c->ropes[0].dim = c->ropes[1].dim = dim;
    c->ropes[0].theta = json_view_real_or(v, "rope_theta", 1e4, 1, BIG);
    c->ropes[1].theta = json_view_real_or(v, "compress_rope_theta", 1.6e5, 1, BIG);
    if (v->rc == 0 && scaling.rc < 0)
        v->rc = scaling.rc;
    if (v->rc < 0)
        return;
    config_read_rope_type(c, &scaling, &c->ropes[1], true);
    c->ropes[0].truncate = true;
    /* The angles' sines are never scaled. */
    if (c->ropes[1].yarn)
        c->ropes[1].attention_factor = 1;
    v->rc = scaling.rc;
}

/* ---- n-gram tables ---- */

static void read_table(const struct config *c, struct json_view *v, struct ngram_config *n)
{
    struct ngram_table *t = &n->table;
    uint32_t cols = json_view_u32_or(v, "engram_head_dim", 256, 1, CONFIG_MAX_HEAD_DIM);
    t->size = json_view_u32_or(v, "engram_max_ngram_size", 4, 2, NGRAM_MAX_SIZE);
    t->heads = json_view_u32_or(v, "engram_n_heads", 8, 1, NGRAM_MAX_HEADS);
    t->base = json_view_u32(v, "engram_vocab_size", 2, UINT32_MAX);
    t->vocab_size = c->vocab_size;
    t->end_of_text = json_view_u32_or(v, "engram_pad_token_id", 2, 0, c->vocab_size - 1);
    t->n_words = json_view_u32(v, "engram_compressed_vocab_size", 1, c->vocab_size);
    n->fused = true;
    n->width = config_width(c);
    n->inner = cols * t->heads * (t->size - 1);
    config_check_multiple(v, "engram_head_dim", n->inner, CONFIG_FOUR);
}

/* Checks the rows of the table against the configuration's. */
static void check_rows(struct json_view *v, const struct ngram_table *t, const json_t *rows)
{
    struct ngram_hash h;
    json_int_t given = json_integer_value(json_array_get(rows, t->index));
    v->rc = ngram_hash_make(&h, t, v->e);
    if (v->rc == 0 && given != (json_int_t)h.n_rows)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: engram_num_embeddings[%u] is %lld, expected %u rows", v->where,
                        t->index, (long long)given, h.n_rows);
}

/* Puts n-gram rows before the layers of a list, which counts from 0. */
static void read_tables(struct config *c, struct json_view *v)
{
    const json_t *list = json_view_array(v, "engram_layer_ids"),
                 *rows = json_view_array(v, "engram_num_embeddings");
    struct ngram_config n = {0};
    check_ids(c, v, "engram_layer_ids", list);
    if (v->rc == 0 && json_array_size(list) > 0)
        read_table(c, v, &n);
    for (size_t i = 0; v->rc == 0 && i < json_array_size(list); i++) {
        uint32_t layer = (uint32_t)json_integer_value(json_array_get(list, i));
        struct config_layer *y = &c->layers[layer];
        if (i > 0 && layer <= (uint32_t)json_integer_value(json_array_get(list, i - 1)))
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: engram_layer_ids[%zu] is %u, expected rising numbers",
                            v->where, i, layer);
        else if (c->n_parts == CONFIG_MAX_PARTS)
            v->rc =
                err_set(v->e, ERR_UNSUPPORTED, "%s: engram_layer_ids: too many different layers", v->where);
        if (v->rc < 0)
            return;
        n.table.seed = (uint64_t)SEED_STEP * layer;
        check_rows(v, &n.table, rows);
        config_add_ngrams(c, y, &n);
        n.table.index++;
    }
}

/* ---- experts ---- */

static void read_experts(struct config *c, struct json_view *v)
{
    float limit = (float)json_view_real_or(v, "swiglu_limit", 10, 0, 1e6);
    c->router = (struct router_config){.sigmoid = true, .softplus = true, .n_groups = 1, .keep_groups = 1};
    c->router.norm = true;
    c->router.scale = (float)json_view_real_or(v, "routed_scaling_factor", 1.5, 1e-6, 1e6);
    config_read_experts(c, v, "n_routed_experts");
    c->shared_inner = c->moe_inner;
    c->clamps_inputs = limit > 0;
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        c->layers[i].clamp = c->layers[i].shared_clamp = limit;
}

static void read(struct config *c, struct json_view *v)
{
    check_keys(v);
    c->rms_eps = (float)json_view_real_or(v, "rms_norm_eps", 1e-20, 1e-30, 1);
    const struct compressed_config heads = read_heads(v);
    read_attention(c, v, &heads);
    read_ropes(c, v, heads.rope_dim);
    read_experts(c, v);
    c->streams.lagged = true;
    config_read_streams(c, v);
    read_tables(c, v);
}

/* Names of the publisher's checkpoint, then those of mlx-lm. */
static const char *const renamed[][2] = {{"model.embed.", "model.embed_tokens."},
                                         {"model.head.", "lm_head."},
                                         {".attn.", ".self_attn."},
                                         {".ffn.", ".mlp."},
                                         {".attn_norm.", ".input_layernorm."},
                                         {".ffn_norm.", ".post_attention_layernorm."},
                                         {".w1.", ".gate_proj."},
                                         {".w2.", ".down_proj."},
                                         {".w3.", ".up_proj."},
                                         {".mlp.gate.bias", ".mlp.gate.e_score_correction_bias"},
                                         {".hc_attn_fn", ".hc_attn.fn.weight"},
                                         {".hc_attn_", ".hc_attn."},
                                         {".hc_ffn_fn", ".hc_ffn.fn.weight"},
                                         {".hc_ffn_", ".hc_ffn."},
                                         {".engram.embed.", ".ple.ple_embedding.ngram_embedding."},
                                         {".attn_hc.fn", ".hc_attn.fn.weight"},
                                         {".attn_hc.", ".hc_attn."},
                                         {".ffn_hc.fn", ".hc_ffn.fn.weight"},
                                         {".ffn_hc.", ".hc_ffn."},
                                         {".mlp.experts.switch_mlp.", ".mlp.switch_mlp."},
                                         {".compressor.kv_proj.", ".compressor.wkv."},
                                         {".compressor.gate_proj.", ".compressor.wgate."},
                                         {".compressor.kv_norm.", ".compressor.norm."},
                                         {".indexer.k_proj.", ".indexer.wk."},
                                         {".self_attn.sinks", ".self_attn.attn_sink"},
                                         {".self_attn.q_a_norm.", ".self_attn.q_norm."},
                                         {".q_a_proj.", ".wq_a."},
                                         {".q_b_proj.", ".wq_b."},
                                         {".self_attn.kv_proj.", ".self_attn.wkv."},
                                         {".o_a_proj.", ".wo_a."},
                                         {".o_b_proj.", ".wo_b."},
                                         {0}};

const struct family family_deepseek41 = {
    .name = "DeepSeek-V4.1",
    .id = 22,
    .types = {"deepseek_v41", "deepseek_v41_text"},
    .own_key = "kv_source_layer_ids",
    .chat = "deepseek-v4.1",
    .read = read,
    .drafter = DRAFTER_NONE,
    .renamed = renamed,
    .bare_names = true,
    .longer_lists = true,
    .adopt = scaled_adopt,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
