#include "model/gguf/tensors.h"

#include <stdio.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/ggml_type.h"
#include "base/gguf.h"
#include "base/str.h"
#include "model/config.h"
#include "model/family.h"
#include "model/gguf/names.h"
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

static int add(const struct gguf *g, const struct config *c, const struct gguf_tensor *from,
               struct tensor_list *l, size_t *n_left_out, struct moeflux_err *e)
{
    char name[GGUF_NAMES_LENGTH];
    struct tensor t;
    enum gguf_names_kind kind = gguf_names_find(c, from->name, name);
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
    *n_left_out = 0;
    for (size_t i = 0; rc == 0 && i < g->n_tensors; i++) {
        size_t before = l->n;
        if (!is_double(g, g->tensors[i].name))
            rc = add(g, c, &g->tensors[i], l, n_left_out, e);
        if (l->n > before)
            from[before] = &g->tensors[i];
    }
    return rc;
}
