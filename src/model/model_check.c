#include "model/model_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "model/names.h"
#include "model/schema.h"
#include "model/tensor.h"

static const char *path_of(const struct model_dir *m, const struct tensor *t)
{
    return m->files[t->file].path;
}

/* The .scales or .biases of a quantised weight. */
static int check_part(const struct model_dir *m, const struct tensor *w, const char *tail, uint64_t *groups,
                      struct moeflux_err *e)
{
    char *name = names_replace_end(w->name, strlen("weight"), tail, e);
    if (!name)
        return ERR_MEMORY;
    const struct tensor *t = model_dir_find(m, name);
    free(name);
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: tensor %s is U32, but there are no %s to it", path_of(m, w),
                       w->name, tail);
    if (t->dtype != DTYPE_BF16)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %s, expected BF16", path_of(m, t), t->name,
                       tensor_dtype_name(t->dtype));
    bool same = t->n_dims == w->n_dims;
    for (uint32_t i = 0; same && i + 1 < t->n_dims; i++)
        same = t->shape[i] == w->shape[i];
    if (same) {
        *groups = tensor_cols(t);
        return 0;
    }
    char found[TENSOR_SHAPE_TEXT], weight[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, found);
    tensor_shape_text(w, weight);
    return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s does not fit the weight's %s", path_of(m, t),
                   t->name, found, weight);
}

static int check_weight(const struct model_dir *m, struct tensor *t, struct moeflux_err *e)
{
    if (!names_ends_with(t->name, ".weight") || t->n_dims < 2)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: U32 is expected for matrices named .weight only",
                       path_of(m, t), t->name);
    uint64_t scales = 0, biases = 0, words = tensor_cols(t);
    int rc = check_part(m, t, "scales", &scales, e);
    if (rc == 0)
        rc = check_part(m, t, "biases", &biases, e);
    if (rc < 0)
        return rc;
    if (scales != biases)
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s: %" PRIu64 " scales and %" PRIu64 " biases a row, expected equal",
                       path_of(m, t), t->name, scales, biases);
    uint64_t cols = scales * t->group, bits = cols > 0 ? 32 * words / cols : 0;
    bool whole = bits >= 1 && bits <= 32 && bits * cols == 32 * words;
    if (whole && t->bits == 0)
        t->bits = (uint32_t)bits;
    if (whole && bits == t->bits)
        return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: tensor %s: declared with %u bits, but a row has %" PRIu64 " words and %" PRIu64
                   " groups of %u (%.3g bits)",
                   path_of(m, t), t->name, t->bits, words, scales, t->group,
                   cols ? 32 * (double)words / (double)cols : 0.0);
}

int model_check_quantised(struct model_dir *m, struct moeflux_err *e)
{
    int rc = 0;
    for (size_t i = 0; i < m->n_tensors && rc == 0; i++) {
        struct tensor *t = &m->tensors[i];
        if (names_ends_with(t->name, "_proj.bias"))
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: projections with a bias are not supported",
                           path_of(m, t), t->name);
        if (t->dtype == DTYPE_U32)
            rc = check_weight(m, t, e);
    }
    return rc;
}

int model_check_complete(struct model_dir *m, struct moeflux_err *e)
{
    struct schema s;
    m->config.has_kv_b = model_dir_find(m, "model.layers.0.self_attn.kv_b_proj.weight") != NULL;
    int rc = schema_build(&s, &m->config, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < s.n && rc == 0; i++) {
        const struct schema_item *it = &s.items[i];
        struct matrix matrix;
        const struct tensor *vector;
        rc = it->rows ? model_dir_matrix(m, it->name, it->rows, it->cols, &matrix, e)
                      : model_dir_vector(m, it->name, it->cols, &vector, e);
    }
    schema_free(&s);
    return rc;
}
