#include "convert/dense.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/side_file.h"
#include "convert/hash.h"
#include "model/model_file.h"
#include "model/tensor.h"

/* Elements [first, first + n) of an item's source. */
struct block {
    const struct convert_item *item;
    uint64_t first, n;
};

struct dense {
    const struct convert_plan *plan;
    struct convert_work *work;
    const struct side_file *file;
    struct block *blocks;
    size_t n, cap;
};

static int make_blocks(struct dense *d, struct moeflux_err *e)
{
    for (size_t i = 0; i < d->plan->n_items; i++) {
        const struct convert_item *it = &d->plan->items[i];
        for (uint64_t at = 0; at < it->n; at += CONVERT_BLOCK) {
            void *blocks = d->blocks;
            int rc = mem_grow(&blocks, &d->cap, d->n + 1, sizeof *d->blocks, e);
            d->blocks = blocks;
            if (rc < 0)
                return rc;
            d->blocks[d->n++] = (struct block){it, at, size_min(CONVERT_BLOCK, it->n - at)};
        }
    }
    return 0;
}

static int fail_value(const struct convert_plan *p, const struct tensor *t, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tensor %s: a value is not finite", p->src.files[t->file].path,
                   tensor_label(t));
}

/* dtype: that of the values, which may differ from the tensor's. */
static bool is_finite(const struct tensor *t, enum dtype dtype, const uint8_t *values, uint64_t n)
{
    if (t->dtype == DTYPE_GGUF)
        return float_all_finite(values, n);
    if (t->dtype == DTYPE_U8) /* scales: a byte is a power of two or a small float */
        return model_dir_check_bytes(t, values, n);
    uint32_t type = dtype == DTYPE_F8_E4M3 ? SCALE_E4M3 : tensor_scale_type(dtype);
    return type == SCALE_NONE || format_scales_are_finite(type, values, n * tensor_dtype_bytes(dtype));
}

static void widen(enum dtype dtype, const uint8_t *in, uint64_t n, uint8_t *out)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, in + 2 * i, sizeof bits);
        float x = dtype == DTYPE_BF16 ? bf16_to_float(bits) : f16_to_float(bits);
        memcpy(out + 4 * i, &x, sizeof x);
    }
}

static void narrow(enum dtype dtype, const uint8_t *in, uint64_t n, uint8_t *out)
{
    for (uint64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, in + 4 * i, sizeof x);
        uint16_t bits = dtype == DTYPE_BF16 ? bf16_from_float(x) : f16_from_float(x);
        memcpy(out + 2 * i, &bits, sizeof bits);
    }
}

static void plus_one(enum dtype dtype, const uint8_t *in, uint64_t n, uint8_t *out)
{
    for (uint64_t i = 0; i < n && dtype != DTYPE_F32; i++) {
        uint16_t bits;
        memcpy(&bits, in + 2 * i, sizeof bits);
        bits = dtype == DTYPE_BF16 ? bf16_from_float(bf16_to_float(bits) + 1.0f)
                                   : f16_from_float(f16_to_float(bits) + 1.0f);
        memcpy(out + 2 * i, &bits, sizeof bits);
    }
    for (uint64_t i = 0; i < n && dtype == DTYPE_F32; i++) {
        float x;
        memcpy(&x, in + 4 * i, sizeof x);
        x += 1.0f;
        memcpy(out + 4 * i, &x, sizeof x);
    }
}

/* Writes n bytes that start `at` bytes into the output tensor. */
static int put(const struct dense *d, const struct tensor *out, uint64_t at, const void *bytes, uint64_t n,
               uint64_t *written, struct moeflux_err *e)
{
    *written += n;
    return file_write_at(d->file->fd, d->file->path, bytes, n, out->off + at, e);
}

/* Makes codes of the numbers in s.in, or takes those of a GGUF file. */
static int encode(const struct dense *d, const struct block *b, struct convert_scratch s,
                  const struct convert_codes *to, struct moeflux_err *e)
{
    const struct convert_item *it = b->item;
    enum dtype dtype = it->scales ? DTYPE_F32 : convert_plan_dtype(it->src);
    struct convert_error sum = {0};
    if (it->step == CONVERT_REPACK) {
        int rc = gguf_source_codes(&d->plan->gguf, it->src, b->first, b->n, it->format, to, &sum, e);
        convert_work_add_error(d->work, it->kind, &sum);
        return rc < 0 ? rc : convert_plan_check_error(d->plan, it->src, it->format, &sum, e);
    }
    if (!convert_encode(dtype, s.in, b->n, format_of(it->format), d->plan->rule, to, &sum))
        return fail_value(d->plan, it->src, e);
    convert_work_add_error(d->work, it->kind, &sum);
    return convert_plan_check_error(d->plan, it->src, it->format, &sum, e);
}

static int quantise(const struct dense *d, const struct block *b, struct convert_scratch s, uint64_t *written,
                    struct moeflux_err *e)
{
    const struct convert_item *it = b->item;
    const struct format *f = format_of(it->format);
    uint64_t code_bytes = format_code_bytes(f, b->n);
    uint64_t scales_at = format_scale_bytes(f, b->first), scale_bytes = format_scale_bytes(f, b->n);
    const struct convert_codes to = {s.out, s.out + code_bytes, s.out + code_bytes + scale_bytes};
    int rc = encode(d, b, s, &to, e);
    if (rc == 0)
        rc = put(d, &it->out[0], format_code_bytes(f, b->first), to.codes, code_bytes, written, e);
    if (rc == 0)
        rc = put(d, &it->out[1], scales_at, to.scales, scale_bytes, written, e);
    /* A conversion makes no factors; a GGUF file has some. */
    if (rc == 0 && f->has_factor && b->first == 0) {
        const float factor = gguf_source_factor(&d->plan->gguf, it->src, 0);
        rc = put(d, &it->out[2], 0, &factor, sizeof factor, written, e);
    }
    return rc < 0 || !f->has_bias ? rc : put(d, &it->out[2], scales_at, to.biases, scale_bytes, written, e);
}

static int copy_blocks(const struct dense *d, const struct block *b, struct convert_scratch s,
                       uint64_t *written, struct moeflux_err *e)
{
    const struct format *f = format_of(b->item->format);
    int rc = gguf_source_blocks(&d->plan->gguf, b->item->src, b->first, b->n, s.out, e);
    return rc < 0 ? rc
                  : put(d, &b->item->out[0], format_code_bytes(f, b->first), s.out,
                        format_code_bytes(f, b->n), written, e);
}

static int write_block(const struct dense *d, const struct block *b, struct convert_scratch s,
                       uint64_t *written, struct moeflux_err *e)
{
    const struct convert_item *it = b->item;
    if (it->step == CONVERT_QUANTISE || it->step == CONVERT_REPACK)
        return quantise(d, b, s, written, e);
    if (it->step == CONVERT_BLOCKS)
        return copy_blocks(d, b, s, written, e);
    bool is_widened = it->src->dtype == DTYPE_F8_E4M3 && it->out[0].dtype == DTYPE_BF16;
    if (!is_finite(it->src, is_widened ? DTYPE_BF16 : it->src->dtype, s.in, b->n))
        return fail_value(d->plan, it->src, e);
    uint64_t width = tensor_dtype_bytes(it->out[0].dtype);
    const uint8_t *bytes = it->step == CONVERT_COPY ? s.in : s.out;
    if (it->step == CONVERT_NARROW)
        narrow(it->out[0].dtype, s.in, b->n, s.out);
    if (it->step == CONVERT_WIDEN)
        widen(it->src->dtype, s.in, b->n, s.out);
    else if (it->step == CONVERT_PLUS_ONE)
        plus_one(it->src->dtype, s.in, b->n, s.out);
    return put(d, &it->out[0], b->first * width, bytes, b->n * width, written, e);
}

/* Reads n bytes of a tensor, from the block's first number, to *to, and advances *to. */
static int read_part(const struct dense *d, const struct tensor *t, uint64_t from, uint64_t n, uint8_t **to,
                     struct moeflux_err *e)
{
    int rc = model_file_read(d->plan->src.files, t, from, n, *to, e);
    *to += n;
    return rc;
}

/* Decodes a block to floats in s.in. The codes are read to the upper half of s.out, which has room: 8 bits
 * each, and at most 4 bytes of scale and of bias for 32 columns. */
static int read_quantised(const struct dense *d, const struct block *b, struct convert_scratch s,
                          struct moeflux_err *e)
{
    const struct convert_item *it = b->item;
    const struct format *f = format_of(it->src->format);
    uint64_t at = format_scale_bytes(f, b->first), bytes = format_scale_bytes(f, b->n);
    uint64_t bias_at = f->has_factor ? 0 : at, bias_bytes = f->has_factor ? sizeof(float) : bytes;
    uint8_t *codes = s.out + (size_t)2 * CONVERT_BLOCK, *scales = codes + format_code_bytes(f, b->n),
            *biases = scales + bytes, *to = codes;
    int rc = read_part(d, it->src, format_code_bytes(f, b->first), format_code_bytes(f, b->n), &to, e);
    if (rc == 0)
        rc = read_part(d, it->scales, at, bytes, &to, e);
    if (rc == 0 && it->biases)
        rc = read_part(d, it->biases, bias_at, bias_bytes, &to, e);
    if (rc == 0)
        format_decode(f, codes, scales, biases, 0, b->n, (float *)(void *)s.in);
    return rc;
}

static uint64_t source_bytes(const struct dense *d, const struct block *b)
{
    const struct convert_item *it = b->item;
    if (!it->scales)
        return convert_plan_bytes(d->plan, it->src, b->n);
    const struct format *f = format_of(it->src->format);
    uint64_t bias_bytes = f->has_factor ? 0 : format_bias_bytes(f, b->n); /* a factor is no part of a block */
    return format_code_bytes(f, b->n) + format_scale_bytes(f, b->n) + bias_bytes;
}

static int read_block(const struct dense *d, const struct block *b, struct convert_scratch s,
                      struct moeflux_err *e)
{
    const struct tensor *src = b->item->src;
    if (b->item->step == CONVERT_REPACK || b->item->step == CONVERT_BLOCKS)
        return 0;
    if (b->item->step == CONVERT_COPY && b->item->out[0].dtype == DTYPE_F8_E4M3) /* the codes themselves */
        return model_file_read(d->plan->src.files, src, b->first, b->n, s.in, e);
    return b->item->scales ? read_quantised(d, b, s, e)
                           : convert_plan_read(d->plan, b->item->src, b->first, b->n, s.in, e);
}

static void do_block(void *ctx, uint32_t i)
{
    struct dense *d = ctx;
    const struct block *b = &d->blocks[i];
    uint64_t written = 0;
    struct moeflux_err e;
    if (!convert_work_ok(d->work))
        return;
    struct convert_scratch s = convert_work_take(d->work);
    int rc = read_block(d, b, s, &e);
    if (rc == 0)
        rc = write_block(d, b, s, &written, &e);
    convert_work_give(d->work, s);
    if (rc < 0)
        convert_work_fail(d->work, rc, &e);
    else
        convert_work_advance(d->work, source_bytes(d, b), source_bytes(d, b), written);
}

static int write_all(struct dense *d, struct moeflux_err *e)
{
    const struct side_file *f = d->file;
    int rc = make_blocks(d, e);
    /* Sets the length at once: the gaps between tensors stay zero. */
    if (rc == 0 && ftruncate(f->fd, (off_t)d->plan->weights_bytes) < 0)
        rc = err_errno(e, ERR_IO, "%s", f->path);
    if (rc < 0)
        return rc;
    if (d->n > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%s: too large to convert", d->plan->src.path);
    pool_for(d->work->pool, (uint32_t)d->n, do_block, d);
    return convert_work_result(d->work, e);
}

int convert_dense_write(const struct convert_plan *p, struct convert_target *t, struct convert_work *w,
                        struct moeflux_err *e)
{
    if (convert_target_find(t, CONVERT_WEIGHTS, p->weights_bytes)) {
        convert_work_advance(w, p->dense_source_bytes, 0, 0);
        return convert_work_result(w, e);
    }
    struct side_file f;
    int rc = convert_target_create(t, CONVERT_WEIGHTS, &f, e);
    if (rc < 0)
        return rc;
    struct dense d = {.plan = p, .work = w, .file = &f};
    uint64_t xxh3 = 0;
    rc = write_all(&d, e);
    if (rc == 0)
        rc = convert_hash_file(f.fd, f.path, p->weights_bytes, NULL, &xxh3, e);
    free(d.blocks);
    if (rc == 0)
        return convert_target_finish(t, CONVERT_WEIGHTS, &f, p->weights_bytes, xxh3, e);
    side_file_free(&f);
    return rc;
}
