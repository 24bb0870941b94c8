#include "base/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/ggml_type.h"
#include "base/mem.h"
#include "base/quote.h"
#include "base/str.h"

/* Limits of lengths. Counts are bounded by the file's length, since an entry takes bytes of it. */
enum {
    MAX_KEY = 1 << 16,
    MAX_NAME = 256,
    MAX_ITEM = 1 << 16,
    MAX_SPLITS = 4096,
    READ_BYTES = 1 << 16,
    DEFAULT_ALIGN = 32
};
#define MAX_ALIGN ((uint64_t)1 << 20)
#define MAX_LIST  ((uint64_t)1 << 22) /* items of a list of numbers that is read whole */

/* --- a file, read from its beginning --- */

struct reading {
    struct gguf *g;
    uint32_t file;
    uint64_t at;      /* offset of the next byte */
    uint64_t from, n; /* the part of the file in `bytes`: first byte, length */
    uint8_t bytes[READ_BYTES];
};

static const struct open_file *file_of(const struct reading *r)
{
    return &r->g->files[r->file];
}

static int fail_end(const struct reading *r, const char *what, struct moeflux_err *e)
{
    const struct open_file *f = file_of(r);
    return err_set(e, ERR_FORMAT, "%s: ends inside %s (byte %" PRIu64 " of %" PRIu64 ")", f->path, what,
                   r->at, f->bytes);
}

static int skip(struct reading *r, uint64_t n, const char *what, struct moeflux_err *e)
{
    if (n > file_of(r)->bytes - r->at)
        return fail_end(r, what, e);
    r->at += n;
    return 0;
}

static int take(struct reading *r, void *dst, uint64_t n, const char *what, struct moeflux_err *e)
{
    const struct open_file *f = file_of(r);
    if (n > f->bytes - r->at)
        return fail_end(r, what, e);
    for (uint8_t *out = dst; n > 0;) {
        if (r->at < r->from || r->at >= r->from + r->n) {
            r->from = r->at;
            r->n = size_min(READ_BYTES, f->bytes - r->at);
            int rc = file_read_at(f->fd, f->path, r->bytes, r->n, r->from, e);
            if (rc < 0)
                return rc;
        }
        uint64_t some = size_min(n, r->from + r->n - r->at);
        memcpy(out, r->bytes + (r->at - r->from), some);
        out += some;
        n -= some;
        r->at += some;
    }
    return 0;
}

static int take_u32(struct reading *r, uint32_t *out, const char *what, struct moeflux_err *e)
{
    return take(r, out, sizeof *out, what, e);
}

static int take_u64(struct reading *r, uint64_t *out, const char *what, struct moeflux_err *e)
{
    return take(r, out, sizeof *out, what, e);
}

/* Reads a name into fresh memory. */
static int take_name(struct reading *r, uint64_t max, char **out, const char *what, struct moeflux_err *e)
{
    uint64_t n = 0;
    int rc = take_u64(r, &n, what, e);
    if (rc == 0 && (n == 0 || n > max))
        rc = err_set(e, ERR_FORMAT, "%s: %s: a name of %" PRIu64 " bytes, expected 1 to %" PRIu64,
                     file_of(r)->path, what, n, max);
    if (rc < 0)
        return rc;
    *out = mem_new(n + 1, 1, e);
    if (!*out)
        return ERR_MEMORY;
    rc = take(r, *out, n, what, e);
    if (rc == 0 && memchr(*out, 0, n))
        rc = err_set(e, ERR_FORMAT, "%s: %s: a name with a byte of 0", file_of(r)->path, what);
    return rc;
}

/* --- values --- */

static const uint8_t kind_bytes[GGUF_KINDS] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

/* Sets a number from its little-endian bytes. */
static void set_number(struct gguf_value *v, enum gguf_kind kind, const uint8_t *bytes)
{
    uint64_t word = 0;
    uint32_t bits = 8u * kind_bytes[kind];
    float real;
    for (uint32_t i = 0; i < kind_bytes[kind]; i++)
        word |= (uint64_t)bytes[i] << (8 * i);
    switch (kind) {
    case GGUF_F32:
        memcpy(&real, bytes, sizeof real);
        v->of.real = (double)real;
        break;
    case GGUF_F64:
        memcpy(&v->of.real, bytes, sizeof v->of.real);
        break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        v->of.signed_whole = (int64_t)(word << (64 - bits)) >> (64 - bits);
        break;
    default:
        v->of.whole = word;
    }
}

static int skip_list(struct reading *r, struct gguf_value *v, struct moeflux_err *e)
{
    uint32_t kind = 0;
    int rc = take_u32(r, &kind, v->key, e);
    if (rc == 0)
        rc = take_u64(r, &v->n, v->key, e);
    if (rc == 0 && (kind >= GGUF_KINDS || kind == GGUF_LIST))
        rc = err_set(e, ERR_FORMAT, "%s: key %s: a list of kind %" PRIu32 ", expected numbers or texts",
                     file_of(r)->path, v->key, kind);
    if (rc < 0)
        return rc;
    v->is_list = true;
    v->kind = (enum gguf_kind)kind;
    v->off = r->at;
    if (v->kind == GGUF_TEXT) {
        for (uint64_t i = 0, n; rc == 0 && i < v->n; i++) {
            rc = take_u64(r, &n, v->key, e);
            rc = rc < 0 ? rc : skip(r, n, v->key, e);
        }
    } else {
        uint64_t bytes;
        if (!size_mul(v->n, kind_bytes[kind], &bytes))
            return fail_end(r, v->key, e);
        rc = skip(r, bytes, v->key, e);
    }
    v->bytes = r->at - v->off;
    return rc;
}

static int take_value(struct reading *r, struct gguf_value *v, struct moeflux_err *e)
{
    uint32_t kind = 0;
    uint8_t bytes[8] = {0};
    int rc = take_name(r, MAX_KEY, &v->key, "the metadata", e);
    if (rc == 0)
        rc = take_u32(r, &kind, v->key, e);
    if (rc == 0 && kind >= GGUF_KINDS)
        rc = err_set(e, ERR_FORMAT, "%s: key %s: kind %" PRIu32 ", expected one below %d", file_of(r)->path,
                     v->key, kind, GGUF_KINDS);
    if (rc < 0)
        return rc;
    v->kind = (enum gguf_kind)kind;
    if (v->kind == GGUF_LIST)
        return skip_list(r, v, e);
    if (v->kind == GGUF_TEXT) {
        rc = take_u64(r, &v->bytes, v->key, e);
        v->off = r->at;
        return rc < 0 ? rc : skip(r, v->bytes, v->key, e);
    }
    rc = take(r, bytes, kind_bytes[kind], v->key, e);
    if (rc == 0)
        set_number(v, v->kind, bytes);
    return rc;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

static int take_values(struct reading *r, uint64_t n, struct gguf *to, struct moeflux_err *e)
{
    for (uint64_t i = 0; i < n; i++) {
        void *values = to->values;
        int rc = mem_grow(&values, &to->cap_values, to->n_values + 1, sizeof *to->values, e);
        to->values = values;
        if (rc < 0)
            return rc;
        to->values[to->n_values] = (struct gguf_value){0};
        rc = take_value(r, &to->values[to->n_values++], e);
        if (rc < 0)
            return rc;
    }
    if (to->n_values > 0)
        qsort(to->values, to->n_values, sizeof *to->values, compare_keys);
    for (size_t i = 1; i < to->n_values; i++)
        if (!strcmp(to->values[i - 1].key, to->values[i].key))
            return err_set(e, ERR_FORMAT, "%s: key %s is there twice", file_of(r)->path, to->values[i].key);
    return 0;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_value wanted = {.key = (char *)(uintptr_t)key};
    return g->n_values ? bsearch(&wanted, g->values, g->n_values, sizeof wanted, compare_keys) : NULL;
}

bool gguf_whole(const struct gguf_value *v, uint64_t *out)
{
    if (!v || v->is_list || v->kind == GGUF_TEXT || v->kind == GGUF_F32 || v->kind == GGUF_F64)
        return false;
    bool is_signed = v->kind == GGUF_I8 || v->kind == GGUF_I16 || v->kind == GGUF_I32 || v->kind == GGUF_I64;
    *out = is_signed ? (uint64_t)v->of.signed_whole : v->of.whole;
    return !is_signed || v->of.signed_whole >= 0;
}

bool gguf_real(const struct gguf_value *v, double *out)
{
    uint64_t whole;
    if (v && !v->is_list && (v->kind == GGUF_F32 || v->kind == GGUF_F64)) {
        *out = v->of.real;
        return true;
    }
    if (gguf_whole(v, &whole))
        *out = (double)whole;
    else if (v && !v->is_list && v->kind != GGUF_TEXT)
        *out = (double)v->of.signed_whole;
    else
        return false;
    return true;
}

int gguf_text(const struct gguf *g, const struct gguf_value *v, uint64_t max, char **out,
              struct moeflux_err *e)
{
    const struct open_file *f = &g->files[0];
    *out = NULL;
    if (v->is_list || v->kind != GGUF_TEXT || v->bytes > max)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a text of at most %" PRIu64 " bytes", f->path,
                       v->key, max);
    char *text = mem_new(v->bytes + 1, 1, e);
    int rc = text ? file_read_at(f->fd, f->path, text, v->bytes, v->off, e) : ERR_MEMORY;
    if (rc == 0 && memchr(text, 0, v->bytes))
        rc = err_set(e, ERR_FORMAT, "%s: key %s: a text with a byte of 0", f->path, v->key);
    if (rc == 0)
        *out = text;
    else
        free(text);
    return rc;
}

/* Reads a list's bytes to fresh memory, which the caller frees after errors too. */
static int read_items(const struct gguf *g, const struct gguf_value *v, uint8_t **out, struct moeflux_err *e)
{
    const struct open_file *f = &g->files[0];
    *out = mem_new(v->bytes, 1, e);
    return *out ? file_read_at(f->fd, f->path, *out, v->bytes, v->off, e) : ERR_MEMORY;
}

static struct gguf_value list_item(const struct gguf_value *v, const uint8_t *bytes, uint64_t i)
{
    struct gguf_value item = {.kind = v->kind};
    set_number(&item, v->kind, bytes + i * kind_bytes[v->kind]);
    return item;
}

/* Reads a list of whole numbers of at most `most` bytes each. */
static int read_list(const struct gguf *g, const struct gguf_value *v, uint32_t most, uint64_t **out,
                     struct moeflux_err *e)
{
    const struct open_file *f = &g->files[0];
    *out = NULL;
    if (!v->is_list || kind_bytes[v->kind] == 0 || kind_bytes[v->kind] > most || v->kind == GGUF_F32 ||
        v->kind == GGUF_F64 || v->n > MAX_LIST)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a list of whole numbers of %u bits", f->path,
                       v->key, 8 * most);
    uint64_t *list = mem_new(v->n, sizeof *list, e);
    uint8_t *bytes = NULL;
    int rc = list ? read_items(g, v, &bytes, e) : ERR_MEMORY;
    for (uint64_t i = 0; rc == 0 && i < v->n; i++) {
        struct gguf_value item = list_item(v, bytes, i);
        if (!gguf_whole(&item, &list[i]))
            rc = err_set(e, ERR_FORMAT, "%s: key %s: item %" PRIu64 " is negative", f->path, v->key, i);
    }
    free(bytes);
    if (rc == 0)
        *out = list;
    else
        free(list);
    return rc;
}

int gguf_u64_list(const struct gguf *g, const struct gguf_value *v, uint64_t **out, struct moeflux_err *e)
{
    return read_list(g, v, sizeof(uint64_t), out, e);
}

int gguf_u32_list(const struct gguf *g, const struct gguf_value *v, uint32_t **out, struct moeflux_err *e)
{
    uint64_t *list;
    *out = NULL;
    int rc = read_list(g, v, sizeof(uint32_t), &list, e);
    if (rc == 0 && !(*out = mem_new(v->n, sizeof **out, e)))
        rc = ERR_MEMORY;
    for (uint64_t i = 0; rc == 0 && i < v->n; i++)
        (*out)[i] = (uint32_t)list[i];
    free(list);
    return rc;
}

int gguf_real_list(const struct gguf *g, const struct gguf_value *v, double **out, struct moeflux_err *e)
{
    const struct open_file *f = &g->files[0];
    *out = NULL;
    if (!v->is_list || v->kind != GGUF_F32 || v->n > MAX_LIST)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a list of float32 numbers", f->path, v->key);
    double *list = mem_new(v->n, sizeof *list, e);
    uint8_t *bytes = NULL;
    int rc = list ? read_items(g, v, &bytes, e) : ERR_MEMORY;
    for (uint64_t i = 0; rc == 0 && i < v->n; i++) {
        list[i] = list_item(v, bytes, i).of.real;
        if (!isfinite(list[i]))
            rc = err_set(e, ERR_FORMAT, "%s: key %s: item %" PRIu64 " is not finite", f->path, v->key, i);
    }
    free(bytes);
    if (rc == 0)
        *out = list;
    else
        free(list);
    return rc;
}

/* --- lists of texts --- */

int gguf_texts_open(struct gguf_texts *t, const struct gguf *g, const struct gguf_value *v,
                    struct moeflux_err *e)
{
    *t = (struct gguf_texts){.g = g, .v = v, .off = v->off};
    if (!v->is_list || v->kind != GGUF_TEXT)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a list of texts", g->files[0].path, v->key);
    t->bytes = mem_new(READ_BYTES, 1, e);
    return t->bytes ? 0 : ERR_MEMORY;
}

/* Appends n bytes of the list. The header was read to its end, so the file has them. */
static int add_bytes(struct gguf_texts *t, uint64_t n, struct str *to, struct moeflux_err *e)
{
    const struct open_file *f = &t->g->files[0];
    uint64_t end = t->v->off + t->v->bytes;
    if (n > end - t->off)
        return err_set(e, ERR_FORMAT, "%s: key %s: has changed since it was opened", f->path, t->v->key);
    while (n > 0) {
        if (t->off < t->from || t->off >= t->from + t->n) {
            t->from = t->off;
            t->n = size_min(READ_BYTES, end - t->off);
            int rc = file_read_at(f->fd, f->path, t->bytes, t->n, t->from, e);
            if (rc < 0)
                return rc;
        }
        uint64_t some = size_min(n, t->from + t->n - t->off);
        str_add(to, (const char *)t->bytes + (t->off - t->from), some);
        t->off += some;
        n -= some;
    }
    return str_ok(to) ? 0 : err_set(e, ERR_MEMORY, "out of memory for %s", t->v->key);
}

int gguf_texts_next(struct gguf_texts *t, struct str *text, struct moeflux_err *e)
{
    uint64_t n;
    if (t->next == t->v->n)
        return 0;
    str_clear(text);
    int rc = add_bytes(t, sizeof n, text, e);
    if (rc < 0)
        return rc;
    memcpy(&n, text->data, sizeof n);
    str_clear(text);
    if (n > MAX_ITEM)
        return err_set(e, ERR_FORMAT,
                       "%s: key %s: item %" PRIu64 " has %" PRIu64 " bytes, expected at most %d",
                       t->g->files[0].path, t->v->key, t->next, n, MAX_ITEM);
    rc = add_bytes(t, n, text, e);
    t->next++;
    return rc < 0 ? rc : 1;
}

void gguf_texts_close(struct gguf_texts *t)
{
    free(t->bytes);
    *t = (struct gguf_texts){0};
}

/* --- tensors --- */

static int fail_type(const struct open_file *f, const struct gguf_tensor *t, struct moeflux_err *e)
{
    char known[GGML_TYPE_LIST];
    const struct ggml_type *type = ggml_type_find(t->type);
    if (type)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: type %s, expected %s", f->path, t->name,
                       type->name, ggml_type_list(known));
    return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: type %" PRIu32 ", expected %s", f->path, t->name,
                   t->type, ggml_type_list(known));
}

/* Computes the tensor's size; its rows must be whole blocks. */
static int size_tensor(const struct open_file *f, struct gguf_tensor *t, struct moeflux_err *e)
{
    const struct ggml_type *type = ggml_type_find(t->type);
    if (!type || type->block == 0)
        return fail_type(f, t, e);
    if (t->shape[0] % type->block != 0)
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s: rows of %" PRIu64 ", expected a multiple of %" PRIu32 " for %s",
                       f->path, t->name, t->shape[0], type->block, type->name);
    t->bytes = t->shape[0] / type->block;
    bool ok = size_mul(t->bytes, type->bytes, &t->bytes);
    for (uint32_t i = 1; ok && i < GGUF_MAX_DIMS; i++)
        ok = size_mul(t->bytes, t->shape[i], &t->bytes);
    uint64_t numbers = t->shape[0];
    for (uint32_t i = 1; ok && i < GGUF_MAX_DIMS; i++)
        ok = size_mul(numbers, t->shape[i], &numbers);
    if (!ok || numbers > UINT64_MAX / 8 || numbers == 0)
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %s: shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                       "] is empty or overflows",
                       f->path, t->name, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
    return 0;
}

static int take_tensor(struct reading *r, struct gguf_tensor *t, struct moeflux_err *e)
{
    const struct open_file *f = file_of(r);
    t->file = r->file;
    int rc = take_name(r, MAX_NAME, &t->name, "the list of tensors", e);
    if (rc == 0)
        rc = take_u32(r, &t->n_dims, t->name, e);
    if (rc == 0 && (t->n_dims == 0 || t->n_dims > GGUF_MAX_DIMS))
        rc = err_set(e, ERR_FORMAT, "%s: tensor %s: %" PRIu32 " dimensions, expected 1 to %d", f->path,
                     t->name, t->n_dims, GGUF_MAX_DIMS);
    for (uint32_t i = 0; rc == 0 && i < GGUF_MAX_DIMS; i++) {
        t->shape[i] = 1;
        if (i < t->n_dims)
            rc = take_u64(r, &t->shape[i], t->name, e);
    }
    if (rc == 0)
        rc = take_u32(r, &t->type, t->name, e);
    if (rc == 0)
        rc = take_u64(r, &t->off, t->name, e);
    return rc < 0 ? rc : size_tensor(f, t, e);
}

/* Places the tensors [first, n), whose offsets count from `data`. */
static int place_tensors(struct gguf *g, size_t first, uint64_t data, struct moeflux_err *e)
{
    for (size_t i = first; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        const struct open_file *f = &g->files[t->file];
        uint64_t end;
        if (!size_add(t->off, data, &t->off) || !size_add(t->off, t->bytes, &end) || end > f->bytes)
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %s: %" PRIu64 " bytes at %" PRIu64 " reach past the end (%" PRIu64
                           " bytes): is the file cut off?",
                           f->path, t->name, t->bytes, t->off, f->bytes);
    }
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct gguf_tensor wanted = {.name = (char *)(uintptr_t)name};
    return g->n_tensors ? bsearch(&wanted, g->tensors, g->n_tensors, sizeof wanted, compare_names) : NULL;
}

/* --- one file --- */

static int take_head(struct reading *r, uint64_t *n_tensors, uint64_t *n_values, struct moeflux_err *e)
{
    const struct open_file *f = file_of(r);
    char magic[4];
    uint32_t version = 0;
    int rc = take(r, magic, sizeof magic, "the header", e);
    if (rc == 0 && memcmp(magic, "GGUF", sizeof magic) != 0)
        return err_set(e, ERR_FORMAT, "%s: begins with %s, expected GGUF", f->path,
                       quote_bytes(magic, sizeof magic).text);
    if (rc == 0)
        rc = take_u32(r, &version, "the header", e);
    if (rc == 0 && version != 2 && version != 3)
        return err_set(e, ERR_UNSUPPORTED, "%s: GGUF version %" PRIu32 "%s, expected 2 or 3", f->path,
                       version, version && (version & 0xffff) == 0 ? " (big endian)" : "");
    if (rc == 0)
        rc = take_u64(r, n_tensors, "the header", e);
    return rc < 0 ? rc : take_u64(r, n_values, "the header", e);
}

static int find_alignment(const struct gguf *values, const struct open_file *f, uint64_t *align,
                          struct moeflux_err *e)
{
    const struct gguf_value *v = gguf_find(values, "general.alignment");
    *align = DEFAULT_ALIGN;
    if (!v)
        return 0;
    if (gguf_whole(v, align) && *align > 0 && *align <= MAX_ALIGN && (*align & (*align - 1)) == 0)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: general.alignment: expected a power of two up to %" PRIu64, f->path,
                   MAX_ALIGN);
}

static int take_tensors(struct reading *r, uint64_t n, struct moeflux_err *e)
{
    struct gguf *g = r->g;
    for (uint64_t i = 0; i < n; i++) {
        void *tensors = g->tensors;
        int rc = mem_grow(&tensors, &g->cap_tensors, g->n_tensors + 1, sizeof *g->tensors, e);
        g->tensors = tensors;
        if (rc < 0)
            return rc;
        g->tensors[g->n_tensors] = (struct gguf_tensor){0};
        rc = take_tensor(r, &g->tensors[g->n_tensors++], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void free_values(struct gguf *g)
{
    for (size_t i = 0; i < g->n_values; i++)
        free(g->values[i].key);
    free(g->values);
}

/* Opens a file. Its values go to `values`: g itself for the first file, another one for the other splits. */
static int add_file(struct gguf *g, const char *path, struct gguf *values, struct moeflux_err *e)
{
    uint64_t n_tensors = 0, n_values = 0, align = 0;
    size_t first = g->n_tensors;
    int rc = open_file_add(&g->files, &g->n_files, path, e);
    struct reading *r = rc == 0 ? mem_new(1, sizeof *r, e) : NULL;
    if (!r)
        return rc < 0 ? rc : ERR_MEMORY;
    r->g = g;
    r->file = g->n_files - 1;
    rc = take_head(r, &n_tensors, &n_values, e);
    if (rc == 0)
        rc = take_values(r, n_values, values, e);
    if (rc == 0)
        rc = take_tensors(r, n_tensors, e);
    if (rc == 0)
        rc = find_alignment(values, file_of(r), &align, e);
    if (rc == 0)
        rc = place_tensors(g, first, size_round_up(r->at, align), e);
    free(r);
    return rc;
}

/* --- a split set --- */

/* Reads a whole number of the file; `fallback` if it is missing. */
static int read_count(const struct gguf *values, const char *path, const char *key, uint64_t fallback,
                      uint64_t *out, struct moeflux_err *e)
{
    const struct gguf_value *v = gguf_find(values, key);
    *out = fallback;
    if (!v || gguf_whole(v, out))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: key %s: expected a whole number", path, key);
}

/* Makes the name of file `i` (from 0) of n in the form of the first one's. */
static int split_path(const char *first, uint64_t i, uint64_t n, char **out, struct moeflux_err *e)
{
    char tail[48];
    snprintf(tail, sizeof tail, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (uint64_t)1, n);
    size_t len = strlen(first), n_tail = strlen(tail);
    if (len < n_tail || strcmp(first + len - n_tail, tail) != 0)
        return err_set(e, ERR_FORMAT, "%s: the first of %" PRIu64 " files, expected a name that ends in %s",
                       first, n, tail);
    *out = mem_text(first, e);
    if (!*out)
        return ERR_MEMORY;
    char number[24];
    snprintf(number, sizeof number, "%05" PRIu64, i + 1);
    memcpy(*out + len - n_tail + 1, number, 5);
    return 0;
}

static int check_split(const struct gguf *values, const char *path, uint64_t i, uint64_t n,
                       struct moeflux_err *e)
{
    uint64_t number = 0, count = 0;
    int rc = read_count(values, path, "split.no", UINT64_MAX, &number, e);
    if (rc == 0)
        rc = read_count(values, path, "split.count", UINT64_MAX, &count, e);
    if (rc < 0 || (number == i && count == n))
        return rc;
    return err_set(e, ERR_FORMAT, "%s: expected file %" PRIu64 " of %" PRIu64 " of a split set", path, i + 1,
                   n);
}

static int add_splits(struct gguf *g, struct moeflux_err *e)
{
    const char *first = g->files[0].path;
    uint64_t number = 0, n = 0, n_tensors = 0;
    int rc = read_count(g, first, "split.no", 0, &number, e);
    if (rc == 0)
        rc = read_count(g, first, "split.count", 1, &n, e);
    if (rc == 0 && number != 0)
        rc = err_set(e, ERR_USAGE,
                     "%s: file %" PRIu64 " of a split set: name the first, ...-00001-of-%05" PRIu64 ".gguf",
                     first, number + 1, n);
    if (rc == 0 && n > MAX_SPLITS)
        rc = err_set(e, ERR_FORMAT, "%s: split.count %" PRIu64 ", expected at most %d", first, n, MAX_SPLITS);
    for (uint64_t i = 1; rc == 0 && i < n; i++) {
        struct gguf values = {0};
        char *path = NULL;
        rc = split_path(g->files[0].path, i, n, &path, e);
        if (rc == 0)
            rc = add_file(g, path, &values, e);
        if (rc == 0)
            rc = check_split(&values, path, i, n, e);
        free(path);
        free_values(&values);
    }
    if (rc == 0)
        rc = read_count(g, g->files[0].path, "split.tensors.count", g->n_tensors, &n_tensors, e);
    if (rc == 0 && n_tensors != g->n_tensors)
        rc = err_set(e, ERR_FORMAT, "%s: %zu tensors in all files, expected %" PRIu64, g->files[0].path,
                     g->n_tensors, n_tensors);
    return rc;
}

bool gguf_is_file(const char *path)
{
    char magic[4] = "";
    if (!file_is_regular(path))
        return false;
    int fd = file_open_read(path, NULL, NULL);
    bool begins = fd >= 0 && file_read_at(fd, path, magic, sizeof magic, 0, NULL) == 0 &&
                  !memcmp(magic, "GGUF", sizeof magic);
    if (fd >= 0)
        close(fd);
    return begins || str_ends_with(path, ".gguf");
}

/* Sorts the tensors of all files. */
static int sort_tensors(struct gguf *g, const char *path, struct moeflux_err *e)
{
    int rc = 0;
    if (g->n_tensors > 0)
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_names);
    for (size_t i = 1; rc == 0 && i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i - 1].name, g->tensors[i].name))
            rc = err_set(e, ERR_FORMAT, "%s: tensor %s is there twice", path, g->tensors[i].name);
    return rc;
}

int gguf_join(struct gguf *g, struct gguf *more, struct moeflux_err *e)
{
    void *tensors = g->tensors, *files = g->files;
    size_t cap_files = g->n_files, n = more->n_tensors;
    int rc = mem_grow(&tensors, &g->cap_tensors, g->n_tensors + n, sizeof *g->tensors, e);
    g->tensors = tensors;
    if (rc == 0)
        rc = mem_grow(&files, &cap_files, (size_t)g->n_files + more->n_files, sizeof *g->files, e);
    g->files = files;
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        g->tensors[g->n_tensors] = more->tensors[i];
        g->tensors[g->n_tensors++].file += g->n_files;
    }
    memcpy(g->files + g->n_files, more->files, more->n_files * sizeof *more->files);
    g->n_files += more->n_files;
    more->n_tensors = more->n_files = 0;
    return sort_tensors(g, g->files[g->n_files - 1].path, e);
}

int gguf_open(struct gguf *g, const char *path, struct moeflux_err *e)
{
    *g = (struct gguf){0};
    int rc = add_file(g, path, g, e);
    if (rc == 0)
        rc = add_splits(g, e);
    if (rc == 0)
        rc = sort_tensors(g, path, e);
    if (rc < 0)
        gguf_close(g);
    return rc;
}

void gguf_close(struct gguf *g)
{
    free_values(g);
    for (size_t i = 0; i < g->n_tensors; i++)
        free(g->tensors[i].name);
    free(g->tensors);
    open_file_close_all(g->files, g->n_files);
    *g = (struct gguf){0};
}
