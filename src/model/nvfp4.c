#include "model/nvfp4.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/names.h"
#include "model/table.h"
#include "model/tensor.h"

/* How a library names the tensors of a matrix. */
static const struct form {
    const char *codes, *factor;
    bool divides;
} forms[] = {{".weight", ".weight_scale_2", false}, {".weight_packed", ".weight_global_scale", true}};
static const char SCALES[] = ".weight_scale";

enum { N_FORMS = sizeof forms / sizeof *forms, BITS = 4, GROUP = 16, WORD = 4, NAME = 256 };

/* A matrix's base name and the library's form. */
struct module {
    const struct form *form;
    const char *name; /* that of its codes */
    size_t length;    /* characters of the base name */
};

/* Finds another tensor of the module; NULL: there is none. l: sorted. */
static struct tensor *find(const struct tensor_list *l, const struct module *m, const char *tail)
{
    char name[NAME];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)m->length, m->name, tail);
    const struct tensor *t = n > 0 && n < NAME ? tensor_find(l->items, l->n, name) : NULL;
    return t ? &l->items[t - l->items] : NULL;
}

static int fail_missing(const struct module *m, const char *tail, const char *where, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tensor %s is U8, but there is no %.*s%s", where, m->name,
                   (int)m->length, m->name, tail);
}

/* Refuses what would change the product. */
static int check_rest(const struct tensor_list *l, const struct module *m, const char *where,
                      struct moeflux_err *e)
{
    static const char *const unknown[] = {".pre_quant_scale", ".svdquant_lora_a", ".weight_zero_point",
                                          ".weight_g_idx"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        const struct tensor *t = find(l, m, unknown[i]);
        if (t)
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: expected NVFP4 without it", where, t->name);
    }
    if (table_has(m->name))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: tensor %s: an n-gram table in NVFP4, expected BF16 or F8_E4M3", where, m->name);
    const struct form *other = &forms[m->form == forms];
    const struct tensor *t = find(l, m, other->factor);
    return t ? err_set(e, ERR_FORMAT, "%s: tensor %s: expected %s for %s", where, t->name, m->form->factor,
                       m->name)
             : 0;
}

int nvfp4_check_factors(const struct tensor *t, uint64_t n, const char *where, struct moeflux_err *e)
{
    if (t->dtype == DTYPE_F32 && t->bytes == n * sizeof(float))
        return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: tensor %s: %s, %" PRIu64 " bytes, expected F32, %" PRIu64 " bytes of factors", where,
                   tensor_label(t), tensor_dtype_name(t->dtype), t->bytes, n * sizeof(float));
}

int nvfp4_check_factor(const struct tensor *t, float x, const char *where, struct moeflux_err *e)
{
    const float most = 448; /* the largest E4M3 number */
    if (isfinite(x) && isfinite(x * most))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor %s: %g, expected a finite number with which no scale overflows",
                   where, tensor_label(t), (double)x);
}

/* The bytes of a file around the last factor that was read. Writers order tensors by their dtypes, so the
 * factors of a file lie together: a read finds thousands of them. */
struct window {
    const struct open_file *files;
    uint32_t file;
    uint64_t from, end; /* equal: nothing was read */
    uint8_t bytes[1 << 16];
};

static int read_factor(struct window *w, struct tensor *t, const struct form *form, struct moeflux_err *e)
{
    struct tensor_factor *out = &t->factor;
    const struct open_file *f = &w->files[t->file];
    int rc = nvfp4_check_factors(t, 1, f->path, e);
    if (rc < 0)
        return rc;
    if (t->file != w->file || t->off < w->from || t->off + t->bytes > w->end) {
        w->file = t->file;
        w->from = t->off;
        w->end = t->off + size_min(sizeof w->bytes, f->bytes - t->off);
        rc = file_read_at(f->fd, f->path, w->bytes, w->end - w->from, w->from, e);
    }
    float x;
    memcpy(&x, w->bytes + (t->off - w->from), sizeof x);
    *out = (struct tensor_factor){true, form->divides ? 1 / x : x};
    if (rc == 0)
        rc = nvfp4_check_factor(t, x, f->path, e);
    return rc < 0 ? rc : nvfp4_check_factor(t, out->by, f->path, e);
}

/* Checks that there is a scale for each 16 columns of whole words. */
static int check_shapes(const struct tensor *codes, const struct tensor *scales, const char *where,
                        struct moeflux_err *e)
{
    char weight[TENSOR_SHAPE_TEXT], found[TENSOR_SHAPE_TEXT];
    bool fits = codes->n_dims == 2 && scales->n_dims == 2 && codes->shape[0] == scales->shape[0] &&
                codes->shape[1] % (GROUP / 2) == 0 && codes->shape[1] / (GROUP / 2) == scales->shape[1];
    if (fits)
        return 0;
    tensor_shape_text(codes, weight);
    tensor_shape_text(scales, found);
    return err_set(
        e, ERR_FORMAT,
        "%s: tensor %s: shape %s, expected two dimensions and a scale for each %d columns (%d bytes "
        "of %s's %s)",
        where, scales->name, found, GROUP, GROUP / 2, codes->name, weight);
}

/* Describes codes and scales; their names stay, so that the list remains sorted. */
static int adopt_module(struct tensor_list *l, struct tensor *codes, const struct module *m, struct window *w,
                        struct moeflux_err *e)
{
    const struct open_file *files = w->files;
    const char *where = files[codes->file].path;
    struct tensor *scales = find(l, m, SCALES);
    struct tensor *factor = find(l, m, m->form->factor);
    if (!scales || !factor)
        return fail_missing(m, scales ? m->form->factor : SCALES, where, e);
    if (scales->dtype != DTYPE_F8_E4M3)
        return tensor_fail_dtype(scales, "F8_E4M3", files[scales->file].path, e);
    int rc = check_rest(l, m, where, e);
    if (rc == 0)
        rc = check_shapes(codes, scales, where, e);
    if (rc == 0)
        rc = read_factor(w, factor, m->form, e);
    if (rc < 0)
        return rc;
    codes->dtype = DTYPE_U32;
    codes->shape[1] /= WORD;
    codes->mode = QUANT_NVFP4;
    codes->bits = BITS;
    codes->group = GROUP;
    scales->dtype = DTYPE_U8;
    factor->n_dims = 1; /* some files have none */
    factor->shape[0] = 1;
    codes->format = scales->format = factor->format = FORMAT_NVFP4_FACTOR;
    return 0;
}

/* Returns whether it is the codes of a matrix. Those of ModelOpt have the name and the dtype of other
 * formats' numbers; their scales tell them apart. */
static bool is_codes(const struct tensor_list *l, const struct tensor *t, struct module *out)
{
    for (int i = 0; i < N_FORMS && t->dtype == DTYPE_U8; i++) {
        *out = (struct module){&forms[i], t->name, strlen(t->name) - strlen(forms[i].codes)};
        if (str_ends_with(t->name, forms[i].codes) &&
            (forms[i].divides || find(l, out, SCALES) || find(l, out, forms[i].factor)))
            return true;
    }
    return false;
}

/* Gives a tensor of a matrix its new name; messages have the file's. *keep is false if no operation reads
 * it. */
static int rename_tensor(struct tensor *t, bool *keep, struct moeflux_err *e)
{
    static const char *const unread[] = {".weight_scale_2", ".weight_global_scale",
                                         ".input_scale",    ".input_global_scale",
                                         ".k_scale",        ".v_scale"};
    static const struct {
        const char *theirs, *ours;
    } names[] = {{".weight_packed", ".weight"},
                 {".weight_scale", ".scales"},
                 {".weight_scale_2", ".global_scale"},
                 {".weight_global_scale", ".global_scale"}};
    size_t k = 0, n = sizeof names / sizeof *names;
    bool is_matrix = t->format == FORMAT_NVFP4_FACTOR;
    *keep = true;
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++)
        *keep = *keep && (is_matrix || !str_ends_with(t->name, unread[i]));
    while (k < n && !str_ends_with(t->name, names[k].theirs))
        k++;
    if (!is_matrix || k == n)
        return 0;
    char *name = names_replace_end(t->name, strlen(names[k].theirs), names[k].ours, e);
    if (!name)
        return ERR_MEMORY;
    char *old = t->name;
    int rc = tensor_set_name(t, name, old, e);
    if (rc == 0)
        free(old);
    free(name);
    return rc;
}

int nvfp4_adopt(struct tensor_list *l, const struct open_file *files, const char *where,
                struct moeflux_err *e)
{
    size_t n = 0, n_modules = 0;
    struct window w = {.files = files};
    int rc = tensor_list_sort(l, where, e);
    for (size_t i = 0; i < l->n && rc == 0; i++) {
        struct module m;
        if (!is_codes(l, &l->items[i], &m))
            continue;
        n_modules++;
        rc = adopt_module(l, &l->items[i], &m, &w, e);
    }
    if (rc < 0 || n_modules == 0)
        return rc;
    for (size_t i = 0; i < l->n; i++) {
        bool keep = true;
        if (rc == 0)
            rc = rename_tensor(&l->items[i], &keep, e);
        if (keep)
            l->items[n++] = l->items[i];
        else
            free(l->items[i].name);
    }
    l->n = n;
    return rc;
}

/* Scales of blocks have no sign, and 0x7f is zero. 0xff would be 480, which E4M3 does not have: it becomes a
 * NaN, which the reader of scales refuses. */
static uint8_t scale_of_block(uint8_t byte)
{
    return byte == 0x7f ? 0 : byte & 0x7f;
}

/* Puts four bytes of a group of 16 columns, the first four or the last, in the order of columns. */
static void order_codes(const uint8_t *bytes, uint8_t *low, uint8_t *high)
{
    for (int i = 0; i < 2; i++, bytes += 2) {
        low[i] = (uint8_t)((bytes[0] & 15) | bytes[1] << 4);
        high[i] = (uint8_t)(bytes[0] >> 4 | (bytes[1] & 0xf0));
    }
}

void nvfp4_split(const uint8_t *bytes, uint64_t from, uint64_t n, uint8_t *codes, uint8_t *scales)
{
    enum { WORDS = NVFP4_BLOCK_BYTES / WORD, GROUP_BYTES = GROUP / 2 };
    for (uint64_t i = 0; i < n; i += WORD) {
        uint64_t block = (from + i) / NVFP4_BLOCK_BYTES, word = (from + i) / WORD % WORDS;
        const uint8_t *p = bytes + i;
        if (word == 0)
            for (int k = 0; scales && k < NVFP4_BLOCK_SCALES; k++)
                scales[block * NVFP4_BLOCK_SCALES + (uint64_t)k] = scale_of_block(p[k]);
        if (word == 0 || !codes)
            continue;
        uint8_t *to = codes + block * NVFP4_BLOCK_CODES + (word - 1) / 2 * GROUP_BYTES + (word - 1) % 2 * 2;
        order_codes(p, to, to + GROUP_BYTES / 2);
    }
}
