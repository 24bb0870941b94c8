#include "model/fp8.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/extent_rule.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "model/quant.h"
#include "model/table.h"
#include "model/tensor.h"

static uint64_t blocks(uint64_t n, uint32_t block)
{
    return (n + block - 1) / block;
}

static uint64_t count(const struct tensor *t)
{
    return t->bytes / tensor_dtype_bytes(t->dtype);
}

struct fp8_blocks fp8_blocks_of(const struct model_dir *m, uint32_t rows, uint32_t cols,
                                const struct tensor *scales)
{
    if (count(scales) == 1)
        return (struct fp8_blocks){rows, cols};
    /* Rows of an n-gram table have scales of their own. */
    uint32_t n = scales->n_dims == 2 && scales->shape[0] == rows ? (uint32_t)scales->shape[1] : 0;
    if (n > 1 && cols % n == 0 && table_has(scales->name))
        return (struct fp8_blocks){1, cols / n};
    bool is_column = scales->n_dims == 1 || (scales->n_dims == 2 && scales->shape[1] == 1);
    return is_column && scales->shape[0] == rows ? (struct fp8_blocks){1, cols} : m->fp8;
}

/* Returns the tensor with one of the endings in place of the last `cut` characters of the weight's name. */
static const struct tensor *find_scales(const struct model_dir *m, const char *weight, size_t cut)
{
    const struct tensor *s = model_dir_find_like(m, weight, cut, "weight_scale_inv");
    return s ? s : model_dir_find_like(m, weight, cut, "weight_scale");
}

static struct fp8_blocks blocks_of(const struct model_dir *m, const struct tensor *w, const struct tensor *s)
{
    return fp8_blocks_of(m, (uint32_t)w->shape[0], (uint32_t)w->shape[1], s);
}

static int check_shape(const struct model_dir *m, const struct tensor *w, const struct tensor *s,
                       struct moeflux_err *e)
{
    const struct fp8_blocks block = blocks_of(m, w, s);
    const char *file = m->files[s->file].path;
    if (!block.rows)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: tensor %s: F8_E4M3, expected one scale or one a row without quant_method fp8 in config.json",
            m->files[w->file].path, w->name);
    if (s->dtype != DTYPE_F32 && s->dtype != DTYPE_BF16 && s->dtype != DTYPE_F8_E8M0)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %s, expected F32, BF16 or F8_E8M0", file, s->name,
                       tensor_dtype_name(s->dtype));
    uint64_t rows = blocks(w->shape[0], block.rows), cols = blocks(w->shape[1], block.cols);
    bool has_blocks = s->n_dims == 2 && s->shape[0] == rows && s->shape[1] == cols;
    if (has_blocks || (cols == 1 && count(s) == rows))
        return 0;
    char found[TENSOR_SHAPE_TEXT], weight[TENSOR_SHAPE_TEXT];
    tensor_shape_text(s, found);
    tensor_shape_text(w, weight);
    return err_set(e, ERR_FORMAT,
                   "%s: tensor %s: shape %s, expected [%" PRIu64 ", %" PRIu64
                   "]: blocks of %u x %u in the weight's %s",
                   file, s->name, found, rows, cols, block.rows, block.cols, weight);
}

int fp8_scales(const struct model_dir *m, const struct tensor *w, const struct tensor **out,
               struct moeflux_err *e)
{
    const char *file = m->files[w->file].path, *shard = strstr(w->name, ".shard");
    *out = NULL;
    if (w->n_dims != 2 || !str_ends_with(w->name, ".weight"))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: tensor %s: F8_E4M3, expected BF16 or F32 for other than two dimensions", file,
                       w->name);
    *out = find_scales(m, w->name, strlen("weight"));
    if (!*out && shard)
        *out = find_scales(m, w->name, strlen(shard + 1));
    if (!*out)
        return err_set(e, ERR_FORMAT, "%s: tensor %s is F8_E4M3, but there is no %s_scale_inv", file, w->name,
                       w->name);
    return check_shape(m, w, *out, e);
}

/* Reads rows [row, row + n) of the scales as floats into *to, which the caller frees; NULL on failure. */
static int read_scales(const struct model_dir *m, const struct tensor *s, uint64_t row, uint64_t n,
                       uint64_t cols, float **to, struct moeflux_err *e)
{
    uint64_t width = tensor_dtype_bytes(s->dtype), count = n * cols;
    float *out = *to = mem_new(count, sizeof *out, e);
    if (!out)
        return ERR_MEMORY;
    uint8_t *raw = (uint8_t *)out + count * (sizeof *out - width);
    int rc = model_dir_read(m, s, row * cols * width, count * width, raw, e);
    for (uint64_t i = 0; i < count && rc == 0; i++) {
        out[i] = format_scale(tensor_scale_type(s->dtype), raw, i);
        if (!isfinite(out[i]))
            rc = err_set(e, ERR_FORMAT, "%s: tensor %s: element %" PRIu64 " is not finite",
                         m->files[s->file].path, s->name, row * cols + i);
    }
    if (rc < 0) {
        free(out);
        *to = NULL;
    }
    return rc;
}

uint32_t fp8_format(const struct fp8_blocks *b, uint32_t cols)
{
    static const uint32_t formats[] = {FORMAT_FP8, FORMAT_FP8_32};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct format *f = format_of(formats[i]);
        if (cols % PRODUCT_COLS == 0 && format_takes_cols(f, cols) && b->cols % f->group == 0)
            return formats[i];
    }
    return FORMAT_F32;
}

bool fp8_is_scales(const struct tensor *t)
{
    return str_ends_with(t->name, ".weight_scale_inv") || str_ends_with(t->name, ".weight_scale");
}

uint64_t fp8_memory(const struct model_dir *m, const struct tensor *t)
{
    if (fp8_is_scales(t))
        return 0;
    if (t->dtype != DTYPE_F8_E4M3)
        return tensor_loaded_bytes(t);
    const struct format *f = format_of(fp8_format(&m->fp8, (uint32_t)tensor_cols(t)));
    return format_all_bytes(f, t->bytes);
}

int fp8_read_scales(const struct model_dir *m, const struct tensor *w, float *out, struct moeflux_err *e)
{
    const struct tensor *s;
    int rc = fp8_scales(m, w, &s, e);
    if (rc < 0)
        return rc;
    uint32_t rows = (uint32_t)w->shape[0], cols = (uint32_t)w->shape[1];
    uint32_t group = format_of(fp8_format(&m->fp8, cols))->group;
    const struct fp8_blocks of = blocks_of(m, w, s);
    const struct extent_rule rule = extent_rule_blocks(&of, s, rows, cols, group, 0);
    uint8_t *bytes = mem_new(s->bytes, 1, e);
    rc = bytes ? model_dir_read(m, s, 0, s->bytes, bytes, e) : ERR_MEMORY;
    if (rc == 0 && !extent_rule_place(&rule, NULL, 0, bytes, s->bytes, (uint8_t *)out))
        rc = err_set(e, ERR_FORMAT, "%s: tensor %s: a scale is not finite", m->files[s->file].path, s->name);
    free(bytes);
    return rc;
}

int fp8_read_f32(const struct model_dir *m, const struct tensor *w, float *out, struct moeflux_err *e)
{
    const struct tensor *s;
    int rc = fp8_scales(m, w, &s, e);
    if (rc < 0)
        return rc;
    const struct fp8_blocks of = blocks_of(m, w, s);
    uint64_t n = w->bytes, cols = w->shape[1], wide = blocks(cols, of.cols);
    float *scales;
    rc = read_scales(m, s, 0, blocks(w->shape[0], of.rows), wide, &scales, e);
    if (rc < 0)
        return rc;
    /* Going upwards, no number overwrites a code that is still to be read. */
    const uint8_t *codes = (const uint8_t *)out + 3 * n;
    rc = model_dir_read(m, w, 0, n, (uint8_t *)out + 3 * n, e);
    for (uint64_t i = 0; i < n && rc == 0; i++) {
        out[i] = e4m3_to_float(codes[i]) * scales[i / cols / of.rows * wide + i % cols / of.cols];
        if (!isfinite(out[i]))
            rc = err_set(e, ERR_FORMAT, "%s: tensor %s: element %" PRIu64 " is not finite",
                         m->files[w->file].path, w->name, i);
    }
    free(scales);
    return rc;
}

/* Refuses a NaN code or a value that BF16 cannot hold. */
static int fail_value(const struct model_dir *m, const struct tensor *w, uint64_t at, uint8_t code,
                      struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT,
                   "%s: tensor %s: row %" PRIu64 " column %" PRIu64 " is %s (code 0x%02x), expected a number",
                   m->files[w->file].path, w->name, at / w->shape[1], at % w->shape[1],
                   isnan(e4m3_to_float(code)) ? "NaN" : "beyond BF16's range with its scale", code);
}

/* Converts codes that share a scale to BF16 at `to`. Returns how many; it stops at the first that is not
 * finite. */
static uint64_t widen(const uint8_t *codes, uint64_t n, const float values[256], float scale, uint8_t *to)
{
    for (uint64_t i = 0; i < n; i++) {
        /* Infinities and NaN keep their exponent through the rounding. */
        uint16_t half = bf16_from_float(values[codes[i]] * scale);
        if ((half & 0x7f80) == 0x7f80)
            return i;
        memcpy(to + 2 * i, &half, sizeof half);
    }
    return n;
}

/* Converts n codes, the first of which is element `at` of w. They lie at the end of `room`: going upwards, no
 * value overwrites a code that is still to be read. */
static int widen_all(const struct model_dir *m, const struct tensor *w, struct fp8_blocks of,
                     const float *scales, uint64_t at, uint64_t n, uint8_t *room, struct moeflux_err *e)
{
    uint64_t cols = w->shape[1], wide = blocks(cols, of.cols), top = at / cols / of.rows;
    const uint8_t *codes = room + 3 * n;
    float values[256];
    fp8_values(values);
    for (uint64_t done = 0; done < n;) {
        uint64_t row = (at + done) / cols, col = (at + done) % cols, block = col / of.cols;
        uint64_t end = size_min(size_min((block + 1) * of.cols, cols), col + n - done);
        float scale = scales[(row / of.rows - top) * wide + block];
        uint64_t ok = widen(codes + done, end - col, values, scale, room + 2 * done);
        if (ok < end - col)
            return fail_value(m, w, at + done + ok, codes[done + ok], e);
        done += end - col;
    }
    return 0;
}

int fp8_read(const struct model_dir *m, const struct tensor *w, uint64_t first, uint64_t n, void *out,
             struct moeflux_err *e)
{
    const struct tensor *s;
    int rc = fp8_scales(m, w, &s, e);
    if (rc < 0 || n == 0)
        return rc;
    const struct fp8_blocks of = blocks_of(m, w, s);
    uint64_t block = w->shape[1] * of.rows, top = first / block, end = (first + n - 1) / block + 1;
    float *scales;
    rc = read_scales(m, s, top, end - top, blocks(w->shape[1], of.cols), &scales, e);
    if (rc < 0)
        return rc;
    rc = model_dir_read(m, w, first, n, (uint8_t *)out + 3 * n, e);
    if (rc == 0)
        rc = widen_all(m, w, of, scales, first, n, out, e);
    free(scales);
    return rc;
}

void fp8_values(float values[256])
{
    for (int i = 0; i < 256; i++)
        values[i] = e4m3_to_float((uint8_t)i);
}

void fp8_decode(const uint8_t *codes, const float values[256], const uint8_t *scales, uint32_t scale,
                uint32_t block, uint64_t n, float *out)
{
    float by = 1;
    for (uint64_t i = 0; i < n; i++) {
        if (i % block == 0)
            by = format_scale(scale, scales, i / block);
        out[i] = values[codes[i]] * by;
    }
}
