#include "model/quant_config.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/json.h"

enum { MAX_BLOCK = 1 << 20 };

/* *group: that of an object that does not say it, then the object's. */
static int read_group(const struct json_t *object, const char *where, const char *base, uint32_t *group,
                      struct moeflux_err *e)
{
    struct json_view v = {.objects = {object}, .where = where, .e = e};
    char known[FORMAT_LIST_TEXT];
    *group = json_view_u32_or(&v, "group_size", *group, 1, 1 << 20);
    const char *mode = json_view_text_or(&v, "mode", "affine");
    if (v.rc < 0)
        return v.rc;
    if (!format_has_group(*group))
        return err_set(e, ERR_UNSUPPORTED, "%s: %s: group_size is %u, expected %s", where, base, *group,
                       format_list_groups(known));
    if (strcmp(mode, "affine") != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s: mode is %s, expected affine", where, base, mode);
    return 0;
}

/* DeepSeek's own checkpoints. */
static int read_fp8(struct quant_config *q, struct json_view *v)
{
    const char *format = json_view_text_or(v, "fmt", "e4m3");
    const json_t *size = json_view_array(v, "weight_block_size");
    const json_t *rows = json_array_get(size, 0), *cols = json_array_get(size, 1);
    json_int_t n_rows = json_integer_value(rows), n_cols = json_integer_value(cols);
    if (v->rc < 0)
        return v->rc;
    if (strcmp(format, "e4m3") != 0)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: quantization method fp8: fmt is %s, expected e4m3",
                       v->where, format);
    if (json_array_size(size) != 2 || n_rows < 1 || n_cols < 1 || n_rows > MAX_BLOCK || n_cols > MAX_BLOCK)
        return err_set(
            v->e, ERR_UNSUPPORTED,
            "%s: quantization method fp8: expected weight_block_size [rows, columns], as [128, 128]",
            v->where);
    q->fp8 = (struct fp8_blocks){(uint32_t)n_rows, (uint32_t)n_cols};
    return 0;
}

int quant_config_read(struct quant_config *q, const struct json_t *root, const char *where,
                      struct moeflux_err *e)
{
    *q = (struct quant_config){.where = where, .group = QUANT_DEFAULT_GROUP};
    struct json_view top = {.objects = {root}, .where = where, .e = e};
    const json_t *block = json_view_object(&top, "quantization");
    if (!block)
        block = json_view_object(&top, "quantization_config");
    if (top.rc < 0 || !block)
        return top.rc;
    struct json_view v = {.objects = {block}, .where = where, .e = e};
    const char *method = json_view_text_or(&v, "quant_method", NULL);
    if (v.rc < 0)
        return v.rc;
    if (method && !strcmp(method, "fp8"))
        return read_fp8(q, &v);
    if (method && !json_view_get(&v, "group_size"))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: quantization method %s, expected MLX affine groups, fp8 or none", where, method);
    q->block = block;
    q->bits = json_view_u32(&v, "bits", 1, 32);
    return v.rc < 0 ? v.rc : read_group(block, where, "quantization", &q->group, e);
}

int quant_config_matrix(const struct quant_config *q, const char *base, uint32_t *bits, uint32_t *group,
                        struct moeflux_err *e)
{
    *bits = q->bits;
    *group = q->group;
    const json_t *own = json_object_get(q->block, base);
    if (!json_is_object(own))
        return 0;
    struct json_view v = {.objects = {own}, .where = q->where, .e = e};
    *bits = json_view_u32_or(&v, "bits", q->bits, 1, 32);
    return v.rc < 0 ? v.rc : read_group(own, q->where, base, group, e);
}
