/* MiniMax-M3: grouped-query attention, in most layers with an indexer whose heads choose blocks of positions
 * for a key head each; the first layers are dense; experts with a biased router and a shared expert. All
 * feed-forward parts have gpt-oss's limited activation. Its vision is left out. */
#include <jansson.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* One of the indexer's numbers. */
struct index_number {
    const char *key; /* under which the configuration has it */
    uint32_t n;
};

/* Reads one: published configurations have them in an object of their own, others flat. */
static struct index_number index_number(struct json_view *v, struct json_view *own, const char *published,
                                        const char *flat, uint32_t fallback, uint32_t hi)
{
    bool is_own = json_view_get(own, published);
    const char *key = is_own ? published : flat;
    return (struct index_number){key, json_view_u32_or(is_own ? own : v, key, fallback, 1, hi)};
}

/* Reads the indexer. own: sparse_attention_config. */
static void read_index(struct config *c, struct json_view *v, struct json_view *own, struct gqa_config *g)
{
    struct index_config *x = &g->index;
    struct index_number heads = index_number(v, own, "sparse_num_index_heads", "index_n_heads", 4,
                                             CONFIG_MAX_HEADS),
                        dim = index_number(v, own, "sparse_index_dim", "index_head_dim", 128,
                                           CONFIG_MAX_HEAD_DIM),
                        size = index_number(v, own, "sparse_block_size", "index_block_size", 128,
                                            1 << KV_BLOCK_SHIFT);
    uint32_t blocks =
        index_number(v, own, "sparse_topk_blocks", "index_topk_blocks", 16, CONFIG_MAX_BUDGET).n;
    x->n_heads = heads.n;
    x->dim = dim.n;
    x->ratio = size.n;
    x->budget = blocks - 1; /* one of them is the token's own */
    x->rotary_dim = c->ropes[0].dim;
    x->by_head = true;
    bool is_own = json_view_get(own, "sparse_local_block");
    config_expect_number(is_own ? own : v, is_own ? "sparse_local_block" : "index_local_blocks", 1, 1);
    config_expect_number(own, "sparse_init_block", 0, 0);
    config_expect_text(own, "sparse_score_type", "max");
    config_expect(own, "use_sparse_attention", true);
    config_check_multiple(v, dim.key, x->dim, CONFIG_FOUR);
    if (v->rc == 0 && own->rc < 0)
        v->rc = own->rc;
    if (v->rc == 0 && x->n_heads != g->n_kv_heads)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %u, expected num_key_value_heads = %u", v->where,
                        heads.key, x->n_heads, g->n_kv_heads);
    if (v->rc == 0 && (blocks < 2 || (x->ratio & (x->ratio - 1)) != 0))
        v->rc = err_set(v->e, ERR_UNSUPPORTED,
                        "%s: %u blocks of %u positions, expected at least 2 of a power of two", v->where,
                        blocks, x->ratio);
    if (v->rc == 0 && x->rotary_dim > x->dim)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s is %u, expected at least %u rotary channels", v->where,
                        dim.key, x->dim, x->rotary_dim);
}

/* Reads which layers have an indexer. */
static void read_layers(struct config *c, struct json_view *v, struct json_view *own,
                        const struct part_config *full, const struct part_config *sparse)
{
    static const char key[] = "sparse_attention_freq";
    const struct config_layer_type types[] = {{"minimax_m3_sparse", sparse}, {"full_attention", full}};
    bool has_types = json_view_get(v, "layer_types");
    if (!has_types && !json_view_get(own, key) && v->rc == 0)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: key layer_types or sparse_attention_config.%s is missing",
                        v->where, key);
    config_read_layer_types(c, v, types, 2);
    const json_t *flags = has_types || v->rc < 0 ? NULL : config_layers_list(c, own, key);
    for (uint32_t i = 0; own->rc == 0 && flags && i < c->n_layers; i++)
        config_set_mixer(c, i, config_layer_flag(own, flags, key, i) ? sparse : full);
    if (v->rc == 0)
        v->rc = own->rc;
}

static void read_router(struct config *c, struct json_view *v)
{
    c->router.n_groups = c->router.keep_groups = 1;
    c->router.scale = 2;
    config_read_sigmoid_router(c, v);
    config_expect(v, "use_routing_bias", true);
    config_expect(v, "norm_topk_prob", true);
    c->shared_inner = json_view_u32_or(v, "shared_intermediate_size", 3072, 1, CONFIG_MAX_INNER);
    config_check_multiple(v, "shared_intermediate_size", c->shared_inner, PRODUCT_COLS);
    config_expect_number(v, "n_shared_experts", 1, 1);
}

static void read(struct config *c, struct json_view *v)
{
    struct part_config *full = config_add_part(c, PART_ATTENTION),
                       *sparse = config_add_part(c, PART_ATTENTION);
    const json_t *object = json_view_object(v, "sparse_attention_config");
    struct json_view own = {.objects = {object}, .where = v->where, .e = v->e, .rc = v->rc};
    config_need(v, "head_dim");
    config_set_layers(c, (const struct part_config *const[]){full}, 1);
    read_layers(c, v, &own, full, sparse);
    config_read_moe_flags(c, v, "moe_layer_freq");
    config_read_dense(c, v, "dense_intermediate_size");
    read_router(c, v);
    config_expect(v, "use_qk_norm", true);
    config_expect_text(v, "qk_norm_type", "per_head");
    config_expect(v, "use_gemma_norm", true);
    config_expect(v, "attention_output_gate", false);
    config_expect(v, "attention_bias", false);
    config_expect_number(v, "swiglu_alpha", 1.702, 1.702);
    c->swiglu_limit = (float)json_view_real_or(v, "swiglu_limit", 7, 1e-3, 1e6);
    full->gqa.norm = QK_NORM_HEADS;
    config_read_attention(c, v, &full->gqa, 0.5);
    uint32_t part = c->ropes[0].dim;
    config_read_rotary_dim(c, v, &full->gqa);
    const json_t *rope = json_view_object(v, "rope_parameters");
    if (v->rc == 0 && part != c->ropes[0].dim &&
        (json_object_get(rope, "partial_rotary_factor") || json_view_get(v, "partial_rotary_factor")))
        v->rc = err_set(v->e, ERR_UNSUPPORTED,
                        "%s: rotary_dim is %u, expected what partial_rotary_factor gives, %u", v->where,
                        c->ropes[0].dim, part);
    c->ropes[0].theta = 5e6;
    config_read_rope(c, v, false);
    sparse->gqa = full->gqa;
    read_index(c, v, &own, &sparse->gqa);
}

/* Names of the checkpoint, then of exports with other names for a dense part. */
static const char *const renamed[][2] = {
    {".block_sparse_moe.", ".mlp."},
    {".w1.", ".gate_proj."},
    {".w2.", ".down_proj."},
    {".w3.", ".up_proj."},
    {".mlp.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"},
    {".self_attn.index_q_proj.", ".self_attn.indexer.index_q_proj."},
    {".self_attn.index_k_proj.", ".self_attn.indexer.index_k_proj."},
    {".self_attn.index_q_norm.", ".self_attn.indexer.q_layernorm."},
    {".self_attn.index_k_norm.", ".self_attn.indexer.k_layernorm."},
    {0}};

const struct family family_minimaxm3 = {
    .name = "MiniMax-M3",
    .id = 17,
    .types = {"minimax_m3_vl", "minimax_m3_vl_text"},
    .own_key = "sparse_attention_config",
    .read = read,
    .drafter = DRAFTER_UNPUBLISHED,
    .inner_key = "intermediate_size",
    .act = "swigluoai",
    .renamed = renamed,
    .router_bias = "e_score_correction_bias",
    .shared = "shared_experts",
    .mlx_prefix = "language_model.",
    .norms_less_one = true,
    .mlx_norms_less_one = true,
    .gate_bits = 8,
};
