#include "model/config_parts.h"

#include <assert.h>
#include <jansson.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "base/real.h"
#include "model/family.h"

static const double BIG = 1e30;

void config_check_multiple(struct json_view *v, const char *key, uint64_t value, uint64_t of)
{
    if (v->rc == 0 && value % of != 0)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s is %llu, expected a multiple of %llu", v->where, key,
                        (unsigned long long)value, (unsigned long long)of);
}

void config_expect(struct json_view *v, const char *key, bool expected)
{
    bool found = json_view_bool_or(v, key, expected);
    if (v->rc == 0 && found != expected)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %s, expected %s", v->where, key,
                        found ? "true" : "false", expected ? "true" : "false");
}

void config_expect_text(struct json_view *v, const char *key, const char *expected)
{
    const char *found = json_view_text_or(v, key, expected);
    if (v->rc == 0 && strcmp(found, expected) != 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %s, expected %s", v->where, key, found, expected);
}

void config_expect_number(struct json_view *v, const char *key, double fallback, double expected)
{
    double found = json_view_real_or(v, key, fallback, -BIG, BIG);
    if (v->rc == 0 && found != expected)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %g, expected %g", v->where, key, found, expected);
}

bool config_is_null(const struct json_view *v, const char *key)
{
    for (size_t i = 0; i < sizeof v->objects / sizeof *v->objects; i++) {
        const json_t *item = json_object_get(v->objects[i], key);
        if (item)
            return json_is_null(item);
    }
    return false;
}

void config_expect_empty(struct json_view *v, const char *key)
{
    size_t n = json_array_size(json_view_array(v, key));
    if (v->rc == 0 && n > 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s has %zu layers, expected none", v->where, key, n);
}

void config_expect_ones(struct json_view *v, const char *key)
{
    const json_t *list = json_view_array(v, key);
    for (size_t i = 0; v->rc == 0 && i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) != 1)
            v->rc =
                err_set(v->e, ERR_UNSUPPORTED, "%s: %s[%zu] is not 1, softmax attention", v->where, key, i);
}

/* Other names that families have for a key, most common first. */
static const struct {
    const char *key, *other;
} other_names[] = {
    {"num_experts_per_tok", "experts_per_token"},
    {"num_experts_per_tok", "num_experts_per_token"},
    {"n_routed_experts", "num_experts"},
    {"n_group", "num_expert_group"},
    {"n_shared_experts", "num_shared_experts"},
    {"norm_topk_prob", "moe_renormalize"},
    {"scoring_func", "moe_router_activation_func"},
    {"max_position_embeddings", "model_max_length"},
};

const char *config_key(const struct json_view *v, const char *key)
{
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names && !json_view_get(v, key); i++)
        if (!strcmp(other_names[i].key, key) && json_view_get(v, other_names[i].other))
            return other_names[i].other;
    return key;
}

void config_need(struct json_view *v, const char *key)
{
    if (v->rc == 0 && !json_view_get(v, config_key(v, key)))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: key %s is missing", v->where, key);
}

/* ---- layers ---- */

struct part_config *config_add_part(struct config *c, enum part_kind kind)
{
    assert(c->n_parts < CONFIG_MAX_PARTS);
    struct part_config *p = &c->parts[c->n_parts++];
    p->kind = kind;
    return p;
}

void config_add_ngrams(struct config *c, struct config_layer *layer, const struct ngram_config *n)
{
    struct part_config *p = config_add_part(c, PART_NGRAMS);
    p->ngrams = *n;
    layer->blocks[2] = layer->blocks[1];
    layer->blocks[1] = layer->blocks[0];
    layer->blocks[0] = (struct config_block){.part = (uint32_t)(p - c->parts)};
    layer->n_blocks++;
}

/* Returns the only description of this kind; adds it if there is none. */
static struct part_config *only(struct config *c, enum part_kind kind)
{
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].kind == kind)
            return &c->parts[i];
    return config_add_part(c, kind);
}

static struct config_layer two_blocks(struct config *c, const struct part_config *mixer, bool has_experts)
{
    const struct part_config *feed_forward = only(c, has_experts ? PART_EXPERTS : PART_DENSE);
    return (struct config_layer){
        .n_blocks = 2,
        .blocks = {{.part = (uint32_t)(mixer - c->parts), .norm = "input_layernorm.weight"},
                   {.part = (uint32_t)(feed_forward - c->parts), .norm = "post_attention_layernorm.weight"}}};
}

static void set_feed_forward(struct config *c, uint32_t i, bool has_experts)
{
    c->layers[i].blocks[1].part = (uint32_t)(only(c, has_experts ? PART_EXPERTS : PART_DENSE) - c->parts);
}

void config_set_layer(struct config *c, uint32_t i, const struct part_config *mixer, bool has_experts)
{
    c->layers[i] = two_blocks(c, mixer, has_experts);
}

void config_set_drafter(struct config *c, const struct part_config *mixer, bool has_experts)
{
    c->drafter = two_blocks(c, mixer, has_experts);
}

void config_set_only_block(struct config *c, uint32_t i, enum part_kind kind, const char *norm)
{
    uint32_t part = (uint32_t)(only(c, kind) - c->parts);
    c->layers[i] = (struct config_layer){.n_blocks = 1, .blocks = {{.part = part, .norm = norm}}};
}

void config_set_mixer(struct config *c, uint32_t i, const struct part_config *mixer)
{
    if (c->layers[i].n_blocks == 0)
        config_set_layer(c, i, mixer, true);
    c->layers[i].blocks[0].part = (uint32_t)(mixer - c->parts);
}

void config_set_layers(struct config *c, const struct part_config *const *mixers, uint32_t n)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        config_set_layer(c, i, mixers[i % n], true);
}

const json_t *config_layers_list(const struct config *c, struct json_view *v, const char *key)
{
    const json_t *list = json_view_array(v, key);
    size_t n = json_array_size(list);
    bool longer = c->family->longer_lists;
    if (v->rc == 0 && list && (n < c->n_layers || (n > c->n_layers && !longer)))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s has %zu entries, expected %s%u (num_hidden_layers)",
                        v->where, key, n, longer ? "at least " : "", c->n_layers);
    return v->rc == 0 ? list : NULL;
}

bool config_layer_flag(struct json_view *v, const json_t *list, const char *key, uint32_t i)
{
    const json_t *flag = json_array_get(list, i);
    json_int_t n = json_is_integer(flag) ? json_integer_value(flag) : -1;
    if (v->rc == 0 && n != 0 && n != 1)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s[%u]: expected 0 or 1", v->where, key, i);
    return n == 1;
}

void config_read_layer_types(struct config *c, struct json_view *v, const struct config_layer_type *types,
                             size_t n)
{
    const json_t *list = config_layers_list(c, v, "layer_types");
    for (uint32_t i = 0; v->rc == 0 && list && i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        size_t k = 0;
        while (k < n && (!type || strcmp(type, types[k].name) != 0))
            k++;
        if (k < n)
            config_set_mixer(c, i, types[k].mixer);
        else
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: layer_types[%u] is %s, expected %s%s%s", v->where, i,
                            type ? type : "no string", types[0].name, n > 1 ? " or " : "",
                            n > 1 ? types[1].name : "");
    }
}

/* Returns the layer that a key of per_layer_config names, a decimal number that may begin with zeros;
 * UINT32_MAX: it names none. */
static uint32_t layer_of_key(const char *key)
{
    uint32_t i = 0;
    if (!*key)
        return UINT32_MAX;
    for (; *key; key++) {
        if (*key < '0' || *key > '9' || i >= CONFIG_MAX_LAYERS)
            return UINT32_MAX;
        i = i * 10 + (uint32_t)(*key - '0');
    }
    return i;
}

const json_t *config_override(const json_t *all, uint32_t i)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)all, key, value)
    {
        if (layer_of_key(key) == i)
            return value;
    }
    return NULL;
}

const json_t *config_overrides(const struct config *c, struct json_view *v)
{
    const json_t *all = json_view_object(v, "per_layer_config");
    size_t n_found = 0;
    if (json_object_size(all) > c->n_layers)
        n_found = SIZE_MAX;
    for (uint32_t i = 0; v->rc == 0 && n_found != SIZE_MAX && i < c->n_layers; i++) {
        const json_t *one = config_override(all, i);
        if (one && !json_is_object(one))
            v->rc =
                err_set(v->e, ERR_FORMAT, "%s: per_layer_config.%u is not an object of keys", v->where, i);
        n_found += one != NULL;
    }
    if (v->rc == 0 && n_found != json_object_size(all))
        v->rc = err_set(v->e, ERR_FORMAT,
                        "%s: per_layer_config: expected numbers of layers below %u alone, each once",
                        v->where, c->n_layers);
    return v->rc == 0 ? all : NULL;
}

/* ---- attention ---- */

/* Sets *scaling and *fresh to rope_scaling and rope_parameters of the first object that has one of them,
 * NULL where it is absent or empty. */
static void find_ropes(struct json_view *v, const json_t **scaling, const json_t **fresh)
{
    *scaling = *fresh = NULL;
    for (size_t i = 0; i < JSON_VIEW_OBJECTS && !*scaling && !*fresh; i++) {
        struct json_view one = {.objects = {v->objects[i]}, .where = v->where, .e = v->e, .rc = v->rc};
        const json_t *old = json_view_object(&one, "rope_scaling"),
                     *now = json_view_object(&one, "rope_parameters");
        v->rc = one.rc;
        *scaling = json_object_size(old) > 0 ? old : NULL;
        *fresh = json_object_size(now) > 0 ? now : NULL;
    }
}

struct json_view config_rope_view(struct json_view *v)
{
    const json_t *scaling, *fresh;
    find_ropes(v, &scaling, &fresh);
    return (struct json_view){
        .objects = {scaling ? scaling : fresh}, .where = v->where, .e = v->e, .rc = v->rc};
}

/* Returns a view that looks up each key in the object of config_rope_view first, then in rope_parameters,
 * then among the flat keys. */
static struct json_view with_flat_keys(struct json_view *v)
{
    const json_t *scaling, *fresh;
    find_ropes(v, &scaling, &fresh);
    return (struct json_view){
        .objects = {scaling, fresh, v->objects[0], v->objects[1]}, .where = v->where, .e = v->e, .rc = v->rc};
}

void config_read_attention(struct config *c, struct json_view *v, struct gqa_config *g, double part)
{
    g->n_heads = json_view_u32(v, "num_attention_heads", 1, CONFIG_MAX_HEADS);
    uint32_t even_heads = v->rc == 0 ? (c->hidden + g->n_heads - 1) / g->n_heads : 0;
    g->n_kv_heads = json_view_u32(v, "num_key_value_heads", 1, CONFIG_MAX_HEADS);
    g->head_dim = json_view_u32_or(v, "head_dim", even_heads, 1, CONFIG_MAX_HEAD_DIM);
    struct json_view all = with_flat_keys(v);
    part = json_view_real_or(&all, "partial_rotary_factor", part, 0, 1);
    v->rc = all.rc;
    if (v->rc < 0)
        return;
    uint32_t rotary = c->ropes[0].dim = (uint32_t)((double)g->head_dim * part);
    c->n_ropes = 1;
    if (!json_view_get(v, "head_dim") && c->hidden % g->n_heads != 0)
        v->rc = err_set(v->e, ERR_FORMAT,
                        "%s: head_dim is missing and hidden_size %u is not a multiple of %u heads", v->where,
                        c->hidden, g->n_heads);
    config_check_multiple(v, "num_attention_heads", g->n_heads, g->n_kv_heads);
    config_check_multiple(v, "head_dim", g->head_dim, CONFIG_FOUR);
    if (v->rc == 0 && (rotary == 0 || rotary % 2 != 0))
        v->rc = err_set(v->e, ERR_FORMAT,
                        "%s: partial_rotary_factor: %u rotary channels, expected an even number above 0",
                        v->where, rotary);
}

void config_read_rotary_dim(struct config *c, struct json_view *v, const struct gqa_config *g)
{
    c->ropes[0].dim = json_view_u32_or(v, "rotary_dim", c->ropes[0].dim, 2, g->head_dim);
    config_check_multiple(v, "rotary_dim", c->ropes[0].dim, 2);
}

/* Reads a model whose attention has one of the first n of the types below. */
static void read_hybrid(struct config *c, struct json_view *v, size_t n_types)
{
    struct part_config *full = config_add_part(c, PART_ATTENTION),
                       *linear = config_add_part(c, PART_DELTA_NET);
    struct delta_config *d = &linear->delta;
    d->n_k_heads = json_view_u32(v, "linear_num_key_heads", 1, CONFIG_MAX_HEADS);
    d->n_v_heads = json_view_u32(v, "linear_num_value_heads", 1, CONFIG_MAX_HEADS);
    d->k_head_dim = json_view_u32(v, "linear_key_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    d->v_head_dim = json_view_u32(v, "linear_value_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    d->conv_kernel = json_view_u32_or(v, "linear_conv_kernel_dim", 4, 2, CONFIG_MAX_CONV);
    d->tiled = json_view_bool_or(v, CONFIG_TILED_KEY, false);
    config_read_experts(c, v, "num_experts");
    c->shared_inner = json_view_u32(v, "shared_expert_intermediate_size", 1, CONFIG_MAX_INNER);
    json_view_u32_or(v, "decoder_sparse_step", 1, 1, 1);
    full->gqa = (struct gqa_config){.gated = true, .norm = QK_NORM_HEADS};
    config_expect(v, "attn_output_gate", true);
    config_expect(v, "attention_bias", false);
    config_expect_empty(v, "mlp_only_layers");
    config_read_attention(c, v, &full->gqa, 0.25);
    if (v->rc < 0)
        return;
    config_check_multiple(v, "linear_num_value_heads", d->n_v_heads, d->n_k_heads);
    config_check_multiple(v, "shared_expert_intermediate_size", c->shared_inner, PRODUCT_COLS);
    uint32_t every = json_view_u32_or(v, "full_attention_interval", 4, 1, CONFIG_MAX_LAYERS);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        config_set_layer(c, i, (i + 1) % every == 0 ? full : linear, true);
    const struct config_layer_type types[] = {
        {"linear_attention", linear}, {"full_attention", full}, {"indexed_attention", full}};
    config_read_layer_types(c, v, types, n_types);
    config_read_rope(c, v, true);
}

void config_read_hybrid(struct config *c, struct json_view *v)
{
    read_hybrid(c, v, 2);
}

/* Checks the positions of an indexer's block. */
static void check_pool(struct json_view *v, const char *key, uint32_t ratio)
{
    if (v->rc == 0 && (ratio & (ratio - 1)) != 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is %u, expected a power of two", v->where, key, ratio);
}

/* Reads the indexer. Checkpoints call its layers full_attention. */
static void read_index(struct json_view *v, const struct rope_config *rope, struct index_config *x)
{
    x->n_heads = json_view_u32(v, "indexer_n_heads", 1, CONFIG_MAX_HEADS);
    x->dim = json_view_u32(v, "indexer_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    x->ratio = json_view_u32(v, "indexer_compress_ratio", 1, 1 << KV_BLOCK_SHIFT);
    uint32_t budget = json_view_u32(v, "indexer_budget", 1, UINT32_MAX);
    json_view_u32(v, "indexer_kv_heads", 1, 1);
    if (v->rc < 0)
        return;
    x->budget = budget / x->ratio;
    x->rotary_dim = rope->dim;
    config_check_multiple(v, "indexer_budget", budget, x->ratio);
    config_check_multiple(v, "indexer_head_dim", x->dim, CONFIG_FOUR);
    check_pool(v, "indexer_compress_ratio", x->ratio);
    if (v->rc == 0 && rope->dim > x->dim)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: indexer_head_dim is %u, expected at least %u rotary channels",
                        v->where, x->dim, rope->dim);
}

void config_read_indexed_hybrid(struct config *c, struct json_view *v)
{
    read_hybrid(c, v, 3);
    const char *gate = json_view_text_or(v, "output_gate_type", "silu");
    if (v->rc < 0)
        return;
    struct gqa_config *g = &only(c, PART_ATTENTION)->gqa;
    read_index(v, &c->ropes[g->rope], &g->index);
    only(c, PART_DELTA_NET)->delta.sigmoid = strcmp(gate, "sigmoid") == 0;
    if (v->rc == 0 && strcmp(gate, "sigmoid") != 0 && strcmp(gate, "silu") != 0)
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: output_gate_type is %s, expected sigmoid or silu",
                        v->where, gate);
}

void config_read_latent_heads(struct config *c, struct json_view *v, struct latent_config *m)
{
    m->n_heads = json_view_u32(v, "num_attention_heads", 1, CONFIG_MAX_HEADS);
    m->q_lora_rank = json_view_u32_or(v, "q_lora_rank", 0, 1, CONFIG_MAX_RANK);
    m->kv_lora_rank = json_view_u32(v, "kv_lora_rank", 1, CONFIG_MAX_RANK);
    m->nope_dim = json_view_u32(v, "qk_nope_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    uint32_t least = c->ropes[0].none ? 0 : 1;
    m->rope_dim = json_view_u32(v, "qk_rope_head_dim", least, CONFIG_MAX_HEAD_DIM);
    m->v_dim = json_view_u32(v, "v_head_dim", 1, CONFIG_MAX_HEAD_DIM);
    m->interleaved = json_view_bool_or(v, "rope_interleave", true);
    c->ropes[0].dim = m->rope_dim;
    c->n_ropes = 1;
    config_check_multiple(v, "qk_nope_head_dim", m->nope_dim, CONFIG_FOUR);
    config_check_multiple(v, "qk_rope_head_dim", m->rope_dim, CONFIG_FOUR);
    config_check_multiple(v, "kv_lora_rank", m->kv_lora_rank, CONFIG_FOUR);
    config_expect_empty(v, "mlp_only_layers");
    config_expect(v, "attention_bias", false);
}

void config_read_latent(struct config *c, struct json_view *v)
{
    struct part_config *mixer = config_add_part(c, PART_LATENT);
    config_read_latent_heads(c, v, &mixer->latent);
    config_read_sigmoid_router(c, v);
    config_read_first_dense(c, v, mixer);
    config_read_rope(c, v, true);
}

/* Checks that all layers are of the only kind, if they are listed. */
static void expect_layer_types(const struct config *c, struct json_view *v, const char *expected)
{
    const json_t *list = config_layers_list(c, v, "layer_types");
    for (uint32_t i = 0; v->rc == 0 && list && i < c->n_layers; i++)
        if (!json_is_text(json_array_get(list, i), expected))
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: layer_types[%u]: expected %s", v->where, i, expected);
}

/* Returns whether layer i makes a choice of its own: by a list, a pattern, or a period. */
static bool is_full(struct json_view *v, uint32_t i)
{
    const char *key = json_view_get(v, "indexer_types") ? "indexer_types" : "index_topk_pattern";
    const json_t *types = json_view_get(v, key), *one = json_array_get(types, i);
    if (!types) {
        uint32_t every = json_view_u32_or(v, "index_topk_freq", 1, 1, CONFIG_MAX_LAYERS),
                 from = json_view_u32_or(v, "index_skip_topk_offset", 2, 0, CONFIG_MAX_LAYERS);
        return i < from || every == 0 || (i + 1 - from) % every == 0;
    }
    const char *text = json_string_value(types);
    char letter = '\0';
    if (text && i < strlen(text))
        letter = text[i];
    bool full = letter == 'F' || json_is_text(one, "full");
    if (v->rc == 0 && !full && letter != 'S' && !json_is_text(one, "shared"))
        v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s[%u]: expected full or shared for each layer", v->where,
                        key, i);
    return full;
}

/* Gives layers without a choice of their own a part without an indexer. */
static void share_choices(struct config *c, struct json_view *v, const struct part_config *full)
{
    struct part_config *shared = NULL;
    bool has_choice = false;
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        if (config_mixer(c, i) != full)
            continue;
        if (is_full(v, i) || v->rc < 0) {
            has_choice = true;
            continue;
        }
        if (!has_choice)
            v->rc =
                err_set(v->e, ERR_FORMAT,
                        "%s: layer %u uses the choice of a layer before it, but there is none", v->where, i);
        if (!shared) {
            shared = config_add_part(c, PART_LATENT);
            shared->latent = full->latent;
            shared->latent.index.n_heads = 0;
        }
        c->layers[i].blocks[0].part = (uint32_t)(shared - c->parts);
    }
}

void config_read_latent_index(struct config *c, struct json_view *v, struct part_config *full,
                              const struct index_config *defaults)
{
    struct latent_config *m = &full->latent;
    struct index_config *x = &m->index;
    uint32_t pool = defaults->ratio ? defaults->ratio : 1;
    config_expect(v, "mlp_bias", false);
    x->n_heads = json_view_u32_or(v, "index_n_heads", defaults->n_heads, 1, CONFIG_MAX_HEADS);
    x->dim = json_view_u32_or(v, "index_head_dim", 128, 1, CONFIG_MAX_HEAD_DIM);
    x->ratio = defaults->pooled ? json_view_u32_or(v, "index_kpool", pool, 1, 1 << KV_BLOCK_SHIFT) : 1;
    uint32_t budget = json_view_u32_or(v, "index_topk", 2048, 1, CONFIG_MAX_BUDGET);
    x->rotary_dim = m->rope_dim;
    x->weighted = x->layer_norm = true;
    x->pooled = defaults->pooled;
    x->interleaved = json_view_bool_or(v, "indexer_rope_interleave", defaults->interleaved);
    if (v->rc < 0)
        return;
    x->budget = budget / x->ratio;
    config_check_multiple(v, "index_topk", budget, x->ratio);
    config_check_multiple(v, "index_head_dim", x->dim, CONFIG_FOUR);
    check_pool(v, "index_kpool", x->ratio);
    if (v->rc == 0 && m->rope_dim > x->dim)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: index_head_dim is %u, expected at least %u rotary channels",
                        v->where, x->dim, m->rope_dim);
    if (v->rc == 0 && !m->q_lora_rank)
        v->rc =
            err_set(v->e, ERR_UNSUPPORTED, "%s: key q_lora_rank is missing: an indexer needs it", v->where);
    share_choices(c, v, full);
}

void config_read_indexed_latent(struct config *c, struct json_view *v, const struct index_config *defaults)
{
    config_read_latent(c, v);
    expect_layer_types(c, v, "indexed_attention");
    config_read_latent_index(c, v, only(c, PART_LATENT), defaults);
}

void config_read_kimi_delta(struct json_view *v, const char *heads, const char *dim, const char *taps,
                            struct delta_config *d)
{
    *d = (struct delta_config){.sigmoid = true, .by_channel = true};
    d->n_k_heads = d->n_v_heads = json_view_u32(v, heads, 1, CONFIG_MAX_HEADS);
    d->k_head_dim = d->v_head_dim = json_view_u32(v, dim, 1, CONFIG_MAX_HEAD_DIM);
    d->conv_kernel = json_view_u32_or(v, taps, 4, 2, CONFIG_MAX_CONV);
    config_check_multiple(v, dim, d->k_head_dim, CONFIG_FOUR);
}

/* ---- feed-forward ---- */

void config_read_experts(struct config *c, struct json_view *v, const char *key)
{
    const char *count = config_key(v, key);
    if (!json_view_get(v, count) && json_view_get(v, "num_local_experts"))
        count = "num_local_experts";
    c->n_experts = json_view_u32(v, count, 1, CONFIG_MAX_EXPERTS);
    c->top_k = json_view_u32(v, config_key(v, "num_experts_per_tok"), 1, CONFIG_MAX_EXPERTS);
}

void config_read_dense(struct config *c, struct json_view *v, const char *key)
{
    const struct part_config *dense = config_first(c, PART_DENSE);
    if (v->rc < 0 || dense->kind != PART_DENSE)
        return;
    struct dense_config *d = &only(c, PART_DENSE)->dense;
    d->inner = json_view_u32(v, key, 1, CONFIG_MAX_INNER);
    config_check_multiple(v, key, d->inner, CONFIG_FOUR);
}

void config_read_dense_list(struct config *c, struct json_view *v, const struct part_config *mixer)
{
    uint32_t step = json_view_u32_or(v, "decoder_sparse_step", 1, 1, CONFIG_MAX_LAYERS);
    const json_t *dense = json_view_array(v, "mlp_only_layers");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        config_set_layer(c, i, mixer, (i + 1) % step == 0);
    for (size_t i = 0; v->rc == 0 && i < json_array_size(dense); i++) {
        const json_t *layer = json_array_get(dense, i);
        json_int_t n = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (n >= 0 && n < c->n_layers)
            set_feed_forward(c, (uint32_t)n, false);
        else
            v->rc = err_set(v->e, ERR_FORMAT, "%s: mlp_only_layers[%zu]: expected a layer below %u", v->where,
                            i, c->n_layers);
    }
    config_read_dense(c, v, "intermediate_size");
}

static void check_groups(const struct config *c, struct json_view *v)
{
    const struct router_config *r = &c->router;
    uint32_t per_group = c->n_experts / r->n_groups;
    if (r->n_groups > 1 && per_group < 2)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: n_group is %u of %u experts, expected groups of at least 2",
                        v->where, r->n_groups, c->n_experts);
    else if (r->keep_groups > r->n_groups)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: topk_group is %u, expected at most n_group = %u", v->where,
                        r->keep_groups, r->n_groups);
    else if (c->top_k > (uint64_t)r->keep_groups * per_group)
        v->rc =
            err_set(v->e, ERR_FORMAT, "%s: num_experts_per_tok is %u, expected at most %u (%u groups of %u)",
                    v->where, c->top_k, r->keep_groups * per_group, r->keep_groups, per_group);
}

void config_read_sigmoid_router(struct config *c, struct json_view *v)
{
    struct router_config *r = &c->router;
    r->sigmoid = true;
    config_read_experts(c, v, "n_routed_experts");
    uint32_t groups = r->n_groups ? r->n_groups : 1, keep = r->keep_groups ? r->keep_groups : 1;
    r->n_groups = json_view_u32_or(v, config_key(v, "n_group"), groups, 1, CONFIG_MAX_EXPERTS);
    r->keep_groups = json_view_u32_or(v, "topk_group", keep, 1, CONFIG_MAX_EXPERTS);
    r->scale = (float)json_view_real_or(v, "routed_scaling_factor", (double)r->scale, 1e-6, 1e6);
    config_expect_text(v, "topk_method", "noaux_tc");
    config_expect_text(v, config_key(v, "scoring_func"), "sigmoid");
    config_check_multiple(v, "n_routed_experts", c->n_experts, r->n_groups);
    if (v->rc == 0)
        check_groups(c, v);
}

void config_read_mlp_types(struct config *c, struct json_view *v)
{
    const json_t *types = config_layers_list(c, v, "mlp_layer_types");
    for (uint32_t i = 0; v->rc == 0 && types && i < c->n_layers; i++) {
        const json_t *type = json_array_get(types, i);
        if (json_is_text(type, "dense") || json_is_text(type, "sparse"))
            set_feed_forward(c, i, json_is_text(type, "sparse"));
        else
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: mlp_layer_types[%u] is neither dense nor sparse",
                            v->where, i);
    }
}

void config_read_first_dense(struct config *c, struct json_view *v, const struct part_config *mixer)
{
    uint32_t n_shared = json_view_u32_or(v, config_key(v, "n_shared_experts"), 1, 1, CONFIG_MAX_SHARED);
    c->shared_inner = n_shared * json_view_u32_or(v, "moe_shared_expert_intermediate_size", c->moe_inner, 1,
                                                  CONFIG_MAX_INNER);
    config_check_multiple(v, "moe_shared_expert_intermediate_size", c->shared_inner, PRODUCT_COLS);
    c->first_dense = json_view_u32_or(v, "first_k_dense_replace", c->first_dense, 0, CONFIG_MAX_LAYERS);
    c->moe_freq = json_view_u32_or(v, "moe_layer_freq", 1, 1, CONFIG_MAX_LAYERS);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++)
        config_set_layer(c, i, mixer, i >= c->first_dense && i % c->moe_freq == 0);
    config_read_mlp_types(c, v);
    config_read_dense(c, v, "intermediate_size");
}

void config_read_moe_flags(struct config *c, struct json_view *v, const char *key)
{
    const json_t *flags = json_view_get(v, "mlp_layer_types") ? NULL : config_layers_list(c, v, key);
    for (uint32_t i = 0; v->rc == 0 && flags && i < c->n_layers; i++)
        set_feed_forward(c, i, config_layer_flag(v, flags, key, i));
    config_read_mlp_types(c, v);
}

/* Returns layer i's entry of a list of limits; 0: none. */
static float clamp_of(struct json_view *v, const json_t *list, const char *key, uint32_t i)
{
    const json_t *item = json_array_get(list, i);
    double x = json_number_value(item);
    if (v->rc == 0 && item && !json_is_null(item) && (!json_is_number(item) || x < 0 || x > 1e6))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s[%u]: expected a number from 0 to 1e6", v->where, key, i);
    return (float)x;
}

void config_read_clamps(struct config *c, struct json_view *v, const char *routed, const char *shared)
{
    const json_t *of_routed = json_view_array(v, routed), *of_shared = json_view_array(v, shared);
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        c->layers[i].clamp = clamp_of(v, of_routed, routed, i);
        c->layers[i].shared_clamp = clamp_of(v, of_shared, shared, i);
        if (v->rc == 0 && !config_has_experts(c, i) && c->layers[i].shared_clamp > 0)
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s[%u]: layer %u is dense, expected 0", v->where,
                            shared, i, i);
    }
}

/* ---- residual streams ---- */

void config_check_width(const struct config *c, struct json_view *v, const char *key)
{
    if (v->rc == 0 && config_width(c) > CONFIG_MAX_HIDDEN)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s is %u with %u channels, expected fewer", v->where, key,
                        c->streams.n, c->hidden);
}

void config_read_streams(struct config *c, struct json_view *v)
{
    c->streams.n = json_view_u32_or(v, "hc_mult", 4, 2, CONFIG_MAX_STREAMS);
    c->streams.iterations = json_view_u32_or(v, "hc_sinkhorn_iters", 20, 1, 1000);
    c->streams.floor = (float)json_view_real_or(v, "hc_eps", 1e-6, 0, 1);
    config_check_width(c, v, "hc_mult");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        c->layers[i].blocks[0].mix = "hc_attn";
        c->layers[i].blocks[1].mix = "hc_ffn";
    }
}

/* ---- rotary angles ---- */

/* Sets the trained context and the longest one. A user switches YaRN on by adding its keys, and
 * max_position_embeddings may still be the trained context: then the stretched one counts. If no trained
 * context is given it is max_position_embeddings, which also stays the longest. */
static void set_contexts(struct config *c, struct rope_config *r)
{
    double stretched = r->factor * r->original_context;
    if (r->original_context < 1)
        r->original_context = c->max_context;
    else if (c->max_context && stretched > c->max_context)
        c->max_context = stretched < UINT32_MAX ? (uint32_t)stretched : UINT32_MAX;
}

static void read_yarn(struct config *c, struct rope_config *r, struct json_view *rope)
{
    r->yarn = true;
    r->factor = json_view_real_or(rope, "factor", 0, 1, BIG);
    r->original_context = json_view_real_or(rope, "original_max_position_embeddings", 0, 1, BIG);
    r->beta_fast = json_view_real_or(rope, "beta_fast", 32, 1e-3, BIG);
    r->beta_slow = json_view_real_or(rope, "beta_slow", 1, 1e-3, BIG);
    r->mscale = json_view_real_or(rope, "mscale", 0, 0, BIG);
    r->mscale_all_dim = json_view_real_or(rope, "mscale_all_dim", 0, 0, BIG);
    r->attention_factor = json_view_real_or(rope, "attention_factor", 0, 0, BIG);
    r->truncate = json_view_bool_or(rope, "truncate", true);
    if (rope->rc < 0)
        return;
    set_contexts(c, r);
    if (r->factor < 1 || r->original_context < 1)
        rope->rc = err_set(rope->e, ERR_FORMAT, "%s: rope_type yarn: key %s is missing", rope->where,
                           r->factor < 1 ? "factor" : "original_max_position_embeddings");
    else if (r->theta <= 1)
        rope->rc =
            err_set(rope->e, ERR_FORMAT, "%s: rope_theta is %g, expected more than 1 for rope_type yarn",
                    rope->where, r->theta);
}

void config_read_rope_type(struct config *c, struct json_view *rope, struct rope_config *r, bool takes_yarn)
{
    const char *type = json_view_text_or(rope, "rope_type", NULL);
    if (!type)
        type = json_view_text_or(rope, "type", "default");
    r->truncate = true;
    if (rope->rc < 0 || !strcmp(type, "default"))
        return;
    if (takes_yarn && !strcmp(type, "yarn"))
        read_yarn(c, r, rope);
    else
        rope->rc = err_set(rope->e, ERR_UNSUPPORTED, "%s: rope_type is %s, expected default%s", rope->where,
                           type, takes_yarn ? " or yarn" : "");
}

void config_read_rope(struct config *c, struct json_view *v, bool takes_yarn)
{
    struct json_view rope = config_rope_view(v), all = with_flat_keys(v);
    double theta = c->ropes[0].theta > 0 ? c->ropes[0].theta : 10000;
    c->ropes[0].theta = json_view_real_or(&all, "rope_theta", theta, 1, BIG);
    if (all.rc == 0)
        config_read_rope_type(c, &rope, &c->ropes[0], takes_yarn);
    v->rc = all.rc < 0 ? all.rc : rope.rc;
}

/* Reads Llama 3's stretched angles: pairs that turn less than `low` times within the original context are
 * divided by the factor, those that turn more than `high` times stay, the others lie between (Llama 3.1's
 * published code). */
static void read_llama3(struct rope_config *r, struct json_view *rope)
{
    static const double TWO_PI = 6.28318530717958647692;
    double factor = json_view_real_or(rope, "factor", 0, 1, BIG),
           low = json_view_real_or(rope, "low_freq_factor", 0, 1e-3, BIG),
           high = json_view_real_or(rope, "high_freq_factor", 0, 1e-3, BIG),
           context = json_view_real_or(rope, "original_max_position_embeddings", 0, 1, BIG);
    if (rope->rc == 0 && (factor < 1 || context < 1 || low <= 0 || high <= low))
        rope->rc = err_set(rope->e, ERR_FORMAT,
                           "%s: rope_type llama3: expected factor, original_max_position_embeddings and "
                           "low_freq_factor below high_freq_factor",
                           rope->where);
    if (rope->rc == 0 && r->dim / 2 > CONFIG_MAX_DIVISORS)
        rope->rc = err_set(rope->e, ERR_UNSUPPORTED, "%s: rope_type llama3: %u pairs, expected at most %d",
                           rope->where, r->dim / 2, CONFIG_MAX_DIVISORS);
    r->n_divisors = rope->rc < 0 ? 0 : r->dim / 2;
    for (uint32_t i = 0; i < r->n_divisors; i++) {
        double turns = context / (TWO_PI * real_pow(r->theta, 2.0 * i / r->dim));
        double kept = turns < low ? 0 : turns > high ? 1 : (turns - low) / (high - low);
        r->divisors[i] = 1 / (kept + (1 - kept) / factor);
    }
}

/* Reads the divisors themselves, which conversions of GGUF files write. */
static void read_divisors(struct rope_config *r, struct json_view *rope)
{
    const json_t *list = json_view_array(rope, CONFIG_DIVISORS_KEY);
    if (rope->rc == 0 && (json_array_size(list) != r->dim / 2 || r->dim / 2 > CONFIG_MAX_DIVISORS))
        rope->rc =
            err_set(rope->e, ERR_FORMAT, "%s: %s has %zu numbers, expected %u, at most %d", rope->where,
                    CONFIG_DIVISORS_KEY, json_array_size(list), r->dim / 2, CONFIG_MAX_DIVISORS);
    for (uint32_t i = 0; rope->rc == 0 && i < r->dim / 2; i++) {
        r->divisors[i] = json_number_value(json_array_get(list, i));
        if (!(r->divisors[i] > 0 && r->divisors[i] < BIG))
            rope->rc = err_set(rope->e, ERR_FORMAT, "%s: %s[%u]: expected a number above 0", rope->where,
                               CONFIG_DIVISORS_KEY, i);
    }
    r->n_divisors = rope->rc < 0 ? 0 : r->dim / 2;
}

void config_read_rope_of(struct json_view *rope, uint32_t head_dim, double theta, double part,
                         bool takes_llama3, struct rope_config *r)
{
    r->theta = json_view_real_or(rope, "rope_theta", theta, 1, BIG);
    part = json_view_real_or(rope, "partial_rotary_factor", part, 0, 1);
    r->dim = (uint32_t)(head_dim * part);
    const char *type = json_view_text_or(rope, "rope_type", NULL);
    if (!type)
        type = json_view_text_or(rope, "type", "default");
    if (rope->rc == 0 && (r->dim == 0 || r->dim % 2 != 0))
        rope->rc = err_set(rope->e, ERR_FORMAT,
                           "%s: partial_rotary_factor: %u rotary channels, expected an even number above 0",
                           rope->where, r->dim);
    if (rope->rc < 0)
        return;
    if (takes_llama3 && !strcmp(type, "llama3"))
        read_llama3(r, rope);
    else if (takes_llama3 && json_view_get(rope, CONFIG_DIVISORS_KEY))
        read_divisors(r, rope);
    else if (strcmp(type, "default") != 0)
        rope->rc = err_set(rope->e, ERR_UNSUPPORTED, "%s: rope_type is %s, expected default%s", rope->where,
                           type, takes_llama3 ? " or llama3" : "");
}
