#include "model/model_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/str.h"
#include "model/family.h"
#include "model/model_dir_find.h"
#include "model/nvfp4.h"
#include "model/quant_config.h"
#include "model/schema.h"
#include "model/table.h"
#include "model/tensor.h"

static const char *path_of(const struct model_dir *m, const struct tensor *t)
{
    return m->files[t->file].path;
}

/* Returns the .scales, .biases or .global_scale of a quantised weight; NULL: missing. */
static struct tensor *find_part(struct model_dir *m, const struct tensor *w, const char *tail)
{
    const struct tensor *t = model_dir_find_like(m, w->name, strlen("weight"), tail);
    return t ? &m->tensors[t - m->tensors] : NULL;
}

static int fail_missing(const struct model_dir *m, const struct tensor *w, const char *tail,
                        struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tensor %s is U32, but there are no %s to it", path_of(m, w), w->name,
                   tail);
}

/* Checks that scales or biases are [the weight's rows][groups]. */
static int check_part(const struct model_dir *m, const struct tensor *w, const struct tensor *t,
                      struct moeflux_err *e)
{
    bool same = t->n_dims == w->n_dims;
    for (uint32_t i = 0; same && i + 1 < t->n_dims; i++)
        same = t->shape[i] == w->shape[i];
    if (same)
        return 0;
    char found[TENSOR_SHAPE_TEXT], weight[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, found);
    tensor_shape_text(w, weight);
    return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s does not fit the weight's %s", path_of(m, t),
                   t->name, found, weight);
}

/* Checks that a weight has the declared bits and groups. */
static int check_width(const struct model_dir *m, struct tensor *t, const struct tensor *scales,
                       struct moeflux_err *e)
{
    uint64_t words = tensor_cols(t), groups = tensor_cols(scales), cols = groups * t->group;
    uint64_t bits = cols > 0 ? 32 * words / cols : 0;
    bool whole = bits >= 1 && bits <= 32 && bits * cols == 32 * words;
    if (whole && t->bits == 0)
        t->bits = (uint32_t)bits;
    if (whole && bits == t->bits)
        return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: tensor %s: declared with %u bits, but a row has %" PRIu64 " words and %" PRIu64
                   " groups of %u (%.3g bits)",
                   path_of(m, t), t->name, t->bits, words, groups, t->group,
                   cols ? 32 * (double)words / (double)cols : 0.0);
}

/* Checks that affine codes have biases of their scales' dtype and shape, and others none. */
static int check_biases(const struct model_dir *m, const struct tensor *w, const struct tensor *scales,
                        const struct tensor *biases, struct moeflux_err *e)
{
    if (!format_of(w->format)->has_bias)
        return !biases ? 0
                       : err_set(e, ERR_FORMAT, "%s: tensor %s: biases, expected none for mode %s",
                                 path_of(m, biases), biases->name, quant_config_mode_name(w->mode));
    if (!biases)
        return fail_missing(m, w, "biases", e);
    if (biases->dtype != scales->dtype)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %s, expected %s as the scales", path_of(m, biases),
                       biases->name, tensor_dtype_name(biases->dtype), tensor_dtype_name(scales->dtype));
    int rc = check_part(m, w, biases, e);
    if (rc < 0 || tensor_cols(scales) == tensor_cols(biases))
        return rc;
    return err_set(e, ERR_FORMAT,
                   "%s: tensor %s: %" PRIu64 " scales and %" PRIu64 " biases a row, expected equal",
                   path_of(m, w), w->name, tensor_cols(scales), tensor_cols(biases));
}

/* Gives NVFP4 with a factor the format that has one. global: the factor. */
static int adopt_factor(const struct model_dir *m, struct tensor *w, struct tensor *global,
                        struct moeflux_err *e)
{
    bool is_known = m->packed || m->is_gguf || global->factor.is_there; /* MLX's would divide */
    if (w->format != FORMAT_NVFP4 || !is_known)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: expected %s without it", path_of(m, global),
                       tensor_label(global), tensor_label(w));
    uint64_t n = w->n_dims == 3 ? w->shape[0] : 1; /* a stack's experts have a factor each */
    w->format = global->format = FORMAT_NVFP4_FACTOR;
    return nvfp4_check_factors(global, n, path_of(m, global), e);
}

static int check_weight(struct model_dir *m, struct tensor *t, struct moeflux_err *e)
{
    if (!str_ends_with(t->name, ".weight") || t->n_dims < 2)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: U32 is expected for matrices named .weight only",
                       path_of(m, t), t->name);
    struct tensor *scales = find_part(m, t, "scales"), *biases = find_part(m, t, "biases"),
                  *global = find_part(m, t, "global_scale");
    if (!scales)
        return fail_missing(m, t, "scales", e);
    int rc = check_part(m, t, scales, e);
    if (rc == 0)
        rc = check_width(m, t, scales, e);
    if (rc == 0)
        rc = tensor_find_format(t, scales->dtype, path_of(m, t), &t->format, e);
    if (rc == 0 && global)
        rc = adopt_factor(m, t, global, e);
    if (rc == 0)
        rc = check_biases(m, t, scales, biases, e);
    if (rc < 0)
        return rc;
    scales->format = t->format;
    if (biases)
        biases->format = t->format;
    return 0;
}

/* Checks that no layer of a GGUF file has experts in two forms, one of which nothing would read. */
static int check_one_form(const struct model_dir *m, const struct tensor *t, uint32_t layer,
                          struct moeflux_err *e)
{
    static const char *const others[] = {"gate_proj", "up_proj"};
    if (!str_ends_with(t->name, ".mlp.experts.gate_up_proj"))
        return 0;
    for (int i = 0; i < 2; i++) {
        char name[SCHEMA_NAME];
        snprintf(name, sizeof name, "model.layers.%u.mlp.switch_mlp.%s.weight", layer, others[i]);
        const struct tensor *other = model_dir_find(m, name);
        if (other)
            return err_set(e, ERR_FORMAT, "%s: tensors %s and %s: expected one of them", path_of(m, t),
                           tensor_label(t), tensor_label(other));
    }
    return 0;
}

/* Returns whether it is scales, biases or a factor of a matrix, which has an entry of its own. */
static bool is_part(const struct model_dir *m, const struct tensor *t)
{
    static const char *const tails[] = {"scales", "global_scale", "biases", "weight_scale",
                                        "weight_scale_inv"};
    bool is = false;
    for (size_t i = 0; i < sizeof tails / sizeof *tails && !is; i++)
        is = str_ends_with(t->name, tails[i]) && model_dir_find_like(m, t->name, strlen(tails[i]), "weight");
    return is;
}

/* Returns whether it is part of a routed expert of a layer that has experts: of one of its matrices. */
static bool is_of_experts(const struct model_dir *m, const struct tensor *t)
{
    static const char *const lists[] = {".mlp.switch_mlp.", ".mlp.experts."}, *const matrices[] = {
                                                                                  "gate_proj", "up_proj",
                                                                                  "down_proj",
                                                                                  "gate_up_proj"};
    unsigned layer;
    const char *rest = NULL;
    for (int i = 0; i < 2 && !rest; i++)
        if ((rest = strstr(t->name, lists[i])))
            rest += strlen(lists[i]);
    if (!rest || sscanf(t->name, "model.layers.%9u.", &layer) != 1 || !config_has_experts(&m->config, layer))
        return false;
    size_t n_digits = strspn(rest, "0123456789");
    if (n_digits > 0 && rest[n_digits] == '.')
        rest += n_digits + 1;
    bool is = false;
    for (int i = 0; i < 4; i++)
        is = is || str_after(rest, matrices[i]);
    return is;
}

/* Returns whether a tensor's experts are those that a table names by token. */
static bool is_of_layer_by_token(const struct model_dir *m, const struct tensor *t)
{
    const struct config *c = &m->config;
    unsigned layer;
    if (sscanf(t->name, "model.layers.%9u.", &layer) != 1 || layer >= c->n_layers)
        return false;
    bool is = false;
    for (uint32_t i = 0; i < c->layers[layer].n_blocks; i++) {
        const struct part_config *p = config_part(c, layer, i);
        is = is || (p->kind == PART_EXPERTS && p->routed.by_token);
    }
    return is;
}

/* Returns whether it is one of the tensors that published checkpoints have in addition, without which the
 * results are the same: scales of activations and of an 8-bit KV cache, tables of rotary angles, constants of
 * n-gram tables, router biases of images' tokens and of layers whose router is a table, copies of the head in
 * layers, and the head of a model that uses its embedding. */
static bool is_known_extra(const struct model_dir *m, const struct tensor *t)
{
    static const char *const tails[] = {".input_scale",
                                        ".input_scale_inv",
                                        ".input_global_scale",
                                        ".output_scale",
                                        ".q_scale",
                                        ".k_scale",
                                        ".v_scale",
                                        ".kv_scale",
                                        ".prob_scale",
                                        ".inv_freq",
                                        ".cos_cached",
                                        ".sin_cached",
                                        ".ple_embedding.layer_multipliers",
                                        ".ple_embedding.ngram_heads_offsets",
                                        ".ple_embedding.ngram_heads_vocab_sizes",
                                        ".gate.e_score_correction_bias_vl"};
    bool is = strstr(t->name, ".shared_head.") || (m->config.tied && str_after(t->name, "lm_head.")) ||
              (str_ends_with(t->name, ".gate.e_score_correction_bias") && is_of_layer_by_token(m, t));
    for (size_t i = 0; i < sizeof tails / sizeof *tails && !is; i++)
        is = str_ends_with(t->name, tails[i]);
    return is;
}

/* Returns whether a tensor of a checkpoint belongs to the text model; others may be those of a part that is
 * not read. */
static bool is_of_text(const struct tensor *t)
{
    static const char *const starts[] = {"model.layers.", "model.norm.", "model.embed_tokens.", "lm_head."};
    bool is = false;
    for (size_t i = 0; i < sizeof starts / sizeof *starts && !is; i++)
        is = str_after(t->name, starts[i]);
    return is;
}

/* Refuses tensors that nothing reads: all of them in a GGUF file, those of the text model elsewhere. */
static int check_is_read(const struct model_dir *m, const struct schema *s, const struct tensor *t,
                         struct moeflux_err *e)
{
    unsigned layer;
    if (!m->is_gguf && !is_of_text(t))
        return 0;
    if (is_of_experts(m, t) && sscanf(t->name, "model.layers.%9u.", &layer) == 1)
        return m->is_gguf ? check_one_form(m, t, layer, e) : 0;
    if (schema_has(s, t->name) || table_has(t->name) || is_part(m, t) ||
        (!m->is_gguf && is_known_extra(m, t)))
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: nothing reads it; %s has none%s", path_of(m, t),
                   tensor_label(t), m->config.family->name,
                   str_after(t->name, "model.layers.") ? " in this layer" : "");
}

static int check_tensor(struct model_dir *m, const struct schema *s, struct tensor *t, struct moeflux_err *e)
{
    if (str_ends_with(t->name, "_proj.bias") && !schema_has(s, t->name))
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: projections with a bias are not supported",
                       path_of(m, t), tensor_label(t));
    return t->dtype == DTYPE_U32 ? check_weight(m, t, e) : 0;
}

static int check_present(const struct model_dir *m, const struct schema_item *it, struct moeflux_err *e)
{
    struct matrix matrix;
    const struct tensor *vector;
    if (it->is_ids)
        return model_dir_ids(m, it->name, it->cols, &vector, e);
    return it->rows ? model_dir_matrix(m, it->name, it->rows, it->cols, &matrix, e)
                    : model_dir_vector(m, it->name, it->cols, &vector, e);
}

static int check_tables(const struct model_dir *m, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < m->config.n_layers && rc == 0; i++) {
        const struct ngram_config *c = table_of_layer(&m->config, i);
        struct table t;
        rc = c ? table_open(&t, m, i, c, e) : 0;
        if (rc == 0 && c)
            table_close(&t);
    }
    return rc;
}

/* Returns whether a layer has this tensor. */
static bool any_layer_has(const struct model_dir *m, const char *tensor)
{
    bool has = false;
    for (uint32_t i = 0; i < m->config.n_layers && !has; i++) {
        char name[SCHEMA_NAME];
        snprintf(name, sizeof name, "model.layers.%u.%s", i, tensor);
        has = model_dir_find(m, name) != NULL;
    }
    return has;
}

int model_check_tensors(struct model_dir *m, struct moeflux_err *e)
{
    struct schema s;
    m->config.has_kv_b = any_layer_has(m, "self_attn.kv_b_proj.weight");
    /* GGUF files and what is made of these have the indexers' queries and keys apart. */
    m->config.splits_index = m->is_gguf || any_layer_has(m, "self_attn.indexer.index_q_proj.weight");
    m->config.streams.scores_alone = !any_layer_has(m, "self_attention_res_norm.weight");
    int rc = schema_build(&s, &m->config, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < m->n_tensors && rc == 0; i++)
        rc = check_tensor(m, &s, &m->tensors[i], e);
    for (size_t i = 0; i < s.n && rc == 0; i++)
        rc = check_present(m, &s.items[i], e);
    for (size_t i = 0; i < m->n_tensors && rc == 0; i++)
        rc = check_is_read(m, &s, &m->tensors[i], e);
    schema_free(&s);
    return rc < 0 ? rc : check_tables(m, e);
}
