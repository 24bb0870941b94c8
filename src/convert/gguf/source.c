#include "convert/gguf/source.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/str.h"
#include "base/err.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/format.h"
#include "base/format_blocks.h"
#include "base/ggml_type.h"
#include "base/mem.h"
#include "model/gguf/config.h"
#include "model/gguf/names.h"
#include "model/gguf/tensors.h"
#include "model/drafter.h"
#include "model/family.h"
#include "model/fused.h"
#include "convert/gguf/blocks.h"
#include "model/model_file.h"
#include "model/names.h"
#include "model/nvfp4.h"
#include "model/tensor.h"

/* Order of the value heads: unit v * groups + k of the file is our unit k * per + v. Units are rows or
 * columns, beginning at `first`. */
struct head_order {
    uint64_t first, unit;
    uint64_t groups, per; /* groups 0: the order is the same */
};

struct gguf_place {
    const struct gguf_tensor *tensor;
    const struct ggml_type *blocks;
    const struct gguf_type *type;
    struct head_order rows, cols;
    enum tensor_change change; /* decays, of which the file stores exponentials */
    float *factors;            /* [n_matrices], a factor of each NVFP4 matrix; NULL: none */
    uint64_t n_matrices;
};

/* --- opening --- */

static const struct gguf_place *place_of(const struct gguf_source *s, const struct tensor *t)
{
    return &s->places[t->off];
}

/* Sets the order of tensors in Qwen3.5's delta net whose value heads the file has in another order. */
static void find_order(struct gguf_place *p, const struct config *c, const char *name)
{
    const struct delta_config *d = &config_first(c, PART_DELTA_NET)->delta;
    struct head_order heads = {.unit = d->v_head_dim, .groups = d->n_k_heads};
    uint64_t before = 2ull * d->n_k_heads * d->k_head_dim;
    const char *part = strstr(name, ".linear_attn.");
    if (!part || !gguf_config_tiles_heads(c) || !d->n_k_heads)
        return;
    part += strlen(".linear_attn.");
    heads.per = d->n_v_heads / d->n_k_heads;
    if (!strcmp(part, "in_proj_z.weight")) {
        p->rows = heads;
    } else if (!strcmp(part, "in_proj_qkv.weight") || !strcmp(part, "conv1d.weight")) {
        p->rows = heads;
        p->rows.first = before;
    } else if (!strcmp(part, "in_proj_a.weight") || !strcmp(part, "in_proj_b.weight") ||
               !strcmp(part, "A_log") || !strcmp(part, "dt_bias")) {
        p->rows = heads;
        p->rows.unit = 1;
    } else if (!strcmp(part, "out_proj.weight")) {
        p->cols = heads;
    }
}

/* Checks that the head order divides the shape, so that no place is outside. */
static int check_order(const struct gguf_source *s, const struct tensor *t, struct moeflux_err *e)
{
    const struct gguf_place *p = place_of(s, t);
    const struct head_order *o = p->rows.groups ? &p->rows : &p->cols;
    uint64_t n = p->rows.groups ? p->tensor->shape[1] : p->tensor->shape[0];
    if (p->rows.groups && p->tensor->n_dims == 1)
        n = p->tensor->shape[0];
    if (!o->groups || n == o->first + o->unit * o->groups * o->per)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: %" PRIu64 " %s, expected %" PRIu64,
                   s->file.files[p->tensor->file].path, p->tensor->name, n,
                   p->rows.groups ? "rows" : "columns", o->first + o->unit * o->groups * o->per);
}

/* Returns the factor of a tensor's matrix; NULL: it has none. */
static const struct tensor *factor_of(const struct tensor_list *l, const struct tensor *t)
{
    char name[GGUF_NAMES_LENGTH];
    if (!str_ends_with(t->name, ".weight"))
        return NULL;
    snprintf(name, sizeof name, "%.*s.global_scale", (int)(strlen(t->name) - strlen(".weight")), t->name);
    size_t i = 0;
    while (i < l->n && strcmp(l->items[i].name, name) != 0)
        i++;
    return i < l->n ? &l->items[i] : NULL;
}

/* Reads the factors of NVFP4 matrices. t: as the file has it. */
static int read_factors(struct gguf_source *s, const struct tensor_list *l, const struct tensor *t,
                        struct gguf_place *p, struct moeflux_err *e)
{
    const struct tensor *f = t->format == FORMAT_G_NVFP4 ? factor_of(l, t) : NULL;
    if (!f)
        return 0;
    const char *path = s->file.files[f->file].path;
    p->n_matrices = t->n_dims == 3 ? t->shape[0] : 1;
    int rc = nvfp4_check_factors(f, p->n_matrices, path, e);
    if (rc < 0)
        return rc;
    p->factors = mem_new(p->n_matrices, sizeof *p->factors, e);
    rc = p->factors ? model_file_read(s->file.files, f, 0, f->bytes, p->factors, e) : ERR_MEMORY;
    for (uint64_t i = 0; rc == 0 && i < p->n_matrices; i++)
        rc = nvfp4_check_factor(f, p->factors[i], path, e);
    return rc;
}

/* Counts the tensor as float32 and notes where it is, unless it is whole numbers or factors. */
static int add_place(struct gguf_source *s, const struct config *c, const struct gguf_tensor *from,
                     const struct tensor_list *l, struct tensor *t, struct moeflux_err *e)
{
    struct gguf_place *p = &s->places[s->n_places];
    const struct ggml_type *blocks = ggml_type_find(from->type);
    if (t->dtype == DTYPE_I32 || str_ends_with(t->name, ".global_scale")) /* bytes are read as they lie */
        return 0;
    *p = (struct gguf_place){
        .tensor = from, .blocks = blocks, .type = gguf_type_find(blocks->format), .change = t->change};
    if (!s->keeps_blocks)
        find_order(p, c, t->name);
    int rc = read_factors(s, l, t, p, e);
    t->dtype = DTYPE_GGUF;
    t->format = FORMAT_NONE;
    t->change = TENSOR_AS_IS;
    t->off = s->n_places++;
    t->bytes = sizeof(float);
    for (uint32_t i = 0; i < t->n_dims; i++)
        t->bytes *= t->shape[i];
    return rc < 0 ? rc : check_order(s, t, e);
}

static int add_tensors(struct gguf_source *s, struct model_dir *m, struct tensor_list *l,
                       struct moeflux_err *e)
{
    const struct gguf *g = &s->file;
    const struct gguf_tensor **from = mem_new(g->n_tensors, sizeof *from, e);
    s->places = mem_new(g->n_tensors, sizeof *s->places, e);
    int rc = s->places && from ? gguf_tensors_list(g, &m->config, l, from, &m->n_left_out, e) : ERR_MEMORY;
    for (size_t i = 0; rc == 0 && i < l->n; i++)
        rc = add_place(s, &m->config, from[i], l, &l->items[i], e);
    free(from);
    if (rc == 0 && m->is_drafter)
        rc = drafter_split(l, m->path, e);
    if (rc == 0)
        rc = fused_split(l, m->config.family->fused, &m->config, 0, m->path, e);
    return rc < 0 ? rc : tensor_list_sort(l, m->path, e);
}

int gguf_source_open(struct gguf_source *s, struct model_dir *m, struct moeflux_err *e)
{
    struct tensor_list l = {0};
    int rc = add_tensors(s, m, &l, e);
    if (rc < 0) {
        tensor_list_free(&l);
        return rc;
    }
    m->files = s->file.files; /* lent until gguf_source_close */
    m->n_files = s->file.n_files;
    m->tensors = l.items;
    m->n_tensors = l.n;
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].dtype == DTYPE_GGUF)
            m->tensors[i].format = gguf_source_format(s, &m->tensors[i]);
    return 0;
}

void gguf_source_close(struct gguf_source *s, struct model_dir *m)
{
    if (m->files == s->file.files) {
        m->files = NULL;
        m->n_files = 0;
    }
    gguf_close(&s->file);
    for (size_t i = 0; i < s->n_places; i++)
        free(s->places[i].factors);
    free(s->places);
    *s = (struct gguf_source){0};
}

/* --- formats --- */

/* Returns whether reordering keeps groups of so many columns together. */
static bool keeps_groups(const struct gguf_place *p, uint64_t cols)
{
    return p->cols.groups == 0 || p->cols.unit % cols == 0;
}

bool gguf_source_holds(const struct gguf_source *s, const struct tensor *t, uint32_t format)
{
    const struct gguf_place *p = place_of(s, t);
    const struct format *f = format_of(format);
    if (format == FORMAT_NVFP4_FACTOR)
        return p->factors && keeps_groups(p, p->blocks->block);
    if (p->type->bits == 0 || !keeps_groups(p, GGUF_GROUP))
        return false;
    if (format == FORMAT_MXFP4)
        return p->type->format == FORMAT_G_MXFP4;
    bool fits =
        f->scale == SCALE_F32 || f->scale == p->type->scale || (s->rounds_scales && f->scale == SCALE_F16);
    return f->scheme == SCHEME_AFFINE && f->group == GGUF_GROUP && f->bits >= p->type->bits && fits;
}

static uint32_t lossy_format(uint32_t bits)
{
    return format_find_affine(bits, GGUF_GROUP, SCALE_BF16);
}

static uint32_t own_format(const struct gguf_source *s, const struct tensor *t)
{
    const struct gguf_place *p = place_of(s, t);
    uint32_t scale = s->rounds_scales && p->type->bits ? SCALE_F16 : p->type->scale;
    uint32_t exact = p->type->format == FORMAT_G_MXFP4 ? FORMAT_MXFP4
                     : p->factors                      ? FORMAT_NVFP4_FACTOR
                                                       : format_find_affine(p->type->bits, GGUF_GROUP, scale);
    return exact != FORMAT_NONE && gguf_source_holds(s, t, exact) ? exact : lossy_format(p->type->instead);
}

/* Returns whether the tensor is blocks and stays so. */
static bool is_kept(const struct gguf_source *s, const struct tensor *t)
{
    const struct ggml_type *blocks = place_of(s, t)->blocks;
    return s->keeps_blocks && format_is_block(blocks->format) && blocks->format != FORMAT_G_MXFP4 &&
           !place_of(s, t)->factors;
}

uint32_t gguf_source_format(const struct gguf_source *s, const struct tensor *t)
{
    const struct ggml_type *blocks = place_of(s, t)->blocks;
    return blocks->block == 1 || is_kept(s, t) ? blocks->format : own_format(s, t);
}

uint32_t gguf_source_expert_format(const struct gguf_source *s, const struct tensor *a,
                                   const struct tensor *b)
{
    const struct gguf_type *x = place_of(s, a)->type, *y = place_of(s, b)->type;
    if (s->keeps_blocks && place_of(s, a)->blocks->block > 1 && place_of(s, b)->blocks->block > 1)
        return gguf_source_format(s, a);
    uint32_t bits = (uint32_t)size_max(x->bits, y->bits);
    uint32_t both[] = {own_format(s, a), own_format(s, b), format_find_affine(bits, GGUF_GROUP, SCALE_F16),
                       format_find_affine(bits, GGUF_GROUP, SCALE_F32)};
    for (size_t i = 0; i < sizeof both / sizeof *both; i++)
        if (both[i] != FORMAT_NONE && gguf_source_holds(s, a, both[i]) && gguf_source_holds(s, b, both[i]))
            return both[i];
    return lossy_format((uint32_t)size_max(x->instead, y->instead));
}

/* --- reading --- */

/* Returns where our number `at` is in the file's tensor. *n is reduced to the numbers that are contiguous
 * there. */
static uint64_t find(const struct tensor *t, const struct gguf_place *p, uint64_t at, uint64_t *n)
{
    const struct head_order *o = p->rows.groups ? &p->rows : &p->cols;
    uint64_t width = p->rows.groups ? (p->tensor->n_dims > 1 ? p->tensor->shape[0] : 1) : 1;
    if (t->pieces.n_runs) {
        uint64_t bytes, later, from = model_file_find_piece(&t->pieces, at * sizeof(float), &bytes, &later);
        *n = size_min(*n, bytes / sizeof(float));
        return from / sizeof(float);
    }
    if (!o->groups)
        return at;
    /* Units are reordered within `length` numbers: all rows, or the columns of one row. */
    uint64_t length = p->rows.groups ? UINT64_MAX : p->tensor->shape[0];
    uint64_t line = at / length * length, in_line = at - line, first = o->first * width;
    if (in_line < first) {
        *n = size_min(*n, first - in_line);
        return at;
    }
    uint64_t unit = o->unit * width, number = (in_line - first) / unit, in_unit = (in_line - first) % unit;
    *n = size_min(*n, unit - in_unit);
    return line + first + (number % o->per * o->groups + number / o->per) * unit + in_unit;
}

/* Bytes of whole blocks that one read fetches. */
enum { CHUNK_BYTES = 1 << 16 };

/* Uses n numbers of a block, beginning at `from`. */
typedef int (*use_fn)(void *ctx, const struct gguf_place *p, const uint8_t *block, uint64_t from, uint64_t n,
                      struct moeflux_err *e);

/* Calls a use_fn for numbers [at, at + n) of the file's tensor, block by block. */
static int walk_file(const struct gguf_source *s, const struct gguf_place *p, uint64_t at, uint64_t n,
                     use_fn use, void *ctx, struct moeflux_err *e)
{
    const struct gguf_tensor *t = p->tensor;
    const struct open_file *f = &s->file.files[t->file];
    uint64_t block = p->blocks->block, bytes = p->blocks->bytes, end = at + n;
    uint8_t chunk[CHUNK_BYTES];
    int rc = 0;
    while (rc == 0 && at < end) {
        uint64_t first = at / block, some = size_min((end + block - 1) / block - first, CHUNK_BYTES / bytes);
        rc = file_read_at(f->fd, f->path, chunk, some * bytes, t->off + first * bytes, e);
        for (uint64_t i = 0; rc == 0 && i < some; i++) {
            uint64_t from = at % block, here = size_min(block - from, end - at);
            rc = use(ctx, p, chunk + i * bytes, from, here, e);
            at += here;
        }
    }
    return rc;
}

static int walk(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n, use_fn use,
                void *ctx, struct moeflux_err *e)
{
    const struct gguf_place *p = place_of(s, t);
    int rc = 0;
    for (uint64_t done = 0, some; rc == 0 && done < n; done += some) {
        some = n - done;
        uint64_t at = find(t, p, first + done, &some);
        rc = walk_file(s, p, at, some, use, ctx, e);
    }
    return rc;
}

static int add_numbers(void *ctx, const struct gguf_place *p, const uint8_t *block, uint64_t from, uint64_t n,
                       struct moeflux_err *e)
{
    float all[FORMAT_MAX_BLOCK], **out = ctx;
    (void)e;
    format_decode(format_of(p->blocks->format), block, NULL, NULL, 0, p->blocks->block, all);
    memcpy(*out, all + from, n * sizeof *all);
    *out += n;
    return 0;
}

float gguf_source_factor(const struct gguf_source *s, const struct tensor *t, uint64_t at)
{
    const struct gguf_place *p = place_of(s, t);
    uint64_t of_each = p->tensor->shape[0] * p->tensor->shape[1];
    return p->n_matrices > 1 ? p->factors[at / of_each] : p->factors[0];
}

int gguf_source_read(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                     float *out, struct moeflux_err *e)
{
    float *end = out;
    int rc = walk(s, t, first, n, add_numbers, &end, e);
    for (uint64_t i = 0; rc == 0 && place_of(s, t)->factors && i < n; i++)
        out[i] *= gguf_source_factor(s, t, first + i);
    if (rc == 0)
        tensor_apply_change(place_of(s, t)->change, out, n);
    return rc;
}

#define MAX_HALF 65504.0f

/* State of writing codes. */
struct writing {
    const struct gguf_source *source;
    const struct format *format;
    uint8_t *codes, *scales, *biases;
    struct convert_error *sum; /* NULL: not measured */
};

static int fail_scale(const struct writing *w, const struct gguf_place *p, float x, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tensor %s: a scale or bias of %g, which %s cannot hold",
                   w->source->file.files[p->tensor->file].path, p->tensor->name, (double)x, w->format->name);
}

/* Adds the errors of a group whose scale and bias are rounded to float16. */
static void measure(const struct gguf_group *g, const struct format *f, struct convert_error *sum)
{
    float scale = f16_to_float(f16_from_float(g->scale)), bias = f16_to_float(f16_from_float(g->bias));
    struct convert_error x = {.weights = GGUF_GROUP, .bits = 8 * format_all_bytes(f, GGUF_GROUP)};
    for (int i = 0; i < GGUF_GROUP; i++) {
        double was = (double)((float)g->codes[i] * g->scale + g->bias);
        double lost = (double)((float)g->codes[i] * scale + bias) - was;
        x.squares += was * was;
        x.stored += lost * lost;
    }
    x.minmax = x.stored;
    convert_error_add(sum, &x);
}

/* Writes a scale: exactly, or rounded if that is allowed; else fails. */
static int put_scale(const struct writing *w, const struct gguf_place *p, uint8_t **to, float x,
                     struct moeflux_err *e)
{
    uint16_t half = f16_from_float(x);
    bool is_half = w->format->scale == SCALE_F16, rounds = p->type->scale != SCALE_F16;
    bool fits = rounds ? fabsf(x) <= MAX_HALF : f16_to_float(half) == x;
    if (!isfinite(x) || (is_half && !fits))
        return fail_scale(w, p, x, e);
    if (is_half)
        memcpy(*to, &half, sizeof half);
    else
        memcpy(*to, &x, sizeof x);
    *to += w->format->scale_bytes;
    return 0;
}

/* 8 codes are `bits` bytes. */
static void put_codes(struct writing *w, const uint8_t codes[GGUF_GROUP])
{
    uint32_t bits = w->format->bits;
    for (uint32_t i = 0; i < GGUF_GROUP; i += 8) {
        uint64_t eight = 0;
        for (uint32_t k = 0; k < 8; k++)
            eight |= (uint64_t)codes[i + k] << (k * bits);
        for (uint32_t k = 0; k < bits; k++)
            *w->codes++ = (uint8_t)(eight >> (8 * k));
    }
}

static int add_groups(void *ctx, const struct gguf_place *p, const uint8_t *block, uint64_t from, uint64_t n,
                      struct moeflux_err *e)
{
    struct writing *w = ctx;
    struct gguf_group all[FORMAT_MAX_BLOCK / GGUF_GROUP];
    int rc = 0;
    if (w->format == format_of(FORMAT_MXFP4)) {
        gguf_mxfp4(block, w->codes, w->scales);
        w->codes += GGUF_GROUP / 2;
        return isfinite(e8m0_to_float(*w->scales++)) ? 0 : fail_scale(w, p, NAN, e);
    }
    if (w->format == format_of(FORMAT_NVFP4_FACTOR)) {
        assert(from == 0 && n == p->blocks->block);
        nvfp4_split(block, 0, NVFP4_BLOCK_BYTES, w->codes, w->scales);
        bool is_finite = format_scales_are_finite(w->format->scale, w->scales, NVFP4_BLOCK_SCALES);
        w->codes += NVFP4_BLOCK_CODES;
        w->scales += NVFP4_BLOCK_SCALES;
        return is_finite ? 0 : fail_scale(w, p, NAN, e);
    }
    gguf_type_groups(p->type, block, all);
    bool rounds = w->format->scale == SCALE_F16 && p->type->scale != SCALE_F16;
    for (uint64_t i = from / GGUF_GROUP; rc == 0 && i < (from + n) / GGUF_GROUP; i++) {
        if (rounds && w->sum)
            measure(&all[i], w->format, w->sum);
        put_codes(w, all[i].codes);
        rc = put_scale(w, p, &w->scales, all[i].scale, e);
        if (rc == 0)
            rc = put_scale(w, p, &w->biases, all[i].bias, e);
    }
    return rc;
}

int gguf_source_codes(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                      uint32_t format, const struct convert_codes *out, struct convert_error *sum,
                      struct moeflux_err *e)
{
    struct writing w = {s, format_of(format), out->codes, out->scales, out->biases, sum};
    return walk(s, t, first, n, add_groups, &w, e);
}

static int add_block(void *ctx, const struct gguf_place *p, const uint8_t *block, uint64_t from, uint64_t n,
                     struct moeflux_err *e)
{
    uint8_t **out = ctx;
    (void)e;
    assert(from == 0 && n == p->blocks->block);
    memcpy(*out, block, p->blocks->bytes);
    *out += p->blocks->bytes;
    return 0;
}

int gguf_source_blocks(const struct gguf_source *s, const struct tensor *t, uint64_t first, uint64_t n,
                       uint8_t *out, struct moeflux_err *e)
{
    return walk(s, t, first, n, add_block, &out, e);
}

uint64_t gguf_source_bytes(const struct gguf_source *s, const struct tensor *t, uint64_t n)
{
    const struct ggml_type *blocks = place_of(s, t)->blocks;
    return n / blocks->block * blocks->bytes;
}

const char *gguf_source_type(const struct gguf_source *s, const struct tensor *t)
{
    return place_of(s, t)->blocks->name;
}
