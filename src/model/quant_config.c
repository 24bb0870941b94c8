#include "model/quant_config.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/json.h"
#include "base/str.h"

enum { MAX_BLOCK = 1 << 20 };

static const struct {
    const char *name;
    uint32_t format;
} modes[] = {
    [QUANT_AFFINE] = {"affine", FORMAT_NONE},
    [QUANT_MXFP4] = {"mxfp4", FORMAT_MXFP4},
    [QUANT_MXFP8] = {"mxfp8", FORMAT_MXFP8},
    [QUANT_NVFP4] = {"nvfp4", FORMAT_NVFP4},
};
enum { N_MODES = sizeof modes / sizeof *modes, MLX_BITS = 4 };

uint32_t quant_config_mode_format(enum quant_mode mode)
{
    return modes[mode].format;
}

enum quant_mode quant_config_format_mode(uint32_t format)
{
    enum quant_mode mode = QUANT_AFFINE;
    for (enum quant_mode m = QUANT_MXFP4; m <= QUANT_NVFP4; m++)
        mode = modes[m].format == format ? m : mode;
    return format == FORMAT_NVFP4_FACTOR ? QUANT_NVFP4 : mode;
}

const char *quant_config_mode_name(enum quant_mode mode)
{
    return modes[mode].name;
}

static int read_mode(struct json_view *v, const char *what, enum quant_mode *mode)
{
    const char *name = json_view_text_or(v, "mode", "affine");
    int i = 0;
    if (v->rc < 0)
        return v->rc;
    while (i < N_MODES && strcmp(modes[i].name, name) != 0)
        i++;
    if (i == N_MODES)
        return err_set(v->e, ERR_UNSUPPORTED, "%s: %s: mode is %.64s, expected affine, mxfp4, mxfp8 or nvfp4",
                       v->where, what, name);
    *mode = (enum quant_mode)i;
    return 0;
}

static int check_entry(const struct quant_entry *q, const char *where, const char *what,
                       struct moeflux_err *e)
{
    char known[FORMAT_LIST_TEXT];
    const struct format *f = q->mode == QUANT_AFFINE ? NULL : format_of(modes[q->mode].format);
    if (f && (q->bits != f->bits || q->group != f->group))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s: %u bits and group_size %u, expected %u and %u for mode %s", where, what,
                       q->bits, q->group, f->bits, f->group, modes[q->mode].name);
    if (!f && !format_has_group(q->group))
        return err_set(e, ERR_UNSUPPORTED, "%s: %s: group_size is %u, expected %s", where, what, q->group,
                       format_list_groups(known));
    if (!f && q->bits && format_find_affine(q->bits, q->group, SCALE_BF16) == FORMAT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s: bits is %u, expected %s", where, what, q->bits,
                       format_list_bits(known));
    return 0;
}

int quant_config_entry(const struct json_t *object, uint32_t bits, const char *where, const char *what,
                       struct quant_entry *out, struct moeflux_err *e)
{
    struct json_view v = {.objects = {object}, .where = where, .e = e};
    *out = (struct quant_entry){.bits = bits, .group = QUANT_DEFAULT_GROUP};
    int rc = read_mode(&v, what, &out->mode);
    if (rc < 0)
        return rc;
    if (out->mode != QUANT_AFFINE) {
        const struct format *f = format_of(modes[out->mode].format);
        out->bits = f->bits;
        out->group = f->group;
    }
    out->group = json_view_u32_or(&v, "group_size", out->group, 1, 1 << 20);
    out->bits = json_view_u32_or(&v, "bits", out->bits, 1, 32);
    if (v.rc < 0)
        return v.rc;
    if (json_is_true(json_object_get(object, "global_scale")))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s: a global_scale, expected none: nvfp4 with scales of groups alone", where,
                       what);
    return check_entry(out, where, what, e);
}

/* Reads the block of checkpoints in DeepSeek's form. The tensors' dtypes say which of them are 8-bit
 * floats. */
static int read_fp8(struct quant_config *q, struct json_view *v)
{
    const char *format = json_view_text_or(v, "fmt", "e4m3");
    const json_t *size = json_view_array(v, "weight_block_size");
    const json_t *rows = json_array_get(size, 0), *cols = json_array_get(size, 1);
    json_int_t n_rows = json_integer_value(rows), n_cols = json_integer_value(cols);
    if (v->rc < 0)
        return v->rc;
    if (strcmp(format, "e4m3") != 0 && strcmp(format, "float8_e4m3fn") != 0)
        return err_set(v->e, ERR_UNSUPPORTED,
                       "%s: quantization method fp8: fmt is %s, expected e4m3 or float8_e4m3fn", v->where,
                       format);
    if (json_array_size(size) != 2 || n_rows < 1 || n_cols < 1 || n_rows > MAX_BLOCK || n_cols > MAX_BLOCK)
        return err_set(
            v->e, ERR_UNSUPPORTED,
            "%s: quantization method fp8: expected weight_block_size [rows, columns], as [128, 128]",
            v->where);
    q->fp8 = (struct fp8_blocks){(uint32_t)n_rows, (uint32_t)n_cols};
    return 0;
}

/* Checks the algorithm of ModelOpt. The tensors say which matrices have it: a module that is excluded has
 * plain numbers. kv_cache_scheme is about caches of 8 bits, which --kv-type chooses here. */
static int read_modelopt(struct quant_config *q, struct json_view *v)
{
    static const char *const known[] = {"NVFP4", "W4A16_NVFP4", "FP8", "MIXED_PRECISION"};
    const char *name = json_view_text_or(v, "quant_algo", "none");
    if (v->rc < 0)
        return v->rc;
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known = is_known || !strcmp(name, known[i]);
    if (!is_known)
        return err_set(
            v->e, ERR_UNSUPPORTED,
            "%s: modelopt: quant_algo is %.32s, expected NVFP4, W4A16_NVFP4, FP8 or MIXED_PRECISION",
            v->where, name);
    if (str_ends_with(name, "NVFP4"))
        q->expert_format = FORMAT_NVFP4_FACTOR;
    quant_groups_find(&q->groups, v, strcmp(name, "FP8") == 0 ? FORMAT_FP8 : q->expert_format);
    return 0;
}

/* Reads compressed-tensors' small floats: the same format for all groups, or a format of each. */
static int read_floats(struct quant_config *q, struct json_view *v)
{
    quant_groups_find(&q->groups, v, FORMAT_NONE);
    if (json_is_text(json_view_get(v, "format"), "nvfp4-pack-quantized"))
        q->expert_format = FORMAT_NVFP4_FACTOR;
    return v->rc < 0 ? v->rc : quant_groups_check(&q->groups, v, &q->fp8);
}

/* Reads the one group of compressed-tensors' 4-bit floats in groups of 32 columns. Its targets may name more
 * than the experts: the tensors themselves say which matrices are packed. */
static int read_mxfp4(struct quant_config *q, struct json_view *v)
{
    const struct format *f = format_of(FORMAT_MXFP4);
    const json_t *groups = json_view_object(v, "config_groups");
    const json_t *group = json_object_iter_value(json_object_iter((json_t *)(uintptr_t)groups));
    struct json_view w = json_view_of(json_object_get(group, "weights"), v->where, v->e);
    const char *type = json_view_text_or(&w, "type", "none");
    uint32_t bits = json_view_u32_or(&w, "num_bits", 0, 1, 64),
             size = json_view_u32_or(&w, "group_size", 0, 1, 1 << 20);
    bool is_symmetric = json_view_bool_or(&w, "symmetric", true);
    if (v->rc < 0 || w.rc < 0)
        return v->rc < 0 ? v->rc : w.rc;
    q->expert_format = FORMAT_MXFP4;
    q->is_packed = true;
    if (json_object_size(groups) == 1 && !strcmp(type, "float") && bits == f->bits && size == f->group &&
        is_symmetric && !json_member(group, "input_activations"))
        return 0;
    return err_set(
        v->e, ERR_UNSUPPORTED,
        "%s: compressed-tensors: mxfp4-pack-quantized, %zu config_groups, type %.32s, %u bits, group "
        "of %u%s; expected one group, float, 4 bits, symmetric, group of 32, without "
        "input_activations",
        v->where, json_object_size(groups), type, bits, size, is_symmetric ? "" : ", not symmetric");
}

/* Reads the one group of compressed-tensors: whole numbers of 4 bits around 0, with a scale for each group of
 * columns. */
static int read_packed(struct quant_config *q, struct json_view *v)
{
    static const char *const floats[] = {"nvfp4-pack-quantized", "float-quantized", "mixed-precision"};
    if (json_object_size(json_view_get(v, "transform_config")) > 0)
        return err_set(v->e, ERR_UNSUPPORTED,
                       "%s: compressed-tensors: a transform_config, expected weights without transforms",
                       v->where);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (json_is_text(json_view_get(v, "format"), floats[i]))
            return read_floats(q, v);
    if (json_is_text(json_view_get(v, "format"), "mxfp4-pack-quantized"))
        return read_mxfp4(q, v);
    const json_t *groups = json_view_object(v, "config_groups");
    const json_t *group = json_object_iter_value(json_object_iter((json_t *)(uintptr_t)groups));
    struct json_view w = json_view_of(json_object_get(group, "weights"), v->where, v->e);
    const char *format = json_view_text_or(v, "format", "none");
    const char *type = json_view_text_or(&w, "type", "int"),
               *strategy = json_view_text_or(&w, "strategy", "");
    uint32_t bits = json_view_u32_or(&w, "num_bits", 0, 1, 64), size = 0;
    bool is_symmetric = json_view_bool_or(&w, "symmetric", true);
    bool has_order = json_view_get(&w, "actorder") && !json_is_false(json_view_get(&w, "actorder"));
    if (!strcmp(strategy, "group"))
        size = json_view_u32_or(&w, "group_size", 0, 1, 1 << 20);
    if (v->rc < 0 || w.rc < 0)
        return v->rc < 0 ? v->rc : w.rc;
    q->expert_format = format_find_affine(bits, size, SCALE_BF16);
    q->is_packed = true;
    if (!strcmp(format, "pack-quantized") && json_object_size(groups) == 1 && !strcmp(type, "int") &&
        bits == 4 && is_symmetric && !has_order && !json_member(group, "input_activations") &&
        q->expert_format != FORMAT_NONE)
        return 0;
    return err_set(
        v->e, ERR_UNSUPPORTED,
        "%s: compressed-tensors: format %.32s, %zu config_groups, type %.32s, %u bits, %s, strategy "
        "%.32s of %u; expected nvfp4-pack-quantized, mxfp4-pack-quantized, float-quantized, "
        "mixed-precision, or pack-quantized, one group, int, 4 bits, symmetric, group of 32, 64 or 128, "
        "without actorder and input_activations",
        v->where, format, json_object_size(groups), type, bits, is_symmetric ? "symmetric" : "not symmetric",
        strategy, size);
}

int quant_config_read(struct quant_config *q, const struct json_t *root, const char *where,
                      struct moeflux_err *e)
{
    *q = (struct quant_config){.where = where,
                               .rest.group = QUANT_DEFAULT_GROUP,
                               .expert_format = FORMAT_NONE,
                               .groups.all = FORMAT_NONE};
    struct json_view top = {.objects = {root}, .where = where, .e = e};
    const json_t *block = json_view_object(&top, "quantization");
    if (!block)
        block = json_view_object(&top, "quantization_config");
    if (!block && (block = json_view_object(&top, "text_config")))
        block = json_object_get(block, "quantization_config");
    if (top.rc < 0 || !block)
        return top.rc;
    struct json_view v = {.objects = {block}, .where = where, .e = e};
    const char *method = json_view_text_or(&v, "quant_method", NULL);
    if (v.rc < 0)
        return v.rc;
    if (method && !strcmp(method, "fp8"))
        return read_fp8(q, &v);
    if (method && !strcmp(method, "compressed-tensors"))
        return read_packed(q, &v);
    if (method && !strcmp(method, "modelopt"))
        return read_modelopt(q, &v);
    bool is_mxfp4 = method && !strcmp(method, quant_config_mode_name(QUANT_MXFP4));
    /* MLX writes no quant_method. The blocks of gptq and awq have bits and group_size, too. */
    if (method && !is_mxfp4)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: quantization method %s, expected MLX's, fp8, mxfp4, modelopt, compressed-tensors or "
            "none",
            where, method);
    if (is_mxfp4 && !json_view_get(&v, "group_size")) {
        q->expert_format = FORMAT_MXFP4;
        return 0;
    }
    q->block = block;
    if (!json_view_get(&v, "mode") || json_is_text(json_view_get(&v, "mode"), "affine"))
        json_view_u32(&v, "bits", 1, 32); /* must be there */
    if (v.rc < 0)
        return v.rc;
    return quant_config_entry(block, MLX_BITS, where, "quantization", &q->rest, e);
}

int quant_config_matrix(const struct quant_config *q, const char *base, struct quant_entry *out,
                        struct moeflux_err *e)
{
    const json_t *own = json_object_get(q->block, base);
    *out = q->rest;
    if (json_is_false(own))
        return QUANT_SAID_PLAIN;
    if (!own || json_is_true(own))
        return QUANT_SAID_NOTHING;
    if (!json_is_object(own))
        return err_set(e, ERR_FORMAT, "%s: quantization of %s: expected an object, true or false", q->where,
                       base);
    int rc = quant_config_entry(own, MLX_BITS, q->where, base, out, e);
    return rc < 0 ? rc : QUANT_SAID_ENTRY;
}
