#include "model/model_dir_read.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/mem.h"
#include "model/checkpoint.h"
#include "model/expert_places.h"
#include "model/extent_rule.h"
#include "model/model_dir_find.h"
#include "model/model_file.h"
#include "model/part_tensors.h"
#include "model/schema.h"
#include "model/tensor.h"

/* Returns the SCALE_* of a tensor of scales, of biases, or with a factor. */
static uint32_t scale_type(const struct tensor *t)
{
    const struct format *f = format_of(t->format);
    return f->has_factor && t->dtype == DTYPE_F32 ? SCALE_F32 : f->scale;
}

static int check_finite(const struct model_dir *m, const struct tensor *t, uint64_t from, uint64_t n,
                        const uint8_t *bytes, struct moeflux_err *e)
{
    if (t->format == FORMAT_NONE || t->dtype == DTYPE_U32 || t->dtype == DTYPE_BLOCKS)
        return 0;
    const struct format *f = format_of(t->format);
    uint64_t skip = (f->scale_bytes - from % f->scale_bytes) % f->scale_bytes; /* the rest of a cut number */
    if (n <= skip || format_scales_are_finite(scale_type(t), bytes + skip, n - skip))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: a value is not finite", m->files[t->file].path,
                   tensor_label(t));
}

int model_dir_read(const struct model_dir *m, const struct tensor *t, uint64_t from, uint64_t n, void *dst,
                   struct moeflux_err *e)
{
    const struct open_file *f = &m->files[t->file];
    if (from > t->bytes || n > t->bytes - from)
        return err_set(e, ERR_USAGE,
                       "%s: tensor %s: bytes %" PRIu64 " + %" PRIu64 " of %" PRIu64 " were asked for",
                       f->path, tensor_label(t), from, n, t->bytes);
    int rc = model_file_read(m->files, t, from, n, dst, e);
    return rc < 0 ? rc : check_finite(m, t, from, n, dst, e);
}

bool model_dir_check_bytes(const struct tensor *t, const uint8_t *bytes, uint64_t n)
{
    return t->format == FORMAT_NONE || t->dtype == DTYPE_BLOCKS ||
           format_scales_are_finite(scale_type(t), bytes, n);
}

int model_dir_check_tensor(const struct model_dir *m, const struct tensor *t, const uint8_t *bytes,
                           struct moeflux_err *e)
{
    return check_finite(m, t, 0, t->bytes, bytes, e);
}

/* Widens 16-bit values in the upper half of dst to floats. Going upwards, no float overwrites a value that is
 * still to be read. */
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
    if (!tensor_is_float(t->dtype))
        return tensor_fail_dtype(t, "BF16, F16 or F32", m->files[t->file].path, e);
    uint64_t n = t->bytes / tensor_dtype_bytes(t->dtype);
    uint64_t skip = t->dtype == DTYPE_F32 ? 0 : 2 * n;
    int rc = model_dir_read(m, t, 0, t->bytes, (uint8_t *)dst + skip, e);
    if (rc < 0)
        return rc;
    if (t->dtype != DTYPE_F32)
        widen_in_place(dst, n, t->dtype);
    tensor_apply_change(t->change, dst, n);
    float add = checkpoint_is_less_one(m, t->name) ? 1 : 0;
    for (uint64_t i = 0; add != 0 && i < n; i++)
        dst[i] += add;
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(dst[i]))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: element %" PRIu64 " is not finite",
                           m->files[t->file].path, tensor_label(t), i);
    return 0;
}

int model_dir_read_vector(const struct model_dir *m, uint32_t layer, const struct part_tensor *t, float *dst,
                          struct moeflux_err *e)
{
    char name[SCHEMA_NAME];
    const struct tensor *at;
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, t->name);
    int rc = model_dir_vector(m, name, t->cols, &at, e);
    return rc < 0 ? rc : model_dir_read_f32(m, at, dst, e);
}

/* Returns the place of the first of a row's experts that does not exist or is there twice; n: there is
 * none. */
static uint32_t find_wrong(const uint32_t *row, uint32_t n, uint32_t n_experts)
{
    for (uint32_t i = 0; i < n; i++) {
        bool is_there = row[i] >= n_experts;
        for (uint32_t k = 0; k < i; k++)
            is_there |= row[k] == row[i];
        if (is_there)
            return i;
    }
    return n;
}

int model_dir_read_ids(const struct model_dir *m, const struct tensor *t, uint32_t row, uint32_t n_experts,
                       uint32_t *dst, struct moeflux_err *e)
{
    uint64_t n = t->bytes / tensor_dtype_bytes(t->dtype);
    int rc = model_dir_read(m, t, 0, t->bytes, dst, e);
    for (uint64_t i = 0; rc == 0 && t->dtype == DTYPE_I64 && i < n; i++) {
        int64_t id;
        memcpy(&id, (const uint8_t *)dst + i * sizeof id, sizeof id);
        dst[i] = id >= 0 && id < UINT32_MAX ? (uint32_t)id : UINT32_MAX;
    }
    for (uint64_t i = 0; rc == 0 && row > 0 && i < n; i += row) {
        uint32_t wrong = find_wrong(dst + i, row, n_experts);
        if (wrong < row)
            rc =
                err_set(e, ERR_FORMAT,
                        "%s: tensor %s: row %" PRIu64 ": expert %" PRId32
                        " is there twice, or is none of the %" PRIu32,
                        m->files[t->file].path, tensor_label(t), i / row, (int32_t)dst[i + wrong], n_experts);
    }
    return rc;
}

/* --- experts --- */

uint32_t model_dir_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, struct extent *out)
{
    const struct expert_place *p = &m->places[layer];
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_runs; i++) {
        const struct expert_run *r = &p->runs[i];
        const struct extent_rule *rule = p->rules[i].change == EXTENT_SAME ? NULL : &p->rules[i];
        struct extent x = {
            r->file + (expert + i) % p->n_parts, r->off + expert * r->stride, r->bytes, r->at, rule, 0, {0}};
        if (p->spots[i]) {
            x.file = p->spots[i][expert].file;
            x.off = p->spots[i][expert].off;
            x.factor = p->spots[i][expert].factor;
        }
        struct extent *last = n ? &out[n - 1] : NULL;
        if (last && !rule && !last->rule && last->file == x.file && last->off + last->bytes == x.off &&
            last->at + last->bytes == x.at)
            last->bytes += x.bytes;
        else
            out[n++] = x;
    }
    return n;
}

/* Reads extents with a rule to a whole slot, and of it bytes [at, at + n) to dst. */
static int read_by_rules(const struct model_dir *m, const struct extent *x, uint32_t n_extents,
                         const struct expert_layout *l, uint64_t at, uint64_t n, uint8_t *dst,
                         struct moeflux_err *e)
{
    uint8_t *slot = mem_new(l->bytes, 1, e);
    int rc = slot ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; i < n_extents && rc == 0; i++) {
        const struct open_file *f = &m->files[x[i].file];
        const struct extent_rule *r = x[i].rule;
        if (!r || r->at >= at + n || r->end <= at)
            continue;
        uint8_t *bytes = mem_new(x[i].bytes, 1, e);
        rc = bytes ? file_read_at(f->fd, f->path, bytes, x[i].bytes, x[i].off, e) : ERR_MEMORY;
        if (rc == 0 && !extent_rule_place(r, &x[i].factor, 0, bytes, x[i].bytes, slot))
            rc = err_set(e, ERR_FORMAT, "%s: a scale at offset %" PRIu64 " is not finite", f->path, x[i].off);
        free(bytes);
        uint64_t from = size_max(at, r->at), to = size_min(at + n, r->end);
        if (rc == 0)
            memcpy(dst + (from - at), slot + from, to - from);
    }
    free(slot);
    return rc;
}

int model_dir_read_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, uint64_t at, uint64_t n,
                          uint8_t *dst, struct moeflux_err *e)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    uint32_t n_extents = model_dir_expert(m, layer, expert, x);
    int rc = m->has_rules ? read_by_rules(m, x, n_extents, &m->experts[layer], at, n, dst, e) : 0;
    for (uint32_t i = 0; i < n_extents && rc == 0; i++) {
        const struct open_file *f = &m->files[x[i].file];
        uint64_t from = size_max(at, x[i].at), to = size_min(at + n, x[i].at + x[i].bytes);
        if (from < to && !x[i].rule)
            rc = file_read_at(f->fd, f->path, dst + (from - at), to - from, x[i].off + (from - x[i].at), e);
    }
    return rc;
}

int model_dir_check_expert_part(const struct model_dir *m, uint32_t layer, uint32_t expert,
                                const uint8_t *slot, uint64_t from, uint64_t to, struct moeflux_err *e)
{
    const struct expert_layout *l = &m->experts[layer];
    uint64_t n = (uint64_t)m->config.moe_inner * config_expert_hidden(&m->config);
    const struct format *gate = format_of(l->formats.gate), *up = format_of(l->formats.up),
                        *down = format_of(l->formats.down);
    const struct {
        const char *name;
        const struct format *format;
        uint64_t at, bytes;
    } parts[] = {
        {"gate_proj.scales", gate, l->gate_s, format_scale_bytes(gate, n)},
        {"gate_proj.biases", gate, l->gate_b, format_bias_bytes(gate, n)},
        {"up_proj.scales", up, l->up_s, format_scale_bytes(up, n)},
        {"up_proj.biases", up, l->up_b, format_bias_bytes(up, n)},
        {"down_proj.scales", down, l->down_s, format_scale_bytes(down, n)},
        {"down_proj.biases", down, l->down_b, format_bias_bytes(down, n)},
    };
    enum { OF_UP = 2 };
    for (size_t i = m->config.gateless ? OF_UP : 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t first = size_max(from, parts[i].at), end = size_min(to, parts[i].at + parts[i].bytes);
        bool is_factor = i % 2 && parts[i].format->has_factor;
        uint32_t scale = is_factor ? SCALE_F32 : parts[i].format->scale;
        if (first < end && !format_scales_are_finite(scale, slot + first, end - first))
            return err_set(e, ERR_FORMAT, "%s: layer %u expert %u: %s: a value is not finite", m->path, layer,
                           expert, is_factor ? "a factor of scales" : parts[i].name);
    }
    return 0;
}

int model_dir_check_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, const uint8_t *slot,
                           struct moeflux_err *e)
{
    return model_dir_check_expert_part(m, layer, expert, slot, 0, m->experts[layer].bytes, e);
}
