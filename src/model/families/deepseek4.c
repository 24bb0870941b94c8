/* DeepSeek-V4: attention over one latent a position, in a window and over compressed positions, of which
 * an indexer chooses in some layers; several residual streams; experts that a table by the token's id
 * names in the first layers, sqrt(softplus) scores in the others. The layer of multi-token prediction has
 * a window alone. Vision is left out. Defaults are those of transformers' configuration. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"
#include "model/scaled.h"

/* The kinds of attention: a window alone; compressed rows that overlap, with an indexer; compressed rows. */
enum kind { SLIDING, SPARSE, HEAVY, N_KINDS };
static const char *const kind_names[N_KINDS] = {"sliding_attention", "compressed_sparse_attention",
                                                "heavily_compressed_attention"};
static const json_int_t kind_ratios[N_KINDS] = {0, 4, 128};

static const double BIG = 1e30;
/* DeepSeek-V4.1 has it. */
static const char *const not_keys[] = {"kv_source_layer_ids", NULL};

/* Checks keys of which only one value is computed. */
static void check_keys(struct json_view *v)
{
    config_expect(v, "norm_topk_prob", true);
    config_expect(v, "attention_bias", false);
    config_expect(v, "mlp_bias", false);
    config_expect_text(v, "scoring_func", "sqrtsoftplus");
    config_expect_text(v, "topk_method", "noaux_tc");
    json_view_u32_or(v, "n_shared_experts", 1, 1, 1);
    json_view_u32_or(v, "num_key_value_heads", 1, 1, 1);
    json_view_u32_or(v, "n_group", 1, 1, 1);
    json_view_u32_or(v, "topk_group", 1, 1, 1);
    json_view_u32_or(v, "moe_layer_freq", 1, 1, 1);
    json_view_u32_or(v, "first_k_dense_replace", 0, 0, 0);
}

/* ---- attention ---- */

/* Returns layer i's kind of attention; N_KINDS: the lists have another one. */
static enum kind kind_of(const json_t *types, const json_t *ratios, uint32_t i)
{
    const json_t *type = json_array_get(types, i), *ratio = json_array_get(ratios, i);
    enum kind k = SLIDING;
    if (!types && !ratios)
        return i >= 2 && i % 2 ? SPARSE : HEAVY;
    while (k < N_KINDS && !(types ? json_is_text(type, kind_names[k])
                                  : json_is_integer(ratio) && json_integer_value(ratio) == kind_ratios[k]))
        k++;
    return k;
}

static void set_layers(struct config *c, struct json_view *v, const struct part_config *kinds)
{
    const json_t *types = config_layers_list(c, v, "layer_types");
    const json_t *ratios = types ? NULL : config_layers_list(c, v, "compress_ratios");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        enum kind k = kind_of(types, ratios, i);
        if (k == N_KINDS && types)
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: layer_types[%u], expected %s, %s or %s", v->where, i,
                            kind_names[SLIDING], kind_names[SPARSE], kind_names[HEAVY]);
        else if (k == N_KINDS)
            v->rc =
                err_set(v->e, ERR_UNSUPPORTED, "%s: compress_ratios[%u], expected 0, 4 or 128", v->where, i);
        else
            config_set_layer(c, i, &kinds[k], true);
    }
}

/* Reads the positions of a compressed row: in an object by kinds, or under a key of its own. */
static uint32_t read_ratio(struct json_view *v, enum kind k, const char *key)
{
    struct json_view rates = {
        .objects = {json_view_object(v, "compress_rates")}, .where = v->where, .e = v->e, .rc = v->rc};
    const char *name = json_view_get(v, key) ? key : kind_names[k];
    struct json_view *from = json_view_get(v, key) ? v : &rates;
    uint32_t ratio = json_view_u32_or(from, name, (uint32_t)kind_ratios[k], 1, 1 << KV_BLOCK_SHIFT);
    if (rates.rc < 0)
        v->rc = rates.rc;
    if (v->rc == 0 && (ratio & (ratio - 1)) != 0)
        v->rc =
            err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %u, expected a power of two", v->where, name, ratio);
    return ratio;
}

static void read_index(struct json_view *v, struct compressed_config *a)
{
    a->index =
        (struct index_config){.n_heads = json_view_u32_or(v, "index_n_heads", 64, 1, CONFIG_MAX_HEADS),
                              .dim = json_view_u32_or(v, "index_head_dim", 128, 1, CONFIG_MAX_HEAD_DIM),
                              .ratio = a->ratio,
                              .budget = json_view_u32_or(v, "index_topk", 512, 1, CONFIG_MAX_BUDGET),
                              .rotary_dim = a->rope_dim,
                              .weighted = true,
                              .interleaved = true};
    config_check_multiple(v, "index_head_dim", a->index.dim, CONFIG_FOUR);
    if (v->rc == 0 && a->rope_dim > a->index.dim)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: index_head_dim is %u, expected at least %u rotary channels",
                        v->where, a->index.dim, a->rope_dim);
}

/* Reads what all layers have. part: the share of a head's channels that is rotated. */
static struct compressed_config read_heads(struct json_view *v, double part)
{
    struct compressed_config a = {.n_heads = json_view_u32(v, "num_attention_heads", 1, CONFIG_MAX_HEADS),
                                  .head_dim = json_view_u32_or(v, "head_dim", 512, 1, CONFIG_MAX_HEAD_DIM),
                                  .q_lora_rank = json_view_u32_or(v, "q_lora_rank", 1024, 1, CONFIG_MAX_RANK),
                                  .window = json_view_u32_or(v, "sliding_window", 128, 1, UINT32_MAX),
                                  .norms_heads = true,
                                  .out_groups = json_view_u32_or(v, "o_groups", 8, 1, CONFIG_MAX_HEADS),
                                  .out_rank = json_view_u32_or(v, "o_lora_rank", 1024, 1, CONFIG_MAX_RANK)};
    if (v->rc < 0)
        return a;
    a.rope_dim = (uint32_t)((double)a.head_dim * part);
    if (part <= 0)
        a.rope_dim = json_view_u32_or(v, "qk_rope_head_dim", a.head_dim / 8, 1, a.head_dim);
    config_check_multiple(v, "head_dim", a.head_dim, CONFIG_FOUR);
    config_check_multiple(v, "q_lora_rank", a.q_lora_rank, CONFIG_FOUR);
    config_check_multiple(v, "o_lora_rank", a.out_rank, CONFIG_FOUR);
    config_check_multiple(v, "num_attention_heads", a.n_heads, a.out_groups);
    if (v->rc == 0 && (a.rope_dim == 0 || a.rope_dim % CONFIG_FOUR != 0))
        v->rc =
            err_set(v->e, ERR_FORMAT, "%s: %u rotary channels of a head, expected a multiple of %d above 0",
                    v->where, a.rope_dim, CONFIG_FOUR);
    return a;
}

/* ---- rotary angles ---- */

/* The tables: of layers with a window alone, and of the others. */
struct ropes {
    struct json_view own[2]; /* the object of each */
    bool nested;             /* else one object, and theta in two keys at the top */
};

static struct ropes find_ropes(struct json_view *v)
{
    struct json_view all = config_rope_view(v);
    const json_t *main = json_view_get(&all, "main"), *compress = json_view_get(&all, "compress");
    struct ropes r = {.own = {{.where = v->where, .e = v->e}, {.where = v->where, .e = v->e}},
                      .nested = json_is_object(main) && json_is_object(compress)};
    if (all.rc < 0)
        v->rc = all.rc;
    if (r.nested) {
        r.own[0].objects[0] = main;
        r.own[1].objects[0] = compress;
    } else {
        memcpy(r.own[1].objects, all.objects, sizeof all.objects);
    }
    return r;
}

/* Returns the share of a head's channels that is rotated; 0: another key has their number. */
static double rotated_part(struct json_view *v, struct ropes *r)
{
    double part = json_view_real_or(v, "partial_rotary_factor", 0, 0, 1), of[2];
    for (int i = 0; i < 2; i++)
        of[i] = r->nested ? json_view_real_or(&r->own[i], "partial_rotary_factor", part, 0, 1) : part;
    if (v->rc == 0 && of[0] != of[1])
        v->rc = err_set(v->e, ERR_UNSUPPORTED,
                        "%s: rope_parameters: partial_rotary_factor is %g and %g, expected equal", v->where,
                        of[0], of[1]);
    return of[0];
}

static void read_ropes(struct config *c, struct json_view *v, struct ropes *r, uint32_t dim)
{
    static const struct {
        const char *key;
        double theta;
    } tables[2] = {{"rope_theta", 1e4}, {"compress_rope_theta", 1.6e5}};
    c->n_ropes = 2;
    for (int i = 0; v->rc == 0 && i < 2; i++) {
        struct rope_config *t = &c->ropes[i];
        double theta = json_view_real_or(v, tables[i].key, tables[i].theta, 1, BIG);
        t->dim = dim;
        t->theta = r->nested ? json_view_real_or(&r->own[i], "rope_theta", theta, 1, BIG) : theta;
        config_read_rope_type(c, &r->own[i], t, true);
        /* The original code never scales the angles' sines. */
        if (t->yarn && t->attention_factor <= 0)
            t->attention_factor = 1;
        if (r->own[i].rc < 0)
            v->rc = r->own[i].rc;
    }
}

/* ---- experts ---- */

/* Gives layers whose experts a table names a description of their own. */
static void set_tables(struct config *c, struct json_view *v)
{
    const json_t *types = config_layers_list(c, v, "mlp_layer_types");
    uint32_t n = json_view_u32_or(v, "num_hash_layers", 3, 0, CONFIG_MAX_LAYERS);
    struct part_config *by_token = NULL;
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        const json_t *type = json_array_get(types, i);
        if (types && !json_is_text(type, "hash_moe") && !json_is_text(type, "moe"))
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: mlp_layer_types[%u], expected hash_moe or moe",
                            v->where, i);
        if (types ? !json_is_text(type, "hash_moe") : i >= n)
            continue;
        if (!by_token) {
            by_token = config_add_part(c, PART_EXPERTS);
            by_token->routed.by_token = true;
        }
        c->layers[i].blocks[1].part = (uint32_t)(by_token - c->parts);
    }
    if (v->rc == 0 && by_token && (uint64_t)c->vocab_size * c->top_k > UINT32_MAX)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: vocab_size is %u with %u experts a token, expected fewer",
                        v->where, c->vocab_size, c->top_k);
}

static void read_experts(struct config *c, struct json_view *v)
{
    float limit = (float)json_view_real_or(v, "swiglu_limit", 10, 1e-6, 1e6);
    c->router = (struct router_config){.sigmoid = true, .softplus = true, .n_groups = 1, .keep_groups = 1};
    c->router.norm = true;
    c->router.scale = (float)json_view_real_or(v, "routed_scaling_factor", 1.5, 1e-6, 1e6);
    config_read_experts(c, v, "n_routed_experts");
    c->shared_inner = c->moe_inner;
    c->clamps_inputs = true;
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        c->layers[i].clamp = c->layers[i].shared_clamp = limit;
    c->drafter.clamp = c->drafter.shared_clamp = limit;
    set_tables(c, v);
}

static void read(struct config *c, struct json_view *v)
{
    struct part_config *kinds = NULL;
    check_keys(v);
    struct ropes ropes = find_ropes(v);
    struct compressed_config a = read_heads(v, rotated_part(v, &ropes));
    for (int k = 0; k < N_KINDS; k++) {
        struct part_config *p = config_add_part(c, PART_COMPRESSED);
        kinds = kinds ? kinds : p;
        p->compressed = a;
        p->compressed.rope = k != SLIDING;
    }
    kinds[SPARSE].compressed.ratio = read_ratio(v, SPARSE, "compress_rate_csa");
    kinds[SPARSE].compressed.overlaps = true;
    kinds[HEAVY].compressed.ratio = read_ratio(v, HEAVY, "compress_rate_hca");
    read_index(v, &kinds[SPARSE].compressed);
    set_layers(c, v, kinds);
    config_set_drafter(c, &kinds[SLIDING], true);
    read_ropes(c, v, &ropes, a.rope_dim);
    read_experts(c, v);
    config_read_streams(c, v);
    c->drafter.blocks[0].mix = "hc_attn";
    c->drafter.blocks[1].mix = "hc_ffn";
}

/* Names of the publisher's checkpoint. */
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
                                         {".hc_head_fn", ".hc_head.fn.weight"},
                                         {".hc_head_", ".hc_head."},
                                         {0}};

const struct family family_deepseek4 = {
    .name = "DeepSeek-V4",
    .id = 15,
    .types = {"deepseek_v4"},
    .own_key = "compress_ratios",
    .not_keys = not_keys,
    .chat = "deepseek-v4",
    .read = read,
    .drafter = DRAFTER_AS_STAGES,
    .renamed = renamed,
    .bare_names = true,
    .longer_lists = true,
    .adopt = scaled_adopt,
    .router_bias = "gate.e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "",
};
