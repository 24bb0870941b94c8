#include "model/model_dir_find.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "model/fp8.h"
#include "model/gguf/names.h"
#include "model/tensor.h"

const struct tensor *model_dir_find(const struct model_dir *m, const char *name)
{
    return tensor_find(m->tensors, m->n_tensors, name);
}

const struct tensor *model_dir_find_like(const struct model_dir *m, const char *name, size_t cut,
                                         const char *tail)
{
    char other[256];
    int n = snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - cut), name, tail);
    return n > 0 && (size_t)n < sizeof other ? model_dir_find(m, other) : NULL;
}

static int find_part(const struct model_dir *m, const char *base, const char *tail, const struct tensor **out,
                     struct moeflux_err *e)
{
    *out = model_dir_find_like(m, base, 0, tail);
    if (*out)
        return 0;
    char name[256], theirs[GGUF_NAMES_LENGTH];
    snprintf(name, sizeof name, "%s%s", base, tail);
    return err_set(e, ERR_FORMAT, "%s: tensor %s is missing", m->path,
                   m->is_gguf ? gguf_names_of(&m->config, name, theirs) : name);
}

static int check_shape(const struct model_dir *m, const struct tensor *t, uint64_t rows, uint64_t cols,
                       struct moeflux_err *e)
{
    if (t->n_dims >= 2 && tensor_rows(t) == rows && tensor_cols(t) == cols)
        return 0;
    char found[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, found);
    return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s, expected [%" PRIu64 ", %" PRIu64 "]",
                   m->files[t->file].path, tensor_label(t), found, rows, cols);
}

static int quantised_matrix(const struct model_dir *m, const char *base, struct matrix *out,
                            struct moeflux_err *e)
{
    const struct tensor *w = out->weight;
    const struct format *f = format_of(out->format = w->format);
    int rc = find_part(m, base, ".scales", &out->scales, e);
    if (rc == 0 && f->has_bias)
        rc = find_part(m, base, ".biases", &out->biases, e);
    if (rc == 0 && f->has_factor)
        rc = find_part(m, base, ".global_scale", &out->biases, e);
    if (rc == 0)
        rc = check_shape(m, out->scales, out->rows, out->cols / f->group, e);
    if (rc == 0 && f->has_bias)
        rc = check_shape(m, out->biases, out->rows, out->cols / f->group, e);
    if (rc == 0)
        rc = check_shape(m, w, out->rows, (uint64_t)out->cols * f->bits / 32, e);
    if (rc == 0 && !format_takes_cols(f, out->cols))
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %u inputs, expected a multiple of %u",
                       m->files[w->file].path, w->name, out->cols, f->group);
    return rc;
}

int model_dir_matrix(const struct model_dir *m, const char *base, uint32_t rows, uint32_t cols,
                     struct matrix *out, struct moeflux_err *e)
{
    *out = (struct matrix){.rows = rows, .cols = cols};
    int rc = find_part(m, base, ".weight", &out->weight, e);
    if (rc < 0)
        return rc;
    if (out->weight->dtype == DTYPE_U32)
        return quantised_matrix(m, base, out, e);
    if (out->weight->dtype == DTYPE_F8_E4M3) {
        const struct tensor *block_scales;
        out->format = FORMAT_NONE;
        rc = check_shape(m, out->weight, rows, cols, e);
        return rc < 0 ? rc : fp8_scales(m, out->weight, &block_scales, e);
    }
    if (out->weight->dtype == DTYPE_BLOCKS) {
        out->format = tensor_is_widened(out->weight) ? FORMAT_F32 : tensor_format(out->weight);
        return check_shape(m, out->weight, rows, cols, e);
    }
    if (!tensor_is_float(out->weight->dtype))
        return tensor_fail_dtype(out->weight, "U32, BF16, F16 or F32", m->files[out->weight->file].path, e);
    out->format = tensor_format(out->weight);
    return check_shape(m, out->weight, rows, cols, e);
}

static int check_count(const struct model_dir *m, const struct tensor *t, uint64_t n, struct moeflux_err *e)
{
    uint64_t found = t->bytes / tensor_dtype_bytes(t->dtype);
    if (found != n)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %" PRIu64 " elements, expected %" PRIu64,
                       m->files[t->file].path, tensor_label(t), found, n);
    return 0;
}

int model_dir_vector(const struct model_dir *m, const char *name, uint64_t n, const struct tensor **out,
                     struct moeflux_err *e)
{
    int rc = find_part(m, name, "", out, e);
    if (rc < 0)
        return rc;
    const struct tensor *t = *out;
    if (!tensor_is_float(t->dtype))
        return tensor_fail_dtype(t, "BF16, F16 or F32", m->files[t->file].path, e);
    return check_count(m, t, n, e);
}

int model_dir_ids(const struct model_dir *m, const char *name, uint64_t n, const struct tensor **out,
                  struct moeflux_err *e)
{
    int rc = find_part(m, name, "", out, e);
    if (rc < 0)
        return rc;
    const struct tensor *t = *out;
    if (t->dtype != DTYPE_I32 && t->dtype != DTYPE_I64)
        return tensor_fail_dtype(t, "I32 or I64", m->files[t->file].path, e);
    return check_count(m, t, n, e);
}
