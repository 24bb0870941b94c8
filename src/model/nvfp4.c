#include "model/nvfp4.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
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

/* The bytes of a file around the last factor that was read. Writers order tensors by their dtypes, so the
 * factors of a file lie together: a read finds thousands of them. */
struct window {
    const struct open_file *files;
    uint32_t file;
    uint64_t from, end; /* equal: nothing was read */
    uint8_t bytes[1 << 16];
};

static int read_factor(struct window *w, const struct tensor *t, const struct form *form,
                       struct tensor_factor *out, struct moeflux_err *e)
{
    const struct open_file *f = &w->files[t->file];
    int rc = 0;
    if (t->dtype != DTYPE_F32 || t->bytes != sizeof out->by)
        return tensor_fail_dtype(t, "F32, one number", f->path, e);
    *out = (struct tensor_factor){.is_there = true, .divides = form->divides};
    if (t->file != w->file || t->off < w->from || t->off + t->bytes > w->end) {
        w->file = t->file;
        w->from = t->off;
        w->end = t->off + size_min(sizeof w->bytes, f->bytes - t->off);
        rc = file_read_at(f->fd, f->path, w->bytes, w->end - w->from, w->from, e);
    }
    memcpy(&out->by, w->bytes + (t->off - w->from), sizeof out->by);
    if (rc == 0 && (!isfinite(out->by) || (form->divides && out->by == 0)))
        rc = err_set(e, ERR_FORMAT, "%s: tensor %s: %g, expected a finite number%s", f->path, t->name,
                     (double)out->by, form->divides ? " that is not 0" : "");
    return rc;
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
    const struct tensor *factor = find(l, m, m->form->factor);
    if (!scales || !factor)
        return fail_missing(m, scales ? m->form->factor : SCALES, where, e);
    if (scales->dtype != DTYPE_F8_E4M3)
        return tensor_fail_dtype(scales, "F8_E4M3", files[scales->file].path, e);
    int rc = check_rest(l, m, where, e);
    if (rc == 0)
        rc = check_shapes(codes, scales, where, e);
    if (rc == 0)
        rc = read_factor(w, factor, m->form, &scales->factor, e);
    if (rc < 0)
        return rc;
    codes->dtype = DTYPE_U32;
    codes->shape[1] /= WORD;
    codes->mode = QUANT_NVFP4;
    codes->bits = BITS;
    codes->group = GROUP;
    scales->dtype = DTYPE_F32;
    scales->bytes *= sizeof(float);
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
    *keep = true;
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++)
        *keep = *keep && !str_ends_with(t->name, unread[i]);
    bool is_packed = t->dtype == DTYPE_U32 && str_ends_with(t->name, ".weight_packed");
    if (!is_packed && !t->factor.is_there)
        return 0;
    size_t cut = is_packed ? strlen("_packed") : strlen("weight_scale");
    char *name = names_replace_end(t->name, cut, is_packed ? "" : "scales", e);
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

bool nvfp4_read_scales(const struct tensor_factor *f, const uint8_t *codes, uint64_t n, uint8_t *out)
{
    float values[256];
    bool ok = true;
    for (int i = 0; i < 256; i++) {
        float x = e4m3_to_float((uint8_t)i);
        values[i] = f->divides ? x / f->by : x * f->by;
    }
    /* Going upwards, no number overwrites a code that is still to be read. */
    for (uint64_t i = 0; i < n; i++) {
        float x = values[codes[i]];
        ok = ok && isfinite(x);
        memcpy(out + sizeof x * i, &x, sizeof x);
    }
    return ok;
}
