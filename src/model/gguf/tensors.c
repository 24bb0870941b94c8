#include "model/gguf/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/ggml_type.h"
#include "base/gguf.h"
#include "base/str.h"
#include "model/config.h"
#include "model/drafter.h"
#include "model/family.h"
#include "model/gguf/names.h"
#include "model/names.h"
#include "model/nvfp4.h"
#include "model/part_tensors.h"
#include "model/tensor.h"

static void describe(struct tensor *t, const struct gguf_tensor *from)
{
    *t = (struct tensor){.dtype = from->type == GGML_TYPE_F32    ? DTYPE_F32
                                  : from->type == GGML_TYPE_F16  ? DTYPE_F16
                                  : from->type == GGML_TYPE_BF16 ? DTYPE_BF16
                                  : from->type == GGML_TYPE_I32  ? DTYPE_I32
                                                                 : DTYPE_BLOCKS,
                         .n_dims = from->n_dims,
                         .format = FORMAT_NONE,
                         .file = from->file,
                         .off = from->off,
                         .bytes = from->bytes};
    if (t->dtype == DTYPE_BLOCKS)
        t->format = ggml_type_find(from->type)->format;
    for (uint32_t i = 0; i < from->n_dims; i++)
        t->shape[i] = from->shape[from->n_dims - 1 - i];
}

/* Changes a shape to that of other files: a convolution's taps are the second dimension, and a vector of the
 * file may be a matrix of one row. The file has the logarithms of decays as -exp(A_log); if they have a
 * bound, most families' as exp(A_log). */
static void adopt(struct tensor *t, const struct config *c, const char *name)
{
    const char *gate = c->family->shared_gate;
    if (str_ends_with(name, ".conv1d.weight") && t->n_dims == 2)
        t->shape[t->n_dims++] = 1;
    if (gate && t->n_dims == 1 && strstr(name, gate)) {
        t->shape[1] = t->shape[0];
        t->shape[0] = 1;
        t->n_dims = 2;
    }
    if (str_ends_with(name, "_conv1d.weight") && t->n_dims == 4 && t->shape[0] == 1) {
        memmove(t->shape, t->shape + 1, 3 * sizeof *t->shape);
        t->n_dims = 3;
    }
    if (str_ends_with(name, ".A_log"))
        t->change = config_first(c, PART_DELTA_NET)->delta.lower < 0 && !c->family->decays_negated
                        ? TENSOR_LOG
                        : TENSOR_LOG_OF_NEGATED;
}

/* Returns whether it is a kv_b for which the file also has the two matrices made of it. */
static bool is_double(const struct gguf *g, const char *name)
{
    unsigned layer;
    char part[64];
    int n = 0;
    if (sscanf(name, "blk.%9u.attn_kv_b.weight%n", &layer, &n) != 1 || n == 0 || name[n] != '\0')
        return false;
    snprintf(part, sizeof part, "blk.%u.attn_k_b.weight", layer);
    return gguf_find_tensor(g, part) != NULL;
}

/* Returns whether tensor `name` belongs to the NVFP4 matrix of the same name except for the ending: `tail`
 * stands for its ".weight". weight: receives the matrix's name. */
static bool is_of_nvfp4(const struct gguf *g, const char *name, const char *tail,
                        char weight[GGUF_NAMES_LENGTH])
{
    if (!str_ends_with(name, tail))
        return false;
    snprintf(weight, GGUF_NAMES_LENGTH, "%.*s.weight", (int)(strlen(name) - strlen(tail)), name);
    const struct gguf_tensor *t = gguf_find_tensor(g, weight);
    return t && ggml_type_find(t->type)->format == FORMAT_G_NVFP4;
}

/* Finds the canonical name of a tensor. Gemma 4's experts have factors of their own with the name of NVFP4's;
 * llama.cpp's converter writes the products of both. */
static enum gguf_names_kind find_name(const struct gguf *g, const struct config *c, const char *name,
                                      char out[GGUF_NAMES_LENGTH])
{
    char weight[GGUF_NAMES_LENGTH];
    bool is_routers = c->router.factors && str_ends_with(name, ".ffn_down_exps.scale");
    if (is_of_nvfp4(g, name, ".input_scale", weight))
        return GGUF_NAMES_UNUSED; /* activations are not rounded */
    if (is_routers || !is_of_nvfp4(g, name, ".scale", weight))
        return gguf_names_find(c, name, out);
    enum gguf_names_kind kind = gguf_names_find(c, weight, out);
    if (kind == GGUF_NAMES_OURS && !str_ends_with(out, ".weight"))
        return GGUF_NAMES_UNKNOWN;
    if (kind == GGUF_NAMES_OURS)
        snprintf(out + strlen(out) - strlen("weight"), sizeof "global_scale", "global_scale");
    return kind;
}

/* Writes the start of the names of the layer of multi-token prediction. Returns its length. */
static size_t drafter_start(const struct config *c, char out[32])
{
    return (size_t)snprintf(out, 32, "blk.%u.", c->drafts ? c->drafts_as : c->n_layers);
}

bool gguf_tensors_have_drafter(const struct gguf *g, const struct config *c)
{
    bool has_mix = !c->streams.rank && part_last_mix(c);
    const char *const parts[] = {"nextn.eh_proj", "nextn.enorm", "nextn.hnorm", gguf_names_drafter_norm(c),
                                 "nextn.hc_head_fn"};
    char name[80], start[32];
    drafter_start(c, start);
    bool has = drafter_is_known(c->family);
    for (size_t i = 0, n = sizeof parts / sizeof *parts; has && i < n - !has_mix; i++) {
        snprintf(name, sizeof name, "%s%s.weight", start, parts[i]);
        has = gguf_find_tensor(g, name) != NULL;
    }
    return has;
}

static int add(const struct gguf *g, const struct config *c, const struct gguf_tensor *from,
               struct tensor_list *l, size_t *n_left_out, struct moeflux_err *e)
{
    char name[GGUF_NAMES_LENGTH];
    struct tensor t;
    enum gguf_names_kind kind = find_name(g, c, from->name, name);
    if (kind == GGUF_NAMES_UNKNOWN)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: not one that %s has", g->files[from->file].path,
                       from->name, c->family->name);
    *n_left_out += kind == GGUF_NAMES_OTHER_PART;
    if (kind != GGUF_NAMES_OURS)
        return 0;
    describe(&t, from);
    adopt(&t, c, name);
    return tensor_set_name(&t, name, from->name, e) < 0 ? ERR_MEMORY : tensor_list_add(l, &t, e);
}

int gguf_tensors_list(const struct gguf *g, const struct config *c, struct tensor_list *l,
                      const struct gguf_tensor **from, size_t *n_left_out, struct moeflux_err *e)
{
    int rc = 0;
    char start[32];
    size_t length = gguf_tensors_have_drafter(g, c) && !c->drafts ? drafter_start(c, start) : 0;
    *n_left_out = 0;
    for (size_t i = 0; rc == 0 && i < g->n_tensors; i++) {
        size_t before = l->n;
        bool is_drafters = length && strncmp(g->tensors[i].name, start, length) == 0;
        if (!is_drafters && !is_double(g, g->tensors[i].name))
            rc = add(g, c, &g->tensors[i], l, n_left_out, e);
        if (l->n > before)
            from[before] = &g->tensors[i];
    }
    return rc;
}

/* Makes `t` the codes of its blocks and *scales their scales. */
static int split(struct tensor *t, struct tensor *scales, struct moeflux_err *e)
{
    enum { COLS_OF_WORD = 8, GROUP = 16 };
    uint32_t last = t->n_dims - 1;
    uint64_t cols = t->shape[last], n_blocks = t->bytes / NVFP4_BLOCK_BYTES;
    *scales = *t;
    char *name = names_replace_end(t->name, strlen("weight"), "scales", e);
    int rc = name ? tensor_set_name(scales, name, t->source, e) : ERR_MEMORY;
    free(name);
    if (rc < 0)
        return rc;
    scales->dtype = DTYPE_U8;
    scales->shape[last] = cols / GROUP;
    scales->bytes = n_blocks * NVFP4_BLOCK_SCALES;
    scales->of_blocks = TENSOR_BLOCK_SCALES;
    t->dtype = DTYPE_U32;
    t->mode = QUANT_NVFP4;
    t->bits = 4;
    t->group = GROUP;
    t->shape[last] = cols / COLS_OF_WORD;
    t->bytes = n_blocks * NVFP4_BLOCK_CODES;
    t->of_blocks = TENSOR_BLOCK_CODES;
    return 0;
}

int gguf_tensors_split(struct tensor_list *l, const char *where, struct moeflux_err *e)
{
    int rc = tensor_list_sort(l, where, e);
    size_t n = l->n; /* scales are appended after these */
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct tensor *t = &l->items[i], scales;
        if (t->format != FORMAT_G_NVFP4 || !str_ends_with(t->name, ".weight"))
            continue;
        char *factor = names_replace_end(t->name, strlen("weight"), "global_scale", e);
        if (!factor)
            return ERR_MEMORY;
        bool has_factor = tensor_find(l->items, n, factor) != NULL;
        free(factor);
        if (!has_factor)
            continue;
        rc = split(t, &scales, e);
        if (rc == 0)
            rc = tensor_list_add(l, &scales, e);
    }
    return rc < 0 ? rc : tensor_list_sort(l, where, e);
}
