#include "model/packed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/f16.h"
#include "base/format.h"
#include "base/str.h"
#include "model/names.h"
#include "model/tensor.h"

static const char CODES[] = ".weight_packed", SCALES[] = ".weight_scale", SHAPE[] = ".weight_shape";
/* Codes are stored as q + OFFSET, which is at most LARGEST. */
enum { OFFSET = 8, LARGEST = 15, WORD = 4 };

/* Gives `t` the name with another end. */
static int rename(struct tensor *t, const char *end, const char *tail, struct moeflux_err *e)
{
    char *name = names_replace_end(t->name, strlen(end), tail, e);
    if (!name)
        return ERR_MEMORY;
    free(t->name);
    t->name = name;
    return 0;
}

static int adopt_codes(struct tensor *t, uint32_t format, const char *where, struct moeflux_err *e)
{
    bool is_float = format == FORMAT_MXFP4;
    if (!strstr(t->name, ".mlp.experts."))
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s is packed, expected only experts to be", where,
                       t->name);
    if (t->dtype != (is_float ? DTYPE_U8 : DTYPE_I32) || t->n_dims != 2)
        return tensor_fail_dtype(t, is_float ? "U8 of two dimensions" : "I32 of two dimensions", where, e);
    if (is_float && t->shape[1] % WORD != 0)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: rows of %llu bytes, expected a multiple of %d", where,
                       t->name, (unsigned long long)t->shape[1], WORD);
    if (is_float)
        t->shape[1] /= WORD;
    t->dtype = DTYPE_U32;
    t->mode = is_float ? QUANT_MXFP4 : QUANT_AFFINE;
    t->bits = 4;
    t->group = format_of(format)->group;
    return rename(t, CODES, ".weight", e);
}

/* The list may move when the biases are added, so `at` is an index. */
static int adopt_scales(struct tensor_list *l, size_t at, uint32_t format, const char *where,
                        struct moeflux_err *e)
{
    struct tensor *t = &l->items[at];
    bool is_float = format == FORMAT_MXFP4;
    if (is_float ? t->dtype != DTYPE_U8 && t->dtype != DTYPE_F8_E8M0 : t->dtype != DTYPE_BF16)
        return tensor_fail_dtype(t, is_float ? "U8 or F8_E8M0" : "BF16", where, e);
    int rc = rename(t, SCALES, ".scales", e);
    if (rc < 0)
        return rc;
    if (is_float) {
        t->dtype = DTYPE_U8;
        return 0;
    }
    struct tensor biases = *t;
    biases.name = names_replace_end(biases.name, strlen("scales"), "biases", e);
    return biases.name ? tensor_list_add(l, &biases, e) : ERR_MEMORY;
}

static int adopt(struct tensor_list *l, size_t at, uint32_t format, const char *where, struct moeflux_err *e)
{
    static const char *const unknown[] = {".weight_zero_point", ".weight_g_idx"};
    struct tensor *t = &l->items[at];
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (str_ends_with(t->name, unknown[i]))
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: expected packed experts without it", where,
                           t->name);
    if (str_ends_with(t->name, CODES))
        return adopt_codes(t, format, where, e);
    return str_ends_with(t->name, SCALES) ? adopt_scales(l, at, format, where, e) : 0;
}

int packed_adopt(struct tensor_list *l, uint32_t format, const char *where, struct moeflux_err *e)
{
    size_t n = 0;
    int rc = 0;
    /* The matrices' shapes follow from the configuration and are checked against it. */
    for (size_t i = 0; i < l->n; i++)
        if (str_ends_with(l->items[i].name, SHAPE))
            free(l->items[i].name);
        else
            l->items[n++] = l->items[i];
    l->n = n;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = adopt(l, i, format, where, e);
    return rc;
}

bool packed_biases(const uint8_t *scales, uint64_t n, uint8_t *biases)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, scales + 2 * i, sizeof bits);
        float scale = bf16_to_float(bits);
        if (!isfinite(LARGEST * scale))
            return false;
        bits = bf16_from_float(-OFFSET * scale);
        memcpy(biases + 2 * i, &bits, sizeof bits);
    }
    return true;
}
