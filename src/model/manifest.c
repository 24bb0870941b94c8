#include "model/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/format.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/quant_config.h"
#include "model/table.h"

#define MAX_MANIFEST_BYTES ((uint64_t)64 << 20)

/* Reads the mode, bits and group of a weight's codes. Manifests of older versions have no more than the
 * bits. */
static int read_codes(struct tensor *t, const json_t *entry, const char *path, struct moeflux_err *e)
{
    struct quant_entry codes;
    char what[256];
    snprintf(what, sizeof what, "tensor %.240s", t->name);
    int rc = quant_config_entry(entry, 0, path, what, &codes, e);
    t->mode = codes.mode;
    t->bits = codes.bits;
    t->group = codes.group;
    return rc;
}

static int check_plain(const struct tensor *t, struct json_view *v, struct moeflux_err *e)
{
    bool is_scale = str_ends_with(t->name, ".scales");
    bool is_table = (t->dtype == DTYPE_F8_E4M3 || t->dtype == DTYPE_F8_E8M0) && table_has(t->name);
    bool is_blocks = t->dtype == DTYPE_BLOCKS;
    /* Ids of experts by token: DeepSeek-V4's. */
    bool is_ids =
        (t->dtype == DTYPE_I32 || t->dtype == DTYPE_I64) && str_ends_with(t->name, ".mlp.gate.tid2eid");
    if (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_F32 && !is_table && !is_blocks &&
        !is_ids && !(is_scale && t->dtype == DTYPE_U8))
        return err_set(e, ERR_FORMAT, "%s: tensor %s: dtype %s, expected U32, BF16, F16%s F32%s", v->where,
                       t->name, tensor_dtype_name(t->dtype), is_scale ? "," : " or",
                       is_scale ? " or U8" : "");
    if (json_view_get(v, "bits"))
        return err_set(e, ERR_FORMAT, "%s: tensor %s: bits are given for dtype %s, expected U32", v->where,
                       t->name, is_blocks ? format_of(t->format)->name : tensor_dtype_name(t->dtype));
    return 0;
}

static int read_entry(struct tensor *t, const json_t *entry, uint64_t bin_bytes, const char *path,
                      struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    struct json_view v = {.objects = {entry}, .where = path, .e = &why};
    uint64_t off = json_view_u64(&v, "offset", 0, INT64_MAX);
    uint64_t bytes = json_view_u64(&v, "size", 0, INT64_MAX);
    const char *dtype = json_view_text_or(&v, "dtype", NULL);
    const json_t *shape = json_view_array(&v, "shape");
    if (v.rc < 0)
        return err_set(e, ERR_FORMAT, "%s (tensor %s)", why.text, t->name);
    if (!dtype || !shape)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: key %s is missing", path, t->name,
                       dtype ? "shape" : "dtype");
    if (off % MANIFEST_ALIGN != 0)
        return err_set(e, ERR_FORMAT, "%s: tensor %s: offset %" PRIu64 ", expected a multiple of %d", path,
                       t->name, off, MANIFEST_ALIGN);
    uint32_t blocks = format_find_block(dtype);
    int rc = blocks == FORMAT_NONE ? tensor_describe(t, dtype, shape, off, bytes, bin_bytes, path, e)
                                   : tensor_describe_blocks(t, blocks, shape, off, bytes, bin_bytes, path, e);
    v.e = e;
    if (rc < 0)
        return rc;
    return t->dtype == DTYPE_U32 ? read_codes(t, entry, path, e) : check_plain(t, &v, e);
}

static int read_entries(json_t *tensors, uint32_t file, uint64_t bin_bytes, struct tensor_list *out,
                        const char *path, struct moeflux_err *e)
{
    const char *name;
    json_t *entry;
    json_object_foreach(tensors, name, entry)
    {
        struct tensor t = {.name = mem_text(name, e), .file = file};
        if (!t.name)
            return ERR_MEMORY;
        int rc = read_entry(&t, entry, bin_bytes, path, e);
        if (rc < 0) {
            free(t.name);
            return rc;
        }
        rc = tensor_list_add(out, &t, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_all(json_t *root, uint32_t file, uint64_t bin_bytes, struct tensor_list *out,
                    const char *path, struct moeflux_err *e)
{
    size_t first = out->n;
    json_t *tensors = json_object_get(root, "tensors");
    if (!json_is_object(tensors))
        return err_set(e, ERR_FORMAT, "%s: expected an object \"tensors\"", path);
    const json_t *count = json_object_get(root, "num_tensors");
    if (count &&
        (!json_is_integer(count) || json_integer_value(count) != (json_int_t)json_object_size(tensors)))
        return err_set(e, ERR_FORMAT, "%s: num_tensors is %lld, but there are %zu tensors", path,
                       (long long)json_integer_value(count), json_object_size(tensors));
    int rc = read_entries(tensors, file, bin_bytes, out, path, e);
    return rc < 0 ? rc : tensor_list_check_overlap(out, first, path, e);
}

int manifest_read(const char *path, uint32_t file, uint64_t bin_bytes, struct tensor_list *out,
                  struct json_t **root, struct moeflux_err *e)
{
    json_t *parsed = NULL;
    int rc = json_read_file(path, MAX_MANIFEST_BYTES, JSON_MAX_LARGE, &parsed, e);
    if (rc < 0)
        return rc;
    rc = read_all(parsed, file, bin_bytes, out, path, e);
    if (rc < 0)
        json_decref(parsed);
    else
        *root = parsed;
    return rc;
}
