#include "model/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/quant_config.h"

static const struct {
    const char *name;
    enum dtype dtype;
    uint32_t bytes;
} dtypes[] = {
    {"U32", DTYPE_U32, 4},   {"BF16", DTYPE_BF16, 2},       {"F32", DTYPE_F32, 4},
    {"F16", DTYPE_F16, 2},   {"I32", DTYPE_I32, 4},         {"F8_E4M3", DTYPE_F8_E4M3, 1},
    {"U8", DTYPE_U8, 1},     {"F8_E8M0", DTYPE_F8_E8M0, 1}, {"I64", DTYPE_I64, 8},
    {"I8", DTYPE_I8, 1},     {"BOOL", DTYPE_OTHER, 1},      {"F8_E5M2", DTYPE_OTHER, 1},
    {"I16", DTYPE_OTHER, 2}, {"U16", DTYPE_OTHER, 2},       {"U64", DTYPE_OTHER, 8},
    {"F64", DTYPE_OTHER, 8},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

const char *tensor_dtype_name(enum dtype dtype)
{
    if (dtype == DTYPE_GGUF)
        return "GGUF";
    if (dtype == DTYPE_BLOCKS)
        return "blocks";
    return dtype == DTYPE_OTHER ? "another dtype" : dtypes[dtype].name;
}

enum dtype tensor_find_dtype(const char *name)
{
    size_t k = 0;
    while (k < N_DTYPES && strcmp(dtypes[k].name, name) != 0)
        k++;
    return k < N_DTYPES ? dtypes[k].dtype : DTYPE_OTHER;
}

uint32_t tensor_dtype_bytes(enum dtype dtype)
{
    if (dtype == DTYPE_GGUF)
        return sizeof(float);
    return dtype == DTYPE_OTHER || dtype == DTYPE_BLOCKS ? 0 : dtypes[dtype].bytes;
}

bool tensor_is_float(enum dtype dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F32 || dtype == DTYPE_GGUF;
}

uint32_t tensor_format(const struct tensor *t)
{
    return t->format != FORMAT_NONE ? t->format
           : t->dtype == DTYPE_BF16 ? FORMAT_BF16
           : t->dtype == DTYPE_F16  ? FORMAT_F16
           : t->dtype == DTYPE_F32  ? FORMAT_F32
                                    : FORMAT_NONE;
}

bool tensor_is_widened(const struct tensor *t)
{
    return t->dtype == DTYPE_BLOCKS && tensor_cols(t) % PRODUCT_COLS != 0;
}

uint64_t tensor_loaded_bytes(const struct tensor *t)
{
    return tensor_is_widened(t) ? tensor_rows(t) * tensor_cols(t) * sizeof(float) : t->bytes;
}

int tensor_set_name(struct tensor *t, const char *name, const char *source, struct moeflux_err *e)
{
    size_t n = strlen(name) + 1, m = source ? strlen(source) + 1 : 0;
    char *both = mem_new(n + m, 1, e);
    if (!both)
        return ERR_MEMORY;
    memcpy(both, name, n);
    if (source)
        memcpy(both + n, source, m);
    t->name = both;
    t->source = source ? both + n : NULL;
    return 0;
}

const char *tensor_label(const struct tensor *t)
{
    return t->source ? t->source : t->name;
}

void tensor_apply_change(enum tensor_change change, float *x, uint64_t n)
{
    for (uint64_t i = 0; change != TENSOR_AS_IS && i < n; i++)
        x[i] = (float)log(change == TENSOR_LOG ? (double)x[i] : -(double)x[i]);
}

int tensor_fail_dtype(const struct tensor *t, const char *expected, const char *where, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tensor %s: %s, expected %s", where, tensor_label(t),
                   tensor_dtype_name(t->dtype), expected);
}

static int read_shape(struct tensor *t, const json_t *shape, const char *where, struct moeflux_err *e)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > TENSOR_MAX_DIMS)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: expected a shape of at most %d dimensions", where,
                       t->name, TENSOR_MAX_DIMS);
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: shape entry %zu is not a whole number", where,
                           t->name, i);
        t->shape[i] = (uint64_t)json_integer_value(dim);
    }
    return 0;
}

static bool shape_bytes(const struct tensor *t, uint32_t width, uint64_t *bytes)
{
    *bytes = width;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!size_mul(*bytes, t->shape[i], bytes))
            return false;
    return true;
}

/* Fills off and bytes. expected: the bytes that the shape has; type: name of the dtype, for messages. */
static int place(struct tensor *t, const char *type, uint64_t expected, uint64_t off, uint64_t bytes,
                 uint64_t area_bytes, const char *where, struct moeflux_err *e)
{
    char text[TENSOR_SHAPE_TEXT];
    uint64_t end;
    tensor_shape_text(t, text);
    if (expected != bytes)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %" PRIu64 " bytes, expected %" PRIu64 " for %s %s",
                       where, t->name, bytes, expected, type, text);
    if (!size_add(off, bytes, &end) || end > area_bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s: bytes %" PRIu64 " + %" PRIu64 " reach past the end (%" PRIu64
                       " bytes): is the file cut off?",
                       where, t->name, off, bytes, area_bytes);
    t->off = off;
    t->bytes = bytes;
    return 0;
}

static int fail_overflow(const struct tensor *t, const char *type, const char *where, struct moeflux_err *e)
{
    char text[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, text);
    return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s of %s overflows", where, t->name, text, type);
}

int tensor_describe(struct tensor *t, const char *dtype, const struct json_t *shape, uint64_t off,
                    uint64_t bytes, uint64_t area_bytes, const char *where, struct moeflux_err *e)
{
    size_t k = 0;
    uint64_t expected;
    while (k < N_DTYPES && strcmp(dtypes[k].name, dtype) != 0)
        k++;
    if (k == N_DTYPES)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: unknown dtype %s", where, t->name, dtype);
    t->dtype = dtypes[k].dtype;
    t->format = FORMAT_NONE;
    int rc = read_shape(t, shape, where, e);
    if (rc < 0)
        return rc;
    if (!shape_bytes(t, dtypes[k].bytes, &expected))
        return fail_overflow(t, dtype, where, e);
    return place(t, dtype, expected, off, bytes, area_bytes, where, e);
}

int tensor_describe_blocks(struct tensor *t, uint32_t format, const struct json_t *shape, uint64_t off,
                           uint64_t bytes, uint64_t area_bytes, const char *where, struct moeflux_err *e)
{
    const struct format *f = format_of(format);
    uint64_t n;
    t->dtype = DTYPE_BLOCKS;
    t->format = format;
    int rc = read_shape(t, shape, where, e);
    if (rc < 0)
        return rc;
    if (!shape_bytes(t, f->block_bytes, &n))
        return fail_overflow(t, f->name, where, e);
    if (!format_takes_cols(f, tensor_cols(t)))
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %" PRIu64 " columns of %s, expected a multiple of %u",
                       where, t->name, tensor_cols(t), f->name, f->group);
    return place(t, f->name, format_code_bytes(f, n / f->block_bytes), off, bytes, area_bytes, where, e);
}

static const struct {
    enum dtype dtype;
    uint32_t scale;
} affine_scales[] = {{DTYPE_BF16, SCALE_BF16}, {DTYPE_F16, SCALE_F16}, {DTYPE_F32, SCALE_F32}};
enum { N_AFFINE_SCALES = sizeof affine_scales / sizeof *affine_scales };

static uint32_t affine_scale(enum dtype dtype)
{
    for (int i = 0; i < N_AFFINE_SCALES; i++)
        if (affine_scales[i].dtype == dtype)
            return affine_scales[i].scale;
    return SCALE_NONE;
}

static int find_affine(const struct tensor *t, enum dtype scales, const char *where, uint32_t *format,
                       struct moeflux_err *e)
{
    char bits[FORMAT_LIST_TEXT], groups[FORMAT_LIST_TEXT];
    uint32_t scale = affine_scale(scales);
    if (scale == SCALE_NONE)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: scales are %s, expected BF16, F16 or F32", where,
                       t->name, tensor_dtype_name(scales));
    *format = format_find_affine(t->bits, t->group, scale);
    if (*format != FORMAT_NONE)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: tensor %s has %u bits in groups of %u, expected %s in groups of %s", where, t->name,
                   t->bits, t->group, format_list_bits(bits), format_list_groups(groups));
}

int tensor_find_format(const struct tensor *t, enum dtype scales, const char *where, uint32_t *format,
                       struct moeflux_err *e)
{
    *format = quant_config_mode_format(t->mode);
    if (*format == FORMAT_NONE)
        return find_affine(t, scales, where, format, e);
    const struct format *f = format_of(*format);
    const char *mode = quant_config_mode_name(t->mode);
    if (scales != tensor_scale_dtype(f))
        return err_set(e, ERR_FORMAT, "%s: tensor %s: scales are %s, expected %s for mode %s", where, t->name,
                       tensor_dtype_name(scales), tensor_dtype_name(tensor_scale_dtype(f)), mode);
    if (t->bits != f->bits || t->group != f->group)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: tensor %s has %u bits in groups of %u, expected %u in groups of %u for mode %s",
                       where, t->name, t->bits, t->group, f->bits, f->group, mode);
    return 0;
}

uint32_t tensor_scale_type(enum dtype dtype)
{
    return dtype == DTYPE_F8_E8M0 ? SCALE_E8M0 : affine_scale(dtype);
}

enum dtype tensor_scale_dtype(const struct format *f)
{
    for (int i = 0; i < N_AFFINE_SCALES; i++)
        if (affine_scales[i].scale == f->scale)
            return affine_scales[i].dtype;
    return DTYPE_U8;
}

void tensor_shape_text(const struct tensor *t, char out[TENSOR_SHAPE_TEXT])
{
    int at = snprintf(out, TENSOR_SHAPE_TEXT, "[");
    for (uint32_t i = 0; i < t->n_dims; i++)
        at += snprintf(out + at, (size_t)(TENSOR_SHAPE_TEXT - at), "%s%" PRIu64, i ? ", " : "", t->shape[i]);
    snprintf(out + at, (size_t)(TENSOR_SHAPE_TEXT - at), "]");
}

uint64_t tensor_rows(const struct tensor *t)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < t->n_dims; i++)
        rows *= t->shape[i];
    return rows;
}

uint64_t tensor_cols(const struct tensor *t)
{
    return t->n_dims ? t->shape[t->n_dims - 1] : 1;
}

int tensor_list_add(struct tensor_list *l, const struct tensor *t, struct moeflux_err *e)
{
    void *items = l->items;
    int rc = mem_grow(&items, &l->cap, l->n + 1, sizeof *l->items, e);
    l->items = items;
    if (rc < 0) {
        free(t->name);
        return rc;
    }
    l->items[l->n++] = *t;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    return (x->off > y->off) - (x->off < y->off);
}

int tensor_list_check_overlap(struct tensor_list *l, size_t first, const char *where, struct moeflux_err *e)
{
    if (first < l->n)
        qsort(l->items + first, l->n - first, sizeof *l->items, by_offset);
    const struct tensor *last = NULL;
    for (size_t i = first; i < l->n; i++) {
        const struct tensor *t = &l->items[i];
        if (t->bytes == 0)
            continue;
        if (last && last->off + last->bytes > t->off)
            return err_set(e, ERR_FORMAT, "%s: tensors %s and %s overlap at byte %" PRIu64, where, last->name,
                           t->name, t->off);
        last = t;
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int tensor_list_sort(struct tensor_list *l, const char *where, struct moeflux_err *e)
{
    if (l->n > 0)
        qsort(l->items, l->n, sizeof *l->items, by_name);
    for (size_t i = 1; i < l->n; i++) {
        const char *a = tensor_label(&l->items[i - 1]), *b = tensor_label(&l->items[i]);
        if (strcmp(l->items[i - 1].name, l->items[i].name) != 0)
            continue;
        return strcmp(a, b) != 0
                   ? err_set(e, ERR_FORMAT, "%s: tensors %s and %s: expected one of them", where, a, b)
                   : err_set(e, ERR_FORMAT, "%s: tensor %s is there twice", where, b);
    }
    return 0;
}

void tensor_list_free(struct tensor_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].name);
    free(l->items);
    *l = (struct tensor_list){0};
}

const struct tensor *tensor_find(const struct tensor *sorted, size_t n, const char *name)
{
    struct tensor key = {.name = (char *)(uintptr_t)name};
    return n ? bsearch(&key, sorted, n, sizeof *sorted, by_name) : NULL;
}
