#include "model/model_dir.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/checkpoint.h"
#include "model/expert_places.h"
#include "model/fp8.h"
#include "model/layout.h"
#include "model/manifest.h"
#include "model/model_check.h"
#include "model/model_file.h"
#include "model/names.h"
#include "model/quant.h"
#include "model/quant_config.h"
#include "model/tensor.h"

#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)

/* --- opening --- */

/* What is only needed while a directory is being opened. */
struct opening {
    struct model_dir *m;
    struct layout layout;
    json_t *config, *manifest; /* parsed files; NULL: not there */
};

static int read_config(struct opening *o, struct moeflux_err *e)
{
    struct config *c = &o->m->config;
    int rc;
    if (o->layout.config) {
        rc = json_read_file(o->layout.config, MAX_CONFIG_BYTES, JSON_MAX_SMALL, &o->config, e);
        if (rc == 0)
            rc = config_read(c, o->config, o->layout.config, e);
    } else {
        const json_t *inside = json_object_get(o->manifest, "config");
        rc = json_is_object(inside)
                 ? config_read(c, inside, o->layout.manifest, e)
                 : err_set(e, ERR_FORMAT, "%s: no \"config\", and no config.json beside it",
                           o->layout.manifest);
    }
    if (rc < 0 || !o->layout.generation_config)
        return rc;
    json_t *generation = NULL;
    rc = json_read_file(o->layout.generation_config, MAX_CONFIG_BYTES, JSON_MAX_SMALL, &generation, e);
    if (rc == 0)
        rc = config_add_eos(c, generation, o->layout.generation_config, e);
    json_decref(generation);
    return rc;
}

static int check_tensors(struct model_dir *m, struct moeflux_err *e)
{
    int rc = model_check_quantised(m, e);
    return rc < 0 ? rc : model_check_complete(m, e);
}

/* On failure the caller still owns what is in `l`. */
static int read_manifest(struct opening *o, struct tensor_list *l, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    int rc = manifest_read(o->layout.manifest, 0, m->files[0].bytes, l, &o->manifest, e);
    if (rc == 0)
        rc = tensor_list_sort(l, m->path, e);
    if (rc < 0)
        return rc;
    m->tensors = l->items;
    m->n_tensors = l->n;
    *l = (struct tensor_list){0};
    return 0;
}

/* What the manifest's configuration says of all layers' experts, as every version writes it. */
static int read_usual_formats(const struct opening *o, struct expert_formats *f, struct moeflux_err *e)
{
    struct json_view v = {
        .objects = {json_object_get(o->manifest, "config")}, .where = o->layout.manifest, .e = e};
    uint32_t bits = json_view_u32_or(&v, "expert_bits", 4, 1, 32);
    uint32_t down = json_view_u32_or(&v, "expert_down_bits", bits, 1, 32);
    char known[FORMAT_LIST_TEXT];
    if (v.rc < 0)
        return v.rc;
    f->gate = f->up = format_find_affine(bits, QUANT_DEFAULT_GROUP, SCALE_BF16);
    f->down = format_find_affine(down, QUANT_DEFAULT_GROUP, SCALE_BF16);
    if (f->up == FORMAT_NONE || f->down == FORMAT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s is %u, expected %s", v.where,
                       f->up == FORMAT_NONE ? "expert_bits" : "expert_down_bits",
                       f->up == FORMAT_NONE ? bits : down, format_list_bits(known));
    return 0;
}

/* A projection of a layer's experts, from an object with mode, bits, group_size and the dtype of the scales.
 * */
static int read_format(const struct opening *o, const json_t *layer, const char *part, uint32_t at,
                       uint32_t *format, struct moeflux_err *e)
{
    char what[64];
    struct quant_entry entry;
    const char *where = o->layout.manifest;
    const json_t *object = json_object_get(layer, part);
    snprintf(what, sizeof what, "experts of layer %u: %s", at, part);
    if (!json_is_object(object))
        return err_set(e, ERR_FORMAT, "%s: %s is missing, expected an object", where, what);
    int rc = quant_config_entry(object, 4, where, what, &entry, e);
    if (rc < 0)
        return rc;
    struct json_view v = {.objects = {object}, .where = where, .e = e};
    const char *dtype = json_view_text_or(&v, "scales", entry.mode == QUANT_AFFINE ? "BF16" : "U8");
    const struct tensor t = {.name = what, .mode = entry.mode, .bits = entry.bits, .group = entry.group};
    return v.rc < 0 ? v.rc : tensor_find_format(&t, tensor_find_dtype(dtype), where, format, e);
}

/* Of the experts in layer files, which do not say it themselves: f [n_layers]. */
static int read_expert_formats(const struct opening *o, struct expert_formats *f, struct moeflux_err *e)
{
    const struct config *c = &o->m->config;
    struct json_view v = {.objects = {o->manifest}, .where = o->layout.manifest, .e = e};
    const json_t *layers = json_view_array(&v, "experts");
    struct expert_formats usual;
    int rc = v.rc < 0 ? v.rc : layers ? 0 : read_usual_formats(o, &usual, e);
    if (rc == 0 && layers && json_array_size(layers) != c->n_layers)
        rc = err_set(e, ERR_FORMAT, "%s: experts of %zu layers, expected %u", v.where,
                     json_array_size(layers), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers && rc == 0; i++) {
        if (!layers)
            f[i] = usual;
        if (!layers || !config_has_experts(c, i))
            continue;
        const json_t *layer = json_array_get(layers, i);
        rc = read_format(o, layer, "gate_up", i, &f[i].gate, e);
        f[i].up = f[i].gate;
        if (rc == 0)
            rc = read_format(o, layer, "down", i, &f[i].down, e);
    }
    return rc;
}

static int add_expert_files(struct opening *o, struct moeflux_err *e)
{
    struct expert_formats *formats = mem_new(o->m->config.n_layers, sizeof *formats, e);
    int rc = formats ? read_expert_formats(o, formats, e) : ERR_MEMORY;
    if (rc == 0)
        rc = expert_places_from_files(o->m, o->layout.experts, formats, e);
    free(formats);
    return rc;
}

static int open_packed(struct opening *o, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    struct tensor_list tensors = {0};
    int rc = model_file_add(&m->files, &m->n_files, o->layout.weights, e);
    if (rc == 0)
        rc = read_manifest(o, &tensors, e);
    tensor_list_free(&tensors);
    if (rc == 0)
        rc = read_config(o, e);
    if (rc == 0)
        rc = check_tensors(m, e);
    if (rc == 0)
        rc = spread_read(&m->parts, m->path, e);
    return rc < 0 ? rc : add_expert_files(o, e);
}

static int open_plain(struct opening *o, struct moeflux_err *e)
{
    struct model_dir *m = o->m;
    struct quant_config q = {0};
    int rc = read_config(o, e);
    if (rc == 0)
        rc = quant_config_read(&q, o->config, o->layout.config, e);
    if (rc < 0)
        return rc;
    if (q.mxfp4_experts)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: the experts are mxfp4, but with the gates' and the up rows in turn; run `moeflux "
                       "convert` first",
                       m->path);
    if (!q.block)
        return err_set(e, ERR_UNSUPPORTED, "%s: the experts are not quantised%s; run `moeflux convert` first",
                       m->path, q.fp8.rows ? " to MLX's codes" : "");
    rc = checkpoint_open(m, &q, e);
    if (rc == 0)
        rc = check_tensors(m, e);
    if (rc == 0 && checkpoint_is_hugging_face(m))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: quantised, but the norms are still as in a Hugging Face checkpoint", m->path);
    return rc < 0 ? rc : expert_places_from_stacks(m, e);
}

static void count_dense_bytes(struct model_dir *m)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        m->dense_bytes += m->tensors[i].bytes;
    if (!m->packed)
        m->dense_bytes -= m->expert_bytes;
}

int model_dir_open(struct model_dir *m, const char *path, struct moeflux_err *e)
{
    *m = (struct model_dir){.parts.spread.n_parts = 1};
    struct opening o = {.m = m};
    m->path = mem_text(path, e);
    int rc = m->path ? layout_find(&o.layout, path, e) : ERR_MEMORY;
    if (rc == 0) {
        m->packed = o.layout.packed;
        rc = m->packed ? open_packed(&o, e) : open_plain(&o, e);
    }
    if (rc == 0) {
        count_dense_bytes(m);
        m->tokenizer_path = o.layout.tokenizer;
        o.layout.tokenizer = NULL;
    }
    layout_free(&o.layout);
    json_decref(o.config);
    json_decref(o.manifest);
    if (rc < 0)
        model_dir_close(m);
    return rc;
}

void model_dir_close(struct model_dir *m)
{
    struct tensor_list tensors = {m->tensors, m->n_tensors, m->n_tensors};
    tensor_list_free(&tensors);
    model_file_close_all(m->files, m->n_files);
    config_free(&m->config);
    spread_free(&m->parts);
    free(m->places);
    free(m->experts);
    free(m->tokenizer_path);
    free(m->path);
    *m = (struct model_dir){0};
}

/* --- looking up --- */

const struct tensor *model_dir_find(const struct model_dir *m, const char *name)
{
    return tensor_find(m->tensors, m->n_tensors, name);
}

static int find_part(const struct model_dir *m, const char *base, const char *tail, const struct tensor **out,
                     struct moeflux_err *e)
{
    char name[256];
    int n = snprintf(name, sizeof name, "%s%s", base, tail);
    *out = n > 0 && (size_t)n < sizeof name ? model_dir_find(m, name) : NULL;
    if (*out)
        return 0;
    err_set(e, ERR_FORMAT, "%s: tensor %s%s is missing", m->path, base, tail);
    return ERR_FORMAT;
}

static int check_shape(const struct model_dir *m, const struct tensor *t, uint64_t rows, uint64_t cols,
                       struct moeflux_err *e)
{
    if (t->n_dims >= 2 && tensor_rows(t) == rows && tensor_cols(t) == cols)
        return 0;
    char found[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, found);
    return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s, expected [%" PRIu64 ", %" PRIu64 "]",
                   m->files[t->file].path, t->name, found, rows, cols);
}

static int fail_dtype(const struct model_dir *m, const struct tensor *t, const char *expected,
                      struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tensor %s: %s, expected %s", m->files[t->file].path, t->name,
                   tensor_dtype_name(t->dtype), expected);
}

static bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F32 || dtype == DTYPE_GGUF;
}

static int quantised_matrix(const struct model_dir *m, const char *base, struct matrix *out,
                            struct moeflux_err *e)
{
    const struct tensor *w = out->weight;
    const struct format *f = format_of(out->format = w->format);
    int rc = find_part(m, base, ".scales", &out->scales, e);
    if (rc == 0 && f->has_bias)
        rc = find_part(m, base, ".biases", &out->biases, e);
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
    if (!is_float(out->weight->dtype))
        return fail_dtype(m, out->weight, "U32, BF16, F16 or F32", e);
    out->format = out->weight->dtype == DTYPE_BF16   ? FORMAT_BF16
                  : out->weight->dtype == DTYPE_F16  ? FORMAT_F16
                  : out->weight->dtype == DTYPE_GGUF ? out->weight->format
                                                     : FORMAT_F32;
    return check_shape(m, out->weight, rows, cols, e);
}

int model_dir_vector(const struct model_dir *m, const char *name, uint64_t n, const struct tensor **out,
                     struct moeflux_err *e)
{
    int rc = find_part(m, name, "", out, e);
    if (rc < 0)
        return rc;
    const struct tensor *t = *out;
    if (!is_float(t->dtype))
        return fail_dtype(m, t, "BF16, F16 or F32", e);
    uint64_t found = t->bytes / tensor_dtype_bytes(t->dtype);
    if (found != n)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: %" PRIu64 " elements, expected %" PRIu64,
                       m->files[t->file].path, t->name, found, n);
    return 0;
}

/* --- contents --- */

/* n bytes of scales or biases. */
static bool scales_are_finite(const struct format *f, const uint8_t *bytes, uint64_t n)
{
    if (f->scale == SCALE_BF16)
        return bf16_all_finite(bytes, n / 2);
    if (f->scale == SCALE_F16)
        return f16_all_finite(bytes, n / 2);
    if (f->scale == SCALE_F32)
        return float_all_finite(bytes, n / 4);
    uint8_t mask = f->scale == SCALE_E4M3 ? 0x7f : 0xff; /* NaN but for bits outside */
    bool bad = false;
    for (uint64_t i = 0; i < n; i++)
        bad |= (bytes[i] & mask) == mask;
    return !bad;
}

static int check_finite(const struct model_dir *m, const struct tensor *t, uint64_t from, uint64_t n,
                        const uint8_t *bytes, struct moeflux_err *e)
{
    if (t->format == FORMAT_NONE || t->dtype == DTYPE_U32)
        return 0;
    const struct format *f = format_of(t->format);
    uint64_t skip = (f->scale_bytes - from % f->scale_bytes) % f->scale_bytes; /* the rest of a number */
    if (n <= skip || scales_are_finite(f, bytes + skip, n - skip))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: a value is not finite", m->files[t->file].path, t->name);
}

int model_dir_read(const struct model_dir *m, const struct tensor *t, uint64_t from, uint64_t n, void *dst,
                   struct moeflux_err *e)
{
    const struct model_file *f = &m->files[t->file];
    if (from > t->bytes || n > t->bytes - from)
        return err_set(e, ERR_USAGE,
                       "%s: tensor %s: bytes %" PRIu64 " + %" PRIu64 " of %" PRIu64 " were asked for",
                       f->path, t->name, from, n, t->bytes);
    int rc = model_file_read(m->files, t, from, n, dst, e);
    return rc < 0 ? rc : check_finite(m, t, from, n, dst, e);
}

bool model_dir_check_bytes(const struct tensor *t, const uint8_t *bytes, uint64_t n)
{
    return t->format == FORMAT_NONE || scales_are_finite(format_of(t->format), bytes, n);
}

int model_dir_check_tensor(const struct model_dir *m, const struct tensor *t, const uint8_t *bytes,
                           struct moeflux_err *e)
{
    return check_finite(m, t, 0, t->bytes, bytes, e);
}

/* The values of 16 bits lie in the upper half of dst: ascending, a float never overwrites one that is still
 * to be read. */
static void widen_in_place(float *dst, uint64_t n, enum dtype dtype)
{
    const uint8_t *src = (const uint8_t *)dst + 2 * n;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, src + 2 * i, sizeof bits);
        dst[i] = dtype == DTYPE_BF16 ? bf16_to_float(bits) : f16_to_float(bits);
    }
}

int model_dir_read_f32(const struct model_dir *m, const struct tensor *t, float *dst, struct moeflux_err *e)
{
    if (!is_float(t->dtype))
        return fail_dtype(m, t, "BF16, F16 or F32", e);
    uint64_t n = t->bytes / tensor_dtype_bytes(t->dtype);
    uint64_t skip = t->dtype == DTYPE_F32 ? 0 : 2 * n;
    int rc = model_dir_read(m, t, 0, t->bytes, (uint8_t *)dst + skip, e);
    if (rc < 0)
        return rc;
    if (t->dtype != DTYPE_F32)
        widen_in_place(dst, n, t->dtype);
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(dst[i]))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: element %" PRIu64 " is not finite",
                           m->files[t->file].path, t->name, i);
    return 0;
}

/* --- experts --- */

uint32_t model_dir_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, struct extent *out)
{
    const struct expert_place *p = &m->places[layer];
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_runs; i++) {
        const struct expert_run *r = &p->runs[i];
        struct extent x = {r->file + (expert + i) % p->n_parts, r->off + expert * r->stride, r->bytes, r->at};
        struct extent *last = n ? &out[n - 1] : NULL;
        if (last && last->file == x.file && last->off + last->bytes == x.off &&
            last->at + last->bytes == x.at)
            last->bytes += x.bytes;
        else
            out[n++] = x;
    }
    return n;
}

int model_dir_read_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, uint64_t at, uint64_t n,
                          uint8_t *dst, struct moeflux_err *e)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    uint32_t n_extents = model_dir_expert(m, layer, expert, x);
    int rc = 0;
    for (uint32_t i = 0; i < n_extents && rc == 0; i++) {
        const struct model_file *f = &m->files[x[i].file];
        uint64_t from = size_max(at, x[i].at), to = size_min(at + n, x[i].at + x[i].bytes);
        if (from < to)
            rc = file_read_at(f->fd, f->path, dst + (from - at), to - from, x[i].off + (from - x[i].at), e);
    }
    return rc;
}

int model_dir_check_expert_part(const struct model_dir *m, uint32_t layer, uint32_t expert,
                                const uint8_t *slot, uint64_t from, uint64_t to, struct moeflux_err *e)
{
    const struct expert_layout *l = &m->experts[layer];
    const struct format *gate = format_of(l->formats.gate), *up = format_of(l->formats.up),
                        *down = format_of(l->formats.down);
    const struct {
        const char *name;
        const struct format *format;
        uint64_t from, to;
    } parts[] = {
        {"gate_proj.scales", gate, l->gate_s, l->gate_b}, {"gate_proj.biases", gate, l->gate_b, l->up_w},
        {"up_proj.scales", up, l->up_s, l->up_b},         {"up_proj.biases", up, l->up_b, l->down_w},
        {"down_proj.scales", down, l->down_s, l->down_b}, {"down_proj.biases", down, l->down_b, l->bytes},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t first = size_max(from, parts[i].from), end = size_min(to, parts[i].to);
        if (first < end && !scales_are_finite(parts[i].format, slot + first, end - first))
            return err_set(e, ERR_FORMAT, "%s: layer %u expert %u: %s: a value is not finite", m->path, layer,
                           expert, parts[i].name);
    }
    return 0;
}

int model_dir_check_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, const uint8_t *slot,
                           struct moeflux_err *e)
{
    return model_dir_check_expert_part(m, layer, expert, slot, 0, m->experts[layer].bytes, e);
}
