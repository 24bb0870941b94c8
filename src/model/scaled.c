#include "model/scaled.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "model/names.h"
#include "model/tensor.h"

static const char WEIGHT[] = ".weight", SCALE[] = ".scale";
enum { GROUP = 32, WORD = 4 };

/* Gives `t` the name with another end in place of its last `cut` characters. */
static int rename(struct tensor *t, size_t cut, const char *tail, struct moeflux_err *e)
{
    char *name = names_replace_end(t->name, cut, tail, e);
    if (!name)
        return ERR_MEMORY;
    free(t->name);
    t->name = name;
    return 0;
}

/* Describes bytes of codes as words. */
static int adopt_codes(struct tensor *t, const char *where, struct moeflux_err *e)
{
    char found[TENSOR_SHAPE_TEXT];
    tensor_shape_text(t, found);
    if (!strstr(t->name, ".mlp.experts."))
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: %s, expected 4-bit floats of experts alone", where,
                       t->name, tensor_dtype_name(t->dtype));
    if (t->n_dims != 2 || t->shape[1] % WORD != 0)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: shape %s, expected rows of a multiple of %d bytes",
                       where, t->name, found, WORD);
    t->dtype = DTYPE_U32;
    t->shape[1] /= WORD;
    t->mode = QUANT_MXFP4;
    t->bits = 4;
    t->group = GROUP;
    return 0;
}

/* Returns whether `t` is the weight of a scale. */
static bool is_weight_of(const struct tensor *t, const struct tensor *scale)
{
    size_t n = strlen(scale->name) - strlen(SCALE);
    return !strncmp(t->name, scale->name, n) && !strcmp(t->name + n, WEIGHT);
}

/* at: the scale's index in the sorted list, in which its weight is the next one. */
static int adopt_scale(struct tensor_list *l, size_t at, const char *where, struct moeflux_err *e)
{
    struct tensor *s = &l->items[at];
    const struct tensor *w = s + 1;
    if (at + 1 == l->n || !is_weight_of(w, s)) /* it is a tensor of its own */
        return 0;
    if (w->dtype != DTYPE_U32)
        return rename(s, strlen(SCALE), ".weight_scale_inv", e);
    if (s->dtype != DTYPE_F8_E8M0 && s->dtype != DTYPE_U8)
        return tensor_fail_dtype(s, "F8_E8M0 or U8", where, e);
    s->dtype = DTYPE_U8;
    return rename(s, strlen(SCALE), ".scales", e);
}

int scaled_adopt(struct tensor_list *l, const char *where, struct moeflux_err *e)
{
    int rc = tensor_list_sort(l, where, e);
    for (size_t i = 0; i < l->n && rc == 0; i++)
        if (str_ends_with(l->items[i].name, WEIGHT) &&
            (l->items[i].dtype == DTYPE_I8 || l->items[i].dtype == DTYPE_U8))
            rc = adopt_codes(&l->items[i], where, e);
    for (size_t i = 0; i < l->n && rc == 0; i++)
        if (str_ends_with(l->items[i].name, SCALE))
            rc = adopt_scale(l, i, where, e);
    return rc;
}
