#include "model/quant_config.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "model/config.h"
#include "model/json.h"

static int check_group(const struct json_t *object, const char *where, const char *base, struct err *e)
{
    struct json_view v = {.objects = {object}, .where = where, .e = e};
    uint32_t group = json_view_u32_or(&v, "group_size", CONFIG_GROUP, 1, 1 << 20);
    const char *mode = json_view_text_or(&v, "mode", "affine");
    if (v.rc < 0)
        return v.rc;
    if (group != CONFIG_GROUP)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s: group_size is %u, expected %d", where, base, group,
                       CONFIG_GROUP);
    if (strcmp(mode, "affine") != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s: mode is %s, expected affine", where, base, mode);
    return 0;
}

int quant_config_read(struct quant_config *q, const struct json_t *root, const char *where, struct err *e)
{
    *q = (struct quant_config){.where = where};
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
    if (method && !json_view_get(&v, "group_size"))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: quantization method %s, expected MLX affine groups of 64 or no quantization",
                       where, method);
    q->block = block;
    q->bits = json_view_u32(&v, "bits", 1, 32);
    return v.rc < 0 ? v.rc : check_group(block, where, "quantization", e);
}

int quant_config_bits(const struct quant_config *q, const char *base, uint32_t *bits, struct err *e)
{
    *bits = q->bits;
    const json_t *own = json_object_get(q->block, base);
    if (!json_is_object(own))
        return 0;
    struct json_view v = {.objects = {own}, .where = q->where, .e = e};
    *bits = json_view_u32_or(&v, "bits", q->bits, 1, 32);
    return v.rc < 0 ? v.rc : check_group(own, q->where, base, e);
}
