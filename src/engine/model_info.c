/* The functions of moeflux.h that need no opened model: a model's needs, its parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/arch.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/plan/format_text.h"
#include "engine/plan/load_plan.h"
#include "engine/state/stores.h"
#include "experts/store.h"
#include "model/table.h"
#include "model/expert_tensors.h"
#include "model/fp8.h"
#include "model/family.h"
#include "model/model_dir.h"
#include "model/names.h"

/* Counts the parameters of the dense tensors, without scales and biases of quantised ones. */
static uint64_t params_of(const struct model_dir *d, bool is_table)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->n_tensors; i++) {
        const struct tensor *t = &d->tensors[i];
        if (table_has(t->name) != is_table)
            continue;
        if (expert_tensors_has(t->name) || str_ends_with(t->name, ".scales") ||
            str_ends_with(t->name, ".biases") || str_ends_with(t->name, ".global_scale") || fp8_is_scales(t))
            continue;
        if (t->dtype == DTYPE_BLOCKS) {
            const struct format *f = format_of(t->format);
            n += t->bytes / f->block_bytes * f->group;
            continue;
        }
        uint64_t width = t->dtype == DTYPE_F8_E4M3                         ? 8
                         : t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16 ? 16
                         : t->bits                                         ? t->bits
                                                                           : 32;
        n += t->bytes * 8 / width;
    }
    return n;
}

static uint64_t embedding_bytes(const struct model_dir *d)
{
    static const char *const parts[] = {"weight", "scales", "biases", "global_scale"};
    uint64_t bytes = 0;
    for (int i = 0; i < 4; i++) {
        char name[48];
        snprintf(name, sizeof name, "model.embed_tokens.%s", parts[i]);
        const struct tensor *t = model_dir_find(d, name);
        bytes += t ? t->bytes : 0;
    }
    return bytes;
}

static void fill_needs(const struct model_dir *d, enum kv_type type, struct moeflux_needs *out)
{
    const struct config *c = &d->config;
    uint64_t expert_params = (3u - c->gateless) * (uint64_t)config_expert_hidden(c) * c->moe_inner, n_moe = 0;
    *out = (struct moeflux_needs){.n_layers = c->n_layers,
                                  .hidden = c->hidden,
                                  .vocab_size = c->vocab_size,
                                  .n_experts = c->n_experts,
                                  .top_k = c->top_k,
                                  .own_top_k = c->own_top_k,
                                  .expert_share = config_expert_share(c),
                                  .moe_inner = c->moe_inner,
                                  .max_context = c->max_context,
                                  .packed = d->packed,
                                  .is_gguf = d->is_gguf,
                                  .has_drafter = d->has_drafter,
                                  .n_left_out = (uint32_t)d->n_left_out,
                                  .is_sketch = d->is_sketch,
                                  .is_assumed = d->is_assumed,
                                  .dense_bytes = d->dense_bytes,
                                  .table_bytes = d->table_bytes,
                                  .expert_bytes = d->expert_bytes,
                                  .one_expert_bytes = d->max_expert_bytes};
    if (d->tokenizer_path)
        snprintf(out->tokenizer_path, sizeof out->tokenizer_path, "%s", d->tokenizer_path);
    snprintf(out->architecture, sizeof out->architecture, "%s", c->family->name);
    format_text_experts(d, out->expert_formats, sizeof out->expert_formats);
    format_text_dense(d, out->dense_formats, sizeof out->dense_formats);
    struct arch_store_sizes sizes = {0};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct arch_stores s = arch_stores_of(c, i, type);
        out->n_attention += stores_has_rows(&s);
        out->n_windowed += config_window(c, i) > 0;
        out->window = (uint32_t)size_max(out->window, config_window(c, i));
        arch_add_sizes(&sizes, &s);
        n_moe += config_has_experts(c, i);
        out->token_expert_bytes += c->top_k * d->experts[i].bytes;
    }
    /* The recurrent state exists twice: the backup allows a chunk to be undone. */
    out->kv_bytes_per_pos = sizes.kv_block >> KV_BLOCK_SHIFT;
    out->recurrent_state_bytes =
        2 * sizes.recurrent + stores_ring_blocks(sizes.window, 1, 0) * sizes.ring_block;
    out->n_expert_layers = (uint32_t)n_moe;
    out->n_expert_params = n_moe * c->n_experts * expert_params;
    out->n_params = params_of(d, false) + params_of(d, true) + out->n_expert_params;
    out->n_active_params = params_of(d, false) + n_moe * c->top_k * expert_params;
    /* A token reads all dense weights except the embedding, of which it reads one row. */
    out->token_dense_bytes = d->dense_bytes - (c->tied ? 0 : embedding_bytes(d));
    uint64_t context = size_min(1024, config_longest_context(c));
    out->floor_bytes = d->dense_bytes + out->recurrent_state_bytes + context * out->kv_bytes_per_pos +
                       expert_store_floor_bytes(d);
}

int moeflux_get_needs(const char *dir, struct moeflux_needs *out, struct moeflux_err *e)
{
    return moeflux_get_needs_with(&(struct moeflux_options){.dir = dir}, out, e);
}

int moeflux_get_needs_with(const struct moeflux_options *o, struct moeflux_needs *out, struct moeflux_err *e)
{
    int null = err_need(e, "place of the result", out);
    if (null)
        return null;
    struct model_dir d;
    int rc = load_plan_look_at_model(&d, o, e);
    if (rc < 0)
        return rc;
    fill_needs(&d, load_plan_choose_kv_type(o->kv_type, &(struct exec_caps){0}), out);
    model_dir_close(&d);
    return 0;
}

_Static_assert((int)MOEFLUX_MAX_PARTS == (int)SPREAD_MAX_PARTS, "two names of one limit");

int moeflux_list_parts(const char *dir, struct moeflux_part *out, uint32_t cap, struct moeflux_err *e)
{
    struct spread_dirs d;
    int rc = err_need(e, "directory", dir, "list of parts", cap ? (void *)out : "");
    if (rc)
        return rc;
    rc = spread_read(&d, dir, e);
    if (rc < 0)
        return rc;
    int n = (int)d.spread.n_parts;
    for (int i = 0; i < n && rc == 0; i++) {
        const char *path = i ? d.paths[i] : dir;
        if (strlen(path) >= sizeof out->path)
            rc = err_set(e, ERR_FORMAT, "%s: a path is longer than %zu bytes", d.file, sizeof out->path - 1);
        else if ((uint32_t)i < cap)
            snprintf(out[i].path, sizeof out[i].path, "%s", path);
    }
    spread_free(&d);
    return rc < 0 ? rc : n;
}
