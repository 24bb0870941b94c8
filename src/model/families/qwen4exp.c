/* Qwen3.8-Flash-Next: Qwen3.5's mixers, with an indexer in attention; several residual streams; rows of
 * n-gram tables before some layers' mixers. The layer of multi-token prediction has no table. Its vision
 * is left out. */
#include <inttypes.h>
#include <jansson.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"
#include "model/config_parts.h"
#include "model/family.h"

/* Reads n numbers of a list that has at least so many. hi: the largest one allowed. */
static void read_list(struct json_view *v, const char *key, uint32_t n, uint64_t lo, uint64_t hi,
                      uint64_t *out)
{
    const json_t *list = json_view_array(v, key);
    if (v->rc == 0 && json_array_size(list) < n)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s has %zu numbers, expected %u", v->where, key,
                        json_array_size(list), n);
    for (uint32_t i = 0; v->rc == 0 && i < n; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t x = json_integer_value(item);
        if (!json_is_integer(item) || x < 0 || (uint64_t)x < lo || (uint64_t)x > hi)
            v->rc =
                err_set(v->e, ERR_FORMAT, "%s: %s[%u]: expected a whole number from %" PRIu64 " to %" PRIu64,
                        v->where, key, i, lo, hi);
        out[i] = (uint64_t)x;
    }
}

/* Reads the table's constants, which checkpoints have as tensors or not at all; a configuration made of a
 * GGUF file contains them. */
static void read_given(const struct config *c, struct json_view *v, const struct ngram_table *t,
                       struct ngram_hash *out)
{
    uint64_t rows[NGRAM_MAX_HEADS] = {0}, first[NGRAM_MAX_HEADS] = {0};
    uint32_t n = (t->size - 1) * t->heads;
    if (v->rc < 0 || !json_view_get(v, "ple_rows"))
        return;
    if (n > NGRAM_MAX_HEADS) {
        v->rc =
            err_set(v->e, ERR_UNSUPPORTED, "%s: heads_per_ngram: %u heads of a table, expected at most %d",
                    v->where, n, NGRAM_MAX_HEADS);
        return;
    }
    *out =
        (struct ngram_hash){.size = t->size, .heads = t->heads, .n_heads = n, .end_of_text = t->end_of_text};
    out->n_rows = json_view_u32(v, "ple_rows", 1, UINT32_MAX);
    /* A product with a token stays below 2^63. */
    read_list(v, "ple_layer_multipliers", t->size, 0, (uint64_t)INT64_MAX / c->vocab_size, out->multipliers);
    read_list(v, "ple_head_vocab_sizes", n, 1, out->n_rows, rows);
    read_list(v, "ple_head_offsets", n, 0, out->n_rows, first);
    for (uint32_t i = 0; v->rc == 0 && i < n; i++) {
        if (rows[i] + first[i] > out->n_rows)
            v->rc = err_set(v->e, ERR_FORMAT, "%s: ple_head_offsets[%u]: rows up to %" PRIu64 ", expected %u",
                            v->where, i, rows[i] + first[i], out->n_rows);
        out->rows[i] = (uint32_t)rows[i];
        out->first[i] = (uint32_t)first[i];
    }
}

static void read_table(const struct config *c, struct json_view *v, struct ngram_config *n)
{
    const json_t *eos = json_view_get(v, "eos_token_id");
    if (json_is_array(eos))
        eos = json_array_get(eos, 0);
    n->table.size = json_view_u32_or(v, "ngram_size", 3, 2, NGRAM_MAX_SIZE);
    n->table.heads = json_view_u32_or(v, "heads_per_ngram", 8, 1, NGRAM_MAX_HEADS);
    n->table.base = json_view_u32_or(v, "ngram_vocab_size_base", 20000000, 2, UINT32_MAX);
    n->table.divisor = json_view_u32_or(v, "make_ngram_vocab_size_divisible_by", 128, 1, UINT32_MAX);
    n->table.seed = json_view_u32_or(v, "seed", 1234, 0, UINT32_MAX);
    n->table.vocab_size = c->vocab_size;
    n->width = config_width(c);
    n->inner = json_view_u32_or(v, "ple_embed_dim", c->hidden, 1, CONFIG_MAX_HIDDEN);
    n->taps = json_view_u32_or(v, "ple_conv_kernel_size", 4, 2, CONFIG_MAX_CONV);
    if (v->rc < 0)
        return;
    config_check_multiple(v, "ple_embed_dim", n->inner, (uint64_t)(n->table.size - 1) * n->table.heads);
    config_check_multiple(v, "ple_embed_dim", n->inner, CONFIG_FOUR);
    if (v->rc == 0 &&
        (!json_is_integer(eos) || json_integer_value(eos) < 0 || json_integer_value(eos) >= c->vocab_size))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: eos_token_id: expected a token that ends n-grams", v->where);
    n->table.end_of_text = (uint32_t)json_integer_value(eos);
    read_given(c, v, &n->table, &n->given);
}

/* Puts n-gram rows before the layers of a list, which counts from 1 and may name a layer twice. */
static void read_tables(struct config *c, struct json_view *v)
{
    const json_t *list = json_view_array(v, "ple_layer_ids");
    struct ngram_config n = {0};
    if (v->rc == 0 && json_array_size(list) > 0)
        read_table(c, v, &n);
    for (size_t i = 0; v->rc == 0 && i < json_array_size(list); i++) {
        json_int_t layer = json_integer_value(json_array_get(list, i));
        if (layer < 1 || layer > c->n_layers)
            v->rc = err_set(v->e, ERR_FORMAT, "%s: ple_layer_ids[%zu]: expected a layer from 1 to %u",
                            v->where, i, c->n_layers);
        else if (config_part(c, (uint32_t)layer - 1, 0)->kind != PART_DELTA_NET)
            v->rc = err_set(v->e, ERR_UNSUPPORTED,
                            "%s: ple_layer_ids[%zu]: layer %u has attention, expected linear_attention",
                            v->where, i, (uint32_t)layer);
    }
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        bool has = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            has |= json_integer_value(json_array_get(list, k)) == (json_int_t)i + 1;
        if (!has)
            continue;
        if (c->n_parts == CONFIG_MAX_PARTS) {
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: ple_layer_ids: too many different layers", v->where);
            return;
        }
        if (n.given.n_rows && n.table.index > 0) {
            v->rc = err_set(v->e, ERR_UNSUPPORTED,
                            "%s: ple_layer_ids: several layers, expected one with ple_rows", v->where);
            return;
        }
        config_add_ngrams(c, &c->layers[i], &n);
        n.table.index++;
    }
}

static void read(struct config *c, struct json_view *v)
{
    config_read_indexed_hybrid(c, v);
    c->streams.n = json_view_u32_or(v, "hc_count", 4, 2, 64);
    c->streams.rank = json_view_u32_or(v, "hc_lowrank", 320, 1, CONFIG_MAX_RANK);
    config_check_width(c, v, "hc_count");
    for (uint32_t i = 0; v->rc == 0 && i < c->n_layers; i++) {
        c->layers[i].blocks[0].norm = c->layers[i].blocks[1].norm = NULL;
        c->layers[i].blocks[0].mix = "attn_hyper_connection";
        c->layers[i].blocks[1].mix = "mlp_hyper_connection";
    }
    read_tables(c, v);
}

const struct family family_qwen4exp = {
    .name = "Qwen3.8-Flash-Next",
    .id = 9,
    .types = {"qwen4_exp", "qwen4_exp_text", "qwen3_8_flash_next_text"},
    .own_key = "hc_lowrank",
    .chat = "qwen3.5",
    .read = read,
    .drafter = DRAFTER_AS_MTP_OF_STREAMS,
    .shared_gate = "shared_expert_gate",
    .shared = "shared_expert",
    .mlx_prefix = "language_model.",
    .norms_less_one = true,
    .mlx_norms_less_one = true,
    .gate_bits = 8,
};
